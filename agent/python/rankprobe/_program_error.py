# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the program's that arrive while our code runs: what its signal handlers raise, and what a
computation of its own came to that our code was the first to wait for."""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Any, NoReturn, Optional


def _code_of(handler: Any) -> Any:
    """Of a function, a method, a partial or an object that is called; None: none of Python's."""
    for _ in range(8):
        handler = getattr(handler, "func", None) or getattr(handler, "__func__", None) or handler
        code = getattr(handler, "__code__", None)
        if code is not None:
            return code
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is looked at
    return None


def came_from_signal(traceback: Optional[TracebackType]) -> bool:
    """Whether a signal handler of the program is among its frames."""
    codes = {_code_of(handler) for handler in map(signal.getsignal, signal.valid_signals()) if callable(handler)}
    codes.discard(None)
    return _passes(traceback, codes)


def raise_programs(error: BaseException) -> NoReturn:
    """Raises an error that is the program's, so that is_programs() knows it."""
    raise error


def is_programs(traceback: Optional[TracebackType]) -> bool:
    """Whether it came from a signal handler of the program, or by raise_programs()."""
    return _passes(traceback, {raise_programs.__code__}) or came_from_signal(traceback)


def _passes(traceback: Optional[TracebackType], codes: set[Any]) -> bool:
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False
