# SPDX-License-Identifier: Apache-2.0
"""Smoke test of the benchmark of several collectors: all parts of `tests/bench/run.sh --only scale` at a size that says
nothing else. Values are not looked at: they are of this machine, busy as it is."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

import harness

LINES = {"lean_leaf_of_8_ranks_in_steps_most_ever_resident", "directory_leaf_tensors_of_storing_nothing",
         "directory_leaf_records_of_storing_nothing", "directory_two_leaves_of_one",
         "directory_export_large_of_reading_into_files", "switch_16_over_2_leaves_of_one_collector",
         "leaf_of_8_ranks_resident", "control_40_over_3_leaves_switch", "control_model_of_100000_decided",
         "sessions_30_ranks_over_3_leaves_switch"}


def test_every_figure_is_there(tmp_path):
    ended = subprocess.run([sys.executable, harness.ROOT / "tests/bench/end_to_end.py", "--only", "scale", "--small", "--rounds", "1"],
                           capture_output=True, text=True, timeout=400,
                           env={**os.environ, "RANKPROBE_BENCH_DIR": str(tmp_path), "RANKPROBE_BUILD_DIR": str(harness.BUILD)})
    assert ended.returncode == 0 and "not-measured" not in ended.stdout, (ended.stdout, ended.stderr[-2000:])
    assert LINES <= {line.split()[0] for line in ended.stdout.splitlines() if line}, ended.stdout
