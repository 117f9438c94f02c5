# SPDX-License-Identifier: Apache-2.0
"""Leaves whose store fails them: a proxy before a real gateway (fault_proxy.py), and its daemons killed.

Agents are those of the crash oracle: what they record is a function of seed, rank and step. Every test ends with each
step that a leaf acknowledged in the store bit by bit and once, the ledger whole, and exports byte-equal to the leaf's own."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import uuid

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

import harness
from fault_proxy import FAULTS, FaultProxy, now_and_then
from polling import wait_for

SEED = 11
CEPH = os.environ.get("RANKPROBE_SCALE_CEPH", "")
pytestmark = pytest.mark.skipif(not CEPH, reason="no Ceph: tests/run.sh --stage scale")


class Bench:
    """Leaves, agents of the oracle, and a reader that has the store without the proxy."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.prefix = uuid.uuid4().hex
        self.url = f"s3://conformance/{self.prefix}"
        self.collectors: list[harness.Collector] = []
        self.agents: dict[int, subprocess.Popen] = {}
        self.lives: dict[int, int] = {}
        self.proxy: FaultProxy | None = None

    def begin_proxy(self, fault) -> FaultProxy:
        self.proxy = FaultProxy(os.environ["AWS_ENDPOINT_URL"], fault)
        return self.proxy

    def collector(self, name: str, *flags: str) -> harness.Collector:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        self.collectors.append(harness.Collector(directory, *flags).start())
        return self.collectors[-1]

    def leaf(self, name: str = "leaf") -> harness.Collector:
        url = self.url if self.proxy is None else f"{self.url}?endpoint={self.proxy.url}"
        return self.collector(name, "--role", "leaf", "--object-store", url, "--seal-seconds", "1", "--seal-quiet-seconds", "2",
                              "--drain-seconds", "120", "--min-free-bytes", "0")

    def state(self, rank: int) -> pathlib.Path:
        return self.directory / f"state{rank}"

    def start_agents(self, leaf: harness.Collector, ranks: range) -> None:
        for rank in ranks:
            self.lives[rank] = self.lives.get(rank, -1) + 1
            with open(self.directory / f"agent{rank}.log", "ab") as log:
                self.agents[rank] = subprocess.Popen(
                    [harness.BIN / "crash_oracle", "--agent", "--collector", leaf.address, "--rank", str(rank), "--life", str(self.lives[rank]),
                     "--state", self.state(rank), "--seed", str(SEED)], stdout=log, stderr=log)

    def acked(self, rank: int) -> int:
        return self.state(rank).read_text().count("A ") if self.state(rank).exists() else 0

    def wait_acked(self, more: int) -> None:
        before = {rank: self.acked(rank) for rank in self.agents}
        wait_for(lambda: all(self.acked(rank) >= before[rank] + more for rank in self.agents), 180,
                 lambda: f"{more} more steps of each rank: {[self.acked(r) for r in self.agents]}; {self.logs()}")

    def logs(self) -> str:
        return "".join(one.log_text()[-1500:] for one in self.collectors)

    def end_agents(self) -> None:
        for agent in self.agents.values():
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents.values():
            assert agent.wait(timeout=120) == 0, self.logs()
        self.agents.clear()

    def burst(self, leaf: harness.Collector, ranks: range) -> None:
        """Some steps of each: agents record as fast as they can, and what they do goes into a disk of 8 GiB."""
        self.start_agents(leaf, ranks)
        self.wait_acked(6)
        self.end_agents()

    @staticmethod
    def sets(leaf: harness.Collector) -> int:
        return leaf.log_text().count("event=stored ")

    def wait_stored(self, leaf: harness.Collector, more_than: int) -> None:
        wait_for(lambda: self.sets(leaf) > more_than, 240, self.logs)

    def read(self, *args: str, check: bool = True) -> subprocess.CompletedProcess:
        result = subprocess.run([harness.BIN / "rankprobe", "--object-store", self.url, *map(str, args)], capture_output=True,
                                text=True, timeout=180)
        assert not check or result.returncode == 0, (result.stderr, self.logs())
        return result

    def ledger(self) -> list[dict]:
        return [json.loads(line) for line in self.read("ledger", "--run", "oracle", "--json", check=False).stdout.splitlines()]

    def whole(self, *leaves: harness.Collector) -> None:
        """All that was acknowledged is in the store, once, and it is what the leaves have; these are stopped before."""
        for leaf in leaves:
            assert leaf.process.poll() is not None or leaf.stop(seconds=180) == 0, leaf.log_text()[-2000:]
        if self.proxy is not None:
            self.proxy.fault = lambda head: None
        reader = self.collector("reader", "--role", "reader", "--object-store", self.url)
        checked = subprocess.run([harness.BIN / "crash_oracle", "--check", "--collector", reader.address, "--seed", str(SEED), "--states",
                                  *[self.state(rank) for rank in self.lives]], capture_output=True, text=True, timeout=180)
        assert checked.returncode == 0, (checked.stdout[-2000:], checked.stderr[-500:], self.logs())
        states = {(step["rank"], step["state"]) for step in self.ledger()}
        assert states == {(rank, "STATE_WHOLE") for rank in self.lives}, states
        self.read("export", "--run", "oracle", "-o", self.directory / "sealed")
        exported = tree(self.directory / "sealed")
        assert len(exported) > 10
        for leaf in leaves:
            leaf.start()
            leaf.cli("export", "--run", "oracle", "-o", leaf.directory / "own")
            own = {name: data for name, data in tree(leaf.directory / "own").items() if len(leaves) == 1 or "/rank" in name}
            assert own.items() <= exported.items()
            assert len(leaves) > 1 or own == exported

    def end(self) -> None:
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        if self.proxy is not None:
            self.proxy.fault = lambda head: None
        for collector in self.collectors:
            if collector.process.poll() is None:
                assert collector.stop(seconds=180) == 0, collector.log_text()[-2000:]
        if self.proxy is not None:
            self.proxy.end()


def tree(root: pathlib.Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture
def bench(tmp_path: pathlib.Path):
    made = Bench(tmp_path)
    yield made
    made.end()


# A request that hangs takes 20 s: few of these.
@pytest.mark.parametrize("fault,share,most", [(fault, 0.3, 1 << 30) for fault in FAULTS if fault != "hang"] + [("hang", 0.1, 2), ("all", 0.4, 25)])
def test_a_network_that_fails_now_and_then(bench: Bench, fault: str, share: float, most: int):
    # Its first look at the store is not what is tested.
    proxy = bench.begin_proxy(lambda head: None)
    leaf = bench.leaf()
    proxy.fault = now_and_then(fault, SEED, share, most)
    for _ in range(40):
        before = bench.sets(leaf)
        bench.burst(leaf, range(2))
        bench.wait_stored(leaf, before)
        if sum(proxy.puts[f] for f in FAULTS) >= min(most, 4):
            break
    assert sum(proxy.puts[f] for f in FAULTS) > 0, proxy.puts
    bench.burst(leaf, range(2))
    bench.whole(leaf)


def test_every_commit_whose_answer_is_lost_is_the_leafs_own(bench: Bench):
    """Each entry of the log is put, its answer is lost, and the next attempt is told that it is there."""
    seen: set[str] = set()

    def lose(head: str) -> str | None:
        line = head.split("\r\n", 1)[0]
        if not line.startswith("PUT") or "/log/" not in line or line in seen:
            return None
        seen.add(line)
        return "lost answer"

    bench.begin_proxy(lose)
    leaf = bench.leaf()
    for _ in range(3):
        before = bench.sets(leaf)
        bench.burst(leaf, range(2))
        bench.wait_stored(leaf, before)
    assert len(seen) >= 3, seen
    bench.whole(leaf)
    assert "storing_ended" not in leaf.log_text()


def test_a_store_that_is_away_and_comes_back(bench: Bench):
    away = [False]
    bench.begin_proxy(lambda head: "away" if away[0] else None)
    leaf = bench.leaf()
    bench.burst(leaf, range(3))
    bench.wait_stored(leaf, 0)
    away[0] = True
    bench.burst(leaf, range(3))
    wait_for(lambda: "not_stored" in leaf.log_text(), 180, bench.logs)
    # Nobody who records notices.
    for _ in range(3):
        bench.burst(leaf, range(3))
    away[0] = False
    wait_for(lambda: "stored_again" in leaf.log_text(), 180, bench.logs)
    bench.burst(leaf, range(3))
    bench.whole(leaf)


def test_of_two_owners_of_a_log_one_is_fenced(bench: Bench):
    """A data directory is copied and both are started: one stores nothing more, keeps all, and stores it under a log of its own
    once it is told to."""
    first = bench.leaf("first")
    bench.burst(first, range(2))
    bench.wait_stored(first, 0)
    assert first.stop(seconds=180) == 0
    shutil.copytree(first.data_dir, bench.directory / "second" / "data")
    first.start()
    second = bench.leaf("second")
    owners, given, ranks = (first, second), {first: set(), second: set()}, 2

    def fenced() -> harness.Collector | None:
        return next((one for one in owners if "storing_ended" in one.log_text()), None)

    # One that opens the log when the other has gone on takes that for its own; they meet where both go on.
    while fenced() is None:
        assert ranks < 20, bench.logs()
        before = {one: bench.sets(one) for one in owners}
        for one in owners:
            bench.burst(one, range(ranks, ranks + 2))
            given[one] |= {ranks, ranks + 1}
            ranks += 2
        wait_for(lambda: fenced() or all(bench.sets(one) > before[one] for one in owners), 180, bench.logs)
    out = fenced()
    assert first.stop(seconds=180) == 0 and second.stop(seconds=180) == 0
    missing = set(range(ranks)) - {step["rank"] for step in bench.ledger()}
    assert missing <= given[out], missing
    shutil.rmtree(out.data_dir / "sealing")
    out.start()
    wait_for(lambda: {step["rank"] for step in bench.ledger() if step["state"] == "STATE_WHOLE"} == set(range(ranks)), 180, bench.logs)
    bench.whole(first, second)


def test_one_rank_on_two_leaves_is_a_conflict(bench: Bench):
    """Two live processes say that they are rank 0: both are kept, readers say so, nothing is overwritten."""
    leaves = [bench.leaf(f"leaf{n}") for n in range(2)]
    jobs = []
    for n, leaf in enumerate(leaves):
        (bench.directory / f"job{n}").mkdir()
        jobs.append(harness.Job(bench.directory / f"job{n}", leaf.address, "same", harness.config(section={"scope": [], "list": []}, dump_enable=True),
                                world_size=1, steps=4 + n))
    try:
        for job in jobs:
            assert job.ranks[0].process.wait(timeout=180) == 0
    finally:
        for job in jobs:
            job.end()
    for leaf in leaves:
        assert leaf.stop(seconds=180) == 0
    steps = [json.loads(line) for line in bench.read("ledger", "--run", "same", "--json").stdout.splitlines()]
    assert sorted(step["step"] for step in steps) == sorted([0, 1, 2, 3] * 2 + [4]), steps
    ended = bench.read("export", "--run", "same", "-o", bench.directory / "sealed", check=False)
    manifest = json.loads(next((bench.directory / "sealed").glob("*manifest*.json")).read_text())
    assert sorted({conflict["step"] for conflict in manifest["conflicts"]}) == [0, 1, 2, 3], (manifest["conflicts"], ended.stderr)


# A gateway that is gone answers nobody: somebody is to have asked. One without its OSD lets requests hang: one is to have run into its 20 s.
@pytest.mark.parametrize("daemon,away_seconds", [("rgw", 8), ("osd", 24)])
def test_a_daemon_of_the_store_is_killed_under_load(bench: Bench, daemon: str, away_seconds: float):
    leaf = bench.leaf()
    bench.burst(leaf, range(3))
    bench.wait_stored(leaf, 0)
    ceph = [str(harness.ROOT / "tests" / "scale" / "ceph.sh")]
    for _ in range(2):
        bench.start_agents(leaf, range(3))
        bench.wait_acked(4)
        began, told = time.monotonic(), leaf.log_text().count("not_stored")
        subprocess.run([*ceph, "kill", CEPH, daemon], check=True, timeout=60)
        try:
            bench.wait_acked(6)
            bench.end_agents()
            before = bench.sets(leaf)
            wait_for(lambda: time.monotonic() - began >= away_seconds, 60)
        finally:
            subprocess.run([*ceph, "again", CEPH, daemon], check=True, timeout=60)
        bench.wait_stored(leaf, before)
        # A call has 60 s: within these it is tried again, and nobody hears of it.
        if time.monotonic() - began < 50:
            assert leaf.log_text().count("not_stored") == told, bench.logs()
    bench.whole(leaf)
