# SPDX-License-Identifier: Apache-2.0
"""A small Llama trained on 1, 2 or 4 gloo ranks in a layout, recorded: python sharded_llama.py LAYOUT FAULT DIRECTORY

LAYOUT: single, tp, sp (tensor and sequence parallel), fsdp, tp_fsdp, pp; with `+batch` each data-parallel rank has its own part of the batch. FAULT: none, or what is
planted. RANK and WORLD_SIZE are in the environment; the dump lies under DIRECTORY/dump, by DIRECTORY/config.json.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS, BATCH, TOKENS = 32, 16, 4, 24, 2, 4, 6


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # No bias for k: attention does not depend on it, so its gradient would be rounding alone.
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=name != "k") for name in "qkv")
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        # The number of heads is that of this rank.
        q, k, v = (p(x).view(batch, tokens, -1, WIDTH // HEADS).transpose(1, 2) for p in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = RmsNorm(), Attention(), RmsNorm(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), RmsNorm()
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for block in self.layers.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def tensor_parallel(model: Llama, mesh: Any, fault: str) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for name, block in model.layers.items():
        plan = {f"attention.{part}": ColwiseParallel() for part in "qkv"}
        plan |= {"attention.o": RowwiseParallel(), "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(),
                 "mlp.down": RowwiseParallel()}
        if fault == "not_reduced" and name == "1":
            plan["attention.o"] = RowwiseParallel(output_layouts=Partial())
        parallelize_module(block, mesh, plan)
    parallelize_module(model, mesh, {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
                                     "head": ColwiseParallel(output_layouts=Replicate())})
    with torch.no_grad():
        if fault == "bias_split":
            # Each rank keeps the half of the other one.
            bias = model.layers["1"].mlp.up.bias
            bias.copy_(distribute_tensor(bias.full_tensor().roll(HIDDEN // 2), mesh, [Shard(0)]))
        if fault == "bias_added_twice":
            # A row-wise layer whose bias is added on each rank before the sum.
            bias = model.layers["0"].mlp.down.bias
            bias.copy_(bias * mesh.size())


def sequence_parallel(model: Llama, mesh: Any, fault: str) -> None:
    """Between attention and MLP each rank has a part of the tokens."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                                   parallelize_module)

    tokens = Shard(1)
    whole = PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(Replicate(),))
    for name, block in model.layers.items():
        plan = {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": whole, "mlp": whole}
        plan |= {f"attention.{part}": ColwiseParallel() for part in "qkv"}
        plan |= {"attention.o": RowwiseParallel(output_layouts=tokens), "mlp.gate": ColwiseParallel(),
                 "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(output_layouts=tokens)}
        parallelize_module(block, mesh, plan)
        if fault == "unequal_norm" and name == "1":
            with torch.no_grad():
                block.norm2.weight.to_local().mul_(1 + 0.01 * mesh.get_local_rank())
    parallelize_module(model, mesh, {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
                                     "norm": SequenceParallel(),
                                     "head": ColwiseParallel(input_layouts=tokens, output_layouts=Replicate())})


def swap_shards(parameter: Any, mesh: Any) -> None:
    """The ranks' shards of a parameter in the wrong order."""
    import torch.distributed as dist

    local = parameter.to_local()
    parts = [torch.empty_like(local) for _ in range(mesh.size())]
    dist.all_gather(parts, local.detach(), group=mesh.get_group())
    with torch.no_grad():
        local.copy_(parts[(mesh.get_local_rank() + 1) % mesh.size()])


def build(layout: str, fault: str) -> tuple[Llama, int, int]:
    """The model, the number of this rank's part of the batch and of such parts."""
    torch.manual_seed(0)
    model = Llama()
    kind, _, batch = layout.partition("+")
    if kind == "single":
        return model, 0, 1
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    world = int(os.environ["WORLD_SIZE"])
    names = {"tp": ("tp",), "sp": ("tp",), "fsdp": ("dp",), "tp_fsdp": ("dp", "tp")}[kind]
    mesh = init_device_mesh("cpu", (world,) if len(names) == 1 else (world // 2, 2), mesh_dim_names=names)
    if "tp" in names:
        (sequence_parallel if kind == "sp" else tensor_parallel)(model, mesh["tp"], fault)
        if fault == "swapped":
            swap_shards(model.layers["1"].attention.v.weight, mesh["tp"])
    if "dp" not in names:
        return model, 0, 1
    for block in model.layers.values():
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    if fault == "swapped" and "tp" not in names:
        swap_shards(model.layers["1"].mlp.gate.weight, mesh["dp"])
    return (model, mesh["dp"].get_local_rank(), mesh["dp"].size()) if batch else (model, 0, 1)


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def train(layout: str, fault: str, debugger: Any) -> None:
    model, part, parts = build(layout, fault)
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(1)).chunk(parts)[part]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        debugger.start(model=model)
        # A mean of parts is the sum of the parts' means over their number.
        (loss_of(model(tokens[:, :-1]), tokens[:, 1:]) / parts).backward()
        optimizer.step()
        # Parameters as they lie between steps: sharded by FSDP, and by tensor parallel before.
        with torch.no_grad():
            for weight in (model.layers["0"].attention.q.weight, model.layers["0"].mlp.up.bias, model.norm.weight):
                torch.abs(weight)
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def train_pipeline(fault: str, debugger: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    model, rank = Llama(), dist.get_rank()
    if rank == 0:
        del model.layers["1"]
        model.norm = model.head = None
    else:
        del model.layers["0"]
        model.embed = None
    schedule = ScheduleGPipe(PipelineStage(model, rank, 2, torch.device("cpu")), n_microbatches=1, loss_fn=loss_of)
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # In the first step stages ask one another for shapes, with a forward of their own.
    for step in range(2):
        if fault == "stage_weight" and step == 1 and rank == 1:
            with torch.no_grad():
                model.layers["1"].mlp.down.weight.mul_(1.01)
        debugger.start(model=model)
        schedule.step(tokens[:, :-1]) if rank == 0 else schedule.step(target=tokens[:, 1:])
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def main() -> None:
    layout, fault, directory = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=int(os.environ["RANK"]), world_size=world)
    from rankprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=str(directory / "config.json"))
    if layout == "pp":
        train_pipeline(fault, debugger)
    else:
        train(layout, fault, debugger)
    debugger.close()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
