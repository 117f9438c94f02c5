# SPDX-License-Identifier: Apache-2.0
"""The loop of the README on a small model, as a user has it: private collector,
trees in dump_path. Run in a bare system that has the wheel and PyTorch."""

import json
import pathlib
import sys
import tempfile

import torch

from rankprobe.pytorch import PrecisionDebugger

with tempfile.TemporaryDirectory() as scratch:
    config = pathlib.Path(scratch, "config.json")
    config.write_text(json.dumps({"task": "statistics", "dump_path": scratch + "/dump", "rank": [], "step": [],
                                  "level": "mix", "statistics": {"data_mode": ["all"]}}))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(config_path=str(config))
    for batch in torch.ones(3, 4, 8):
        debugger.start(model)
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    debugger.close() if hasattr(debugger, "close") else None
    trees = sorted(pathlib.Path(scratch, "dump").glob("step*/*/dump.json"))
    assert len(trees) == 3, sorted(map(str, pathlib.Path(scratch).rglob("*")))
    data = json.loads(trees[0].read_text())["data"]
    assert any(name.startswith("Module.0.Linear.forward") for name in data), sorted(data)
    print(f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}: {len(data)} records in each of {len(trees)} steps")
