#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Median step time with dumping off and on: step_cost.py STEP_LOG.jsonl.

The log has one JSON object a line: step, seconds, dumping. The first five
steps are warm-up.
"""

import json
import statistics
import sys


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as f:
        steps = [json.loads(line) for line in f if line.strip()][5:]
    off = [s["seconds"] for s in steps if not s["dumping"]]
    on = [s for s in steps if s["dumping"]]
    if not off or not on:
        print("not enough steps to compare")
        return 1
    base = statistics.median(off)
    print(f"dump off: {base:.4f} s over {len(off)} steps")
    for s in on:
        print(f"step {s['step']}: {s['seconds']:.4f} s, {s['seconds'] / base:.2f} x (dump on)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
