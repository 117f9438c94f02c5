# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP2 engine with a tiny Llama: two micro batches a step, two ranks on a CPU, for which verl has no platform of its own."""

from __future__ import annotations

import json
import pathlib

import pytest

from conftest import forwards, launch

pytest.importorskip("verl")
PROGRAM = """
import sys, types
sys.path.insert(0, {tests!r})
import torch
from conftest import bits
from tensordict import TensorDict
from transformers import LlamaConfig, LlamaForCausalLM
from verl.plugin.platform import platform_cuda, platform_manager


class Cpu(platform_cuda.PlatformCUDA):
    device_name, device_module = "cpu", torch.cpu

    def current_device(self):
        return "cpu"

    def communication_backend_name(self):
        return "gloo"

    def empty_cache(self):
        pass


platform_manager._current_platform = Cpu()
torch.distributed.init_process_group("gloo")
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.losses import sft_loss

rank = torch.distributed.get_rank()
if rank == 0:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                 num_key_value_heads=2)).save_pretrained("model")
torch.distributed.barrier()
engine = FSDPEngineWithLMHead(
    HFModelConfig(path="model", load_tokenizer=False, use_remove_padding=False, enable_gradient_checkpointing=False,
                  override_config={{"attn_implementation": "eager"}}),
    FSDPEngineConfig(strategy="fsdp2", use_torch_compile=False, mixed_precision={{"param_dtype": "fp32"}}),
    FSDPOptimizerConfig(lr=1e-2, total_training_steps=10), CheckpointConfig())
engine.initialize()
if "watch" in sys.argv:
    from rankprobe.integrations.loops import watch
    watch(engine.module, engine.optimizer_step, step=5)
generator = torch.Generator().manual_seed(rank)
for step in range(4):
    rows = [torch.randint(0, 64, (length,), generator=generator) for length in (6, 8, 5, 7)]
    nested = lambda make: torch.nested.as_nested_tensor([make(row) for row in rows], layout=torch.jagged)
    data = TensorDict({{"input_ids": nested(lambda row: row), "position_ids": nested(lambda row: torch.arange(len(row))),
                        "loss_mask": nested(torch.ones_like)}}, batch_size=[4])
    tensordict_utils.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=2, temperature=1.0, use_remove_padding=False)

    def loss_of(**values):
        loss, metrics = sft_loss(None, **values)
        return loss * (float("inf") if step == 1 else 1.0), metrics  # The engine leaves out this step of its optimizer.

    with engine.train_mode():
        engine.train_batch(data, loss_of)
local = types.SimpleNamespace(parameters=lambda: (p.to_local() for p in engine.module.parameters()))
sys.stdout.write(f"bits {{rank}} {{bits(local)}}\\n")
torch.distributed.destroy_process_group()
"""


def test_steps_are_those_of_the_engine(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({
        "task": "statistics", "dump_path": str(tmp_path / "watched"), "rank": [], "step": [], "level": "L0"}))
    plain, _ = launch(tmp_path, PROGRAM)
    assert len(plain) == 2
    two = [f"Module.lm_head.FSDPLinear.forward.{i}" for i in (0, 1)]
    ranks = ("rank0", "rank1")
    watched, _ = launch(tmp_path, PROGRAM, "watch", RANKPROBE_CONFIG=str(tmp_path / "config.json"))
    assert watched == plain
    assert forwards(tmp_path / "watched", "lm_head") == {(step, rank): two for step in (5, 6, 7, 8) for rank in ranks}
    attached, said = launch(tmp_path, PROGRAM, attach=True)
    assert attached == plain and "FSDPLlamaForCausalLM of verl, recording; a step ends with AdamW.step()" in said
    # Only watch() sees a step that the engine leaves out, because the optimizer is not called.
    four = [*two, *(f"Module.lm_head.FSDPLinear.forward.{i}" for i in (2, 3))]
    assert forwards(tmp_path / "dump_path", "lm_head") == {(step, rank): four if step == 1 else two for step in (0, 1, 2) for rank in ranks}
