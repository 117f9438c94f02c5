# SPDX-License-Identifier: Apache-2.0
"""Hooks on modules that pickles, torch.save(), copies and scripts of a module do not contain.

A pickle of a hook would fail, or need rankprobe where it is read; a copy with hooks would record as the module that was
copied; TorchScript would compile them. While hooks are held (hold()), `torch.nn.Module.__reduce_ex__` omits them and
TorchScript compiles without them. Used on the threads that call modules.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import itertools
import sys
import types
import weakref
from typing import Any, Callable, Iterator, Optional

import torch

from rankprobe.pytorch import _walk
from rankprobe.pytorch._redirect import Around

_MARK = "_rankprobe_hook"
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# Tables of PyTorch 2.0 and later with flags of a hook, by its key.
_ABOUT = {"_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
          "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called")}


# Keys are negative, because PyTorch counts its own from 0. A table of hooks from a pickle may have any of PyTorch's keys, and
# a hook with the next key could replace one of them.
_ANY = torch.nn.Module()
_NEXT_KEY = itertools.count(-2, -1)
MODULE_KEY = -1


class _Owner:
    """Object whose bound methods the hooks are. If a class saves or copies its tables of hooks itself, each hook is pickled as the
    method `__exit__` of a null context, which does nothing and does not need rankprobe."""

    def __reduce__(self) -> Any:
        return contextlib.nullcontext, ()


_OWNER = _Owner()


def marked(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `hook` with a mark by which it is recognized; it is called with an additional first argument."""
    setattr(hook, _MARK, True)
    hook.__name__ = "__exit__"
    return types.MethodType(hook, _OWNER)


class HookHandle:
    """A hook on a module between put() and remove(), which can be repeated. It does not use an id of PyTorch's handles, which a
    program could notice, and calls no method that a class may have overridden."""

    def __init__(self, table: str, hook: Callable[..., Any], kwargs: bool = False, always_call: bool = False, key: int = 0) -> None:
        """table: one of _HOOKS. kwargs, always_call: as in PyTorch's functions, if it has them. key: MODULE_KEY, or 0 for a new key."""
        about = (kwargs and f"{table}_with_kwargs", always_call and f"{table}_always_called")
        self._names = [table, *(name for name in about if name and hasattr(_ANY, name))]
        self.hook, self._key = hook, key or next(_NEXT_KEY)
        self._tables: list[Any] = []

    def put(self, module: torch.nn.Module, first: bool = False) -> "HookHandle":
        """Installs the hook. first: before the existing hooks of the module."""
        hooks, *about = (getattr(module, name) for name in self._names)
        hooks[self._key] = self.hook
        if first:
            hooks.move_to_end(self._key, last=False)
        for table in about:
            table[self._key] = True
        self._tables = [weakref.ref(table) for table in (hooks, *about)]
        return self

    def remove(self) -> None:
        for reference in self._tables:
            table = reference()
            if table is not None:
                table.pop(self._key, None)
        self._tables = []


def _position_of_forward() -> Optional[tuple[int, int]]:
    """Returns instruction offset and line at which Module._call_impl calls forward() of a module without hooks; None if not found."""
    code = torch.nn.Module._call_impl.__code__
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        if instruction.starts_line:
            line = instruction.starts_line if type(instruction.starts_line) is int else instruction.line_number  # type: ignore[attr-defined]
        if instruction.opname == "CALL_FUNCTION_EX":
            return instruction.offset, line
    return None


_CALL_IMPL = torch.nn.Module._call_impl.__code__
_FORWARD = _position_of_forward()
_GLOBAL_HOOKS = [getattr(torch.nn.modules.module, name, {}) for name in (
    "_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks")]


def hide_inner_frame(module: torch.nn.Module, error: BaseException) -> None:
    """Removes the additional frame in which PyTorch calls forward() of a module with hooks from the traceback of an exception, if all
    hooks are rankprobe's. Call it from a forward hook that is always called."""
    here = error.__traceback__
    below = here.tb_next if here is not None else None
    if (_FORWARD is None or here is None or below is None or here.tb_frame.f_code is not _CALL_IMPL
            or below.tb_frame.f_code.co_name != "inner" or any(_GLOBAL_HOOKS)):
        return
    tables = [getattr(module, name, None) for name in ("_backward_hooks", "_backward_pre_hooks", *_HOOKS)]
    if all(not hooks or len(_keys(hooks)) == len(hooks) for hooks in tables):
        error.__traceback__ = types.TracebackType(below.tb_next, here.tb_frame, *_FORWARD)


def _keys(hooks: Any) -> list[Any]:
    return [key for key, hook in hooks.items() if getattr(hook, _MARK, False)] if hooks else []


def _without(state: Any, depth: int = 3) -> Any:
    """Returns the state of a module without rankprobe's hooks; `state` itself if there are none. A class with slots, __getstate__()
    or __reduce__() may have the attributes in a tuple."""
    if type(state) in (tuple, list) and depth > 0:
        inner = [_without(value, depth - 1) for value in state]
        return state if all(new is old for new, old in zip(inner, state)) else type(state)(inner)
    if not isinstance(state, dict) or "_forward_hooks" not in state:
        return state
    out = state
    for name in _HOOKS:
        ours = _keys(state.get(name))
        if not ours:
            continue
        if out is state:
            out = dict(state)
        for table in (name, *_ABOUT[name]):
            if table in out:
                out[table] = out[table].copy()
                for key in ours:
                    out[table].pop(key, None)
    return out


def _reduce_ex(module: torch.nn.Module, protocol: Any) -> Any:
    reduced = super(torch.nn.Module, module).__reduce_ex__(protocol)
    if not isinstance(reduced, tuple) or len(reduced) < 2 or sys._getframe(1).f_code is copy.copy.__code__:
        return reduced  # A shallow copy shares the tables, so that a later hook of the program is called for both modules.
    function, arguments, *rest = reduced
    # Some classes (fx.GraphModule) pass their state as an argument.
    return (function, _without(arguments), *(_without(value) for value in rest[:1]), *rest[1:])


@contextlib.contextmanager
def set_aside(root: torch.nn.Module) -> Iterator[None]:
    """Context manager without rankprobe's hooks on `root` and all modules below it."""
    taken: list[tuple[Any, Any, Any, bool, list[tuple[Any, Any]]]] = []
    for module in _walk.modules(root):
        for name in _HOOKS:
            hooks: Any = getattr(module, name, None)
            for key in _keys(hooks):
                about = [(table, key in table and table.pop(key)) for table in (module.__dict__.get(n) for n in _ABOUT[name])
                         if table is not None]
                taken.append((hooks, key, hooks.pop(key), name == "_forward_hooks", about))
    try:
        yield
    finally:
        for hooks, key, hook, first, about in reversed(taken):
            hooks[key] = hook
            if first:  # Restores the position of the hook.
                hooks.move_to_end(key, last=False)
            for table, value in about:
                if value:
                    table[key] = value


def _modules_without_hooks(layer: torch.nn.Module) -> Iterator[torch.nn.Module]:
    unhide(layer)
    with set_aside(layer):
        yield from type(layer).modules(layer)


def hides(module: torch.nn.Module) -> bool:
    """Returns whether forward() of the module asks `self.modules()` for hooks, and uses other operators, whose last bits differ, if one
    has any."""
    return issubclass(type(module), torch.nn.TransformerEncoderLayer)


def hide(layer: torch.nn.Module) -> None:
    """Call before forward() of a layer that hides(): while it asks, there are only the program's hooks."""
    layer.__dict__.setdefault("modules", functools.partial(_modules_without_hooks, layer))


def unhide(layer: torch.nn.Module) -> None:
    """Call after forward(), which may not have asked."""
    if getattr(layer.__dict__.get("modules"), "func", None) is _modules_without_hooks:
        del layer.__dict__["modules"]


def _with_hooks_aside(make: Callable[..., Any]) -> Callable[..., Any]:
    """Returns make_graphed_callables(), which refuses modules with hooks and allows hooks afterwards."""
    def rankprobe_make_graphed(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get("callables")
        with contextlib.ExitStack() as stack:
            for one in given if isinstance(given, (tuple, list)) else [given]:
                if isinstance(one, torch.nn.Module):
                    stack.enter_context(set_aside(one))
            return make(*args, **kwargs)

    return rankprobe_make_graphed


class _Held:
    """Patches of PyTorch that are installed while hooks are held."""

    def __init__(self) -> None:
        self._holders = 0
        self._undo: list[Callable[[], None]] = []

    def hold(self) -> None:
        self._holders += 1
        if self._holders > 1:
            return
        if "__reduce_ex__" not in torch.nn.Module.__dict__:
            self._replace(torch.nn.Module, "__reduce_ex__", _reduce_ex)
        # Patches a function below torch.jit.script, because other code replaces script() too.
        make = getattr(torch.jit._recursive, "create_script_module", None)
        if make is not None:

            @functools.wraps(make)
            def rankprobe_make(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
                with set_aside(nn_module) if isinstance(nn_module, torch.nn.Module) else contextlib.nullcontext():
                    return make(nn_module, *args, **kwargs)

            self._replace(torch.jit._recursive, "create_script_module", rankprobe_make)
        for device in (torch.cuda, getattr(torch, "xpu", None)):
            graphed = getattr(device, "make_graphed_callables", None)
            if graphed is not None:
                self._undo.append(Around(graphed, _with_hooks_aside).remove)

    def _replace(self, host: Any, name: str, value: Any) -> None:
        own = host.__dict__.get(name)
        setattr(host, name, value)

        def undo() -> None:
            if host.__dict__.get(name) is not value:
                return  # Other code has wrapped it; without hooks it only calls the original.
            if own is None:
                delattr(host, name)
            else:
                setattr(host, name, own)

        self._undo.append(undo)

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            for undo in self._undo:
                undo()
            self._undo.clear()


_held = _Held()
hold, release = _held.hold, _held.release
