# SPDX-License-Identifier: Apache-2.0
"""A server's requests: whose rows the tensors hold, what is recorded of one of them, and what exports say of it."""

from __future__ import annotations

import itertools
import json
import pathlib
import warnings

import pytest
import torch

import harness

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


def test_weights_have_no_rows_of_a_batch(dump) -> None:
    """As many as there are tokens, in dim 0: chunked prefill fills batches to sizes that weights have."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 8))
    debugger = dump.debugger(level="mix", section={"request_id": "b"})
    debugger.start(model, scheduled_tokens={"a": 5, "b": 3})
    out = model(torch.arange(16.0).reshape(8, 2))
    torch.nn.functional.linear(out, torch.nn.Parameter(torch.ones(8, 8))).sum().backward()
    debugger.stop()
    debugger.step()
    data = dump.data()
    module = data["Module.0.Linear.forward.0"]
    assert module["input_args"][0]["shape"] == [3, 2] and module["output"][0]["shape"] == [3, 8]
    assert [value["shape"] for value in module["parameters"].values()] == [[8, 2], [8]]
    functional = data["Functional.linear.1.forward"]
    assert [part["shape"] for part in functional["input_args"]] == [[3, 8], [8, 8]]
    gradients = [record for name, record in data.items() if ".parameters_grad." in name]
    assert gradients and all(value["shape"][0] == 8 for record in gradients for values in record.values() for value in values), gradients


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
    with pytest.warns(RuntimeWarning, match="scheduled_tokens.*recorded as if that were not given"):
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


def test_what_names_no_requests_is_recorded_whole_and_says_so(dump) -> None:
    debugger = dump.debugger(section={"request_id": "b"})
    with pytest.warns(RuntimeWarning, match="request_id 'b' has no effect") as warned:
        for _ in range(2):
            debugger.start()
            torch.relu(torch.ones(4, 2))
            debugger.stop()
            debugger.step()
    assert len(warned) == 1 and _shape(dump.rank_directory(1)) == [4, 2]


def _odd_batches(debugger) -> None:
    """Rows of many kinds: dtypes, numbers that are none, nested, empty, of one dimension; a weight has none."""
    torch.manual_seed(5)
    weight = torch.nn.Parameter(torch.randn(8, 2))
    for scheduled in ({"a": 5, "b": 3}, {"a": 1}, {"b": 1, "a": 7}, {"b": 8}):
        batch = torch.randn(sum(scheduled.values()), 3, 2)
        debugger.start(scheduled_tokens=scheduled, first_positions={"b": 7})
        for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.bool):
            torch.add(batch.to(dtype), batch.to(dtype))
        torch.sqrt(batch)
        torch.stack([batch[:, 0, 0], batch[:, 1, 1]])
        torch.relu(batch[:, :0])
        torch.transpose(torch.transpose(batch, 0, 1), 0, 1)
        torch.sum(batch)
        torch.nn.functional.linear(batch, weight)
        debugger.stop()
        debugger.step()


def _content(rank_directory: pathlib.Path) -> tuple:
    data = json.loads((rank_directory / "dump.json").read_text())["data"]
    tensors = {file.name: torch.load(file) for file in (rank_directory / "dump_tensor_data").iterdir()}
    return data, tensors, json.loads((rank_directory / "requests.json").read_text())


@pytest.mark.parametrize("more", [{}, {"summary_mode": "md5"}, {"extra_statistics": ["counts", "std"]}, {"precision": "high"}],
                         ids=["statistics", "md5", "extra", "high"])
def test_cut_out_of_all_it_is_as_if_recorded_alone(dump, collector, monkeypatch, tmp_path, more: dict) -> None:
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    out = {}
    top = {name: value for name, value in more.items() if name == "precision"}
    section = {name: value for name, value in more.items() if name not in top}
    for run, chosen in (("alone", {"request_id": "b"}), ("all", {})):
        monkeypatch.setenv("RANKPROBE_RUN", run)
        debugger = dump.debugger(task="tensor", section={**section, **chosen}, **top)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _odd_batches(debugger)
        debugger.close()
        out[run] = tmp_path / run
        said = collector.cli("export", "--run", run, "--request", "b", "-o", str(out[run])).stderr
        assert "complete batch" not in said
    steps = [sorted(path.name for path in out[run].glob("step*")) for run in out]
    assert steps == [["step0", "step2", "step3"]] * 2
    for step in steps[0]:
        (alone, alone_tensors, alone_told), (cut, cut_tensors, told) = (
            _content(next((out[run] / step).iterdir())) for run in out)
        assert _texts(cut) == _texts(alone) and told == alone_told
        assert set(cut_tensors) == set(alone_tensors)
        for name, tensor in cut_tensors.items():
            assert torch.equal(torch.view_as_real(tensor) if tensor.is_complex() else tensor.nan_to_num(7),
                               torch.view_as_real(alone_tensors[name]) if tensor.is_complex()
                               else alone_tensors[name].nan_to_num(7)), name


def test_from_a_request_to_one_finding(dump, collector, monkeypatch, tmp_path) -> None:
    """A NaN in the row of one of two requests that share a batch is not a finding of the other."""
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "asked")
    debugger = dump.debugger(task="tensor")
    for step, scheduled in enumerate([{"a": 5, "cmpl-b-0": 3}, {"a": 1}, {"a": 1, "cmpl-b-0": 1}]):
        rows = torch.ones(sum(scheduled.values()), 2)
        if step == 2:
            rows[1, 0] = -1
        debugger.start(scheduled_tokens=scheduled, first_positions={"a": 0 if step == 0 else 4 + step, "cmpl-b-0": 0 if step == 0 else 3})
        torch.log(rows)
        debugger.stop()
        debugger.step()
    debugger.close()

    def diagnose(*words: str):
        return collector.cli("diagnose", "run:asked", *words, check=False)

    found = diagnose("--request", "b-0")
    assert found.returncode == 1 and "Request cmpl-b-0: 4 tokens in 2 steps, 0 to 2" in found.stdout, found.stdout + found.stderr
    assert "First: step 2" in found.stdout and "Torch.log.0.forward" in found.stdout, found.stdout
    assert "token 3 of the request" in found.stdout and "complete batch" not in found.stdout, found.stdout
    sound = diagnose("--request", "a")
    assert sound.returncode == 0 and "no call of its 3 steps makes a NaN" in sound.stdout, sound.stdout + sound.stderr
    none = diagnose("--request", "q")
    assert none.returncode == 4 and 'no request is "q"; there are a, cmpl-b-0' in none.stderr, none.stderr
    refused = diagnose("--request", "a", "--rules", "vllm-llama")
    assert refused.returncode == 2 and "--rules aligns a --reference" in refused.stderr, refused.stderr
    # A dump directory of the complete batches says whose numbers they are.
    collector.cli("export", "--run", "asked", "-o", str(tmp_path / "out"))
    batches = collector.cli("diagnose", str(tmp_path / "out"), "--request", "a", check=False).stdout
    assert "in 2 of these steps the tensors hold the complete batch" in batches, batches


def _texts(data: dict) -> list:
    """Numbers that are none are equal as texts."""
    return json.dumps(data, indent=1).splitlines()


def test_statistics_of_a_batch_cannot_be_cut_which_is_said(dump, collector, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "statistics")
    debugger = dump.debugger()
    _serve(debugger, [{"a": 5, "b": 3}, {"a": 1}, {"b": 2}])
    debugger.close()

    def export(*words: str):
        return collector.cli("export", "--run", "statistics", "-o", str(tmp_path / "out"), *words, check=False)

    done = export("--request", "b")
    assert done.returncode == 0
    assert "in 1 of 2 steps with request b the statistics are those of the complete batch" in done.stderr
    steps = [next((tmp_path / "out" / name).iterdir()) for name in ("step0", "step2")]
    assert [json.loads((step / "requests.json").read_text())[0]["recorded"] for step in steps] == [None, "b"]
    assert [_shape(step) for step in steps] == [[8, 2], [2, 2]] and not (tmp_path / "out" / "step1").exists()
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["request"] == "b"
    for words, code, text in ((("--request", "q"), 4, 'no request is "q"; there are a, b'), (("--request", ""), 2, "an empty id"),
                              (("--request", "b", "--format", "parquet"), 2, "--request")):
        refused = export(*words)
        assert refused.returncode == code and text in refused.stderr, (refused.returncode, refused.stderr)


def test_a_running_program_is_switched_on_for_one_request(dump, collector, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "live")
    debugger = dump.debugger(dump_enable=False)
    _serve(debugger)
    turn = itertools.count()

    def enable(*words: str):
        return collector.cli("enable", "--run", "live", "--no-wait", *words, check=False)

    refused = enable("--request", "")
    assert refused.returncode == 2 and "--all-requests" in refused.stderr
    refused = enable("--request", "x" * 257)
    assert refused.returncode == 2 and "256 bytes" in refused.stderr
    assert 'of request "b" only (a job that names no requests is recorded completely)' in enable("--request", "b").stdout
    assert "no other steps" in collector.cli("explain", "--run", "live").stdout

    def recorded() -> dict:
        """The rows of what was recorded, by the request it was recorded of."""
        out = tmp_path / f"out{next(turn)}"
        collector.cli("export", "--run", "live", "-o", str(out), check=False)
        rows = {}
        for directory in out.glob("step*/*/"):
            (told,) = json.loads((directory / "requests.json").read_text())
            rows.setdefault(told["recorded"], set()).add(_shape(directory)[0])
        return rows

    def serve_until(request, rows) -> None:
        """A switch is in force some steps after it was made, as the collector's answer says: how many is the machine's affair."""
        def has_them() -> bool:
            _serve(debugger, STEPS)
            return recorded().get(request, set()) >= rows
        harness.wait_for(has_them, 60, f"steps of request {request}")

    with pytest.warns(RuntimeWarning, match="request_id 'b' is not among"):
        serve_until("b", {3, 1})
        _serve(debugger, STEPS)
    assert set(recorded()) == {"b"}
    assert "only" not in enable("--all-requests").stdout
    serve_until(None, {8, 1, 2})
    debugger.close()
    assert recorded() == {"b": {3, 1}, None: {8, 1, 2}}
