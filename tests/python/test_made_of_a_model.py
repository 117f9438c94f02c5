# SPDX-License-Identifier: Apache-2.0
"""Objects that a program makes of a model while it is recorded: pickles, copies, scripts, exports. All are as without us."""

from __future__ import annotations

import copy
import io
import json
import pathlib
import pickle
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

from rankprobe.pytorch import PrecisionDebugger  # noqa: E402


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))


class WithState(torch.nn.Module):
    """Gives its state itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.note = torch.nn.Linear(4, 1), "kept"

    def __getstate__(self) -> dict:
        return {**self.__dict__, "note": "pickled"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def _hooks(model: torch.nn.Module) -> list[int]:
    return [len(getattr(module, name)) for module in model.modules() for name in (
        "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
        "_forward_hooks_always_called") if hasattr(module, name)]


def _counted(module: torch.nn.Module, args: tuple, output: torch.Tensor) -> None:
    module.count = getattr(module, "count", 0) + 1


@pytest.mark.skipif(torch.__version__.startswith("1."), reason="make_fx of PyTorch 1.13 sees what is done in hooks")
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_traced_graph_and_a_mode_of_the_programs_have_no_call_of_ours(dump, level: str) -> None:
    """The batch is read for the run card."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model, x, found = _model(), torch.ones(2, 4), []
    for recorded in (False, True):
        seen: list[str] = []
        if recorded:
            debugger = dump.debugger(level=level)
            PrecisionDebugger.start(model)
        traced = make_fx(lambda x: model(x).sum())(x)
        if recorded:
            debugger.stop()
            debugger.step()
            PrecisionDebugger.start(model)
        with Log():
            model(x)
        if recorded:
            debugger.stop()
            debugger.step()
        found.append(([str(node.target) for node in traced.graph.nodes], seen))
    assert found[0] == found[1]


@pytest.mark.skipif(torch.__version__.startswith("1."), reason="its fake tensors are of another module")
def test_a_batch_without_memory_is_not_read(dump, recwarn) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = _model()
    debugger = dump.debugger(level="mix")
    PrecisionDebugger.start(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model(mode.from_tensor(torch.ones(2, 4)))
    debugger.stop()
    debugger.step()
    assert not [str(warned.message) for warned in recwarn if "data pointer" in str(warned.message)]


@pytest.mark.parametrize("level", ["L0", "mix", "L1"])
def test_pickles_and_copies_have_no_hook_of_ours(dump, level: str) -> None:
    model, other, x = _model(), WithState(), torch.ones(2, 4)
    model[0].register_forward_hook(_counted)
    plain = pickle.dumps(other)
    debugger = dump.debugger(level=level)
    PrecisionDebugger.start([model, other])
    model(x).sum().backward()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model),
              torch.load(file, **({"weights_only": False} if torch.__version__ >= "2" else {}))]
    copies[0](x), copies[1](x)  # nobody's calls
    model(x)
    assert pickle.dumps(other) == plain and pickle.loads(plain).note == "pickled"
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    # The program's own hook is there, ours are not.
    for copied in copies:
        assert sum(_hooks(copied)) == 1 and torch.equal(copied[2].weight, model[2].weight)
    assert model[0].count == 2 and copies[0][0].count == 2
    modules = [name for name in dump.data(0) if name.startswith("Module.") and name.endswith((".forward.0", ".forward.1"))]
    assert len(modules) == (0 if level == "L1" else 6), modules
    debugger.close()
    assert "__reduce_ex__" not in torch.nn.Module.__dict__


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_has_no_attribute_of_ours(dump, level: str) -> None:
    """The compiler is there, as it is with every optimizer of PyTorch 2."""
    if torch.__version__ >= "2":
        __import__("torch._dynamo")
    model = _model()

    def seen() -> list[list[str]]:
        model(torch.ones(2, 4))
        copied = copy.deepcopy(vars(model[0]))
        return [*map(list, map(vars, model.modules())), list(copied), list(pickle.loads(pickle.dumps(copied)))]

    plain = seen()
    debugger = dump.debugger(level=level)
    for _ in range(2):
        debugger.start(model)
        assert seen() == plain
        debugger.stop()
        debugger.step()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_scripts_are_compiled_without_our_hooks(dump, level: str) -> None:
    model, x, make = _model(), torch.ones(2, 4), torch.jit._recursive.create_script_module
    debugger = dump.debugger(level=level)
    for _ in range(2):
        PrecisionDebugger.start(model)
        before = _hooks(model)
        scripted = torch.jit.script(model)
        assert _hooks(model) == before
        assert torch.equal(scripted(x), model(x))
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
    assert sum(before) > 0 and [name for name in dump.data(1) if name.startswith("Module.")] == [
        "Module.0.Linear.forward.0", "Module.1.ReLU.forward.0", "Module.2.Linear.forward.0"]
    debugger.close()
    assert torch.jit._recursive.create_script_module is make


@pytest.mark.skipif(not hasattr(getattr(torch, "compiler", None), "is_exporting"), reason="torch.export says that it exports from 2.7 on")
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_graph_has_nothing_of_ours(dump, level: str, strict: bool) -> None:
    model, x = _model(), torch.ones(2, 4)
    plain = str(torch.export.export(model, (x,), strict=strict).graph)
    dump.debugger(level=level)
    PrecisionDebugger.start(model)
    assert str(torch.export.export(model, (x,), strict=strict).graph) == plain
    model(x)
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    assert [name for name in dump.data(0) if name.startswith("Module.")] == [
        "Module.0.Linear.forward.0", "Module.1.ReLU.forward.0", "Module.2.Linear.forward.0"]


def test_attached_a_model_is_saved_and_scripted_too(tmp_path: pathlib.Path) -> None:
    """Attached by its forwards: the hook that begins steps is on the model itself, recorded or not."""
    program = tmp_path / "serve.py"
    program.write_text(textwrap.dedent("""\
        import pickle, torch
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        for _ in range(6):
            model(torch.ones(2, 4))
            assert not pickle.loads(pickle.dumps(model))._forward_pre_hooks
            torch.jit.script(model)
        print("hooks", len(model._forward_pre_hooks))
        """))
    for flags in ((), ("--on",)):
        done = subprocess.run([sys.executable, "-m", "rankprobe.run", *flags, "--", sys.executable, str(program)], capture_output=True,
                              text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        # PyTorch 1.13 calls no hook where a forward raises: what that leaves open is closed by a hook of the root.
        hooks = 2 if flags and torch.__version__.startswith("1.") else 1
        assert f"hooks {hooks}" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_name_that_is_no_utf8_reaches_nobody(dump, level: str) -> None:
    model = torch.nn.Sequential()
    model.add_module("bad\ud800", torch.nn.Linear(2, 2))
    model._modules["bad\ud800"].register_parameter("odd\udfff", torch.nn.Parameter(torch.ones(2)))
    dump.debugger(level=level)
    PrecisionDebugger.start(model)
    (model(torch.ones(1, 2)) * model._modules["bad\ud800"]._parameters["odd\udfff"]).sum().backward()
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    assert "Module.bad\\ud800.Linear.forward.0" in json.loads((dump.rank_directory(0) / "dump.json").read_text())["data"]


def test_a_fault_that_cannot_be_shown_stays_ours(capfd) -> None:
    from rankprobe.pytorch._process import report_fault

    class Odd(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no")

    class Capture:
        told: list[str] = []

        def report_fault(self, what: str) -> None:
            self.told.append(what)
            what.encode()
            if len(self.told) > 1:
                raise TypeError

    report_fault(Capture(), "a\ud800", Odd())
    report_fault(Capture(), "b", ValueError("x"))
    assert Capture.told == ["a\\ud800: Odd", "b: ValueError('x')"]
    assert capfd.readouterr().err == "rankprobe: an error could not be reported: TypeError\n"


def test_where_warnings_are_errors_they_are_lines(dump, capfd) -> None:
    """python -W error."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(2, 2)), torch.nn.ReLU())
    dump.debugger(level="L0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrecisionDebugger.start(model)
        model(torch.ones(1, 2))
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
    assert "rankprobe: 0 is a ScriptModule: not recorded\n" in capfd.readouterr().err
    assert "Module.1.ReLU.forward.0" in dump.data(0)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_models_that_come_and_go_are_recorded_and_freed(dump, level: str) -> None:
    import gc
    import weakref

    dump.debugger(level=level)
    alive, steps = [], 12
    for _ in range(steps):
        model = _model()
        alive.append(weakref.ref(model[0].weight))
        PrecisionDebugger.start(model)
        model(torch.ones(2, 4)).sum().backward()
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
    del model
    gc.collect()
    assert sum(one() is not None for one in alive) <= 2
    for step in range(steps):
        names = [name for name in dump.data(step) if name.startswith("Module.0.")]
        assert names == ["Module.0.Linear.forward.0", "Module.0.Linear.backward.0", "Module.0.Linear.parameters_grad.0"], (step, names)


@pytest.mark.parametrize("how", ["2>/dev/full", "2>&-", "2> >(exec 2>&-; exit 0)", "2>/dev/null"])
@pytest.mark.parametrize("flags", [[], ["-W", "error"]])
def test_a_stderr_that_takes_nothing_ends_no_training(tmp_path: pathlib.Path, how: str, flags: list) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent("""\
        import sys, torch
        from rankprobe.pytorch import PrecisionDebugger
        model = torch.nn.Sequential(torch.nn.Linear(4, 1))
        debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
        for step in range(2):
            debugger.start(model)
            model(torch.ones(2, 4)).sum().backward()
            debugger.stop()
            debugger.step()
            if step == 0 and sys.stderr is not None:
                sys.stderr.close()
        print("trained")
        """))
    done = subprocess.run(["bash", "-c", f'"$@" {how}', "bash", sys.executable, *flags, str(program), str(tmp_path / "dump")], timeout=120,
                          stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stdout == "trained\n", done


class Counted(torch.Tensor):
    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


def test_what_we_ask_of_a_tensor_is_no_call_of_its_class(dump) -> None:
    model = _model()

    def run() -> list[str]:
        Counted.seen.clear()
        model(torch.ones(2, 4).as_subclass(Counted)).square().mean().backward()
        return [name for name in Counted.seen if name != "__get__"]

    plain = run()
    dump.debugger(level="mix")
    PrecisionDebugger.start(model)
    assert run() == plain and "square" in plain
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    assert dump.data(0)["Tensor.square.0.forward"]["input_args"][0]["Max"] is not None
