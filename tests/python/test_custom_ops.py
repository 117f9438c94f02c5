# SPDX-License-Identifier: Apache-2.0
"""Functions that config.json and custom_wrap_ops.yaml add to PyTorch's own, and what msprobe's config has that is not here."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import rankprobe  # noqa: E402
from rankprobe.pytorch import PrecisionDebugger  # noqa: E402
from rankprobe.pytorch._errors import InvalidParameterError  # noqa: E402


def _library(name: str) -> torch.library.Library:
    library = torch.library.Library(name, "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    return library


def _step(*functions) -> None:
    PrecisionDebugger.start()
    for function in functions:
        function()
    PrecisionDebugger.stop()
    PrecisionDebugger.step()


def test_an_edit_of_custom_op_namespaces_counts_from_the_next_step(dump, capfd) -> None:
    kept = [_library("rpedit"), _library("rpother")]
    one, other = (lambda: torch.ops.rpedit.twice(torch.ones(2))), (lambda: torch.ops.rpother.twice(torch.ones(2)))
    dump.debugger(custom_op_namespaces=["rpedit"], dump_enable=True)
    original = torch.ops.rpother.twice

    def recorded(step: int) -> list[str]:
        return [name for name in dump.data(step) if name.startswith("rp")]

    _step(one, other)
    assert recorded(0) == ["rpedit.twice.0.forward"]
    dump.config(custom_op_namespaces=["rpother"], dump_enable=True)
    _step(one, other)
    assert recorded(1) == ["rpother.twice.0.forward"]
    dump.config(custom_op_namespaces="rpedit", dump_enable=True)
    _step(one, other)
    assert not (dump.path / "step2").exists()
    said = capfd.readouterr().err
    assert "dumping is off until it is corrected or an operator switches it on: custom_op_namespaces: \"rpedit\" is not legal" in said
    dump.config(custom_op_namespaces=[], dump_enable=True)
    _step(one, other, lambda: torch.relu(torch.ones(2)))
    assert recorded(3) == [] and torch.ops.rpother.twice is original
    assert kept


@pytest.fixture
def own(monkeypatch, tmp_path):
    """A module of the program's, and what wants of it what a text says."""
    module = types.ModuleType("rpown")
    module.add = lambda x, y: x + y
    module.same = lambda x: x
    module.Kind = type("Kind", (), {"half": staticmethod(lambda x: x / 2)})
    monkeypatch.setitem(sys.modules, "rpown", module)

    def wants(text: str) -> types.ModuleType:
        path = tmp_path / "custom_wrap_ops.yaml"
        path.write_text(text)
        monkeypatch.setenv("RANKPROBE_CUSTOM_WRAP_OPS", str(path))
        return module

    return wants


def test_the_functions_of_custom_wrap_ops_until_close(dump, own) -> None:
    module = own("# ours\nrpown:\n  - add   # two of them\n  - same\n\"rpown.Kind\": half\noperator: [neg, 'abs']\n")
    original = module.add
    debugger = dump.debugger()
    x = torch.ones(2)
    import operator

    _step(lambda: module.add(x, x), lambda: module.same(x), lambda: module.Kind.half(x), lambda: operator.neg(x))
    assert [name for name in dump.data() if name.split(".")[0] in ("rpown", "operator")] == [
        "rpown.add.0.forward", "rpown.same.0.forward", "rpown.Kind.half.0.forward", "operator.neg.0.forward"]
    debugger.close()
    assert module.add is original


def test_a_module_that_comes_later_is_recorded_from_then_on(dump, own, monkeypatch) -> None:
    own("rplate:\n- there\n")
    dump.debugger()
    with pytest.warns(RuntimeWarning, match="rplate.there is not recorded yet: No module named 'rplate'"):
        _step(lambda: torch.relu(torch.ones(2)))
    late = types.ModuleType("rplate")
    late.there = lambda x: x + 1
    monkeypatch.setitem(sys.modules, "rplate", late)
    _step(lambda: late.there(torch.ones(2)))
    assert "rplate.there.0.forward" in dump.data(1)


@pytest.mark.parametrize("text, why", [
    ("- add\n", "line 1: a name without a module path above it"), ("rpown:\n  add\n", "line 2: 'add' is not an entry"),
    ("rpown:\n  - a.b\n", "line 2: 'a.b' is not the name"), ("rp own:\n  - a\n", "line 1: 'rp own:' is not an entry"),
    ("9a: b\n", "line 1: '9a' is not a module path"), ("a: b\na: c\n", "line 2: a appears twice"), ("a: {b: c}\n", "line 1: ")])
def test_a_bad_custom_wrap_ops_is_refused_with_its_line(dump, own, text: str, why: str) -> None:
    own(text)
    with pytest.raises(InvalidParameterError) as error:
        dump.debugger()
    assert why in str(error.value) and "custom_wrap_ops.yaml" in str(error.value)


def test_a_custom_wrap_ops_that_is_not_there_is_refused(dump, monkeypatch) -> None:
    monkeypatch.setenv("RANKPROBE_CUSTOM_WRAP_OPS", "/nowhere/custom_wrap_ops.yaml")
    with pytest.raises(InvalidParameterError, match="/nowhere/custom_wrap_ops.yaml.*No such file"):
        dump.debugger()


@pytest.mark.parametrize("content, error", [("__main__:\n  - mine\n", ""), ("- mine\n", "line 1: a name without a module path above it")])
def test_as_msprobe_the_file_inside_the_installed_msprobe_counts(tmp_path: pathlib.Path, content: str, error: str) -> None:
    package = tmp_path / "site" / "msprobe" / "pytorch" / "dump" / "api_dump"
    package.mkdir(parents=True)
    (tmp_path / "site" / "msprobe" / "__init__.py").write_text("raise SystemError('imported')")
    (package / "custom_wrap_ops.yaml").write_text(content)
    (tmp_path / "config.json").write_text(json.dumps({"task": "statistics", "level": "L1", "dump_path": str(tmp_path / "dump"),
                                                      "rank": [], "step": []}))
    (tmp_path / "program.py").write_text(
        "import torch\nfrom msprobe.pytorch import PrecisionDebugger\ndef mine(x):\n    return x + 1\n"
        "debugger = PrecisionDebugger(config_path='config.json')\ndebugger.start()\nmine(torch.ones(2))\n"
        "debugger.stop()\ndebugger.step()\n")
    done = subprocess.run(
        [sys.executable, "-m", "rankprobe.run", "--as-msprobe", "--", sys.executable, "program.py"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(pathlib.Path(rankprobe.__file__).parents[1]), str(tmp_path / "site")))},
        capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    (tree,) = (tmp_path / "dump").glob("step0/*/dump.json")
    assert ("__main__.mine.0.forward" in json.loads(tree.read_text())["data"]) is (not error)
    assert error in done.stderr


def test_nan_check_is_refused_with_its_reason(dump) -> None:
    with pytest.raises(InvalidParameterError, match="nan_check needs an NPU"):
        dump.debugger(task="nan_check")


def test_an_older_dump_to_load_is_warned_about(dump) -> None:
    with pytest.warns(RuntimeWarning, match="unknown key load"):
        dump.debugger(load={"path": "/tmp/x"})
