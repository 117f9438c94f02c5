# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own Trainer with its debug model of Llama 3: FSDP2, activation checkpoints, two micro batches a step, two ranks on a CPU.

torchtitan 0.3.0 knows no CPU and is written for a nightly PyTorch: the program below gives it a device module and `set_timeout`, random
tokens in place of a dataset, and the attention that runs on a CPU. Its training loop is its own.
"""

from __future__ import annotations

import json
import pathlib

import pytest

from conftest import forwards, launch

pytest.importorskip("torchtitan")
PROGRAM = """
import sys, types
from dataclasses import dataclass
sys.path.insert(0, {tests!r})
import torch, torch._utils, torch.distributed
from conftest import bits

module = types.SimpleNamespace(
    set_device=lambda *_: None, get_device_name=lambda *_: "cpu", current_device=lambda: 0, synchronize=lambda *_: None,
    get_device_properties=lambda *_: types.SimpleNamespace(total_memory=1), reset_peak_memory_stats=lambda *_: None, empty_cache=lambda: None,
    memory_stats=lambda *_: {{}})
torch._utils._get_available_device_type, torch._utils._get_device_module = lambda: "cpu", lambda _: module
torch.distributed.set_timeout = lambda *_: None

from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer


class Tokens(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, seq_len, local_batch_size, dp_rank, **_):
        self._shape, self._generator = (local_batch_size, seq_len + 1), torch.Generator().manual_seed(dp_rank)

    def __iter__(self):
        while True:
            rows = torch.randint(0, 2048, self._shape, generator=self._generator)
            yield {{"input": rows[:, :-1]}}, rows[:, 1:]

    def state_dict(self):
        return {{}}

    def load_state_dict(self, state):
        pass


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        super().__init__()

    encode = decode = get_vocab_size = lambda *_: 0


config = llama3_debugmodel()
for layer in config.model_spec.model.layers:
    layer.attention.inner_attention = ScaledDotProductAttention.Config()
del config.model_spec.model.layers[2:]
config.training.seq_len, config.training.local_batch_size, config.training.global_batch_size, config.training.steps = 16, 1, 4, 3
config.training.disable_cuda_graphs, config.debug.seed = True, 0
config.parallelism.spmd_backend = "partial_dtensor"
config.dataloader, config.tokenizer = Tokens.Config(), NoTokenizer.Config()
config.validator.enable = config.checkpoint.enable = False
trainer = Trainer(config)
for module in trainer.model_parts[0].modules():
    if hasattr(module, "set_force_sum_reduction_for_comms"):
        module.set_force_sum_reduction_for_comms(True)  # Gloo has no PREMUL_SUM.
if "watch" in sys.argv:
    from rankprobe.integrations.loops import watch
    watch(trainer.model_parts, trainer.optimizers, step=lambda: trainer.step)
trainer.train()
local = types.SimpleNamespace(parameters=lambda: (p.to_local() for part in trainer.model_parts for p in part.parameters()))
sys.stdout.write(f"bits {{torch.distributed.get_rank()}} {{bits(local)}}\\n")
trainer.close()
torch.distributed.destroy_process_group()
"""


def test_steps_are_those_of_the_trainer(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({
        "task": "statistics", "dump_path": str(tmp_path / "watched"), "rank": [], "step": [], "level": "L0"}))
    plain, _ = launch(tmp_path, PROGRAM)
    assert len(plain) == 2
    two = [f"Module.tok_embeddings.FSDPEmbedding.forward.{i}" for i in (0, 1)]
    ranks = ("rank0", "rank1")
    watched, _ = launch(tmp_path, PROGRAM, "watch", RANKPROBE_CONFIG=str(tmp_path / "config.json"))
    assert watched == plain
    assert forwards(tmp_path / "watched", "tok_embeddings") == {(step, rank): two for step in (1, 2, 3) for rank in ranks}
    attached, said = launch(tmp_path, PROGRAM, attach=True)
    assert attached == plain and "FSDPLlama3Model of torchtitan, recording; a step ends with AdamW.step()" in said
    assert forwards(tmp_path / "dump_path", "tok_embeddings") == {(step, rank): two for step in (0, 1, 2) for rank in ranks}
