# SPDX-License-Identifier: Apache-2.0
"""A line to stderr, which reaches nobody where it cannot: a closed stream, a full disk, a reader that is gone."""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from rankprobe._program_error import came_from_signal


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
        while rest:
            rest = rest[os.write(stream.fileno(), rest):]
    except Exception as error:
        if came_from_signal(error.__traceback__):
            raise
