# SPDX-License-Identifier: Apache-2.0
"""A leaf whose disk fills up while the object store is away: payloads end before records do, each is listed, no rank
waits, and all of it goes to the store when that is back. The disk is a small tmpfs of its own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

import harness
from polling import wait_for

DISK_MIB = 1024
REASON = "COLLECTOR_DISK"


@pytest.fixture
def disk(tmp_path: pathlib.Path):
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"needs a mount of its own: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk: pathlib.Path, percent: float) -> None:
    """Something else takes so much that the disk is `percent` full."""
    filler = disk / "filler"
    have = filler.stat().st_size if filler.exists() else 0
    stat = os.statvfs(disk)
    want = have + int(stat.f_blocks * percent / 100 - (stat.f_blocks - stat.f_bfree)) * stat.f_frsize
    with open(filler, "ab") as file:
        if want > have:
            # In a moment: ranks write, too.
            os.posix_fallocate(file.fileno(), 0, want)
        else:
            file.truncate(max(want, 0))


def level(leaf: harness.Collector) -> str:
    return leaf.json("status")["disks"][0]["level"]


def steps_of(result: subprocess.CompletedProcess) -> list[dict]:
    """What `rankprobe ledger --json` says, a step of a rank a line."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def lost_of(ledger: list[dict]) -> dict[str, int]:
    lost: dict[str, int] = {}
    for step in ledger:
        for gap in step.get("gaps", []):
            lost[gap["reason"]] = lost.get(gap["reason"], 0) + int(gap.get("payloads", 0)) + int(gap.get("records", 0))
    return lost


def test_payloads_end_before_records_and_all_is_listed(disk, start_job, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKPROBE_WAIT_MS", "3600000")
    objects = tmp_path / "objects"
    (tmp_path / "leaf").mkdir()
    leaf = harness.Collector(tmp_path / "leaf", "--role", "leaf", "--object-store", str(objects), "--seal-seconds", "1",
                             "--min-free-bytes", "1048576", "--disk-high-percent", "70", "--disk-full-percent", "90", data_dir=disk / "data").start()
    try:
        # Away from now on.
        away = objects.rename(tmp_path / "elsewhere")
        objects.touch()
        cfg = harness.config("tensor", "L0", section={"scope": [], "list": []}, dump_enable=True)
        job = start_job("pressed", leaf.address, cfg)
        job.wait_steps(3)
        assert level(leaf) == "LEVEL_ROOM"
        for percent, expected in ((78, "LEVEL_HIGH"), (93, "LEVEL_FULL")):
            fill(disk, percent)
            wait_for(lambda: level(leaf) == expected, 30, expected)
            job.wait_steps(2)
            # None of them is waited for: a policy of waiting would wait for an hour.
            job.wait_steps(10, seconds=60)
        text = leaf.cli("status").stdout
        assert "records alone are taken" in text, text
        (disk / "filler").unlink()
        wait_for(lambda: level(leaf) == "LEVEL_ROOM", 30, "room")
        job.wait_steps(5)
        assert set(job.finish()) == {0}
        # As the leaf has it.
        here = steps_of(leaf.cli("ledger", "--run", "pressed", "--json", check=False))
        objects.unlink()
        away.rename(objects)
        wait_for(lambda: "stored_again" in leaf.log_text(), 60, lambda: leaf.log_text()[-2000:])
        events = [e for e in leaf.json("events", "--run", "pressed")["events"] if e["kind"] == "KIND_DISK"]
        assert len(events) >= 3, events
        # Each change once, in logs as in events.
        assert leaf.log_text().count("disk_pressure") <= len(events) + 2
    finally:
        assert leaf.stop(60) == 0, leaf.log_text()[-2000:]
    lost = lost_of(here)
    assert set(lost) == {REASON}, lost
    assert lost[REASON] > 0
    for step in here:
        gone = sum(int(gap.get("payloads", 0)) for gap in step.get("gaps", []))
        assert int(step["stored_records"]) == int(step["expected_records"]), step
        assert int(step.get("stored_payloads", 0)) + gone == int(step["expected_payloads"]), step
    assert here[0]["state"] == "STATE_WHOLE" and here[-1]["state"] == "STATE_WHOLE"
    # What is in the store is accounted for in the same way, without the leaf.
    there = subprocess.run([harness.BIN / "rankprobe", "--object-store", objects, "ledger", "--run", "pressed", "--json"],
                           capture_output=True, text=True, timeout=120)
    stored = steps_of(there)

    def account(ledger: list[dict]) -> list:
        return sorted((int(s["step"]), int(s["rank"]), s["state"], int(s["stored_records"]), int(s.get("stored_payloads", 0)))
                      for s in ledger)

    assert account(stored) == account(here)
    assert lost_of(stored) == lost


def test_a_root_tells_of_the_disk_of_its_leaf(disk, start_job, tmp_path):
    """Each change once, of that leaf by its name, to whoever asks the root; ranks of all leaves are the root's."""
    collectors = [harness.Collector(tmp_path / name, *flags, data_dir=data) for name, data, flags in (
        ("root", None, ("--role", "root")), ("tight", disk / "data", ("--disk-high-percent", "70", "--disk-full-percent", "90")), ("roomy", None, ()))]
    root, tight, roomy = collectors
    for collector in collectors:
        collector.directory.mkdir()
        collector.flags += ("--object-store", str(tmp_path / "objects"))
        if collector is not root:
            collector.flags += ("--role", "leaf", "--root", root.address, "--min-free-bytes", "1048576", "--seal-seconds", "1")
        collector.start()

    def disks() -> dict[str, str]:
        return {one["collector"]: one["level"] for one in root.json("status").get("disks", [])}

    def events() -> list[dict]:
        return [e for e in root.json("events", "--run", "told")["events"] if e["kind"] == "KIND_DISK"]

    try:
        # Whoever it is that is there is told: one that ends meanwhile would not be.
        job = start_job("told", root.address, harness.config("statistics", "L0", section={"scope": [], "list": []}, dump_enable=True))
        wait_for(lambda: any(a.get("connected") for a in root.json("status", "--run", "told", check=False).get("agents", [])), 60, "the rank")
        assert events() == []
        for count, (percent, expected) in enumerate(((78, "LEVEL_HIGH"), (94, "LEVEL_FULL")), 1):
            fill(disk, percent)
            wait_for(lambda: len(events()) >= count, 60, lambda: f"{expected}: {events()}; {root.log_text()[-1500:]}")
            assert disks()[tight.address] == expected
            assert f"the disk of the leaf {tight.address} is " in events()[-1]["detail"], events()
        assert "records alone are taken" in root.cli("status").stdout
        (disk / "filler").unlink()
        wait_for(lambda: disks().get(tight.address, "LEVEL_ROOM") == "LEVEL_ROOM", 60, disks)
        wait_for(lambda: len(events()) >= 3, 60, events)
        # The other one has a disk of its own, of which nothing is said.
        assert not any(roomy.address in event["detail"] for event in events()), events()
        assert set(job.finish()) == {0}
    finally:
        for collector in reversed(collectors):
            assert collector.stop(60) == 0, collector.log_text()[-2000:]
