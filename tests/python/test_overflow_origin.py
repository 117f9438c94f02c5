# SPDX-License-Identifier: Apache-2.0
"""overflow_check over steps that were really recorded: sound transformer idioms, and faults whose call is known."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rankprobe import analysis

CASES = Path(__file__).resolve().parents[1] / "realbugs" / "nan_cases.py"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    dump = tmp_path_factory.mktemp("nan_cases") / "dump"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, CASES, dump], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return dump, json.loads(done.stdout.strip().splitlines()[-1])


def test_each_origin_is_named_and_sound_programs_have_none(recorded):
    dump, steps = recorded
    wrong = {}
    for name, (step, origin) in steps.items():
        found = [one["call"] for one in analysis.overflow_check(dump / f"step{step}")]
        if (found[:1] or [""]) != [origin]:
            wrong[name] = (found, origin)
    assert wrong == {}
    assert sum(origin == "" for _, origin in steps.values()) >= 25


def test_the_answer_says_where(recorded):
    dump, steps = recorded
    step, _ = steps["softmax_of_a_masked_row"]
    (origin,) = json.loads(_cli("--json", "overflow_check", "-i", dump / f"step{step}", "-o", dump.parent / "report"))["found"]
    assert origin["made"] == "NaN" and "nan_cases.py" in origin["code_line"]
    assert any("Min=-inf" in text for text in origin["inputs"]) and any("Max=Nan" in text for text in origin["outputs"])


def _cli(*arguments) -> str:
    program = Path(os.environ["RANKPROBE_BUILD_DIR"]) / "bin" / "rankprobe"
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60).stdout
