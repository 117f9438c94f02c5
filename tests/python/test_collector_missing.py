"""RANKPROBE_ON_COLLECTOR_MISSING: what a job is told when no collector answers, and when (B1)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

SCRIPT = textwrap.dedent("""
    import sys, time, torch
    from rankprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    print("made", file=sys.stderr, flush=True)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    debugger.start(model=net)
    net(torch.ones(1, 2))
    debugger.stop()
    debugger.step()
    time.sleep(float(sys.argv[2]))
    print("trained", file=sys.stderr, flush=True)
""")


def run(dump, seconds: float, collector: str = "127.0.0.1:1", **environment: str) -> subprocess.CompletedProcess:
    # Nothing listens on port 1.
    return subprocess.run([sys.executable, "-c", SCRIPT, dump.config(level="L0"), str(seconds)], text=True,
                          capture_output=True, timeout=120,
                          env={**os.environ, "RANKPROBE_COLLECTOR": collector, "RANK": "0", "RANKPROBE_RUN": "missing",
                               **environment})


@pytest.mark.parametrize("policy", ["", "ignore"])
def test_ignore_says_so_at_once_and_training_goes_on(dump, policy) -> None:
    result = run(dump, 5, RANKPROBE_ON_COLLECTOR_MISSING=policy)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    said = [i for i, line in enumerate(lines) if "nothing of rank 0 is recorded, training goes on" in line]
    assert len(said) == 1 and said[0] < lines.index("trained"), result.stderr
    assert "127.0.0.1:1" in lines[said[0]]


def test_fail_raises_at_construction(dump) -> None:
    result = run(dump, 0, RANKPROBE_ON_COLLECTOR_MISSING="fail")
    assert result.returncode == 1 and "made" not in result.stderr
    assert "no collector at 127.0.0.1:1" in result.stderr.splitlines()[-1]
    assert "on_collector_missing" in result.stderr.splitlines()[-1]


def test_fail_does_not_fail_where_a_collector_is(dump, collector) -> None:
    result = run(dump, 0, collector.address, RANKPROBE_ON_COLLECTOR_MISSING="fail")
    assert result.returncode == 0, result.stderr
    assert "of 1 rank-steps stored" in collector.cli("ledger", "--run", "missing").stdout


def test_spool_keeps_it_for_the_next_process(dump, collector, tmp_path) -> None:
    spool = tmp_path / "spool"
    environment = {"RANKPROBE_ON_COLLECTOR_MISSING": "spool", "RANKPROBE_SPOOL": str(spool)}
    result = run(dump, 3, **environment)
    assert result.returncode == 0, result.stderr
    assert f"what is recorded of rank 0 is kept in {spool}" in result.stderr
    assert any(p.is_file() and p.stat().st_size > 0 for p in spool.rglob("*"))
    result = run(dump, 1, collector.address, **environment)
    assert result.returncode == 0, result.stderr
    assert "of 2 rank-steps stored" in collector.cli("ledger", "--run", "missing").stdout


@pytest.mark.parametrize("policy, word", [("spool", "RANKPROBE_SPOOL"), ("explode", "ignore, spool, fail")])
def test_bad_settings_are_named(dump, policy, word) -> None:
    result = run(dump, 0, RANKPROBE_ON_COLLECTOR_MISSING=policy)
    assert result.returncode == 1 and word in result.stderr.splitlines()[-1]
