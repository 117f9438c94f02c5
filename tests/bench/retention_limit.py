#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Accuracy of --retention-bytes while a rank writes.

    tests/bench/retention_limit.py [--seconds 60] [--megabytes-per-second 36] [--limit-mib 200]

One rank sends steps of 1 MiB (four payloads, all new) at a steady rate to a daemon with that limit. Prints one JSON
object: the rate that was reached, the largest size of the segment files, as a share of the limit, and CPU seconds.
Part of no test; docs/performance.md has the figure.
"""

import argparse
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "attack"))
import harness
import steady_load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--megabytes-per-second", type=float, default=36)
    parser.add_argument("--limit-mib", type=int, default=200)
    flags = parser.parse_args()
    limit = flags.limit_mib << 20
    with tempfile.TemporaryDirectory() as directory:
        daemon = harness.Daemon(pathlib.Path(directory), "--retention-bytes", limit).start()
        try:
            print(json.dumps(measure(daemon, flags, limit)))
        finally:
            daemon.kill()


def measure(daemon: harness.Daemon, flags: argparse.Namespace, limit: int) -> dict:
    load = steady_load.write(daemon, steady_load.Pieces(), seconds=flags.seconds,
                             megabytes_per_second=flags.megabytes_per_second)
    return {"seconds": round(load.seconds, 1), "megabytes_per_second": round(load.rate, 1),
            "limit_bytes": limit, "largest_bytes": max(load.sizes), "largest_share": round(max(load.sizes) / limit, 3),
            "median_share": round(load.median / limit, 3),
            "collector_cpu_seconds": round(daemon.cpu_seconds(), 1), "steps": load.steps}


if __name__ == "__main__":
    main()
