# SPDX-License-Identifier: Apache-2.0
"""Workers: readers that do not read, queries that nobody waits for, and the end of the process meanwhile."""

import json
import os
import pathlib
import subprocess
import time

import harness
from harness import agent, archive

MIB = 1 << 20


def unread_exports(daemon: harness.Daemon, count: int) -> list:
    """Exports whose client takes nothing: more than HTTP/2's window of data waits in each."""
    rank = harness.RawAgent(daemon, run="big")
    for step in range(8):
        rank.step(step, os.urandom(MIB))
    assert rank.committed()
    calls = []
    for _ in range(count):
        channel = daemon.channel("", options=[("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65535)])
        calls.append(harness.archive_grpc.ArchiveServiceStub(channel).Export(archive.ExportRequest(run="big"), timeout=120))
    time.sleep(1)
    return calls


def test_w01_readers_that_do_not_read_hold_no_worker_for_ever(start_daemon):
    """W01: four unread Exports of four workers: short calls are answered meanwhile, and each reader is ended."""
    daemon = start_daemon("--worker-threads", 4)
    calls = unread_exports(daemon, 4)
    began = time.monotonic()
    assert harness.outcome(daemon.archive().ListRuns, archive.ListRunsRequest())[0] == "OK"
    assert harness.outcome(daemon.archive().ListSteps, archive.ListStepsRequest(run="big"))[0] == "OK"
    bench = harness.agent_grpc.AgentServiceStub(daemon.channel())
    assert harness.outcome(bench.GetReference, agent.ReferenceRequest(run="big", step=0, rank=0))[0] != "DEADLINE_EXCEEDED"
    assert time.monotonic() - began < 25
    # A call that needs a worker waits until the first reader has lost its own.
    code, calls_of_step = harness.outcome(daemon.archive().ListCalls, archive.ListCallsRequest(run="big", step=0, rank=0),
                                          timeout=90)
    assert code == "OK" and len(calls_of_step) == 1
    for call in calls:
        call.cancel()


def test_h10_sigterm_ends_within_seconds_while_readers_hold_all_workers(start_daemon):
    """W02 H10: it took more than 60 s, until SIGKILL."""
    daemon = start_daemon("--worker-threads", 2)
    calls = unread_exports(daemon, 4)
    daemon.process.terminate()
    began = time.monotonic()
    assert daemon.process.wait(60) == 0
    assert time.monotonic() - began < 25, "readers are given thirty seconds"
    for call in calls:
        call.cancel()
    # What was acknowledged is there.
    daemon.start()
    code, steps = harness.outcome(daemon.archive().ListSteps, archive.ListStepsRequest(run="big"))
    assert code == "OK" and [s.step for s in steps.steps] == list(range(8))


def test_an_end_loses_no_audit_line_that_waits_for_the_disk(start_daemon, tmp_path):
    """What agents did waits behind a batch that the disk takes long for when SIGTERM comes."""
    slow = tmp_path / "slow_audit.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", slow, pathlib.Path(__file__).with_name("slow_audit.c"), "-ldl"],
                   check=True)
    runs = {f"run{number}" for number in range(4)}

    def written(daemon: harness.Daemon) -> set[str]:
        text = (daemon.data_dir / "audit.jsonl").read_text()
        return {record["run"] for record in map(json.loads, text[:text.rfind("\n") + 1].splitlines()) if record["action"] == "Hello"}

    # A busy machine may say so late that a faster disk has them all already.
    for milliseconds in (1500, 6000, 15000):
        daemon = start_daemon(environment={"LD_PRELOAD": str(slow), "SLOW_AUDIT_MS": str(milliseconds)})
        for run in sorted(runs):
            harness.RawAgent(daemon, run=run, config='{"dump_path": "d"}')
        daemon.process.terminate()
        waiting = runs - written(daemon)
        assert daemon.process.wait(90) == 0
        assert runs <= written(daemon)
        if waiting:
            return
    raise AssertionError("no line was still waiting: this shows nothing")
