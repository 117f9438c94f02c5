# SPDX-License-Identifier: Apache-2.0
"""A collector that stands still while a rank's queue is full, under policy `block`: the training does not wait for it, and what
found no room is listed with that reason."""

from __future__ import annotations

import collections
import json
import pathlib
import signal

import harness


def stands_still(pid: int) -> bool:
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def test_a_full_queue_does_not_wait_for_a_collector_that_hangs(collector, start_job, monkeypatch, record_property):
    monkeypatch.delenv("RANKPROBE_WAIT_MS", raising=False)
    monkeypatch.setenv("RANKPROBE_QUEUE_MB", "1")
    monkeypatch.setenv("RANKPROBE_POLICY", "block")
    cfg = harness.config("tensor", "L0", section={"scope": [], "list": []}, dump_enable=True)
    job = start_job("hung", collector.address, cfg, world_size=1, stepwise=True)
    job.wait_known(collector)
    job.step(3)
    before = len(job.ranks[0].steps())
    collector.process.send_signal(signal.SIGSTOP)
    try:
        harness.wait_for(lambda: stands_still(collector.process.pid), 30, "the collector to stand still")
        job.step(40)
        hung = [step["seconds"] for step in job.ranks[0].steps()[before:]]
    finally:
        collector.process.send_signal(signal.SIGCONT)
    job.step(3)
    assert job.finish(seconds=120) == [0]
    record_property("longest_step_seconds", max(hung))
    ledger = [json.loads(line) for line in collector.cli("ledger", "--run", "hung", "--json", check=False).stdout.splitlines()]
    lost: collections.Counter = collections.Counter()
    for step in ledger:
        gone = {key: sum(int(gap.get(key, 0)) for gap in step.get("gaps", [])) for key in ("records", "payloads")}
        for key, count in gone.items():
            # Not known where the record of the step's end found no room.
            if step.get(f"expected_{key}") is not None:
                assert int(step.get(f"stored_{key}", 0)) + count == int(step[f"expected_{key}"]), step
        for gap in step.get("gaps", []):
            lost[gap["reason"]] += int(gap.get("records", 0)) + int(gap.get("payloads", 0))
    # One wait was given up because nothing was heard; the rest found a queue that was full and nobody to wait for. None
    # lasted for the deadline of a collector that answers (AGENT_DEADLINE). Records without a number are NOT_RECEIVED, too.
    assert set(lost) - {"NOT_RECEIVED"} == {"COLLECTOR_SILENT", "AGENT_BUDGET"}, (lost, hung)
    assert max(hung) < 5, hung
