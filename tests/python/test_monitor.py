# SPDX-License-Identifier: Apache-2.0
"""Task monitor: a long training watched by the statistics of what it consists of."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import harness
import odd_trainings

from ports import free_port

CLI = harness.BIN / "rankprobe"
SCRIPT = """
import json, os, sys
import torch

told = json.loads(os.environ["TOLD"])
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(0)
torch.set_num_threads(1)
if world > 1:
    torch.distributed.init_process_group("gloo")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = torch.nn.LayerNorm(6), torch.nn.Linear(6, 6)

    def forward(self, x):
        return x + self.fc(self.norm(x))


model = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(6, 3))
if "zero" in told:
    nothing = model.get_parameter(told["zero"])
    nothing.data.zero_()
    nothing.register_hook(lambda gradient: gradient * 0)
net = torch.nn.parallel.DistributedDataParallel(model) if world > 1 else model
make = {"adam": lambda p: torch.optim.Adam(p, lr=0.01), "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)}
optimizer = make[told.get("optimizer", "adam")](model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
debugger = None
if len(sys.argv) > 1:
    from rankprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(config_path=sys.argv[1])
generator = torch.Generator().manual_seed(7 + rank)
truth = []
for step in range(told.get("steps", 5)):
    if debugger:
        debugger.start(model=net if told.get("whole") else model)
    optimizer.zero_grad()
    local = {}
    for micro in range(told.get("micro", 1)):
        loss = net(torch.randn(4, 6, generator=generator)).square().mean()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), told.get("clip", 1e9))
    named = dict(model.named_parameters())
    seen = {"loss": loss.item(), "lr": optimizer.param_groups[0]["lr"], "norm": {}, "update": {}}
    seen["grad"] = {n: p.grad.norm().item() for n, p in named.items()}
    seen["param"] = {n: p.norm().item() for n, p in named.items()}
    for n, p in named.items():
        for key, value in optimizer.state.get(p, {}).items():
            if isinstance(value, torch.Tensor) and value.dim():
                seen["norm"][f"{n}.{key}"] = value.norm().item()
    before = {n: p.detach().clone() for n, p in named.items()}
    optimizer.step()
    seen["update"] = {n: (p.detach() - before[n]).norm().item() for n, p in named.items()}
    scheduler.step()
    truth.append(seen)
    if debugger:
        debugger.stop()
        debugger.step()
if debugger:
    debugger.close()
state = [p.detach().numpy().tobytes().hex() for p in model.parameters()]
state += [v.numpy().tobytes().hex() for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
with open(f"{os.environ['OUT']}{rank}", "w") as file:
    json.dump({"truth": truth, "state": state}, file)
"""


def _config(directory: pathlib.Path, monitor: dict, **fields) -> pathlib.Path:
    path = directory / "monitor.json"
    path.write_text(json.dumps({"task": "monitor", "dump_path": str(directory / "dump"), **fields, "monitor": monitor}))
    return path


def _run_with(flags: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "rankprobe.run", *flags, "--"] if flags else []


def _train(directory: pathlib.Path, *arguments: object, ranks: int = 1, under: tuple[str, ...] = (), **told) -> list[dict]:
    """What each rank saw itself. under: the flags of `rankprobe run`, where it is attached."""
    (directory / "train.py").write_text(SCRIPT)
    port = str(free_port())
    running = [subprocess.Popen(
        [*_run_with(under), sys.executable, "train.py", *map(str, arguments)], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TOLD": json.dumps(told), "OUT": str(directory / "out"), "RANK": str(rank), "WORLD_SIZE": str(ranks),
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}) for rank in range(ranks)]
    for process in running:
        _, text = process.communicate(timeout=240)
        assert process.returncode == 0, text
    return [json.loads((directory / f"out{rank}").read_text()) for rank in range(ranks)]


def _step(directory: pathlib.Path, step: int, file: str = "debug", rank: str = "*") -> dict:
    (place,) = (directory / "dump" / f"step{step}").glob(rank)
    return json.loads((place / f"{file}.json").read_text())["data"]


def _norms(data: dict, kind: str, value: str) -> dict[str, float]:
    entries = {name: entry for name, entry in data.items() if name.startswith(f"{kind}.")}
    return {name[len(kind) + 1:-len(".0.debug")]: entry[value]["Norm"] for name, entry in entries.items() if value in entry}


@pytest.mark.parametrize("optimizer, state", [("adam", {"exp_avg", "exp_avg_sq"}), ("sgd", {"momentum_buffer"})])
def test_every_value_is_what_the_training_itself_sees(tmp_path, optimizer, state) -> None:
    (own,) = _train(tmp_path, _config(tmp_path, {"every": 1}), optimizer=optimizer, clip=0.1)
    for step, seen in enumerate(own["truth"]):
        data = _step(tmp_path, step)
        assert _norms(data, "Parameter", "grad") == pytest.approx(seen["grad"], rel=1e-5)
        assert _norms(data, "Parameter", "param") == pytest.approx(seen["param"], rel=1e-5)
        for key in state:
            wanted = {name[:-len(key) - 1]: norm for name, norm in seen["norm"].items() if name.endswith(f".{key}")}
            assert _norms(data, "Parameter", key) == pytest.approx(wanted, rel=1e-5)
            assert bool(wanted) == (step > 0)
        assert _norms(data, "Update", "update") == pytest.approx(seen["update"], rel=1e-5)
        if step + 1 < len(own["truth"]):
            after = own["truth"][step + 1]["param"]
            assert _norms(data, "Update", "param") == pytest.approx(after, rel=1e-5)
            assert _norms(data, "Update", "ratio") == pytest.approx(
                {name: seen["update"][name] / after[name] for name in after}, rel=1e-5)
        training = data["Training.0.debug"]
        assert training["loss"]["Norm"] == pytest.approx(seen["loss"])
        assert training["lr"]["Norm"] == pytest.approx(seen["lr"])
        assert training["grad_norm"]["Norm"] == pytest.approx(sum(g * g for g in seen["grad"].values()) ** 0.5, rel=1e-5)
        assert ("step_seconds" in training) == (step > 0)


def test_there_is_no_ratio_to_a_parameter_that_is_zero(tmp_path) -> None:
    _train(tmp_path, _config(tmp_path, {"every": 1, "list": ["2.bias", "2.weight"]}), zero="2.bias")
    for step in range(5):
        data = _step(tmp_path, step)
        nothing = data["Update.2.bias.0.debug"]
        assert nothing["param"]["Norm"] == nothing["update"]["Norm"] == 0 and "ratio" not in nothing
        assert data["Update.2.weight.0.debug"]["ratio"]["Norm"] > 0


def test_modules_are_recorded_as_at_level_l0(tmp_path) -> None:
    _train(tmp_path, _config(tmp_path, {"every": 4}))
    entries = list(_step(tmp_path, 4, "dump"))
    assert "Module.0.norm.LayerNorm.forward.0" in entries and "Module.0.norm.LayerNorm.backward.0" in entries
    assert "Module.2.Linear.parameters_grad.0" in entries
    assert not list((tmp_path / "dump").glob("step4/*/stack.json"))


@pytest.mark.parametrize("monitor, fields, steps", [
    ({"every": 3}, {}, [0, 3, 6]), ({"every": 3}, {"step": ["2-7"]}, [2, 5]), ({}, {}, [0]), ({"every": 1}, {"step": [1, 4]}, [1, 4]),
], ids=str)
def test_each_so_many_steps_from_the_first_wanted_one_on(tmp_path, monitor, fields, steps) -> None:
    _train(tmp_path, _config(tmp_path, monitor, **fields), steps=9)
    assert sorted(int(place.name[4:]) for place in (tmp_path / "dump").glob("step*")) == steps


@pytest.mark.parametrize("values, present", [
    (["training"], {"Training"}), (["parameters"], {"Parameter.param", "Update.param"}),
    (["optimizer"], {"Parameter.exp_avg", "Update.update"}), (["optimizer_state"], {"Parameter.exp_avg"}),
    (["weight_gradients"], {"Parameter.grad", "Module.parameters_grad"}),
    (["activations"], {"Module.forward"}), (["activation_gradients"], {"Module.backward"}),
], ids=lambda value: "-".join(value) if isinstance(value, list) else "")
def test_only_the_values_that_were_asked_for(tmp_path, values, present) -> None:
    _train(tmp_path, _config(tmp_path, {"every": 4, "values": values}))
    data, modules = _step(tmp_path, 4), _step(tmp_path, 4, "dump")
    found = {f"Module.{name.split('.')[-2]}" for name in modules}
    for name, entry in data.items():
        kind = name.split(".")[0]
        found |= {kind} if kind == "Training" else {f"{kind}.{value}" for value in entry}
    assert {name for name in found if not name.endswith(("exp_avg_sq", "ratio"))} == present


def test_a_pattern_chooses_modules_and_their_parameters(tmp_path) -> None:
    _train(tmp_path, _config(tmp_path, {"every": 4, "list": ["1.fc"]}))
    assert set(_norms(_step(tmp_path, 4), "Parameter", "grad")) == {"1.fc.weight", "1.fc.bias"}
    assert {name.split(".")[1] for name in _step(tmp_path, 4, "dump")} == {"1"}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_training_keeps_every_bit(tmp_path, optimizer) -> None:
    watched, alone = tmp_path / "watched", tmp_path / "alone"
    for place in (watched, alone):
        place.mkdir()
    told = {"optimizer": optimizer, "micro": 2, "clip": 0.5, "steps": 8}
    (with_us,) = _train(watched, _config(watched, {"every": 3}), **told)
    (without,) = _train(alone, **told)
    assert with_us["state"] == without["state"]


@pytest.mark.parametrize("case", odd_trainings.CASES)
def test_odd_trainings_keep_every_bit_and_are_recorded(tmp_path, case) -> None:
    config = _config(tmp_path, {"every": 1, "extra_statistics": ["counts"]})
    printed = []
    for arguments in ([], [str(config)]):
        done = subprocess.run([sys.executable, odd_trainings.__file__, case, *arguments], capture_output=True, text=True, timeout=120,
                              cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert not list((tmp_path / "dump").glob("step*/*/dump_error_info.log"))
    for step in range(odd_trainings.STEPS):
        data = _step(tmp_path, step)
        if case == "replaced" and step == 3 and not hasattr(torch.optim.Optimizer, "register_step_pre_hook"):
            continue  # below 2.0 an optimizer is seen from the step after it was made on
        assert any(name.startswith("Parameter.") for name in data) and "lr" in data["Training.0.debug"], step
        assert case == "optimizer_raises" or any(name.startswith("Update.") for name in data), step
        if case == "closure":  # what lies there before it is called is of the step before
            assert not any("grad" in entry for name, entry in data.items() if name.startswith("Parameter.")), step


def test_gradients_of_ranks_before_and_after_their_reduction(tmp_path) -> None:
    own = _train(tmp_path, _config(tmp_path, {"every": 1}), ranks=2, micro=2, steps=2)
    for step in (0, 1):
        reduced = [_norms(_step(tmp_path, step, rank=f"rank{rank}"), "Parameter", "grad") for rank in (0, 1)]
        assert reduced[0] == pytest.approx(own[0]["truth"][step]["grad"], rel=1e-5)
        assert reduced[0] == pytest.approx(reduced[1], rel=1e-5)
        unreduced = []
        for rank in (0, 1):
            modules = _step(tmp_path, step, "dump", rank=f"rank{rank}")
            unreduced.append([entry["weight"][0]["Norm"] for name, entry in modules.items()
                              if name.startswith("Module.2.Linear.parameters_grad") and "weight" in entry])
        assert unreduced[0][0] != unreduced[1][0], "of the first micro batch: each rank has its own"


def test_zero_code_and_asked_over_steps(tmp_path, collector) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [CLI, "run", "--collector", collector.address, "--run", "watched", "--monitor", "--every", "2", "--",
         sys.executable, str(script)], cwd=tmp_path, timeout=240, capture_output=True, text=True,
        env={**os.environ, "TOLD": json.dumps({"steps": 7}), "OUT": str(tmp_path / "out"), "RANKPROBE_PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr
    truth = json.loads((tmp_path / "out0").read_text())["truth"]
    answer = collector.cli("query", "--run", "watched", "--of", "all", "--csv", "Training*loss").stdout
    head, row = answer.splitlines()
    assert head.split(",")[-4:] == ["0", "2", "4", "6"], answer
    # What is attached begins with the step after the one in which the optimizer was made, or with it.
    assert [float(cell) for cell in row.split(",")[-3:]] == pytest.approx([truth[step]["loss"] for step in (2, 4, 6)], rel=1e-5)


def _keys(tree: pathlib.Path) -> dict[str, dict[str, list[str]]]:
    """Of each dump.json and debug.json: the names of its entries, with those of their values."""
    files = sorted(tree.glob("step*/*/d*.json"))
    return {str(file.relative_to(tree)): {name: sorted(entry) for name, entry in json.loads(file.read_text())["data"].items()}
            for file in files}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_attached_it_records_what_a_debugger_of_the_script_records(tmp_path, optimizer, ranks) -> None:
    own = _train(tmp_path, under=("--monitor", "--every", "1"), ranks=ranks, optimizer=optimizer, steps=3)
    told = _train(tmp_path, _config(tmp_path, {"every": 1}), ranks=ranks, optimizer=optimizer, steps=3, whole=True)
    assert [rank["state"] for rank in own] == [rank["state"] for rank in told]
    attached, wanted = _keys(tmp_path / "dump_path"), _keys(tmp_path / "dump")
    assert len(wanted) == 3 * ranks * 2, sorted(wanted)
    assert {name.split("/")[0] for name in attached} == {"step0", "step1", "step2"}

    def by_place(keys: dict) -> dict:  # one process has a pid instead of a rank
        return {name if ranks > 1 else f"{name.split('/')[0]}/{name.split('/')[2]}": found for name, found in keys.items()}

    assert by_place(attached) == by_place(wanted)
    prefix = "" if ranks == 1 else "module."
    for step, seen in enumerate(own[0]["truth"]):
        (place,) = (tmp_path / "dump_path" / f"step{step}").glob("rank0" if ranks > 1 else "*")
        data = json.loads((place / "debug.json").read_text())["data"]
        assert _norms(data, "Update", "update") == pytest.approx(
            {prefix + name: norm for name, norm in seen["update"].items()}, rel=1e-4)


@pytest.mark.parametrize("monitor, fields, fault", [
    ({"every": 0}, {}, "monitor.every: 0"), ({"every": "2"}, {}, "monitor.every: \"2\""),
    ({"values": ["loss"]}, {}, "monitor.values: \"loss\" (legal: a list of activations, "),
    ({"values": []}, {}, "monitor.values: []"), ({"data_mode": ["forward"]}, {}, "monitor.data_mode: [\"forward\"]"),
], ids=str)
def test_a_bad_section_is_refused_by_name(tmp_path, monitor, fields, fault) -> None:
    from rankprobe._frontend import config as configs
    from rankprobe.pytorch import _errors

    with pytest.raises(_errors.InvalidParameterError) as raised:
        configs.parse(_config(tmp_path, monitor, **fields).read_text())
    assert fault.split(" (")[0] in str(raised.value), str(raised.value)


def test_another_level_is_told_to_mean_nothing(tmp_path) -> None:
    from rankprobe._frontend import config as configs

    plan, warnings = configs.parse(_config(tmp_path, {}, level="mix").read_text())
    assert plan["level"] == "L0" and plan["monitor"]["every"] == 50
    assert any("task monitor has no level mix" in warning for warning in warnings)


def test_options_of_run_that_do_not_go_together(tmp_path) -> None:
    for options, fault in ((["--monitor", "--config", "x.json"], "--monitor sets its own config"),
                           (["--every", "3"], "requires --monitor"), (["--monitor", "--every", "0"], "1 to 1000000")):
        done = subprocess.run([sys.executable, "-m", "rankprobe.run", *options, "--", "true"], capture_output=True, text=True,
                              cwd=tmp_path, timeout=60)
        assert done.returncode == 2 and fault in done.stderr, done.stderr


def test_a_fault_of_ours_never_reaches_the_training(tmp_path) -> None:
    from rankprobe.pytorch import _monitor

    class Capture:
        faults = 0

        def enter_quiet(self) -> None: ...
        def leave_quiet(self) -> None: ...

        def save_monitored(self, *_: object) -> None:
            raise RuntimeError("broken")

        def report_fault(self, _: str) -> None:
            self.faults += 1

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture = Capture()
    monitor = _monitor.Monitor(capture)
    spec = {"weight_gradients": True, "parameters": True, "optimizer": True, "training": True}
    monitor.begin_step({"monitor": spec, "list": []}, model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    monitor.end_recording()
    monitor.end_step()
    assert capture.faults >= 2
    assert torch.autograd.backward.__name__ == "backward" and "step" not in vars(optimizer)
