# SPDX-License-Identifier: Apache-2.0
"""Operators that record module calls inside a compiled graph.

begin and end are placed where a module begins and ends, begin_backward and backward
where its gradients are known. They are opaque (a compiler sees a fake kernel), have
an effect (none is dropped or repeated) and return nothing that aliases an input, so
the graph computes the same values. Each takes the result of the previous one as
`after`, because inductor 2.13 moves operators with ordered effects past each other
when it reorders for memory or for CUDA graphs.

The structure of a module's arguments is a constant of the graph: a text with places
for tensors and sizes. The module is given by a tensor of one number, so that blocks
with the same code share a graph. `begin` returns the number of the call, which the
graph keeps for its backward, since passes may come in any order.

Operators belong to the process, as PyTorch's library of them does. They record
through `sink`, and do nothing while it is None. They require PyTorch 2.13 or later,
see supported().
"""

from __future__ import annotations

import functools
import json
import threading
from typing import Any, Callable, Optional, Protocol, Sequence

import torch

_NAMES = ("begin", "end", "begin_backward", "backward")


class Sink(Protocol):
    """Receiver of the operators' records while compiled code runs. Its methods never raise."""

    def begin(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], frames: list[str]) -> int:
        """Records the beginning of a module and returns the number of the call for its backward; 0 if that is not recorded."""

    def end(self, number: int, output: Any) -> None: ...
    def begin_backward(self, call: int) -> None: ...
    def backward(self, call: int, inputs: Any, outputs: Any) -> None: ...
    def failed(self, error: Exception) -> None: ...


# The receiver of records, or None.
sink: Optional[Sink] = None


class Fields:
    """The fields of a dataclass."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields


class _Values:
    """Encodes values as a text, with places for tensors and symbolic sizes."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.sizes: list[Any] = []

    def text(self, value: Any) -> str:
        return json.dumps(self._coded(value))

    def _coded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if hasattr(type(value), "__tensor_flatten__"):
                raise TypeError(f"a {type(value).__name__} passes through a module")
            self.tensors.append(value)
            return {"tensor": len(self.tensors) - 1, "grad": value.requires_grad}
        if isinstance(value, torch.SymInt):
            self.sizes.append(value)
            return {"size": len(self.sizes) - 1}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Fields):
            return self._coded(value.fields)
        if isinstance(value, dict):
            return {"dict": [[key, self._coded(item)] for key, item in value.items() if isinstance(key, str)]}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self._coded(item) for item in value]}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).rpartition(".")[2]}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        return None


def _with_grad(tensor: torch.Tensor, grad: bool) -> torch.Tensor:
    # In a graph no tensor requires a gradient; the text states which ones did during tracing.
    return tensor.detach().requires_grad_() if grad and not tensor.requires_grad else tensor


_MAKE: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "Size": torch.Size, "device": torch.device, "dtype": lambda name: getattr(torch, name)}


@functools.lru_cache(maxsize=65536)
def _parsed(text: str) -> Any:
    return json.loads(text)


def _value(code: Any, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Any:
    if not isinstance(code, dict):
        return code
    if "tensor" in code:
        return _with_grad(tensors[code["tensor"]], code["grad"])
    if "size" in code:
        return sizes[code["size"]]
    ((kind, of),) = code.items()
    if kind == "dict":
        return {key: _value(item, tensors, sizes) for key, item in of}
    if isinstance(of, list):
        of = [_value(item, tensors, sizes) for item in of]
    return _MAKE.get(kind, tuple)(of)  # Any other kind is a named tuple, which becomes a tuple.


# --- the operators, when the graph runs


def _harmless(kernel: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(kernel)
    def rankprobe_kernel(*args: Any) -> torch.Tensor:
        result = 0
        if sink is not None:
            try:
                result = kernel(*args)
            except Exception as error:  # noqa: BLE001 - the model must not notice
                sink.failed(error)
        return torch.tensor(result or 0)

    return rankprobe_kernel


@_harmless
def _begin(number: torch.Tensor, after: torch.Tensor, text: str, tensors: list[Any], sizes: list[Any], frames: list[Any]) -> int:
    args, kwargs = _value(_parsed(text), tensors, sizes)
    return sink.begin(int(number.item()), args, kwargs, list(frames))  # type: ignore[union-attr]


@_harmless
def _end(number: torch.Tensor, after: torch.Tensor, text: str, tensors: list[Any], sizes: list[Any]) -> None:
    sink.end(int(number.item()), _value(_parsed(text), tensors, sizes)[0])  # type: ignore[union-attr]


@_harmless
def _begin_backward(call: torch.Tensor, after: torch.Tensor) -> None:
    sink.begin_backward(int(call.item()))  # type: ignore[union-attr]


@_harmless
def _backward(call: torch.Tensor, after: torch.Tensor, text: str, tensors: list[Any]) -> None:
    sink.backward(int(call.item()), *_value(_parsed(text), tensors, ()))  # type: ignore[union-attr]


_library: Any = None


@functools.lru_cache(maxsize=None)
def supported() -> bool:
    """Returns whether this PyTorch has the features that the operators need. The compiler must be loaded."""
    try:
        from torch._dynamo.eval_frame import set_eval_frame_isolate_recompiles_id  # type: ignore[attr-defined] # noqa: F401
        from torch._higher_order_ops.effects import _register_effectful_op  # noqa: F401
        from torch._library.effects import EffectType  # noqa: F401
    except ImportError:
        return False
    import torch._functorch.config as functorch

    return (hasattr(torch.Tag, "cudagraph_unsafe") and hasattr(torch.Tag, "flexible_layout")
            and hasattr(functorch, "force_non_lazy_backward_lowering"))


def define() -> None:
    """Defines the operators, once in a process. The compiler must be loaded."""
    global _library
    if _library is not None:
        return
    from torch._higher_order_ops.effects import _register_effectful_op
    from torch._library.effects import EffectType

    library = torch.library.Library("rankprobe", "FRAGMENT")
    # cudagraph_unsafe splits a CUDA graph at the operators; flexible_layout lets the compiler choose the layout of inputs.
    tags = (torch.Tag.cudagraph_unsafe, torch.Tag.flexible_layout)
    values = "str text, Tensor[] tensors"
    library.define(f"begin(Tensor number, Tensor after, {values}, SymInt[] sizes, str[] frames) -> Tensor", tags=tags)
    library.define(f"end(Tensor number, Tensor after, {values}, SymInt[] sizes) -> Tensor", tags=tags)
    library.define("begin_backward(Tensor call, Tensor after) -> Tensor", tags=tags)
    library.define(f"backward(Tensor call, Tensor after, {values}) -> Tensor", tags=tags)
    for name, kernel in zip(_NAMES, (_begin, _end, _begin_backward, _backward)):
        library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"rankprobe::{name}", lambda *_: torch.empty((), dtype=torch.int64), lib=library)
        _register_effectful_op(f"rankprobe::{name}", EffectType.ORDERED)
    _library = library


# --- the operators, put into the graph while it is traced


def in_trace() -> bool:
    """Returns whether AOTAutograd, which every compiler of training uses, is tracing a graph."""
    # Called twice for each call of a module; the first check takes a third of the time of the second.
    return (torch._C._len_torch_dispatch_stack() != 0
            and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is not None)


class _Order(threading.local):
    """Result of the last operator in the trace of this thread; each trace has its own mode."""

    mode: Any = None
    last: Any = None


_order = _Order()


def _put(operator: Any, of: torch.Tensor, *values: Any) -> torch.Tensor:
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL)
    after = _order.last if _order.mode is mode else of
    with torch.no_grad():
        result: torch.Tensor = operator.default(of, after, *values)
    _order.mode, _order.last = mode, result
    return result


def forget_trace() -> None:
    _order.mode = _order.last = None


def put_begin(number: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], frames: list[str]) -> torch.Tensor:
    """Adds `begin` to the graph. Returns the number of the call as a tensor of the graph."""
    values = _Values()
    text = values.text([args, kwargs])
    return _put(torch.ops.rankprobe.begin, number, text, values.tensors, values.sizes, frames)


def put_end(number: torch.Tensor, output: Any) -> None:
    values = _Values()
    text = values.text([output])
    _put(torch.ops.rankprobe.end, number, text, values.tensors, values.sizes)


def put_gradients(call: torch.Tensor) -> Callable[..., None]:
    """Returns a function to be called without arguments when the backward of `call` begins, and with its gradients when they are
    known."""
    def put(*gradients: Any) -> None:
        if not gradients:
            _put(torch.ops.rankprobe.begin_backward, call)
            return
        values = _Values()
        text = values.text(list(gradients))
        _put(torch.ops.rankprobe.backward, call, text, values.tensors)

    return put
