# SPDX-License-Identifier: Apache-2.0
"""rankprobe.integrations.debug_mode: recorded calls beside what PyTorch's own DebugMode prints of the same step."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
import torch

debug_mode = pytest.importorskip("torch.utils._debug_mode")

from rankprobe.integrations.debug_mode import debug_string, norm  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8)
        self.blocks = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.gelu(self.norm(self.up(x)), approximate="tanh")
        return torch.cat([self.blocks(x), x], dim=1)


def test_lines_and_numbers_are_those_of_debug_mode(dump: Any) -> None:
    if not hasattr(debug_mode.DebugMode, "log_tensor_hashes"):
        pytest.skip("a DebugMode without hashes")
    model, batch = Net(), torch.linspace(-1, 2, 12).reshape(3, 4)
    with debug_mode.DebugMode(record_torchfunction=True, record_nn_module=True) as mode, debug_mode.DebugMode.log_tensor_hashes(hash_fn=norm):
        model(batch)
    debugger = dump.debugger(level="mix")
    debugger.start(model=model)
    model(batch)
    debugger.stop()
    debugger.step()
    debugger.close()
    (place,) = (dump.path / "step0").iterdir()
    ours = debug_string(place, root="Net").splitlines()
    # Below each function DebugMode has its operators, which alone have hashes; ours has the hash in the line of the function.
    theirs = [line for line in mode.debug_string().splitlines() if not line.lstrip().startswith("aten::")]
    bare = [line.split("  # ")[0] for line in ours]
    modules = [line for line in theirs if "[nn.Mod]" in line]
    assert [line for line in bare if "[nn.Mod]" in line] == modules and len(modules) == 6
    calls = [line for line in bare if "[nn.Mod]" not in line]
    assert len(calls) == 6
    # The arguments have the keywords of the program, where DebugMode has those of the function below.
    names = [line.split("(")[0] for line in theirs]
    assert [line.split("(")[0] for line in calls if line.split("(")[0] in names] == [line.split("(")[0] for line in calls], (calls, theirs)
    assert any(line in theirs for line in calls), (calls, theirs)
    hashes: list[float] = []
    for found in re.findall(r"# (\{'hash': .*\})$", mode.debug_string(), re.MULTILINE):
        value = ast.literal_eval(found)["hash"]
        hashes += value if isinstance(value, (tuple, list)) else [value]
    for line in ours:
        if "# {'hash'" in line:
            value = ast.literal_eval(line.split("# ")[1])["hash"]
            assert any(value == pytest.approx(one, rel=1e-6) for one in hashes), (line, hashes)
