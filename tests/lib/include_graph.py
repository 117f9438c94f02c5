#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the includes between folders against the table in docs/design.md, "The folders"; that no product code
waits with a timeout on the wall clock (common/base/monotonic_time.h); and that no two headers define a type of
the same name, because a program that links both would confuse them without an error.

    include_graph.py           prints every include that the table does not allow, every cycle, such wait and such
                               pair of types; exit status 1 if there is one
    include_graph.py --lines   prints lines of product and test code for each folder
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include "([a-z0-9_/]+)/[a-z0-9_.]+"', re.MULTILINE)
# Waits that Abseil 20220623, or libstdc++ with a glibc older than 2.30, converts to a point of wall time.
WALL_WAIT = re.compile(r"\b(?:Await|Wait|WaitForNotification|(?:Reader|Writer)?LockWhen)With(?:Timeout|Deadline)\b"
                       r"|\bstd::(?:condition_variable|(?:recursive_|shared_)?timed_mutex)|[.>]wait_(?:for|until)\b")
TYPE = re.compile(r"^(?:namespace ([\w:]+) \{|(?:struct|class) ([A-Z]\w*) (?:final )?[:{])", re.MULTILINE)
# A front end that no program links together with another one.
LIBTORCH = "agent/libtorch/"
ROW = re.compile(r"^\| `([a-z_/]+)` \|[^|]*\|([^|]*)\|$", re.MULTILINE)


def allowed() -> dict[str, set[str]]:
    """Returns the folders that each folder may use, directly or indirectly."""
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


def is_test(name: str) -> bool:
    return "testing" in name.split("/")[:-1] or re.search(r"_(test|benchmark)\.cc$", name) is not None


def room_of(directory: str, rooms: dict[str, set[str]]) -> str | None:
    while directory and directory not in rooms:
        directory = directory.rpartition("/")[0]
    return directory or None


def faults_of(name: str, text: str, rooms: dict[str, set[str]]) -> list[str]:
    """Returns the faults of one file."""
    room = room_of(name.rpartition("/")[0], rooms)
    if room is None and "/testing/" not in name:  # Code that the tests of all folders share.
        return [f"{name}: its room has no row in docs/design.md, The folders"]
    if is_test(name):
        return []
    faults = []
    ours = {known.split("/")[0] for known in rooms}
    for used in sorted(set(INCLUDE.findall(text))):
        other = room_of(used, rooms)
        if "testing" in used.split("/") or used.split("/")[0] in ("tests", "examples"):
            faults.append(f"{name}: no product code may use {used}")
        elif other is None and used.split("/")[0] in ours:
            faults.append(f"{name}: {used} has no row in docs/design.md, The folders")
        elif other is not None and other != room and other not in rooms[room]:
            faults.append(f"{name}: {room} may not use {other}")
    for number, line in enumerate(text.split("\n"), 1):
        if wait := WALL_WAIT.search(line.partition("//")[0]):
            faults.append(f"{name}:{number}: {wait.group()} waits on the wall clock; see common/base/monotonic_time.h")
    return faults


def types_of(text: str) -> list[str]:
    """Returns the types that a header defines, with their namespaces."""
    space, found = "", []
    for match in TYPE.finditer(text):
        space = match[1] or space
        if match[2]:
            found.append(f"{space}::{match[2]}")
    return found


def defined_twice(headers: dict[str, str]) -> list[str]:
    """Returns a fault for each type that two headers define. `headers`: text by name."""
    where: dict[str, list[str]] = {}
    for name, text in sorted(headers.items()):
        for kind in types_of(text):
            where.setdefault(kind, []).append(name)
    return [f"{names[1]}: {kind} is a type of {names[0]} too: a program that links both mixes them up"
            for kind, names in where.items()
            if len(names) > 1 and len({name.startswith(LIBTORCH) for name in names}) == 1]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", action="store_true")
    arguments = parser.parse_args()
    rooms = allowed()
    files = subprocess.run(["git", "ls-files", "*.cc", "*.h", "*.inc"], cwd=ROOT, check=True, capture_output=True,
                           text=True).stdout.split()
    faults: list[str] = []
    lines: dict[str, list[int]] = {}
    headers: dict[str, str] = {}
    for name in files:
        if name.split("/")[0] in ("tests", "examples", "cmake"):
            continue
        text = (ROOT / name).read_text()
        faults += faults_of(name, text, rooms)
        if name.endswith(".h") and not is_test(name):
            headers[name] = text
        room = room_of(name.rpartition("/")[0], rooms)
        if room is not None:
            lines.setdefault(room, [0, 0])[is_test(name)] += text.count("\n")
    faults += defined_twice(headers)
    if arguments.lines:
        for room, (product, test) in sorted(lines.items()):
            print(f"{room:28} {product:6} {test:6}")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
