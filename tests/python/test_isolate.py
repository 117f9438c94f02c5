# SPDX-License-Identifier: Apache-2.0
"""`rankprobe isolate`: each module on the inputs that a reference recorded, in one step."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
from typing import Any, Callable, Iterator

import numpy
import pytest

import harness
import isolated_model
import rankprobe
from isolated_model import batch, loss, make, plant

torch = pytest.importorskip("torch")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5):
    pytest.skip("isolate needs PyTorch 2.5", allow_module_level=True)

NN = torch.nn


def record(directory: pathlib.Path, model: Any, step: Callable[[Any], Any], task: str = "tensor", level: str = "L0", **section: Any) -> pathlib.Path:
    """One step of the model; the directory of its rank."""
    from rankprobe.pytorch import PrecisionDebugger

    directory.mkdir()
    config = directory / "config.json"
    config.write_text(json.dumps({"task": task, "level": level, "dump_path": str(directory / "dump"), "rank": [], "step": [],
                                  "risk_level": "ALL", task: section}))
    debugger = PrecisionDebugger(config_path=str(config))
    debugger.start(model)
    step(model)
    debugger.stop()
    debugger.step()
    PrecisionDebugger.wait_exported()
    debugger.close()
    (found,) = (directory / "dump" / "step0").iterdir()
    return found


def train(model: Any, words: Any = None) -> Any:
    value = loss(model, batch() if words is None else words)
    value.backward()
    return value


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    yield record(tmp_path_factory.mktemp("isolate") / "reference", make(), train)


def isolated(model: Any, reference: pathlib.Path, step: Callable[[Any], Any] = train, **options: Any) -> Any:
    with rankprobe.isolate(model, reference, **options) as report:
        step(model)
    return report


def reasons(report: Any) -> dict[str, str]:
    return {row.name: row.reason for row in report.rows if row.verdict == "not judged"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"])
def test_three_faults_at_once_are_named_and_no_other_module(reference, dtype) -> None:
    model = make()
    planted = plant(model)
    report = isolated(model.to(dtype), reference)
    assert report.failing == planted and report.exit_code == 1, str(report)
    assert not reasons(report)
    rows = {row.name: row for row in report.rows}
    attention, norm, gate = planted
    assert rows[f"{attention}.forward.0"].where == f"input.0 of {attention.rpartition('.')[0]}.out.Linear.forward.0"
    assert "isolated_model.py:" in rows[f"{attention}.forward.0"].source
    assert rows[f"{norm}.forward.0"].verdict == "error" and rows[f"{norm}.forward.0"].error > rows[f"{norm}.forward.0"].tolerance > 0
    assert rows[f"{gate}.forward.0"].verdict == "pass" and rows[f"{gate}.backward.0"].verdict == "error"
    assert rows["Module.layers.5.attention.out.Linear.forward.0"].verdict == "pass"
    text = str(report)
    assert text.startswith("3 modules differ: ") and "not those of a training" in text
    data = json.loads(report.to_json())
    assert data["failing"] == planted and len(data["rows"]) == len(report.rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_healthy_model_has_no_finding(reference, dtype) -> None:
    report = isolated(make().to(dtype), reference)
    assert report.exit_code == 0 and not report.failing and not reasons(report), str(report)
    # Every module of the model, forward and backward; the first layer's input takes no gradient.
    assert {row.module for row in report.rows} == {"Module"} | {
        f"Module.{path}.{type(module).__name__}" for path, module in make().named_modules() if path and path != "layers"}


def test_autocast_is_judged_by_its_dtype(reference) -> None:
    def step(model: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            train(model)

    model = make()
    assert isolated(make(), reference, step).exit_code == 0
    planted = plant(model)
    assert isolated(model, reference, step).failing == planted


def test_a_reference_may_be_the_coarser_side(tmp_path: pathlib.Path) -> None:
    directory = record(tmp_path / "coarse", make().to(torch.bfloat16), train)
    for other in (torch.float32, torch.bfloat16):
        model = make().to(torch.bfloat16).to(other)
        assert isolated(model, directory).exit_code == 0
    planted = plant(model)
    assert isolated(model.float(), directory).failing == planted


def _hooks(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks) for module in model.modules())


def test_nothing_is_left_behind(reference) -> None:
    def course(isolate: bool) -> list[Any]:
        model = make(p=0.1, seed=3)  # other weights, and random numbers
        model.register_buffer("calls", torch.zeros(()))
        model.register_forward_hook(lambda module, *_: module.calls.add_(1) and None)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        seen = []
        for step in range(3):
            if step == 1:
                train(model, batch(9))  # gradients that wait
                if isolate:
                    report = isolated(model, reference)
                    assert not report.failing and len(report.notes) == 1 and "had other values" in report.notes[0], str(report)
            seen.append(train(model, batch(step)).detach())
            optimizer.step()
            optimizer.zero_grad()
        assert _hooks(model) == 1 and "__reduce_ex__" not in NN.Module.__dict__
        return [*seen, *(value.clone() for value in model.state_dict().values()), torch.rand(4)]

    torch.manual_seed(1)
    alone = course(False)
    torch.manual_seed(1)
    for a, b in zip(alone, course(True)):
        assert torch.equal(a, b)


def test_random_modules_are_not_judged_and_what_follows_is(reference) -> None:
    model = make(p=0.1)
    planted = plant(model)
    report = isolated(model, reference)
    assert report.failing == planted
    found = reasons(report)
    assert len(found) == 2 * isolated_model.LAYERS and set(found.values()) == {
        "it draws random numbers (dropout with p=0.1 in training mode), whose state was not recorded"}
    assert isolated(make(p=0.1).eval(), reference).exit_code == 0


def test_another_batch_and_other_weights_change_no_verdict(reference) -> None:
    model = make(seed=5)
    planted = plant(model)
    report = isolated(model, reference, lambda m: train(m, batch(7)))
    assert report.failing == planted
    assert reasons(report) == {"Module.forward.0": "input.0 of Module.words.Embedding differs from the reference: the batch, or code before the first module (neither was recorded)"}
    assert "the largest relative difference is" in report.notes[0]


def test_what_cannot_be_judged_is_named(reference) -> None:
    model = make()
    model.head = NN.Sequential(model.head)
    del model.layers[23]
    model.layers[3].mlp.down = NN.Linear(2 * isolated_model.WIDTH, isolated_model.WIDTH, bias=False)
    model.layers[4].mlp.up = NN.Linear(isolated_model.WIDTH, isolated_model.WIDTH)
    model.layers[4].mlp.down = NN.Linear(isolated_model.WIDTH, isolated_model.WIDTH)
    planted = plant(model)
    report = isolated(model, reference)
    assert set(planted) <= set(report.failing)
    found = reasons(report)
    assert found["Module.layers.23.ln1.LayerNorm.forward.0"] == "the model has no such module"
    assert found["Module.head.0.Linear.forward.0"] == "the reference has no such module"
    assert "has shape [16, 16], the reference's [32, 16]" in found["Module.layers.4.mlp.up.Linear.forward.0"]
    # A wider reference's module; what is around it is judged.
    assert "input.0 has shape [2, 6, 16], the reference's [2, 6, 32]" in found["Module.layers.4.mlp.gate.Gate.forward.0"]
    assert "Module.layers.4.Layer" not in report.failing and "Module.layers.3.mlp.down.Linear" in report.failing
    # Another batch size: nothing fits.
    report = isolated(make(), reference, lambda m: train(m, batch(size=5)))
    assert report.exit_code == 2 and str(report).startswith("no module could be judged") and not report.failing
    # Not called at all.
    report = isolated(make(), reference, lambda m: m.words(batch()))
    assert reasons(report)["Module.norm.LayerNorm.forward.0"] == "this program did not call it in the step"


def test_damaged_tensors_cost_their_module_alone(reference, tmp_path: pathlib.Path) -> None:
    copied = tmp_path / "rank0"
    shutil.copytree(reference, copied)
    data = copied / "dump_tensor_data"
    (data / "Module.layers.2.ln1.LayerNorm.forward.0.input.0.pt").write_bytes(b"PK")
    (data / "Module.layers.3.ln1.LayerNorm.forward.0.output.0.pt").unlink()
    torch.save(torch.zeros(3), data / "Module.layers.4.mlp.Mlp.backward.0.output.0.pt")
    (data / "Module.layers.6.ln1.LayerNorm.forward.0.input.0.pt").chmod(0o666)
    for layer, damaged in enumerate((lambda x: x.to_sparse(), lambda x: x.to("meta"), lambda x: x.to(torch.complex64),
                                     lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)), start=7):
        path = data / f"Module.layers.{layer}.ln1.LayerNorm.forward.0.parameters.weight.pt"
        torch.save(damaged(torch.load(path)), path)
    model = make()
    planted = plant(model)
    report = isolated(model, copied)
    assert report.failing == planted, str(report)
    found = reasons(report)
    assert "cannot be read" in found["Module.layers.2.ln1.LayerNorm.forward.0"]
    assert found["Module.layers.3.ln1.LayerNorm.forward.0"].endswith("forward.0.output.0.pt is missing")
    assert "can be changed by other users" in found["Module.layers.6.ln1.LayerNorm.forward.0"]
    for layer in range(7, 11):
        assert "is not the tensor that dump.json describes" in found[f"Module.layers.{layer}.ln1.LayerNorm.forward.0"], layer


@pytest.mark.parametrize("damage", [
    lambda data: [record.update(parameters=[1]) for record in data.values()],
    lambda data: data.update({"Module.ghost.Linear.forward." + "9" * 5000: {}}),
    lambda data: [record.update(parameters={"weight": {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [3],
                                                       "data_name": "\x1b[31m\x9b.pt"}}) for record in data.values()],
], ids=["parameters", "number", "escape"])
def test_a_damaged_record_raises_nothing_and_steers_no_terminal(tmp_path: pathlib.Path, damage) -> None:
    model = NN.Sequential(NN.LayerNorm(3), NN.Linear(3, 2))
    reference = record(tmp_path / "ref", copy.deepcopy(model), lambda one: one(torch.ones(2, 3)))
    dump = json.loads((reference / "dump.json").read_text())
    damage(dump["data"])
    (reference / "dump.json").write_text(json.dumps(dump))
    said = str(isolated(model, reference, lambda one: one(torch.ones(2, 3))))
    assert all(character == "\n" or character.isprintable() for character in said), said


@pytest.mark.parametrize("change, said", [
    (lambda d: d.write_text(""), "is empty"),
    (lambda d: d.write_text(d.read_text()[:-100]), "is not a dump.json that can be read"),
    (lambda d: d.write_text("[]"), "is not a dump.json that can be read"),
    (lambda d: d.write_text(json.dumps({**json.loads(d.read_text()), "data": {}})), "holds no call of a module"),
    (lambda d: d.write_text(json.dumps({**json.loads(d.read_text()), "task": "statistics"})), 'record the reference with "task": "tensor"'),
    (lambda d: d.write_text(json.dumps({**json.loads(d.read_text()), "framework": "mindspore"})), "isolate reads those of PyTorch"),
    (lambda d: d.unlink(), "holds no dump.json"),
    (lambda d: d.chmod(0o666), "can be changed by other users"),
    (lambda d: d.write_text(d.read_text().replace("Module.", "Module.wrapped.")), "a layer or cell mapping says which is which"),
], ids=["empty", "cut", "list", "no-modules", "statistics", "mindspore", "missing", "mode", "other-names"])
def test_a_bad_reference_is_one_line(reference, tmp_path: pathlib.Path, change, said) -> None:
    directory = tmp_path / "rank0"
    directory.mkdir()
    shutil.copy(reference / "dump.json", directory)
    change(directory / "dump.json")
    with pytest.raises(ValueError) as error:
        rankprobe.isolate(make(), directory)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_checksums_are_no_reference(tmp_path: pathlib.Path) -> None:
    model = NN.Sequential(NN.Linear(2, 2))
    directory = record(tmp_path / "md5", model, lambda m: m(torch.ones(1, 2)).sum().backward(), "statistics", summary_mode="md5")
    with pytest.raises(ValueError, match="keeps no tensors"):
        rankprobe.isolate(model, directory)


def test_bad_arguments_are_one_line(reference, tmp_path: pathlib.Path) -> None:
    for arguments, options, said in (
            ((make(), tmp_path / "nothing"), {}, "there is no such directory"), ((make(), "run:good@3"), {}, "rankprobe export --run good"),
            ((None, reference), {}, "expected a torch.nn.Module"), ((make(), reference), {"tolerance": -1}, "tolerance: expected"),
            ((make(), reference.parents[1]), {"step": 4}, "has no step4"), ((make(), reference.parent), {"rank": 3}, "has no rank3"),
            ((make(), reference), {"cell_mapping": "nothing.yaml"}, "nothing.yaml")):
        with pytest.raises(ValueError) as error:
            rankprobe.isolate(*arguments, **options)
        assert said in str(error.value) and "\n" not in str(error.value)
    assert isolated(make(), reference.parents[1]).exit_code == 0  # the dump's only step and process


class _Renamed(NN.Module):
    """The reference's model by other names and classes."""

    def __init__(self) -> None:
        super().__init__()
        there = make()
        self.embedding, self.blocks, self.last, self.project = there.words, there.layers, there.norm, there.head

    def forward(self, words: Any) -> Any:
        self.words, self.layers, self.norm, self.head = self.embedding, self.blocks, self.last, self.project
        try:
            return isolated_model.Model.forward(self, words)  # type: ignore[arg-type]
        finally:
            del self.words, self.layers, self.norm, self.head


def test_modules_of_other_names(reference, tmp_path: pathlib.Path) -> None:
    rules = tmp_path / "layers.yaml"
    rules.write_text("TopLayer:\n  embedding: words\n  blocks: layers\n  last: norm\n  project: head\n")
    cells = {"embedding": "words", "blocks": "layers", "last": "norm", "project": "head"}
    for options in ({"layer_mapping": rules}, {"cell_mapping": cells}):
        model = _Renamed()
        model.blocks[20].mlp.gate.wrong = True
        report = isolated(model, reference, **options)
        assert report.failing == ["Module.blocks.20.mlp.gate.Gate"] and not reasons(report), str(report)
    # A wrapper around all of the model.
    wrapped = NN.Module()
    wrapped.module = make()
    wrapped.forward = wrapped.module.forward
    assert isolated(wrapped, reference).exit_code == 0


class _Odd(NN.Module):
    """Called twice, dictionaries, in place, a keyword with a gradient, a tied weight, a buffer that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.twice, self.act = NN.Embedding(8, 4), _Pair(), NN.ReLU(inplace=True)
        self.norm, self.head, self.recurrent = NN.BatchNorm1d(4), NN.Linear(4, 8, bias=False), NN.LSTM(4, 4)
        self.head.weight = self.words.weight

    def forward(self, words: Any) -> Any:
        x = self.words(words)
        first = self.twice(x, extra=x * 3)
        y = x + first["sum"] + first["more"][0]
        z = self.act(self.twice(y, extra=y)["sum"])
        z = torch.utils.checkpoint.checkpoint(self.norm, z, use_reentrant=False)
        z += y
        z, _ = self.recurrent(z)
        return self.head(z)


class _Pair(NN.Module):
    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = NN.Linear(4, 4)

    def forward(self, x: Any, extra: Any) -> Any:
        return {"sum": self.linear(x) + extra, "more": [x * self.factor, None, 3]}


def _odd() -> Any:
    torch.manual_seed(2)
    return _Odd()


def _micro_batches(model: Any) -> None:
    for seed in (1, 2):
        words = torch.randint(0, 8, (5,), generator=torch.Generator().manual_seed(seed))
        model(words).square().mean().backward()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_modules_as_programs_have_them(tmp_path: pathlib.Path, level: str) -> None:
    directory = record(tmp_path / "odd", _odd(), _micro_batches, level=level)
    for dtype in (torch.float32, torch.bfloat16):
        model = _odd().to(dtype)
        before = copy.deepcopy(model.state_dict())
        report = isolated(model, directory, _micro_batches)
        assert report.exit_code == 0 and len([row for row in report.rows if row.verdict == "pass"]) > 20, str(report)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        model = _odd().to(dtype)
        model.twice.factor = 2.5
        model.norm.eps = 0.5
        assert set(isolated(model, directory, _micro_batches).failing) == {"Module.twice._Pair", "Module.norm.BatchNorm1d"}


def test_a_gradient_that_is_lost_is_an_error(reference) -> None:
    model = make()
    gate = model.layers[7].mlp.gate
    forward = gate.forward
    gate.forward = lambda x: forward(x.detach())
    report = isolated(model, reference)
    assert report.failing == ["Module.layers.7.mlp.gate.Gate"]
    (row,) = [row for row in report.rows if row.verdict == "error"]
    assert row.direction == "backward" and "requires no gradient" in row.reason


class _Kept(NN.Module):
    """Its loss is in an attribute, as that of routers is."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out, self.aux = NN.Linear(4, 3), NN.Linear(4, 4), 0.0

    def forward(self, x: Any) -> Any:
        weights = self.gate(x).softmax(-1)
        self.aux = weights.square().sum()
        return self.out(x) * weights[..., :1]


def test_what_a_module_keeps_for_itself_is_no_fault(tmp_path: pathlib.Path) -> None:
    def model() -> Any:
        torch.manual_seed(4)
        return NN.Sequential(NN.Linear(4, 4), _Kept(), NN.Linear(4, 2))

    def step(m: Any) -> None:
        (m(torch.linspace(-1, 1, 20).view(5, 4)).square().sum() + m[1].aux).backward()

    directory = record(tmp_path / "kept", model(), step)
    report = isolated(model(), directory, step)
    assert report.exit_code == 0 and reasons(report) == {
        "Module.1._Kept.backward.0": "it stores a value itself, and the gradient of that value was not recorded"}, str(report)


def test_gradients_of_earlier_batches_are_no_fault(tmp_path: pathlib.Path) -> None:
    def model() -> Any:
        torch.manual_seed(6)
        return NN.Sequential(*(NN.Linear(4, 4) for _ in range(5)))

    def step(m: Any) -> None:
        m(torch.linspace(-1, 1, 20).view(5, 4)).square().sum().backward()

    there = model()
    step(there)  # what the reference's step begins with
    directory = record(tmp_path / "earlier", there, step)
    report = isolated(model(), directory, step)
    assert report.exit_code == 0 and len(reasons(report)) == 5 and "record its step from zero_grad() on" in str(report)
    assert "of 5 modules differ and were not judged" in report.notes[-1]


def test_a_forward_that_raises_ends_the_step_alone(reference) -> None:
    model = make()
    model.layers[9].mlp.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError), rankprobe.isolate(model, reference) as report:
        train(model)
    assert _hooks(model) == 0 and torch.is_grad_enabled()
    assert reasons(report)["Module.layers.9.mlp.Mlp.forward.0"] == "it raised ZeroDivisionError"
    assert not report.failing and "the step ended with ZeroDivisionError" in report.notes[-1]


PROGRAM = """
import sys
import torch
from isolated_model import batch, loss, make, plant

model = make()
if "bad" in sys.argv:
    plant(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    optimizer.zero_grad()
    value = loss(model, batch())
    value.backward()
    optimizer.step()
    print("step", step, "ended", flush=True)
"""


def test_the_command(reference, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package, str(pathlib.Path(isolated_model.__file__).parent)]),
                   "RANKPROBE_PYTHON": sys.executable}

    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run([harness.BIN / "rankprobe", "isolate", *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=180)

    program = ["--", sys.executable, str(script)]
    done = run("--reference", str(reference.parent), "--step", "1", *program, "bad")
    assert done.returncode == 1, done.stderr
    assert "step 0 ended" in done.stdout and "step 1 ended" not in done.stdout
    assert "3 modules differ" in done.stdout and all(name in done.stdout for name in plant(make()))
    assert "not those of a training" in done.stderr and "Traceback" not in done.stderr
    done = run("--reference", str(reference), "--json", *program)
    assert done.returncode == 0 and "ended" not in done.stdout, done.stderr
    (rank,) = json.loads(done.stdout)["ranks"].values()
    assert rank["failing"] == [] and len(rank["rows"]) > 600
    for words, said in (((*program,), "--reference DIR is needed"), (("--reference", "nothing", *program), "there is no such directory"),
                        (("--reference", str(reference), "--", "true"), "nothing was judged"),
                        (("--reference", str(reference), "--", "no-such-program"), "no such program"),
                        (("--reference", str(reference), "--tolerance", "some", *program), "expected auto or a number")):
        done = run(*words)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


class _Changing(NN.Module):
    """Its forward changes what a program may change: registered buffers, signs of zeros, a parameter, a size, other generators."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", None)
        self.register_buffer("zero", torch.zeros(1))
        self.register_buffer("gone", torch.ones(1))
        self.register_buffer("sized", torch.ones(2))
        self.table = NN.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Any) -> Any:
        self.mask = torch.ones(3)
        self.register_buffer("late", torch.ones(1), persistent=False)
        self._buffers["zero"].fill_(-0.0)
        self._buffers.pop("gone", None)
        if len(self._buffers["sized"]) == 2:
            self._buffers["sized"].resize_(5).fill_(2)
        self.table.data.add_(1)
        random.random()
        numpy.random.random()
        return x * self.mask


def _state(model: Any) -> Any:
    buffers = [(name, None if one is None else (id(one), tuple(one.shape), one.clone().numpy().tobytes()))
               for module in model.modules() for name, one in module._buffers.items()]
    return buffers, [(id(p), p.data_ptr(), p.detach().clone().numpy().tobytes(), p.grad) for p in model.parameters()], sorted(
        model.state_dict()), random.getstate(), numpy.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("moved", [False, True])
def test_what_a_forward_changes_is_as_before(tmp_path: pathlib.Path, moved: bool) -> None:
    model = NN.Sequential(_Changing(), NN.Linear(3, 2))
    reference = record(tmp_path / "ref", copy.deepcopy(model), lambda one: one(torch.ones(2, 3)))
    if moved:  # so that it has a value of its own, and none of the reference's
        model[0].table.data.add_(1)
    before = _state(model)
    report = isolated(model, reference, lambda one: one(torch.ones(2, 3)))
    assert report.exit_code == 0, str(report)
    assert _state(model) == before
