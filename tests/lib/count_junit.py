#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints 'passed failed skipped' of one JUnit XML report; with a second FILE adds the name of each test that failed to it."""

import sys
import xml.etree.ElementTree as ET


def main() -> int:
    passed = skipped = 0
    failed = []
    for case in ET.parse(sys.argv[1]).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            failed.append(".".join(filter(None, (case.get("classname"), case.get("name")))))
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    # Who reads the counts goes on at once, and reads the names.
    if len(sys.argv) > 2:
        with open(sys.argv[2], "a") as names:
            names.writelines(f"{name}\n" for name in failed)
    print(passed, len(failed), skipped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
