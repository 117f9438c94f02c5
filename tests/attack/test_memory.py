# SPDX-License-Identifier: Apache-2.0
"""Memory and stalls that a few bytes can cause: decoded frames, ranges of a config, events."""

import json
import time

import harness
from harness import agent, control, types

MIB = 1 << 20


def losses(count: int) -> list[types.Record]:
    """Four bytes each on the wire, some 150 in memory."""
    return [types.Record(loss=types.LossEvent())] * count


def test_m01_a_frame_of_empty_records_is_refused(daemon):
    """M01: 255,000 empty records in a mebibyte are refused by their number; the stream goes on."""
    rank = harness.RawAgent(daemon)
    bombs = [rank.batch(1, losses(255_000)) for _ in range(8)]
    rank.step(1, b"x" * 1000)
    assert rank.committed()
    refused = {r.sequence: r.reason for ack in rank.acks for r in ack.refused_frames}
    assert sorted(refused) == bombs and "bytes of memory" in refused[bombs[0]]
    assert daemon.peak_memory() < 350 * MIB, daemon.peak_memory() / MIB


def test_m01_pending_bytes_count_what_frames_take_in_memory(start_daemon):
    """M01: six uploads that ignore their credit and send frames that grow sixtyfold, just below what is refused:
    what waits stays near --pending-bytes."""
    daemon = start_daemon("--pending-bytes", 64 * MIB)
    honest = harness.RawAgent(daemon, run="honest")
    attackers = [harness.RawAgent(daemon, run="amp", rank=r) for r in range(6)]
    for _ in range(8):
        for a in attackers:
            a.batch(0, losses(110_000))
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        assert daemon.memory() < 900 * MIB
        time.sleep(0.05)
    # 48 frames of some 22 MiB would be a gigabyte.
    assert daemon.peak_memory() < 600 * MIB, daemon.peak_memory() / MIB
    for a in attackers:
        a.goodbye()
    honest.step(1, b"x" * 1000)
    assert honest.committed(seconds=60)


RANGES = json.dumps({"dump_path": "d", "step": [f"{i}-1000000" for i in range(2000)]})


def test_d05_ranges_in_a_config_cost_what_they_are_written_with(daemon):
    """D05 C05: 24 KB of Explain.config_json took 5 GB and 25 s."""
    harness.RawAgent(daemon, run="r")
    before = daemon.cpu_seconds()
    code, answer = harness.outcome(daemon.control().Explain,
                                   control.ExplainRequest(run="r", call="Torch.relu.0.forward", config_json=RANGES))
    assert code == "OK", answer
    assert daemon.cpu_seconds() - before < 10
    assert daemon.peak_memory() < 100 * MIB, daemon.peak_memory() / MIB


def test_d04_a_hello_with_many_ranges_holds_nobody_up(daemon):
    """D04-100 D04-400: 1.2 KB in a Hello stopped the ingest and the control of all runs for 21 s."""
    victim = harness.RawAgent(daemon, run="victim")
    for i in range(20):
        assert harness.RawAgent(daemon, run=f"bomb{i}", config=RANGES, upload=False).welcome.plan.config_json == RANGES
    before = daemon.cpu_seconds()
    victim.step(1, b"x" * 1000)
    assert victim.committed()
    assert harness.outcome(daemon.control().ListAgents, control.ListAgentsRequest())[0] == "OK"
    # They were processor time, too.
    assert daemon.cpu_seconds() - before < 10
    assert daemon.peak_memory() < 100 * MIB


def test_c03_a_flood_of_errors_pushes_out_no_other_runs_events(daemon):
    """C03: events of other runs, and of other kinds in this one, stay listed, also after a restart."""
    harness.RawAgent(daemon, run="quiet", upload=False)
    loud = harness.RawAgent(daemon, run="loud", upload=False)
    for i in range(20_000):
        loud.event(error=agent.AgentError(step=1, message=f"{i} " + "x" * 1000))

    def events(run: str):
        request = control.ListEventsRequest(run=run, limit=10_000)
        return harness.outcome(daemon.control().ListEvents, request)[1].events

    # The last one sent has been taken when a later event of the same stream has.
    harness.wait_for(lambda: len([e for e in events("loud") if e.detail.startswith("999 ")]) == 1, 120, "the flood")
    time.sleep(1)
    connected = events("quiet")[0].kind
    for _ in range(2):
        assert [e.kind for e in events("quiet")][0] == connected
        assert events("loud")[0].kind == connected
        assert len(events("loud")) >= 900
        daemon.stop()
        size = sum(p.stat().st_size for p in daemon.data_dir.glob("events.log*"))
        assert size < 20 * MIB, size
        daemon.start()


def test_m03_runs_are_listed_in_pages(daemon):
    """M03: the answer that lists all runs outgrew a client's 4 MB."""
    for i in range(25):
        harness.RawAgent(daemon, run=f"run{i:02}", upload=False).goodbye()
    listed, after = [], ""
    while True:
        code, page = harness.outcome(daemon.archive().ListRuns, harness.archive.ListRunsRequest(after_run=after, limit=10))
        assert code == "OK" and len(page.runs) <= 10
        listed += [run.run for run in page.runs]
        if not page.truncated:
            break
        after = page.runs[-1].run
    assert listed == sorted(listed) and len(listed) == 25
