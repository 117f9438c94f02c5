#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Crash oracle over a root, leaves and one store.

    leaf_rounds.py [--rounds N] [--seed S] [--leaves N] [--url s3://BUCKET/PREFIX]

Agents of crash_oracle record through a root into leaves that store what has ended. Each round is a disturbance: a rank, a
leaf, the root, a rank and its leaf are killed and started again, a leaf hangs for a moment, or (directory) the store is
away for one. In between ranks get on by a step. In the end all that was acknowledged must be in the store, bit by bit and
once, and the ledger must say so. Without --url the store is a directory. Prints the seed and a count of each disturbance.

Needs RANKPROBE_BUILD_DIR. Exit 1: something is missing; the directory is kept and named."""

from __future__ import annotations

import argparse
import collections
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness
from test_root import AGENTS, SEED, Fleet


class Rounds:
    def __init__(self, fleet: Fleet, seed: int, url: str, pause_ms: int):
        self.pause_ms = pause_ms
        self.fleet, self.random = fleet, random.Random(seed)
        self.lives = [0] * AGENTS
        self.done: collections.Counter[str] = collections.Counter()
        self.disturbances = ["rank", "leaf", "root", "both", "hangs"] + ([] if url else ["store"])

    def start_rank(self, rank: int) -> subprocess.Popen:
        self.lives[rank] += 1
        with open(self.fleet.directory / f"agent{rank}.log", "ab") as log:
            return subprocess.Popen([harness.BIN / "crash_oracle", "--agent", "--collector", self.fleet.root.address, "--rank", str(rank), "--life",
                                     str(self.lives[rank]), "--state", str(self.fleet.state(rank)), "--seed", str(SEED), "--pause-ms", str(self.pause_ms)],
                                    stdout=log, stderr=log)

    def kill_rank(self, rank: int) -> None:
        self.fleet.agents[rank].kill()
        self.fleet.agents[rank].wait()

    def round(self) -> None:
        what = self.random.choice(self.disturbances)
        self.done[what] += 1
        rank, leaf = self.random.randrange(AGENTS), self.random.choice(self.fleet.leaves)
        time.sleep(self.random.uniform(0, 0.5))
        if what in ("rank", "both"):
            self.kill_rank(rank)
        if what in ("leaf", "both"):
            leaf.kill()
            leaf.start()
        if what in ("rank", "both"):
            self.fleet.agents[rank] = self.start_rank(rank)
        if what == "root":
            self.fleet.root.kill()
            self.fleet.root.start()
        if what == "hangs":
            leaf.process.send_signal(signal.SIGSTOP)
            time.sleep(self.random.uniform(0, 2))
            leaf.process.send_signal(signal.SIGCONT)
        if what == "store":
            objects = self.fleet.directory / "objects"
            away = objects.rename(self.fleet.directory / "away")
            time.sleep(self.random.uniform(0, 1))
            if objects.exists():
                # Somebody began it anew: what was put there is theirs.
                shutil.copytree(objects, away, dirs_exist_ok=True)
                shutil.rmtree(objects)
            away.rename(objects)
        self.fleet.wait_acked(1, 120)

    def finish(self) -> int:
        self.fleet.end_agents()
        self.fleet.wait_whole()
        # Without root and leaves, too: it is in the store.
        for collector in [*self.fleet.leaves, self.fleet.root]:
            assert collector.stop() == 0, collector.log_text()[-2000:]
        self.fleet.root = self.fleet._collector("reader", "--role", "reader", "--object-store", self.fleet.url).start()
        self.fleet.wait_whole()
        return sum(self.fleet.acked(rank) for rank in range(AGENTS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--leaves", type=int, default=3)
    parser.add_argument("--url", default="")
    parser.add_argument("--pause-ms", type=int, default=50, help="between two steps of a rank: with many rounds, less to check in the end")
    flags = parser.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="leaf-rounds-"))
    print(f"seed {flags.seed}, {directory}", flush=True)
    fleet = Fleet(directory, flags.leaves, url=flags.url)
    try:
        fleet.begin()
        # It reads all that was recorded, and some rounds record for minutes.
        fleet.check_seconds = 120 + 5 * flags.rounds
        rounds = Rounds(fleet, flags.seed, flags.url, flags.pause_ms)
        fleet.agents = [rounds.start_rank(rank) for rank in range(AGENTS)]
        fleet.wait_acked(2)
        for _ in range(flags.rounds):
            rounds.round()
        acked = rounds.finish()
    except (AssertionError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}\nkept: {directory}", file=sys.stderr)
        return 1
    finally:
        fleet.end()
    print(f"{flags.rounds} rounds clean: {acked} acknowledged steps are in the store; {dict(rounds.done)}")
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
