#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints 'passed failed skipped' of one JUnit XML report."""

import sys
import xml.etree.ElementTree as ET


def main() -> int:
    passed = failed = skipped = 0
    for case in ET.parse(sys.argv[1]).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    print(passed, failed, skipped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
