# SPDX-License-Identifier: Apache-2.0
"""Questions to a root over what its leaves have not stored yet: what it says is what one collector would say, and
where a leaf cannot be asked that is said (docs/scale.md)."""

import datetime
import json
import pathlib
import signal
import subprocess
import time

import pytest

import harness
from harness import RawAgent, wait_for

# For answers while a leaf hangs, which are given five seconds each, on a machine that has other things to do.
BOUND = 120
STEPS = 3


class Fleet:
    """A root, and two leaves that store nothing of themselves; each has what two ranks recorded."""

    def __init__(self, start_daemon, directory: pathlib.Path):
        self.directory = directory
        self.objects = directory / "objects"
        self.objects.mkdir()
        self.root = start_daemon("--role", "root", "--object-store", self.objects)
        self.leaves = [start_daemon("--role", "leaf", "--object-store", self.objects, "--root", self.root.address,
                                    "--seal-seconds", "3600", "--min-free-bytes", "0", "--drain-seconds", "60")
                       for _ in range(2)]
        self.await_link(1)
        for rank in range(4):
            sends_to(self.leaves[rank % 2], rank)

    def await_link(self, times: int) -> None:
        for leaf in self.leaves:
            wait_for(lambda leaf=leaf: leaf.log().count("root_linked") >= times, harness.SOON, "the link")

    def stored(self) -> int:
        return len(list(self.objects.rglob("log/*/*")))

    def export(self, name: str, *source: str) -> dict[str, bytes]:
        target = self.directory / name
        done = subprocess.run([harness.BIN / "rankprobe", *(source or ("--collector", self.root.address)), "export",
                               "--run", "job", "-o", target], capture_output=True, text=True, timeout=300)
        # 1: there are gaps, and the manifest says which.
        assert done.returncode in (0, 1), done.stderr + self.root.log()[-1500:]
        return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}

    def away(self) -> list[str]:
        lines = self.root.cli("ledger", "--run", "job", "--json").stdout.splitlines()
        return [gap["detail"] for step in map(json.loads, lines) for gap in step["gaps"]
                if gap["reason"] == "LEAF_AWAY"]


def sends_to(daemon: harness.Daemon, rank: int) -> None:
    agent = RawAgent(daemon, run="job", rank=rank, incarnation=1000 + rank, pid=2000 + rank, world_size=4)
    for step in range(STEPS):
        data = bytes([rank + 1, step + 1, 7, 8]) * 4096
        # One tensor of each step is the same on all ranks.
        agent.step(step, bytes([9, step + 1, 7, 8]) * 64 if rank == 0 else data, task="tensor")
    assert agent.committed()
    agent.goodbye()


@pytest.fixture
def fleet(start_daemon, tmp_path):
    return Fleet(start_daemon, tmp_path)


def assert_equal(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    """Names only: a diff of trees would be endless."""
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []


# Names are those of rollups, of which a store has none.
ASKED = (["ledger", "--run", "job", "--json"], ["query", "--run", "job", "--csv"])


def answers(daemon: harness.Daemon) -> list[str]:
    said = [daemon.cli(*command) for command in ASKED]
    assert all(one.stdout for one in said), said
    return [one.stdout for one in said]


def test_what_is_not_stored_yet_is_exported_as_by_one_collector(fleet, start_daemon):
    alone = start_daemon()
    for rank in range(4):
        sends_to(alone, rank)
    expected = fleet.export("alone", "--collector", alone.address)
    assert len([name for name in expected if name.endswith(".pt")]) == 4 * STEPS, sorted(expected)
    said = answers(alone)
    runs = json.loads(alone.cli("runs", "--json").stdout)["runs"]
    # Nothing is stored; then what one leaf has; then all, and the leaves are gone.
    assert fleet.stored() == 0
    assert_equal(fleet.export("unstored"), expected)
    assert answers(fleet.root) == said
    assert fleet.leaves[0].stop() == 0
    assert fleet.stored() > 0
    fleet.leaves[0].start()
    fleet.await_link(1)
    wait_for(lambda: not fleet.away(), harness.SOON, "the leaf to be back")
    assert_equal(fleet.export("half"), expected)
    assert answers(fleet.root) == said
    for key in ("run", "ranks", "steps", "records"):
        assert [run[key] for run in json.loads(fleet.root.cli("runs", "--json").stdout)["runs"]] \
            == [run[key] for run in runs], key
    for leaf in fleet.leaves:
        assert leaf.stop() == 0
    assert_equal(fleet.export("stored", "--object-store", fleet.objects), expected)


def test_a_leaf_that_hangs_is_waited_for_and_named(fleet):
    whole = fleet.export("whole")
    hangs = fleet.leaves[0]
    hangs.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        part = fleet.export("part")
        gaps = json.loads(part["manifest.json"])["gaps"]
        assert [gap["reason"] for gap in gaps] == ["LEAF_AWAY"] and hangs.address in gaps[0]["detail"], gaps
        assert "what it has not stored is not here" in gaps[0]["detail"]
        assert set(part) < set(whole)
        # Every other answer says so, too.
        for command in (["runs"], *ASKED):
            answered = fleet.root.cli(*command)
            assert f"rankprobe: leaf {hangs.address} " in answered.stderr, (command, answered)
        assert hangs.address in fleet.away()[0]
        assert time.monotonic() - began < BOUND
    finally:
        hangs.process.send_signal(signal.SIGCONT)
    # It was away for a moment: all is there again, and that is what is said.
    wait_for(lambda: not fleet.away(), 60, "the ledger without a gap")
    assert_equal(fleet.export("again"), whole)


def test_a_killed_leaf_is_named_until_it_is_back(fleet):
    whole = fleet.export("whole")
    killed = fleet.leaves[0]
    address = killed.address
    killed.kill()
    wait_for(lambda: "leaf_gone" in fleet.root.log(), harness.SOON, "the root to hear of it")
    part = fleet.export("part")
    gaps = json.loads(part["manifest.json"])["gaps"]
    assert [gap["reason"] for gap in gaps] == ["LEAF_AWAY"], gaps
    assert f"leaf {address} disconnected" in gaps[0]["detail"]
    assert set(part) < set(whole)
    killed.start()
    wait_for(lambda: not fleet.away(), 60, "the ledger without a gap")
    assert_equal(fleet.export("again"), whole)


def test_a_root_that_begins_waits_for_its_leaves(fleet):
    """Two seconds. A leaf that looks for it about once a second may be later on a busy machine: then it is tried again."""
    whole = fleet.export("whole")
    for n in range(10):
        before = len(linked_at(fleet.root))
        fleet.root.kill()
        began = time.time()
        fleet.root.start()
        # At once.
        again = fleet.export(f"again{n}")
        wait_for(lambda: len(linked_at(fleet.root)) >= before + 2, 60, "both leaves to be back")
        if linked_at(fleet.root)[before + 1] - began < 2:
            return assert_equal(again, whole)
    pytest.skip("its leaves were never back within two seconds")


def linked_at(root: harness.Daemon) -> list[float]:
    """When leaves came to the root, over all its lives."""
    return [datetime.datetime.fromisoformat(line.split()[0].removeprefix("time=")).timestamp()
            for line in root.log().splitlines() if " event=leaf_linked " in line]
