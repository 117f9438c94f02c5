# SPDX-License-Identifier: Apache-2.0
"""Golden files: what is stored, what counts as another number, and what is said of it (docs/numerics-in-ci.md)."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import torch

import harness
import rankprobe
from rankprobe import check, golden
from rankprobe._inputs import Refused

PACKAGE = pathlib.Path(rankprobe.__file__).parents[1]


class Net(torch.nn.Module):
    def __init__(self, activation: Any = torch.nn.ReLU, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.act, self.norm = torch.nn.Linear(4, 8), activation(), torch.nn.LayerNorm(8, eps=eps)
        self.down = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.act(self.up(x)))) * 2


def _made(path: pathlib.Path, model: torch.nn.Module, update: bool = False, seed: int = 1, **more: Any) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    with golden.golden(path, model, update, **more):
        model(x).sum().backward()


@pytest.fixture
def stored(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "net.json"
    _made(path, Net(), update=True)
    return path


def _difference(path: pathlib.Path, model: torch.nn.Module, **more: Any) -> list[str]:
    with pytest.raises(golden.NumbersDiffer) as error:
        _made(path, model, **more)
    return str(error.value).splitlines()


def test_the_same_model_has_the_same_numbers_and_file(stored: pathlib.Path) -> None:
    before = stored.read_text()
    _made(stored, Net())
    _made(stored, Net(), update=True)
    assert stored.read_text() == before
    calls = golden.read(stored).calls
    assert before.count("\n") == len(calls) + 2 and len(before) < 10_000
    (root,) = [call for call in calls if call.name == "Module.Net.forward.0"]
    assert root.values["output.0"][:2] == ["float32", [3, 1]] and root.owner == ""


def test_another_activation_is_named_with_layer_line_and_values(stored: pathlib.Path) -> None:
    lines = _difference(stored, Net(torch.nn.GELU))
    assert lines[1] == "first: Module.act.GELU.forward.0 (stored: Module.act.ReLU.forward.0)", lines
    assert lines[2].split() == ["layer", "act"]
    assert "return self.down(self.norm(self.act(self.up(x)))) * 2" in lines[3], lines
    assert any(line.split()[:2] == ["Min", "stored"] for line in lines), lines
    assert "its inputs have the stored norms" in lines[-3] + lines[-2], lines


def test_another_eps_is_named(stored: pathlib.Path) -> None:
    lines = _difference(stored, Net(eps=1e-2))
    assert lines[1] == "first: Functional.layer_norm.0.forward" and lines[2].split() == ["layer", "norm"], lines


def test_another_batch_is_told_from_another_computation(stored: pathlib.Path) -> None:
    lines = _difference(stored, Net(), seed=2)
    assert lines[1] == "first: Functional.linear.0.forward" and any("its inputs have other norms too" in line for line in lines), lines


def test_a_gradient_that_changes_alone_is_named(stored: pathlib.Path) -> None:
    model = Net()
    model.up.weight.register_hook(lambda gradient: gradient * 1.5)
    lines = _difference(stored, model)
    assert lines[1] == "first: Module.up.Linear.parameters_grad.0", lines


def test_another_dtype_and_shape_are_named(stored: pathlib.Path) -> None:
    model = Net()
    model.down = torch.nn.Linear(8, 2)
    assert any("shape was [3, 1], is [3, 2]" in line for line in _difference(stored, model))
    assert any("dtype was float32, is float64" in line for line in _difference_of_double(stored))


def _difference_of_double(path: pathlib.Path) -> list[str]:
    model = Net().double()
    with pytest.raises(golden.NumbersDiffer) as error, golden.golden(path, model):
        model(torch.ones(3, 4).double()).sum().backward()
    return str(error.value).splitlines()


def test_the_same_numbers_in_other_calls_pass(stored: pathlib.Path) -> None:
    class Other(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.act(self.up(x.clone())))
            return torch.mul(self.down(x), torch.tensor(2.0))

    Other.__name__ = "Net"
    _made(stored, Other())


def _of(*calls: tuple[str, str, dict[str, list[Any]]]) -> golden.Golden:
    return golden.Golden({}, [golden.Call(name, owner, "", [1.0], values) for name, owner, values in calls])


def _tensor(shape: list[int], norm: float = 1.0) -> list[Any]:
    return ["float32", shape, 1.0, 0.0, 0.5, norm]


def test_a_module_that_returns_more_has_the_stored_numbers_of_the_rest() -> None:
    """As attention, which an upgrade lets return its cache."""
    old = _of(("Module.a.A.forward.0", "", {"output.0": _tensor([2])}))
    new = _of(("Module.a.A.forward.0", "", {"output.0": _tensor([2]), "output.1": _tensor([3])}))
    assert not golden.compare(old, new).wrong and not golden.compare(new, old).wrong
    other = _of(("Module.a.A.forward.0", "", {"output.1": _tensor([2])}))
    assert golden.compare(old, other).wrong
    operator = _of(("Torch.topk.0.forward", "", {"output.0": _tensor([2])})), _of(("Torch.topk.0.forward", "", {"output.1": _tensor([2])}))
    assert golden.compare(*operator).wrong


@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_other_shapes_within_a_module_are_judged_by_its_results(norm: float) -> None:
    """As of attention that no longer repeats its keys for each head: the same calls, of smaller tensors."""
    def run(heads: int, norm: float) -> golden.Golden:
        module = "Module.attn.Attention"
        return _of(("Functional.sdpa.0.forward", f"{module}.forward.0", {"output.0": _tensor([2])}),
                   (f"{module}.forward.0", "", {"output.0": _tensor([2])}), ("Functional.sdpa.0.backward", "", {"output.1": _tensor([heads])}),
                   (f"{module}.backward.0", "", {"output.0": _tensor([2], norm)}))

    wrong = golden.compare(run(4, 1.0), run(2, norm)).wrong
    assert [judged.new.name for judged in wrong] == ([] if norm == 1.0 else ["Functional.sdpa.0.backward", "Module.attn.Attention.backward.0"])


@pytest.mark.parametrize("factor, passes", [(1 + 1e-6, True), (1 + 1e-3, False)])
def test_the_tolerance_is_that_of_the_dtype(stored: pathlib.Path, factor: float, passes: bool) -> None:
    def model() -> torch.nn.Module:
        made = Net()
        with torch.no_grad():
            made.down.weight *= factor
        return made

    if passes:
        _made(stored, model())
        assert any("allowed 0e+00" in line for line in _difference(stored, model(), tolerances={"float32": 0.0}))
    else:
        assert _difference(stored, model())
        _made(stored, model(), tolerances={"float32": 1e-2})


def _call(name: str, *values: Any, dtype: str = "float32") -> golden.Call:
    return golden.Call(name, "", "", [], {"output": [dtype, [2], *values]})


@pytest.mark.parametrize("old, new, differs", [
    ((float("nan"),) * 4, (float("nan"),) * 4, False), ((1.0, 0.0, 0.5, 1.0), (float("nan"),) * 4, True),
    ((float("inf"), 0.0, float("inf"), float("inf")), (float("inf"), 0.0, float("inf"), float("inf")), False),
    ((None,) * 4, (None,) * 4, False), ((1.0, -1.0, 1e-9, 1.0), (1.0, -1.0, -1e-9, 1.0), False),
    ((0.0, 0.0, 0.0, 0.0), (1e-9, 0.0, 0.0, 1e-9), True)])
def test_values_that_are_not_finite_absent_or_zero(old: Any, new: Any, differs: bool) -> None:
    result = golden.compare(golden.Golden({}, [_call("Torch.f.0.forward", *old)]), golden.Golden({}, [_call("Torch.f.0.forward", *new)]))
    assert bool(result.wrong) == differs


def test_a_gradient_that_is_only_rounding_is_not_judged() -> None:
    def run(noise: float) -> golden.Golden:
        return golden.Golden({}, [_call("Torch.f.0.backward", 1.0, -1.0, 0.0, 2.0), _call("Torch.g.0.backward", noise, -noise, 0.0, noise)])

    assert not golden.compare(run(1e-7), run(-3e-7)).wrong
    assert golden.compare(run(1e-3), run(2e-3)).wrong


def test_what_float32_has_of_numbers_of_16_bits_has_their_tolerance() -> None:
    def run(value: float, dtype: str) -> golden.Golden:
        return golden.Golden({}, [_call("Torch.f.0.forward", 1.0, 0.0, 0.5, 1.0, dtype=dtype), _call("Torch.g.0.forward", 1.0, 0.0, 0.5, value)])

    assert golden.compare(run(1.0, "float32"), run(1.01, "float32")).wrong
    assert not golden.compare(run(1.0, "float16"), run(1.01, "float16")).wrong


def test_whole_numbers_are_exact() -> None:
    old, new = (golden.Golden({}, [_call("Torch.argmax.0.forward", 5, 0, 2.5, 5.1, dtype="int64")]),
                golden.Golden({}, [_call("Torch.argmax.0.forward", 5, 0, 2.50001, 5.1, dtype="int64")]))
    assert golden.compare(old, new).wrong and not golden.compare(old, old).wrong


def test_a_file_of_another_model_is_said_to_be_one() -> None:
    old, new = (golden.Golden({}, [_call(name, 1.0, 0.0, 0.5, 1.0)]) for name in ("Module.a.Linear.forward.0", "Module.b.Linear.forward.0"))
    result = golden.compare(old, new)
    assert "is the file of another model" in golden.report(result, old, new, "x.json")
    assert len(result.only_old) == len(result.only_new) == 1


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"rankprobe_golden": 1}', '{"rankprobe_golden": 9, "made_with": {}, "calls": []}',
                                  '{"rankprobe_golden": 1, "made_with": {}, "calls": [[1]]}'])
def test_what_is_no_golden_file_is_refused_in_one_line(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(Refused) as error:
        golden.read(tmp_path / "x.json")
    assert "\n" not in str(error.value)


def test_the_program_has_its_environment_and_its_debugger_back(stored: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankprobe.pytorch import PrecisionDebugger

    monkeypatch.setenv("RANKPROBE_COLLECTOR", "127.0.0.1:1")
    model = Net()
    with pytest.raises(ZeroDivisionError), golden.golden(stored, model):
        raise ZeroDivisionError
    assert os.environ["RANKPROBE_COLLECTOR"] == "127.0.0.1:1" and PrecisionDebugger.instance is None
    _made(stored, model)
    assert not model._forward_hooks and not model.up._forward_hooks


TESTS = '''
import torch
import rankprobe_net

def test_numbers(rankprobe_golden):
    model = rankprobe_net.Net({arguments})
    with rankprobe_golden("net", model):
        model(torch.ones(3, 4)).sum().backward()
'''


def _pytest(directory: pathlib.Path, *words: str, arguments: str = "") -> subprocess.CompletedProcess[str]:
    (directory / "rankprobe_net.py").write_text(f"import sys\nsys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}, "
                                                f"{str(pathlib.Path(__file__).parents[1] / 'integration')!r}]\nfrom test_golden import Net\n")
    (directory / "test_net.py").write_text(TESTS.format(arguments=arguments))
    # In a CI system pytest prints the whole message a second time in its summary.
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "rankprobe.pytest_plugin", *words, "test_net.py"],
                          cwd=directory, capture_output=True, text=True, timeout=200,
                          env={**environment, "PYTHONPATH": f"{PACKAGE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"})


def test_the_plugin_of_pytest(tmp_path: pathlib.Path) -> None:
    assert "1 skipped" in _pytest(tmp_path).stdout
    missing = _pytest(tmp_path, "--rankprobe-golden", "numbers")
    assert missing.returncode == 1 and "net.json is not there" in missing.stdout and "--rankprobe-update" in missing.stdout, missing.stdout
    assert "1 passed" in _pytest(tmp_path, "--rankprobe-golden", "numbers", "--rankprobe-update").stdout
    assert (tmp_path / "numbers/net.json").is_file()
    assert "1 passed" in _pytest(tmp_path, "--rankprobe-golden", "numbers").stdout
    (tmp_path / "pytest.ini").write_text("[pytest]\nrankprobe_golden = numbers\n")
    failed = _pytest(tmp_path, arguments="eps=1e-1")
    assert failed.returncode == 1 and failed.stdout.count("first: Functional.layer_norm.0.forward") == 1, failed.stdout
    assert "contextlib.py" not in failed.stdout  # the traceback is not the answer


def test_the_wheel_names_the_plugin_as_pytest_finds_it() -> None:
    text = (pathlib.Path(__file__).resolve().parents[2] / "agent/python/pyproject.toml").read_text()
    declared = tomllib.loads(text)["project"]["entry-points"]["pytest11"]
    plugin = importlib.metadata.EntryPoint("rankprobe", declared["rankprobe"], "pytest11").load()
    assert plugin.pytest_addoption and plugin.rankprobe_golden


PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.{activation}(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_check_of_a_program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(activation="ReLU"))
    words = ["numbers/train.json", "--", sys.executable, "train.py"]
    assert check.main(words) == 4 and "numbers/train.json: there is no such file; --update makes it" in capfd.readouterr().err
    assert check.main(["--update", "--step", "1", *words]) == 0 and "calls of step 1" in capfd.readouterr().out
    assert check.main(["--step", "0", *words]) == 4  # it has other weights
    assert check.main(["--update", *words]) == 0
    assert "dump.json is at" not in capfd.readouterr().err, "the dump is removed"
    command = [str(harness.BIN / "rankprobe"), "check", *words]
    same = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "RANKPROBE_PYTHON": sys.executable})
    assert same.returncode == 0 and "calls have the stored numbers" in same.stdout, same.stdout + same.stderr
    program.write_text(PROGRAM.format(activation="GELU"))
    capfd.readouterr()
    assert check.main(words) == 1
    said = capfd.readouterr().out
    assert "first: Module.1.GELU.forward.0 (stored: Module.1.ReLU.forward.0)" in said, said
    program.write_text(PROGRAM.format(activation="GELU") + "print('of the program')\n")
    assert check.main(["--json", *words]) == 1
    output = capfd.readouterr()
    answer = json.loads(output.out)
    assert "of the program" in output.err
    assert (answer["exit_code"], answer["updated"], answer["golden"], answer["step"]) == (1, False, "numbers/train.json", 0)
    first = answer["differences"][0]
    assert (first["call"], first["stored_call"], first["layer"], first["inputs_agree"]) == (
        "Module.1.GELU.forward.0", "Module.1.ReLU.forward.0", "1", True)
    assert {one["name"] for one in first["tensors"][0]["statistics"]} <= {"Max", "Min", "Mean", "Norm"}
    assert check.main(["--json", "--update", *words]) == 0
    assert json.loads(capfd.readouterr().out)["updated"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["numbers", "train.py"]


def test_check_names_the_step_that_the_file_holds(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    script = "import torch; net = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n" \
             "for i in range(3): net(torch.full((1, 2), float(i + 1))).sum().backward(); optimizer.step()"
    path, command = tmp_path / "x.json", ["--", sys.executable, "-c", f"import torch; torch.manual_seed(0)\n{script}"]
    assert check.main(["--update", "--step", "1", str(path), *command]) == 0
    capfd.readouterr()
    assert check.main(["--step", "2", str(path), *command]) == 4
    assert f"{path} holds step 1 and no step 2: leave out --step to compare step 1, or make" in capfd.readouterr().err
    assert check.main([str(path), "--step", "2", *command]) == 4 and "holds step 1 and no step 2" in capfd.readouterr().err, "behind the file"
    assert check.main([str(path), *command]) == 0 and json.loads(path.read_text())["step"] == 1, "that step, not 0"


@pytest.mark.parametrize("script, status, said", [("raise SystemExit(7)", 7, ""), ("pass", 2, "ended without a step 0"),
                                                  ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "")])
def test_check_of_a_program_that_has_no_step(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, script: str, status: int,
                                             said: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    assert check.main(["--update", str(tmp_path / "x.json"), "--", sys.executable, "-c", script]) == status
    assert said in capfd.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("words, said", [([], "required: golden"), (["x.json"], "no command given"), (["x.json", "--step", "2"], "no command given"), (["--step", "-1", "x.json", "--", "true"], "--step is"),
                                         (["--upd", "--stepp", "x.json"], "no flag")])
def test_bad_usage_of_check(words: list[str], said: str, capfd: Any) -> None:
    with pytest.raises(SystemExit) as error:
        check.main(words)
    assert error.value.code == 2 and said in capfd.readouterr().err


def test_the_file_is_json_text_that_others_can_read(stored: pathlib.Path) -> None:
    data = json.loads(stored.read_text())
    assert set(data) == {"rankprobe_golden", "made_with", "calls"} and data["made_with"]["torch"] == torch.__version__


def test_check_names_a_file_that_cannot_be_used(tmp_path: pathlib.Path) -> None:
    for words in ([tmp_path, "--", "true"], ["--update", tmp_path / "golden.json", "--", tmp_path]):
        done = subprocess.run([sys.executable, "-m", "rankprobe.check", *map(str, words)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 2 and "Traceback" not in done.stderr and str(tmp_path) in done.stderr, (done.returncode, done.stderr)
