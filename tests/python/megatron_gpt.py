# SPDX-License-Identifier: Apache-2.0
"""A small GPT in the style of Megatron, trained on 1, 2 or 4 gloo ranks: python megatron_gpt.py LAYOUT FAULT DIRECTORY

Layers hold plain local tensors and call torch.distributed in autograd functions; nothing of it is a DTensor. LAYOUT: single, tp, or tp_dp (two data-parallel
replicas of two tensor parallel ranks); with `+batch` each replica has its own half of the batch. FAULT: none, or what is planted. RANK and WORLD_SIZE are in
the environment; the dump lies under DIRECTORY/dump, by DIRECTORY/config.json.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS, BATCH, TOKENS = 32, 16, 4, 24, 2, 4, 6


class Group:
    """The tensor parallel ranks: this one's number, how many there are, and the process group."""

    rank, size, handle = 0, 1, None


class CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()
        if Group.size > 1:
            dist.all_reduce(grad, group=Group.handle)
        return grad


class ReduceFromGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        if Group.size > 1:
            dist.all_reduce(x, group=Group.handle)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class GatherFromGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        if Group.size == 1:
            return x.view_as(x)
        parts = [torch.empty_like(x) for _ in range(Group.size)]
        dist.all_gather(parts, x.contiguous(), group=Group.handle)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.chunk(Group.size, dim=-1)[Group.rank].contiguous()


def own(whole: torch.Tensor, dim: int, shift: int = 0) -> nn.Parameter:
    """This rank's part of a weight; of a shift, another rank's."""
    return nn.Parameter(whole.chunk(Group.size, dim)[(Group.rank + shift) % Group.size].clone())


class ColumnParallelLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, gather: bool = False) -> None:
        super().__init__()
        whole = nn.Linear(inputs, outputs)
        self.weight, self.bias = own(whole.weight.detach(), 0), own(whole.bias.detach(), 0)
        self.whole, self.gather = [whole], gather

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.linear(CopyToGroup.apply(x), self.weight, self.bias)
        return GatherFromGroup.apply(out) if self.gather else out


class RowParallelLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        whole = nn.Linear(inputs, outputs)
        self.weight, self.bias = own(whole.weight.detach(), 1), nn.Parameter(whole.bias.detach().clone())
        self.reduce, self.bias_first = True, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.linear(x, self.weight)
        if self.bias_first:
            out = out + self.bias
        if self.reduce:
            out = ReduceFromGroup.apply(out)
        return out if self.bias_first else out + self.bias


class VocabParallelEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = own(nn.Embedding(VOCABULARY, WIDTH).weight.detach(), 0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens - Group.rank * len(self.weight)
        foreign = (tokens < 0) | (tokens >= len(self.weight))
        out = F.embedding(tokens.masked_fill(foreign, 0), self.weight)
        return ReduceFromGroup.apply(out.masked_fill(foreign[..., None], 0.0))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Of each head q, k and v, so that a rank's part is that of its heads.
        self.query_key_value, self.dense = ColumnParallelLinear(WIDTH, 3 * WIDTH), RowParallelLinear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.query_key_value(x).view(batch, tokens, HEADS // Group.size, 3, -1).permute(3, 0, 2, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dense(out.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = ColumnParallelLinear(WIDTH, HIDDEN), RowParallelLinear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = nn.LayerNorm(WIDTH), SelfAttention(), nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = VocabParallelEmbedding()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), ColumnParallelLinear(WIDTH, VOCABULARY, gather=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.layers:
            x = block(x)
        return self.head(self.norm(x))


def plant(model: Gpt, fault: str) -> None:
    block = model.layers[1]
    with torch.no_grad():
        if fault == "not_reduced":
            block.attention.dense.reduce = False
        elif fault == "bias_first":
            block.mlp.down.bias_first = True
        elif fault == "bias_split":
            block.mlp.up.bias.copy_(own(block.mlp.up.whole[0].bias.detach(), 0, shift=1))
        elif fault == "swapped":
            block.attention.query_key_value.weight.copy_(own(block.attention.query_key_value.whole[0].weight.detach(), 0, shift=1))


def main() -> None:
    layout, fault, directory = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    torch.set_num_threads(1)
    world, part, parts, replicas = int(os.environ.get("WORLD_SIZE", "1")), 0, 1, []
    if world > 1:
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=world)
        Group.size, Group.rank = 2, rank % 2
        groups = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
        replicas = [dist.new_group(list(range(first, world, 2))) for first in range(2)]
        Group.handle = groups[rank // 2]
        if layout.endswith("+batch"):
            part, parts = rank // 2, world // 2
    from rankprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=str(directory / "config.json"))
    torch.manual_seed(0)
    model = Gpt()
    plant(model, fault)
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(1)).chunk(parts)[part]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        debugger.start(model=model)
        (F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / parts).backward()
        if parts > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=replicas[Group.rank])
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    debugger.close()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
