# SPDX-License-Identifier: Apache-2.0
"""A few rounds of the crash oracle over leaves; leaf_rounds.py has as many as one likes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import harness


def test_a_few_rounds_are_clean():
    here = pathlib.Path(__file__).resolve().parent
    ended = subprocess.run([sys.executable, here / "leaf_rounds.py", "--rounds", "4", "--seed", "3"], capture_output=True, text=True, timeout=400,
                           env={**os.environ, "RANKPROBE_BUILD_DIR": str(harness.BUILD), "PYTHONPATH": f"{here}:{harness.ROOT / 'tests' / 'lib'}"})
    assert ended.returncode == 0 and "4 rounds clean" in ended.stdout, ended.stdout + ended.stderr[-4000:]
