# SPDX-License-Identifier: Apache-2.0
"""Calls of a function that go elsewhere, while the function stays the object that it is.

A program may compare a function of PyTorch, keep it, pickle it or put its own in its place at any time. Nothing of this
can go wrong where no attribute of PyTorch is changed. A function of C has its call pointers changed (CallRedirect of
_native), a function of Python its code.
"""

from __future__ import annotations

import os
import types
from typing import Any, Callable, Optional, Protocol

from rankprobe import _native

# Below our own directory, so that no stack of a call shows it. warnings.warn(stacklevel=) passes over frames of files with these
# two words in their names, and names the line that it names without us.
_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "<importlib _bootstrap>")


class Redirect(Protocol):
    """`original`: calls of it are never redirected. put(target): calls go to `target`; the last one that was put is in force.
    take(target): they do not any more."""

    @property
    def original(self) -> Callable[..., Any]: ...

    def put(self, target: Callable[..., Any]) -> None: ...

    def take(self, target: Callable[..., Any]) -> None: ...


def _template() -> types.CodeType:
    def call(*args: Any, **kwargs: Any) -> Any:
        target = "the target"
        return target(*args, **kwargs)  # type: ignore[operator]

    return call.__code__


_CODE = _template()


def _code_to(target: Callable[..., Any], own: types.CodeType) -> types.CodeType:
    """Code that calls `target`, for a function that has `own`."""
    changes: dict[str, Any] = {"co_consts": tuple(target if constant == "the target" else constant for constant in _CODE.co_consts),
                               "co_filename": _FILE, "co_name": own.co_name, "co_freevars": own.co_freevars}
    if hasattr(own, "co_qualname"):
        changes["co_qualname"] = own.co_qualname
    return _CODE.replace(**changes)


class FunctionRedirect:
    """Of a function of Python. While calls are redirected inspect finds the signature and the source of the function by
    `__wrapped__`. A program that gives the function another code meanwhile keeps it."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self.original = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__,
                                           function.__closure__)
        for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
            setattr(self.original, name, getattr(function, name))
        self.original.__dict__.update(function.__dict__)
        # The last that was put: to what, over which code, by which.
        self._made: tuple[Any, Any, Any] = (None, None, None)
        # (target, its code, the code that was there)
        self._put: list[tuple[Callable[..., Any], types.CodeType, types.CodeType]] = []

    def put(self, target: Callable[..., Any]) -> None:
        function, original = self._function, self.original
        own = function.__code__
        if not self._put and own.co_filename != _FILE:
            original.__code__, original.__defaults__, original.__kwdefaults__ = own, function.__defaults__, function.__kwdefaults__
        if self._made[0] is not target or self._made[1] is not own:
            self._made = (target, own, _code_to(target, own))
        code = self._made[2]
        self._put.append((target, code, own))
        function.__code__ = code
        function.__dict__.setdefault("__wrapped__", original)

    def take(self, target: Callable[..., Any]) -> None:
        for at in range(len(self._put)):
            if self._put[at][0] is target:
                break
        else:
            return
        _, code, own = self._put.pop(at)
        function = self._function
        if function.__code__ is code:
            function.__code__ = own
        if not self._put and function.__dict__.get("__wrapped__") is self.original:
            del function.__dict__["__wrapped__"]


def redirect(function: Any) -> Optional[Redirect]:
    """None: its calls cannot be redirected."""
    if type(function) is types.FunctionType:
        return FunctionRedirect(function)
    # pybind11 keeps the function of a method in one of these.
    if type(function).__name__ == "instancemethod":
        function = function.__func__
    return _native.call_redirect(function)


class Around:
    """One function whose calls go to `make(original)`, until remove()."""

    def __init__(self, function: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._redirect = redirect(function)
        if self._redirect is not None:
            self._target = make(self._redirect.original)
            self._redirect.put(self._target)

    def remove(self) -> None:
        if self._redirect is not None:
            self._redirect.take(self._target)


__all__ = ["Around", "Redirect", "redirect"]
