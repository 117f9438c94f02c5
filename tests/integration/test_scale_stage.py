# SPDX-License-Identifier: Apache-2.0
"""The scale stage's own scripts, without what it installs: its parts over a directory in place of a Ceph, and its tests of
faults, which then say that they need one. What the parts find out is the stage's; here they must run, and be counted."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

import harness

SCRIPT = """
set -euo pipefail
source "$1/deploy/lib/common.sh"
source "$1/tests/lib/counts.sh"
source "$1/tests/scale/parts.sh"
RANKPROBE_BUILD_DIR=$2 scale_dir=$3
counts_reset
scale_parts "${@:4}"
counts_print
"""


FAULTS = "tests/scale/test_store_faults.py"
STORED_RUN = "tests/integration/test_object_store.py::test_a_stored_run_is_exported_without_a_collector"


def parts(tmp_path, kind: str, *tests: str) -> tuple[int, int, int]:
    ended = subprocess.run(["bash", "-c", SCRIPT, "parts", harness.ROOT, harness.BUILD, tmp_path, kind, *(f"{harness.ROOT}/{test}" for test in tests)],
                           capture_output=True, text=True, timeout=500, env={k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RANKPROBE_"))})
    assert ended.returncode == 0, (ended.stdout[-3000:], ended.stderr[-3000:])
    named = [line for line in ended.stdout.splitlines() if line.startswith("failed: ")]
    counted = tuple(map(int, re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", ended.stdout.splitlines()[-1]).groups()))
    assert len(named) == counted[1], (named, counted)
    return counted


def test_its_parts_run_over_a_directory(tmp_path):
    for program in ("object_store_test", "sealed_test", "train_transformer"):
        if not (harness.BIN / program).exists():
            pytest.skip(f"{program} is not built")
    passed, failed, skipped = parts(tmp_path, "directory", FAULTS, STORED_RUN)
    # Conformance and golden exports; a stored run; the faults need a Ceph.
    assert failed == 0 and passed > 10 and skipped >= 6, (passed, failed, skipped)


def test_a_part_that_fails_is_counted(tmp_path):
    if not (harness.BIN / "object_store_test").exists():
        pytest.skip("object_store_test is not built")
    # No such store: the tests' own filter finds nothing, and the stage must not pass for that.
    passed, failed, skipped = parts(tmp_path, "no-such-store", FAULTS)
    assert failed >= 2
