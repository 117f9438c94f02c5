# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functions look the same to a program, whether a step is recorded or not."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from typing import Any, Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from rankprobe.pytorch import PrecisionDebugger
from rankprobe.pytorch._api_list import load_list
from rankprobe.pytorch._apis import _hosts
from rankprobe.pytorch._redirect import redirect

_VF = torch._C._VariableFunctions


def _places() -> Iterator[tuple[str, Any, str]]:
    """Each name that is recorded, where it lives."""
    for prefix, names in load_list().items():
        for host in _hosts(prefix):
            for name in names:
                if "." not in name and callable(getattr(host, name, None)):
                    yield f"{prefix}.{name}", host, name


_PLACES = list(_places())
# Another object, equal to the function, while a step is recorded: see _apis.py.
_APART = {f"Torch.{name}" for name in dir(torch) if vars(F).get(name, torch) is getattr(torch, name)}
_APART |= {"Torch.lstm", "Tensor.abs", "Tensor.neg", "Tensor.__idiv__", "Tensor.__rdiv__"}


def _signature(function: Any) -> Any:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return None


def _source(function: Any) -> Any:
    try:
        return inspect.getsource(function)
    except (TypeError, OSError):
        return None


def _pickled(function: Any) -> Any:
    try:
        return pickle.loads(pickle.dumps(function))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        return type(error)


def _asked() -> dict[str, dict[str, Any]]:
    found = {}
    for name, host, attribute in _PLACES:
        function = getattr(host, attribute)
        found[name] = {"itself": function, "hash": hash(function), "doc": function.__doc__, "name": function.__name__,
                       "kind": function.__class__, "signature": _signature(function), "source": _source(function),
                       "copy": copy.deepcopy(function), "copied": copy.copy(function), "pickled": _pickled(function),
                       "repr": repr(function)}
    return found


_ONE_OBJECT = ("itself", "copy", "copied", "pickled")


def _compare(before: dict[str, dict[str, Any]], at: str) -> None:
    now = _asked()
    table = {answers["itself"]: name for name, answers in before.items()}
    for name, answers in now.items():
        known = before[name]
        for question, answer in answers.items():
            assert answer == known[question], (at, name, question)
            if question in _ONE_OBJECT and name not in _APART:
                assert answer is known[question], (at, name, question)
        assert table[answers["itself"]] == table[known["itself"]], (at, name)
    for name in _APART & set(now):  # what a program keeps of them is the function
        assert now[name]["copy"] is before[name]["itself"], (at, name)


def _bytes(model: Any) -> bytes:
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


class Kept(torch.nn.Module):
    def __init__(self, activation: Callable) -> None:
        super().__init__()
        self.linear, self.activation = torch.nn.Linear(3, 3), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(x))


def test_every_name_is_the_same_object_before_in_between_and_after(dump) -> None:
    before = _asked()
    assert len(before) > 1100
    attributes = {host: dict(vars(host)) for host in (torch, F, torch.Tensor, torch.jit, torch.nn.utils, torch.nn.utils.clip_grad)}
    debugger = dump.debugger(level="mix")
    _compare(before, "made")
    model = Kept(F.relu)
    for step in range(2):
        debugger.start(model)
        model(torch.ones(1, 3)).sum().backward()
        _compare(before, f"in step {step}")
        changed = {name for host, known in attributes.items() for name, value in known.items()
                   if vars(host).get(name) is not value and hash(value) != hash(vars(host).get(name))}
        assert not changed
        debugger.stop()
        _compare(before, f"stopped {step}")
        debugger.step()
        _compare(before, f"after step {step}")
    debugger.close()
    _compare(before, "closed")
    assert {host: dict(vars(host)) for host in attributes} == attributes


@pytest.mark.parametrize("host, name", [(F, "relu"), (F, "gelu"), (torch, "tanh"), (torch, "conv2d"), (torch.Tensor, "abs")])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_model_that_keeps_a_function_is_saved_in_a_step_and_after_it(dump, level: str, host: Any, name: str) -> None:
    activation = getattr(host, name)
    debugger = dump.debugger(level=level)
    model = Kept(activation)
    optimizer = torch.optim.Adam(model.parameters())
    for recorded in (True, False):
        if recorded:
            debugger.start(model)
        inner = Kept(getattr(host, name))
        for saved in (model, inner, optimizer):
            content = _bytes(saved)
            assert b"rankprobe" not in content
            torch.load(io.BytesIO(content), **({} if torch.__version__.startswith("1.") else {"weights_only": False}))
        assert copy.deepcopy(inner).activation is activation
        if recorded:
            debugger.stop()
            debugger.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_comparisons_of_activations(dump, level: str) -> None:
    kept = {F.gelu: "gelu", F.silu: "silu", F.relu: "relu", torch.sigmoid: "sigmoid"}
    debugger = dump.debugger(level=level)
    model = torch.nn.Linear(2, 2)
    for _ in range(2):
        debugger.start(model)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, activation=F.gelu)  # asks `activation is F.relu`
        assert [kept[f] for f in (F.gelu, F.silu, F.relu, torch.sigmoid)] == ["gelu", "silu", "relu", "sigmoid"]
        assert layer.activation is F.gelu and layer.activation == F.gelu
        debugger.stop()
        debugger.step()


class _Patch:
    """relu of a program's own."""

    def __init__(self) -> None:
        self.relu, self.linear, self.calls = torch.relu, F.linear, 0

    def put(self) -> None:
        torch.relu, F.linear = self.relu_of_its_own, self.linear_of_its_own

    def relu_of_its_own(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.relu(x) * 10

    def linear_of_its_own(self, *args: Any) -> torch.Tensor:
        self.calls += 1
        return self.linear(*args) + 1

    def take(self) -> None:
        torch.relu, F.linear = self.relu, self.linear


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("when", ["before", "made", "during", "between", "after"])
def test_what_the_program_puts_in_place_stays(dump, level: str, when: str) -> None:
    patch, model, results = _Patch(), torch.nn.Linear(2, 2), []
    x = torch.ones(1, 2)
    plain = float(torch.relu(model(x)).sum())
    patch.put()
    wanted = float(torch.relu(model(x)).sum())
    patch.take()

    def now(point: str) -> None:
        if point == when:
            patch.put()
        results.append((point, float(torch.relu(model(x)).sum())))

    try:
        now("before")
        debugger = dump.debugger(level=level)
        now("made")
        for _ in range(3):
            debugger.start(model)
            now("during")
            debugger.stop()
            now("between")
            debugger.step()
        debugger.close()
        now("after")
        assert torch.relu == patch.relu_of_its_own and F.linear == patch.linear_of_its_own
        first = next(i for i, (point, _) in enumerate(results) if point == when)
        assert [value for _, value in results] == [plain] * first + [wanted] * (len(results) - first)
    finally:
        patch.take()
    assert torch.relu is patch.relu and F.linear is patch.linear


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_program_takes_its_function_off_again(dump, level: str) -> None:
    """Put in place and taken off in every order with ours."""
    debugger = dump.debugger(level=level)
    patch, model = _Patch(), torch.nn.Linear(2, 2)
    debugger.start(model)
    patch.put()
    debugger.stop()
    debugger.step()
    patch.take()
    assert torch.relu is patch.relu and float(torch.relu(torch.ones(1))) == 1
    for _ in range(2):
        patch.put()
        debugger.start(model)
        patch.take()
        torch.relu(torch.ones(1))
        debugger.stop()
        debugger.step()
    assert torch.relu is patch.relu
    debugger.close()
    assert torch.relu is patch.relu and patch.calls == 0
    assert "Torch.relu.0.forward" in dump.data(2)


class Counting(TorchFunctionMode):
    """A mode of the program's, which refuses what it does not know."""

    def __init__(self, log: list) -> None:
        super().__init__()
        self.log = log

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.log.append(function)
        return function(*args, **(kwargs or {}))


class Strict(torch.Tensor):
    log: list = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.log.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_torch_function_of_the_program_sees_its_own_calls(dump, level: str) -> None:
    model, seen, results = torch.nn.Linear(2, 2), [], []

    def run() -> None:
        log: list = []
        Strict.log.clear()
        x = torch.ones(1, 2).as_subclass(Strict)
        y = torch.relu(model(torch.mul(x, 2)))
        (F.relu(y) + y[0]).sum().backward()
        with Counting(log):
            z = F.dropout(torch.relu(model(torch.mul(torch.ones(1, 2), 2))), 0.0)
            z.view(-1).sum().backward()
        seen.append((list(Strict.log), log))
        results.append(float(z.sum()))

    run()
    debugger = dump.debugger(level=level)
    for _ in range(2):
        debugger.start(model)
        run()
        debugger.stop()
        run()
        debugger.step()
    assert seen[1:] == seen[:1] * 4 and results[1:] == results[:1] * 4
    assert debugger._capture.faults == 0
    if level != "L0":
        forwards = [value for key, value in dump.data(0).items() if key.startswith("Torch.relu")]
        assert len(forwards) >= 2 and all(value["output"][0]["Max"] is not None for value in forwards if "output" in value)


@pytest.mark.skipif(torch.__version__.startswith("1."), reason="no device modes")
@pytest.mark.parametrize("order", ["start", "stop", "step", "all", "error"])
def test_a_mode_ends_with_its_with(dump, order: str) -> None:
    debugger = dump.debugger(level="mix")
    model = torch.nn.Linear(2, 2)
    depth = torch._C._len_torch_function_stack()
    for _ in range(2):
        if order == "start":
            with torch.device("meta"):
                debugger.start(model)
        else:
            debugger.start(model)
        assert torch.ones(1).device.type == "cpu"
        if order == "stop":
            with torch.device("meta"):
                debugger.stop()
        elif order == "all":
            with torch.device("meta"):
                debugger.stop()
                debugger.step()
                debugger.start(model)
                assert torch.ones(1).device.type == "meta"
        elif order == "error":
            with pytest.raises(RuntimeError), torch.device("meta"):
                torch.ones(2).view(3)
        assert torch.ones(1).device.type == "cpu"
        debugger.stop()
        if order == "step":
            with torch.device("meta"):
                debugger.step()
        else:
            debugger.step()
        assert torch.ones(1).device.type == "cpu" and torch._C._len_torch_function_stack() == depth


@pytest.mark.skipif(torch.__version__.startswith("1."), reason="no dispatch modes to count with")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_dispatch_mode_of_the_program_sees_its_own_calls(dump, level: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen[-1].append(str(function))
            return function(*args, **(kwargs or {}))

    seen: list[list] = []
    model = torch.nn.Linear(2, 2)

    def run() -> None:
        seen.append([])
        with Log():
            x = torch.ones(2, 2, dtype=torch.complex64).conj()
            y = model(x.real.contiguous())
            (y.to_sparse().to_dense() + y._neg_view()).sum().backward()

    run()
    model.zero_grad()
    run()
    debugger = dump.debugger(level=level)
    for _ in range(2):
        model.zero_grad()
        debugger.start(model)
        run()
        debugger.stop()
        debugger.step()
    assert seen[2:] == seen[1:2] * 2


@pytest.mark.skipif(torch.__version__.startswith("1."), reason="a wrapper that nothing can be asked of")
@pytest.mark.parametrize("kind", ["wrapper", "memory"])
def test_a_class_with_a_dispatch_of_its_own_sees_its_own_calls(dump, kind: str) -> None:
    """pytorch/pytorch#73459. What a wrapper holds is not asked of it, so it has no statistics; of memory of its own it has."""
    from torch.utils._pytree import tree_map

    seen: list[str] = []

    class Own(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*tree_map(lambda one: getattr(one, "inside", one), args), **(kwargs or {}))

    inside = torch.ones(2, 2)
    own = (torch.Tensor._make_wrapper_subclass(Own, inside.shape, dtype=inside.dtype) if kind == "wrapper"
           else torch.Tensor._make_subclass(Own, inside.clone()))
    own.inside = inside
    debugger = dump.debugger(task="tensor")
    debugger.start()
    total = torch.add(own, 1)
    debugger.stop()
    debugger.step()
    assert seen == ["aten.add.Tensor"] and total.tolist() == [[2.0, 2.0]] * 2
    (argument, _) = dump.data()["Torch.add.0.forward"]["input_args"]
    assert argument["shape"] == [2, 2] and argument["Max"] == (None if kind == "wrapper" else 1.0)
    debugger.close()


def test_warnings_name_the_line_of_the_program(dump) -> None:
    def run() -> list[tuple[str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            F.softmax(torch.ones(2, 2))
        return [(warning.filename, warning.lineno) for warning in caught]

    plain = run()
    debugger = dump.debugger()
    debugger.start()
    assert run() == plain and plain
    debugger.stop()
    debugger.step()
    assert "Functional.softmax.0.forward" in dump.data(0)


def test_compilers_and_tracers_see_no_call_of_ours(dump) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.conv1d(F.relu(x)[None], torch.ones(1, 2, 1)) + torch.tanh(x)

    plain = str(torch.fx.symbolic_trace(program).graph), str(torch.jit.script(program).graph)
    debugger = dump.debugger()
    for _ in range(2):
        debugger.start()
        assert str(torch.fx.symbolic_trace(program).graph) == plain[0]
        assert str(torch.jit.script(program).graph) == plain[1]
        debugger.stop()
        debugger.step()


def test_bound_methods_and_calls_with_packed_arguments_are_recorded(dump) -> None:
    debugger = dump.debugger()
    x, listed = torch.ones(2, 3), ["reshape"] if "reshape" in load_list()["Tensor"] else []
    kept = x.exp
    debugger.start()
    bound = x.exp
    bound()
    x.sub(1)
    x.reshape(*[3, 2])
    x.add(x, alpha=2)
    list(map(torch.Tensor.sqrt, [x]))
    kept()
    with pytest.raises(TypeError, match="takes no arguments"):
        x.exp(1)
    debugger.stop()
    debugger.step()
    bound()
    assert [name.split(".")[1] for name in dump.data(0)] == ["exp", "sub", *listed, "add", "sqrt", "exp"]
    assert dump.data(0)["Tensor.add.0.forward"]["input_kwargs"]["alpha"]["value"] == 2


def test_another_debugger_records_by_its_own_names(dump, tmp_path) -> None:
    dump.debugger().close()
    debugger = dump.debugger()
    debugger.register_custom_api(torch, "tanh", "mine")
    debugger.register_custom_api(F, "relu", "mine")
    debugger.start()
    torch.tanh(F.relu(torch.ones(2)))
    debugger.restore_custom_api(torch, "tanh")
    torch.tanh(F.relu(torch.ones(2)))
    debugger.stop()
    debugger.step()
    assert list(dump.data(0)) == ["mine.relu.0.forward", "mine.tanh.0.forward", "mine.relu.1.forward", "Torch.tanh.0.forward"]
    assert isinstance(PrecisionDebugger, type)


def test_targets_of_a_function_of_python_are_taken_in_any_order() -> None:
    def function(first: int, second: int = 2) -> tuple:
        return first, second

    code, defaults = function.__code__, (3,)
    redirected = redirect(function)
    one, other = lambda *_: "one", lambda *_: "other"
    redirected.put(one)
    redirected.put(other)
    assert function(1) == "other" and function.__wrapped__ is redirected.original
    redirected.take(one)
    assert function(1) == "other"
    redirected.take(other)
    assert function.__code__ is code and not vars(function)
    function.__defaults__ = defaults
    redirected.put(one)
    assert function(1) == "one" and redirected.original(1) == (1, 3)
    redirected.take(one)
    assert function(1) == (1, 3) and function.__defaults__ is defaults


def test_items_are_assigned_in_every_class_of_tensors_and_recorded_in_a_step_alone(dump) -> None:
    class Early(torch.Tensor):
        pass

    class Doubling(torch.Tensor):
        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, 2 * value)

    assign = torch.Tensor.__setitem__
    debugger = dump.debugger(level="L1")
    for step in range(3):
        debugger.start()

        class Late(torch.Tensor):
            pass

        kinds = (torch.Tensor, Early, Doubling, Late)

        def assigned() -> list[list[float]]:
            values = [torch.zeros(2).as_subclass(kind) for kind in kinds]
            for value in values:
                value[0] = 1.0
                torch.Tensor.__setitem__(value, 1, 3.0)
                with pytest.raises(TypeError, match="delet|remove"):
                    del value[0]
                with pytest.raises(IndexError):
                    value[5] = 1.0
            return [value.as_subclass(torch.Tensor).tolist() for value in values]

        wanted = [[1.0, 3.0], [1.0, 3.0], [2.0, 3.0], [1.0, 3.0]]
        assert assigned() == wanted
        assert torch.Tensor.__setitem__ is assign and "__setitem__" not in vars(torch.Tensor)
        debugger.stop()
        assert assigned() == wanted
        debugger.step()
        names = [name for name in dump.data(step) if name.startswith("Tensor.__setitem__")]
        assert len(names) == 3 * len(kinds), names  # an assignment that fails too
    debugger.close()


def test_attributes_that_a_program_gives_a_function_in_a_step_stay(dump) -> None:
    debugger = dump.debugger(level="L1")
    x = torch.ones(2)
    try:
        for step in range(5):
            debugger.start()
            F.silu(x)
            kept = F.silu.__dict__ if step == 1 else None
            if step == 2:
                F.silu.note = "the program's"  # type: ignore[attr-defined]
            debugger.stop()
            assert getattr(F.silu, "note", None) == ("the program's" if step >= 2 else None)
            assert kept is None or kept is F.silu.__dict__
            assert not hasattr(F.silu, "__wrapped__")
            F.silu(x)
            debugger.step()
            assert [name for name in dump.data(step) if "silu" in name] == ["Functional.silu.0.forward"]
    finally:
        F.silu.__dict__.pop("note", None)
        debugger.close()
