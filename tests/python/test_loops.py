# SPDX-License-Identifier: Apache-2.0
"""rankprobe.integrations.loops: the steps of a loop that a program writes itself (tests/trainers has the real trainers)."""

from __future__ import annotations

import copy
import gc
import json
import pathlib
import pickle
import subprocess
import sys
import weakref
from typing import Any, Callable, Optional

import pytest
import torch

from rankprobe.integrations import loops
from rankprobe.integrations._steps import TrainingSteps
from rankprobe.pytorch import InvalidParameterError, PrecisionDebugger


def _made() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def _train(model: Any, optimizer: Any, steps: int = 3, forward: Optional[Callable[[Any], Any]] = None) -> list[Any]:
    """Two micro batches a step, and an evaluation between them and behind the step."""
    losses = []
    for step in range(steps):
        for part in range(2):
            loss = (forward or model)(torch.full((2, 4), 1.0 + step + part)).square().mean()
            loss.backward()
            losses.append(loss.item())
            was = model.training
            model.eval()
            with torch.no_grad():
                model(torch.zeros(7, 4))
            model.train(was)
        optimizer.step()
        optimizer.zero_grad()
    return losses + [p.tolist() for p in model.parameters()]


def _steps(dump: Any) -> dict[int, list[str]]:
    PrecisionDebugger.instance.close()
    found = {}
    for path in dump.path.glob("step*/*/dump.json"):
        data = json.loads(path.read_text())["data"]
        assert not any(value["shape"][:1] == [7] for entry in data.values() for value in entry.get("output", []) if value and "shape" in value)
        found[int(path.parent.parent.name[4:])] = [name for name in data if name.startswith("Module.0.") and ".forward." in name]
    return dict(sorted(found.items()))


def _both(step: int = 0, count: int = 3) -> dict[int, list[str]]:
    return {step + i: ["Module.0.Linear.forward.0", "Module.0.Linear.forward.1"] for i in range(count)}


def test_a_step_has_its_micro_batches_and_no_evaluation(dump: Any) -> None:
    plain = _train(*_made())
    model, optimizer = _made()
    loops.watch(model, optimizer, config_path=dump.config(level="mix"))
    assert _train(model, optimizer) == plain
    assert _steps(dump) == _both()


def test_without_a_switch_nothing_is_changed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, optimizer = _made()
    before = {**vars(model)}, {**vars(optimizer)}, type(optimizer).step.__code__
    assert loops.watch(model, optimizer) is None
    assert before == ({**vars(model)}, {**vars(optimizer)}, type(optimizer).step.__code__)
    assert PrecisionDebugger.instance is None and not list(tmp_path.iterdir())


def test_a_loop_that_resumes_goes_on_with_its_numbers(dump: Any) -> None:
    model, optimizer = _made()
    loops.watch(model, optimizer, step=40, config_path=dump.config(level="L0"))
    _train(model, optimizer)
    assert _steps(dump) == _both(40)


def test_the_number_of_a_step_is_asked_when_it_begins(dump: Any) -> None:
    """As torchtitan's: the trainer counts, and a checkpoint is loaded after watch(); an evaluation in a step asks nothing."""
    model, optimizer = _made()
    numbers = iter([8, 9, 12])
    loops.watch(model, optimizer, step=lambda: next(numbers), config_path=dump.config(level="L0"))
    _train(model, optimizer)
    assert _steps(dump) == {**_both(8, 2), **_both(12, 1)}


def test_a_number_that_cannot_be_had_ends_the_recording_and_not_the_training(dump: Any, capfd: Any) -> None:
    plain = _train(*_made())
    model, optimizer = _made()
    loops.watch(model, optimizer, step=lambda: {}["step"], config_path=dump.config(level="L0"))
    assert _train(model, optimizer) == plain
    assert capfd.readouterr().err.count("nothing more is recorded, and the training continues: KeyError('step')") == 1


def test_a_method_of_another_name_ends_the_step(dump: Any) -> None:
    """As verl's engines: one that leaves optimizer.step() out where the gradients are not finite."""
    class Engine:
        def __init__(self) -> None:
            self.module, self.optimizer = _made()
            self.skip = False

        def optimizer_step(self) -> None:
            if not self.skip:
                self.optimizer.step()

    engine, other = Engine(), Engine()
    loops.watch(engine.module, engine.optimizer_step, config_path=dump.config(level="L0"))
    for step in range(3):
        engine.skip = step == 1
        for _ in range(2):
            engine.module(torch.ones(2, 4)).sum().backward()
        other.optimizer_step()
        engine.optimizer_step()
    assert _steps(dump) == _both()


def test_a_list_of_models_and_an_optimizer_of_ones_own(dump: Any) -> None:
    """Megatron's: parts of a pipeline, and an optimizer that is none of PyTorch's."""
    class Optimizer:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def step(self) -> tuple[bool, float]:
            self.inner.step()
            return True, 1.0

    model, inner = _made()
    tail = torch.nn.Sequential(torch.nn.Linear(1, 1))
    optimizer = Optimizer(inner)
    loops.watch([model, tail], optimizer, config_path=dump.config(level="L0"))
    for _ in range(2):
        tail(model(torch.ones(2, 4))).sum().backward()
        optimizer.step()
    PrecisionDebugger.instance.close()
    for step in range(2):
        data = dump.data(step)
        assert {"Module.0.0.Linear.forward.0", "Module.1.0.Linear.forward.0"} <= set(data)


def test_a_step_that_a_scaler_leaves_out_is_a_step(dump: Any) -> None:
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("the scaler of this PyTorch needs a GPU")
    model, optimizer = _made()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    loops.watch(model, optimizer, config_path=dump.config(level="L0"))
    for step in range(4):
        loss = model(torch.full((2, 4), float("inf") if step == 1 else 1.0)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert {step: len(names) for step, names in _steps(dump).items()} == {0: 1, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("way", ["eval", "forward"])
def test_a_loop_without_a_training_forward_is_recorded_from_its_second_step_on(dump: Any, way: str) -> None:
    """Of a model that is trained in eval(), or whose forward() is called directly."""
    model, optimizer = _made()
    if way == "eval":
        model.eval()
    loops.watch(model, optimizer, config_path=dump.config(level="L0"))
    _train(model, optimizer, forward=model.forward if way == "forward" else None)
    found = _steps(dump)
    assert {1, 2} <= set(found)
    assert way == "forward" or {1: found[1], 2: found[2]} == _both(1, 2)


def test_copies_and_pickles_have_nothing_of_ours(dump: Any) -> None:
    model, optimizer = _made()
    watched = loops.watch(model, optimizer, config_path=dump.config(level="L0"))
    assert not copy.deepcopy(model)._forward_pre_hooks and not pickle.loads(pickle.dumps(model))._forward_pre_hooks
    assert "step" not in vars(optimizer)
    pickle.dumps(optimizer)
    watched.remove()
    assert not model._forward_pre_hooks
    _train(model, optimizer)
    assert not list(dump.path.glob("step*"))


def test_a_fault_of_ours_ends_the_recording_and_not_the_training(dump: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    plain = _train(*_made())
    model, optimizer = _made()
    loops.watch(model, optimizer, config_path=dump.config(level="L0"))

    def fail(*_: Any) -> None:
        raise OSError("planted")

    monkeypatch.setattr(PrecisionDebugger, "_step", fail)
    assert _train(model, optimizer) == plain
    assert capfd.readouterr().err.count("nothing more is recorded, and the training continues: OSError('planted')") == 1


def test_a_bad_config_is_named_at_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bad.json").write_text('{"task": "statistics", "level": "L7"}')
    with pytest.raises(InvalidParameterError, match="L7"):
        loops.watch(*_made(), config_path=tmp_path / "bad.json")


def test_a_debugger_of_the_program_is_the_one_that_records(dump: Any) -> None:
    debugger = dump.debugger(level="L0")
    model, optimizer = _made()
    loops.watch(model, optimizer)
    _train(model, optimizer)
    assert debugger is PrecisionDebugger.instance and _steps(dump) == _both()


def test_a_collector_switches_an_idle_loop(collector: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "loop")
    model, optimizer = _made()
    loops.watch(model, optimizer)
    assert "attached to Sequential, idle; a step is one of the loop; switch it on with: rankprobe enable" in capfd.readouterr().err
    _train(model, optimizer, 2)
    collector.cli("enable", "--run", "loop", "--at-step", "3", "--for-steps", "2", check=False)  # the rank is at step 2
    _train(model, optimizer, 6)
    PrecisionDebugger.instance.close()
    assert sorted({row["step"] for row in collector.json("status", "--run", "loop", "--steps")["steps"]}) == [3, 4]


def test_a_loop_that_begins_again_counts_on(dump: Any, capfd: Any) -> None:
    dump.debugger(level="L0")
    steps = TrainingSteps("a loop")
    model, _ = _made()
    for first in (0, 1):
        assert steps.begin([model], first)
        for _ in range(2):
            steps.start()
            model(torch.ones(2, 4)).sum().backward()
            steps.end()
    assert {step: len(names) for step, names in _steps(dump).items()} == {0: 1, 1: 1, 2: 1, 3: 1}
    assert capfd.readouterr().err.count("the numbers continue with 2") == 1


def test_under_rankprobe_run_the_loop_has_the_steps(tmp_path: pathlib.Path) -> None:
    """The optimizer is made first; what the attachment has begun by then goes on as the loop's."""
    (tmp_path / "train.py").write_text(f"""
import sys
import weakref
sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}, {str(pathlib.Path(__file__).parents[1] / "integration")!r}]
from test_loops import _made, _train
from rankprobe.integrations.loops import watch
model, optimizer = _made()
watch(model, optimizer, step=5)
_train(model, optimizer)
""")
    done = subprocess.run([sys.executable, "-m", "rankprobe.run", "--on", "--", sys.executable, "train.py"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=200)
    assert done.returncode == 0 and "a step is one of the loop" in done.stderr, done.stderr
    steps = {int(path.parent.parent.name[4:]): json.loads(path.read_text())["data"] for path in tmp_path.glob("dump_path/step*/*/dump.json")}
    assert {5, 6, 7} <= set(steps)
    for step in (5, 6, 7):
        assert [n for n in steps[step] if n.startswith("Module.0.") and ".forward." in n] == _both()[0]


def test_a_model_that_the_program_drops_is_freed(dump: Any) -> None:
    """A search over hyperparameters makes one after another, and its optimizers share a class."""
    _made()  # PyTorch itself wraps the step of a class when its first optimizer is made
    step = torch.optim.AdamW.step
    for turn in range(3):
        model, optimizer = _made()
        assert loops.watch(model, optimizer, config_path=dump.config(level="L0")) is not None
        _train(model, optimizer, 2)
        gone = weakref.ref(model)
        del model, optimizer
        gc.collect()
        assert gone() is None, turn
    assert torch.optim.AdamW.step is step
