#!/usr/bin/env python3
"""Holds the arrows between rooms: who may include whom, as docs/design.md says under "The folders".

    include_graph.py           every include that the table does not allow, and every cycle; exit status 1 if there is one
    include_graph.py --lines   lines of product and test code a room
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include "([a-z0-9_/]+)/[a-z0-9_.]+"', re.MULTILINE)
ROW = re.compile(r"^\| `([a-z_/]+)` \|[^|]*\|([^|]*)\|$", re.MULTILINE)


def allowed() -> dict[str, set[str]]:
    """Room to the rooms it may use, closed over what those use."""
    text = (ROOT / "docs" / "design.md").read_text()
    text = text[text.index("## The folders"):]
    table = {room: set(re.findall(r"`([a-z_/]+)`", uses)) for room, uses in ROW.findall(text[:text.index("\n## ", 5)])}
    unknown = {u for uses in table.values() for u in uses} - set(table)
    if not table or unknown:
        raise SystemExit(f"docs/design.md, The folders: no table, or rooms that have no row: {sorted(unknown)}")
    closed: dict[str, set[str]] = {}

    def close(room: str, path: tuple[str, ...]) -> set[str]:
        if room in path:
            raise SystemExit("a cycle in docs/design.md, The folders: " + " -> ".join((*path, room)))
        if room not in closed:
            closed[room] = table[room].union(*(close(u, (*path, room)) for u in table[room]))
        return closed[room]

    for room in table:
        close(room, ())
    return closed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", action="store_true")
    arguments = parser.parse_args()
    rooms = allowed()
    files = subprocess.run(["git", "ls-files", "*.cc", "*.h", "*.inc"], cwd=ROOT, check=True, capture_output=True,
                           text=True).stdout.split()
    faults: list[str] = []
    lines: dict[str, list[int]] = {}

    def room_of(directory: str) -> str | None:
        while directory and directory not in rooms:
            directory = directory.rpartition("/")[0]
        return directory or None

    for name in files:
        directory = name.rpartition("/")[0]
        if directory.split("/")[0] in ("tests", "examples", "cmake"):
            continue
        if directory.endswith("/testing"):
            directory = directory.rpartition("/")[0]
        room = room_of(directory)
        if room is None and directory in ("common", "collector", "analysis", "agent/runtime"):
            continue  # what the tests of all its rooms share
        if room is None:
            faults.append(f"{name}: its room has no row in docs/design.md, The folders")
            continue
        text = (ROOT / name).read_text()
        test = "/testing/" in name or re.search(r"_(test|benchmark)\.cc$", name) is not None
        lines.setdefault(room, [0, 0])[test] += text.count("\n")
        if test:
            continue
        for used in sorted(set(INCLUDE.findall(text))):
            other = room_of(used)
            if other is not None and other != room and other not in rooms[room]:
                faults.append(f"{name}: {room} may not use {other}")
    if arguments.lines:
        for room, (product, test) in sorted(lines.items()):
            print(f"{room:28} {product:6} {test:6}")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
