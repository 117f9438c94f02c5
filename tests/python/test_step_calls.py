# SPDX-License-Identifier: Apache-2.0
"""The order of backward, clipping and optimizers as task monitor sees it: without a collector."""

from __future__ import annotations

import contextlib
import warnings
import weakref

import pytest
import torch
from torch import nn

from rankprobe.pytorch._step_calls import StepCalls


@contextlib.contextmanager
def _watched(calls: StepCalls):
    undo = list(calls.watch(lambda note: note(None)))
    try:
        yield
    finally:
        for one in undo:
            one()


def _clips(order: str) -> list[int] | None:
    """B: a backward, C: a clipping of the model, D: one of another model, S: a step of the optimizer."""
    net, other = nn.Linear(3, 3), nn.Linear(3, 3)
    opt, calls = torch.optim.SGD(net.parameters(), 0.1), StepCalls()
    net(torch.ones(3)).sum().backward()
    with _watched(calls):
        for one in order:
            if one == "B":
                calls.note_backward()
            elif one == "S":
                calls.note_optimizer(opt)
            else:
                nn.utils.clip_grad_norm_((net if one == "C" else other).parameters(), 1.0)
    return calls.take().get("clips")


@pytest.mark.parametrize("order, told", [
    ("BCS", [0, 0, 1]), ("BBBCS", [0, 0, 1]), ("BSC", [1, 0, 1]), ("CBS", [1, 0, 1]), ("CS", [0, 0, 1]), ("BCBCS", [0, 1, 2]), ("BCBCBCS", [0, 2, 3]),
    ("BCBDSS", [0, 0, 2]), ("BCSBCS", [0, 0, 2]), ("BS", None),
])
def test_where_gradients_are_clipped(order, told):
    assert _clips(order) == told


def test_a_generator_that_is_used_up():
    net, calls = nn.Linear(3, 3), StepCalls()
    net(torch.ones(3)).sum().backward()
    calls.note_backward()
    parameters = net.parameters()
    list(parameters)
    with _watched(calls), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.clip_grad_norm_(parameters, 1.0)
    told = calls.take()
    assert (told["clips"], told["empty_clips"]) == ([0, 0, 1], [1])


def test_what_a_clipping_gets_and_does_is_the_same():
    net = nn.Linear(3, 3)
    net(torch.ones(3)).sum().backward()
    expected = [p.grad / 4 for p in net.parameters()]
    calls = StepCalls()
    with _watched(calls), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        norm = nn.utils.clip_grad_norm_(net.parameters(), torch.cat([p.grad.flatten() for p in net.parameters()]).norm().item() / 4)
        nn.utils.clip_grad_value_(parameters=list(net.parameters()), clip_value=9.0)
        nn.utils.clip_grad_norm_(net.weight, 99.0)
        nn.utils.clip_grad_norm_((p for p in ()), 1.0)
    assert norm > 0
    assert all(torch.allclose(p.grad, one, rtol=1e-4) for p, one in zip(net.parameters(), expected))
    assert calls.take()["clips"][2] == 4
    with warnings.catch_warnings(record=True) as plain:
        warnings.simplefilter("always")
        nn.utils.clip_grad_norm_((p for p in ()), 1.0)
    assert [str(one.message) for one in told] == [str(one.message) for one in plain]
    assert calls.take() == {}


@pytest.mark.parametrize("make, told", [
    (lambda params: torch.optim.Adam(params), [1, 1]), (lambda params: torch.optim.SGD(params, 0.1, momentum=0.9), [1, 1]),
    (lambda params: torch.optim.SGD(params, 0.1), [0, 1]),
])
def test_an_optimizer_without_a_state(make, told):
    net, calls = nn.Linear(3, 3), StepCalls()
    net(torch.ones(3)).sum().backward()
    opt = make(list(net.parameters()))
    for fresh in (told, [0, 1]):
        calls.note_optimizer(opt)
        opt.step()
        assert calls.take()["fresh_optimizers"] == fresh


def test_another_training_begins():
    first, second, calls = nn.Linear(3, 3), nn.Linear(3, 3), StepCalls()

    def step(*optimizers):
        for optimizer in optimizers:
            calls.note_optimizer(optimizer)
            with torch.no_grad():
                for parameter in optimizer.param_groups[0]["params"]:
                    parameter.mul_(0.9)
        return calls.take().get("new_training")

    one, other = (torch.optim.SGD(net.parameters(), 0.1) for net in (first, second))
    # Two models that are trained in turns are one training, and so is a new optimizer of the same parameters.
    assert [step(one), step(one, other), step(other), step(torch.optim.SGD([second.bias], 0.1)), step(other)] == [None] * 5
    third = nn.Linear(3, 3)
    late = torch.optim.SGD(third.parameters(), 0.1)
    # Its first steps may be one, until its optimizer is known to end the steps.
    assert [step(late, late), step(late), step(one)] == [[1], None, None]
    # A subclass is known by its id alone.
    part = nn.Parameter(torch.Tensor._make_subclass(type("Part", (torch.Tensor,), {}), torch.ones(2), True))
    assert [step(torch.optim.SGD([part], 0.1)), step(torch.optim.SGD([part], 0.1))] == [[1], None]
    # The id of a parameter that is gone may be that of a new one.
    for _ in range(50):
        net = nn.Linear(3, 3)
        assert step(torch.optim.SGD(net.parameters(), 0.1)) == [1]
        assert len(calls._known) < 40
    assert not weakref.getweakrefs(net.weight), "torch.utils.swap_tensors() refuses a tensor with a weak reference"
