# SPDX-License-Identifier: Apache-2.0
"""Public programs watched by rankprobe: the training is the same bit for bit, nothing fires, zero-code attach records what it
was told, and what is dumped is what msprobe dumps, but for the differences that EXPECTED names. Those of runner.EVERY_WAY
train the same bits also off, at every level, and with the other tasks switched in mid-run. diagnose finds nothing in any, but for
FINDINGS.

RANKPROBE_WORKLOADS=all runs all of them (stage workloads), else those of SMOKE.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("msprobe")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import programs  # noqa: E402
import runner  # noqa: E402
import table  # noqa: E402
from selected import names_of  # noqa: E402

SMOKE = ["torch_cnn", "torch_encoder", "torch_checkpoint", "ddp", "fsdp2"]
ALL = os.environ.get("RANKPROBE_WORKLOADS") == "all"
NAMES = list(programs.PROGRAMS) if ALL else SMOKE
EXPECTED = json.loads((HERE / "expected_differences.json").read_text())
# What diagnose rightly says of some of the programs.
FINDINGS = {
    # Each rank draws its batch from the same seed.
    "ddp": "same-batch-on-ranks",
    "ddp_accumulate": "same-batch-on-ranks",
    # They are trained to name the tokens that went in; of BERT's no token is masked.
    "torch_lstm": "label-shift",
    "hf_bert": "label-shift",
    # A weight of 1 in bfloat16 does not change by 0.001.
    "hf_llama_bf16": "update-zero",
}


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    kept = os.environ.get("WORKLOADS_OUT")
    out = pathlib.Path(kept) if kept else tmp_path_factory.mktemp("workloads")
    out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, str(HERE / "runner.py"), str(out), *names_of(request)], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {row["name"]: row for row in json.loads((out / "results.json").read_text())}


@pytest.mark.parametrize("name", NAMES)
def test_workload(rows: dict[str, dict[str, Any]], name: str) -> None:
    row = rows[name]
    if "skipped" in row:
        assert not ALL, row["skipped"]
        pytest.skip(row["skipped"])
    for mode in ("plain", "rankprobe", "attached"):
        assert not row["faults"][mode], row["faults"]
    assert row["rankprobe_same_bits"] and row["attached_same_bits"], "the training is another with rankprobe"
    attached = row["attached"]
    assert not attached["triggers"], attached["triggers"]
    assert attached["rank_steps"] == row["ranks"] * len(runner.ATTACHED_STEPS) and not attached["not_whole"], attached
    assert set(row["ways"]) == (set(runner.WAYS) if name in runner.EVERY_WAY else set())
    for way, found in row["ways"].items():
        assert not found["faults"], (way, found["faults"])
        assert found["same_bits"], f"the training is another under {way}"
        assert found["steps"] == runner.WAYS[way]["step"], (way, found)
    assert [finding for finding in row["findings"] if FINDINGS.get(name, "-") not in finding] == []
    assert row["entries"] > 0
    # What is in memory that nobody has written may be the same by chance.
    if name not in EXPECTED:
        assert not table.differences(row), table.differences(row)


def test_every_expected_difference_has_a_reason() -> None:
    for name, reason in EXPECTED.items():
        assert name in programs.PROGRAMS and len(reason) > 20
