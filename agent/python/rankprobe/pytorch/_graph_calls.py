# SPDX-License-Identifier: Apache-2.0
"""Recording of module calls in compiled code, from hooks that the compiler traces.

A hook of a module has one line for compilers, `traced_begin` or `traced_end`. Dynamo
adds them to its graph as calls, which become

* operators of _graph_ops, if AOTAutograd traces the graph. Module gradients are
  found by hooks on the nodes of the trace, as in an eager step. So nothing is added
  between the nodes, and gradients are summed in the order of a graph without
  rankprobe;
* calls of the eager hooks, if a backend runs the graph directly.

GraphCalls is the sink of the operators.
"""

from __future__ import annotations

import os
import re
import threading
from typing import Any, Callable, Optional

import torch

from rankprobe.pytorch import _graph_ops
from rankprobe.pytorch._process import report_fault

# Directory of rankprobe's frames. The complete path is used, because a program's path may contain the name rankprobe.
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Whether this PyTorch has the required features; checked without importing the compiler, which takes seconds.
SUPPORTED = hasattr(getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None), "set_eval_frame_isolate_recompiles_id")
# PyTorch 2.7 and later have is_exporting().
_is_exporting: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_exporting", lambda: False)
# Whether the compiler may be loaded, so that hooks may be traced. False only while its import is watched.
LOADED = True
# Whether hooks are traced into a graph that is compiled now; each graph has a guard on it.
TRACED = False
# Key that marks the fields of a dataclass, for whose tensors an eager step records no gradients either.
_FIELDS = "rankprobe fields"
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)\n(?:\s+(.*))?', re.MULTILINE)


def handed(value: Any) -> Any:
    """Converts `value` to values that a compiler can put into its graph; others become None. This function is traced."""
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str, torch.dtype, torch.device)):
        return value
    if isinstance(value, dict):
        return {key: handed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):  # a named tuple
            return {name: handed(getattr(value, name)) for name in value._fields}
        return tuple([handed(item) for item in value])
    if isinstance(value, list):
        return [handed(item) for item in value]
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return {_FIELDS: {name: handed(getattr(value, name, None)) for name in fields}}
    return None


def received(value: Any) -> Any:
    """Reverses handed() when the graph runs or is traced by AOTAutograd."""
    if isinstance(value, dict):
        if _FIELDS in value:
            return _graph_ops.Fields(received(value[_FIELDS]))
        return {key: received(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([received(item) for item in value])
    return value


# --- first lines of hooks, traced by Dynamo


def in_compiler() -> bool:
    """Returns whether Dynamo, a compiler below it or torch.export is tracing; graphs of torch.export do not record."""
    return (SUPPORTED and (torch.compiler.is_dynamo_compiling() or TRACED and _graph_ops.in_trace())) or _is_exporting()


def begin_in_compiler(number: list[torch.Tensor], args: tuple[Any, ...], kwargs: Optional[dict[str, Any]]) -> None:
    """Records the beginning of a module in the traced graph. number: the module's number in a list of at most one tensor, which the hook
    owns, so that guards of a graph are on the list and not on the module."""
    if TRACED and number and torch.compiler.is_dynamo_compiling() and not _is_exporting():
        traced_begin(number[0], handed(args), handed(kwargs or {}))


def end_in_compiler(number: list[torch.Tensor], output: Any) -> None:
    if TRACED and number and torch.compiler.is_dynamo_compiling() and not _is_exporting():
        traced_end(number[0], handed(output))


class _Trace(threading.local):
    """Modules that have begun in the trace of this thread: (number, gradients)."""

    def __init__(self) -> None:
        self.open: list[tuple[Any, Any]] = []


_trace = _Trace()
# The GraphCalls for which graphs are traced and run; None if nothing is recorded.
_calls: Optional["GraphCalls"] = None


def _frames() -> list[str]:
    """Returns the frames of the compiled function at the call of the module, innermost first, in the form of stack.json."""
    text = torch.fx.traceback.get_current_meta().get("stack_trace") or ""
    frames = [f"File {file}, line {line}, in {function}, \n {source}" for file, line, function, source
              in _FRAME.findall(text) if not file.startswith(_OWN)]
    return frames[::-1]


def _begin_in_graph(number: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert _calls is not None
    call = _graph_ops.put_begin(number, args, kwargs, _frames())
    _trace.open.append((number, _calls.traced_gradients(call, args)))


def _end_in_graph(number: torch.Tensor, output: Any) -> None:
    _graph_ops.put_end(number, output)
    # Skips modules that a caught exception or a graph break left open.
    while _trace.open:
        begun, gradients = _trace.open.pop()
        if begun is number:
            if gradients is not None:
                _calls.traced_outputs(gradients, output)  # type: ignore[union-attr]
            return


def traced_begin(number: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Called in a graph of Dynamo when a module begins."""
    if _calls is None:
        return
    if _graph_ops.in_trace():
        _begin_in_graph(number, received(args), received(kwargs))
    elif not _is_fake(number):
        _calls.run_begin(int(number.item()), received(args), received(kwargs))


def traced_end(number: torch.Tensor, output: Any) -> None:
    """Called in a graph of Dynamo when a module ends."""
    if _calls is None:
        return
    if _graph_ops.in_trace():
        _end_in_graph(number, received(output))
    elif not _is_fake(number):
        _calls.run_end(int(number.item()), received(output))


def _is_fake(tensor: torch.Tensor) -> bool:
    return type(tensor) is not torch.Tensor


_defined = False


def define() -> None:
    """Registers the operators and functions with the compiler, once in a process. The compiler must be loaded."""
    global _defined
    if not _defined:
        _defined = True
        _graph_ops.define()
        torch._dynamo.allow_in_graph(traced_begin)
        torch._dynamo.allow_in_graph(traced_end)


def forget_traces() -> None:
    """Resets the state of this thread before another graph is traced."""
    _trace.open.clear()
    _graph_ops.forget_trace()


class GraphCalls:
    """Records module calls of compiled code through the hooks of one ModuleHooks.

    Its methods are called by operators and traces, on the threads where these run.
    They never raise; faults of rankprobe are counted by the Capture.
    """

    def __init__(self, capture: Any, hooks: Any) -> None:
        self._capture, self._hooks = capture, hooks
        # Calls of this step whose gradients are recorded, by number.
        self._begun: dict[int, Any] = {}
        self._last = 0

    def enter(self) -> None:
        global _calls, TRACED
        _calls, _graph_ops.sink, TRACED = self, self, True

    def leave(self) -> None:
        """Stops recording forwards; gradients are still recorded."""
        global TRACED
        if _calls is self:
            TRACED = False

    def forget(self) -> None:
        """Stops recording the step and forgets its calls."""
        global _calls
        self.leave()
        self._begun.clear()
        if _calls is self:
            _calls = _graph_ops.sink = None

    def _guarded(self, where: str, function: Callable[..., Any], *args: Any) -> Any:
        self._capture.enter_quiet()  # Calls of rankprobe on tensors must not be recorded.
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001 - the model must not notice
            report_fault(self._capture, f"{where} in compiled code", error)
            return None
        finally:
            self._capture.leave_quiet()

    def failed(self, error: Exception) -> None:
        report_fault(self._capture, "a recorder in compiled code", error)

    # --- a graph is traced

    def traced_gradients(self, call: torch.Tensor, args: tuple[Any, ...]) -> Any:
        return self._guarded("gradients", self._traced_gradients, call, args) if torch.is_grad_enabled() else None

    def _traced_gradients(self, call: torch.Tensor, args: tuple[Any, ...]) -> Any:
        return self._hooks.traced_gradients(_graph_ops.put_gradients(call), args)

    def traced_outputs(self, gradients: Any, output: Any) -> None:
        self._guarded("gradients", self._hooks.traced_outputs, gradients, output)

    # --- a backend runs Dynamo's graph as it is

    def run_begin(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = self._hooks.numbered(number)
        if found is not None:
            found.handles[0].hook(found.module(), args, kwargs)

    def run_end(self, number: int, output: Any) -> None:
        found = self._hooks.numbered(number)
        if found is not None:
            found.handles[1].hook(found.module(), (), {}, output)

    # --- the operators of a compiled graph run

    def begin(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], frames: list[str]) -> int:
        call = self._guarded("a module", self._hooks.begin_compiled, number, args, kwargs, frames)
        if call is None:
            return 0
        self._last += 1
        self._begun[self._last] = call
        return self._last

    def end(self, number: int, output: Any) -> None:
        self._guarded("a module", self._hooks.end_compiled, number, output)

    def begin_backward(self, call: int) -> None:
        module = self._begun.get(call)
        if module is not None:
            self._guarded("a backward", self._capture.begin_compiled_backward, module)

    def backward(self, call: int, inputs: Any, outputs: Any) -> None:
        module = self._begun.get(call)
        if module is not None:
            self._guarded("a backward", self._capture.compiled_backward, module, tuple(inputs), tuple(outputs))
