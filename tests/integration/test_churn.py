# SPDX-License-Identifier: Apache-2.0
"""Simulated ranks over real sockets that lose connections and restart while they are switched."""

import json
import subprocess

import harness


def test_switches_take_effect_on_the_announced_step_under_trouble(collector):
    result = subprocess.run(
        [harness.BIN / "switch_churn", "--port", str(collector.port), "--ranks", "64", "--cycles", "12", "--seed", "3"],
        capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["faults"] == 0
    assert figures["restarts"] > 0 and figures["cuts"] > 0, "there was no trouble"
    assert figures["switches"] >= 20 and figures["complete"] >= figures["switches"] // 3, figures
    audit = [json.loads(line) for line in (collector.data_dir / "audit.jsonl").read_text().splitlines()]
    actions = [record["action"] for record in audit if record["outcome"] != "BEGUN"]
    assert actions.count("Enable") + actions.count("Disable") == figures["switches"] + figures["refused"]
