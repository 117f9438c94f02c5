# SPDX-License-Identifier: Apache-2.0
"""PrecisionDebugger: arguments, states, and what is recorded of a small net."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
from typing import Optional
from torch import relu as early_relu  # taken before any debugger exists

import harness
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from rankprobe.pytorch import (InterfaceUsageError, InvalidParameterError, PrecisionDebugger, module_dump,
                               module_dump_end, _bindings)
from small_net import Net


@pytest.mark.parametrize("arguments", [
    {"config_path": 3}, {"task": 1}, {"level": []}, {"dump_path": 5}, {"step": "0"}, {"task": "nothing"},
    {"level": "L9"}, {"step": [-1]}, {"step": [1.5]}, {"config_path": "/does/not/exist.json"},
])
def test_bad_constructor_arguments(tmp_path: pathlib.Path, arguments: dict) -> None:
    with pytest.raises(InvalidParameterError):
        PrecisionDebugger(**{"dump_path": str(tmp_path / "d"), **arguments})
    assert PrecisionDebugger._instance is None


def test_class_level_use_before_construction() -> None:
    for call in (PrecisionDebugger.start, PrecisionDebugger.stop, PrecisionDebugger.step, module_dump_end):
        with pytest.raises(InterfaceUsageError, match="not created"):
            call()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_model_is_needed(dump, level: str) -> None:
    debugger = dump.debugger(level=level)
    with pytest.raises(InvalidParameterError, match="model"):
        debugger.start()
    with pytest.raises(InvalidParameterError, match="str"):
        debugger.start(model="net")
    with pytest.raises(InvalidParameterError, match="int"):
        debugger.start(model=[Net(), 3])


@pytest.mark.parametrize("token_range", [[1], [2, 1], [-1, 2], [0, 1.5], "01", [True, 2]])
def test_bad_token_range(dump, token_range) -> None:
    debugger = dump.debugger(level="L0")
    with pytest.raises(InvalidParameterError, match="token_range"):
        debugger.start(model=Net(), token_range=token_range)


@pytest.mark.parametrize("rank_id", [-1, 1.0, "0", True])
def test_bad_rank_id(dump, rank_id) -> None:
    with pytest.raises(InvalidParameterError, match="rank_id"):
        dump.debugger().start(rank_id=rank_id)


@pytest.mark.parametrize("step", [-1, 1.0, "0", True, 2**63 - 2, 2**64])
def test_bad_init_step(dump, step) -> None:
    with pytest.raises(InvalidParameterError, match="init step"):
        dump.debugger().set_init_step(step)


def test_second_construction_is_ignored(dump) -> None:
    first = dump.debugger()
    assert PrecisionDebugger(level="L0") is first
    assert first.config.level == "L1"


def test_arguments_beat_the_file(dump) -> None:
    debugger = PrecisionDebugger(config_path=dump.config(level="L0"), level="L1", step=[3])
    assert debugger.config.level == "L1" and debugger.config.last_step == 3


def test_early_bound_function_is_seen(dump) -> None:
    debugger = dump.debugger()
    debugger.start()
    early_relu(torch.ones(3))
    torch.relu(torch.ones(3))
    debugger.stop()
    debugger.step()
    assert list(dump.data()) == ["Torch.relu.0.forward", "Torch.relu.1.forward"]


def test_early_bound_function_is_seen_around_an_optimizer(dump) -> None:
    debugger = dump.debugger()
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)

    def closure():
        optimizer.zero_grad()
        loss = early_relu(weight).sum()
        loss.backward()
        return loss

    def broken():
        raise KeyError("of the user")

    debugger.start()
    optimizer.step(closure)
    optimizer.step()
    early_relu(weight)
    with pytest.raises(KeyError, match="of the user"):
        optimizer.step(broken)
    weight.grad = torch.ones(3)
    optimizer.param_groups[0]["lr"] = "no number"
    with pytest.raises(TypeError):
        optimizer.step()
    debugger.stop()
    debugger.step()
    debugger.start()  # the step that failed left nothing behind
    early_relu(weight)
    debugger.stop()
    debugger.step()
    assert [name for name in dump.data() if "relu" in name and "forward" in name] == [
        "Torch.relu.0.forward", "Torch.relu.1.forward"]
    assert list(dump.data(1)) == ["Torch.relu.0.forward"]
    debugger.close()
    assert torch.optim.Optimizer.zero_grad.__name__ == "zero_grad"


def _odd_tensors() -> list[torch.Tensor]:
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    # A view whose sign is a bit PyTorch keeps beside the memory.
    negative = torch.complex(base, base + 1).conj().imag
    assert negative.is_neg()
    return [base.transpose(0, 2), base[:, ::2, 1:], base.expand(5, 2, 3, 4), torch.tensor(3.5), torch.empty(0, 4),
            base[1, 1, 1:], negative, torch.complex(base, base).conj(), base.double(), base.half(), base.bfloat16(),
            base.int(), base.long(), base.short(), base.to(torch.int8), base.to(torch.uint8), base > 3,
            torch.nn.Parameter(base[0])]


def test_tensors_are_read_alike_with_and_without_dlpack(dump, monkeypatch) -> None:
    tensors = _odd_tensors()
    found = []
    for step, table in enumerate((True, False)):
        if not table:
            real = _bindings.bindings
            monkeypatch.setattr(_bindings, "bindings", lambda devices: {**real(devices), "dlpack_table": None})
        debugger = dump.debugger(level="debug", section={"scope": [], "list": [], "data_mode": ["all"],
                                                         "summary_mode": "statistics"})
        debugger.set_init_step(step)
        debugger.save(tensors, "odd")
        debugger.step()
        found.append(dump.data(step, "debug.json"))
        debugger.close()
    assert found[0] == found[1]
    (record,) = [value for name, value in found[0].items() if name.startswith("odd.")]
    assert len(record) == len(tensors)
    for leaf, tensor in zip(record, tensors):
        assert leaf["shape"] == list(tensor.shape)
        if tensor.numel() and not tensor.is_complex():
            assert leaf["Max"] == pytest.approx(tensor.float().max().item()) and leaf["dtype"] == str(tensor.dtype)


def test_values_and_backward(dump) -> None:
    debugger = dump.debugger()
    x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    debugger.start()
    (F.relu(x) * 2).sum().backward()
    debugger.stop()
    debugger.step()
    data = dump.data()
    tensor = data["Functional.relu.0.forward"]["input_args"][0]
    assert (tensor["Max"], tensor["Min"], tensor["requires_grad"]) == (3.0, -2.0, True)
    assert data["Tensor.__mul__.0.forward"]["input_args"][1] == {"type": "int", "value": 2}
    assert data["Functional.relu.0.backward"]["output"][0]["Max"] == 2.0


@dataclasses.dataclass
class HalfOutput(collections.OrderedDict):
    """As Hugging Face's ModelOutput: a dict without its fields that are None."""

    logits: Optional[torch.Tensor] = None
    hidden_states: Optional[tuple] = None

    def __post_init__(self) -> None:
        self.update({f.name: v for f in dataclasses.fields(self) if (v := getattr(self, f.name)) is not None})


def test_fields_that_are_none_are_null(dump) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> HalfOutput:
            return HalfOutput(logits=self.inner(x))

    class Top(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrapped = Half()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.wrapped(x)["logits"]

    model = Top()
    debugger = dump.debugger(level="L0")
    debugger.start(model)
    model(torch.ones(3, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    data = dump.data()
    (output,) = data["Module.wrapped.Half.forward.0"]["output"]
    assert list(output) == ["logits", "hidden_states"] and output["hidden_states"] is None
    assert output["logits"]["shape"] == [3, 2]
    assert "Module.wrapped.Half.backward.0" in data


def test_changed_in_place_is_read_again(dump) -> None:
    """A tensor seen twice is summarised once, but not when it has changed."""
    debugger = dump.debugger()
    x = torch.zeros(64, 64)
    debugger.start()
    torch.neg(x)
    torch.neg(x)
    x += 1
    torch.neg(x)
    x.data.add_(1)
    torch.neg(x)
    debugger.stop()
    debugger.step()
    data = dump.data()
    assert [data[f"Torch.neg.{i}.forward"]["input_args"][0]["Max"] for i in range(4)] == [0.0, 0.0, 1.0, 2.0]


def test_a_tensor_seen_twice_is_summarised_once(dump) -> None:
    """Shown by changing it where PyTorch cannot know: the second call has what the first one found."""
    debugger = dump.debugger()
    x = torch.zeros(64, 64)
    behind = x.numpy()
    debugger.start()
    torch.neg(x)
    behind[:] = 5
    torch.neg(x)
    torch.neg(x.view(-1))  # a view of the same elements
    x += 0  # told: read again
    torch.neg(x)
    debugger.stop()
    debugger.step()
    data = dump.data()
    assert [data[f"Torch.neg.{i}.forward"]["input_args"][0]["Max"] for i in range(4)] == [0.0, 0.0, 0.0, 5.0]


def test_memory_used_again_is_read_again(dump) -> None:
    debugger = dump.debugger()
    debugger.start()
    for i in range(20):
        torch.neg(torch.full((64, 64), float(i)))
    debugger.stop()
    debugger.step()
    data = dump.data()
    assert [data[f"Torch.neg.{i}.forward"]["input_args"][0]["Max"] for i in range(20)] == list(map(float, range(20)))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_modules_and_parameter_gradients(dump, level: str) -> None:
    debugger = dump.debugger(level=level)
    net = Net()
    for _ in range(2):
        debugger.start(model=net)
        net(torch.ones(2, 4)).sum().backward()
        debugger.stop()
        debugger.step()
    for step in (0, 1):
        names = set(dump.data(step))
        modules = {n for n in names if n.startswith("Module.")}
        if level == "L1":
            assert not modules and "Functional.linear.1.backward" in names
            continue
        assert {"Module.fc1.Linear.forward.0", "Module.act.ReLU.backward.0", "Module.fc1.Linear.backward.0",
                "Module.fc2.Linear.parameters_grad.0"} <= modules
        assert ("Functional.relu.0.forward" in names) == (level == "mix")


def test_gradients_of_parameters_are_recorded_once_also_after_steps_that_are_not(dump) -> None:
    debugger = dump.debugger(level="L0", step=[0, 2, 4])
    net = Net()
    for _ in range(5):
        debugger.start(model=net)
        net(torch.ones(2, 4)).sum().backward()
        debugger.stop()
        debugger.step()
    for step in (0, 2, 4):
        gradients = {name: sorted(entry) for name, entry in dump.data(step).items() if "parameters_grad" in name}
        assert gradients == {f"Module.{module}.parameters_grad.0": ["bias", "weight"] for module in ("fc1.Linear", "fc2.Linear")}


def test_stop_before_backward_keeps_gradients_until_step(dump) -> None:
    debugger = dump.debugger(level="mix")
    net = Net()
    debugger.start(model=net)
    loss = net(torch.ones(2, 4)).sum()
    debugger.stop()
    loss.backward()
    debugger.step()
    assert {"Functional.relu.0.backward", "Module.fc1.Linear.parameters_grad.0",
            "Module.act.ReLU.backward.0"} <= set(dump.data())


def test_an_exception_of_the_user_passes_and_capture_goes_on(dump) -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("the user's")

    net = nn.Sequential(nn.Sequential(Raises()), nn.Linear(4, 4))
    debugger = dump.debugger(level="mix")
    debugger.start(model=net)
    with pytest.raises(KeyError, match="the user's"):
        net(torch.ones(2, 4))
    with pytest.raises(RuntimeError):
        torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
    net[1](torch.ones(2, 4))
    torch.relu(torch.ones(1))
    debugger.stop()
    debugger.step()
    assert {"Module.1.Linear.forward.0", "Torch.relu.0.forward"} <= set(dump.data())
    if torch.__version__ < "2":
        return  # there no hook tells of a forward that raised: its place stays open until the next forward
    construct = __import__("json").loads((dump.rank_directory() / "construct.json").read_text())
    assert construct["Torch.relu.0.forward"] is None


def test_forked_children_record_nothing(dump) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=1,
                                         collate_fn=lambda rows: torch.relu(torch.stack(rows)))
    debugger = dump.debugger()
    debugger.start()
    batches = list(loader)
    torch.neg(batches[0])
    debugger.stop()
    debugger.step()
    names = list(dump.data())
    assert "Torch.neg.0.forward" in names and not any("relu" in n for n in names)


def test_a_model_that_changes_between_steps(dump) -> None:
    """What was hooked in the step before is not looked for again, but what is new in the model is."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    debugger = dump.debugger(level="L0")

    def step() -> None:
        debugger.start(model=model)
        model(torch.ones(2, 4)).sum().backward()
        debugger.stop()
        debugger.step()

    step()
    for parameter in model[0].parameters():
        parameter.requires_grad = True
    model[1][0].weight = nn.Parameter(torch.ones(4, 4))
    step()
    model[1].add_module("1", nn.Linear(4, 4))
    step()
    debugger.wait_exported()
    assert debugger._capture.faults == 0
    gradients = [{name: sorted(entry) for name, entry in dump.data(i).items() if "parameters_grad" in name} for i in range(3)]
    both = ["bias", "weight"]
    inner, outer = "Module.1.0.Linear.parameters_grad.0", "Module.0.Linear.parameters_grad.0"
    assert gradients == [{inner: both}, {inner: both, outer: both},
                         {inner: both, outer: both, "Module.1.1.Linear.parameters_grad.0": both}]


def test_module_dump_errors(dump) -> None:
    debugger = dump.debugger(level="mix")
    net = Net()
    with pytest.raises(InvalidParameterError):
        module_dump("net", "n")
    with pytest.raises(InvalidParameterError):
        module_dump(net, 3)
    debugger.start(model=net)
    with pytest.warns(RuntimeWarning, match="already"):
        module_dump(net.fc1, "again")
    debugger.stop()


def test_custom_api_errors(dump) -> None:
    debugger = dump.debugger()
    with pytest.raises(InvalidParameterError):
        debugger.register_custom_api(F, "no_such_function")
    with pytest.raises(InvalidParameterError):
        debugger.register_custom_api(F, "relu", 3)
    debugger.restore_custom_api(F, "never_registered")


@pytest.mark.parametrize("variable", [object(), {1: 2}, [None]])
def test_save_skips_what_is_invalid(dump, variable) -> None:
    debugger = dump.debugger(level="debug")
    with pytest.warns(RuntimeWarning, match="skipped"):
        debugger.save(variable, "v")
    with pytest.warns(RuntimeWarning, match="name"):
        debugger.save(1, 5)


def test_nothing_is_patched_while_switched_off(dump) -> None:
    before = torch.relu
    debugger = dump.debugger(dump_enable=False)
    debugger.start()
    assert torch.relu is before and not debugger._instruments.apis._installed
    debugger.stop()
    debugger.step()
    assert not dump.path.joinpath("step0").exists()


def test_finished_after_the_last_step(dump, capfd) -> None:
    debugger = dump.debugger(step=[0])
    for _ in range(3):
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.stop()
        debugger.step()
    debugger.wait_exported()
    assert [p.name for p in dump.path.glob("step*")] == ["step0"]
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("rankprobe: recording of the chosen steps is done") == 1


def _fired(collector, run: str, rule: str) -> list:
    events = collector.json("events", "--run", run)["events"]
    return [e for e in events if "TRIGGER_FIRED" in json.dumps(e) and rule in json.dumps(e)]


def test_losses_and_replicas_feed_the_trigger_rules(dump, collector, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "rules")
    monkeypatch.setenv("RANK", "0")
    debugger = dump.debugger(level="L1", dump_enable=False)
    debugger._session.native.wait_connected(30.0)
    assert not debugger._capture.wants_replica
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"rules": [
        {"name": "high", "loss": {"above": 5.0}, "raise_to": "EVIDENCE_NONE"},
        {"name": "alike", "replica": {}, "raise_to": "EVIDENCE_NONE"}]}))
    collector.cli("triggers", "set", rules, "--run", "rules")
    harness.wait_for(lambda: debugger._capture.wants_replica, 60, "the rules")
    net = Net()
    for loss in (torch.tensor(1.0), 2, torch.tensor([[9.0]], requires_grad=True)):
        PrecisionDebugger.start()
        PrecisionDebugger.report_loss(loss)
        PrecisionDebugger.report_replica(net)
        PrecisionDebugger.report_replica([net.fc1.weight, net.fc2])
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
    with pytest.warns(RuntimeWarning, match="report_loss"):
        PrecisionDebugger.report_loss(torch.ones(2))
    fired = harness.wait_for(lambda: _fired(collector, "rules", "high"), 60, "the event")
    assert len(fired) == 1 and int(fired[0]["step"]) == 2, fired
    assert debugger._capture.faults == 0


@pytest.mark.parametrize("bad", ["_C", [1], {"_C": 1}])
def test_bad_custom_op_namespaces(dump, bad) -> None:
    with pytest.raises(InvalidParameterError, match="custom_op_namespaces: .* a list of strings"):
        dump.debugger(custom_op_namespaces=bad)


def test_operators_of_a_namespace_until_close(dump) -> None:
    library = torch.library.Library("rptest", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    original = torch.ops.rptest.twice
    debugger = dump.debugger(custom_op_namespaces=["rptest"])
    debugger.start()
    assert torch.ops.rptest.twice(torch.ones(2)).tolist() == [2, 2]
    debugger.stop()
    debugger.step()
    assert list(dump.data())[-1] == "rptest.twice.0.forward"
    debugger.close()
    assert torch.ops.rptest.twice is original
