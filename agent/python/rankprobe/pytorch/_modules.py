"""Hooks on the modules of a model: forward, backward, parameter gradients."""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable, Iterator, Optional

import torch

from rankprobe.pytorch._recompute import stopped as recomputation_stopped

_MAX_DEPTH = 350
_MAX_VALUES = 1 << 20
_HAS_KWARGS = hasattr(torch.nn.Module, "_call_impl") and hasattr(
    torch.nn.Module(), "_forward_pre_hooks_with_kwargs")
_HAS_ALWAYS_CALL = hasattr(torch.nn.Module(), "_forward_hooks_always_called")
_SET_CREATION_META = getattr(torch._C._autograd, "_set_creation_meta", None)
_HAS_POST_ACCUMULATE = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")


def _is_skipped(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"


def named_targets(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """(path with the model's index, module) of everything below the root(s)."""
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    for index, root in enumerate(models):
        prefix = f"{index}." if isinstance(model, (list, tuple)) else ""
        for path, module in root.named_modules():
            if module is not root and not _is_skipped(module):
                yield prefix + path, module


def _opened(value: Any, inside: tuple) -> Optional[tuple]:
    """The containers around the items of `value`; None: it is no container, one
    that holds itself, or too deep."""
    if not isinstance(value, (list, tuple, dict)) or len(inside) >= _MAX_DEPTH or any(value is c for c in inside):
        return None
    return (*inside, value)


def _differentiable(value: Any, out: list[torch.Tensor], inside: tuple = (),
                    left: Optional[list[int]] = None) -> list[torch.Tensor]:
    """The tensors of nested containers that require a gradient, in order."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            out.append(value)
        return out
    around = _opened(value, inside)
    if around is not None:
        left = [_MAX_VALUES] if left is None else left
        left[0] -= len(value)
        if left[0] < 0:
            raise ValueError(f"gradients of more than {_MAX_VALUES} values are not recorded")
        for item in value.values() if isinstance(value, dict) else value:
            _differentiable(item, out, around, left)
    return out


def _replaced(value: Any, tensors: Iterator[torch.Tensor], inside: tuple = ()) -> Any:
    """`value` with those tensors replaced. Lists and dicts stay the same objects:
    a module may add to one it was given."""
    if isinstance(value, torch.Tensor):
        return next(tensors) if value.requires_grad else value
    around = _opened(value, inside)
    if around is None:
        return value
    if isinstance(value, tuple):
        items = [_replaced(item, tensors, around) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        item = value[key]
        new = _replaced(item, tensors, around)
        if new is not item:
            value[key] = new
    return value


def _hooked(value: Any, setup: Callable[[tuple], Any]) -> Any:
    """`value` with its differentiable tensors passed through `setup`."""
    tensors = _differentiable(value, [])
    if not tensors:
        setup(())
        return value
    return _replaced(value, iter(setup(tuple(tensors))))


def _parameters(module: torch.nn.Module) -> dict:
    """Its own parameters by name, each once."""
    found = {name: p for name, p in module._parameters.items() if p is not None}
    if len(found) > 1 and len(set(map(id, found.values()))) < len(found):
        return dict(module.named_parameters(recurse=False))
    return found


def _guarded(capture: Any, where: str, function: Callable, *args: Any) -> Any:
    """function(*args); a fault of ours becomes None and a report."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - the model must not notice
        capture.report_fault(f"{where}: {error!r}")
        return None


class _Pass(torch.autograd.Function):
    """A node that tensors pass unchanged, as in PyTorch's own full backward hooks."""

    @staticmethod
    def forward(_: Any, *tensors: torch.Tensor) -> tuple:
        return tensors

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> tuple:
        return gradients


# Without the Python around it, which is for functorch.
_pass = super(torch.autograd.Function, _Pass).apply
_functorch_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


# Recorded in place of gradients that autograd does not lead through our hooks.
_IN_PLACE = "not recorded: the module changed its input in place"


class _NodeBackward:
    """Backward of one module call by two nodes (PyTorch >= 2.0): one that its
    outputs pass, one that its inputs pass.

    in_place: an input was changed in place, and autograd leads its gradient
    around the node. Known once outputs() was called."""

    __slots__ = ("_capture", "_call", "_grad_outputs", "_has_inputs", "_entered", "in_place")

    def __init__(self, capture: Any, call: Any, module: torch.nn.Module) -> None:
        self._capture, self._call = capture, call
        self._grad_outputs: Optional[tuple] = None
        self._has_inputs = self.in_place = False
        self._entered: Optional[tuple[Any, tuple]] = None

    def _on_outputs(self, _: Any, grad_outputs: tuple) -> tuple:
        capture = self._capture
        try:
            if self.in_place:
                # Its end is not seen: what follows stays inside it, as with a module that has no end.
                capture.module_backward(self._call, (_IN_PLACE,), grad_outputs)
            capture.begin_module_backward(self._call)
            if self.in_place:
                return grad_outputs
            if self._has_inputs:
                self._grad_outputs = grad_outputs
            else:
                capture.module_backward(self._call, (), grad_outputs)
        except Exception as error:  # noqa: BLE001 - the model must not notice
            capture.report_fault(f"module backward: {error!r}")
        return grad_outputs  # the node would make zeros of a gradient that is None

    def _on_inputs(self, grad_inputs: tuple, _: Any) -> None:
        # None: a gradient that came to the inputs without passing the outputs.
        grad_outputs, self._grad_outputs = self._grad_outputs, None
        if grad_outputs is None:
            return
        try:
            self._capture.module_backward(self._call, grad_inputs, grad_outputs)
        except Exception as error:  # noqa: BLE001 - the model must not notice
            self._capture.report_fault(f"module backward: {error!r}")

    def inputs(self, args: tuple) -> tuple:
        return self._passed(args, self._on_inputs)

    def outputs(self, output: Any) -> Any:
        entered, self._entered = self._entered, None
        if entered is not None:
            node, passed = entered
            self.in_place = any(tensor.grad_fn is not node for tensor in passed)
        return self._passed(output, self._on_outputs)

    def _passed(self, value: Any, hook: Callable) -> Any:
        """`value` with its differentiable tensors passed through a node with `hook`."""
        if not torch.is_grad_enabled():
            return value
        # One tensor is by far the most frequent.
        one = value if isinstance(value, torch.Tensor) else value[0] if type(value) is tuple and len(value) == 1 else None
        if isinstance(one, torch.Tensor):
            tensors = [one] if one.requires_grad else []
        else:
            one, tensors = None, _differentiable(value, [])
        if not tensors:
            return value
        passed = _Pass.apply(*tensors) if _functorch_active() else _pass(*tensors)
        node = passed[0].grad_fn
        if node is None or node.name() != "_PassBackward":
            return value
        node.register_hook(hook)
        for tensor in passed:
            # In-place edits of what a backward hook returned stay legal.
            if tensor._is_view():
                _SET_CREATION_META(tensor, torch._C._autograd.CreationMeta.DEFAULT)
        if hook == self._on_inputs:
            self._has_inputs = True
            self._entered = (node, passed)
        if one is not None:
            return passed[0] if one is value else passed
        return _replaced(value, iter(passed))


class _TensorBackward:
    """Backward of one module call by hooks on views of its tensors.

    For PyTorch below 2.0, where BackwardHook makes in-place operations fail.
    Recorded when the gradient of every input has come, else when the backward
    pass ends (an input or output that took no part, or was changed in place).
    """

    def __init__(self, capture: Any, call: Any, module: torch.nn.Module) -> None:
        self._capture, self._call = capture, call
        self._grad_inputs: list[Optional[torch.Tensor]] = []
        self._grad_outputs: list[Optional[torch.Tensor]] = []
        self._waiting = 0
        self._begun = self._done = False
        self._entered: list[tuple[torch.Tensor, Any]] = []
        self.in_place = False

    def inputs(self, args: tuple) -> tuple:
        return _hooked(args, self._setup_inputs)

    def _setup_inputs(self, tensors: tuple) -> list[torch.Tensor]:
        views = [tensor.view_as(tensor) for tensor in tensors]
        self._grad_inputs = [None] * len(views)
        self._waiting = len(views)
        for i, view in enumerate(views):
            view.register_hook(self._on_input(i))
        self._entered = [(view, view.grad_fn) for view in views]
        return views

    def _on_input(self, index: int) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            self._grad_inputs[index] = gradient
            self._waiting -= 1
            if self._waiting == 0:
                self._finish()

        return hook

    def outputs(self, output: Any) -> Any:
        self.in_place = any(view.grad_fn is not node for view, node in self._entered)
        self._entered.clear()
        return _hooked(output, self._setup_outputs)

    def _setup_outputs(self, tensors: tuple) -> list[torch.Tensor]:
        views = [tensor.view_as(tensor) for tensor in tensors]
        self._grad_outputs = [None] * len(views)
        for i, view in enumerate(views):
            view.register_hook(self._on_output(i))
        return views

    def _on_output(self, index: int) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            self._grad_outputs[index] = gradient
            if not self._begun:
                self._begun = True
                self._capture.begin_module_backward(self._call)
                if self._waiting or len(self._grad_outputs) > 1:
                    torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            if self._waiting == 0 and all(g is not None for g in self._grad_outputs):
                self._finish()

        return hook

    def _finish(self) -> None:
        if self._done:
            return
        self._done = True
        inputs = (_IN_PLACE,) if self.in_place and not any(g is not None for g in self._grad_inputs) else (
            tuple(self._grad_inputs))
        self._capture.module_backward(self._call, inputs, tuple(self._grad_outputs))


_Backward = _NodeBackward if _SET_CREATION_META is not None else _TensorBackward


class ModuleHooks:
    """Hooks on the modules of a model, and what takes them off again.

    Faults of ours are counted by the Capture and never reach the model.
    """

    def __init__(self, capture: Any, warn: Callable[[str], None]) -> None:
        self._capture = capture
        self._warn = warn
        self._handles: list[Any] = []
        self._open = threading.local()
        self._hooked: set[int] = set()
        # Names of modules that were warned about.
        self._told: set[str] = set()
        # By id of the module and name: what is watched (the parameter, or its
        # accumulator), and the handle.
        self._parameters: dict[int, dict[str, tuple[Any, Any]]] = {}
        # Set by the debugger from the plan in force.
        self.backward = True
        self.parameters_grad = True
        # A root model's forward begins / has ended.
        self.on_root_begin: Callable[[], None] = lambda: None
        self.on_root_end: Callable[[], None] = lambda: None

    def is_hooked(self, module: torch.nn.Module) -> bool:
        return id(module) in self._hooked

    def hook_model(self, model: Any) -> None:
        """Hooks everything below the root(s); a second time is a no-op."""
        if not _HAS_ALWAYS_CALL:
            self.hook_roots(model)  # what an exception left open is closed there
        for path, module in named_targets(model):
            self.hook_module(path, module)

    def hook_roots(self, model: Any) -> None:
        """Watches forwards of the first root (token_range), records nothing."""
        for root in list(model)[:1] if isinstance(model, (list, tuple)) else [model]:
            if id(root) not in self._hooked:
                self._hooked.add(id(root))
                self._handles.append(root.register_forward_pre_hook(lambda *_: self.on_root_begin()))
                self._handles.append(root.register_forward_hook(lambda *_: self.on_root_end()))

    def hook_module(self, path: str, module: torch.nn.Module) -> list[Any]:
        """Hooks one module under the name Module.{path}.{Class}."""
        if id(module) in self._hooked:
            return []
        if isinstance(module, torch.jit.ScriptModule):
            self._warn(f"{path} is a ScriptModule: not recorded")
            return []
        self._hooked.add(id(module))
        name = f"Module.{path}.{type(module).__name__}"
        full = True
        if module._backward_hooks and getattr(module, "_is_full_backward_hook", None) is False:
            self._warn(f"{path} has a non-full backward hook: only its forward is recorded")
            full = False
        handles = []
        if _HAS_KWARGS:
            handles.append(module.register_forward_pre_hook(self._pre(name, full), with_kwargs=True))
            always = {"always_call": True} if _HAS_ALWAYS_CALL else {}
            handles.append(module.register_forward_hook(self._post(), with_kwargs=True, **always))
        else:
            pre, post = self._pre(name, full), self._post()
            handles.append(module.register_forward_pre_hook(
                lambda m, args: _first(pre(m, args, None))))
            handles.append(module.register_forward_hook(lambda m, args, output: post(m, args, None, output)))
        # First of all: what comes after may replace the output (parallelize_module makes a local tensor of a DTensor)
        # or free the parameters (fully_shard). A forward pre-hook is the last for the same reason.
        module._forward_hooks.move_to_end(handles[1].id, last=False)
        self._handles += handles
        return handles

    def remove(self, handles: Optional[list[Any]] = None) -> None:
        for handle in self._handles if handles is None else handles:
            handle.remove()
        if handles is None:
            self._handles.clear()
            self._hooked.clear()
            self._parameters.clear()

    def forget(self, module: torch.nn.Module) -> None:
        self._hooked.discard(id(module))

    def _stack(self) -> list[Any]:
        stack = getattr(self._open, "stack", None)
        if stack is None:
            stack = self._open.stack = []
        return stack

    def begin_step(self) -> None:
        self._stack().clear()

    def _pre(self, name: str, full: bool) -> Callable:
        capture = self._capture

        def rankprobe_pre(module: torch.nn.Module, args: tuple, kwargs: Optional[dict]) -> Optional[tuple]:
            stack = self._stack()
            if not capture.active:
                stack.append((module, None, None))
                return None
            call = backward = changed = None
            capture.enter_quiet()  # what we ask of tensors is no call of the user's
            try:
                call = capture.begin_module(name, args, kwargs or None)
                if call is not None:
                    if self.parameters_grad:
                        self._watch_parameters(name, module)
                    if full and self.backward and torch.is_grad_enabled():
                        backward = _Backward(capture, call, module)
                        changed = backward.inputs(args)
            except Exception as error:  # noqa: BLE001 - the model must not notice
                capture.report_fault(f"{name} before its forward: {error!r}")
                backward = changed = None
            finally:
                capture.leave_quiet()
            stack.append((module, call, backward))
            return None if changed is None else (changed, kwargs)

        return rankprobe_pre

    def _post(self) -> Callable:
        capture = self._capture

        def rankprobe_post(module: torch.nn.Module, args: tuple, kwargs: Optional[dict], output: Any) -> Any:
            stack = self._stack()
            while stack and stack[-1][0] is not module:
                # Left by an exception that a forward in between has caught.
                _, call, _ = stack.pop()
                if call is not None:
                    capture.abandon_module(call)
            if not stack:
                return None
            _, call, backward = stack.pop()
            if call is None:
                return None
            error = sys.exc_info()[0] if output is None else None
            if error is not None:
                (capture.stop_module if recomputation_stopped(error) else capture.abandon_module)(call)
                return None
            capture.enter_quiet()
            try:
                capture.end_module(call, output, _parameters(module) if call.kept else {})
                if backward is None:
                    return None
                output = backward.outputs(output)
                if backward.in_place:
                    self._tell_in_place(call.name.rpartition(".forward.")[0])
                return output
            except Exception as error:  # noqa: BLE001 - the model must not notice
                capture.report_fault(f"{call.name} after its forward: {error!r}")
                return None
            finally:
                capture.leave_quiet()

        return rankprobe_post

    def _tell_in_place(self, name: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._warn(f"{name} changes its input in place: the gradients of its inputs are not recorded, nor is the "
                       "backward of the module that made them")

    def _watch_parameters(self, module_name: str, module: torch.nn.Module) -> None:
        watched = self._parameters.setdefault(id(module), {})
        for name, parameter in module._parameters.items():
            known = watched.get(name)
            if known is not None and known[0] is parameter:
                continue
            # torch.func puts computed tensors in place of parameters.
            if parameter is None or not parameter.requires_grad or not parameter.is_leaf:
                continue
            if _HAS_POST_ACCUMULATE:
                if known is not None:
                    known[1].remove()
                handle = parameter.register_post_accumulate_grad_hook(
                    self._on_gradient(module_name, name, parameter))
                watched[name] = (parameter, handle)
                self._handles.append(handle)
                continue
            with torch.enable_grad():
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            if known is None or known[0] is not node:
                # The graph holds accumulators weakly: this keeps it.
                watched[name] = (node, node.register_hook(self._on_gradient(module_name, name, parameter)))

    def _on_gradient(self, module_name: str, name: str, parameter: torch.Tensor) -> Callable:
        capture = self._capture

        def record() -> None:
            gradient = getattr(parameter, "main_grad", None)
            if gradient is None:
                gradient = parameter.grad
            if gradient is not None:
                capture.parameter_gradient(module_name, name, gradient)

        def rankprobe_gradient(*_: Any) -> None:
            if capture.enabled and self.parameters_grad:
                _guarded(capture, "parameter gradient", record)

        return rankprobe_gradient


def _first(pair: Optional[tuple]) -> Optional[tuple]:
    return None if pair is None else pair[0]



__all__ = ["ModuleHooks", "named_targets"]
