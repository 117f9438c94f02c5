#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints 'passed failed skipped' of one JUnit XML report, and adds the name of each test that failed to NAMES.

    count_junit.py [--gtest DIR] REPORT [NAMES]

With --gtest REPORT is ctest's, and a program that has a report NAME.xml in DIR (googletest's own) counts by its tests.
"""

from __future__ import annotations

import argparse
import pathlib
import xml.etree.ElementTree as ET


class Counts:
    def __init__(self) -> None:
        self.passed = self.skipped = 0
        self.failed: list[str] = []

    def add(self, case: ET.Element) -> None:
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            self.failed.append(".".join(filter(None, (case.get("classname"), case.get("name")))))
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            self.skipped += 1
        else:
            self.passed += 1

    def add_program(self, case: ET.Element, report: pathlib.Path) -> None:
        """Adds a test program by its own report. A program that failed without a failed test (a crash, a leak) counts as a failure."""
        before = len(self.failed)
        try:
            tests = list(ET.parse(report).getroot().iter("testcase"))
        except (OSError, ET.ParseError):
            tests = []
        for test in tests:
            self.add(test)
        if not tests or (case.get("status") == "fail" and len(self.failed) == before):
            self.add(case)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gtest", type=pathlib.Path)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("names", nargs="?", type=pathlib.Path)
    arguments = parser.parse_args()
    counts = Counts()
    for case in ET.parse(arguments.report).getroot().iter("testcase"):
        own = arguments.gtest / f"{case.get('name')}.xml" if arguments.gtest else None
        if own is not None and own.exists():
            counts.add_program(case, own)
        else:
            counts.add(case)
    # Writes the names first, because the reader of the counts then reads them at once.
    if arguments.names:
        with open(arguments.names, "a", encoding="utf-8") as names:
            names.writelines(f"{name}\n" for name in counts.failed)
    print(counts.passed, len(counts.failed), counts.skipped)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
