# SPDX-License-Identifier: Apache-2.0
"""Trigger rules `move` and `vanished` on real trainings under task monitor: they fire at a planted fault, at the step
at which `rankprobe scan` finds it afterwards, and say nothing of a sound run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

import harness  # noqa: E402

FAULT, STEPS, EVERY = 40, 80, 2
SCRIPT = textwrap.dedent("""
    import sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    fault, fault_step, steps = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        if fault == "rate" and step == fault_step:
            optimizer.param_groups[0]["lr"] *= 100
        if fault == "state" and step == fault_step:
            optimizer.state.clear()
        if fault == "zeros" and step >= fault_step:
            for parameter in net[0].parameters():
                torch.nn.init.zeros_(parameter)
        debugger.start(model=net)
        batch = torch.randn(64, 6, generator=generator)
        optimizer.zero_grad()
        (net(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    debugger.close()
""")
RULES = {"rules": [{"name": "sharp", "move": {}, "raise_to": "EVIDENCE_NONE"},
                   {"name": "dead", "vanished": {"values": 4}, "raise_to": "EVIDENCE_NONE"}]}


@pytest.fixture
def watching(start_collector, tmp_path):
    spec = tmp_path / "rules.json"
    spec.write_text(json.dumps(RULES))
    return start_collector("--triggers", str(spec))


def _fired(tmp_path, collector, fault: str) -> dict[str, list[dict]]:
    """Events by rule of a training that has ended, and whose farewell is there: nothing comes behind it."""
    config = tmp_path / f"{fault}.json"
    config.write_text(json.dumps({"task": "monitor", "dump_path": str(tmp_path / "dump"), "monitor": {"every": EVERY}}))
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "RANKPROBE_RUN": fault,
                   "RANKPROBE_COLLECTOR": collector.address}
    subprocess.run([sys.executable, "-c", SCRIPT, str(config), fault, str(FAULT), str(STEPS)], env=environment, timeout=240,
                   check=True)

    def events() -> list[dict]:
        return collector.json("events", "--run", fault, "--limit", "1000")["events"]

    harness.wait_for(lambda: [e for e in events() if e["kind"] == "KIND_DISCONNECTED"], 60, "the farewell")
    fired: dict[str, list[dict]] = {}
    for event in events():
        if event["kind"] == "KIND_TRIGGER_FIRED":
            fired.setdefault(event["rule"], []).append(event)
        assert event["kind"] != "KIND_ERROR", event
    return fired


def _scan(collector, fault: str) -> list[dict]:
    report = json.loads(collector.cli("scan", "--run", fault, "--json", check=False).stdout)
    assert int(report["steps"]) == STEPS // EVERY
    return report["findings"]


def test_a_sound_run_fires_nothing(tmp_path, watching) -> None:
    assert _fired(tmp_path, watching, "sound") == {}
    assert _scan(watching, "sound") == []


def test_a_learning_rate_that_jumps_is_a_move_at_its_step(tmp_path, watching) -> None:
    fired = _fired(tmp_path, watching, "rate")
    first = fired["sharp"][0]
    assert int(first["step"]) == FAULT, fired
    # The first of the step that is off its course: what was added to the first parameter.
    assert first["entry"] == "Update.0.weight.0.debug" and first["detail"].startswith("update: Norm "), first
    assert " off its course of " in first["detail"]
    assert "dead" not in fired, fired
    found = _scan(watching, "rate")[0]
    assert (found["kind"], int(found["step"]), found["name"]) == ("move", FAULT, "Update.0.weight.0.debug.update")


def test_a_module_that_is_zeros_has_vanished(tmp_path, watching) -> None:
    fired = _fired(tmp_path, watching, "zeros")
    first = fired["dead"][0]
    # Zero in four recorded steps, of which the fault's is the first.
    assert int(first["step"]) == FAULT + 3 * EVERY, fired
    # How many were recorded before that, is the machine's affair: a rank may be in its first step when the rules reach it.
    assert first["entry"] == "Module.0.Linear.forward.0", first
    assert re.search(r"0 for 4 recorded steps, after (1\d|20) in which it was not", first["detail"]), first
    found = [f for f in _scan(watching, "zeros") if f["kind"] == "vanished"][0]
    assert int(found["step"]) == FAULT and found["name"].startswith("Module.0.Linear.forward.0."), found


def test_an_optimizer_that_lost_its_state(tmp_path, watching) -> None:
    fired = _fired(tmp_path, watching, "state")
    first = fired["dead"][0]
    assert int(first["step"]) == FAULT and first["entry"] == "Update.0.weight.0.debug", fired
    assert f"no longer exists; last in step {FAULT - EVERY}" in first["detail"]
    found = [f for f in _scan(watching, "state") if f["kind"] == "disappeared"][0]
    assert int(found["step"]) == FAULT
