# SPDX-License-Identifier: Apache-2.0
"""Real processes for the integration tests: collector, trainer ranks, CLI.

Processes are ended by pid, a port belongs to one test, and waits poll with a deadline.
Binaries come from RANKPROBE_BUILD_DIR/bin.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "lib"))

from rankprobed import BIN, BUILD, Rankprobed  # noqa: E402, F401
from polling import wait_for  # noqa: E402

# Pause in milliseconds after each step of a job that is not stepwise. A step takes some milliseconds.
PAUSE_MS = 20


class Collector(Rankprobed):
    def json(self, *args: str, **kwargs: Any) -> Any:
        return json.loads(self.cli(*args, "--json", **kwargs).stdout)


def config(task: str = "statistics", level: str = "mix", **fields: Any) -> dict:
    """Returns the content of a config.json with dumping off at the start."""
    section = fields.pop("section", {})
    return {"task": task, "dump_path": "./dump", "rank": [], "step": [], "level": level,
            "dump_enable": False, task: section, **fields}


@dataclasses.dataclass
class Rank:
    rank: int
    process: subprocess.Popen
    step_log: pathlib.Path
    log: pathlib.Path
    # Complete lines of step_log that were read.
    _read: list[dict] = dataclasses.field(default_factory=list)
    _offset: int = 0

    def steps(self) -> list[dict]:
        """Returns all lines so far. Reads each line once, because jobs write many lines and tests call this often."""
        if self.step_log.exists():
            with open(self.step_log, "rb") as file:
                file.seek(self._offset)
                fresh = file.read()
            fresh = fresh[:fresh.rfind(b"\n") + 1]
            self._read += [json.loads(line) for line in fresh.splitlines()]
            self._offset += len(fresh)
        return list(self._read)


class Job:
    """A C++ LibTorch training job of `world_size` ranks with gloo. It makes steps by itself, with pauses that leave the machine to
    the tested processes; with `stepwise` it makes only the steps that step() requests."""

    def __init__(self, directory: pathlib.Path, collector: str, run: str, cfg: dict, world_size: int = 2,
                 steps: int = 100000, extra: tuple[str, ...] = (), stepwise: bool = False):
        self.directory = directory
        self.run = run
        self.stop_file = directory / "stop"
        self.ranks: list[Rank] = []
        self._grants: list[int] = []
        config_file = directory / "config.json"
        config_file.write_text(json.dumps(cfg))
        for r in range(world_size):
            step_log = directory / f"steps-{r}.jsonl"
            log = directory / f"rank-{r}.log"
            pace = [f"--pause-ms={PAUSE_MS}"]
            if stepwise:
                pipe = directory / f"grants-{r}"
                os.mkfifo(pipe)
                self._grants.append(os.open(pipe, os.O_RDWR))
                pace = [f"--steps-from={pipe}"]
            with open(log, "wb") as out:
                process = subprocess.Popen(
                    [BIN / "train_transformer", f"--rank={r}", f"--world-size={world_size}",
                     f"--store={directory / 'store'}", f"--steps={steps}", f"--run={run}",
                     f"--collector={collector}", f"--config={config_file}", f"--step-log={step_log}",
                     f"--stop-file={self.stop_file}", *pace, *extra],
                    stdout=out, stderr=out)
            self.ranks.append(Rank(r, process, step_log, log))

    def step(self, count: int = 1, seconds: float = 60) -> None:
        """Lets all ranks make `count` steps and waits until they are done."""
        targets = [len(rank.steps()) + count for rank in self.ranks]
        for grants in self._grants:
            os.write(grants, b"." * count)
        for rank, target in enumerate(targets):
            self._wait_until(rank, target, seconds)

    def step_until(self, number: int, seconds: float = 60) -> None:
        """Makes steps until `number` is the next one."""
        self.step(max(0, number - len(self.ranks[0].steps())), seconds)

    def wait_steps(self, count: int, rank: int = 0, seconds: float = 120) -> None:
        """Waits until `count` more steps are done."""
        self._wait_until(rank, len(self.ranks[rank].steps()) + count, seconds)

    def _wait_until(self, rank: int, target: int, seconds: float) -> None:
        def reached() -> bool:
            if self.ranks[rank].process.poll() is not None and len(self.ranks[rank].steps()) < target:
                raise AssertionError(f"rank {rank} exited with {self.ranks[rank].process.returncode}: "
                                     + self.ranks[rank].log.read_text(errors="replace")[-2000:])
            return len(self.ranks[rank].steps()) >= target

        wait_for(reached, seconds, f"step {target} of rank {rank}")

    def wait_known(self, collector: Collector, seconds: float = 60) -> None:
        """Waits until the collector knows all ranks, because the ranks begin their steps without waiting for it."""
        def known() -> bool:
            agents = collector.json("status", "--run", self.run).get("agents", [])
            return sum(agent.get("connected", False) for agent in agents) == len(self.ranks)

        wait_for(known, seconds, f"the ranks of {self.run} at {collector.address}")

    def finish(self, seconds: float = 60) -> list[int]:
        self.stop_file.touch()
        self._grant_no_more()
        return [r.process.wait(timeout=seconds) for r in self.ranks]

    def end(self) -> None:
        self._grant_no_more()
        for r in self.ranks:
            if r.process.poll() is None:
                r.process.kill()
                r.process.wait()

    def _grant_no_more(self) -> None:
        """Closes the pipes of grants, so that a rank that waits for a step finishes."""
        while self._grants:
            os.close(self._grants.pop())


def tree_ranks(tree: pathlib.Path) -> dict[int, set[str]]:
    """Returns the names of the rank directories in an exported directory by step number."""
    return {int(step.name[4:]): {r.name for r in step.iterdir()} for step in tree.glob("step*")}


def load_dump(directory: pathlib.Path) -> dict:
    return json.loads((directory / "dump.json").read_text())
