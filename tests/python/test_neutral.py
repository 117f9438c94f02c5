# SPDX-License-Identifier: Apache-2.0
"""Watching never changes a number: losses, parameters and optimizer state are those of the run without us, bit by bit."""

from __future__ import annotations

import json
from typing import Any, Callable, Iterator, Optional

import neutral_models as models
import pytest
import torch

_STEPS = 10


def _train(build: Callable[[], models.Case], before: Callable[[int], None] = lambda _: None,
           debugger: Any = None) -> list[torch.Tensor]:
    """Losses, parameters, buffers and optimizer state of ten steps."""
    torch.manual_seed(0)
    case = build()
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=0.01)
    kept = []
    for step in range(_STEPS):
        before(step)
        if debugger is not None:
            debugger.start(model=case.model)
        loss = case.loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        kept.append(loss.detach().clone())
    state = [value for of_one in optimizer.state.values() for value in of_one.values() if torch.is_tensor(value)]
    return kept + [t.detach().clone() for t in (*case.model.parameters(), *case.model.buffers(), *state)]


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("name", sorted(models.CASES))
def test_ten_steps_are_the_same_bit_for_bit(dump, name: str, level: str) -> None:
    plain = _train(models.CASES[name])
    debugger = dump.debugger(level=level)
    assert _same(plain, _train(models.CASES[name], debugger=debugger))
    assert debugger._capture.faults == 0
    data = dump.data(_STEPS - 1)
    assert any(".backward" in entry for entry in data)
    assert level == "L1" or any(entry.startswith("Module.") and ".backward." in entry for entry in data)


@pytest.mark.parametrize("task", ["tensor", "md5"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_every_task_is_the_same_bit_for_bit(dump, level: str, task: str) -> None:
    plain = _train(models.CASES["llama"])
    md5 = {"task": "statistics", "section": {"summary_mode": "md5"}}
    debugger = dump.debugger(level=level, **(md5 if task == "md5" else {"task": task}))
    assert _same(plain, _train(models.CASES["llama"], debugger=debugger))
    assert debugger._capture.faults == 0
    assert dump.data(_STEPS - 1)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_switched_on_and_off_in_mid_run(dump, level: str) -> None:
    """Attached and off, on from step 3, off from step 6, on again from step 8."""
    plain = _train(models.CASES["llama"])
    debugger = dump.debugger(level=level, dump_enable=False)

    def switch(step: int) -> None:
        if step in (3, 6, 8):
            config = json.loads(dump.config_path.read_text())
            config["dump_enable"] = step != 6
            dump.config_path.write_text(json.dumps(config))

    assert _same(plain, _train(models.CASES["llama"], switch, debugger))
    debugger.wait_exported()
    assert sorted(p.name for p in dump.path.glob("step*")) == [f"step{i}" for i in (3, 4, 5, 8, 9)]


class Reported:
    """Gradients that PyTorch's own full backward hooks report, by module and call."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.inputs: dict[str, tuple] = {}
        self.outputs: dict[str, tuple] = {}
        for path, module in model.named_modules():
            if module is not model:
                module.register_full_backward_hook(self._hook(f"Module.{path}.{type(module).__name__}"))

    def _hook(self, name: str) -> Callable:
        def hook(_: Any, inputs: tuple, outputs: tuple) -> None:
            self.inputs[name] = tuple(None if g is None else g.detach().clone() for g in inputs)
            self.outputs[name] = tuple(None if g is None else g.detach().clone() for g in outputs)

        return hook


def _recorded(dump: Any, items: Optional[list]) -> Iterator[Optional[torch.Tensor]]:
    for item in items or ():
        yield torch.load(dump.rank_directory() / "dump_tensor_data" / item["data_name"]) if item else None


def _close(ours: Optional[torch.Tensor], theirs: Optional[torch.Tensor], exact: bool) -> bool:
    if ours is None or theirs is None:
        return (ours is None or not ours.any()) and (theirs is None or not theirs.any())
    return torch.equal(ours, theirs) if exact else torch.allclose(ours, theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", sorted(models.ONE_CALL))
def test_gradients_are_those_of_full_backward_hooks(dump, name: str) -> None:
    """Exactly at the outputs' end of the graph; further on the order of additions is another."""
    torch.manual_seed(0)
    case = models.ONE_CALL[name]()
    reported = Reported(case.model)
    torch.manual_seed(1)
    case.loss().backward()
    torch.manual_seed(0)
    case = models.ONE_CALL[name]()
    debugger = dump.debugger(level="L0", task="tensor")
    debugger.start(model=case.model)
    torch.manual_seed(1)
    case.loss().backward()
    debugger.stop()
    debugger.step()
    data = dump.data()
    assert debugger._capture.faults == 0
    assert set(reported.outputs) == {e.rpartition(".backward.")[0] for e in data if ".backward." in e}
    for module, outputs in reported.outputs.items():
        entry = data[f"{module}.backward.0"]
        inputs = [g for g in reported.inputs[module]]
        got = list(_recorded(dump, entry["input"])), list(_recorded(dump, entry["output"]))
        wanting = [g for g in outputs]
        assert len(got[0]) <= len(wanting), module
        for ours, theirs in zip(got[0], wanting):
            assert _close(ours, theirs, name in models.EXACT), (module, "outputs")
        for ours, theirs in zip(got[1], inputs):
            assert _close(ours, theirs, name in models.EXACT), (module, "inputs")
    assert any(item for e in data if ".backward." in e for item in data[e]["output"])
