# SPDX-License-Identifier: Apache-2.0
"""Task monitor, word `communication`: each call of torch.distributed, in and out, beside what the ranks know themselves."""

from __future__ import annotations

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
import torch

from ports import free_port

SCRIPT = """
import json, os, sys
import torch
import torch.distributed as dist

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
originals = {name: getattr(dist, name) for name in ("all_reduce", "all_gather", "broadcast", "send")}
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
debugger = None
if len(sys.argv) > 2:
    from rankprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(config_path=sys.argv[2])
generator = torch.Generator().manual_seed(rank)
for step in range(3):
    if debugger:
        debugger.start(model=model)
    optimizer.zero_grad()
    model(torch.randn(3, 4, generator=generator)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    values = torch.tensor([rank + 1.0, float("nan") if step == 2 else 0.0, -3.0])
    gathered = [torch.empty(3) for _ in range(2)]
    dist.all_gather(gathered, values)
    late = torch.full((2,), rank + 1.0)
    work = dist.all_reduce(late, op=dist.ReduceOp.MAX, async_op=True)
    dist.broadcast(tensor=torch.full((5,), float(rank)), src=1)
    if not torch.__version__.startswith("1."):  # whose gloo has none
        into = torch.empty(2)
        dist.reduce_scatter_tensor(into, torch.arange(4.0))
    work.wait()
    dist.all_reduce(torch.full((2,), rank + 1.0), async_op=True).get_future().wait()
    if rank == 0:
        dist.send(torch.arange(4.0), 1)
    else:
        dist.recv(torch.zeros(4), 0)
    dist.barrier()
    optimizer.step()
    if debugger:
        debugger.stop()
        debugger.step()
if debugger:
    debugger.close()
assert all(getattr(dist, name) is original for name, original in originals.items()), "something is left in place"
with open(sys.argv[1] + str(rank), "w") as file:
    json.dump([p.detach().numpy().tobytes().hex() for p in model.parameters()], file)
dist.destroy_process_group()
"""


def _run(directory: pathlib.Path, out: str, monitor: dict | None) -> list[str]:
    """The parameters of each rank at the end."""
    (directory / "train.py").write_text(SCRIPT)
    arguments = [out]
    if monitor is not None:
        (directory / "monitor.json").write_text(json.dumps({"task": "monitor", "dump_path": str(directory / "dump"), "monitor": monitor}))
        arguments.append("monitor.json")
    told = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    running = [subprocess.Popen([sys.executable, "train.py", *arguments], cwd=directory, stderr=subprocess.PIPE, text=True,
                                env={**told, "RANK": str(rank)}) for rank in (0, 1)]
    for process in running:
        _, text = process.communicate(timeout=240)
        assert process.returncode == 0, text
    return [(directory / f"{out}{rank}").read_text() for rank in (0, 1)]


def _calls(directory: pathlib.Path, step: int, rank: int, file: str = "dump.json") -> dict:
    (place,) = (directory / "dump" / f"step{step}").glob(f"rank{rank}")
    assert not (place / "dump_error_info.log").exists()
    data = json.loads((place / file).read_text())["data"]
    return {entry: content for entry, content in data.items() if entry.startswith("Distributed.")}


def _is(tensor: dict, numbers: list[float]) -> None:
    finite = [n for n in numbers if not math.isnan(n)]
    assert tensor["NanCount"] == len(numbers) - len(finite) and tensor["InfCount"] == 0
    if len(finite) == len(numbers):
        assert [tensor[key] for key in ("Max", "Min", "Mean", "Norm", "ZeroCount")] == pytest.approx(
            [max(numbers), min(numbers), sum(numbers) / len(numbers), math.hypot(*numbers), numbers.count(0.0)], rel=1e-6)
    else:
        assert math.isnan(tensor["Norm"])


def test_each_call_has_its_values_before_and_after(tmp_path) -> None:
    _run(tmp_path, "out", {"every": 1, "values": ["communication"], "list": ["nothing.of.this.name"], "extra_statistics": ["counts"]})
    for step in range(3):
        reduced = []
        for rank in (0, 1):
            calls = _calls(tmp_path, step, rank)
            assert [name for name in calls if ".all_reduce." in name] == [f"Distributed.all_reduce.{n}.forward" for n in range(6)]
            reduced.append([calls[f"Distributed.all_reduce.{n}.forward"]["output"][0]["Norm"] for n in range(4)])
            own = [rank + 1.0, math.nan if step == 2 else 0.0, -3.0]
            gather = calls["Distributed.all_gather.0.forward"]
            assert gather["input_args"][0] is None, "a buffer before the call is nobody's value"
            _is(gather["input_args"][1], own)
            for sender in (0, 1):
                _is(gather["output"][0][sender], [sender + 1.0, *own[1:]])
            late = calls["Distributed.all_reduce.4.forward"]
            _is(late["input_args"][0], [rank + 1.0] * 2)
            _is(late["output"][0], [2.0, 2.0])
            unknown = calls["Distributed.all_reduce.5.forward"]["output"][0]
            assert unknown["shape"] == [2] and unknown["Norm"] is None, "nobody called wait()"
            _is(calls["Distributed.broadcast.0.forward"]["input_kwargs"]["tensor"], [float(rank)] * 5)
            _is(calls["Distributed.broadcast.0.forward"]["output"][0], [1.0] * 5)
            if not torch.__version__.startswith("1."):
                scatter = calls["Distributed.reduce_scatter_tensor.0.forward"]
                _is(scatter["input_args"][1], [0.0, 1.0, 2.0, 3.0])
                _is(scatter["output"][0], [4.0 * rank, 4.0 * rank + 2.0])
            one = calls[f"Distributed.{'recv' if rank else 'send'}.0.forward"]
            _is(one["output" if rank else "input_args"][0], [0.0, 1.0, 2.0, 3.0])
        assert reduced[0] == reduced[1] and all(reduced[0])
        assert not json.loads(next((tmp_path / "dump" / f"step{step}").glob("rank0/debug.json")).read_text())["data"]


@pytest.mark.parametrize("monitor, steps", [({"every": 2}, {0, 2}), ({"every": 1, "values": ["training", "activations"]}, set())],
                         ids=["all of each second step", "other words"])
def test_only_where_it_was_asked_for_and_the_training_keeps_every_bit(tmp_path, monitor, steps) -> None:
    assert _run(tmp_path, "watched", monitor) == _run(tmp_path, "alone", None)
    recorded = {int(place.name[4:]) for place in (tmp_path / "dump").glob("step*")}
    assert {step for step in recorded if _calls(tmp_path, step, 0)} == steps
    assert all(any(name.startswith("Module.") for name in json.loads(
        next((tmp_path / "dump" / f"step{step}").glob("rank0/dump.json")).read_text())["data"]) for step in recorded)


COMPILED = """
import sys
import torch
import torch.distributed as dist
from rankprobe.pytorch import PrecisionDebugger

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.Linear(2, 2)
debugger = PrecisionDebugger(config_path="monitor.json")


def doubled(x):
    y = x * 2
    dist.all_reduce(y)
    return y


for step in range(3):
    debugger.start(model=model)
    model(torch.ones(1, 2)).sum().backward()
    dist.all_reduce(torch.ones(2))
    if step == 1:
        doubled = torch.compile(doubled, fullgraph=True, backend="eager")
    assert doubled(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    debugger.stop()
    debugger.step()
debugger.close()
dist.destroy_process_group()
"""


@pytest.mark.skipif(not hasattr(getattr(torch, "compiler", None), "set_stance"), reason="PyTorch below 2.6")
def test_a_compiler_never_sees_what_stands_in_for_the_calls(tmp_path) -> None:
    (tmp_path / "monitor.json").write_text(json.dumps({"task": "monitor", "dump_path": str(tmp_path / "dump"), "rank": [0],
                                                       "monitor": {"every": 1}}))
    (tmp_path / "compiled.py").write_text(COMPILED)
    done = subprocess.run([sys.executable, "compiled.py", str(free_port())], cwd=tmp_path, capture_output=True, text=True, timeout=240,
                          env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"})
    assert done.returncode == 0, done.stderr
    assert [len(_calls(tmp_path, step, 0)) for step in range(3)] == [2, 1, 0]
