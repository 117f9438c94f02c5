# SPDX-License-Identifier: Apache-2.0
"""Task monitor for MindSpore: what is recorded is what the training sees itself, and the training is the one without it."""

from __future__ import annotations

import csv
import json
import math
import pathlib
import sys
from typing import Any

import pytest
from conftest import HERE, program
from live import attached, collector, trained, training, wait_for  # noqa: F401 - fixtures
from monitored import OPTIMIZERS, STEPS, WAYS
from odd_training import CASES

_TOLERANCE = {"rel": 2e-5, "abs": 1e-7}
# Its statistics are those of its own numbers, which have eleven bits.
_HALF = {"rel": 2e-3, "abs": 1e-4}


def _config(directory: pathlib.Path, monitor: dict, **fields: Any) -> pathlib.Path:
    path = directory / "monitor.json"
    path.write_text(json.dumps({"task": "monitor", "dump_path": str(directory / "dump"), **fields, "monitor": monitor}))
    return path


def _train(directory: pathlib.Path, case: str, config: pathlib.Path, **environment: str) -> dict:
    """What it saw itself."""
    program("monitored.py", case, directory / "out.json", config, **environment)
    return json.loads((directory / "out.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What each case comes to without a debugger."""
    out = tmp_path_factory.mktemp("alone") / "out.json"
    program("monitored.py", "all", out)
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict]:
    """Every case recorded, and what it saw itself."""
    directory = tmp_path_factory.mktemp("recorded")
    program("monitored.py", "all", directory / "out.json", _config(directory, {"every": 1, "extra_statistics": ["counts"]}))
    return directory / "dump", json.loads((directory / "out.json").read_text())


def _step(directory: pathlib.Path, step: int, file: str = "debug") -> dict:
    (place,) = (directory / "dump" / f"step{step}").iterdir()
    assert not (place / "dump_error_info.log").exists(), (place / "dump_error_info.log").read_text()
    return json.loads((place / f"{file}.json").read_text())["data"]


def _steps(directory: pathlib.Path) -> list[int]:
    return sorted(int(place.name[4:]) for place in (directory / "dump").glob("step*"))


def _norms(data: dict, kind: str, value: str) -> dict[str, float]:
    """Of a tensor of no dimensions Norm is the number itself, as msprobe has it."""
    entries = {name: entry for name, entry in data.items() if name.startswith(f"{kind}.")}
    return {name[len(kind) + 1:-len(".0.debug")]: abs(entry[value]["Norm"]) for name, entry in entries.items() if value in entry}


def _numbers(value: Any) -> list[float]:
    return [one["Norm"] for one in (value if isinstance(value, list) else [value])]


@pytest.mark.parametrize("case", [*OPTIMIZERS, *(way for way in WAYS if way != "model")])
def test_every_value_is_what_the_training_itself_sees(recorded: tuple, alone: dict, case: str) -> None:
    place, own = recorded[0] / case, recorded[1][case]
    assert own["state"] == alone[case]["state"], "the training is another one"
    if "missing" in own:
        pytest.skip(f"no optimizer here: {own['missing']}")
    close = _HALF if case == "half" else _TOLERANCE
    for step, seen in enumerate(own["truth"]):
        data = _step(place, step)
        assert _norms(data, "Parameter", "grad") == pytest.approx(seen["grad"], **close)
        assert _norms(data, "Parameter", "param") == pytest.approx(seen["param"], **close)
        found = {key for name, entry in data.items() if name.startswith("Parameter.") for key in entry} - {"grad", "param"}
        assert found == set(seen["state"])
        for key, wanted in seen["state"].items():
            assert _norms(data, "Parameter", key) == pytest.approx(wanted, **close), key
        assert _norms(data, "Update", "param") == pytest.approx(seen["after"], **close)
        assert _norms(data, "Update", "update") == pytest.approx(seen["update"], **close)
        assert all(entry["ratio"]["Min"] >= 0 for entry in data.values() if "ratio" in entry)
        assert _norms(data, "Update", "ratio") == pytest.approx(
            {name: seen["update"][name] / after for name, after in seen["after"].items() if name in seen["update"] and after}, **close)
        whole = data["Training.0.debug"]
        assert _numbers(whole["loss"]) == pytest.approx(seen["loss"], **close)
        assert _numbers(whole.get("lr", [])) == pytest.approx(seen["lr"], **close)
        assert ("loss_scale" in whole) == (seen["factor"] != 1)
        assert _numbers(whole.get("loss_scale", {"Norm": 1})) == [seen["factor"]]
        assert whole["grad_norm"]["Norm"] == pytest.approx(math.sqrt(sum(g * g for g in seen["grad"].values())), **close)
        assert ("step_seconds" in whole) == (step > 0)


def test_there_is_no_ratio_to_nothing(recorded: tuple) -> None:
    for step in range(STEPS):
        data = _step(recorded[0] / "sgd", step)
        idle = data["Update.idle.weight.0.debug"]
        assert idle["param"]["Norm"] == idle["update"]["Norm"] == 0 and "ratio" not in idle
        assert "NaN" not in json.dumps(data).replace("NanCount", "") and idle["param"]["ZeroCount"] == 36


def test_a_model_of_train_is_watched_by_its_callback(recorded: tuple, alone: dict) -> None:
    own = recorded[1]["model"]
    assert own["state"] == alone["model"]["state"] and len(own["truth"]) == STEPS
    for step, seen in enumerate(own["truth"]):
        data = _step(recorded[0] / "model", step)
        assert _numbers(data["Training.0.debug"]["loss"]) == pytest.approx(seen["loss"], **_TOLERANCE)
        assert any(name.endswith("head.weight.0.debug") and "update" in entry for name, entry in data.items())


def test_cells_are_recorded_as_at_level_l0(tmp_path: pathlib.Path) -> None:
    """Activations, their gradients and those of weights: number by number those of task statistics."""
    monitored, plain = tmp_path / "monitored", tmp_path / "plain"
    for place in (monitored, plain):
        place.mkdir()
    _train(monitored, "adam", _config(monitored, {"every": 3}))
    config = plain / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": "L0", "dump_path": str(plain / "dump"), "rank": [], "step": [3]}))
    _train(plain, "adam", config)
    mine = _step(monitored, 3, "dump")
    assert mine == _step(plain, 3, "dump")
    assert {"Cell.blocks.0.norm.LayerNorm.forward.0", "Cell.head.Dense.backward.0", "Cell.blocks.1.fc.Dense.parameters_grad.0"} <= set(mine)
    # One that wants no gradients, and one for which MindSpore makes zeros.
    assert "Cell.frozen.Dense.forward.0" in mine and "Cell.frozen.Dense.parameters_grad.0" not in mine
    assert mine["Cell.cut.Dense.parameters_grad.0"]["weight"][0]["Norm"] == 0
    assert not list((monitored / "dump").glob("step*/*/stack.json"))


@pytest.mark.parametrize("monitor, fields, steps", [
    ({"every": 3}, {}, [0, 3, 6]), ({"every": 3}, {"step": ["2-7"]}, [2, 5]), ({}, {}, [0]), ({"every": 1}, {"step": [1, 4]}, [1, 4]),
], ids=str)
def test_each_so_many_steps_from_the_first_wanted_one_on(tmp_path: pathlib.Path, monitor: dict, fields: dict, steps: list) -> None:
    _train(tmp_path, "adam", _config(tmp_path, monitor, **fields), STEPS="9")
    assert _steps(tmp_path) == steps
    for step in steps:
        assert "Training.0.debug" in _step(tmp_path, step) and "Update.head.weight.0.debug" in _step(tmp_path, step)


@pytest.mark.parametrize("values, present", [
    (["training"], {"Training"}), (["parameters"], {"Parameter.param", "Update.param"}),
    (["optimizer"], {"Parameter.moment1", "Parameter.moment2", "Update.update"}),
    (["optimizer_state"], {"Parameter.moment1", "Parameter.moment2"}), (["weight_gradients"], {"Parameter.grad", "Cell.parameters_grad"}),
    (["activations"], {"Cell.forward"}), (["activation_gradients"], {"Cell.backward"}),
], ids=lambda value: "-".join(value) if isinstance(value, list) else "")
def test_only_the_values_that_were_asked_for(tmp_path: pathlib.Path, values: list, present: set) -> None:
    _train(tmp_path, "adam", _config(tmp_path, {"every": 2, "values": values}))
    found = {f"Cell.{name.split('.')[-2]}" for name in _step(tmp_path, 2, "dump")}
    for name, entry in _step(tmp_path, 2).items():
        kind = name.split(".")[0]
        found |= {kind} if kind == "Training" else {f"{kind}.{value}" for value in entry}
    assert found == present


@pytest.mark.parametrize("pattern, parameters, cells", [
    ("blocks.1.fc", {"blocks.1.fc.weight", "blocks.1.fc.bias"}, {"blocks.1.fc"}),
    ("LayerNorm", {f"blocks.{i}.norm.{name}" for i in (0, 1) for name in ("gamma", "beta")}, {"blocks.0.norm", "blocks.1.norm"}),
    ("scale", {"scale"}, set()),
])
def test_a_pattern_chooses_cells_and_their_parameters(tmp_path: pathlib.Path, pattern: str, parameters: set, cells: set) -> None:
    _train(tmp_path, "adam", _config(tmp_path, {"every": 2, "list": [pattern]}))
    data = _step(tmp_path, 2)
    assert set(_norms(data, "Parameter", "grad")) == set(_norms(data, "Update", "update")) == parameters
    assert {".".join(name.split(".")[1:-3]) for name in _step(tmp_path, 2, "dump")} == cells


# What each of four steps has: how many Parameter entries, how many of them with a gradient, how many Update entries.
_ODD = {"two_optimizers": [(4, 4, 4)] * 4, "optimizer_raises": [(2, 2, 0)] * 4, "compiled_cell": [(4, 4, 4)] * 4,
        "compiled_step": [(0, 0, 0)] * 4, "own_optimizer": [(0, 0, 0), (4, 4, 4)] * 2, "replaced": [(4, 4, 4)] * 2 + [(3, 3, 3)] * 2,
        "tied": [(3, 3, 3)] * 4, "odd_arguments": [(2, 2, 2), (2, 0, 2), (2, 1, 2), (2, 2, 2)]}


@pytest.mark.parametrize("case", CASES)
def test_odd_trainings_keep_every_bit_and_are_recorded(tmp_path: pathlib.Path, case: str) -> None:
    config = _config(tmp_path, {"every": 1, "extra_statistics": ["counts"]})
    plain, watched = program("odd_training.py", case).stdout, program("odd_training.py", case, config).stdout
    assert watched == plain and "LEFT []" in plain
    for step, counts in enumerate(_ODD[case]):
        data = _step(tmp_path, step)
        of_parameters = [entry for name, entry in data.items() if name.startswith("Parameter.")]
        assert (len(of_parameters), sum("grad" in entry for entry in of_parameters),
                sum(name.startswith("Update.") for name in data)) == counts, step
        if case == "own_optimizer" and step % 2:  # the one around another and this other: each parameter counts once
            (loss,) = {name for name in data if name.startswith("Training.")}
            once = [entry["grad"]["Norm"] for name, entry in data.items() if name.endswith(".0.debug") and "grad" in entry]
            assert data[loss]["grad_norm"]["Norm"] == pytest.approx(math.sqrt(sum(g * g for g in once)), **_TOLERANCE)
            assert isinstance(data[loss]["lr"], dict)


def _rows(directory: pathlib.Path, metric: str, step: int) -> dict[str, list[float]]:
    """Norm, Max, Min and Mean of each row of one of msprobe's files."""
    (path,) = directory.glob(f"*/{metric}_{step}-{step}.csv")
    head, *rows = csv.reader(path.open())
    if metric.startswith("exp_avg"):  # where its rows have no vpp_stage and the step behind the norm
        head = ["name", "norm", "step", "max", "min", "mean", "shape", "dtype"]
    named = [dict(zip(head, row)) for row in rows]
    return {row["name"]: [float(row[op]) for op in ("norm", "max", "min", "mean")] for row in named}


def _statistics(tensor: dict) -> list[float]:
    return [tensor[name] for name in ("Norm", "Max", "Min", "Mean")]


def test_beside_the_monitor_of_msprobe(tmp_path: pathlib.Path) -> None:
    """What msprobe's TrainerMon writes here is what is recorded here, number by number as far as it writes them. Gradients
    of weights it cannot: of these its monitor ends the training (a Parameter of MindSpore has no `grad`)."""
    config, theirs = tmp_path / "msprobe.json", tmp_path / "theirs"
    config.write_text(json.dumps({"targets": {"blocks.0.fc": {}, "head": {}}, "ops": ["norm", "max", "min", "mean"],
                                  "xy_distribution": True, "mv_distribution": True, "param_distribution": True}))
    program("trainer_mon.py", config, tmp_path / "out.json", MONITOR_OUTPUT_DIR=str(theirs))
    assert _train(tmp_path, "mint_adam", _config(tmp_path, {"every": 1})) == json.loads((tmp_path / "out.json").read_text())
    digits = {"rel": 2e-5, "abs": 2e-6}  # six behind the point
    for step in range(STEPS):
        data, cells = _step(tmp_path, step), _step(tmp_path, step, "dump")
        # Its files of activations stay empty and are not there: it forgets them before they are written.
        rows = _rows(theirs, "actv_grad", step)
        assert set(rows) == {f"{cell}.{side}" for cell in ("blocks.0.fc", "head") for side in ("input", "output")}
        for name, row in rows.items():
            cell, _, side = name.rpartition(".")
            side = {"input": "output", "output": "input"}[side]  # of the backward call
            assert _statistics(cells[f"Cell.{cell}.Dense.backward.0"][side][0]) == pytest.approx(row, **digits), name
        for state in ("exp_avg", "exp_avg_sq"):
            rows = _rows(theirs, state, step)
            assert len(rows) == 14
            for name, row in rows.items():
                parameter = data[f"Parameter.{name[len(state) + 1:]}.0.debug"]
                assert _statistics(parameter[state]) == pytest.approx(row, **digits), name
        rows = _rows(theirs, "param_origin", step)
        assert len(rows) == 4
        for name, row in rows.items():  # in each step, and behind it too, it writes what they were in the first
            assert _statistics(_step(tmp_path, 0)[f"Parameter.{name}.0.debug"]["param"]) == pytest.approx(row, **digits), name


def test_zero_code_and_asked_over_steps(tmp_path: pathlib.Path, collector) -> None:
    out = tmp_path / "out.json"
    done = trained(*attached("--collector", collector.address, "--run", "watched", "--monitor", "--every", "2", "--"), sys.executable,
                   HERE / "monitored.py", "adam_weight_decay", out, STEPS="7")
    assert "attached to Net, recording" in done.stderr, done.stderr
    own = json.loads(out.read_text())
    truth = own["truth"]

    def row(pattern: str) -> list[float]:
        answer = collector.cli("query", "--run", "watched", "--of", "all", "--csv", pattern).stdout
        head, line = answer.splitlines()
        assert head.split(",")[-4:] == ["0", "2", "4", "6"], answer
        return [float(cell) for cell in line.split(",")[-4:]]

    close = {"rel": 1e-5}  # a table's digits
    assert row("Training*loss") == pytest.approx([truth[step]["loss"][0] for step in (0, 2, 4, 6)], **close)
    assert row("Parameter.head.weight.*grad") == pytest.approx([truth[step]["grad"]["head.weight"] for step in (0, 2, 4, 6)], **close)
    assert row("Parameter.head.weight.*moments2") == pytest.approx(
        [truth[step]["state"]["moments2"]["head.weight"] for step in (0, 2, 4, 6)], **close)
    assert row("Update.head.weight.*update") == pytest.approx([truth[step]["update"]["head.weight"] for step in (0, 2, 4, 6)], **close)
    assert "Cell.head.Dense" in collector.cli("query", "--run", "watched", "*.parameters_grad.*", "--rows", "module").stdout
    collector.cli("export", "--run", "watched", "-o", tmp_path / "dump")
    assert _steps(tmp_path) == [0, 2, 4, 6]
    assert _norms(_step(tmp_path, 4), "Parameter", "grad") == pytest.approx(truth[4]["grad"], **_TOLERANCE)
    # And the run went wrong nowhere.
    assert collector.cli("scan", "--run", "watched").returncode == 0


def test_switched_on_and_off_while_it_trains(tmp_path: pathlib.Path, training, collector) -> None:
    """The script knows nothing of it; from the step that enable names, in each second, until disable; each bit is that of the script alone."""
    job = training("live")
    job.wait_steps(2)
    config = _config(tmp_path, {"every": 2})
    first = int(collector.json("enable", "--run", "live", "--config", config)["effective_at_step"])
    wait_for(lambda: len(job.recorded()) >= 3, 120, "three steps")
    end = int(collector.json("disable", "--run", "live")["effective_at_step"])
    job.wait_steps(max(0, end - len(job.steps())) + 4)
    job.finish()
    wanted = [step for step in range(first, end) if step % 2 == 0]
    assert job.recorded() == wanted
    job.whole(wanted)
    collector.cli("export", "--run", "live", "-o", tmp_path / "dump")
    assert _steps(tmp_path) == wanted
    losses = {int(line.split()[1]): float.fromhex(line.split()[2]) for line in job.steps()}
    for step in wanted:
        data = _step(tmp_path, step)
        assert data["Training.0.debug"]["loss"]["Norm"] == pytest.approx(losses[step], **_TOLERANCE)
        assert {"grad", "param", "moment1", "moment2"} == set(data["Parameter.fc2.weight.0.debug"])
        assert {"update", "param", "ratio"} == set(data["Update.fc2.weight.0.debug"])
        assert "Cell.fc1.Dense.backward.0" in _step(tmp_path, step, "dump")


def test_from_monitor_to_a_whole_dump_and_back(tmp_path: pathlib.Path, training, collector) -> None:
    """Another task takes over at its step: what the monitor has in place goes, and comes back."""
    monitor, whole = _config(tmp_path, {"every": 1}), tmp_path / "whole.json"
    whole.write_text(json.dumps({"task": "statistics", "level": "mix", "dump_path": str(tmp_path / "d"), "rank": [], "step": []}))
    job = training("other")
    begins = []
    for config in (monitor, whole, monitor):
        begins.append(int(collector.json("enable", "--run", "other", "--config", config)["effective_at_step"]))
        wait_for(lambda: len([s for s in job.recorded() if s >= begins[-1]]) >= 2, 120, "two steps")
    end = int(collector.json("disable", "--run", "other")["effective_at_step"])
    job.wait_steps(max(0, end - len(job.steps())) + 2)
    job.finish()
    collector.cli("export", "--run", "other", "-o", tmp_path / "dump")
    for first, last, has_monitor in zip(begins, [*begins[1:], end], (True, False, True)):
        for step in range(first, last):
            assert any((tmp_path / "dump" / f"step{step}").glob("*/debug.json")) == has_monitor, step
            assert any(name.startswith("Primitive.") for name in _step(tmp_path, step, "dump")) != has_monitor, step


_FAULTS = """
import sys
import mindspore as ms, numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops.composite import base
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")
from rankprobe.mindspore import _monitor


class Capture:
    faults = 0
    def enter_quiet(self): ...
    def leave_quiet(self): ...
    def save_monitored(self, *_): raise RuntimeError("broken")
    def report_fault(self, _): self.faults += 1


net = nn.SequentialCell(nn.Dense(2, 2))
optimizer = nn.SGD(net.trainable_params(), 0.1)
gradient_of = ms.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
spec = {"weight_gradients": True, "parameters": True, "optimizer": True, "updates": True, "training": True}


def train(capture, broken=None):
    monitor = _monitor.Monitor(capture)
    if broken is not None:
        def raises(*_): raise ValueError("broken " + broken)
        setattr(monitor, broken, raises)
    monitor.begin_step({"monitor": spec, "list": []}, net)
    _, gradients = gradient_of(Tensor(np.ones((1, 2), np.float32)))
    before = net[0].weight.asnumpy().copy()
    optimizer(gradients)
    monitor.end_recording()
    monitor.end_step()
    assert not np.array_equal(before, net[0].weight.asnumpy()), "it did not train"
    assert "__call__" not in vars(nn.Optimizer) and base._pynative_forward_run.__name__ == "_pynative_forward_run"
    return capture.faults


print("FAULTS", train(Capture()), *(train(Capture(), name) for name in (
    "_named", "_watch_optimizers", "_watch_losses", "_rates_of", "_parts", "_copied", "_added", "_number")))
"""


def test_a_fault_of_ours_never_reaches_the_training() -> None:
    said = trained(sys.executable, "-c", _FAULTS).stdout
    faults = [int(word) for word in next(line for line in said.splitlines() if line.startswith("FAULTS")).split()[1:]]
    assert len(faults) == 9 and all(count >= 1 for count in faults), said


_FAILS = """
import sys
import mindspore as ms, numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.ops import auto_generate
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc, self.missing = nn.Dense(2, 2), Missing()
    def construct(self, x):
        return self.missing(self.fc(x))
class Missing(nn.Cell):
    def __init__(self):
        super().__init__()
        self.op, self.weight = auto_generate.AdamW(), Parameter(Tensor(np.ones((2, 2), np.float32)), name="w")
    def construct(self, x):
        one = Tensor(np.ones((2, 2), np.float32))
        self.op(self.weight, one, one, one, one, Tensor([1.0]), 0.1, 0.9, 0.99, 0.01, 1e-8, False, False)
        return self.weight * x
net = Net()
if len(sys.argv) > 1:
    from rankprobe.mindspore import PrecisionDebugger
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    debugger.start(net)
try:
    net(Tensor(np.ones((2, 2), np.float32))).asnumpy()
    print("NOTHING WAS RAISED")
except RuntimeError as error:
    print("RAISED", "unregistered" in str(error))
"""


@pytest.mark.parametrize("task, level", [("monitor", "L0"), ("statistics", "L0"), ("statistics", "mix"), ("tensor", "L1")])
def test_an_operator_that_fails_fails_the_program(tmp_path: pathlib.Path, task: str, level: str) -> None:
    """It says so in the next wait, once: where that is ours the program hears of it all the same."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": task, "level": level, "dump_path": str(tmp_path / "d"), "rank": [], "step": [],
                                **({"tensor": {}} if task == "tensor" else {})}))
    for arguments in ([], [path]):
        assert "RAISED True" in trained(sys.executable, "-c", _FAILS, *arguments).stdout
