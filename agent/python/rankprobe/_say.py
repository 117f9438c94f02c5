# SPDX-License-Identifier: Apache-2.0
"""A line to stderr, which reaches nobody where it cannot: a closed stream, a full disk, a reader that is gone."""

from __future__ import annotations

import os
import sys


def say(text: str, end: str = "\n") -> None:
    """Never raises, and leaves nothing in the stream that would fail at the program's end."""
    try:
        stream = sys.stderr
        if stream is not sys.__stderr__:
            print(text, end=end, file=stream, flush=True)
            return
        stream.flush()
        rest = (text + end).encode(stream.encoding or "utf-8", "backslashreplace")
        while rest:
            rest = rest[os.write(stream.fileno(), rest):]
    except Exception:  # noqa: BLE001 - whatever stands in the place of stderr
        pass
