# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the program that occur while rankprobe's code runs: those that its signal handlers raise, and errors of its own
asynchronous computations for which rankprobe's code was the first to wait."""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Any, NoReturn, Optional


def _code_of(handler: Any) -> Any:
    """Returns the code object of a function, method, partial or callable object; None if it is not implemented in Python."""
    for _ in range(8):
        handler = getattr(handler, "func", None) or getattr(handler, "__func__", None) or handler
        code = getattr(handler, "__code__", None)
        if code is not None:
            return code
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is looked at
    return None


def came_from_signal(traceback: Optional[TracebackType]) -> bool:
    """Returns whether a signal handler of the program is among the frames."""
    codes = {_code_of(handler) for handler in map(signal.getsignal, signal.valid_signals()) if callable(handler)}
    codes.discard(None)
    return _passes(traceback, codes)


def raise_programs(error: BaseException) -> NoReturn:
    """Raises an error of the program such that is_programs() recognizes it."""
    raise error


def is_programs(traceback: Optional[TracebackType]) -> bool:
    """Returns whether the exception came from a signal handler of the program or from raise_programs()."""
    return _passes(traceback, {raise_programs.__code__}) or came_from_signal(traceback)


def _passes(traceback: Optional[TracebackType], codes: set[Any]) -> bool:
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False
