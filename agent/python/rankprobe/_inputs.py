# SPDX-License-Identifier: Apache-2.0
"""Reading what others wrote, for the tools in Python: the permission rule of `rankprobe` (dump_format/input_files.h), and
texts that cannot steer a terminal.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from typing import Any, Optional


class Refused(Exception):
    """Bad usage or input; the text is one line for a person."""


def show(text: object) -> str:
    """The text with control characters, C1, direction and line marks escaped (common/text/visible_text.h)."""
    return "".join(c if c == " " or c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def shell_word(text: str) -> str:
    """What a shell (bash, zsh, ksh) takes as this text, and a terminal as plain characters."""
    if show(text) == text:
        return shlex.quote(text)
    plain = ("\\" + c if c in "\\'" else c if c == " " or c.isprintable() else
             "".join(f"\\x{byte:02x}" for byte in c.encode("utf-8", "surrogateescape")) for c in text)
    return "$'" + "".join(plain) + "'"


def collector_flag(address: str) -> str:
    """--collector with this address, for a command that a person pastes: of a Unix socket it is a path."""
    return f"--collector {shell_word(address)}"


def run_flag(run: str) -> str:
    """--run with this name, for a command that a person pastes."""
    return f"--run{'=' if run.startswith('-') else ' '}{shell_word(run)}"


def switch_hint(enabled: bool, address: str, run: str) -> str:
    """The command that switches the recording of this run the other way."""
    way, verb = ("off", "disable") if enabled else ("on", "enable")
    return f"switch it {way} with: rankprobe {verb} {collector_flag(address)} {run_flag(run)}"


def open_regular(path: str | os.PathLike[str]) -> Optional[int]:
    """A descriptor to read from; None: it is not a regular file. A FIFO would wait for its other end, a device never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


_warned: set[str] = set()


def open_input(path: str | os.PathLike[str], force: bool, mode: str = "r") -> Any:
    """Opens a file for reading by the permission rule of `rankprobe` (dump_format/input_files.h)."""

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
    """A dump.json, of which `data` is an object. Refused: it is none, or the permission rule says so."""
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
