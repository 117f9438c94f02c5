# SPDX-License-Identifier: Apache-2.0
"""Programs of two ranks over gloo."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F

from workload import STEPS, Block, Watch, program, train



@contextlib.contextmanager
def group() -> Iterator[int]:
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method="file://" + os.environ["WORKLOAD_STORE"], rank=rank, world_size=2)
    try:
        yield rank
    finally:
        dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def rows() -> torch.Tensor:
    return torch.randn(2, 4, 16)


@program(ranks=2)
def ddp(watch: Watch) -> None:
    with group():
        train(watch, nn.parallel.DistributedDataParallel(Net()), rows, square)


@program(ranks=2)
def ddp_accumulate(watch: Watch) -> None:
    with group():
        model = nn.parallel.DistributedDataParallel(Net())
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(STEPS):
            with watch.step(model):
                with model.no_sync():
                    square(model, rows()).backward()
                loss = square(model, rows())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.loss(loss)
        watch.finish(model, optimizer)


@program(ranks=2)
def fsdp2(watch: Watch) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with group():
        mesh, model = init_device_mesh("cpu", (2,)), Net()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(watch, model, rows, square)


@program(ranks=2)
def tensor_parallel(watch: Watch) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with group():
        model = Net()
        for block in model.blocks:
            parallelize_module(block, init_device_mesh("cpu", (2,)), {"up": ColwiseParallel(), "down": RowwiseParallel()})
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(STEPS):
            x = rows()
            with watch.step(model):
                loss = square(model, x)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.loss(loss)
        watch.finish(model, optimizer)


@program(ranks=2)
def pipelining(watch: Watch) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    with group() as rank:
        model = nn.Sequential(Block(), Block()) if rank == 0 else nn.Sequential(Block(), nn.Linear(16, 4))
        # Shapes are given: to find them, PyTorch runs the stages on memory that nobody has written, NaN and all.
        shapes = {"input_args": (torch.zeros(2, 16, requires_grad=rank == 1),),
                  "output_args": (torch.zeros(2, 16 if rank == 0 else 4, requires_grad=True),)}
        schedule = ScheduleGPipe(PipelineStage(model, rank, 2, torch.device("cpu"), **shapes), 2, loss_fn=F.mse_loss)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(STEPS):
            x, target = torch.randn(4, 16), torch.randn(4, 4)
            losses: list[torch.Tensor] = []
            with watch.step(model):
                if rank == 0:
                    schedule.step(x)
                else:
                    schedule.step(target=target, losses=losses)
            optimizer.step()
            optimizer.zero_grad()
            for loss in losses:
                watch.loss(loss)
        watch.finish(model, optimizer)
