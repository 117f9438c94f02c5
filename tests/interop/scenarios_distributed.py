# SPDX-License-Identifier: Apache-2.0
"""Scenarios of two ranks over gloo. INTEROP_RANK and INTEROP_STORE come from the runner."""

from __future__ import annotations

import os
from typing import Any, Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

from scenario_models import Cnn
from scenario_registry import scenario


# Models that must outlive their scenario. When Python frees a DDP model, PyTorch 2.13 waits for gloo's thread with the GIL
# held, while that thread may wait for the GIL to free the context of the last backward: runs without any tool hang so, too.
_KEPT: list[nn.Module] = []


def _group(rank: int) -> Any:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{os.environ['INTEROP_STORE']}", rank=rank, world_size=2)
    return dist


@scenario(level="mix", ranks=2)
def collectives(probe: Any, config: str) -> None:
    rank = int(os.environ["INTEROP_RANK"])
    dist = _group(rank)
    torch.manual_seed(rank)
    model, debugger = nn.Sequential(nn.Linear(4, 4)), probe.PrecisionDebugger(config_path=config)
    x = torch.randn(2, 4)
    debugger.start(model=model)
    dist.all_reduce(x)
    dist.broadcast(x, src=0)
    parts = [torch.zeros(2, 4) for _ in range(2)]
    dist.all_gather(parts, x)
    dist.reduce(x, dst=0, op=dist.ReduceOp.MAX)
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
    dist.barrier()
    model(x).sum().backward()
    debugger.stop()
    debugger.step()
    dist.destroy_process_group()


@scenario(level="L1", ranks=2)
def collectives_async(probe: Any, config: str) -> None:
    rank = int(os.environ["INTEROP_RANK"])
    dist = _group(rank)
    torch.manual_seed(rank)
    debugger = probe.PrecisionDebugger(config_path=config)
    x = torch.randn(2, 4)
    debugger.start()
    dist.all_reduce(x, async_op=True).wait()
    work = dist.isend(x, dst=1) if rank == 0 else dist.irecv(x, src=0)
    work.wait()
    out = torch.zeros(2, 4)
    other = 1 - rank
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, out, other)]):
        request.wait()
    debugger.stop()
    debugger.step()
    dist.destroy_process_group()


@scenario(level="mix", ranks=2)
def ddp(probe: Any, config: str) -> None:
    rank = int(os.environ["INTEROP_RANK"])
    dist = _group(rank)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Cnn())
    _KEPT.append(model)
    debugger = probe.PrecisionDebugger(config_path=config)
    torch.manual_seed(rank)
    for _ in range(2):
        debugger.start(model=model)
        F.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([1, 2])).backward()
        debugger.stop()
        debugger.step()
    dist.destroy_process_group()


class Tall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


def _sharded_steps(probe: Any, config: str, shard: Callable[[nn.Module], nn.Module], steps: int = 2,
                   parts: Callable[[], list[nn.Module]] = lambda: [Tall(), Tall()]) -> None:
    rank = int(os.environ["INTEROP_RANK"])
    dist = _group(rank)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # fills the buffers that sharding makes and shows before they are written
    debugger = probe.PrecisionDebugger(config_path=config)
    model = shard(nn.Sequential(*parts()))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(rank)
    for _ in range(steps):
        debugger.start(model=model)
        model(torch.randn(2, 4)).square().mean().backward()
        debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()
    dist.destroy_process_group()


@scenario(level="mix", ranks=2)
def fsdp(probe: Any, config: str) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    def shard(model: nn.Module) -> nn.Module:
        for i in range(len(model)):
            model[i] = FullyShardedDataParallel(model[i], device_id=torch.device("cpu"))
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))

    _sharded_steps(probe, config, shard)


@scenario(level="mix", ranks=2)
def fully_shard(probe: Any, config: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard as shard_module

    def shard(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", (2,))
        for part in model:
            shard_module(part, mesh=mesh)
        return shard_module(model, mesh=mesh)

    _sharded_steps(probe, config, shard)


class Parallel(nn.Module):
    """Tensor parallel: a column-wise and a row-wise Linear between layers that every rank has whole."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp, self.head = nn.LayerNorm(4), Tall(), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.mlp(self.norm(x)))


@scenario(level="mix", ranks=2)
def tensor_parallel(probe: Any, config: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def shard(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", (2,))
        parallelize_module(model[0], mesh, {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()})
        return model

    _sharded_steps(probe, config, shard, parts=lambda: [Parallel(), nn.Linear(3, 4)])
