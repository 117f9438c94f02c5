# SPDX-License-Identifier: Apache-2.0
"""tests/bench/soak.py in small: what it counts is right, whatever the memory of a first minute does."""

from __future__ import annotations

import subprocess
import sys

import harness


def test_the_ledger_of_a_soak_is_exact() -> None:
    done = subprocess.run([sys.executable, harness.ROOT / "tests" / "bench" / "soak.py", "--steps", "100", "--samples", "10", "--every", "5"],
                          capture_output=True, text=True, timeout=180)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    assert "ledger: 40 rank-steps, 40 whole, 40 expected; verify: 0" in done.stdout, done.stdout
    assert done.stdout.splitlines()[-1] == "holds" or "ledger" not in done.stdout.splitlines()[-1]
