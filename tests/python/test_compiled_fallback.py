# SPDX-License-Identifier: Apache-2.0
"""torch.compile at level L0: what cannot be recorded from within runs as plain Python, and the training goes on."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch

if not hasattr(getattr(torch._C, "_dynamo", None), "eval_frame") or not hasattr(
        torch._C._dynamo.eval_frame, "set_eval_frame_isolate_recompiles_id"):
    pytest.skip("this PyTorch keeps no regions of recompilation apart", allow_module_level=True)

import torch._dynamo
import torch.nn as nn
from test_compiled import Job, _fresh  # noqa: F401
from test_compiled_recorded import _SAID, Whole, _backward, _lines, _train
from torch._dynamo.utils import counters

_FELL_BACK = "from now on recorded steps run as plain Python"


def _cond(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: inner(x).sin(), lambda x: inner(x).cos(), (x,))


def _checkpointed(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)


def _refuses(graph: Any, inputs: Any) -> Callable:
    """A backend that knows PyTorch's functions only."""
    for node in graph.graph.nodes:
        assert node.op != "call_function" or "rankprobe" not in (getattr(node.target, "__module__", None) or ""), node
    return graph.forward


def _refuses_backward(graph: Any, inputs: Any) -> Callable:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def backward(graph: Any, inputs: Any) -> Callable:
        assert "rankprobe" not in graph.code
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=backward)(graph, inputs)


@pytest.mark.parametrize("around,backend,why", [
    (_cond, "aot_eager", "modules are called inside of cond"),
    (_checkpointed, "aot_eager", "modules are called inside of tag_activation_checkpoint"),
    (lambda inner, x: inner(x), _refuses, "AssertionError"),
    (lambda inner, x: inner(x), _refuses_backward, "AssertionError"),
])
def test_what_cannot_be_recorded_from_within_runs_as_plain_python(dump, capfd, around: Callable, backend: Any, why: str) -> None:
    torch.manual_seed(0)
    model = Whole(around)
    call = torch.compile(model, backend=backend, fullgraph=True)
    _backward(call)
    compiled = dict(counters["stats"])
    debugger = _train(dump, model, call, _backward, steps=3, step=[0, 1])
    said = _lines(capfd, "torch.compile: calls inside compiled code")
    assert len(said) == 1 and why in said[0] and _FELL_BACK in said[0], said
    assert "Module.last.Linear.backward.0" in dump.data(0)
    # torch.cond has a compiler of its own in plain Python too.
    assert around is _cond or "Module.inner.Linear.forward.0" in dump.data(1)
    assert torch._dynamo.eval_frame._stance.stance == "default"
    # The program's own graph is there as before.
    debugger.close()
    before = dict(counters["stats"])
    with torch._dynamo.config.patch(error_on_recompile=True):
        _backward(call)
    assert dict(counters["stats"]) == before and compiled["unique_graphs"] >= 1


def test_a_fault_of_ours_in_every_operator_leaves_the_compiled_training(dump) -> None:
    def run(debugger: Any) -> list[torch.Tensor]:
        torch._dynamo.reset()
        job = Job("model", "aot_eager").compile()
        losses = []
        for _ in range(3):
            if debugger is not None:
                debugger._capture.inject_faults(10000)
            losses.append(job.step(debugger))
        return losses + job.state()

    plain = run(None)
    debugger = dump.debugger(level="L0")
    assert all(torch.equal(a, b) for a, b in zip(plain, run(debugger), strict=True))
    assert debugger._capture.faults > 100


def test_a_wrapper_subclass_runs_as_plain_python(dump, capfd) -> None:
    """As DTensor is one: an operator of ours would run for each of its parts."""
    from torch.testing._internal.two_tensor import TwoTensor

    def passes(call: Callable) -> None:
        x = torch.randn(3, 4)
        with torch.no_grad():
            call(TwoTensor(x, x + 1))

    torch.manual_seed(0)
    model = Whole(lambda inner, x: x * 2)
    model.last = nn.ReLU()
    debugger = _train(dump, model, torch.compile(model, backend="aot_eager"), passes)
    said = _lines(capfd, _FELL_BACK)
    assert len(said) == 1 and "a TwoTensor passes through a module" in said[0], said
    assert list(dump.data(0)) == ["Module.last.ReLU.forward.0"] == list(dump.data(1))
    assert debugger._capture.faults == 0


@pytest.mark.parametrize("where", ["stance", "setting", "tokens"])
def test_who_has_compiled_code_run_otherwise_has_it_recorded_eagerly(dump, capfd, monkeypatch, where: str) -> None:
    if where == "setting":
        monkeypatch.setenv("RANKPROBE_COMPILED", "eager")
    job = Job("model", "aot_eager").compile()
    job.step()
    debugger = dump.debugger(level="L0")
    if where == "stance":
        torch.compiler.set_stance("eager_on_recompile")
    try:
        debugger.start(model=job.watched, token_range=[0, 3] if where == "tokens" else None)
        assert torch._dynamo.eval_frame._stance.stance == "force_eager"
        job.step()
        debugger.stop()
        debugger.step()
    finally:
        torch.compiler.set_stance("default")
    assert job.counter.frame_count == 1 and "Module.head.Linear.forward.0" in dump.data()
    assert not _lines(capfd, _SAID)
