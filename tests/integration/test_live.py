# SPDX-License-Identifier: Apache-2.0
"""Questions to a root over what its leaves have not stored yet: what it says is what one collector would say, and
where a leaf cannot be asked that is said (docs/scale.md)."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import time

import pytest

import harness
from polling import wait_for
from test_root import Fleet

# A leaf stores nothing of itself.
NEVER = 3600
# For an answer while a leaf hangs: five seconds for it, on a machine that has other things to do.
BOUND = 90


@pytest.fixture
def fleet(tmp_path: pathlib.Path):
    """A root, and two leaves with what all ranks recorded; each has some of the ranks, and nothing is stored."""
    one = Fleet(tmp_path, 2, seal_seconds=NEVER).begin()
    try:
        one.start_agents()
        one.wait_acked(4)
        one.end_agents()
        yield one
    finally:
        one.end()


def tree(directory: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def export(fleet: Fleet, name: str, *source: str) -> dict[str, bytes]:
    """What the root, or another source, exports."""
    target = fleet.directory / name
    done = subprocess.run([harness.BIN / "rankprobe", *(source or ("--collector", fleet.root.address)), "export",
                           "--run", "oracle", "-o", target], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr + fleet.root.log_text()[-1500:]
    return tree(target)


def stored(fleet: Fleet) -> int:
    return len(list((fleet.directory / "objects").rglob("log/*/*")))


def equal(one: dict[str, bytes], other: dict[str, bytes]) -> bool:
    """A diff of trees would be endless."""
    assert sorted(one) == sorted(other)
    return not [name for name in one if one[name] != other[name]]


def test_what_is_not_stored_yet_is_exported_as_by_one_collector(fleet):
    unstored = export(fleet, "unstored")
    assert stored(fleet) == 0
    steps = fleet.root.cli("ledger", "--run", "oracle").stdout
    runs = fleet.root.json("runs")
    # Each leaf is a collector; it exports what it has. Nobody else has anything.
    parts: dict[str, bytes] = {}
    for number, leaf in enumerate(fleet.leaves):
        part = export(fleet, f"leaf{number}", "--collector", leaf.address)
        manifest = json.loads(part.pop("manifest.json"))
        assert not manifest["gaps"]
        assert not set(part) & set(parts)
        parts.update(part)
    manifest = json.loads(unstored["manifest.json"])
    assert not manifest["gaps"] and not manifest["conflicts"]
    assert equal({name: text for name, text in unstored.items() if name != "manifest.json"}, parts)
    # All questions, whoever has the answer.
    query = fleet.root.cli("query", "--run", "oracle", check=False)
    verified = fleet.check()
    assert verified.returncode == 0, verified.stdout + verified.stderr
    # One leaf stores what it has; and then all do.
    assert fleet.leaves[0].stop() == 0
    assert stored(fleet) > 0
    fleet.leaves[0].start()
    wait_for(lambda: fleet.leaves[0].log_text().count("root_linked") == 2, 30, "the leaf to be linked again")
    assert equal(export(fleet, "half"), unstored)
    assert fleet.root.cli("ledger", "--run", "oracle").stdout == steps
    for leaf in fleet.leaves:
        assert leaf.stop() == 0
    assert equal(export(fleet, "stored", "--object-store", fleet.url), unstored)
    after = fleet.root.json("runs")
    assert [run["records"] for run in after["runs"]] == [run["records"] for run in runs["runs"]]
    assert fleet.root.cli("query", "--run", "oracle", check=False).stdout == query.stdout


def gaps(fleet: Fleet) -> list[str]:
    lines = fleet.root.cli("ledger", "--run", "oracle", "--json", check=False).stdout.splitlines()
    return [gap["detail"] for step in map(json.loads, lines) for gap in step["gaps"] if gap["reason"] == "LEAF_AWAY"]


def test_a_leaf_that_hangs_is_waited_for_and_named(fleet):
    whole = export(fleet, "whole")
    hangs = fleet.leaves[0]
    hangs.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        part = export(fleet, "part")
        said = json.loads(part["manifest.json"])["gaps"]
        assert [gap["reason"] for gap in said] == ["LEAF_AWAY"] and hangs.address in said[0]["detail"], said
        assert "what it has not stored is not here" in said[0]["detail"]
        assert set(part) < set(whole)
        # Every other answer says so, too.
        for command in (["runs"], ["ledger", "--run", "oracle"], ["query", "--run", "oracle"]):
            answered = fleet.root.cli(*command, check=False)
            assert f"rankprobe: leaf {hangs.address} " in answered.stderr, (command, answered)
        assert hangs.address in gaps(fleet)[0]
        assert time.monotonic() - began < BOUND
    finally:
        hangs.process.send_signal(signal.SIGCONT)
    # It was away for a moment: all is there again, and that is what is said.
    wait_for(lambda: not gaps(fleet), 60, "the ledger without a gap")
    assert equal(export(fleet, "again"), whole)


def test_a_killed_leaf_is_named_until_it_is_back(fleet):
    whole = export(fleet, "whole")
    killed = fleet.leaves[0]
    killed.kill()
    wait_for(lambda: "leaf_gone" in fleet.root.log_text(), 30, "the root to hear of it")
    part = export(fleet, "part")
    said = json.loads(part["manifest.json"])["gaps"]
    assert [gap["reason"] for gap in said] == ["LEAF_AWAY"], said
    assert f"leaf {killed.address} went away" in said[0]["detail"]
    assert set(part) < set(whole)
    killed.start()
    wait_for(lambda: killed.log_text().count("root_linked") == 2, 30, "the leaf to be linked again")
    wait_for(lambda: not gaps(fleet), 60, "the ledger without a gap")
    assert equal(export(fleet, "again"), whole)


def test_a_root_that_begins_waits_for_its_leaves(fleet):
    whole = export(fleet, "whole")
    fleet.root.kill()
    fleet.root.start()
    # At once.
    assert equal(export(fleet, "again"), whole)


@pytest.mark.parametrize("advertise,says", [("ROOT:0", "this leaf's own"), ("node 17:7411", "HOST:PORT"),
                                            ("node17: 7411", "HOST:PORT"), ("\tnode17:7411", "HOST:PORT")])
def test_an_address_that_ranks_cannot_use_is_refused(tmp_path, advertise, says):
    ended = subprocess.run([harness.BIN / "rankprobed", "--data-dir", tmp_path, "--role", "leaf", "--object-store",
                            "/x", "--root", "ROOT:7410", "--advertise", advertise.replace("ROOT:0", "ROOT:7410")],
                           capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2 and says in ended.stderr, ended.stderr


def test_a_leaf_that_names_its_root_as_itself_is_refused(tmp_path):
    """By another name than the one it was given."""
    fleet = Fleet(tmp_path, 1)
    try:
        fleet.root.start()
        leaf = fleet.leaves[0]
        leaf.flags = (*(fleet.root.address if flag == "ROOT:0" else flag for flag in leaf.flags), "--advertise",
                      f"localhost:{fleet.root.port}")
        leaf.start()
        wait_for(lambda: "no_root" in leaf.log_text(), 30, "the leaf to be refused")
        assert "go round in a circle; give its own with --advertise" in leaf.log_text(), leaf.log_text()[-1000:]
    finally:
        fleet.end()
