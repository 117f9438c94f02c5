#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy over the C++ sources of the product, by the translation units of the release build.

    tidy.py [--seconds N] [--slow-checks] [SOURCE..]

A unit is not read again while its sources, the headers of rankprobe that it includes, its command and the checks are those
of a clean run: stamps lie in ~/.cache/rankprobe/tidy, so that a new clone finds them. Units whose own sources changed last
come first; after N seconds no further unit begins, and the rest is counted as left. --slow-checks adds the path analysis
(clang-analyzer-*) and performance-unnecessary-value-param, which take as long as all others.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKED = re.compile(r"(common|agent/runtime|collector|dump_format|analysis|cli|web)/")
NOT_CHECKED = re.compile(r"_test\.cc$|_benchmark\.cc$|/testing/|/fuzz/")
SLOW_CHECKS = ["clang-analyzer-*", "performance-unnecessary-value-param"]


@dataclasses.dataclass
class Unit:
    """A source, or one of CMake's unity files: eight sources that share their headers, which take most of the time."""

    file: str
    command: str
    output: str
    sources: list[str]  # relative to ROOT
    headers: list[str] = dataclasses.field(default_factory=list)

    def key(self, checks: str) -> str:
        digest = hashlib.sha256(f"{checks}\n{self.command.replace(str(ROOT), '')}".encode())
        for name in [*self.sources, *sorted(self.headers)]:
            digest.update(name.encode() + (ROOT / name).read_bytes())
        return digest.hexdigest()[:32]


def units_of(build: pathlib.Path) -> list[Unit]:
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        paths = re.findall(r'^#include "(.*)"$', path.read_text(), re.M) if path.parent.name == "Unity" else [entry["file"]]
        sources = [os.path.relpath(source, ROOT) for source in paths]
        if all(CHECKED.match(source) and not NOT_CHECKED.search(source) for source in sources):
            output = entry["command"].partition(" -o ")[2].split()[0]
            found[entry["file"]] = Unit(entry["file"], entry["command"], output, sources)
    add_headers(found.values(), build)
    return list(found.values())


def add_headers(units: "list[Unit]", build: pathlib.Path) -> None:
    """Adds the headers of each unit by ninja's record of dependencies; an object that was never built has none."""
    by_output = {os.path.normpath(unit.output): unit for unit in units}
    unit = None
    text = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        if not line.startswith(" "):
            unit = by_output.get(line.partition(":")[0])
        elif unit is not None:
            path = os.path.relpath(build / line.strip(), ROOT)
            if not path.startswith("..") and path not in unit.sources:
                unit.headers.append(path)



def commit_order() -> dict[str, int]:
    """Returns how many commits ago each file was changed, for the last 200 commits. File dates are not used, because they are equal in
    a new clone."""
    log = subprocess.run(["git", "-C", str(ROOT), "log", "-200", "--name-only", "--format=%x00"], capture_output=True, text=True).stdout
    order: dict[str, int] = {}
    for number, names in enumerate(log.split("\0")):
        for name in names.split():
            order.setdefault(name, number)
    return order


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--slow-checks", action="store_true")
    parser.add_argument("sources", nargs="*")
    arguments = parser.parse_args()
    build = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release"))
    units = units_of(build)
    if arguments.sources:
        wanted = set(arguments.sources)
        units = [unit for unit in units if not wanted.isdisjoint(unit.sources)]
        if left := wanted - {source for unit in units for source in unit.sources}:
            sys.exit("in no unit that is checked: " + ", ".join(sorted(left)))
    order = commit_order()
    units.sort(key=lambda unit: min(order.get(source, 10**6) for source in unit.sources))
    # The check is disabled because a unity file includes sources.
    checks = ",".join(f"-{name}" for name in ["bugprone-suspicious-include", *([] if arguments.slow_checks else SLOW_CHECKS)])
    stamps = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "rankprobe" / "tidy"
    stamps.mkdir(parents=True, exist_ok=True)
    text = checks + (ROOT / ".clang-tidy").read_text()
    end = time.monotonic() + arguments.seconds

    def check(unit: Unit) -> str:
        stamp = stamps / unit.key(text)
        if stamp.exists():
            return "unchanged"
        if time.monotonic() > end:
            return "left"
        done = subprocess.run(["clang-tidy", "-p", str(build), "--quiet", f"--checks={checks}", unit.file],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            print(done.stdout, f"clang-tidy: findings in one of {' '.join(unit.sources)}", sep="\n", flush=True)
            return "with findings"
        stamp.touch()
        return "clean"

    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("RANKPROBE_JOBS") or os.cpu_count() or 1)) as pool:
        results = list(pool.map(check, units))
    counts = {result: sum(len(unit.sources) for unit, got in zip(units, results) if got == result) for result in dict.fromkeys(results)}
    print("clang-tidy, files: " + ", ".join(f"{count} {result}" for result, count in counts.items())
          + (f" (after {arguments.seconds:g} s; `tests/run.sh --stage tidy` reads them)" if "left" in results else ""))
    return 1 if "with findings" in results else 0


if __name__ == "__main__":
    sys.exit(main())
