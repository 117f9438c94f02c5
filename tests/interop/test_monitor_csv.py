# SPDX-License-Identifier: Apache-2.0
"""TrainerMon beside the real msprobe's: the same script, the same csv files, row by row and column by column."""

from __future__ import annotations

import csv
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, sys
import torch

told = json.loads(os.environ["TOLD"])
if sys.argv[1] == "msprobe":
    from msprobe.pytorch import TrainerMon
elif sys.argv[1] == "rankprobe":
    from rankprobe.pytorch import TrainerMon
torch.manual_seed(0)
torch.set_num_threads(1)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x, scale=None):
        return x + self.fc(self.norm(x)) * (1 if scale is None else scale)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=torch.ones(8))
        return self.head(torch.relu(x))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
if sys.argv[1] != "alone":
    TrainerMon(sys.argv[2], params_have_main_grad=False).set_monitor(
        model, grad_acc_steps=told["micro"], optimizer=optimizer, start_iteration=told.get("start", 0))
generator = torch.Generator().manual_seed(1)
for step in range(5):
    optimizer.zero_grad()
    for _ in range(told["micro"]):
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
    optimizer.step()
with open(sys.argv[1] + ".state", "w") as file:
    json.dump([p.detach().numpy().tobytes().hex() for p in model.parameters()], file)
"""
ALL = {"xy_distribution": True, "wg_distribution": True, "mv_distribution": True, "param_distribution": True}


def _run(directory: pathlib.Path, which: str, config: dict, told: dict) -> dict[tuple, dict]:
    """The rows of all csv files by metric, name, step and micro step."""
    (directory / "train.py").write_text(SCRIPT)
    (directory / "config.json").write_text(json.dumps(config))
    out = directory / which
    done = subprocess.run([sys.executable, "train.py", which, "config.json"], cwd=directory, timeout=240, capture_output=True,
                          text=True, env={**os.environ, "TOLD": json.dumps(told), "MONITOR_OUTPUT_DIR": str(out)})
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {}
    for path in out.glob("*-rank0-*/*.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                rows[path.stem, row["name"], row["step"], row.get("micro_step")] = row
    return rows


def _same(ours: str, theirs: str) -> bool:
    try:
        a, b = float(ours), float(theirs)
    except ValueError:
        return ours == theirs
    # Both are rounded to six places, and msprobe's norm and mean are of doubles.
    return (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 2e-6 + 1e-6 * abs(b)


@pytest.mark.parametrize("config, told", [
    ({**ALL, "targets": {}, "ops": ["norm", "max", "min", "mean"]}, {"micro": 1}),
    ({**ALL, "targets": {}, "ops": ["norm", "nans"], "step_interval": 2, "start_step": 1}, {"micro": 2}),
    ({**ALL, "targets": {"blocks.0.fc": {}, "0:head": {}}, "ops": ["max"], "collect_times": 2}, {"micro": 1}),
    ({"wg_distribution": True, "targets": {"blocks.1": {}}, "ops": ["norm"], "step_count_per_record": 3}, {"micro": 2, "start": 10}),
    ({"xy_distribution": True, "forward_only": True, "targets": {"head": {}}, "ops": ["mean", "min"]}, {"micro": 1}),
], ids=["all", "micro-batches", "targets", "gradients", "forward"])
def test_every_row_and_column_is_msprobes(tmp_path, config, told) -> None:
    theirs = _run(tmp_path, "msprobe", config, told)
    ours = _run(tmp_path, "rankprobe", config, told)
    # Of the model itself, which level L0 has not.
    theirs = {key: row for key, row in theirs.items() if not key[1].startswith(".")}
    assert len(theirs) > 3 and set(ours) == set(theirs)
    for key, row in theirs.items():
        assert list(ours[key]) == list(row), key
        assert all(_same(ours[key][column], row[column]) for column in row), (ours[key], row)


def test_the_training_is_the_one_without_it(tmp_path) -> None:
    config, told = {**ALL, "targets": {}, "ops": ["norm"]}, {"micro": 2}
    for which in ("rankprobe", "alone"):
        _run(tmp_path, which, config, told)
    assert (tmp_path / "rankprobe.state").read_text() == (tmp_path / "alone.state").read_text()
