# SPDX-License-Identifier: Apache-2.0
"""Hooks of ours on modules, which nothing that a program makes of a module has: pickles, torch.save, copies, scripts.

A pickle of a hook would fail, or need rankprobe where it is read; a copy with hooks would record as the module that it
is a copy of; TorchScript would compile them. While somebody holds hooks, `torch.nn.Module.__reduce_ex__` leaves them
out and TorchScript compiles without them. Threads: as the hooks, those that call modules.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator

import torch

_MARK = "_rankprobe_hook"
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# Of PyTorch 2.0 and later: what is known of a hook, by its key.
_ABOUT = {"_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
          "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called")}
# Other attributes of ours on modules.
ATTRIBUTES: set[str] = set()


def marked(hook: Callable[..., Any]) -> Callable[..., Any]:
    """`hook`, known as ours."""
    setattr(hook, _MARK, True)
    return hook


def _keys(hooks: Any) -> list[Any]:
    return [key for key, hook in hooks.items() if getattr(hook, _MARK, False)] if hooks else []


def _without(state: Any) -> Any:
    """`state` of a module without hooks of ours; itself where there are none."""
    if not isinstance(state, dict) or "_forward_hooks" not in state:
        return state
    out = state
    for name in _HOOKS:
        ours = _keys(state.get(name))
        if not ours:
            continue
        if out is state:
            out = {key: value for key, value in state.items() if key not in ATTRIBUTES}
        for table in (name, *_ABOUT[name]):
            if table in out:
                out[table] = out[table].copy()
                for key in ours:
                    out[table].pop(key, None)
    return out


def _reduce_ex(module: torch.nn.Module, protocol: Any) -> Any:
    reduced = object.__reduce_ex__(module, protocol)
    if not isinstance(reduced, tuple) or len(reduced) < 2:
        return reduced
    function, arguments, *rest = reduced
    # Some classes (fx.GraphModule) give their state to a function.
    return (function, tuple(_without(value) for value in arguments), *(_without(value) for value in rest[:1]), *rest[1:])


@contextlib.contextmanager
def set_aside(root: torch.nn.Module) -> Iterator[None]:
    """Without our hooks on `root` and all below it."""
    taken: list[tuple[Any, Any, Any, bool, list[tuple[Any, Any]]]] = []
    for module in root.modules():
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
            if first:  # where ours were
                hooks.move_to_end(key, last=False)
            for table, value in about:
                if value:
                    table[key] = value


class _Held:
    """What is patched while anybody holds hooks."""

    def __init__(self) -> None:
        self._holders = 0
        self._undo: list[Callable[[], None]] = []

    def hold(self) -> None:
        self._holders += 1
        if self._holders > 1:
            return
        if "__reduce_ex__" not in torch.nn.Module.__dict__:
            self._replace(torch.nn.Module, "__reduce_ex__", _reduce_ex)
        # Below torch.jit.script, which is replaced by others, too.
        make = getattr(torch.jit._recursive, "create_script_module", None)
        if make is not None:

            @functools.wraps(make)
            def rankprobe_make(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
                with set_aside(nn_module) if isinstance(nn_module, torch.nn.Module) else contextlib.nullcontext():
                    return make(nn_module, *args, **kwargs)

            self._replace(torch.jit._recursive, "create_script_module", rankprobe_make)

    def _replace(self, host: Any, name: str, value: Any) -> None:
        own = host.__dict__.get(name)
        setattr(host, name, value)

        def undo() -> None:
            if host.__dict__.get(name) is not value:
                return  # somebody has it; it passes through
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
