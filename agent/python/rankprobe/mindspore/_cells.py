# SPDX-License-Identifier: Apache-2.0
"""Hooks on the cells of a network: forward, backward, gradients of parameters."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any, Callable, Iterator

from mindspore import nn
from mindspore.common.jit_config import JitConfig

from rankprobe._frontend.process import report_fault
from rankprobe.mindspore._bindings import grad_enabled, is_tensor, wait


def is_compiled(function: Any, depth: int = 0) -> bool:
    """Returns whether a construct() belongs to a cell under @jit, below which nothing runs in Python."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            inner = cell.cell_contents
        except ValueError:  # The cell is empty.
            continue
        if isinstance(inner, JitConfig) or (depth < 8 and isinstance(inner, types.FunctionType) and is_compiled(inner, depth + 1)):
            return True
    return False


def named_cells(model: Any, compiled: bool = False) -> Iterator[tuple[str, nn.Cell, bool]]:
    """Yields (path with the model's index, cell, whether it is a root) of all cells that run in Python. compiled: includes cells that
    are compiled."""
    for index, root in enumerate(model if isinstance(model, (list, tuple)) else [model]):
        prefix = f"{index}." if isinstance(model, (list, tuple)) else ""
        seen: set[int] = set()
        waiting = [("", root)]
        while waiting:
            path, cell = waiting.pop()
            if id(cell) in seen or (not compiled and is_compiled(type(cell).construct)):
                continue
            seen.add(id(cell))
            yield prefix + path, cell, cell is root
            below = [(f"{path}.{name}" if path else name, child) for name, child in cell._cells.items() if child is not None]
            waiting += reversed(below)


def _tensors(value: Any) -> tuple[Any, ...]:
    """Returns the tensors of a cell's arguments or output, not those nested deeper, for which no gradient is recorded."""
    if isinstance(value, tuple):
        return tuple(item for item in value if is_tensor(item))
    return (value,) if is_tensor(value) else ()


def own_parameters(cell: nn.Cell) -> dict[str, Any]:
    """Returns the parameters of the cell itself by the last part of their names."""
    return {parameter.name.rpartition(".")[2]: parameter for parameter in cell._params.values() if parameter is not None}


class CellHooks:
    """Installs and removes hooks on the cells below the network(s).

    Faults of rankprobe are counted by the Capture and never reach the network.
    """

    def __init__(self, capture: Any) -> None:
        self._capture = capture
        self._handles: list[Any] = []
        self._hooked: set[int] = set()
        # (id of the cell, name of the parameter)
        self._watched: set[tuple[int, str]] = set()
        self._open = threading.local()
        # Set by the debugger from the plan in force.
        self.backward = self.parameters_grad = True
        # Called when a root's forward begins, and when it has ended.
        self.on_root_begin: Callable[[], None] = lambda: None
        self.on_root_end: Callable[[], None] = lambda: None

    def hook_model(self, model: Any) -> None:
        """Hooks all cells below the root(s). Repeated calls have no effect."""
        for path, cell, is_root in named_cells(model):
            if not is_root and id(cell) not in self._hooked:
                self._hooked.add(id(cell))
                name = f"Cell.{path}.{type(cell).__name__}"
                self._handles.append(cell.register_forward_pre_hook(self._pre(name), with_kwargs=True))
                # Prepended, because a later hook may replace the output.
                self._handles.append(cell.register_forward_hook(self._post(), prepend=True, with_kwargs=True, always_call=True))

    def hook_roots(self, model: Any) -> None:
        """Watches forwards of the first root for token_range; records nothing."""
        root = model[0] if isinstance(model, (list, tuple)) else model
        if id(root) in self._hooked:
            return
        self._hooked.add(id(root))

        def begin(*_: Any) -> None:
            self.on_root_begin()

        def end(*_: Any) -> None:
            self.on_root_end()

        self._handles += [root.register_forward_pre_hook(begin), root.register_forward_hook(end)]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()
        self._watched.clear()

    def begin_step(self) -> None:
        self._stack().clear()

    def _stack(self) -> list[Any]:
        stack = getattr(self._open, "stack", None)
        if stack is None:
            stack = self._open.stack = []
        return stack

    def _pre(self, name: str) -> Callable[..., Any]:
        capture = self._capture

        def rankprobe_pre(cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            stack = self._stack()
            if not capture.active:
                stack.append((cell, None, None))
                return
            call = gradients = None
            capture.enter_quiet()  # Calls of rankprobe on tensors must not be recorded.
            try:
                wait()
                call = capture.begin_module(name, args, kwargs or None)
                if call is not None:
                    if self.parameters_grad:
                        self._watch_parameters(name, cell)
                    if self.backward and grad_enabled():
                        gradients = capture.module_gradients(call, _tensors(args))
            except Exception as error:  # noqa: BLE001 - the network must not notice
                report_fault(capture, f"{name} before its forward", error)
            finally:
                capture.leave_quiet()
            stack.append((cell, call, gradients))

        return rankprobe_pre

    def _post(self) -> Callable[..., Any]:
        capture = self._capture

        def rankprobe_post(cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            call, gradients = self._begun(cell)
            if call is None:
                return
            if output is None and sys.exc_info()[0] is not None:
                capture.abandon_module(call)
                return
            capture.enter_quiet()
            try:
                wait()
                capture.end_module(call, output, own_parameters(cell) if call.kept else {})
                if gradients is not None and grad_enabled():
                    gradients.outputs(_tensors(output))
            except Exception as error:  # noqa: BLE001 - the network must not notice
                report_fault(capture, f"{call.name} after its forward", error)
            finally:
                capture.leave_quiet()

        return rankprobe_post

    def _begun(self, cell: nn.Cell) -> tuple[Any, Any]:
        """Pops and returns the call and the gradients of the forward of `cell` that ends."""
        stack = self._stack()
        while stack and stack[-1][0] is not cell:
            # The forward of this cell ended with an exception that an outer forward has caught.
            _, call, _ = stack.pop()
            if call is not None:
                self._capture.abandon_module(call)
        return stack.pop()[1:] if stack else (None, None)

    def _watch_parameters(self, cell_name: str, cell: nn.Cell) -> None:
        for name, parameter in own_parameters(cell).items():
            if parameter.requires_grad and (id(cell), name) not in self._watched:
                self._watched.add((id(cell), name))
                self._handles.append(parameter.register_hook(self._on_gradient(cell_name, name)))

    def _on_gradient(self, cell_name: str, name: str) -> Callable[..., Any]:
        capture = self._capture

        def rankprobe_gradient(gradient: Any) -> None:
            if capture.enabled and self.parameters_grad:
                try:
                    capture.parameter_gradient(cell_name, name, gradient)
                except Exception as error:  # noqa: BLE001 - the network must not notice
                    report_fault(capture, f"gradient of {cell_name}.{name}", error)

        return rankprobe_gradient
