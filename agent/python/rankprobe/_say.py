# SPDX-License-Identifier: Apache-2.0
"""Messages to the process's own stderr. A message is dropped where it cannot be written: a closed stream, a full disk, a closed pipe.

A stream that the program assigns to sys.stderr (contextlib.redirect_stderr, a copy into a file, a logger) gets no message,
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
    """Makes write() to a closed pipe fail with EPIPE, also in a program that SIGPIPE would end."""
    if signal.getsignal(signal.SIGPIPE) is not signal.SIG_DFL:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            # Consumes the pending signal before unblocking, else it would be delivered to the program.
            if signal.SIGPIPE in signal.sigpending():
                signal.sigtimedwait({signal.SIGPIPE}, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def say(text: str, end: str = "\n") -> None:
    """Writes `text` to stderr. Raises only what a signal handler of the program raised; leaves no data in the stream's buffer, whose
    flush could fail when the program ends."""
    try:
        stream = cast(Any, sys.__stderr__)
        if stream is None or sys.stderr is None:
            return
        # Standard error is inheritable, files that Python opens are not.
        if not os.get_inheritable(stream.fileno()):
            return  # The program closed stderr, and a file that it opened later has this descriptor.
        stream.flush()
        rest = (text + end).encode(stream.encoding or "utf-8", "backslashreplace")
        with _without_sigpipe():
            while rest:
                rest = rest[os.write(stream.fileno(), rest):]
    except Exception as error:
        if came_from_signal(error.__traceback__):
            raise


def name_of_stderr() -> str:
    """Returns device and inode of standard error, which are equal in processes that share it; "" if it is closed."""
    try:
        file = os.fstat(2)
    except OSError:
        return ""
    return f"{file.st_dev}:{file.st_ino}"


def is_read_by_program() -> bool:
    """Returns whether stderr is a pipe or socket that a process of the program created and may read. Known only under `rankprobe run`."""
    first = os.environ.get("RANKPROBE_STDERR")
    if not first or first == name_of_stderr():
        return False
    try:
        kind = os.fstat(2).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
