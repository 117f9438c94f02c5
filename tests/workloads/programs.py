# SPDX-License-Identifier: Apache-2.0
"""Public programs, small and seeded: what tests/workloads/runner.py runs without rankprobe, attached, dumped by rankprobe
and dumped by msprobe.

    python programs.py NAME OUT.json      one of them, with nobody watching

A program is a function of a Watch; it trains STEPS steps and tells its model, optimizer and losses. Random weights of small
configurations: nothing is downloaded.
"""

from __future__ import annotations

import json
import sys

import programs_torch  # noqa: F401  (registers its programs)
import programs_hf  # noqa: F401
import programs_ranks  # noqa: F401
from workload import PROGRAMS, STEPS, Program, Watch, seed  # noqa: F401


def main(name: str, out: str) -> None:
    seed()
    watch = Watch()
    PROGRAMS[name].run(watch)
    with open(out, "w") as file:
        json.dump({"losses": watch.losses, "digest": watch.digest}, file)


if __name__ == "__main__":
    main(*sys.argv[1:3])
