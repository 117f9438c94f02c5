# SPDX-License-Identifier: Apache-2.0
"""A DTensor's whole: its global shape and all of its placements, beside a dump.json that is msprobe's."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")
fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

from rankprobe.pytorch import PrecisionDebugger  # noqa: E402
from rankprobe.pytorch._monitor import Monitor  # noqa: E402


@pytest.fixture
def mesh():
    """Of four ranks of which this process is one; nothing is sent."""
    dist.init_process_group("fake", rank=0, world_size=4, store=fake_pg.FakeStore())
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def test_the_whole_of_a_dtensor_is_beside_its_part(dump, mesh) -> None:
    def part(*placements, local=(2, 3), whole=(8, 3)):
        return DTensor.from_local(torch.ones(local), mesh, placements, run_check=False, shape=torch.Size(whole),
                                  stride=(whole[1], 1))

    tensors = [part(_StridedShard(0, split_factor=2), Shard(0)), part(Shard(0), Shard(1), local=(4, 2), whole=(8, 3)),
               part(Replicate(), Partial("avg"), local=(8, 3))]
    dump.debugger()
    PrecisionDebugger.start()
    for tensor in tensors:
        torch.relu(tensor)
    torch.relu(torch.ones(2))
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    data = dump.data(0)
    names = [name for name in data if "relu" in name and name.endswith("forward")]
    given = [data[name]["input_args"][0] for name in names]
    # As msprobe writes it: no strided shard, no global shape.
    assert [value.get("placements") for value in given] == [
        [{"Shard": {"dim": 0}}], [{"Shard": {"dim": 0}}, {"Shard": {"dim": 1}}], [{"Replicate": {}}, {"Partial": {"reduce_op": "avg"}}],
        None]
    assert [value["shape"] for value in given] == [[2, 3], [4, 2], [8, 3], [2]]
    assert all("global_shape" not in value for value in given)
    notes = json.loads((dump.rank_directory(0) / "tensor_notes.json").read_text())
    of = [notes.get(f"{name}.input.0") for name in names]
    assert [note and note["global_shape"] for note in of] == [[8, 3], [8, 3], [8, 3], None]
    assert [note and note["placements"] for note in of] == [
        [{"_StridedShard": {"dim": 0, "split_factor": 2}}, {"Shard": {"dim": 0}}],
        [{"Shard": {"dim": 0}}, {"Shard": {"dim": 1}}], [{"Replicate": {}}, {"Partial": {"reduce_op": "avg"}}], None]


def test_a_part_of_a_sum_is_no_gradient_that_the_optimizer_takes(mesh) -> None:
    """As of a normalization behind SequenceParallel: the operators of the optimizer sum it over the ranks."""
    both = {name: torch.nn.Parameter(DTensor.from_local(torch.ones(3), mesh, [Replicate(), Replicate()], run_check=False))
            for name in ("whole", "part")}
    for name, parameter in both.items():
        placement = Partial() if name == "part" else Replicate()
        parameter.grad = DTensor.from_local(torch.ones(3), mesh, [Replicate(), placement], run_check=False)
    optimizer = torch.optim.SGD(both.values(), lr=0.1)
    reader = Monitor(None)
    reader._names = {id(parameter): name for name, parameter in both.items()}
    spec = {"training": False, "optimizer": False, "weight_gradients": True}
    assert {part.name: part.gradient is None for part in reader._parts(optimizer, (), spec)} == {"whole": False, "part": True}
