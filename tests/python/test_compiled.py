# SPDX-License-Identifier: Apache-2.0
"""torch.compile: attached and off nothing is compiled again; recorded steps run eagerly, the rest what was compiled."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Callable

import neutral_models as models
import pytest
import torch
import torch.nn.functional as F

if not hasattr(getattr(torch, "compiler", None), "set_stance"):
    pytest.skip("PyTorch 2.6 has the stance of a compiler", allow_module_level=True)

import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


# Compiled code is recorded from within at level L0.
RECORDS_COMPILED = hasattr(torch._C._dynamo.eval_frame, "set_eval_frame_isolate_recompiles_id")


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Job:
    """A training whose model is compiled in one of the ways that people use."""

    def __init__(self, how: str, backend: str) -> None:
        torch.manual_seed(0)
        self.case = models.CASES["llama"]()
        self.counter = CompileCounterWithBackend(backend)
        self.how = how
        model = self.case.model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.watched = model
        self._call: Callable = model

    def compile(self) -> "Job":
        if self.how == "model":
            self.watched = self._call = torch.compile(self.case.model, backend=self.counter, fullgraph=True)
        elif self.how == "in place":
            self.case.model.compile(backend=self.counter, fullgraph=True)
        elif self.how == "blocks":
            for block in self.case.model.blocks:
                block.compile(backend=self.counter, fullgraph=True)
        else:
            blocks = self.case.model.blocks
            for i, block in enumerate(blocks):
                blocks[i] = torch.compile(block, backend=self.counter, fullgraph=True)
        return self

    def step(self, debugger: Any = None) -> torch.Tensor:
        if debugger is not None:
            debugger.start(model=self.watched)
        tokens = torch.randint(13, (3, 7))
        loss = F.cross_entropy(self._call(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        return loss.detach().clone()

    def compilations(self) -> tuple:
        return (self.counter.frame_count, dict(counters["frames"]), sum(counters["graph_break"].values()),
                dict(counters["stats"]))

    def state(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.case.model.parameters()]


def _switch(dump: Any, on: bool) -> None:
    config = json.loads(dump.config_path.read_text())
    config["dump_enable"] = on
    dump.config_path.write_text(json.dumps(config))


_HOW = ["model", "in place", "blocks", "modules of blocks"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("how,order", [("model", "attached first"), ("model", "compiled first"), ("model", "trained first"),
                                       ("in place", "attached first"), ("blocks", "trained first"),
                                       ("modules of blocks", "compiled first")])
def test_switched_on_and_off_ten_times_nothing_is_compiled_again(dump, how: str, order: str, level: str) -> None:
    plain = Job(how, "eager").compile()
    plain.step()
    expected = plain.compilations()[1:]
    torch._dynamo.reset()
    counters.clear()
    job = Job(how, "eager")
    if order == "attached first":
        debugger = dump.debugger(level=level, dump_enable=False)
        job.compile()
    else:
        job.compile()
        if order == "trained first":
            job.step()
        debugger = dump.debugger(level=level, dump_enable=False)
    job.step(debugger)
    assert job.compilations() == (1, *expected)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(10):
            for on in (True, False):
                _switch(dump, on)
                job.step(debugger)
                # At L0 a graph that records is compiled with the first recorded step, and kept.
                if level == "L0" and RECORDS_COMPILED:
                    assert job.counter.frame_count == 2 and not counters["graph_break"]
                else:
                    assert job.compilations() == (1, *expected)
    debugger.wait_exported()
    assert len(list(dump.path.glob("step*"))) == 10
    assert debugger._capture.faults == 0


@pytest.mark.parametrize("how", _HOW)
def test_what_is_compiled_after_a_recorded_step_has_none_of_our_hooks(dump, how: str) -> None:
    """The first compilation comes when hooks were there, and while steps that are not asked for go by."""
    plain = Job(how, "eager").compile()
    plain.step()
    expected = plain.compilations()[1:]
    torch._dynamo.reset()
    counters.clear()
    job = Job(how, "eager").compile()
    debugger = dump.debugger(level="mix", step=[0, 2])
    job.step(debugger)
    assert counters["frames"]["total"] == 0
    for _ in range(3):
        job.step(debugger)
        assert job.compilations() == (1, *expected)
    # Behind the last step that is wanted, and between steps.
    torch._dynamo.reset()
    counters.clear()
    job.step(debugger)
    job.step()
    assert job.compilations() == (2, *expected)


@pytest.mark.parametrize("how", ["model", "blocks"])
def test_ten_steps_off_are_bit_identical_with_inductor(dump, how: str) -> None:
    def run(debugger: Any) -> list[torch.Tensor]:
        job = Job(how, "inductor").compile()
        return [job.step(debugger) for _ in range(10)] + job.state()

    plain = run(None)
    assert all(torch.equal(a, b) for a, b in zip(plain, run(dump.debugger(level="mix", dump_enable=False)), strict=True))


@pytest.mark.parametrize("how,level", [("model", "L1"), ("model", "mix"), ("in place", "mix"), ("blocks", "L1"),
                                       ("modules of blocks", "mix")])
def test_a_recorded_step_is_that_of_an_eager_run(dump, capfd, how: str, level: str) -> None:
    """Its loss, its tree; said once. The steps before and behind it are compiled."""
    eager = dump.debugger(level=level, step=[1, 2])
    job = Job(how, "inductor")
    eager_losses = [job.step(eager) for _ in range(4)]
    trees = [dump.data(1), dump.data(2)]
    eager.close()
    assert "torch.compile" not in capfd.readouterr().err
    dump.path = dump.path.parent / "compiled"
    debugger = dump.debugger(level=level, step=[1, 2])
    job = Job(how, "eager").compile()
    losses = [job.step(debugger) for _ in range(4)]
    # Backend "eager" computes as no compiler does: bit by bit.
    assert all(torch.equal(a, b) for a, b in zip(losses, eager_losses, strict=True))
    assert [dump.data(1), dump.data(2)] == trees
    assert job.counter.frame_count == 1 and not counters["graph_break"]
    said = [line for line in capfd.readouterr().err.splitlines() if "torch.compile" in line]
    assert len(said) == 1 and "recorded steps run as plain Python" in said[0]


def test_the_programs_own_stance_comes_back(dump) -> None:
    stance = torch._dynamo.eval_frame
    debugger = dump.debugger(level="L1")
    job = Job("model", "eager").compile()
    job.step()  # has none of the stand-ins that were there when the debugger was made
    torch.compiler.set_stance("fail_on_recompile")
    try:
        job.step(debugger)
        assert stance._stance.stance == "fail_on_recompile"
        debugger.start(model=job.watched)
        torch.compiler.set_stance("eager_on_recompile")
        debugger.stop()
        debugger.step()
        assert stance._stance.stance == "eager_on_recompile"
    finally:
        torch.compiler.set_stance("default")
    debugger.start(model=job.watched)
    assert stance._stance.stance == "force_eager"
    debugger.close()
    assert stance._stance.stance == "default"


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_torch_cond_has_its_compiler_in_a_recorded_step(dump, level: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))

    def gradient() -> torch.Tensor:
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (model(x),))
        y.sum().backward()
        return x.grad

    plain = gradient()
    debugger = dump.debugger(level=level)
    debugger.start(model)
    recorded = gradient()
    compiled = level == "L0" and RECORDS_COMPILED
    assert torch._dynamo.eval_frame._stance.stance == ("default" if compiled else "force_eager")
    debugger.stop()
    debugger.step()
    assert torch.equal(plain, recorded)
    assert {"Module.0.Linear.forward.0", "Module.0.Linear.backward.0"} <= set(dump.data())


_FIRST_COMPILE = """
import sys, torch
from rankprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
assert "torch._dynamo" not in sys.modules
with torch.no_grad():
    for _ in range(2):
        debugger.start(model)
        torch.relu(torch.ones(2))
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        compiled(torch.ones(2, 3))
        debugger.stop()
        debugger.step()
    from torch._dynamo.utils import counters
    assert not counters["stats"], counters
    compiled(torch.ones(2, 3))
    assert counters["stats"]["unique_graphs"] == 1, counters
"""


def test_the_first_torch_compile_of_a_process_in_a_recorded_step(dump) -> None:
    run = subprocess.run([sys.executable, "-c", _FIRST_COMPILE, str(dump.path)], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert {"Module.0.Linear.forward.0", "Torch.relu.0.forward", "Functional.relu.0.forward"} <= set(dump.data(1))


_TRAINING = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
step = torch.compile(optimizer.step, backend="aot_eager") if COMPILED_STEP else optimizer.step
compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
for _ in range(4):
    optimizer.zero_grad()
    compiled(torch.randn(2, 4)).sum().backward()
    step()
"""
_INFERENCE = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), backend="aot_eager", fullgraph=True)
with torch.no_grad():
    for _ in range(4):
        net(torch.randn(2, 4))
"""
_REPORT = """
from torch._dynamo.utils import counters
print(sum(counters["graph_break"].values()), dict(counters["stats"]), [p.sum().item().hex() for p in net.parameters()])
"""


@pytest.mark.parametrize("program", [_TRAINING.replace("COMPILED_STEP", "False"), _TRAINING.replace("COMPILED_STEP", "True"),
                                     _INFERENCE], ids=["training", "compiled optimizer", "inference"])
def test_an_attached_program_compiles_what_it_compiles_alone(tmp_path: pathlib.Path, program: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(program + _REPORT)

    def run(*prefix: str) -> subprocess.CompletedProcess:
        return subprocess.run([*prefix, sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True,
                              timeout=170, env=dict(os.environ))

    plain = run()
    attached = run(sys.executable, "-m", "rankprobe.run", "--")
    assert attached.returncode == 0 and "rankprobe: attached" in attached.stderr, attached.stderr
    assert attached.stdout == plain.stdout, (plain.stdout, attached.stdout, attached.stderr)
