# SPDX-License-Identifier: Apache-2.0
"""Lines of source files, for the stacks of calls."""

from __future__ import annotations

import linecache
import tokenize
from os import fstat
from typing import Optional

from rankprobe._program_error import is_programs


def source_line(path: str, number: int) -> Optional[str]:
    """Returns the stripped source line, or None if there is no source. Raises only what a signal handler of the program raised."""
    if "\0" in path:
        return None
    if path not in linecache.cache and not path.startswith("<"):
        _read(path)
    line = linecache.getline(path, number)
    return line.strip() if line else None


def _read(path: str) -> None:
    """Reads a file into the cache of linecache. Its own reader would take a TimeoutError or other OSError, raised by a signal handler
    of the program in the meantime, for a missing file."""
    try:
        with tokenize.open(path) as file:
            lines = file.readlines()
            status = fstat(file.fileno())
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        if is_programs(error.__traceback__):
            raise
        return
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    linecache.cache[path] = (status.st_size, status.st_mtime, lines, path)
