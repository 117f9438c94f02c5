# SPDX-License-Identifier: Apache-2.0
"""TrainerMonitorV2: what its config may say, and what it leaves behind. Its files beside msprobe's: tests/interop."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from rankprobe.pytorch import _step_ends  # noqa: E402
from rankprobe.pytorch import InterfaceUsageError, InvalidParameterError, TrainerMonitorV2  # noqa: E402

EACH = {"enabled": True}
SCRIPT = """
import sys, torch
from rankprobe.pytorch import TrainerMonitorV2
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(net.parameters(), 0.1)
step, monitor = optimizer.step, TrainerMonitorV2(sys.argv[1])
monitor.start(model=net, optimizer=optimizer)
for _ in range(int(sys.argv[2])):
    optimizer.zero_grad()
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    print(optimizer.state[net.weight]["exp_avg"].norm().item(), net.weight.norm().item())
if sys.argv[3] == "stop":
    monitor.stop()
    assert optimizer.step == step
"""


def _config(tmp_path, config: object) -> str:
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return str(path)


@pytest.mark.parametrize("config, words", [
    ("[]", "an object is expected"),
    ("{", "config.json"),
    ({"monitors": {"param": EACH}, "framework": "mindspore"}, "framework: 'mindspore'"),
    ({"monitors": {}}, "none of module, weight_grad, optimizer, param, cc is enabled"),
    ({"monitors": {"param": {"enabled": True, "param_distribution": False}}}, "is enabled"),
    ({"monitors": {"param": 3}}, "monitors.param: 3 is not an object"),
    ({"monitors": {"module": {"ops": ["median"]}}}, "monitors.module.ops: 'median' (legal: min, max, mean, norm, nans)"),
    ({"monitors": {"module": {"targets": [1]}}}, "monitors.module.targets: 1 is not a str"),
    ({"monitors": {"module": {"targets": {}}}}, "monitors.module.targets: {} is not of type list"),
    ({"monitors": {"weight_grad": {"enabled": True, "grad_acc_steps": 0}}}, "grad_acc_steps: 0"),
    ({"monitors": {"cc": {"enabled": True, "cc_distribution": {"cc_codeline": ["("]}}}}, "monitors.cc.cc_codeline: '('"),
    ({"monitors": {"module": {}}, "step_interval": 0, "collect_times": 0}, "step_interval: 0"),
    ({"monitors": {"module": {}}, "start_step": 5, "stop_step": 4}, "stop_step: 4"),
    ({"monitors": {"module": {}}, "rank": [-1, True]}, "rank: -1 is not a rank"),
    ({"monitors": {"module": {}}, "rank": "0"}, "rank: '0' is not of type int or list"),
    ({"monitors": {"module": {}}, "format": "db"}, "format: 'db' (legal: csv)"),
    ({"monitors": {"module": {}}, "start_step": True}, "start_step: True is not of type int"),
])
def test_every_fault_of_a_config_is_named(tmp_path, config, words) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        TrainerMonitorV2(_config(tmp_path, config))
    assert words in str(caught.value)


def test_what_a_monitor_needs_is_asked_for_and_a_second_start_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monitor = TrainerMonitorV2(_config(tmp_path, {"monitors": {"param": EACH}}))
    with pytest.raises(InvalidParameterError, match="optimizer must be given: monitors param"):
        monitor.start(model=torch.nn.Linear(1, 1))
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    monitor.start(model=net, optimizer=optimizer)
    with pytest.raises(InterfaceUsageError, match="already"):
        monitor.start(model=net, optimizer=optimizer)
    monitor.stop()
    monitor.stop()


def _train(tmp_path, config: dict, steps: int, stop: str) -> list[tuple[float, float]]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, _config(tmp_path, config), str(steps), stop], cwd=tmp_path, timeout=120,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [tuple(map(float, line.split())) for line in done.stdout.splitlines() if line[:1].isdigit()]


def _column(path, name: str, scope: str) -> list[tuple[int, float]]:
    with path.open(newline="") as file:
        return [(int(row["step"]), float(row["norm"])) for row in csv.DictReader(file) if (row["module_name"], row["scope"]) == (name, scope)]


@pytest.mark.parametrize("stop", ["stop", "exit"])
def test_states_and_parameters_are_those_behind_each_step(tmp_path, stop) -> None:
    config = {"output_dir": str(tmp_path / "out"), "step_count_per_record": 10, "step_interval": 2,
              "monitors": {"optimizer": {"enabled": True, "ops": ["norm"]}, "param": {"enabled": True, "ops": ["norm"]}}}
    told = _train(tmp_path, config, 5, stop)
    out = tmp_path / "out" / "rank_0"
    assert _column(out / "optimizer_step0-9.csv", "weight.exp_avg", "exp_avg") == [
        (step, pytest.approx(told[step][0], rel=1e-5)) for step in (0, 2, 4)]
    assert _column(out / "param_step0-9.csv", "weight", "param_updated") == [
        (step, pytest.approx(told[step][1], rel=1e-5)) for step in (0, 2, 4)]
    # A shorter training in the same place has its own steps alone.
    _train(tmp_path, config, 3, stop)
    assert [step for step, _ in _column(out / "param_step0-9.csv", "weight", "param_updated")] == [0, 2, 4, 0, 2]


def test_a_rank_that_is_not_wanted_writes_nothing(tmp_path) -> None:
    _train(tmp_path, {"output_dir": str(tmp_path / "out"), "rank": [3], "monitors": {"param": EACH}}, 2, "stop")
    assert not list(tmp_path.rglob("*.csv"))


def test_where_nothing_can_be_recorded_the_training_goes_on(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    config = {"output_dir": str(tmp_path / "file" / "out"), "monitors": {"optimizer": EACH, "param": EACH}}
    assert _train(tmp_path, config, 3, "stop") == _train(tmp_path, {"output_dir": str(tmp_path / "out"), "monitors": {"param": EACH}}, 3, "stop")


def test_a_fault_at_the_end_of_a_step_is_told_once(monkeypatch, recwarn) -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def ended() -> None:
        raise ValueError("a fault of rankprobe")

    ends = _step_ends.StepEnds(optimizer, ended)
    optimizer.step()
    optimizer.step()
    assert len([w for w in recwarn if "a fault of rankprobe" in str(w.message)]) == 1
    assert ends.remove()


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no device without an end")
def test_a_config_is_a_file_of_some_size(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "deep").write_text("[" * 100000)
    for path, words in ((tmp_path / "fifo", "not a regular file"), ("/dev/zero", "not a regular file"), (tmp_path / "deep", "deep")):
        with pytest.raises(InvalidParameterError, match=words):
            TrainerMonitorV2(str(path))
