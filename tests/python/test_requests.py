# SPDX-License-Identifier: Apache-2.0
"""A server's requests: whose rows the tensors hold, what is recorded of one of them, and what exports say of it."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch

STEPS = [{"a": 5, "b": 3}, {"a": 1}, {"b": 1, "a": 1}]


def _serve(debugger, steps=STEPS, positions=None) -> None:
    for scheduled in steps:
        rows = sum(scheduled.values())
        batch = torch.arange(rows * 2.0).reshape(rows, 2)
        debugger.start(scheduled_tokens=scheduled, first_positions=positions)
        torch.relu(batch)
        debugger.stop()
        debugger.step()


def _shape(path: pathlib.Path) -> list[int]:
    data = json.loads((path / "dump.json").read_text())["data"]
    return data["Torch.relu.0.forward"]["output"][0]["shape"]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_one_request_of_a_batch(dump, task: str) -> None:
    debugger = dump.debugger(task=task, section={"request_id": "b"})
    with pytest.warns(RuntimeWarning, match="request_id 'b' is not among the requests of a step"):
        _serve(debugger, positions={"b": 7})
    first, last = dump.rank_directory(0), dump.rank_directory(2)
    assert not (dump.path / "step1").exists(), "a step without the request has a tree"
    output = dump.data()["Torch.relu.0.forward"]["output"][0]
    assert (output["shape"], output["Min"], output["Max"]) == ([3, 2], 10.0, 15.0)
    assert _shape(last) == [1, 2]
    if task == "tensor":
        tensor = torch.load(first / "dump_tensor_data" / "Torch.relu.0.forward.output.0.pt")
        assert torch.equal(tensor, torch.arange(16.0).reshape(8, 2)[5:])
    assert json.loads((first / "requests.json").read_text()) == [{
        "from_entry": "Torch.relu.0.forward", "rows": 8, "recorded": "b", "requests": [
            {"id": "a", "begin": 0, "end": 5, "position": None}, {"id": "b", "begin": 5, "end": 8, "position": 7}]}]


def test_all_requests_without_request_id(dump) -> None:
    _serve(dump.debugger())
    assert [_shape(dump.rank_directory(step)) for step in range(3)] == [[8, 2], [1, 2], [2, 2]]
    told = json.loads((dump.rank_directory(2) / "requests.json").read_text())
    assert told[0]["recorded"] is None
    assert [(r["id"], r["begin"], r["end"]) for r in told[0]["requests"]] == [("b", 0, 1), ("a", 1, 2)]


def test_several_starts_in_a_step(dump) -> None:
    debugger = dump.debugger(section={"request_id": "b"})
    for scheduled in ({"b": 1, "a": 3}, {"b": 1, "a": 3}, {"a": 2, "b": 2}):
        batch = torch.ones(4, 2)
        debugger.start(scheduled_tokens=scheduled)
        torch.relu(batch)
        debugger.stop()
    debugger.step()
    told = json.loads((dump.rank_directory() / "requests.json").read_text())
    assert [part["from_entry"] for part in told] == ["Torch.relu.0.forward", "Torch.relu.2.forward"]
    data = dump.data()
    assert [data[f"Torch.relu.{i}.forward"]["output"][0]["shape"] for i in range(3)] == [[1, 2], [1, 2], [2, 2]]


@pytest.mark.parametrize("scheduled", ["wanted-1b2c3d4e", "cmpl-wanted-0-1b2c3d4e", "chatcmpl-wanted"])
def test_a_servers_own_name_of_a_request(dump, scheduled: str) -> None:
    """vLLM puts its own text around the id that a client gave."""
    _serve(dump.debugger(section={"request_id": "wanted"}), [{"wanted2": 2, scheduled: 3}])
    assert _shape(dump.rank_directory()) == [3, 2]


@pytest.mark.parametrize("bad", [["a"], {1: 2}, {"b": 0}, {"b": 1.5}, {"b": True}, {"b": 1 << 40}])
def test_what_cannot_be_used_is_said_and_all_is_recorded(dump, bad) -> None:
    debugger = dump.debugger(section={"request_id": "b"})
    with pytest.warns(RuntimeWarning, match="scheduled_tokens.*recorded as without"):
        debugger.start(scheduled_tokens=bad)
    torch.relu(torch.ones(4, 2))
    debugger.stop()
    debugger.step()
    assert _shape(dump.rank_directory()) == [4, 2]
    assert not (dump.rank_directory() / "requests.json").exists()


def test_a_bad_request_id(dump) -> None:
    from rankprobe.pytorch import InvalidParameterError

    with pytest.raises(InvalidParameterError, match="statistics.request_id"):
        dump.debugger(section={"request_id": 7})
    with pytest.raises(InvalidParameterError, match="256 bytes"):
        dump.debugger(section={"request_id": "x" * 257})


def test_at_level_debug_it_has_no_effect(dump) -> None:
    with pytest.warns(RuntimeWarning, match="statistics.request_id has no effect"):
        debugger = dump.debugger(level="debug", section={"request_id": "b"})
    debugger.save(torch.ones(8), "x")
    debugger.step()
    assert dump.data(file="debug.json")["x.0.debug"]["shape"] == [8]


def test_a_shared_collector_exports_it(dump, collector, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "requests")
    debugger = dump.debugger(task="tensor", section={"request_id": "b"})
    with pytest.warns(RuntimeWarning):
        _serve(debugger)
    debugger.close()
    collector.cli("export", "--run", "requests", "-o", str(tmp_path / "out"))
    (first,) = (tmp_path / "out" / "step0").iterdir()
    assert _shape(first) == [3, 2]
    assert json.loads((first / "requests.json").read_text())[0]["recorded"] == "b"
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert any(file["path"].endswith("requests.json") for file in manifest["files"]), manifest
