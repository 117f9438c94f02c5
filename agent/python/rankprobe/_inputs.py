# SPDX-License-Identifier: Apache-2.0
"""Safe input for the tools in Python: the permission rule of `rankprobe` for files (dump_format/input_files.h), and texts without
terminal control characters.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from typing import Any, Optional


class Refused(Exception):
    """Bad usage or input; the text is one line for the user."""


def show(text: object) -> str:
    """Returns the text with control characters, C1 codes, and direction and line marks escaped (common/text/visible_text.h)."""
    return "".join(c if c == " " or c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def shell_word(text: str) -> str:
    """Quotes the text for a shell (bash, zsh, ksh), using printable characters only."""
    if show(text) == text:
        return shlex.quote(text)
    plain = ("\\" + c if c in "\\'" else c if c == " " or c.isprintable() else
             "".join(f"\\x{byte:02x}" for byte in c.encode("utf-8", "surrogateescape")) for c in text)
    return "$'" + "".join(plain) + "'"


def collector_flag(address: str) -> str:
    """Returns --collector with this address, quoted for a command that a user pastes; the address of a Unix socket is a path."""
    return f"--collector {shell_word(address)}"


def run_flag(run: str) -> str:
    """Returns --run with this name, quoted for a command that a user pastes."""
    return f"--run{'=' if run.startswith('-') else ' '}{shell_word(run)}"


def switch_hint(enabled: bool, address: str, run: str) -> str:
    """Returns a text with the command that toggles the recording of this run."""
    way, verb = ("off", "disable") if enabled else ("on", "enable")
    return f"switch it {way} with: rankprobe {verb} {collector_flag(address)} {run_flag(run)}"


def open_regular(path: str | os.PathLike[str]) -> Optional[int]:
    """Opens a file for reading and returns the descriptor; None if it is not a regular file, since a FIFO would wait for its other
    end and a device may never end. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


_warned: set[str] = set()


def open_input(path: str | os.PathLike[str], force: bool, mode: str = "r") -> Any:
    """Opens a file for reading under the permission rule of `rankprobe` (dump_format/input_files.h). With `force`, a violation is a
    warning, printed once for each kind. Raises Refused and OSError."""

    def refuse(rule: str, of: str, reason: str) -> None:
        if not force:
            raise Refused(f"{of}: {reason}; --force reads it anyway")
        if rule not in _warned:
            _warned.add(rule)
            sys.stderr.write(f"rankprobe: warning: {show(of)}: {reason}; it is read because of --force, and so are "
                             "others like it\n")

    for place in (os.path.dirname(os.path.abspath(path)), os.fspath(path)):
        there = os.lstat(place)
        if stat.S_ISLNK(there.st_mode):
            refuse("link", place, "is a symbolic link")
            there = os.stat(place)
        sticky = stat.S_ISDIR(there.st_mode) and there.st_mode & stat.S_ISVTX
        if there.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
            refuse("mode", place, f"can be changed by other users (mode {stat.S_IMODE(there.st_mode):04o})")
        if there.st_uid != os.geteuid() and os.geteuid() != 0 and not sticky:
            refuse("owner", place, f"belongs to user {there.st_uid}")
    descriptor = open_regular(path)
    if descriptor is None:
        raise Refused(f"{path}: is not a regular file")
    return open(descriptor, mode) if "b" in mode else open(descriptor, mode, encoding="utf-8", newline="")


def read_dump(path: str | os.PathLike[str], force: bool) -> dict[str, Any]:
    """Reads a dump.json and returns its content, where `data` is an object. Raises Refused if it is not such a file or the
    permission rule forbids it."""
    try:
        with open_input(path, force) as file:
            text = file.read()
        if not text.strip():
            raise Refused(f"{path}: is empty")
        info = json.loads(text)
        if not isinstance(info, dict) or not isinstance(info.get("data"), dict):
            raise ValueError("data is not an object")
        return info
    except (OSError, ValueError, RecursionError) as fault:
        raise Refused(f"{path}: is not a dump.json that can be read ({' '.join(str(fault).split())})") from None
