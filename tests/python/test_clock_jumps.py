# SPDX-License-Identifier: Apache-2.0
"""A wall clock that is set back under a job stretches no wait of the agent (issue A6; tests/attack/clock_shift.c)."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Sets its own clock back by an hour, again and again, from the moment the debugger is made.
SCRIPT = textwrap.dedent("""
    import os, sys, threading, time, torch
    from rankprobe.pytorch import PrecisionDebugger

    def set_back():
        for hours in range(1, 2000):
            time.sleep(0.1)
            path = os.environ["CLOCK_SHIFT_FILE"]
            with open(path + ".new", "w") as file:
                file.write(str(-3600 * hours))
            os.replace(path + ".new", path)

    threading.Thread(target=set_back, daemon=True).start()
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    net = torch.nn.Linear(2, 2)
    for step in range(10):
        debugger.start(model=net)
        net(torch.ones(1, 2))
        debugger.stop()
        debugger.step()
        time.sleep(0.1)
    print("trained", file=sys.stderr, flush=True)
""")


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> pathlib.Path:
    library = tmp_path_factory.mktemp("shim") / "clock_shift.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/attack/clock_shift.c", "-ldl"],
                   check=True)
    return library


def run(dump, tmp_path, shim, collector: str, **environment: str) -> subprocess.CompletedProcess:
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    return subprocess.run([sys.executable, "-c", SCRIPT, dump.config(level="L1")], text=True, capture_output=True,
                          timeout=150, env={**os.environ, "RANKPROBE_COLLECTOR": collector, "RANK": "0",
                                            "RANKPROBE_RUN": "clock", "LD_PRELOAD": str(shim),
                                            "CLOCK_SHIFT_FILE": str(ahead), **environment})


def test_a_collector_that_is_missing_is_told_of_in_time(dump, tmp_path, shim) -> None:
    result = run(dump, tmp_path, shim, "127.0.0.1:1", RANKPROBE_ON_COLLECTOR_MISSING="fail", RANKPROBE_WAIT_MS="500")
    assert result.returncode == 1 and "no collector at 127.0.0.1:1" in result.stderr, result.stderr


def test_a_job_records_all_its_steps(dump, tmp_path, shim, collector) -> None:
    result = run(dump, tmp_path, shim, collector.address)
    assert result.returncode == 0 and "trained" in result.stderr, result.stderr
    ledger = collector.cli("ledger", "--run", "clock").stdout
    assert "of 10 rank-steps stored" in ledger and "nothing lost" in ledger, ledger
