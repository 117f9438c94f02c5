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
# PyTorch's own method, even if a program or a parameter class overrides it.
_REGISTER: Any = getattr(torch.Tensor, "register_post_accumulate_grad_hook", None)
_HAS_POST_ACCUMULATE = _REGISTER is not None


def _is_skipped(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"


def is_compiled(module: torch.nn.Module) -> bool:
    """Returns whether `module` is the result of torch.compile(module), which wraps the module in `_orig_mod`."""
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules


def _has_no_hook(module: torch.nn.Module) -> bool:
    return _is_skipped(module) or is_compiled(module)


def uncompiled_path(path: str) -> str:
    """Returns the path without the components of compiled wrappers."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod") if "_orig_mod" in path else path


def _uncompiled(module: Any) -> Any:
    while is_compiled(module):
        module = module._orig_mod
    return module


def _is_bare(module: torch.nn.Module) -> bool:
    """Returns whether `module` is a layer without submodules."""
    return all(child is None for child in module._modules.values())


def named_targets(model: Any, bare_roots: bool = False) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields (path with the model's index, module) of all modules below the root(s). bare_roots: includes a root that is a single
    layer, whose path is only the index."""
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
    """Returns the containers around the items of `value`; None if it is not a
    container, contains itself or is nested too deep."""
    if not issubclass(type(value), (list, tuple, dict)) or len(inside) >= _MAX_DEPTH or any(value is c for c in inside):
        return None
    return (*inside, value)


def _items(value: Any) -> Any:
    """Returns the items of a container without calling a method that its class may have overridden."""
    for kind, items in ((dict, dict.values), (list, list.__iter__), (tuple, tuple.__iter__)):
        if issubclass(type(value), kind):
            return items(value)
    return ()


def _differentiable(value: Any, out: list[torch.Tensor], inside: tuple[Any, ...] = (),
                    left: Optional[list[int]] = None) -> list[torch.Tensor]:
    """Returns the tensors in nested containers that require a gradient, in order. Uses issubclass(), since isinstance() may run code
    of the program."""
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
    """Returns the tensors of a module's arguments or output that require a gradient."""
    # A fast path for a single tensor, the most frequent case.
    one = value[0] if type(value) is tuple and len(value) == 1 else value
    if issubclass(type(one), torch.Tensor):
        return (one,) if one.requires_grad else ()
    return tuple(_differentiable(value, []))


def _text(name: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode, by escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def _quiet(capture: Any) -> Iterator[None]:
    capture.enter_quiet()
    try:
        yield
    finally:
        capture.leave_quiet()


def _guarded(capture: Any, where: str, function: Callable[..., Any], *args: Any) -> Any:
    """Returns function(*args); reports a fault of rankprobe and returns None."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - the model must not notice
        report_fault(capture, where, error)
        return None


class _Hooked(NamedTuple):
    """The hooks of one module. They are kept after removal and installed again, because
    guards of graphs that were compiled with them require the same objects."""

    module: weakref.ref[Any]
    name: str
    # Whether its backward is recorded.
    full: bool
    # Handles of the forward pre-hook and the forward hook.
    handles: list[HookHandle]
    # Id in compiled code: a number, and the same number as a tensor when the compiler is loaded; the hooks hold the list.
    number: int
    tensor: list[torch.Tensor]


class _Watched(NamedTuple):
    """A parameter with a hook, which the parameter owns. There is no weak reference to the parameter, because
    torch.utils.swap_tensors(), which Module.to() uses for DTensors, refuses tensors with weak references."""

    parameter: int
    hook: weakref.ref[Any]
    handle: Any

    def is_on(self, parameter: Any) -> bool:
        return id(parameter) == self.parameter and self.hook() is not None


def _nothing(*_: Any) -> None: ...


def _hiding(hook: Callable[..., Any], then: Callable[[torch.nn.Module], None]) -> Callable[..., Any]:
    """Returns a hook that calls `then` with the module after `hook`."""
    def rankprobe_hiding(_: Any, module: torch.nn.Module, *rest: Any) -> None:
        hook(module, *rest)
        if not (_graph_calls.LOADED and _graph_calls.in_compiler()):
            then(module)

    return marked(rankprobe_hiding)


class ModuleHooks:
    """Installs and removes hooks on the modules of a model.

    Faults of rankprobe are counted by the Capture and never reach the model.
    """

    def __init__(self, capture: Any, warn: Callable[[str], None]) -> None:
        self._capture = capture
        self._warn = warn
        self._handles: list[Any] = []
        # Forwards in progress, by thread.
        self._forwards = _native.ModuleForwards(capture, lambda value: _wanting(value), _walk.own_parameters)
        # Hooked modules by id; the reference is checked, since an id may be reused after its module was deleted.
        self._hooked: dict[int, weakref.ref[Any]] = {}
        # Whether this object has called _hidden_hooks.hold().
        self._holds = False
        # Whether a model that is a single layer is recorded. msprobe's layout omits each model itself, so no part of such a
        # model would be recorded by module otherwise.
        self.bare_roots = False
        # Names of modules about which a warning was given.
        self._told: set[str] = set()
        # By module and name: a _Watched, or the parameter's accumulator and a handle. Does not keep the modules alive.
        self._watched: _walk.ByModule[dict[str, Any]] = _walk.ByModule()
        # Known modules, by module and by number.
        self._known: _walk.ByModule[_Hooked] = _walk.ByModule()
        self._numbers: dict[int, _Hooked] = {}
        self._last_number = 0
        # Whether a hooked module may lack its number as a tensor.
        self._unnumbered = True
        # Called when a root model's forward begins, and when it has ended.
        self.on_root_begin: Callable[[], None] = lambda: None
        self.on_root_end: Callable[[], None] = lambda: None
        # Called once when the first module of a step begins its forward.
        self.on_first: Optional[Callable[[], None]] = None

    def want(self, backward: bool, parameters_grad: bool) -> None:
        """Sets which gradients the plan in force records."""
        self._forwards.backward, self._forwards.parameters_grad = backward, parameters_grad

    def is_hooked(self, module: torch.nn.Module) -> bool:
        known = self._hooked.get(id(module))
        return known is not None and known() is module

    def hook_model(self, model: Any) -> None:
        """Hooks all modules below the root(s), and with bare_roots a root without submodules. Repeated calls have no effect."""
        if not self._are_hooked(model):
            for path, module in named_targets(model, self.bare_roots):
                self.hook_module(path, module)
            for root in model if isinstance(model, (list, tuple)) else [model]:
                if _hidden_hooks.hides(root) and not self.is_hooked(root):  # It asks for the hooks below it.
                    self._handles += [HookHandle(table, _hiding(_nothing, then), always_call=then is _hidden_hooks.unhide,
                                                 key=MODULE_KEY).put(root)
                                      for table, then in (("_forward_pre_hooks", _hidden_hooks.hide),
                                                          ("_forward_hooks", _hidden_hooks.unhide))]
        if not _HAS_ALWAYS_CALL:
            self.hook_roots(model)  # Forwards that an exception left open are closed there.

    def _are_hooked(self, model: Any) -> bool:
        """Whether nothing is to be hooked, found without the names, which take most of the time of a step's begin."""
        roots = [_uncompiled(root) for root in (model if isinstance(model, (list, tuple)) else [model])]
        if self.bare_roots and not all(self.is_hooked(root) for root in roots if _is_bare(root)):
            return False
        return _native.all_hooked(roots, self._hooked, _has_no_hook)

    def hook_roots(self, model: Any) -> None:
        """Watches forwards of the first root for token_range; records nothing."""
        for root in list(model)[:1] if isinstance(model, (list, tuple)) else [model]:
            if not self.is_hooked(root):
                self._hooked[id(root)] = weakref.ref(root)
                self._hold()
                self._handles += [HookHandle("_forward_pre_hooks", marked(lambda *_: self.on_root_begin())).put(root),
                                  HookHandle("_forward_hooks", marked(lambda *_: self.on_root_end())).put(root)]

    def hook_module(self, path: str, module: torch.nn.Module) -> list[Any]:
        """Hooks one module under the name Module.{path}.{Class}, or Module.{Class} without a path. Returns the handles."""
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
        # The forward hook is first, because later ones may replace the output (parallelize_module converts a DTensor to a
        # local tensor) or free the parameters (fully_shard). The forward pre-hook is last for the same reason.
        post.put(module, first=True)
        self._unnumbered = True
        self._handles += known.handles
        return known.handles

    def _make(self, name: str, full: bool, module: torch.nn.Module, number: list[torch.Tensor]) -> list[HookHandle]:
        """Makes the hooks of a module. All use one key, because guards of torch.compile check the keys, and modules with the same
        code should share a graph."""
        pre, post = self._pre(name, full, module, number), self._post(name, module, number)
        if _hidden_hooks.hides(module):
            pre, post = _hiding(pre, _hidden_hooks.hide), _hiding(post, _hidden_hooks.unhide)
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
            if own() is not module:  # The hook was moved to another module (torch.ao.quantization) or copied.
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
        with _quiet(self._capture):  # Calls of rankprobe on tensors must not be recorded.
            _guarded(self._capture, "the first module", first)  # type: ignore[arg-type]

    def _post(self, name: str, hooked: torch.nn.Module, number: list[torch.Tensor]) -> Callable[..., Any]:
        capture, forwards, own = self._capture, self._forwards, weakref.ref(hooked)
        end = forwards.module_end()

        def rankprobe_post(_: Any, module: torch.nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            output = rest[-1]  # After the keyword arguments, which are absent if other code has installed the hook without them.
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
        """Gives hooked modules their numbers as tensors, so that they can be recorded from within a graph."""
        if not self._unnumbered:
            return
        self._unnumbered = False
        for known in self._known.values():
            if not known.tensor:
                # frombuffer() calls no operator, which a profiler of the program would count.
                known.tensor.append(torch.frombuffer(array.array("q", [known.number]), dtype=torch.int64))

    def numbered(self, number: int) -> Optional[_Hooked]:
        known = self._numbers.get(number)
        return known if known is not None and known.module() is not None else None

    def begin_compiled(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], frames: list[str]) -> Any:
        """Records the beginning of a module call in compiled code. Returns the call if its gradients are recorded, else None."""
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
        """Hooks the parameters of a module that are not hooked. begin: the native begin function of the module, to which they are
        passed."""
        watched = self._watched.get(module)
        if watched is None:
            watched = self._watched.set(module, {})
        missing = []
        for name, parameter in module._parameters.items():
            known = watched.get(name)
            if parameter is not None and (known is None or not _HAS_POST_ACCUMULATE or not known.is_on(parameter)):
                missing.append((name, parameter, known))
        if missing:
            with _quiet(self._capture):  # Calls of rankprobe on tensors must not be recorded.
                self._watch(module_name, missing, watched)
        if _HAS_POST_ACCUMULATE and begin is not None:
            begin.set_known(module, {name: watched[name].hook for name, parameter in module._parameters.items()
                                     if name in watched and watched[name].is_on(parameter)})

    def _watch(self, module_name: str, missing: list[Any], watched: dict[str, Any]) -> None:
        for name, parameter, known in missing:
            # torch.func replaces parameters by computed tensors.
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
            if made is None:  # In inference mode and functorch there is no gradient.
                continue
            node = made.next_functions[0][0]
            if known is None or known[0] is not node:
                # Keeps the accumulator alive, to which the graph has only a weak reference.
                handle = node.register_hook(self._on_gradient(module_name, name, parameter))
                watched[name] = (node, handle)
                self._handles.append(handle)

    def _on_gradient(self, module_name: str, name: str, parameter: torch.Tensor) -> Any:
        return self._forwards.parameter_hook(module_name, name, parameter, not _HAS_POST_ACCUMULATE,
                                             functools.partial(report_fault, self._capture, "parameter gradient"))


__all__ = ["ModuleHooks", "is_compiled", "named_targets", "uncompiled_path"]
