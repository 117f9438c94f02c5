# SPDX-License-Identifier: Apache-2.0
"""Recomputed forwards of checkpoint(use_reentrant=False): whole, or they say where they stopped."""

from __future__ import annotations

import random
from typing import Any, Callable

import pytest
import torch
import torch.nn as nn
import torch.utils.checkpoint
from torch.utils.checkpoint import checkpoint

from rankprobe.pytorch import _recompute

STOPS_EARLY = hasattr(torch.utils.checkpoint, "_StopRecomputationError")
needs_early_stop = pytest.mark.skipif(not STOPS_EARLY, reason="this PyTorch recomputes to the end")
STOPPED = [{"type": "str", "value": "recomputation stopped here"}]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1, self.act, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.fc2(self.act(self.fc1(self.norm(x))))) * 0.5


class Average(Block):
    """Keeps a running average of its outputs, outside autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        with torch.no_grad():
            self.average.mul_(0.9).add_(out.mean(0))
        return out + self.average


class LayerDrop(Block):
    """Draws from Python's random numbers at its end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1.0 + random.random())


class Raises(Block):
    """Its end works in the forward only."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if self.done:
            raise RuntimeError("once only")
        return out


class SavesMore(Block):
    """Saves tensors in the recomputation that the forward did not save."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if torch._C._current_graph_task_id() != -1:
            (out.sigmoid() * out).tanh()
        return out


class Net(nn.Module):
    def __init__(self, block: Callable[[], Block], **options: Any) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([block() for _ in range(2)]), nn.Linear(8, 2)
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, **self.options)
        return self.head(x)


def _train(dump: Any, block: Callable[[], Block], level: str, **options: Any) -> list[torch.Tensor]:
    """Parameters, buffers and the next random numbers after three steps. level: "" for no recording."""
    torch.manual_seed(0)
    random.seed(0)
    net = Net(block, **options)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    debugger = dump.debugger(level=level) if level else None
    for _ in range(3):
        if debugger is not None:
            debugger.start(net)
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        for one in net.blocks:
            one.done = True
        loss.backward()
        for one in net.blocks:
            one.done = False
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    if debugger is not None:
        debugger.close()
    return [*net.state_dict().values(), torch.rand(3), torch.tensor(random.random(), dtype=torch.float64)]


def _entries_are_whole(dump: Any, level: str) -> dict:
    data = dump.data()
    assert [name for name, entry in data.items() if "forward" in name and "output" not in entry] == []
    assert not list(dump.rank_directory().glob("dump_error_info.log"))
    if level != "L1":
        # All calls, of the forward and of the recomputation.
        for block in (0, 1):
            for child in ("norm.LayerNorm", "fc1.Linear", "act.GELU", "fc2.Linear", "drop.Dropout"):
                assert f"Module.blocks.{block}.{child}.forward.1" in data
    return data


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_recomputed_entries_are_whole_and_the_training_is_the_same(dump, level: str) -> None:
    plain = _train(dump, Block, "")
    for one, other in zip(plain, _train(dump, Block, level)):
        assert torch.equal(one, other)
    data = _entries_are_whole(dump, level)
    assert STOPPED not in [entry.get("output") for entry in data.values()]
    if level != "L1":
        for block in (0, 1):
            name = f"Module.blocks.{block}.Block.forward."
            assert data[name + "1"]["output"] == data[name + "0"]["output"]


@needs_early_stop
@pytest.mark.parametrize("block", [Average, LayerDrop])
def test_a_forward_that_changes_state_stops_early_and_says_so(dump, block) -> None:
    plain = _train(dump, block, "")
    for one, other in zip(plain, _train(dump, block, "mix")):
        assert torch.equal(one, other)
    data = _entries_are_whole(dump, "mix")
    for index in (0, 1):
        entry = data[f"Module.blocks.{index}.{block.__name__}.forward.1"]
        assert entry["output"] == STOPPED and entry["input_args"][0]["shape"] == [4, 8]


@needs_early_stop
def test_random_numbers_that_are_not_restored_stop_early(dump) -> None:
    plain = _train(dump, Block, "", preserve_rng_state=False)
    for one, other in zip(plain, _train(dump, Block, "mix", preserve_rng_state=False)):
        assert torch.equal(one, other)
    assert _entries_are_whole(dump, "mix")["Module.blocks.0.Block.forward.1"]["output"] == STOPPED


@needs_early_stop
def test_beside_other_ranks_it_stops_early(dump, monkeypatch) -> None:
    """A rank that goes on might wait for a collective that the others do not call."""
    monkeypatch.setattr(_recompute, "_alone", lambda: False)
    _train(dump, Block, "mix")
    assert _entries_are_whole(dump, "mix")["Module.blocks.1.Block.forward.1"]["output"] == STOPPED


@pytest.mark.parametrize("block", [Raises, SavesMore])
def test_what_early_stop_hides_stays_hidden(dump, block) -> None:
    if not STOPS_EARLY and block is Raises:
        pytest.skip("this PyTorch runs into the exception itself")
    if not STOPS_EARLY and block is SavesMore:
        pytest.skip("this PyTorch refuses it")
    plain = _train(dump, block, "")
    for one, other in zip(plain, _train(dump, block, "mix")):
        assert torch.equal(one, other)
    assert "output" in dump.data()[f"Module.blocks.0.{block.__name__}.forward.0"]


@needs_early_stop
def test_an_error_before_the_end_is_the_users(dump) -> None:
    class Bad(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch._C._current_graph_task_id() != -1:
                raise KeyError("of the user")
            return super().forward(x)

    net = Net(Bad)
    debugger = dump.debugger(level="mix")
    debugger.start(net)
    with pytest.raises(KeyError, match="of the user"):
        net(torch.randn(4, 8)).sum().backward()
    torch.relu(torch.ones(1))
    debugger.stop()
    debugger.step()
    assert "Torch.relu.0.forward" in dump.data()


@needs_early_stop
def test_a_user_who_switched_early_stop_off_and_nested_checkpoints(dump) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Block()
            self.scale = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale(checkpoint(self.inner, x, use_reentrant=False)) + 1

    def run(recorded: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        net = nn.Sequential(Outer(), nn.Linear(8, 1))
        debugger = dump.debugger(level="mix") if recorded else None
        if debugger:
            debugger.start(net)
        with torch.utils.checkpoint.set_checkpoint_early_stop(False):
            x = checkpoint(net[0], torch.randn(2, 8), use_reentrant=False)
        x = checkpoint(net[0], x, use_reentrant=False)
        net[1](x).sum().backward()
        if debugger:
            debugger.stop()
            debugger.step()
        return [p.grad for p in net.parameters()]

    for one, other in zip(run(False), run(True)):
        assert torch.equal(one, other)
    data = dump.data()
    assert [name for name, entry in data.items() if "forward" in name and "output" not in entry] == []


def test_pytorch_is_left_as_it_was(dump) -> None:
    before = getattr(torch.utils.checkpoint, "_CheckpointFrame", None)
    debugger = dump.debugger(level="mix")
    if STOPS_EARLY:
        assert torch.utils.checkpoint._CheckpointFrame is not before
    debugger.close()
    assert getattr(torch.utils.checkpoint, "_CheckpointFrame", None) is before


