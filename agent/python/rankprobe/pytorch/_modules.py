# SPDX-License-Identifier: Apache-2.0
"""Hooks on the modules of a model: forward, backward, parameter gradients."""

from __future__ import annotations

import array
import contextlib
import functools
import sys
import weakref
from typing import Any, Callable, Iterator, NamedTuple, Optional

import torch

from rankprobe import _native
from rankprobe.pytorch import _graph_calls, _hidden_hooks, _walk
from rankprobe.pytorch._hidden_hooks import MODULE_KEY, HookHandle, marked
from rankprobe.pytorch._process import report_fault
from rankprobe.pytorch._recompute import stopped as recomputation_stopped

_MAX_DEPTH = 350
_MAX_VALUES = 1 << 20
_HAS_ALWAYS_CALL = hasattr(torch.nn.Module(), "_forward_hooks_always_called")
# As PyTorch has it, whatever a program or a class of parameters puts in its place.
_REGISTER: Any = getattr(torch.Tensor, "register_post_accumulate_grad_hook", None)
_HAS_POST_ACCUMULATE = _REGISTER is not None


def _is_skipped(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"


def is_compiled(module: torch.nn.Module) -> bool:
    """What torch.compile(module) gives: a module around the module, `_orig_mod`."""
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules


def _has_no_hook(module: torch.nn.Module) -> bool:
    return _is_skipped(module) or is_compiled(module)


def uncompiled_path(path: str) -> str:
    """As if nothing were compiled."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod") if "_orig_mod" in path else path


def _uncompiled(module: Any) -> Any:
    while is_compiled(module):
        module = module._orig_mod
    return module


def _is_bare(module: torch.nn.Module) -> bool:
    """A layer without modules of its own."""
    return all(child is None for child in module._modules.values())


def named_targets(model: Any, bare_roots: bool = False) -> Iterator[tuple[str, torch.nn.Module]]:
    """(path with the model's index, module) of everything below the root(s). bare_roots: of a model that is one layer
    that layer too, which has no path but its index."""
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    for index, root in enumerate(models):
        prefix = f"{index}." if isinstance(model, (list, tuple)) else ""
        root = _uncompiled(root)
        if bare_roots and _is_bare(root):
            yield prefix.rstrip("."), root
        for path, module in _walk.named_modules(root):
            if module is not root and not _is_skipped(module) and not is_compiled(module):
                yield prefix + uncompiled_path(path), module


def _opened(value: Any, inside: tuple[Any, ...]) -> Optional[tuple[Any, ...]]:
    """The containers around the items of `value`; None: it is no container, one
    that holds itself, or too deep."""
    if not issubclass(type(value), (list, tuple, dict)) or len(inside) >= _MAX_DEPTH or any(value is c for c in inside):
        return None
    return (*inside, value)


def _items(value: Any) -> Any:
    """Of a container, without a method that its class may have overridden."""
    for kind, items in ((dict, dict.values), (list, list.__iter__), (tuple, tuple.__iter__)):
        if issubclass(type(value), kind):
            return items(value)
    return ()


def _differentiable(value: Any, out: list[torch.Tensor], inside: tuple[Any, ...] = (),
                    left: Optional[list[int]] = None) -> list[torch.Tensor]:
    """The tensors of nested containers that require a gradient, in order. By type: isinstance() asks an object of the program."""
    if issubclass(type(value), torch.Tensor):
        if value.requires_grad:
            out.append(value)
        return out
    around = _opened(value, inside)
    if around is not None:
        left = [_MAX_VALUES] if left is None else left
        for item in _items(value):
            left[0] -= 1
            if left[0] < 0:
                raise ValueError(f"gradients of more than {_MAX_VALUES} values are not recorded")
            _differentiable(item, out, around, left)
    return out


def _wanting(value: Any) -> tuple[Any, ...]:
    """The tensors of a module's arguments or output that require a gradient."""
    # One tensor is by far the most frequent.
    one = value[0] if type(value) is tuple and len(value) == 1 else value
    if issubclass(type(one), torch.Tensor):
        return (one,) if one.requires_grad else ()
    return tuple(_differentiable(value, []))


def _text(name: str) -> str:
    """As UTF-8 can hold it; a lone surrogate by its number."""
    return name.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def _quiet(capture: Any) -> Iterator[None]:
    capture.enter_quiet()
    try:
        yield
    finally:
        capture.leave_quiet()


def _guarded(capture: Any, where: str, function: Callable[..., Any], *args: Any) -> Any:
    """function(*args); a fault of ours becomes None and a report."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - the model must not notice
        report_fault(capture, where, error)
        return None


class _Hooked(NamedTuple):
    """The hooks of one module. They are kept when they are taken off: put back the
    same, they are what a graph that was compiled with them asks for."""

    module: weakref.ref[Any]
    name: str
    # Its backward is recorded.
    full: bool
    # Of the forward pre-hook and the forward hook.
    handles: list[HookHandle]
    # What it is called in compiled code: a number, and the same as a tensor once the compiler is there, which the hooks hold.
    number: int
    tensor: list[torch.Tensor]


class _Watched(NamedTuple):
    """A parameter with a hook of ours. The hook belongs to it and goes with it. No weak reference is made to a parameter:
    torch.utils.swap_tensors, which Module.to() uses for DTensors, refuses what has one."""

    parameter: int
    hook: weakref.ref[Any]
    handle: Any

    def is_on(self, parameter: Any) -> bool:
        return id(parameter) == self.parameter and self.hook() is not None


class ModuleHooks:
    """Hooks on the modules of a model, and what takes them off again.

    Faults of ours are counted by the Capture and never reach the model.
    """

    def __init__(self, capture: Any, warn: Callable[[str], None]) -> None:
        self._capture = capture
        self._warn = warn
        self._handles: list[Any] = []
        # What has begun and not ended, by thread.
        self._forwards = _native.ModuleForwards(capture, lambda value: _wanting(value), _walk.own_parameters)
        # By id; another module may have that of one that is gone.
        self._hooked: dict[int, weakref.ref[Any]] = {}
        # Of _hidden_hooks.
        self._holds = False
        # A model that is one layer is recorded, which the layout of msprobe leaves out as it does each model: without it
        # nothing of such a model would be recorded by module.
        self.bare_roots = False
        # Names of modules that were warned about.
        self._told: set[str] = set()
        # By module and name: a _Watched, or the parameter's accumulator and a handle. Nothing else holds them: models come and go.
        self._watched: _walk.ByModule[dict[str, Any]] = _walk.ByModule()
        # By module, and by number.
        self._known: _walk.ByModule[_Hooked] = _walk.ByModule()
        self._numbers: dict[int, _Hooked] = {}
        self._last_number = 0
        # Something hooked may have no number as a tensor.
        self._unnumbered = True
        # A root model's forward begins / has ended.
        self.on_root_begin: Callable[[], None] = lambda: None
        self.on_root_end: Callable[[], None] = lambda: None
        # The first module of a step begins its forward; called once.
        self.on_first: Optional[Callable[[], None]] = None

    def want(self, backward: bool, parameters_grad: bool) -> None:
        """What the plan in force has of gradients."""
        self._forwards.backward, self._forwards.parameters_grad = backward, parameters_grad

    def is_hooked(self, module: torch.nn.Module) -> bool:
        known = self._hooked.get(id(module))
        return known is not None and known() is module

    def hook_model(self, model: Any) -> None:
        """Hooks everything below the root(s), and the root that is bare where that is wanted; a second time is a no-op."""
        if not self._are_hooked(model):
            for path, module in named_targets(model, self.bare_roots):
                self.hook_module(path, module)
        if not _HAS_ALWAYS_CALL:
            self.hook_roots(model)  # what an exception left open is closed there

    def _are_hooked(self, model: Any) -> bool:
        """Whether nothing is to be hooked, found without the names, which take most of the time of a step's begin."""
        roots = [_uncompiled(root) for root in (model if isinstance(model, (list, tuple)) else [model])]
        if self.bare_roots and not all(self.is_hooked(root) for root in roots if _is_bare(root)):
            return False
        return _native.all_hooked(roots, self._hooked, _has_no_hook)

    def hook_roots(self, model: Any) -> None:
        """Watches forwards of the first root (token_range), records nothing."""
        for root in list(model)[:1] if isinstance(model, (list, tuple)) else [model]:
            if not self.is_hooked(root):
                self._hooked[id(root)] = weakref.ref(root)
                self._hold()
                self._handles += [HookHandle("_forward_pre_hooks", marked(lambda *_: self.on_root_begin())).put(root),
                                  HookHandle("_forward_hooks", marked(lambda *_: self.on_root_end())).put(root)]

    def hook_module(self, path: str, module: torch.nn.Module) -> list[Any]:
        """Hooks one module under the name Module.{path}.{Class}; Module.{Class} without a path."""
        if self.is_hooked(module):
            return []
        if isinstance(module, torch.jit.ScriptModule):
            self._warn(f"{path} is a ScriptModule: not recorded")
            return []
        self._hooked[id(module)] = weakref.ref(module)
        self._hold()
        name = _text(".".join(part for part in ("Module", path, type(module).__name__) if part))
        full = True
        if module._backward_hooks and getattr(module, "_is_full_backward_hook", None) is False:
            self._warn(f"{path} has a non-full backward hook: only its forward is recorded")
            full = False
        known = self._known.get(module)
        if known is None or known.name != name or known.full != full:
            if known is not None:
                del self._numbers[known.number]
            self._last_number += 1
            tensor: list[torch.Tensor] = []
            known = self._known.set(module, _Hooked(
                weakref.ref(module), name, full, self._make(name, full, module, tensor), self._last_number, tensor))
            self._numbers[self._last_number] = known
        pre, post = known.handles
        pre.put(module)
        # First of all: what comes after may replace the output (parallelize_module makes a local tensor of a DTensor)
        # or free the parameters (fully_shard). A forward pre-hook is the last for the same reason.
        post.put(module, first=True)
        self._unnumbered = True
        self._handles += known.handles
        return known.handles

    def _make(self, name: str, full: bool, module: torch.nn.Module, number: list[torch.Tensor]) -> list[HookHandle]:
        """Its hooks. torch.compile's guards are on the keys of hooks: one graph for modules with one code asks for one key."""
        pre, post = self._pre(name, full, module, number), self._post(name, module, number)
        return [HookHandle("_forward_pre_hooks", pre, kwargs=True, key=MODULE_KEY),
                HookHandle("_forward_hooks", post, kwargs=True, always_call=True, key=MODULE_KEY)]

    def remove(self, handles: Optional[list[Any]] = None) -> None:
        for handle in self._handles if handles is None else handles:
            handle.remove()
        if handles is None:
            self._handles.clear()
            self._hooked.clear()
            self._watched.clear()
            self._forwards.forget_watched()
            if self._holds:
                self._holds = False
                _hidden_hooks.release()

    def _hold(self) -> None:
        if not self._holds:
            self._holds = True
            _hidden_hooks.hold()

    def forget(self, module: torch.nn.Module) -> None:
        self._hooked.pop(id(module), None)

    def begin_step(self) -> None:
        self._forwards.clear()

    def _pre(self, name: str, full: bool, hooked: torch.nn.Module, number: list[torch.Tensor]) -> Callable[..., Any]:
        capture, begin, own = self._capture, self._forwards.module_begin(name, full), weakref.ref(hooked)

        def rankprobe_pre(_: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Optional[dict[str, Any]] = None) -> None:
            if _graph_calls.LOADED and _graph_calls.in_compiler():
                return _graph_calls.begin_in_compiler(number, args, kwargs)
            if own() is not module:  # somebody has put the hook on another one (torch.ao.quantization), or has copied it
                return
            if self.on_first is not None and capture.active:
                self._begin_first()
            try:
                if begin(module, args, kwargs):
                    self._watch_parameters(name, module, begin)
            except Exception as error:  # noqa: BLE001 - the model must not notice
                report_fault(capture, f"{name} before its forward", error)

        return marked(rankprobe_pre)

    def _begin_first(self) -> None:
        first, self.on_first = self.on_first, None
        with _quiet(self._capture):  # what we ask of tensors is no call of the user's
            _guarded(self._capture, "the first module", first)  # type: ignore[arg-type]

    def _post(self, name: str, hooked: torch.nn.Module, number: list[torch.Tensor]) -> Callable[..., Any]:
        capture, forwards, own = self._capture, self._forwards, weakref.ref(hooked)
        end = forwards.module_end()

        def rankprobe_post(_: Any, module: torch.nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            output = rest[-1]  # behind the keyword arguments, where somebody has not put the hook on without them
            if _graph_calls.LOADED and _graph_calls.in_compiler():
                return _graph_calls.end_in_compiler(number, output)
            if own() is not module:
                return
            kind, raised, _ = sys.exc_info() if output is None else (None, None, None)
            if kind is not None and raised is not None:
                forwards.abandon(module, recomputation_stopped(kind))
                _hidden_hooks.hide_inner_frame(module, raised)
                return
            try:
                if end(module, output):
                    self._tell_in_place(name)
            except Exception as error:  # noqa: BLE001 - the model must not notice
                report_fault(capture, f"{name} after its forward", error)

        return marked(rankprobe_post)

    # --- compiled code, called by GraphCalls

    def give_numbers(self) -> None:
        """What is hooked can be recorded from within a graph."""
        if not self._unnumbered:
            return
        self._unnumbered = False
        for known in self._known.values():
            if not known.tensor:
                # No operator is called, which a profiler of the program would count.
                known.tensor.append(torch.frombuffer(array.array("q", [known.number]), dtype=torch.int64))

    def numbered(self, number: int) -> Optional[_Hooked]:
        known = self._numbers.get(number)
        return known if known is not None and known.module() is not None else None

    def begin_compiled(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], frames: list[str]) -> Any:
        """The call, if its gradients are wanted."""
        known = self.numbered(number)
        if known is None:
            return None
        module, call, capture = known.module(), None, self._capture
        try:
            if not capture.active:
                return None
            if self.on_first is not None:
                first, self.on_first = self.on_first, None
                first()
            call = capture.begin_compiled_module(known.name, args, kwargs or None, frames)
            if call is not None and module is not None and self._forwards.parameters_grad:
                self._watch_parameters(known.name, module)
            return call if known.full and self._forwards.backward else None
        finally:
            self._forwards.push(module, call)

    def end_compiled(self, number: int, output: Any) -> None:
        known = self.numbered(number)
        module = None if known is None else known.module()
        if module is not None:
            self._forwards.end(module, output)

    def traced_gradients(self, put: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return self._capture.module_gradients(_native.traced_module_call(put), _wanting(args))

    def traced_outputs(self, gradients: Any, output: Any) -> None:
        gradients.outputs(_wanting(output))

    def _tell_in_place(self, name: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._warn(f"{name} changes a view in place: the gradient of that input is not recorded, nor is the "
                       "backward of the module that made it")

    def _watch_parameters(self, module_name: str, module: torch.nn.Module, begin: Any = None) -> None:
        """begin: of the module, which is told."""
        watched = self._watched.get(module)
        if watched is None:
            watched = self._watched.set(module, {})
        missing = []
        for name, parameter in module._parameters.items():
            known = watched.get(name)
            if parameter is not None and (known is None or not _HAS_POST_ACCUMULATE or not known.is_on(parameter)):
                missing.append((name, parameter, known))
        if missing:
            with _quiet(self._capture):  # what we ask of tensors is no call of the user's
                self._watch(module_name, missing, watched)
        if _HAS_POST_ACCUMULATE and begin is not None:
            begin.set_known(module, {name: watched[name].hook for name, parameter in module._parameters.items()
                                     if name in watched and watched[name].is_on(parameter)})

    def _watch(self, module_name: str, missing: list[Any], watched: dict[str, Any]) -> None:
        for name, parameter, known in missing:
            # torch.func puts computed tensors in place of parameters.
            if not parameter.requires_grad or not parameter.is_leaf:
                continue
            if _HAS_POST_ACCUMULATE:
                if known is not None:
                    known.handle.remove()
                hook = self._on_gradient(module_name, name, parameter)
                handle = _REGISTER(parameter, hook)
                watched[name] = _Watched(id(parameter), weakref.ref(hook), handle)
                self._handles.append(handle)
                continue
            with torch.enable_grad():
                made = parameter.expand_as(parameter).grad_fn
            if made is None:  # in inference mode, in functorch: no gradient comes
                continue
            node = made.next_functions[0][0]
            if known is None or known[0] is not node:
                # The graph holds accumulators weakly: this keeps it.
                handle = node.register_hook(self._on_gradient(module_name, name, parameter))
                watched[name] = (node, handle)
                self._handles.append(handle)

    def _on_gradient(self, module_name: str, name: str, parameter: torch.Tensor) -> Any:
        return self._forwards.parameter_hook(module_name, name, parameter, not _HAS_POST_ACCUMULATE,
                                             functools.partial(report_fault, self._capture, "parameter gradient"))


__all__ = ["ModuleHooks", "is_compiled", "named_targets", "uncompiled_path"]
