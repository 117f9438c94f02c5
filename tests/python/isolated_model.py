# SPDX-License-Identifier: Apache-2.0
"""A small transformer of 24 layers, and faults that can be planted in one of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

LAYERS, WIDTH, HEADS, WORDS = 24, 16, 2, 32


class _Scaled(torch.autograd.Function):
    """x * 2, with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wrong: bool) -> torch.Tensor:
        ctx.wrong = wrong
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * (1 if ctx.wrong else 2), None


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = (WIDTH // HEADS) ** -0.5

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * self.scale + mask
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


class Gate(nn.Module):
    """A custom function without children and parameters."""

    wrong = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(_Scaled.apply(x, self.wrong))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(WIDTH, 2 * WIDTH), Gate(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.gate(self.up(x)))


class Layer(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.ln1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.ln2, self.mlp, self.drop = nn.LayerNorm(WIDTH), Mlp(), nn.Dropout(p)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.ln1(x), mask=mask)
        return x + self.drop(self.mlp(self.ln2(x)))


class Model(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(p) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        size = words.shape[1]
        mask = torch.zeros(size, size).masked_fill(torch.ones(size, size).triu(1).bool(), torch.finfo(torch.float32).min)
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, mask=mask.to(x.dtype))
        return self.head(self.norm(x))


def make(p: float = 0.0, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    model = Model(p)
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.qkv.weight.mul_(3)  # attention that is not uniform
    return model


def batch(seed: int = 1, size: int = 6) -> torch.Tensor:
    return torch.randint(0, WORDS, (2, size), generator=torch.Generator().manual_seed(seed))


def plant(model: Model) -> list[str]:
    """Three faults in three layers; the modules that have them."""
    model.layers[5].attention.scale = WIDTH**-0.5 / 2
    model.layers[11].ln2.eps = 3.0
    model.layers[20].mlp.gate.wrong = True
    return ["Module.layers.5.attention.Attention", "Module.layers.11.ln2.LayerNorm", "Module.layers.20.mlp.gate.Gate"]


def loss(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(words).float().flatten(0, 1), words.roll(-1, 1).flatten())
