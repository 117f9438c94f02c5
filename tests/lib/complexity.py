#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Limits of the product's C++: functions of a class, and cyclomatic complexity of a function, as lizard counts them.

    complexity.py [--write]

A class may have 40 functions and a function a complexity of 25. What had more when the limits came is in complexity.tsv with its
number, which may fall and not rise: a number that fell is to be lowered in the file too, by --write. --write never adds a row
or raises a number. Exit code 1: findings, one a line.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import subprocess
import sys

import lizard

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = pathlib.Path(__file__).with_suffix(".tsv")
MOST_FUNCTIONS, MOST_COMPLEXITY = 40, 25


def sources() -> list[str]:
    """Returns the product's C++ files, without tests and code that only tests use."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--deduplicate", "--", "*.cc", "*.h"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split()
    return [name for name in listed
            if not name.startswith("tests/") and "/testing/" not in name and not name.endswith("_test.cc") and (ROOT / name).is_file()]


def counted() -> dict[tuple[str, str], int]:
    """Returns the numbers beyond a limit, by ("class" or "function", name)."""
    functions: collections.Counter[str] = collections.Counter()
    complexity: dict[str, int] = {}
    for file in lizard.analyze_files([str(ROOT / name) for name in sources()], threads=2):
        for function in file.function_list:
            *scope, _ = function.name.split("::")
            if scope and scope[-1][:1].isupper():
                functions["::".join(scope)] += 1
            complexity[function.name] = max(complexity.get(function.name, 0), function.cyclomatic_complexity)
    found = {("class", name): number for name, number in functions.items() if number > MOST_FUNCTIONS}
    return found | {("function", name): number for name, number in complexity.items() if number > MOST_COMPLEXITY}


def read_table() -> dict[tuple[str, str], int]:
    rows = [line.split("\t") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return {(kind, name): int(number) for kind, name, number in rows}


def write_table(known: dict[tuple[str, str], int]) -> None:
    head = [line for line in TABLE.read_text().splitlines() if line.startswith("#")]
    rows = [f"{kind}\t{name}\t{number}" for (kind, name), number in sorted(known.items())]
    TABLE.write_text("\n".join(head + rows) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="lower the numbers of the table to what is there now")
    write = parser.parse_args().write
    known, found = read_table(), counted()
    findings = []
    for (kind, name), number in sorted(found.items()):
        allowed = known.get((kind, name))
        what = f"{number} functions (at most {MOST_FUNCTIONS})" if kind == "class" else f"complexity {number} (at most {MOST_COMPLEXITY})"
        if allowed is None:
            findings.append(f"{name}: {what}; divide it")
        elif number > allowed:
            findings.append(f"{name}: {what}; it had {allowed}, and may not grow")
    lowered = {key: min(number, found.get(key, 0)) for key, number in known.items()}
    fallen = {key: number for key, number in lowered.items() if number > 0}
    if write:
        write_table(fallen)
    elif fallen != known:
        findings.append(f"{TABLE.name}: numbers have fallen; run tests/lib/complexity.py --write")
    print("\n".join(findings), end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
