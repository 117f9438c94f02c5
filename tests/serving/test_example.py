# SPDX-License-Identifier: Apache-2.0
"""The walk of docs/serving.md, as it is typed: from a wrong answer to the layer."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import harness

from ports import free_port


def test_from_a_wrong_answer_to_the_layer(environment, tmp_path) -> None:
    done = subprocess.run(
        ["bash", harness.ROOT / "examples" / "vllm" / "find_wrong_layer.sh", tmp_path / "work"], capture_output=True, text=True, timeout=900,
        env={**environment, "PYTHON": sys.executable, "VLLM": str(pathlib.Path(sys.executable).parent / "vllm"), "VLLM_TEST_PORT": str(free_port()),
             "RANKPROBE": str(harness.BIN / "rankprobe"), "RANKPROBED": str(harness.BIN / "rankprobed"),
             "PATH": f"{harness.BIN}{os.pathsep}{environment['PATH']}"})
    # 1: the two dumps differ.
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    # Rows of the MLP's weight of layer 1 are in each other's place: the sum behind it is the first that parts.
    origin = re.search(r"^step \d+ rank 0: (\S+) in model\.norm \(RMSNorm\)$", done.stdout, re.M)
    assert origin and origin[1] == "Tensor.__add__.7.forward", done.stdout[-3000:]
    assert "its inputs match" in done.stdout and "fused_add_rms_norm" in done.stdout
