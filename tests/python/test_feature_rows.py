# SPDX-License-Identifier: Apache-2.0
"""Rows of the feature table that no other test holds, each under its number.

The table (A: config.json, B: calls, C: output) was audited row by row; what it
found partly done is here, and what it found done and nothing held.
"""

from __future__ import annotations

import json
import pathlib
import types
import warnings
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from rankprobe._frontend import config as _config
from rankprobe.pytorch import (InterfaceUsageError, InvalidParameterError, PrecisionDebugger, module_dump,
                               module_dump_end)
from rankprobe.pytorch._api_list import load_list
from small_net import Net


def _section(**fields: Any) -> dict:
    return {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics", **fields}


def _text(**fields: Any) -> str:
    return json.dumps({"task": "statistics", "dump_path": "./d", "rank": [], "step": [], "level": "L1", **fields})


# --- A1: the file

def test_a1_a_config_that_is_not_called_json_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.txt"
    path.write_text(_text())
    with pytest.raises(InvalidParameterError, match=r"config\.txt"):
        PrecisionDebugger(config_path=str(path))


@pytest.mark.parametrize("text", ["{", '{"task" 1}', "", "[" * 100000])
def test_a1_malformed_json_names_the_file(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(InvalidParameterError, match=r"broken\.json.*JSON"):
        PrecisionDebugger(config_path=str(path))


@pytest.mark.parametrize("text", ["[1]", "3", '{"task": "nothing"}', '{"level": null}'])
def test_a1_a_bad_config_names_the_file(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InvalidParameterError, match=r"bad\.json"):
        PrecisionDebugger(config_path=str(path))


def test_a1_unknown_keys_are_warned_about(dump) -> None:
    with pytest.warns(RuntimeWarning, match="keep_all_ranks"):
        dump.debugger(keep_all_ranks=True)


# --- values of fields

REFUSED = {
    "a2-task": [{"task": value} for value in ("bogus", None, 5)],
    "a4-acc_check": [{"task": "acc_check"}],
    "a5-overflow_check": [{"task": "overflow_check"}],
    "a6-exception_dump": [{"task": "exception_dump"}],
    "a7-dump_path": [{"dump_path": ""}, {"dump_path": 3}],
    "a8-rank": [{"rank": value} for value in (3, [True], [-1], [1000001], ["6-4"], ["1-2-3"], [1.5], [None], ["0x3"])],
    "a9-step": [{"step": value} for value in (3, [True], [-1], ["6-4"], [1.5], [None])],
    "a10-level": [{"level": value} for value in ("L9", "l0", None)],
    "a11-L2": [{"level": "L2"}, {"level": "L2", "task": "tensor", "tensor": {"list": ["Torch.relu.0.forward"]}}],
    "a13-async_dump": [{"async_dump": 1}, {"async_dump": True, "task": "tensor", "tensor": {"list": []}},
                       {"async_dump": True, "statistics": {"summary_mode": "md5"}}],
    "a14-dump_enable": [{"dump_enable": 1}, {"dump_enable": "true"}],
    "a15-extra_info": [{"extra_info": 1}],
    "a16-precision": [{"precision": "middle"}],
    "a17-risk_level": [{"risk_level": "SOME"}],
    "a18-scope": [{"statistics": {"scope": value}} for value in (["x"], ["a", "b", "c"], 4, [1, 2])]
                 + [{"level": "L0", "statistics": {"scope": ["Torch.relu.0.forward", "Torch.relu.1.forward"]}},
                    {"level": "L1", "statistics": {"scope": ["Module.a.A.forward.0", "Module.b.B.forward.0"]}}],
    "a19-list": [{"statistics": {"list": value}} for value in ("relu", [1], {})],
    "a20-list": [{"statistics": {"list": [value]}} for value in ("name-regex([)", "name-regex(a", "name-regex(*)")],
    "a21-tensor_list": [{"statistics": {"tensor_list": value}} for value in ("relu", [1])],
    "a22-device": [{"statistics": {"device": "gpu"}}],
    "a23-data_mode": [{"statistics": {"data_mode": value}}
                      for value in (["all", "input"], ["sideways"], ["forward"] * 5, "all")],
    "a24-summary_mode": [{"statistics": {"summary_mode": value}} for value in ("sha1", ["max"], 3)],
    "a25-file_format": [{"task": "tensor", "tensor": {"file_format": "csv"}}],
    "a26-bench_path": [{"task": "tensor", "tensor": {"bench_path": value}} for value in (3, "/does/not/exist")],
    "a27-diff_nums": [{"task": "tensor", "tensor": {"bench_path": "/tmp", "diff_nums": value}}
                      for value in (0, -2, 1.5, "3", True)],
}


@pytest.mark.parametrize("said,fields", [pytest.param(row.split("-")[1], one, id=f"{row}-{i}")
                                         for row, all_ in REFUSED.items() for i, one in enumerate(all_)])
def test_bad_values_are_refused(said: str, fields: dict) -> None:
    with pytest.raises(InvalidParameterError, match=rf"c\.json.*{said}"):
        _config.parse(_text(**fields), "c.json")


ACCEPTED = {
    "a3-structure": ({"task": "structure", "level": "L1"}, "mix", {"level": "mix"}),
    "a12-debug": ({"task": "structure", "level": "debug"}, "mix", {"level": "mix"}),
    "a12-tensor_list": ({"level": "debug", "statistics": {"tensor_list": ["relu"]}}, "tensor_list", {}),
    "a20-regex": ({"statistics": {"list": ["name-regex(conv.*)"]}}, "MindSpore", {}),
    "a22-device": ({"statistics": {"device": "host"}}, "device", {}),
    "a25-file_format": ({"task": "tensor", "tensor": {"file_format": "bin"}}, "file_format", {}),
    "a8-one": ({"rank": ["3", 5, "7-8"]}, None, {"ranks": [(3, 3), (5, 5), (7, 8)]}),
    "a16-high": ({"precision": "high"}, None, {"precision": "high"}),
    "a17-core": ({"risk_level": "CORE"}, None, {"risk_level": "CORE"}),
    "a24-xor": ({"statistics": {"summary_mode": "xor"}}, None, {"summary_mode": "xor"}),
}


@pytest.mark.parametrize("row", ACCEPTED)
def test_values_that_are_taken_and_what_is_said_of_them(row: str) -> None:
    fields, said, wanted = ACCEPTED[row]
    plan, notes = _config.parse(_text(**fields))
    assert {key: plan[key] for key in wanted} == wanted
    assert (notes == []) if said is None else any(said in note for note in notes), notes


# --- A8, A19: filters that leave nothing

@pytest.mark.parametrize("rank_id", [None, 3])
def test_a8_a_rank_filter_that_leaves_out_a_single_process_is_said_once(dump, rank_id) -> None:
    debugger = dump.debugger(rank=[0])
    with pytest.warns(RuntimeWarning, match=r'"rank": \[\]'):
        debugger.start(rank_id=rank_id)
    torch.relu(torch.ones(2))
    debugger.stop()
    debugger.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        debugger.start(rank_id=rank_id)
        debugger.stop()
    assert not list(dump.path.glob("step*"))


def test_a8_a_rank_of_several_that_is_left_out_says_nothing(dump, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    debugger = dump.debugger(rank=[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        debugger.start(rank_id=0)
        debugger.stop()


@pytest.mark.parametrize("fields", [{"list": ["relu6"]}, {"scope": ["Torch.relu.5.forward", "Torch.relu.6.forward"]}])
def test_a19_a_filter_that_matches_nothing_is_said_at_stop(dump, fields: dict) -> None:
    debugger = dump.debugger(section=_section(**fields))
    debugger.start()
    torch.relu(torch.ones(2))
    torch.neg(torch.ones(2))
    with pytest.warns(RuntimeWarning, match="none of the 2 forwards of step 0"):
        debugger.stop()
    debugger.step()


@pytest.mark.parametrize("name", ["relu", "relu.0.backward", "Torch.relu.0.forward"])
def test_a19_one_that_matches_is_not(dump, name: str) -> None:
    debugger = dump.debugger(section=_section(list=[name]))
    x = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        debugger.start()
        torch.relu(x).sum().backward()
        debugger.stop()
        debugger.step()
    assert all("relu" in entry for entry in dump.data()) and dump.data()


# --- A13, A16: where the specification is not followed on purpose (docs/compatibility.md)

def test_a13_complex_statistics_under_async_dump(dump) -> None:
    debugger = dump.debugger(async_dump=True)
    debugger.start()
    torch.neg(torch.tensor([3 + 4j]))
    debugger.stop()
    debugger.step()
    assert dump.data()["Torch.neg.0.forward"]["input_args"][0]["Max"] == 5.0


def test_a16_precision_high_gives_whole_numbers_a_mean(dump) -> None:
    debugger = dump.debugger(precision="high")
    debugger.start()
    torch.neg(torch.tensor([1, 4]))
    debugger.stop()
    debugger.step()
    item = dump.data()["Torch.neg.0.forward"]["input_args"][0]
    assert (item["Max"], item["Mean"]) == (4.0, 2.5)


# --- B: calls

def test_b2_b5_b6_start_stop_step_in_odd_orders(dump) -> None:
    debugger = dump.debugger()
    debugger.stop()  # without start: nothing
    debugger.start()
    torch.relu(torch.ones(1))
    debugger.start()  # again: the same step goes on
    torch.relu(torch.ones(1))
    debugger.stop()
    torch.relu(torch.ones(1))
    debugger.start()
    torch.relu(torch.ones(1))
    debugger.step()  # without stop
    torch.relu(torch.ones(1))
    debugger.step()
    assert list(dump.data()) == [f"Torch.relu.{i}.forward" for i in range(3)]
    assert [path.name for path in dump.path.glob("step*")] == ["step0"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_b3_what_follows_the_last_forward_of_token_range_belongs_to_it(dump, level: str) -> None:
    """A decoding loop: the choice of the token comes after the forward that it is chosen from."""
    net = Net()
    debugger = dump.debugger(level=level)
    debugger.start(model=net, token_range=[1, 2])
    with torch.no_grad():
        torch.neg(torch.ones(1))  # before the first forward
        x = torch.ones(1, 4)
        for _ in range(5):
            chosen = torch.argmax(net(x), dim=-1)
            x = torch.cat([x[:, 1:], chosen.float().unsqueeze(0)], dim=-1)
    debugger.stop()
    debugger.step()
    names = [name for name in dump.data() if name.startswith(("Torch.", "Functional."))]
    assert [n for n in names if "argmax" in n or "cat" in n] == [
        "Torch.argmax.0.forward", "Torch.cat.0.forward", "Torch.argmax.1.forward", "Torch.cat.1.forward"]
    assert len([n for n in names if "linear" in n]) == 4 and not any("neg" in n for n in names)
    assert (names[0], names[-1]) == ("Functional.linear.0.forward", "Torch.cat.1.forward")


def test_b10_an_exception_in_module_dump_silences_that_step_only(dump) -> None:
    net = Net()
    debugger = dump.debugger()
    debugger.start()
    with pytest.raises(RuntimeError):
        module_dump(net.fc1, "mine")
        net(torch.ones(1, 3))  # wrong shape: module_dump_end() is not reached
        module_dump_end()
    debugger.stop()
    with pytest.warns(RuntimeWarning, match="module_dump_end"):
        debugger.step()
    debugger.start()
    net(torch.ones(1, 4))
    debugger.stop()
    debugger.step()
    assert [name for name in dump.data(1) if name.endswith("forward")] == [
        "Functional.linear.0.forward", "Functional.relu.0.forward", "Functional.linear.1.forward"]
    assert not any(name.startswith("Module") for name in dump.data(1))


def test_b11_registering_again_with_another_prefix_is_said(dump) -> None:
    module = types.ModuleType("mine")
    module.double = lambda x: x * 2  # type: ignore[attr-defined]
    debugger = dump.debugger()
    debugger.register_custom_api(module, "double")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        debugger.register_custom_api(module, "double")
    with pytest.warns(RuntimeWarning, match="mine.double"):
        debugger.register_custom_api(module, "double", "other")
    debugger.start()
    module.double(torch.ones(1))  # type: ignore[attr-defined]
    debugger.stop()
    debugger.restore_custom_api(module, "double")
    debugger.restore_custom_api(module, "double")
    debugger.step()
    assert list(dump.data()) == ["mine.double.0.forward"]


YAML = """# as msprobe ships it
functional:  # a kind
  - relu
  - gelu   # two
tensor:
- add
torch:
  - linalg.norm
  - no_such_function
_VF: []
aten:
  - relu
"""


def test_b14_the_list_may_be_support_wrap_ops_yaml(dump, tmp_path, monkeypatch) -> None:
    path = tmp_path / "support_wrap_ops.yaml"
    path.write_text(YAML)
    assert load_list(str(path)) == {"Functional": ["relu", "gelu"], "Tensor": ["add"],
                                    "Torch": ["linalg.norm", "no_such_function"], "VF": []}
    monkeypatch.setenv("RANKPROBE_API_LIST", str(path))
    debugger = dump.debugger()
    debugger.start()
    x = torch.ones(2, 2)
    F.relu(x).add(1)
    torch.relu(x)
    torch.linalg.norm(x)
    debugger.stop()
    debugger.step()
    assert list(dump.data()) == ["Functional.relu.0.forward", "Tensor.add.0.forward", "Torch.norm.0.forward"]


@pytest.mark.parametrize("text,said", [
    ("- relu\n", "line 1"), ("functional:\n  relu\n", "line 2"), ("functional: [relu]\n", "line 1"),
    ("nothing:\n  - relu\n", "line 1"), ("functional:\n  - a: b\n", "line 2"), ("functional:\n  - \n", "line 2"),
])
def test_b14_a_malformed_list_is_an_error_with_its_line(tmp_path, text: str, said: str) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"list\.yaml: {said}"):
        load_list(str(path))


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="PyTorch 1.13 has no torch.compile")
def test_b16_compiled_functions_are_recorded_and_start_inside_a_trace_is_refused(dump) -> None:
    debugger = dump.debugger()
    compiled = torch.compile(lambda x: torch.relu(x) * 2, backend="eager")
    x = torch.tensor([-1.0, 3.0])
    assert compiled(x).tolist() == [0.0, 6.0]
    debugger.start()
    assert compiled(x).tolist() == [0.0, 6.0]
    debugger.stop()
    debugger.step()
    assert "Torch.relu.0.forward" in dump.data()

    said = []

    def inside(graph, inputs):
        try:
            debugger.start()
        except InterfaceUsageError as error:
            said.append(str(error))
        return graph.forward

    assert torch.compile(lambda x: x + 1, backend=inside)(x).tolist() == [0.0, 4.0]
    assert len(said) == 1 and "TORCHDYNAMO_DISABLE=1" in said[0]
    torch._dynamo.reset()


def test_config_of_the_instance_is_there_to_read(dump) -> None:
    assert PrecisionDebugger.instance is None
    debugger = dump.debugger(level="mix", rank=[0, 2], dump_enable=True, section=_section(list=["relu"]))
    assert PrecisionDebugger.instance is debugger
    config = PrecisionDebugger.instance.config
    assert (config.level, config.task, config.dump_path, config.rank, config.step, config.list, config.dump_enable) == (
        "mix", "statistics", str(dump.path), [0, 2], [], ["relu"], True)
    assert (config.summary_mode, config.framework, config.async_dump, config.extra_info) == (
        "statistics", "pytorch", False, True)
    with pytest.raises(AttributeError, match="read-only"):
        config.level = "L0"
    with pytest.raises(AttributeError, match="no_such_field"):
        _ = config.no_such_field
    assert not hasattr(config, "custom_op_namespaces")
    config.rank.append(7)
    assert debugger.config.rank == [0, 2] and "level='mix'" in repr(config)
    debugger.close()
    assert PrecisionDebugger.instance is None


def test_dump_enable_is_none_without_the_switch(dump) -> None:
    assert dump.debugger().config.dump_enable is None


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_b17_the_backward_of_an_in_place_module(dump, level: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2), nn.ReLU())
    debugger = dump.debugger(level=level)
    debugger.start(net)
    for _ in range(2):
        net(torch.randn(3, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    data = dump.data()
    for call in (0, 1):
        behind, before = data[f"Module.1.ReLU.backward.{call}"], data[f"Module.0.Linear.backward.{call}"]
        assert behind["output"][0]["shape"] == [3, 4] and before["output"] == []
        assert behind["output"][0]["Norm"] == before["input"][0]["Norm"]
        assert behind["input"][0]["Norm"] == data[f"Module.2.Linear.backward.{call}"]["output"][0]["Norm"]
    assert not list(dump.rank_directory().glob("dump_error_info.log"))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_b17_a_module_that_changes_a_view_says_what_is_missing(dump, level: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Flatten(0, 1), nn.ReLU(inplace=True), nn.Linear(4, 2))
    debugger = dump.debugger(level=level)
    debugger.start(net)
    with pytest.warns(RuntimeWarning, match=r"Module\.3\.ReLU changes a view in place") as said:
        net(torch.randn(2, 3, 4)).sum().backward()
    assert len(said) == 1
    net(torch.randn(2, 3, 4)).sum().backward()  # said once
    debugger.stop()
    debugger.step()
    data = dump.data()
    for call in (0, 1):
        mark = data[f"Module.3.ReLU.backward.{call}"]["output"]
        assert mark == [{"type": "str", "value": "not recorded: the module changed its input in place"}]
        assert data[f"Module.3.ReLU.backward.{call}"]["input"][0]["shape"] == [6, 4]
        assert data[f"Module.4.Linear.backward.{call}"]["output"][0]["shape"] == [6, 4]
        assert data[f"Module.1.GELU.backward.{call}"]["input"][0]["shape"] == [2, 3, 4]
        assert f"Module.2.Flatten.backward.{call}" not in data
    assert not list(dump.rank_directory().glob("dump_error_info.log"))
