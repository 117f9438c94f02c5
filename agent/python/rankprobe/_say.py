# SPDX-License-Identifier: Apache-2.0
"""A line to stderr, which reaches nobody where it cannot: a closed stream, a full disk, a reader that is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any, Iterator, cast

from rankprobe._program_error import came_from_signal


@contextlib.contextmanager
def _without_sigpipe() -> Iterator[None]:
    """A reader that is gone is an error of write(), also in a program that this signal would end."""
    if signal.getsignal(signal.SIGPIPE) is not signal.SIG_DFL:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            if signal.SIGPIPE in signal.sigpending():
                signal.sigtimedwait({signal.SIGPIPE}, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def say(text: str, end: str = "\n") -> None:
    """Raises nothing of its own, and leaves nothing in the stream that would fail at the program's end."""
    try:
        stream, original = sys.stderr, cast(Any, sys.__stderr__)
        if stream is None:  # print() would take stdout
            return
        if stream is not original:
            print(text, end=end, file=stream, flush=True)
            return
        stream.flush()
        rest = (text + end).encode(stream.encoding or "utf-8", "backslashreplace")
        with _without_sigpipe():
            while rest:
                rest = rest[os.write(stream.fileno(), rest):]
    except Exception as error:
        if came_from_signal(error.__traceback__):
            raise
