# SPDX-License-Identifier: Apache-2.0
"""What clang-tidy reads, a line each: a translation unit of the release build,
a tab, the sources of rankprobe in it. A unit is a source, or one of CMake's
unity files (eight sources that share their headers, which are most of the
time).

    tests/lib/tidy_units.py BUILD_DIR [SOURCE..]    with sources: units that hold one
"""
import json
import os
import re
import sys

CHECKED = re.compile(r"(common|agent/runtime|collector|dump_format|analysis|cli|web)/")
NOT_CHECKED = re.compile(r"_test\.cc$|_benchmark\.cc$|/testing/|/fuzz/")


def sources(unit, root):
    paths = [unit]
    if os.path.basename(os.path.dirname(unit)) == "Unity":
        with open(unit) as file:
            paths = re.findall(r'^#include "(.*)"$', file.read(), re.M)
    return [os.path.relpath(path, root) for path in paths]


def main():
    build, wanted = sys.argv[1], set(sys.argv[2:])
    root = os.getcwd()
    with open(os.path.join(build, "compile_commands.json")) as file:
        units = sorted({entry["file"] for entry in json.load(file)})
    left = set(wanted)
    tests = os.path.join(os.path.abspath(build), "tests")
    for unit in units:
        if unit.startswith(tests):
            continue
        generated = os.path.relpath(build, root) + "/"
        inside = [path for path in sources(unit, root) if not path.startswith(generated)]
        if not inside or not all(CHECKED.match(path) and not NOT_CHECKED.search(path) for path in inside):
            continue
        if wanted and wanted.isdisjoint(inside):
            continue
        left -= set(inside)
        print(unit, " ".join(inside), sep="\t")
    if left:
        sys.exit("in no unit that is checked: " + ", ".join(sorted(left)))


main()
