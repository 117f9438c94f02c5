# SPDX-License-Identifier: Apache-2.0
"""Calls of a function that go elsewhere, while the function stays the object that it is.

A program may compare a function of PyTorch, keep it, pickle it or put its own in its place at any time. Nothing of this
can go wrong where no attribute of PyTorch is changed. A function of C has its call pointers changed, a
function of Python its code (Redirect of _native).
"""

from __future__ import annotations

import os
import types
from typing import Any, Callable, Optional

from rankprobe import _native

# Below our own directory, so that no stack of a call shows it. warnings.warn(stacklevel=) passes over frames of files with these
# two words in their names, and names the line that it names without us.
_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "<importlib _bootstrap>")


def hide_frames(error: BaseException) -> None:
    """Takes our own frames off the beginning of its traceback. To be called where it is caught and raised again, by a `raise` without
    operand: that adds no frame. Below Python 3.11 they stay."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == _FILE:
        traceback = traceback.tb_next
    error.__traceback__ = traceback


def _template() -> types.CodeType:
    def call(*args: Any, **kwargs: Any) -> Any:
        target = "the target"
        try:
            return target(*args, **kwargs)  # type: ignore[operator]
        except BaseException as error:
            hide = "hide_frames"
            hide(error)  # type: ignore[operator]
            raise

    return call.__code__


_CODE = _template()


def _code_to(target: Callable[..., Any], own: types.CodeType) -> types.CodeType:
    """Code that calls `target`, for a function that has `own`."""
    given = {"the target": target, "hide_frames": hide_frames}
    changes: dict[str, Any] = {"co_consts": tuple(given.get(constant, constant) for constant in _CODE.co_consts),
                               "co_filename": _FILE, "co_name": own.co_name, "co_freevars": own.co_freevars}
    if hasattr(own, "co_qualname"):
        changes["co_qualname"] = own.co_qualname
    return _CODE.replace(**changes)


def _function_redirect(function: types.FunctionType) -> _native.Redirect:
    """While calls are redirected inspect finds the signature and the source of the function by `__wrapped__`. A program that
    gives the function another code meanwhile keeps it."""
    original = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__,
                                  function.__closure__)
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(original, name, getattr(function, name))
    original.__dict__.update(function.__dict__)
    return _native.function_redirect(function, original, _code_to, _FILE)


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose frame warnings.warn(stacklevel=) passes over, as those of redirected calls."""
    function.__code__ = function.__code__.replace(co_filename=_FILE)
    return function


def redirect(function: Any) -> Optional[_native.Redirect]:
    """None: its calls cannot be redirected."""
    if type(function) is types.FunctionType:
        return _function_redirect(function)
    # pybind11 keeps the function of a method in one of these.
    if type(function).__name__ == "instancemethod":
        function = function.__func__
    return _native.call_redirect(function) or _native.slot_redirect(function)


class Around:
    """One function whose calls go to `make(original)`, until remove() and again from put() on."""

    def __init__(self, function: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.function = function
        self._redirect = redirect(function)
        if self._redirect is not None:
            self._target = unseen(make(self._redirect.original))
            self._redirect.put(self._target)

    @property
    def works(self) -> bool:
        """Whether calls of this function can go elsewhere."""
        return self._redirect is not None

    def put(self) -> None:
        if self._redirect is not None:
            self._redirect.put(self._target)

    def remove(self) -> None:
        if self._redirect is not None:
            self._redirect.take(self._target)


__all__ = ["Around", "hide_frames", "redirect", "unseen"]
