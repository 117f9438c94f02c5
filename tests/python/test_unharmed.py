# SPDX-License-Identifier: Apache-2.0
"""Harm that recording must not do to a training: other numbers, other errors, a held GIL."""

from __future__ import annotations

import copy
import sys
import threading
import time

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from rankprobe.pytorch import PrecisionDebugger, _modules


class Part(nn.Module):
    """Keyword arguments, an in-place operation, a checkpoint, two uses of a module, two tensors in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(12, 12), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, shift: torch.Tensor, scale: float = 1.0) -> tuple:
        y = self.drop(self.fc(x)).mul_(scale)
        return self.fc(y) + checkpoint(torch.tanh, x, use_reentrant=False), shift * 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.part, self.head = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), Part(), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn(self.conv(x))).flatten(1)
        y, shift = self.part(*self.part(y.view(-1, 12), y.mean(), scale=0.5), scale=0.5)
        return self.head(y + shift).view(x.shape[0], -1, 3).mean(1)


def _train() -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    losses = []
    for _ in range(3):
        if PrecisionDebugger._instance is not None:
            PrecisionDebugger.start(model=net)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=len(losses) == 2):
            loss = F.cross_entropy(net(torch.randn(2, 1, 6, 6)), torch.tensor([0, 2]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if PrecisionDebugger._instance is not None:
            PrecisionDebugger.stop()
            PrecisionDebugger.step()
        losses.append(loss.detach().clone())
    return losses + [p.detach().clone() for p in net.parameters()]


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


def test_off_and_on_are_the_same_bit_for_bit(dump) -> None:
    plain = _train()
    debugger = dump.debugger(level="mix", task="tensor")
    assert _equal(plain, _train())
    assert debugger._capture.faults == 0
    debugger.wait_exported()
    assert len(dump.data(2)) > 20


def test_a_fault_in_every_native_hook(dump) -> None:
    plain = _train()
    debugger = dump.debugger(level="mix")
    debugger._capture.inject_faults(1 << 30)
    assert _equal(plain, _train())
    assert debugger._capture.faults > 200


_PLACES = [(_modules.ModuleHooks, "_watch_parameters"), (_modules, "_wanting"), (_modules, "_differentiable")]


@pytest.mark.parametrize("place", _PLACES, ids=lambda p: p[1])
def test_a_fault_in_every_python_hook(dump, monkeypatch, place) -> None:
    plain = _train()
    debugger = dump.debugger(level="mix")

    def fault(*args, **kwargs):
        raise ValueError("a fault of rankprobe")

    monkeypatch.setattr(*place, fault)
    assert _equal(plain, _train())
    assert debugger._capture.faults > 5


def test_a_fault_while_a_gradient_is_read(dump, monkeypatch) -> None:
    class Broken:
        def __get__(self, *_):
            raise ValueError("a fault of rankprobe")

    plain = _train()
    debugger = dump.debugger(level="mix")
    monkeypatch.setattr(torch.nn.Parameter, "main_grad", Broken(), raising=False)
    assert _equal(plain, _train())
    assert debugger._capture.faults > 5


class UserError(Exception):
    pass


@pytest.mark.parametrize("where", ["forward", "forward hook", "forward pre-hook", "backward hook", "tensor hook",
                                   "function"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_users_exception_is_the_users(dump, level: str, where: str) -> None:
    """It passes as the same object, and the next step is recorded as if nothing had been."""
    error = UserError(where)

    def fail(*_):
        raise error

    class Fails(nn.Module):
        broken = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.broken and where == "forward":
                fail()
            if self.broken and where == "function":
                torch.nn.functional.relu(FailsInFunction(x))
            if self.broken and where == "tensor hook":
                x = x * 1
                x.register_hook(fail)
            return x + 1

    class FailsInFunction(torch.Tensor):
        @staticmethod
        def __new__(cls, x: torch.Tensor):
            return torch.Tensor._make_subclass(cls, x.detach())

        @classmethod
        def __torch_function__(cls, *_, **__):
            raise error

    fails = Fails()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(fails), nn.Linear(4, 2))
    handle = {"forward hook": fails.register_forward_hook, "forward pre-hook": fails.register_forward_pre_hook,
              "backward hook": fails.register_full_backward_hook}.get(where, lambda f: None)(fail)
    debugger = dump.debugger(level=level)
    debugger.start(model=model)
    with pytest.raises(UserError) as caught:
        model(torch.ones(2, 4)).sum().backward()
    assert caught.value is error
    fails.broken = False
    if handle is not None:
        handle.remove()
    debugger.stop()
    debugger.step()
    debugger.start(model=model)
    model(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    assert debugger._capture.faults == 0
    before, after = dump.data(0), dump.data(1)
    first, wanted = {
        "L0": ("Module.0.Linear.forward.0", {"Module.2.Linear.forward.0", "Module.2.Linear.backward.0"}),
        "L1": ("Functional.linear.0.forward", {"Functional.linear.1.forward", "Functional.linear.1.backward"}),
        "mix": ("Functional.linear.0.forward", {"Module.2.Linear.forward.0", "Functional.linear.1.backward"}),
    }[level]
    assert first in before and "output" in before[first]
    assert wanted <= set(after)
    if level != "L1" and torch.__version__ >= "2":
        assert all("output" in v for k, v in after.items() if ".forward" in k)


def test_the_gil_is_free_while_memory_is_read(dump) -> None:
    debugger = dump.debugger(level="debug")
    x = torch.ones(1 << 26)
    count, stop = [0], threading.Event()

    def other() -> None:
        while not stop.is_set():
            count[0] += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    thread.start()
    sys.setswitchinterval(600)  # from here on a thread runs only when another lets it
    try:
        during, deadline = 0, time.monotonic() + 30
        while during <= 10 and time.monotonic() < deadline:  # the machine may be busy
            before = count[0]
            debugger._capture.save("x", x, None)
            during += count[0] - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert during > 10


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_gradients_meet_their_forward(dump, reentrant: bool) -> None:
    """The recomputed forward has a number of its own; its backward has the same."""
    lin = nn.Linear(4, 4)
    debugger = dump.debugger()
    debugger.start()
    x = torch.ones(2, 4, requires_grad=True)
    checkpoint(lambda v: F.relu(lin(v)), x, use_reentrant=reentrant).sum().backward()
    debugger.stop()
    debugger.step()
    names = [n for n in dump.data() if n.startswith("Functional.relu")]
    assert names == ["Functional.relu.0.forward", "Functional.relu.1.forward", "Functional.relu.1.backward"] \
        or (not reentrant and "Functional.relu.0.forward" in names and len(names) >= 2), names
    assert x.grad is not None


def test_gradients_over_several_starts_in_one_step(dump) -> None:
    """Two forwards between two pairs of start and stop, one backward after both."""
    fc = nn.Linear(4, 4)
    net = nn.Sequential(fc)
    debugger = dump.debugger(level="mix")
    losses = []
    for _ in range(2):
        debugger.start(model=net)
        losses.append(net(torch.ones(2, 4)).sum())
        debugger.stop()
    sum(losses).backward()
    debugger.step()
    data = dump.data()
    assert {f"Functional.linear.{i}.{d}" for i in (0, 1) for d in ("forward", "backward")} <= set(data)
    assert {f"Module.0.Linear.{d}.{i}" for i in (0, 1) for d in ("forward", "backward")} <= set(data)
    assert sum("parameters_grad" in n for n in data) >= 1


def test_a_backward_after_step_is_of_no_step(dump) -> None:
    debugger = dump.debugger()
    debugger.start()
    loss = F.relu(torch.ones(3, requires_grad=True)).sum()
    debugger.stop()
    debugger.step()
    loss.backward()
    debugger.start()
    torch.neg(torch.ones(1))
    debugger.stop()
    debugger.step()
    assert not any("backward" in n for step in (0, 1) for n in dump.data(step))


def test_functional_call_with_tensors_that_are_no_leaves(dump) -> None:
    """Parameters swapped for computed tensors (torch.func) have no accumulated gradient to watch."""
    call = getattr(getattr(torch, "func", None), "functional_call", None) or \
        __import__("torch.nn.utils.stateless", fromlist=["x"]).functional_call
    net = nn.Sequential(nn.Linear(3, 3))
    computed = {n: p * 2 for n, p in net.named_parameters()}
    debugger = dump.debugger(level="mix")
    debugger.start(model=net)
    out = call(net, computed, (torch.ones(1, 3),))
    out.sum().backward()
    debugger.stop()
    debugger.step()
    assert net[0].weight.grad is not None
    assert debugger._capture.faults == 0
    data = dump.data()
    assert "Module.0.Linear.forward.0" in data
    if torch.__version__ >= "2":  # before, the original parameters stay in place beside the computed ones
        assert not any("parameters_grad" in name for name in data)


def test_deepcopy_and_state_of_a_hooked_model(dump) -> None:
    net = Net()
    debugger = dump.debugger(level="mix")
    debugger.start(model=net)
    assert list(net.state_dict()) == list(Net().state_dict())
    debugger.stop()
    debugger.step()
    debugger.close()
    twin = copy.deepcopy(net)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters()))
    assert not net.part._forward_hooks and not net.part._forward_pre_hooks


def test_a_gradient_that_is_none_stays_none(dump) -> None:
    """Zeros in its place would let weight decay and momentum move what nobody used."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> tuple:
            return self.used(x), self.unused(x)

    net = nn.Sequential(Two())
    debugger = dump.debugger(level="mix")
    debugger.start(model=net)
    net(torch.ones(2, 3))[0].sum().backward()
    debugger.stop()
    debugger.step()
    assert net[0].unused.weight.grad is None and net[0].used.weight.grad is not None
    assert dump.data()["Module.0.Two.backward.0"]["input"][1] is None


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_a_node_with_hooks_of_ours_is_the_programs(dump, level: str) -> None:
    """Hooks of the program's run, in their order, and go when their handles say so; the numbers of PyTorch's handles, which a
    program sees, are those of the program's hooks alone."""
    net, calls = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), []
    debugger = dump.debugger(level=level)

    def step() -> int:
        """Handles that were made in it."""
        before = net.register_forward_hook(lambda *_: None)
        debugger.start(model=net)
        y = net(torch.ones(2, 3))
        first, second = (y.grad_fn.register_hook(lambda *_, at=at: calls.append(at)) for at in (1, 2))
        early = y.grad_fn.register_prehook(lambda *_: calls.append(0))
        gone = y.grad_fn.register_hook(lambda *_: calls.append("removed"))
        gone.remove()
        assert len({first.id, second.id, early.id, gone.id}) == 4
        y.sum().backward()
        debugger.stop()
        debugger.step()
        after = net.register_forward_hook(lambda *_: None)
        before.remove()
        after.remove()
        return after.id - before.id - 1

    step()  # modules are hooked
    calls.clear()
    assert step() == 4
    assert calls == [0, 1, 2]
    assert any("backward" in name for name in dump.data(step=1)) and debugger._capture.faults == 0
