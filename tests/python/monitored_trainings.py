# SPDX-License-Identifier: Apache-2.0
"""Trainings of several kinds, and what task monitor should say of each step, computed apart.

    monitored_trainings.py CASE OUT [config.json]

OUT{rank} gets a JSON list with a dict for each step: what the monitor should have recorded,
by a model of its own that knows neither DDP, FSDP nor a scaler and takes its
gradients with torch.autograd.grad.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
STEPS, MICRO, SCALE = 3, 2, 1024.0
Grads = dict[str, torch.Tensor]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = torch.nn.LayerNorm(6), torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x))


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block(), torch.nn.Linear(6, 3))


def batch(rank: int, step: int, micro: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + 10 * step + micro)
    return torch.randn(4, 6, generator=generator)


def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).float().square().mean()


def gradients(model: torch.nn.Module, rank: int, step: int, micros: int, autocast: bool = False) -> Grads:
    """The sum over the first `micros` micro batches of a rank."""
    names, parameters = zip(*model.named_parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for micro in range(micros):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, batch(rank, step, micro))
        total = [a + b for a, b in zip(total, torch.autograd.grad(loss, parameters))]
    return dict(zip(names, total))


def norms(tensors: Grads) -> dict[str, float]:
    return {name: t.detach().double().norm().item() for name, t in tensors.items()}


def adamw(lr: float = 0.01, **options: Any) -> Callable:
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, **options)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows, as FSDP2 cuts them."""
    rows = -(-tensor.shape[0] // WORLD)
    return tensor[rows * RANK:rows * (RANK + 1)]


# name -> optimizer of the training, and of the model apart; sharding; scaler; autocast; a step whose loss is infinite
CASES: dict[str, dict[str, Any]] = {
    "foreach": {"make": adamw(foreach=True), "apart": adamw(foreach=False)},
    "fused": {"make": adamw(fused=True), "apart": adamw(foreach=False)},
    "fused_sgd": {"make": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), "apart": sgd},
    "autocast": {"make": sgd, "apart": sgd, "autocast": True},
    "scaled": {"make": sgd, "apart": sgd, "scaler": True},
    "scaled_clipped": {"make": sgd, "apart": sgd, "scaler": True, "clip": 0.05},
    "scaled_fused": {"make": adamw(fused=True), "apart": adamw(foreach=False), "scaler": True},
    "scaled_fused_clipped": {"make": adamw(fused=True), "apart": adamw(foreach=False), "scaler": True, "clip": 0.05},
    "ddp": {"make": sgd, "apart": sgd, "shard": "ddp"},
    "fsdp2": {"make": adamw(), "apart": adamw(foreach=False), "shard": "fsdp2"},
}


def no_sync(case: dict, model: Any, last: bool) -> Any:
    if case.get("shard") == "ddp" and not last:
        return model.no_sync()
    if case.get("shard") == "fsdp2":
        model.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def expected(case: dict, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    """One step of the model apart."""
    autocast = case.get("autocast", False)
    scale = SCALE if case.get("scaler") else 1.0
    cut = shard if case.get("shard") == "fsdp2" else (lambda tensor: tensor)
    of_ranks = [gradients(model, rank, step, MICRO, autocast) for rank in range(WORLD)]
    reduced = {name: sum(grads[name] for grads in of_ranks) / WORLD for name in of_ranks[0]}
    for name, parameter in model.named_parameters():
        parameter.grad = reduced[name].clone()
    if "clip" in case:
        torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen: dict[str, Any] = {
        "loss": [], "scale": scale, "grad": norms({n: cut(p.grad) for n, p in model.named_parameters()}), "unreduced": [],
        "param": norms({n: cut(p) for n, p in before.items()})}
    for micro in range(MICRO):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            seen["loss"].append(loss_of(model, batch(RANK, step, micro)).item())
        seen["unreduced"].append(norms({n: g * scale for n, g in gradients(model, RANK, step, micro + 1, autocast).items()}))
    optimizer.step()
    seen["update"] = norms({n: cut(p.detach() - before[n]) for n, p in model.named_parameters()})
    return seen


def train(case: dict, config: str | None) -> Iterator[dict]:
    model = make_model()
    apart = copy.deepcopy(model)
    net: Any = model
    if case.get("shard") == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(model)
    elif case.get("shard") == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in list(model)[:2]:
            fully_shard(block)
        fully_shard(model)
    optimizer, other = case["make"](model.parameters()), case["apart"](apart.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE) if case.get("scaler") else None
    debugger = None
    if config is not None:
        from rankprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(config_path=config)
    for step in range(STEPS):
        if debugger:
            debugger.start(model=model)
        optimizer.zero_grad()
        for micro in range(MICRO):
            with no_sync(case, net, micro == MICRO - 1):
                with torch.autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
                    loss = loss_of(net, batch(RANK, step, micro))
                (scaler.scale(loss) if scaler else loss).backward()
        if "clip" in case:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if debugger:
            debugger.stop()
            debugger.step()
        yield expected(case, apart, other, step)
    if debugger:
        debugger.close()


def main() -> None:
    case, out, *config = sys.argv[1:]
    torch.set_num_threads(1)
    if WORLD > 1:
        dist.init_process_group("gloo")
    seen = list(train(CASES[case], config[0] if config else None))
    with open(f"{out}{RANK}", "w", encoding="utf-8") as file:
        json.dump(seen, file)
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
