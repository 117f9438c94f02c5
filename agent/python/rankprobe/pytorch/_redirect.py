# SPDX-License-Identifier: Apache-2.0
"""Redirection of a function's calls without replacing the function object.

A program may compare a function of PyTorch, keep it, pickle it or replace it at any time. All of this stays correct
because no attribute of PyTorch is changed. For a function of C the call pointers are changed, for a function of
Python its code (Redirect of _native).
"""

from __future__ import annotations

import os
import types
from typing import Any, Callable, Optional

from rankprobe import _native

# The path is below this directory, so that stacks of calls omit it. warnings.warn(stacklevel=) skips frames of files with these
# two words in their names, so that it reports the same line as without rankprobe.
_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "<importlib _bootstrap>")


def hide_frames(error: BaseException) -> None:
    """Removes rankprobe's frames from the beginning of the traceback. Call it in an except block that ends with `raise` without operand,
    which adds no frame. Below Python 3.11 the frames stay."""
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
    """Returns code that calls `target`, for a function with the code `own`."""
    given = {"the target": target, "hide_frames": hide_frames}
    changes: dict[str, Any] = {"co_consts": tuple(given.get(constant, constant) for constant in _CODE.co_consts),
                               "co_filename": _FILE, "co_name": own.co_name, "co_freevars": own.co_freevars}
    if hasattr(own, "co_qualname"):
        changes["co_qualname"] = own.co_qualname
    return _CODE.replace(**changes)


def _function_redirect(function: types.FunctionType) -> _native.Redirect:
    """Makes the redirect of a Python function. While calls are redirected, inspect finds signature and source by `__wrapped__`. If
    the program assigns other code to the function meanwhile, that code is kept."""
    original = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__,
                                  function.__closure__)
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(original, name, getattr(function, name))
    original.__dict__.update(function.__dict__)
    return _native.function_redirect(function, original, _code_to, _FILE)


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Changes `function` so that warnings.warn(stacklevel=) skips its frame, as those of redirected calls, and returns it."""
    function.__code__ = function.__code__.replace(co_filename=_FILE)
    return function


def redirect(function: Any) -> Optional[_native.Redirect]:
    """Returns a Redirect for the function; None if its calls cannot be redirected."""
    if type(function) is types.FunctionType:
        return _function_redirect(function)
    # pybind11 wraps the function of a method in this type.
    if type(function).__name__ == "instancemethod":
        function = function.__func__
    return _native.call_redirect(function) or _native.slot_redirect(function)


class Around:
    """Redirects the calls of a function to `make(original)` until remove(); put() redirects them again."""

    def __init__(self, function: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.function = function
        self._redirect = redirect(function)
        if self._redirect is not None:
            self._target = unseen(make(self._redirect.original))
            self._redirect.put(self._target)

    @property
    def works(self) -> bool:
        """Whether calls of this function can be redirected."""
        return self._redirect is not None

    def put(self) -> None:
        if self._redirect is not None:
            self._redirect.put(self._target)

    def remove(self) -> None:
        if self._redirect is not None:
            self._redirect.take(self._target)


__all__ = ["Around", "hide_frames", "redirect", "unseen"]
