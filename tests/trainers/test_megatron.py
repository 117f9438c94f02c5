# SPDX-License-Identifier: Apache-2.0
"""watch() in a loop of Megatron: a model and an optimizer of megatron-core, two tensor parallel ranks on a CPU.

Its schedules (forward_backward_no_pipelining), its clipping and the constructors of its optimizers make tensors on "cuda"; the model
and the step() that is watched run on a CPU too, so the loop over micro batches is the test's own.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("megatron.core")
PACKAGE = str(pathlib.Path(__import__("rankprobe").__file__).parents[1])
PROGRAM = """
import contextlib, os, sys
sys.path.insert(0, {tests!r})
import torch
from conftest import bits
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer.optimizer import FP32Optimizer, MegatronOptimizer
from megatron.core.optimizer.optimizer_config import OptimizerConfig
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.transformer_config import TransformerConfig
from rankprobe.integrations.loops import watch

torch.cuda.current_device = lambda: "cpu"  # where attention has its buffer
CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()  # there is no dropout
torch.distributed.init_process_group("gloo")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
torch.manual_seed(0)
config = TransformerConfig(num_layers=2, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True, hidden_dropout=0.0,
                           attention_dropout=0.0, pipeline_dtype=torch.float32, gradient_accumulation_fusion=False)
model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=32, max_sequence_length=8)


class CpuOptimizer(FP32Optimizer):
    def __init__(self, optimizer, config):
        MegatronOptimizer.__init__(self, optimizer, config, lambda *_: None)
        self._scale, self.is_stub_optimizer = torch.ones(1), optimizer is None


optimizer = CpuOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), OptimizerConfig(clip_grad=0.0))
iteration = 5 if "resume" in sys.argv else 0
if "watch" in sys.argv:
    watch([model], optimizer, step=iteration, config_path="config.json" if "record" in sys.argv else None)
tokens = torch.randint(0, 32, (16, 2, 8), generator=torch.Generator().manual_seed(1))
positions, mask = torch.arange(8).expand(2, 8), torch.ones(1, 1, 8, 8).triu(1).bool()


def losses_of(batches, backward):
    found = []
    for batch in batches:
        loss = model(batch, positions, mask, labels=batch).mean()
        if backward:
            loss.backward()
        found.append(loss.item())
    return found


losses = []
for step in range(3):
    optimizer.zero_grad()
    losses += losses_of(tokens[2 * step:2 * step + 2], backward=True)
    optimizer.step()
    model.eval()
    with torch.no_grad():
        losses += losses_of(tokens[-2:], backward=False)
    model.train()
with open("numbers" + os.environ["RANK"], "w") as file:
    print(losses, bits(model), file=file)
"""


def _train(directory: pathlib.Path, *words: str, run: bool = False) -> tuple[list[str], str]:
    """The numbers of both ranks, and what they said."""
    (directory / "train.py").write_text(PROGRAM.format(tests=str(pathlib.Path(__file__).parent)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "train.py", *words]
    if run:
        command = [sys.executable, "-m", "rankprobe.run", "--on", "--config", "config.json", "--", *command]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return [(directory / f"numbers{rank}").read_text() for rank in (0, 1)], done.stderr


LAST = "decoder.final_layernorm"


def _forwards(count: int, first: int = 0) -> list[str]:
    return [f"Module.{LAST}.FusedLayerNorm.forward.{i}" for i in range(first, first + count)]


def test_a_step_has_its_micro_batches_and_no_evaluation(tmp_path: pathlib.Path, config: str, calls: Any) -> None:
    plain, _ = _train(tmp_path)
    assert _train(tmp_path, "watch")[0] == plain
    assert _train(tmp_path, "watch", "record", "resume")[0] == plain
    for rank in ("rank0", "rank1"):
        found = calls(LAST, rank=rank)
        assert list(found) == [5, 6, 7] and all(len(names) == 2 for names in found.values()), found
        data = json.loads(next((tmp_path / "dump/step5").glob(f"{rank}/dump.json")).read_text())["data"]
        shapes = [entry["output"][0]["shape"] for name, entry in data.items() if ".mlp.linear_fc1." in name and ".forward.0" in name]
        assert shapes == [[8, 2, 32]] * 2, "each rank has its half of the layer"
        world = json.loads((tmp_path / "dump/step5" / rank / "run_card.json").read_text())["world"]
        assert world["megatron tensor parallel"] == "2" and world["megatron data parallel"] == "1", world


def test_rankprobe_run_says_that_it_found_megatron(tmp_path: pathlib.Path, config: str, calls: Any) -> None:
    plain, _ = _train(tmp_path)
    numbers, said = _train(tmp_path, run=True)
    assert numbers == plain
    assert said.count("attached to GPTModel of a loop of Megatron, recording; a step ends with AdamW.step()") == 1, said
    assert {0, 1, 2} <= set(calls(LAST, rank="rank1"))
