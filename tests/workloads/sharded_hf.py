# SPDX-License-Identifier: Apache-2.0
"""Runs of a tiny Llama or Mixtral of transformers on 1, 2 or 4 gloo ranks, recorded. For each line of standard input, {"layout", "fault",
"ranks", "directory"}, the exit codes of the ranks; the dump lies under DIRECTORY/dump, by DIRECTORY/config.json, and log0, log1 beside it.

layout: llama: or mixtral:, and single; tp, fsdp, tp_fsdp, ep, ep_all_to_all, ep_dp, as transformers lays models out by their own plans
(DistributedConfig); torch_tp, torch_tp_fsdp by PyTorch's parallelize_module and fully_shard; pp by torch.distributed.pipelining. With `+batch` each
data-parallel rank has its own part of the batch. fault: none, or what is planted.
"""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import signal
import sys
import traceback
import types
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZES: dict[str, dict[str, Any]] = {
    "tp": {"tp_size": 2}, "fsdp": {"fsdp_size": 2}, "tp_fsdp": {"tp_size": 2, "fsdp_size": 2},
    # Whole experts on each rank: of a batch that ranks share, and of batches of their own.
    "ep": {"tp_size": 2, "ep_size": 2, "ep_implementation": "all_reduce"},
    "ep_all_to_all": {"tp_size": 2, "ep_size": 2, "ep_implementation": "all_to_all"},
    "ep_dp": {"fsdp_size": 2, "ep_size": 2}}
VOCABULARY, WIDTH, HIDDEN, LAYERS, BATCH, TOKENS, STEPS = 64, 32, 48, 2, 4, 6, 2


def whole(kind: str) -> nn.Module:
    import transformers

    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "use_cache": False,
             # What 0.02 is at a width of 4096. With less, attention is the same everywhere and its gradients are rounding alone.
             "initializer_range": 0.2}
    torch.manual_seed(0)
    if kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(attention_bias=True, mlp_bias=True, **sizes))
    else:
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **sizes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # transformers begins with biases of 0, which any split splits well.
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
    return model


def by_transformers(kind: str, directory: pathlib.Path, **sizes: Any) -> nn.Module:
    """The checkpoint of the whole model, read by the model's own plan."""
    import torch.distributed as dist
    from transformers.distributed import DistributedConfig

    model, path = whole(kind), directory / "checkpoint"
    model.save_pretrained(path)  # by rank 0
    dist.barrier()
    return type(model).from_pretrained(path, dtype=torch.float32, distributed_config=DistributedConfig(**sizes)).train()


def by_torch(kind: str, layout: str, fault: str) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Partial, Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, world = whole(kind), int(os.environ["WORLD_SIZE"])
    names = ("tp",) if layout == "torch_tp" else ("dp", "tp")
    mesh = init_device_mesh("cpu", (world,) if len(names) == 1 else (world // 2, 2), mesh_dim_names=names)
    for number, layer in enumerate(model.model.layers):
        plan: dict[str, Any] = {f"self_attn.{part}_proj": ColwiseParallel() for part in "qkv"}
        plan |= {"self_attn.o_proj": RowwiseParallel(), "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
                 "mlp.down_proj": RowwiseParallel()}
        if fault == "not_reduced" and number == 1:
            plan["self_attn.o_proj"] = RowwiseParallel(output_layouts=Partial())
        parallelize_module(layer, mesh["tp"], plan)
    parallelize_module(model, mesh["tp"], {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate())})
    if "dp" in names:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return model


def move_shards(parameter: Any) -> None:
    """Each rank gets the shard of the one before it."""
    import torch.distributed as dist

    local = parameter.to_local()
    group = parameter.device_mesh.get_group(parameter.device_mesh.ndim - 1)
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, local.detach().contiguous(), group=group)
    with torch.no_grad():
        local.copy_(parts[dist.get_rank(group) - 1])


def plant(model: nn.Module, fault: str) -> None:
    layer = model.model.layers[1]
    if fault == "swapped":
        move_shards(layer.self_attn.v_proj.weight)
    elif fault == "bias_split":
        move_shards(layer.self_attn.q_proj.bias)
    elif fault == "experts_swapped":
        move_shards(layer.mlp.experts.down_proj)
    elif fault == "not_reduced":
        # The product of this rank's columns alone.
        replace(layer.self_attn.o_proj, lambda self, x: F.linear(x, self.weight.to_local(), self.bias.to_local()))
    elif fault == "experts_not_reduced":
        replace(layer.mlp.experts, without_sums(layer.mlp.experts.forward))
    elif fault == "router":
        forward = layer.mlp.gate.forward

        def off_by_one(self: nn.Module, x: torch.Tensor) -> Any:
            logits, weights, experts = forward(x)
            return logits, weights, (experts + 1) % self.num_experts

        replace(layer.mlp.gate, off_by_one)


def replace(module: nn.Module, forward: Any) -> None:
    module.forward = types.MethodType(forward, module)


def without_sums(forward: Any) -> Any:
    def alone(_: nn.Module, *args: Any) -> Any:
        import torch.distributed as dist

        real, dist.all_reduce = dist.all_reduce, lambda *args, **kwargs: None
        try:
            return forward(*args)
        finally:
            dist.all_reduce = real

    return alone


def build(kind: str, layout: str, fault: str, directory: pathlib.Path) -> nn.Module:
    if layout == "single":
        return whole(kind)
    if layout.startswith("torch_"):
        model = by_torch(kind, layout, fault)
    else:
        model = by_transformers(kind, directory, **SIZES[layout])
    if fault != "not_reduced" or not layout.startswith("torch_"):
        plant(model, fault)
    return model


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def batch() -> torch.Tensor:
    return torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, split: bool, debugger: Any) -> None:
    parts = int(os.environ["WORLD_SIZE"]) if split else 1
    tokens = batch().chunk(parts)[int(os.environ["RANK"]) if split else 0]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        debugger.start(model=model)
        loss = loss_of(model(input_ids=tokens[:, :-1]).logits, tokens[:, 1:])
        # A mean of parts is the sum of the parts' means over their number.
        (loss / parts if split else loss).backward()
        if split:
            # FSDP takes the mean of the gradients, not the sum.
            for parameter in model.parameters():
                parameter.grad.mul_(parts)
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


class Elsewhere(nn.Module):
    """In the place of what another stage has: hands on what it is given."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states


class Stage(nn.Module):
    """The model of one stage as a pipeline calls it: tensor in, tensor out."""

    def __init__(self, model: nn.Module, first: bool) -> None:
        super().__init__()
        self.causal_lm, self.first = model, first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.causal_lm(**{"input_ids" if self.first else "inputs_embeds": x}).logits


def train_pipeline(kind: str, fault: str, debugger: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    model, number = whole(kind), dist.get_rank()
    # Layers keep their numbers.
    model.model.layers[1 - number] = Elsewhere()
    if number == 0:
        model.model.norm, model.lm_head = Elsewhere(), Elsewhere()
    else:
        model.model.embed_tokens = None
    # Shapes are given: to find them, PyTorch runs the stages on memory that nobody has written.
    hidden, logits = torch.zeros(BATCH, TOKENS, WIDTH, requires_grad=True), torch.zeros(BATCH, TOKENS, VOCABULARY, requires_grad=True)
    shapes = {"input_args": (torch.zeros(BATCH, TOKENS, dtype=torch.int64) if number == 0 else hidden,),
              "output_args": (hidden if number == 0 else logits,)}
    stage = PipelineStage(Stage(model, number == 0), number, 2, torch.device("cpu"), **shapes)
    schedule = ScheduleGPipe(stage, n_microbatches=1, loss_fn=loss_of)
    optimizer, tokens = torch.optim.SGD(model.parameters(), 0.1), batch()
    if fault == "stage_weight" and number == 1:
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight.mul_(1.01)
    for _ in range(STEPS):
        debugger.start(model=model)
        schedule.step(tokens[:, :-1]) if number == 0 else schedule.step(target=tokens[:, 1:])
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def rank(task: dict[str, Any], number: int) -> None:
    """One rank of a run, in a process of its own."""
    directory, world = pathlib.Path(task["directory"]), task["ranks"]
    log = os.open(directory / f"log{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.alarm(180)  # ranks that wait for one another forever
    os.environ["RANKPROBE_RUN"] = directory.name
    if world > 1:
        import torch.distributed as dist

        os.environ.update(RANK=str(number), WORLD_SIZE=str(world), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=number, world_size=world)
    from rankprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=str(directory / "config.json"))
    kind, layout = task["layout"].split(":")
    layout, _, split = layout.partition("+")
    if layout == "pp":
        train_pipeline(kind, task["fault"], debugger)
    else:
        train(build(kind, layout, task["fault"], directory), bool(split), debugger)
    debugger.close()
    if world > 1:
        dist.destroy_process_group()


def run(task: dict[str, Any]) -> list[int]:
    """The exit codes of the ranks."""
    children = []
    for number in range(task["ranks"]):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                rank(task, number)
                status = 0
            except BaseException:  # noqa: BLE001 - told in the log
                traceback.print_exc()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def main() -> None:
    # Seconds that ranks need not wait for each of their own.
    from torch.distributed import device_mesh, fsdp, pipelining, tensor  # noqa: F401
    from transformers import LlamaForCausalLM, MixtralForCausalLM, distributed  # noqa: F401

    torch.set_num_threads(1)
    for name in ("RANK", "WORLD_SIZE", "RANKPROBE_COLLECTOR"):
        os.environ.pop(name, None)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
