# SPDX-License-Identifier: Apache-2.0
"""What a signal handler of the program raises reaches the program, also when our code runs at that moment."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
import threading

import harness
import pytest

import rankprobe
from rankprobe import _native

torch = pytest.importorskip("torch")

# An alarm in each of so many runs of a model that is recorded, at another moment each.
SCRIPT = textwrap.dedent("""
    import functools, signal, sys, time, torch
    from rankprobe.pytorch import PrecisionDebugger
    class Limit(Exception): pass
    kind = {"Limit": Limit, "TimeoutError": TimeoutError, "KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}[sys.argv[1]]
    def handler(why, *_): raise kind(why)
    signal.signal(signal.SIGALRM, functools.partial(handler, "alarm"))
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(30)])
    debugger = PrecisionDebugger(dump_path=sys.argv[3], level=sys.argv[2])
    debugger.start(model)
    model(torch.ones(4, 8))  # what is imported and read of files at first has an `except OSError` of the standard library's
    missed = 0
    for round in range(40):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0001 * round)
                x, began = torch.ones(4, 8), time.monotonic()
                while time.monotonic() - began < 2:  # until it comes
                    x = model(x).detach()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            missed += 1
        except kind as error:
            missed += str(error) != "alarm"
    debugger.stop()
    print("missed", missed)
""")


@pytest.mark.parametrize("kind", ["Limit", "TimeoutError", "KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_no_exception_of_a_handler_is_lost(tmp_path: pathlib.Path, level: str, kind: str) -> None:
    if level == "mix" and torch.__version__.startswith("1."):
        pytest.skip("the function mode of PyTorch 1.13 is Python code, which an exception at the wrong moment leaves half done")
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "RANKPROBE_COLLECTOR")}
    done = subprocess.run([sys.executable, "-c", SCRIPT, kind, level, tmp_path / "dump"], capture_output=True, text=True,
                          timeout=300, env={**environment, "RANKPROBE_BIN_DIR": str(harness.BIN),
                                            "PYTHONPATH": str(pathlib.Path(rankprobe.__file__).parents[1])})
    assert done.returncode == 0 and done.stdout.split() == ["missed", "0"], done.stdout + done.stderr
    errors = [path.read_text() for path in (tmp_path / "dump").rglob("dump_error_info.log")]
    assert not any("alarm" in text for text in errors), errors


def test_faults_of_our_own_stay_ours() -> None:
    try:
        torch.ones(2).view(3)
    except RuntimeError as error:
        assert not _native.raise_later_if_programs(error)
    told = []

    def elsewhere() -> None:
        told.append(_native.raise_later_if_programs(KeyboardInterrupt()))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert told == [False], "it would be raised in the main thread"
