# SPDX-License-Identifier: Apache-2.0
"""Arguments of classes that are made of a list, dict, tuple, number or text are recorded, and no method of these classes is called for it."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)
_CALLS: list[str] = []
_HAS_MODULE_KEYWORDS = torch.__version__ >= "2"  # before, no hook gives them


def _counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        _CALLS.append(name)
        return method(*args, **kwargs)

    return counted


def _own(base: type) -> type:
    """A subclass, each of whose methods says that it was called."""
    members: dict[str, Any] = {name: _counting(f"{base.__name__}.{name}", getattr(base, name)) for name in dir(base)
                               if isinstance(getattr(base, name), _METHODS) and getattr(base, name) is not object.__init__}
    members["__class__"] = property(_counting(f"{base.__name__}.__class__", type))
    for field in getattr(base, "_fields", ()):
        members[field] = property(_counting(f"{base.__name__}.{field}", vars(base)[field].__get__))
    return type(f"Own{base.__name__}", (base,), members)


@dataclasses.dataclass
class Fields:
    number: int
    tensor: Any


class Items(dict):
    """As an output of Hugging Face: a dict with fields."""


Items.__annotations__ = {"number": int}
Int, Float, Text, List, Tuple, Dict, Ordered, Pair, OwnFields, OwnItems = map(_own, (
    int, float, str, list, tuple, dict, collections.OrderedDict, collections.namedtuple("Pair", "one other"), Fields,
    dataclasses.dataclass(Items)))


class Takes(torch.nn.Module):
    def forward(self, x: torch.Tensor, *values: Any, **named: Any) -> Any:
        y = torch.cat(List([x, torch.mul(x, Int(3))]))
        z = torch.nn.functional.dropout(y * Float(0.5), Float(0.0)).sum(Int(0))
        return values[-1] if values else z


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.takes = Takes()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.takes(*args, **kwargs)


def _values(x: torch.Tensor) -> list[Any]:
    return [Int(5), Int(10 ** 30), Float(1.5), Text("text"), List([Int(1), x]), Tuple((Float(2.5), x)),
            Dict({Text("key"): x, Int(3): Text("three")}), Ordered([(Float(0.5), Int(8))]), Pair(Int(4), x), OwnFields(Int(6), x),
            slice(Int(1), None, Int(2)), OwnItems(Int(7))]


def _calls(net: Net) -> list[str]:
    """Methods that are called in a step."""
    x = torch.ones(2, requires_grad=True)
    values = _values(x)
    named = dict(zip("abcdefghijkl", values)) if _HAS_MODULE_KEYWORDS else {}
    _CALLS.clear()
    net(x).sum().backward()
    for value in values:
        net(x, value)
    net(x, values, **named)
    return list(_CALLS)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_no_method_of_an_argument_is_called(dump, level: str) -> None:
    net = Net()
    plain = _calls(net)
    debugger = dump.debugger(level=level)
    for _ in range(2):
        debugger.start(net)
        assert _calls(net) == plain
        debugger.stop()
        debugger.step()
    assert debugger._capture.faults == 0
    data = dump.data(1)
    if level == "L1":
        assert "Torch.cat.0.forward" in data
        return
    tensor = data["Module.takes.Takes.forward.0"]["input_args"][0]

    def of(kind: str, value: Any) -> dict[str, Any]:
        return {"type": f"Own{kind}", "value": value}

    wanted = [of("int", 5), of("int", 10 ** 30), of("float", 1.5), of("str", "text"), [of("int", 1), tensor], [of("float", 2.5), tensor],
              {"key": tensor, "3": of("str", "three")}, {"0.5": of("int", 8)}, {"one": of("int", 4), "other": tensor},
              {"number": of("int", 6), "tensor": tensor}, {"type": "slice", "value": [1, None, 2]}, {"number": of("int", 7)}]
    for i, value in enumerate(wanted, 1):
        entry = data[f"Module.takes.Takes.forward.{i}"]
        assert entry["input_args"][1] == value
    last = data["Module.takes.Takes.forward.13"]
    assert last["input_args"][1] == wanted
    assert not _HAS_MODULE_KEYWORDS or list(last["input_kwargs"].values()) == wanted
