# SPDX-License-Identifier: Apache-2.0
"""A line to the process's own stderr, which reaches nobody where it cannot: a closed stream, a full disk, a reader that is gone.

A stream that the program puts in place of sys.stderr (contextlib.redirect_stderr, a copy into a file, a logger) gets no line of ours,
because the program may read it. pytest and Jupyter capture the descriptor as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
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
        stream = cast(Any, sys.__stderr__)
        if stream is None or sys.stderr is None:
            return
        if not os.get_inheritable(stream.fileno()):
            return  # it was closed, and a file that the program has opened since has its number
        stream.flush()
        rest = (text + end).encode(stream.encoding or "utf-8", "backslashreplace")
        with _without_sigpipe():
            while rest:
                rest = rest[os.write(stream.fileno(), rest):]
    except Exception as error:
        if came_from_signal(error.__traceback__):
            raise


def name_of_stderr() -> str:
    """Device and inode of standard error: equal in processes that share it. Empty if it is closed."""
    try:
        file = os.fstat(2)
    except OSError:
        return ""
    return f"{file.st_dev}:{file.st_ino}"


def is_read_by_program() -> bool:
    """Under `rankprobe run`, whether stderr is a pipe that another process of the program has made, and may read."""
    first = os.environ.get("RANKPROBE_STDERR")
    if not first or first == name_of_stderr():
        return False
    try:
        kind = os.fstat(2).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
