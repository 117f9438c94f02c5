# SPDX-License-Identifier: Apache-2.0
"""Golden dumps with planted defects: of each the differences of its files to those of another golden dump are kept."""

from __future__ import annotations

import atexit
import pathlib
import shutil
import tempfile

_GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


def planted_dump(name: str) -> pathlib.Path:
    """tests/golden/analysis/dumps/{name}, whole; it is there until the process ends."""
    kept = _GOLDEN / "analysis" / "dumps" / name
    base = _GOLDEN / "dumps" / (kept / "base").read_text().strip()
    place = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for edits in kept.glob("*.diff"):
        (place / edits.stem).write_text(_edited((base / edits.stem).read_text().split("\n"), edits.read_text().splitlines()))
    return place


def _edited(lines: list[str], edits: list[str]) -> str:
    """What `diff -n` wrote, of which each command names a line of `lines`."""
    made: list[str] = []
    at = 0
    commands = iter(edits)
    for command in commands:
        first, count = map(int, command[1:].split())
        end = first - 1 if command[0] == "d" else first
        made += lines[at:end]
        at = end
        if command[0] == "d":
            at += count
        else:
            made += [next(commands) for _ in range(count)]
    return "\n".join(made + lines[at:])
