# SPDX-License-Identifier: Apache-2.0
"""Small models of the shapes that are trained: each with a loss on data of its own."""

from __future__ import annotations

import dataclasses
from typing import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass
class Case:
    model: nn.Module
    loss: Callable[[], torch.Tensor]


class RmsNorm(nn.Module):
    """Uses its input twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """One tensor to three projections."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple:
        b, t, c = x.shape
        q, k, v = (p(x).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        weights = torch.softmax((q @ k.transpose(-2, -1)) / (c // self.heads) ** 0.5, -1)
        return self.o((weights @ v).transpose(1, 2).reshape(b, t, c)), weights


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, 24), nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Moe(nn.Module):
    """Tokens scattered to experts and added back in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 3)
        self.experts = nn.ModuleList(Mlp(width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = torch.topk(torch.softmax(self.router(flat), -1), 2)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            out.index_add_(0, token, expert(flat[token]) * weight[token, slot, None])
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, width: int, norm: Callable, mlp: Callable) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention, self.mlp = norm(width), norm(width), Attention(width), mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))[0]
        return x + self.mlp(self.norm2(x))


class Language(nn.Module):
    def __init__(self, norm: Callable = RmsNorm, mlp: Callable = Mlp, tied: bool = False, again: str = "") -> None:
        super().__init__()
        self.again = again
        self.embed, self.head = nn.Embedding(13, 16), nn.Linear(16, 13, bias=False)
        self.blocks = nn.ModuleList(Block(16, norm, mlp) for _ in range(2))
        self.norm = norm(16)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.again == "reentrant") if self.again else block(x)
        return self.head(self.norm(x))


def language(dtype: torch.dtype = torch.float32, **options) -> Case:
    model = Language(**options)

    def loss() -> torch.Tensor:
        tokens = torch.randint(13, (3, 7))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = model(tokens[:, :-1])
        return F.cross_entropy(out.float().flatten(0, 1), tokens[:, 1:].flatten())

    return Case(model, loss)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.bn1, self.bn2, self.act = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.act(self.bn1(self.conv1(x)))))
        y += x
        return self.act(y)


def resnet() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), Residual(4), Residual(4),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Identity(), nn.Linear(4, 5))
    return Case(model, lambda: F.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(5, (4,))))


class Views(nn.Module):
    """Modules that return views, their input, several tensors, one of them unused, a dict, what they use inside."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.flat = nn.Linear(6, 6), nn.Linear(6, 6), nn.Flatten(0, 1)
        self.same, self.drop = nn.Identity(), nn.Dropout(0.0)
        self.parts, self.rnn, self.attention = Parts(), nn.LSTM(6, 6), nn.MultiheadAttention(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        y.mul_(0.5)
        view = self.flat(y)
        view[0] += 1
        both = self.parts(self.same(view) + self.drop(view), view)
        z = self.b(both["one"]) + both["two"][0] + both["hidden"]
        z = z.view_as(x) + self.rnn(z.view_as(x))[0] + x.pow(2)
        return z + self.attention(z, z, z)[0] + self.parts(z, z)["two"][0]


class Parts(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        hidden = x * 2
        one, two = (hidden + y).tanh(), hidden * y
        return {"one": one, "two": [two, x], "hidden": hidden, "unused": y.exp()}


def views() -> Case:
    model = nn.Sequential(nn.Linear(6, 6), Views())
    return Case(model, lambda: model(torch.randn(2, 3, 6, requires_grad=True)).square().mean())


class Simple(nn.Module):
    """Each input is used once, each output outside only: no sums of three."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.act, self.split = nn.Linear(6, 6), RmsNorm(6), nn.Linear(6, 6), nn.Tanh(), Split()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.split(self.act(self.b(self.norm(self.a(x)))))
        return one * two.exp()


class Split(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple:
        return x.chunk(2, -1)


def simple() -> Case:
    model = nn.Sequential(nn.Linear(6, 6), Simple(), nn.GELU())
    return Case(model, lambda: model(torch.randn(5, 6, requires_grad=True)).square().mean())


CASES = {
    "llama": language,
    "gpt_tied": lambda: language(norm=nn.LayerNorm, tied=True),
    "moe": lambda: language(mlp=Moe),
    "checkpoint": lambda: language(again="other"),
    "checkpoint_reentrant": lambda: language(again="reentrant"),
    "autocast": lambda: language(dtype=torch.bfloat16),
    "resnet": resnet,
    "views": views,
    "simple": simple,
}
# Every module is called once in these.
ONE_CALL = {name: CASES[name] for name in ("llama", "gpt_tied", "simple")}
EXACT = ("simple",)
