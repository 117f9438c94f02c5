# SPDX-License-Identifier: Apache-2.0
"""A program that cannot be recorded is not ended: one line, no traceback, every call of the debugger a no-op."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

SCRIPT = textwrap.dedent("""
    import sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix", on_collector_missing=sys.argv[2] or None)
    again = PrecisionDebugger(dump_path=sys.argv[1])
    assert again is debugger and PrecisionDebugger.instance is debugger
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    debugger.set_init_step(3)
    debugger.register_custom_api(torch, "relu")
    for _ in range(2):
        debugger.start(model=net)
        loss = net(torch.ones(1, 2)).sum()
        debugger.save(loss, "loss")
        debugger.report_loss(loss)
        debugger.report_replica(net)
        loss.backward()
        debugger.stop()
        debugger.step()
    debugger.restore_custom_api(torch, "relu")
    debugger.wait_exported()
    assert debugger.config.level == "mix"
    debugger.close()
    assert PrecisionDebugger.instance is None
    print("trained")
""")


def train(dump_path: pathlib.Path, policy: str = "", **environment: str) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("RANKPROBE_COLLECTOR", "RANKPROBE_RUN"))}
    return subprocess.run([sys.executable, "-c", SCRIPT, str(dump_path), policy], capture_output=True, text=True,
                          errors="surrogateescape", timeout=120, env={**clean, **environment})


def assert_trains_with_one_line(result: subprocess.CompletedProcess, word: str) -> None:
    assert result.returncode == 0 and result.stdout == "trained\n", result.stderr
    assert "Traceback" not in result.stderr
    said = [line for line in result.stderr.splitlines() if "nothing is recorded, and the training continues" in line]
    assert len(said) == 1 and word in said[0], result.stderr


def test_a_dump_path_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in ("file", "file/below"):
        assert_trains_with_one_line(train(tmp_path / place), "file")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("run, word", [("x" * 256, "256 bytes"), ("bad\udcff", "UTF-8")])
@pytest.mark.parametrize("collector", ["", "127.0.0.1:1"])
def test_a_name_of_the_run_that_is_none(tmp_path, run, word, collector) -> None:
    environment = {"RANKPROBE_COLLECTOR": collector} if collector else {}
    assert_trains_with_one_line(train(tmp_path / "dump", RANKPROBE_RUN=run, **environment), word)
    assert not (tmp_path / "dump").exists()


def test_who_asks_for_failure_gets_it(tmp_path) -> None:
    result = train(tmp_path / "dump", "fail", RANKPROBE_RUN="x" * 256)
    assert result.returncode == 1 and "CollectorMissingError" in result.stderr and "trained" not in result.stdout


def test_wrong_arguments_still_raise(tmp_path) -> None:
    script = f"from rankprobe.pytorch import PrecisionDebugger\nPrecisionDebugger(dump_path={str(tmp_path)!r}, level='L9')"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1 and "L9" in result.stderr
