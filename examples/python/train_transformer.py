#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a small data-parallel training job with rankprobe attached.

The Python twin of examples/train_transformer: same flags, same step log. It
holds a rankprobe.Session itself and pushes modules through it; PyTorch users
want rankprobe.pytorch.PrecisionDebugger, which records APIs and backward too.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = torch.softmax(scores.masked_fill(future, -math.inf), -1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.ln2(x))))


class Transformer(nn.Module):
    """Logits (batch, length, 256) of bytes (batch, length)."""

    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2, length: int = 64):
        super().__init__()
        self.length = length
        self.token = nn.Embedding(256, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.ln(self.blocks(x)))


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, (list, tuple)) else []


class ModuleRecorder:
    """Records every submodule of `model`: forward inputs and outputs, parameters, and their gradients.

    A fault of a hook never reaches the model: it is counted in `faults`.
    """

    def __init__(self, session: Any, model: nn.Module):
        self.faults = 0
        self._session = session
        self._open = 0
        # The graph holds accumulators weakly.
        self._accumulators: list[Any] = []
        for path, module in model.named_modules():
            if module is model:
                continue
            name = f"Module.{path}.{type(module).__name__}"
            module.register_forward_pre_hook(self._begin(name))
            module.register_forward_hook(self._end)
            for parameter_name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    self._watch(name, parameter_name, parameter)

    def _begin(self, name: str):
        def hook(_module, args):
            if self._session.recording:
                try:
                    self._open = self._session.begin_module(name, tensors(args))
                except Exception:  # noqa: BLE001 - the model must not notice
                    self.faults += 1

        return hook

    def _end(self, module, _args, output):
        if self._open == 0:
            return
        try:
            self._open -= 1
            self._session.end_module(tensors(output), dict(module.named_parameters(recurse=False)))
        except Exception:  # noqa: BLE001
            self.faults += 1

    def _watch(self, module_name: str, parameter_name: str, parameter: nn.Parameter) -> None:
        # The accumulator runs its hooks once the gradient has been added up.
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]

        def hook(*_unused):
            if self._session.recording and parameter.grad is not None:
                try:
                    self._session.parameter_gradient(module_name, parameter_name, parameter.grad)
                except Exception:  # noqa: BLE001
                    self.faults += 1

        accumulator.register_hook(hook)
        self._accumulators.append(accumulator)


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--store", default="")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--collector", default="")
    parser.add_argument("--run", default="")
    parser.add_argument("--config", default="")
    parser.add_argument("--step-log", default="")
    parser.add_argument("--stop-file", default="")
    parser.add_argument("--no-agent", action="store_true")
    return parser.parse_args()


def average_gradients(model: nn.Module, world_size: int, want_stop: bool) -> bool:
    """One all-reduce for all gradients and for the wish to stop."""
    if world_size == 1:
        return want_stop
    parameters = list(model.parameters())
    flat = torch.cat([p.grad.reshape(-1) for p in parameters] + [torch.tensor([float(want_stop)])])
    dist.all_reduce(flat)
    at = 0
    for p in parameters:
        p.grad.copy_((flat[at:at + p.numel()] / world_size).view_as(p))
        at += p.numel()
    return flat[at].item() > 0


def main() -> int:
    flags = parse_flags()
    torch.manual_seed(flags.seed)
    torch.set_num_threads(1)
    text = b"".join(p.read_bytes() for p in sorted(pathlib.Path("/usr/share/common-licenses").iterdir())
                    if p.is_file() and not p.is_symlink())
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    if flags.world_size > 1:
        dist.init_process_group("gloo", init_method=f"file://{flags.store}", rank=flags.rank,
                                world_size=flags.world_size)
    model = Transformer()
    session = recorder = None
    if not flags.no_agent:
        import rankprobe

        config = pathlib.Path(flags.config).read_text(encoding="utf-8") if flags.config else ""
        session = rankprobe.Session(flags.collector, run=flags.run, rank=flags.rank, world_size=flags.world_size,
                                    config_json=config, framework=f"python torch {torch.__version__}")
        recorder = ModuleRecorder(session, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(flags.seed * 1000 + flags.rank)
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    log = open(flags.step_log, "w", encoding="utf-8") if flags.step_log else None
    for step in range(flags.steps):
        began = time.perf_counter()
        starts = torch.randint(0, len(data) - model.length - 1, (flags.batch,), generator=generator)
        batch = torch.stack([data[s:s + model.length + 1] for s in starts])
        if session:
            session.start()
        dumping = bool(session and session.recording)
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 256), batch[:, 1:].reshape(-1))
        loss.backward()
        want_stop = bool(stopping) or bool(flags.stop_file and pathlib.Path(flags.stop_file).exists())
        stop = average_gradients(model, flags.world_size, want_stop)
        optimizer.step()
        if session:
            session.stop()
            session.step()
        if log:
            log.write(json.dumps({"step": step, "loss": loss.item(), "seconds": time.perf_counter() - began,
                                  "dumping": dumping}) + "\n")
            log.flush()
        if stop:
            break
    if session:
        session.close()
    return 1 if recorder and recorder.faults else 0


if __name__ == "__main__":
    sys.exit(main())
