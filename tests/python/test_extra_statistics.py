# SPDX-License-Identifier: Apache-2.0
"""Statistics beside Max, Min, Mean and Norm: from config.json to every table and graph, beside NumPy's own numbers."""

from __future__ import annotations

import csv
import json
import math
import os
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import harness
import rankprobe.analysis as analysis
from polling import wait_for
from test_arguments import _recorded
from test_device import LateDevice, host_as_device  # noqa: F401 - a fixture

ROOT = harness.ROOT
sys.path.append(str(ROOT / "tests" / "interop"))
COUNTS, KEYS = ["NanCount", "InfCount", "ZeroCount"], ["NanCount", "InfCount", "ZeroCount", "Std"]
ALL = {"extra_statistics": ["counts", "std"]}
NAN, INF = float("nan"), float("inf")
EPSILON = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.complex64: 2.0**-23}


def _tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(37, 53) * 3 + 100
    x[3, :7] = 0
    out = {str(dtype).replace("torch.", ""): x.to(dtype) for dtype in (
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.uint8, torch.bool, torch.complex64, torch.complex128)}
    z = torch.complex(x, -x.flip(0))
    z[5, 5], z[6, 6], z[7, 7] = complex(NAN, 0), complex(0, INF), complex(INF, NAN)
    y = x.clone()
    y[0, 0], y[1, 1], y[2, 2], y[3, 3] = NAN, INF, -INF, -0.0
    no_nan = y.clone()
    no_nan[0, 0] = 1
    out.update({
        "specials": y, "specials_half": y.half(), "specials_bfloat": y.bfloat16(), "specials_double": y.double(),
        "infinite": no_nan, "complex_specials": z, "transposed": x.t(), "strided": x[::3, 5::2], "offset": x[2:, 1:],
        "expanded": x[:, :1].expand(37, 90), "flipped": x.flip(1), "scalar": x[4, 4], "scalar_nan": y[0, 0],
        "scalar_int": torch.tensor(-7), "scalar_bool": torch.tensor(True), "one": x[:1, :1], "empty": x[:0],
        "empty_int": torch.zeros(0, 3, dtype=torch.int64), "constant": torch.full((70001,), 0.1),
        "large": torch.arange(2**40, 2**40 + 5000), "far": torch.arange(4000).double() + 1e12,
        "long": torch.randn(1_000_003), "negative": torch.tensor([-3.0, 0.0, -0.0]),
    })
    return out


def _expected(tensor: torch.Tensor, high: bool = False) -> dict[str, object]:
    """NumPy, in double precision."""
    if tensor.numel() == 0:
        return dict.fromkeys(KEYS)
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).numpy()
    with np.errstate(all="ignore"):
        return {"NanCount": int(np.isnan(wide).sum()), "InfCount": int(np.isinf(wide).sum()),
                "ZeroCount": int((wide == 0).sum()), "Std": float(wide.std())}


def _check(got: dict, tensor: torch.Tensor, name: str, precision: str = "low") -> None:
    want = _expected(tensor)
    assert {key: got[key] for key in COUNTS} == {key: want[key] for key in COUNTS}, (name, got)
    if want["Std"] is None or math.isnan(want["Std"]):
        assert got["Std"] is want["Std"] is None or math.isnan(got["Std"]), (name, got)
        return
    epsilon = EPSILON.get(tensor.dtype, 1e-12)
    if precision == "high" and tensor.dtype in (torch.float16, torch.bfloat16):
        epsilon = EPSILON[torch.float32]
    # Rounded to its type, smallest halves aside; NumPy's own sums err too.
    assert got["Std"] == pytest.approx(want["Std"], rel=2 * epsilon + 1e-11, abs=1e-12), (name, got, want)


def _record(debugger, tensors: dict[str, torch.Tensor]) -> None:
    debugger.start()
    for tensor in tensors.values():
        torch.clone(tensor)
    debugger.stop()
    debugger.step()


def _dump(dump) -> dict:
    return json.loads((dump.rank_directory() / "dump.json").read_text())


@pytest.mark.parametrize("case", [
    {}, {"precision": "high"}, {"section": {"summary_mode": "md5"}}, {"task": "tensor"}, {"async_dump": True}], ids=str)
def test_numbers_are_those_of_numpy(dump, case) -> None:
    tensors = _tensors()
    case = {**case, "section": {**case.get("section", {}), **ALL}}
    _record(dump.debugger(**case), tensors)
    data = _dump(dump)
    assert data["extra_statistics"] == KEYS
    for index, (name, tensor) in enumerate(tensors.items()):
        call = data["data"][f"Torch.clone.{index}.forward"]
        for got in (call["input_args"][0], call["output"][0]):
            keys = list(got)
            assert keys[keys.index("Norm") + 1:keys.index("requires_grad")] == KEYS, name
            _check(got, tensor, name, case.get("precision", "low"))
    assert data["data"]["Torch.clone.%d.forward" % list(tensors).index("constant")]["output"][0]["Std"] == 0


def test_a_device_says_the_same(dump, request) -> None:
    tensors = {name: tensor for name, tensor in _tensors().items() if name not in ("flipped",)}
    request.getfixturevalue("host_as_device")
    _record(dump.debugger(section=ALL), tensors)
    data = _dump(dump)
    for index, (name, tensor) in enumerate(tensors.items()):
        _check(data["data"][f"Torch.clone.{index}.forward"]["input_args"][0], tensor, name)
    assert 1 <= LateDevice.waits <= 2


def test_arrays_and_what_has_no_numbers(dump) -> None:
    arrays = [np.array([[0.0, NAN], [INF, 4.0]], dtype=np.float32), np.arange(4)[::2], np.array([True, False])]
    nothing = [np.array(["a", "bc"]), np.zeros((0, 2)), np.array([3 + 4j, 0]), torch.zeros(2, device="meta"),
               torch.eye(2).to_sparse()]
    items = _recorded(dump, *arrays, *nothing, section=ALL)["input_args"][1:]
    assert [items[0][key] for key in COUNTS] == [1, 1, 1] and math.isnan(items[0]["Std"])
    assert [items[1][key] for key in KEYS] == [0, 0, 1, 1.0]
    assert [items[2][key] for key in KEYS] == [0, 0, 1, 0.5]
    for item in items[len(arrays):]:
        assert [item[key] for key in KEYS] == [None] * 4, item


def test_off_is_byte_for_byte_what_it_was(dump, tmp_path) -> None:
    """Absent, empty, and of another task's section: no byte of it."""
    texts = []
    for i, section in enumerate((None, {"extra_statistics": []}, {"list": []})):
        directory = tmp_path / str(i)
        directory.mkdir()
        each = type(dump)(directory)
        other = {"tensor": ALL} if i == 2 else {}
        debugger = each.debugger(section=section, **other)
        _record(debugger, {name: _tensors()[name] for name in ("float32", "int64", "specials")})
        texts.append((each.rank_directory() / "dump.json").read_bytes())
        debugger.close()
    assert texts[0] == texts[1] == texts[2]
    assert b"extra" not in texts[0] and b"Count" not in texts[0] and b"Std" not in texts[0]


def test_some_of_them(dump) -> None:
    debugger = dump.debugger(section={"extra_statistics": ["std"]})
    assert debugger.config.extra_statistics == ["std"]
    _record(debugger, {"float32": _tensors()["float32"]})
    data = _dump(dump)
    assert data["extra_statistics"] == ["Std"]
    assert not set(data["data"]["Torch.clone.0.forward"]["output"][0]) & set(COUNTS)


@pytest.mark.parametrize("value, what", [
    (["median"], r'statistics.extra_statistics: "median".*a list of counts, std'),
    ("std", r'statistics.extra_statistics: "std".*a list'), ([1], r"statistics.extra_statistics: 1")])
def test_bad_values_are_named(dump, value, what) -> None:
    with pytest.raises(Exception, match=what):
        dump.debugger(section={"extra_statistics": value})


def _cli(*words, code=0) -> str:
    done = subprocess.run([harness.BIN / "rankprobe", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def _table(target, reference, out, **kwargs) -> list[dict]:
    _cli("compare", "-tp", target, "-gp", reference, "-o", out)
    (path,) = out.glob("*.csv")
    with open(path, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


TRAIN = """
import sys, torch
from rankprobe.pytorch import PrecisionDebugger

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
debugger = PrecisionDebugger(config_path=sys.argv[1])
noise = float(sys.argv[2])
for line in sys.stdin:
    debugger.start(net)
    x = torch.arange(24.0).reshape(4, 6)
    if noise:
        x[0, 0] = float("nan")
    net(x).square().mean().backward()
    debugger.stop()
    debugger.step()
    print("done", flush=True)
"""


class _Training:
    """A run under a shared collector that takes a step when it is told to."""

    def __init__(self, directory, collector, run: str, noise: float) -> None:
        self.done = 0
        directory.mkdir()
        script, config = directory / "train.py", directory / "config.json"
        script.write_text(TRAIN)
        config.write_text(json.dumps(harness.config(level="mix", dump_path=str(directory / "dump"))))
        env = {**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": run}
        self.process = subprocess.Popen([sys.executable, script, config, str(noise)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=env)

    def step(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"
        self.done += 1

    def steps_until(self, ready: threading.Event) -> None:
        for _ in range(10000):
            self.step()
            if ready.is_set():
                return
        raise AssertionError("the switch did not come")

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


def _enable(collector, training: _Training, run: str, config) -> int:
    """Switched on with this config while the run goes on, for one step: which one it was."""
    answer: dict = {}
    ready = threading.Event()

    def ask() -> None:
        try:
            answer.update(collector.json("enable", "--run", run, "--config", config, "--for-steps", "1"))
        finally:
            ready.set()

    asking = threading.Thread(target=ask)
    asking.start()
    training.steps_until(ready)
    asking.join()
    step = int(answer["effective_at_step"])
    while training.done < step + 2:
        training.step()
    return step


def test_switched_on_in_a_running_job_and_seen_in_every_table(collector, tmp_path) -> None:
    config = tmp_path / "asked.json"
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "dump_path": "./dump", "statistics": ALL}))
    places = {}
    for run, noise in (("good", 0.0), ("bad", 0.25)):
        training = _Training(tmp_path / run, collector, run, noise)
        try:
            training.step()
            wait_for(lambda: any(agent.get("connected") for agent in collector.json("status", "--run", run, check=False).get("agents", [])), 30, "the rank")
            step = _enable(collector, training, run, config)
            training.end()
        finally:
            training.process.kill()
            training.process.wait()
        collector.cli("export", "--run", run, "-o", tmp_path / "out" / run)
        (places[run],) = (tmp_path / "out" / run / f"step{step}").iterdir()
    dumps = {run: json.loads((place / "dump.json").read_text()) for run, place in places.items()}
    assert dumps["good"]["extra_statistics"] == KEYS
    first = dumps["bad"]["data"]["Module.0.Linear.forward.0"]["input_args"][0]
    assert [first[key] for key in COUNTS] == [1, 0, 0] and math.isnan(first["Std"])

    # A table, of the CLI and of Python.
    columns = [f"{key} diff" for key in KEYS] + [f"{key}RelativeErr" for key in KEYS]
    rows = _table(places["bad"], places["good"], tmp_path / "table")
    header = list(rows[0])
    assert header[header.index("L2norm diff") + 1:header.index("MaxRelativeErr")] == columns[:4]
    assert header[header.index("NormRelativeErr") + 1:header.index("NPU max")] == columns[4:]
    for side in ("NPU ", "Bench "):
        assert header[header.index(side + "l2norm") + 1:][:4] == [
            side + name for name in ("nan count", "inf count", "zero count", "std")]
    row = next(r for r in rows if r["NPU Name"] == "Module.0.Linear.forward.0.input.0")
    assert (row["NPU nan count"], row["Bench nan count"], row["NanCount diff"]) == ("1", "0", "1.0")
    assert (row["NPU zero count"], row["Bench zero count"], row["ZeroCount diff"]) == ("0", "1", "-1.0")
    assert row["ZeroCountRelativeErr"] == "100.0%" and row["Std diff"] == "Nan" and row["NPU std"] == "Nan"
    x = np.arange(24.0)
    assert float(row["Bench std"]) == pytest.approx(x.std(), rel=1e-7)
    same = next(r for r in rows if r["NPU Name"] == "Module.0.Linear.forward.0.parameters.weight")
    assert (same["Std diff"], same["StdRelativeErr"], same["NanCount diff"]) == ("0", "0", "0")
    table = analysis.compare(places["bad"], places["good"])
    assert table["NPU std"] == [r["NPU std"] for r in rows]

    # Against a dump that was not asked for it.
    plain = tmp_path / "plain" / "rank0"
    plain.mkdir(mode=0o750, parents=True)
    stripped = json.loads((places["good"] / "dump.json").read_text())
    del stripped["extra_statistics"]
    (plain / "dump.json").write_text(json.dumps(stripped))
    (plain / "dump.json").chmod(0o640)
    rows = _table(places["good"], plain, tmp_path / "half")
    assert rows[0]["Bench std"] == "None" and rows[0]["Std diff"] == "Diff" and rows[0]["Result"] == "pass"
    assert "Std diff" not in _table(plain, plain, tmp_path / "none")[0]

    # A graph: a node has them, and their differences with what they mean.
    for words, compared in ((["-tp", places["good"]], False), (["-tp", places["bad"], "-gp", places["good"]], True)):
        done = json.loads(_cli("graph_visualize", *words, "-o", tmp_path / "graph", "--json"))
        with sqlite3.connect(done["file"]) as db:
            text = db.execute("select input_data from tb_nodes where node_name = 'Module.0.Linear.forward.0' "
                              "and data_source = 'NPU'").fetchone()[0]
            (tips,) = db.execute("select tool_tip from tb_config").fetchone()
        node = json.loads(text)["Module.0.Linear.forward.0.input.0"]
        assert node["NanCount"] == ("1" if compared else "0")
        assert ("NanCount diff" in node) == compared
        if compared:
            assert node["NanCount diff"] == "1.0" and "NaNs" in json.loads(tips)["NanCount diff"]
            weight = json.loads(text)["Module.0.Linear.forward.0.parameters.weight"]
            assert weight["StdRelativeErr"] == "0.0%"

    # What is printed of a divergence.
    report = _cli("first-divergence", places["bad"], places["good"], code=1)
    assert "Module.0.Linear.forward.0" in report or "Functional.linear.0.forward" in report
    text = json.dumps(analysis.first_divergence(places["bad"], places["good"]))
    assert "NanCount=1" in text and "Std=" in text


def test_a_file_that_is_edited_asks_for_them(dump) -> None:
    """msprobe's way to switch: config.json of a running job."""
    debugger = dump.debugger(dump_enable=True)
    _record(debugger, {"float32": _tensors()["float32"]})
    dump.config(dump_enable=True, section=ALL)
    _record(debugger, {"float32": _tensors()["float32"]})
    dump.config(dump_enable=True)
    _record(debugger, {"float32": _tensors()["float32"]})
    for step, asked in enumerate((False, True, False)):
        data = json.loads((dump.rank_directory(step) / "dump.json").read_text())
        assert ("extra_statistics" in data) == asked, step
        assert ("Std" in data["data"]["Torch.clone.0.forward"]["output"][0]) == asked, step
    # One table of all steps: what a step was not asked for is not there.
    table = analysis.compare(dump.path, dump.path)
    assert len({len(column) for column in table.values()}) == 1
    for step, std, error in zip(table["step"], table["NPU std"], table["StdRelativeErr"]):
        assert (std == "N/A") == (error == "N/A") == (step != "1"), (step, std, error)


def test_merged_ranks_have_those_of_the_whole(tmp_path) -> None:
    import layouts

    four = layouts.write(tmp_path / "four", 2, 2)
    parts = {}
    for index in range(4):
        path = four / f"rank{index}" / "dump.json"
        dump = json.loads(path.read_text())
        for call in dump["data"].values():
            for name, tensor in call.get("parameters", {}).items():
                tensor.update(NanCount=index, InfCount=0, ZeroCount=3, Std=1.5 + index)
                if name == "weight":
                    parts[index] = tensor
        path.write_text(json.dumps({**dump, "extra_statistics": KEYS}))
    name = "Module.0.module.decoder.layers.3.mlp.fc1.ColumnParallelLinear.forward.0"
    layout = ["--rank_size", 4, "--tp", 2, "--pp", 2]
    done = json.loads(_cli("graph_visualize", "-tp", four, *layout, "-o", tmp_path / "merged", "--json"))
    with sqlite3.connect(done["file"]) as db:
        text, info = db.execute("select input_data, parallel_merge_info from tb_nodes where node_name = ?",
                                (name,)).fetchone()
    weight = json.loads(text)[f"{name}.parameters.weight"]
    data = [json.loads((four / rank / "dump.json").read_text())["data"][name.replace("layers.3", "layers.1")]
            ["parameters"]["weight"] for rank in ("rank2", "rank3")]
    assert (weight["NanCount"], weight["InfCount"], weight["ZeroCount"]) == ("5", "0", "6")
    # Both halves are of one size: their values side by side.
    means = [d["Mean"] for d in data]
    want = math.sqrt(np.mean([d["Std"] ** 2 for d in data]) + np.var(means))
    assert float(weight["Std"]) == pytest.approx(want, rel=1e-6)
    assert "2 + 3 = 5" in info and "variance of the means" in info
    # The merged dump says so at its head, and is read again.
    _cli("graph_visualize", "-tp", four, *layout, "-o", tmp_path / "dumps", "--file_type", "json")
    (merged,) = (tmp_path / "dumps").glob("step*/rank0/dump.json")
    again = json.loads(merged.read_text())
    assert again["extra_statistics"] == KEYS
    assert again["data"][name]["parameters"]["weight"]["NanCount"] == 5
    # Where one rank's mean is not known the spread of the whole is not either.
    path = four / "rank3" / "dump.json"
    text = path.read_text()
    lost = json.loads(text)
    lost["data"][name.replace("layers.3", "layers.1")]["parameters"]["weight"]["Mean"] = None
    path.write_text(json.dumps(lost))
    done = json.loads(_cli("graph_visualize", "-tp", four, *layout, "-o", tmp_path / "merged", "--json"))
    with sqlite3.connect(done["file"]) as db:
        (text,) = db.execute("select input_data from tb_nodes where node_name = ?", (name,)).fetchone()
    assert json.loads(text)[f"{name}.parameters.weight"]["Std"] == "null"


def test_replicas_differ_by_them(tmp_path) -> None:
    tensor = {"type": "torch.Tensor", "dtype": "torch.int64", "shape": [4], "Max": 3, "Min": 0, "Mean": None, "Norm": None,
              "NanCount": 0, "InfCount": 0, "ZeroCount": 1, "requires_grad": False}
    for rank in (0, 1):
        directory = tmp_path / f"rank{rank}"
        directory.mkdir(mode=0o750)
        call = {"input_args": [], "input_kwargs": {}, "parameters": {"w": {**tensor, "ZeroCount": 1 + rank}}, "output": []}
        path = directory / "dump.json"
        path.write_text(json.dumps({"task": "statistics", "extra_statistics": COUNTS,
                                    "data": {"Module.a.A.forward.0": call}}))
        path.chmod(0o640)
    (found,) = analysis.replicas(tmp_path)["differences"]
    assert "ZeroCount=2" in json.dumps(found["values"])
