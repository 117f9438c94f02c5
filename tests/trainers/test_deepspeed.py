# SPDX-License-Identifier: Apache-2.0
"""watch() of a DeepSpeed engine, on a CPU, in a process of its own: the engine makes a process group."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("deepspeed")
PACKAGE = str(pathlib.Path(__import__("rankprobe").__file__).parents[1])
PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import deepspeed, torch
from conftest import bits
from rankprobe.integrations.deepspeed import watch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config={{
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}})
if "load" in sys.argv:
    engine.load_checkpoint("saved")
if "watch" in sys.argv:
    watch(engine, config_path="config.json" if "record" in sys.argv else None)
losses = []
for batch in torch.randn(8, 2, 8, generator=torch.Generator().manual_seed(1)):
    loss = engine(batch).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
    engine.eval()
    with torch.no_grad():
        engine(batch)
    engine.train()
if "save" in sys.argv:
    engine.save_checkpoint("saved")
print("numbers", losses, bits(model))
"""


def _train(directory: pathlib.Path, *words: str) -> str:
    (directory / "train.py").write_text(PROGRAM.format(tests=str(pathlib.Path(__file__).parent)))
    variables = {"PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run([sys.executable, "train.py", *words], env={**os.environ, **variables}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return next(line for line in done.stdout.splitlines() if line.startswith("numbers"))


def test_a_step_is_a_boundary_of_the_engine_and_goes_on_after_a_checkpoint(tmp_path: pathlib.Path, config: str, calls: Any) -> None:
    plain = _train(tmp_path, "save")
    assert _train(tmp_path, "watch") == plain
    assert _train(tmp_path, "watch", "record") == plain
    assert calls("0") == {step: [f"Module.0.Linear.forward.{i}" for i in (0, 1)] for step in range(4)}
    _train(tmp_path, "watch", "record", "load")
    assert {4, 5, 6, 7} <= set(calls("0"))
