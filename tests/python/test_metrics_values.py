# SPDX-License-Identifier: Apache-2.0
"""--metrics-values: what Prometheus reads of a running training, beside what an export of the same step has."""

from __future__ import annotations

import json
import math
import pathlib
import re
import urllib.request

import harness
import pytest
import torch

STEPS, BAD = 5, 3
LINE = re.compile(r'^rankprobe_value\{run="values",process="(\w+)",name="([^"]*)",statistic="(\w+)"\} (\S+)$', re.MULTILINE)
DASHBOARD = pathlib.Path(__file__).parents[2] / "deploy/grafana/rankprobe-values.json"


def _scrape(collector) -> str:
    port = collector.log_text().split('event=metrics port="')[1].split('"')[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return answer.read().decode()


def _train(debugger, net, steps: range) -> None:
    for step in steps:
        debugger.start(model=net)
        x = torch.full((2, 4), 1.0 + step)
        if step == BAD:
            x[0, 0] = float("nan")
        net(x).sum().backward()
        debugger.stop()
        debugger.step()


def test_the_newest_values_of_a_live_training_are_those_of_its_export(dump, start_collector, monkeypatch, tmp_path) -> None:
    collector = start_collector("--metrics-port", "0", "--metrics-values", "Module.*.parameters_grad.*", "--metrics-values", "Module.0.*.output.*")
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "values")
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    debugger = dump.debugger(level="mix")
    assert "rankprobe_value{" not in _scrape(collector)
    seen = {}
    for last, steps in ((BAD, range(BAD + 1)), (STEPS - 1, range(BAD + 1, STEPS))):
        _train(debugger, net, steps)
        at = re.compile(rf'^rankprobe_value_step{{run="values",process="\w+"}} {last}$', re.MULTILINE)
        text = harness.wait_for(lambda: next((text for text in [_scrape(collector)] if at.search(text)), None), 30, f"values of step {last}")
        assert "rankprobe_values_complete 1\n" in text and "rankprobe_values_left_out 0\n" in text
        seen[last] = {(name, statistic): float(value) for _, name, statistic, value in LINE.findall(text)}
    collector.cli("export", "--run", "values", "-o", tmp_path / "out")
    for step, values in seen.items():
        data = json.loads(next((tmp_path / "out" / f"step{step}").glob("*/dump.json")).read_text())["data"]
        expected = {(f"{entry}.output.{i}", statistic): value for entry in data if entry.startswith("Module.0.") and ".forward." in entry
                    for i, tensor in enumerate(data[entry]["output"]) for statistic, value in tensor.items() if statistic in ("Norm", "Max", "Min", "Mean")}
        expected |= {(f"{entry}.{name}", statistic): value for entry in data if ".parameters_grad" in entry
                     for name, tensors in data[entry].items() for tensor in tensors
                     for statistic, value in tensor.items() if statistic in ("Norm", "Max", "Min", "Mean")}
        values = {key: value for key, value in values.items() if ".backward." not in key[0]}
        assert set(values) == set(expected) and len(values) > 16
        for key, value in expected.items():
            assert values[key] == pytest.approx(float(value), rel=1e-6, nan_ok=True), (step, key)
        # Gradients are summed up and stay NaN.
        assert any(math.isnan(value) for (name, _), value in values.items() if ".output." in name) == (step == BAD)
    debugger.close()
    harness.wait_for(lambda: "rankprobe_value{" not in _scrape(collector), 30, "the end of the session")


def test_the_dashboard_asks_for_what_there_is() -> None:
    board = json.loads(DASHBOARD.read_text())
    asked = json.dumps([panel["targets"] for panel in board["panels"]]) + json.dumps(board["templating"])
    names = set(re.findall(r"rankprobe_[a-z_]+", asked))
    assert names == {"rankprobe_value", "rankprobe_value_step", "rankprobe_values_left_out", "rankprobe_values_complete"}
    assert {v["name"] for v in board["templating"]["list"]} == {"datasource", "run", "process", "name", "statistic"}
