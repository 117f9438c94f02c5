# SPDX-License-Identifier: Apache-2.0
"""Steps that record nothing are begun and ended by short calls, until something is to be recorded."""

from __future__ import annotations

import json
import os
import subprocess

import harness
import torch

from rankprobe.pytorch import PrecisionDebugger


def _step() -> None:
    PrecisionDebugger.start()
    torch.relu(torch.ones(2))
    PrecisionDebugger.stop()
    PrecisionDebugger.step()


def _counted(debugger, monkeypatch) -> dict[str, int]:
    """Counts full starts and short ones."""
    session, counts = debugger._session, {"full": 0, "short": 0}

    def counting(name: str, function):
        def counted(*args):
            done = function(*args)
            counts[name] += done is not False
            return done
        return counted

    monkeypatch.setattr(session, "start", counting("full", session.start))
    monkeypatch.setattr(session, "start_idle", counting("short", session.start_idle))
    return counts


def test_an_edit_of_the_config_is_found_and_the_steps_were_counted(dump, monkeypatch) -> None:
    debugger = dump.debugger(dump_enable=False)
    counts = _counted(debugger, monkeypatch)
    for _ in range(40):
        _step()
    assert counts["short"] > 20 and counts["full"] >= 1 and sum(counts.values()) == 40
    assert debugger._session.native.current_step == debugger._steps.current == 40
    config = json.loads(dump.config_path.read_text())
    dump.config_path.write_text(json.dumps({**config, "dump_enable": True}))
    _step()
    config["dump_enable"] = False
    dump.config_path.write_text(json.dumps(config))
    before = counts["short"]
    for _ in range(5):
        _step()
    debugger.wait_exported()
    assert [p.name for p in dump.path.glob("step*")] == ["step40"]
    assert counts["short"] > before, "idle again"


def test_a_switch_of_the_collector_ends_idle_steps(dump, collector, monkeypatch) -> None:
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "idle")
    monkeypatch.setenv("RANK", "0")
    debugger = dump.debugger(dump_enable=False)
    debugger._session.native.wait_connected(30.0)
    counts = _counted(debugger, monkeypatch)
    _step()
    _step()
    with subprocess.Popen([harness.BIN / "rankprobe", "enable", "--run", "idle", "--collector", collector.address, "--for-steps", "2"],
                          stdout=subprocess.DEVNULL) as enable:
        recorded = []
        while len(recorded) < 2 and enable.poll() in (None, 0):
            PrecisionDebugger.start()
            if debugger._session.recording:
                recorded.append(debugger._steps.current)
            torch.relu(torch.ones(2))
            PrecisionDebugger.stop()
            PrecisionDebugger.step()
        assert enable.wait(60) == 0
    assert counts["short"] > 0
    _step()
    PrecisionDebugger._instance.close()
    collector.cli("export", "--run", "idle", "-o", dump.path)
    assert sorted(p.name for p in dump.path.glob("step*")) == sorted(f"step{step}" for step in recorded)


def test_a_child_of_an_idle_process_begins_no_step(dump) -> None:
    debugger = dump.debugger(dump_enable=False)
    _step()
    _step()
    child = os.fork()
    if child == 0:
        os._exit(0 if not debugger._session.start_idle() and not debugger._session.step_idle() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert debugger._session.start_idle()


def test_a_closed_session_begins_no_step(dump) -> None:
    debugger = dump.debugger(dump_enable=False)
    _step()
    _step()
    start, step = debugger._session.start_idle, debugger._session.step_idle
    debugger.close()
    assert not start() and not step()
    debugger._start(None, None, None)
    debugger._step()


def test_a_server_that_records_nothing_begins_short_steps_too(dump, monkeypatch) -> None:
    debugger = dump.debugger(dump_enable=False)
    counts = _counted(debugger, monkeypatch)
    for step in range(4):
        debugger.start(scheduled_tokens={"a": 3}, first_positions={"a": step})
        debugger.stop()
        debugger.step()
    assert counts["short"] >= 1 and sum(counts.values()) == 4
    debugger.start(scheduled_tokens={"a": 3}, rank_id=0)
    assert counts["full"] >= 2, "a rank is told to the collector"
