# SPDX-License-Identifier: Apache-2.0
"""Gradients of modules where graphs are unusual, and what becomes of the graph."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import weakref
from typing import Any

import neutral_models as models
import pytest
import torch
import torch.nn as nn

_KEEPS = "not recorded: the module hands this input on as an output"


def _entries(dump: Any, step: int = 0) -> dict:
    return {name: entry for name, entry in dump.data(step).items() if ".backward." in name}


def _step(debugger: Any, model: nn.Module, run: Any) -> Any:
    debugger.start(model=model)
    result = run()
    debugger.stop()
    debugger.step()
    return result


def test_a_graph_is_freed_as_without_us(dump) -> None:
    """Also where nothing runs backward, and while the step is open."""
    model = nn.Sequential(models.Block(8, models.RmsNorm, models.Mlp), nn.Linear(8, 2))
    debugger = dump.debugger(level="L0")
    debugger.start(model=model)
    for backward in (False, True):
        kept = torch.ones(3)
        x = torch.randn(1, 3, 8, requires_grad=True)
        out = model(x)
        out.grad_fn.metadata["kept"] = kept
        inner = out.grad_fn.next_functions[0][0]
        inner.metadata["kept"] = kept
        gone = weakref.ref(kept)
        if backward:
            out.sum().backward()
        del kept, inner, out
        assert gone() is None
    debugger.stop()
    debugger.step()
    assert debugger._capture.faults == 0


def test_several_passes_over_one_graph(dump) -> None:
    """The first that runs a module's backward is recorded first; each is whole."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), models.RmsNorm(4))

    def run() -> list:
        x = torch.ones(2, 4, requires_grad=True)
        out = model(x)
        out.sum().backward(retain_graph=True)
        (grad,) = torch.autograd.grad((out * 2).sum(), x, create_graph=True)
        grad.square().sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    plain = run()
    model.zero_grad()
    debugger = dump.debugger(level="mix")
    assert all(torch.equal(a, b) for a, b in zip(plain, _step(debugger, model, run)))
    assert debugger._capture.faults == 0
    assert {"Module.0.Linear.backward.0", "Module.1.RmsNorm.backward.0"} <= set(_entries(dump))


class Uses(nn.Module):
    """What it is given to do with its inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _norms(items: list) -> list:
    return [item if item is None else item.get("Norm", item.get("value")) for item in items]


def test_only_what_comes_from_inside(dump) -> None:
    """The caller uses the input too, and the module an output of its own."""
    used = Uses(lambda x: (lambda h: (h, h * 5, h * 3))(x * 2))

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = used

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h, five, _ = self.used(x)
            return (five + x * 7 + x.neg()).sum()

    x = torch.ones(4, requires_grad=True)
    debugger = dump.debugger(level="L0")
    model = Root()
    _step(debugger, model, lambda: model(x * 1).backward())
    assert x.grad.tolist() == [16] * 4
    entry = _entries(dump)["Module.used.Uses.backward.0"]
    assert _norms(entry["input"]) == [None, 2, None] and _norms(entry["output"]) == [20]


_TWICE = "not recorded: the same tensor as an input before it"
_SPECIAL = {
    "twice": (lambda a, b, c: a * b * c, "aab", [8, _TWICE, 2], [2]),
    "unused": (lambda a, b, c: a * 3, "abb", [6, None, _TWICE], [2]),
    "detached": (lambda a, b, c: a.detach() * b * c, "ab1", [None, 2], [2]),
    "handed on": (lambda a, b, c: (b * a * c, a), "ab1", [_KEEPS, 2], [2, _KEEPS]),
    "handed on alone": (lambda a, b, c: a, "ab1", [2, None], [2]),
}


@pytest.mark.parametrize("name", sorted(_SPECIAL))
def test_inputs_that_are_special(dump, name: str) -> None:
    """a and b want gradients, 1 does not."""
    function, given, inputs, outputs = _SPECIAL[name]
    used = Uses(function)
    leaf = torch.ones(1, requires_grad=True)
    known = {"a": leaf * 1, "b": leaf * (2 if name == "twice" else 1), "1": torch.ones(1)}

    def run() -> None:
        out = used(*(known[letter] for letter in given))
        ((out[0] if isinstance(out, tuple) else out) * 2).sum().backward()

    debugger = dump.debugger(level="L0")
    _step(debugger, nn.ModuleList([used]), run)
    assert debugger._capture.faults == 0
    entry = _entries(dump)["Module.0.Uses.backward.0"]
    assert (_norms(entry["output"]), _norms(entry["input"])) == (inputs, outputs)


def test_leaves_parameters_and_module_outputs_that_are_leaves(dump) -> None:
    """A leaf as input; a parameter as output, step after step."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self) -> torch.Tensor:
            return self.weight

    table, scale = Table(), Uses(lambda x: x * 3)
    model = nn.ModuleList([table, scale])
    debugger = dump.debugger(level="L0")
    for _ in range(3):
        leaf = torch.ones(4, requires_grad=True)
        _step(debugger, model, lambda x=leaf: (scale(x) * table()).sum().backward())
        table.zero_grad()
    assert debugger._capture.faults == 0
    for step in range(3):
        entries = _entries(dump, step)
        assert _norms(entries["Module.1.Uses.backward.0"]["output"]) == [6]
        assert _norms(entries["Module.0.Table.backward.0"]["input"]) == [6]


_DDP = """
    import sys, torch, torch.distributed as dist, torch.nn.functional as F
    import neutral_models as models
    from rankprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)

    def train(debugger):
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(models.Language(), bucket_cap_mb=0.001)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(dist.get_rank())
        kept = []
        for _ in range(10):
            tokens = torch.randint(13, (3, 7))
            if debugger is not None:
                debugger.start(model=model)
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if debugger is not None:
                debugger.stop()
                debugger.step()
            kept.append(loss.detach())
        return kept + [p.detach().clone() for p in model.parameters()] + [
            v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]

    plain = train(None)
    debugger = PrecisionDebugger(dump_path=sys.argv[3], level=sys.argv[4])
    watched = train(debugger)
    assert len(plain) == len(watched) and all(torch.equal(a, b) for a, b in zip(plain, watched))
    assert debugger._capture.faults == 0
    PrecisionDebugger.wait_exported()
    dist.barrier()
    debugger.close()
"""


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_ten_steps_of_two_ranks_are_the_same_bit_for_bit(tmp_path, level: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(_DDP))
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    ranks = [subprocess.Popen([sys.executable, str(script), str(tmp_path / "meet"), str(rank), str(tmp_path / "dump"), level],
                              env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]
    for rank in ranks:
        _, said = rank.communicate(timeout=240)
        assert rank.returncode == 0, said[-3000:]
    assert len(list((tmp_path / "dump" / "step9").glob("rank*/dump.json"))) == 2


def test_forwards_without_a_graph_are_no_faults(dump) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    debugger = dump.debugger(level="L0")

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.ones(3, 4))

    _step(debugger, model, run)
    assert debugger._capture.faults == 0
    assert "Module.0.Linear.forward.0" in dump.data()
