# SPDX-License-Identifier: Apache-2.0
"""A workload: a program of public packages, the Watch around its steps, and the training that most have."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from typing import Any, Callable, Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 10


@dataclasses.dataclass
class Program:
    name: str
    run: Callable[["Watch"], None]
    ranks: int = 1
    # Importable packages that it needs beside torch.
    needs: tuple[str, ...] = ()


PROGRAMS: dict[str, Program] = {}


def program(ranks: int = 1, needs: tuple[str, ...] = ()) -> Callable:
    def register(function: Callable) -> Callable:
        PROGRAMS[function.__name__] = Program(function.__name__, function, ranks, needs)
        return function

    return register


class Watch:
    """The calls around a step. `debugger`: a PrecisionDebugger, or None where nobody watches from inside."""

    def __init__(self, debugger: Any = None) -> None:
        self.debugger = debugger
        self.losses: list[str] = []
        self.digest = ""

    @contextlib.contextmanager
    def step(self, model: nn.Module) -> Iterator[None]:
        if self.debugger is not None:
            self.debugger.start(model=model)
        yield
        if self.debugger is not None:
            self.debugger.stop()
            self.debugger.step()

    def loss(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss.detach()).hex())

    def finish(self, model: nn.Module, optimizer: Any = None) -> None:
        """Every bit of what was trained, into one digest."""
        sha = hashlib.sha256()

        def add(value: Any) -> None:
            if isinstance(value, torch.Tensor):
                local = value.to_local() if hasattr(value, "to_local") else value
                sha.update(local.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            elif isinstance(value, dict):
                for item in value.values():
                    add(item)
            elif isinstance(value, (list, tuple)):
                for item in value:
                    add(item)
            elif isinstance(value, (int, float, str)):
                sha.update(repr(value).encode())

        add(model.state_dict())
        if optimizer is not None:
            add(optimizer.state_dict()["state"])
        add(torch.get_rng_state())
        self.digest = sha.hexdigest()


def train(watch: Watch, model: nn.Module, batch: Callable[[], Any], loss_of: Callable[[nn.Module, Any], torch.Tensor],
          optimizer: Any = None, steps: int = STEPS) -> None:
    model.train()
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        data = batch()
        with watch.step(model):
            loss = loss_of(model, data)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        watch.loss(loss)
    watch.finish(model, optimizer)


def tokens(vocabulary: int = 64, length: int = 12) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, vocabulary, (2, length))


def causal(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).loss


def images(size: int = 32) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randn(2, 3, size, size), torch.randint(0, 5, (2,)))


def classify(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    out = model(batch[0])
    return F.cross_entropy(getattr(out, "logits", out), batch[1])


class Block(nn.Module):
    """RMSNorm and residual: the input of a module is used twice."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


def seed() -> None:
    torch.manual_seed(1234)
    torch.set_num_threads(1)
