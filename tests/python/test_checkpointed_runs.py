# SPDX-License-Identifier: Apache-2.0
"""first-divergence of a training with activation checkpoints and the same one without: a checkpoint computes calls again in the backward."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import harness
import rankprobe

PACKAGE = str(pathlib.Path(rankprobe.__file__).parents[1])
PROGRAM = """
import sys
import torch
from torch.utils.checkpoint import checkpoint
from rankprobe.pytorch import PrecisionDebugger

mode, fault = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.inner, self.scale = torch.nn.Linear(8, 8), scale

    def forward(self, x):
        return x + torch.tanh(self.inner(x)) * self.scale


blocks = torch.nn.ModuleList([Block(1.0), Block(fault), Block(1.0)])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = blocks

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if mode == "plain" else checkpoint(block, x, use_reentrant=mode == "reentrant")
        return x


net = Net()
debugger = PrecisionDebugger(dump_path=mode + sys.argv[2], task="statistics", level="mix")
debugger.start(net)
for i in range(2):  # micro batches
    net(torch.randn(4, 8, requires_grad=True)).square().mean().backward()
debugger.stop()
debugger.step()
debugger.close()
"""


def record(directory: pathlib.Path, mode: str, fault: float) -> pathlib.Path:
    (directory / "train.py").write_text(PROGRAM)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RANKPROBE_COLLECTOR")}
    done = subprocess.run([sys.executable, "train.py", mode, str(fault)], cwd=directory, capture_output=True, text=True, timeout=120,
                          env={**environment, "PYTHONPATH": PACKAGE})
    assert done.returncode == 0, done.stderr
    return directory / f"{mode}{fault}" / "step0"


def divergence(target: pathlib.Path, reference: pathlib.Path, code: int) -> str:
    done = subprocess.run([str(harness.BIN / "rankprobe"), "first-divergence", str(target), str(reference)], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


# The backward of a reentrant checkpoint is that of the calls that it computes again, which have no partner.
@pytest.mark.parametrize(("mode", "left_out", "code"), [("reentrant", 60, 1), ("not reentrant", 36, 0)])
def test_calls_of_later_micro_batches_are_compared_with_their_own(tmp_path: pathlib.Path, mode: str, left_out: int, code: int) -> None:
    plain, checkpointed = record(tmp_path, "plain", 1.0), record(tmp_path, mode, 1.0)
    for pair in ((checkpointed, plain), (plain, checkpointed)):
        said = divergence(*pair, code=code)
        assert said.startswith(f"The sides have different activation checkpoints: {left_out} calls "), said
        assert "\nNo difference in the " in said and ("Not seen" in said) == (code == 1), said
    wrong = divergence(record(tmp_path, mode, 1.01), plain, code=1)
    assert "step 0 rank 0: Tensor.__mul__.1.forward in blocks.1 (Block)" in wrong, wrong
