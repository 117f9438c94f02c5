# SPDX-License-Identifier: Apache-2.0
"""tensor.bench_path and tensor.diff_nums, against what msprobe did with the same scripts (tests/golden/bench)."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any, Callable

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import harness
from rankprobe.pytorch import InvalidParameterError, PrecisionDebugger

_GOLDEN = json.loads((harness.ROOT / "tests" / "golden" / "bench" / "expected.json").read_text())


# The CNN goldens hold the calls that SGD of PyTorch 1.13 makes.
_GOLDEN_SGD = pytest.mark.skipif(not torch.__version__.startswith("1.13"),
                                 reason="the golden has the optimizer calls of PyTorch 1.13")


def _train_dropout(debugger: Any, seed: int) -> None:
    """Equal inputs everywhere; what dropout leaves out depends on `seed`."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    for _ in range(2):
        torch.manual_seed(1)
        x = torch.randn(3, 4)
        debugger.start(model=model)
        hidden = model(x)
        torch.manual_seed(seed)
        a = F.dropout(hidden, 0.5)
        b = F.dropout(hidden * 2, p=0.5)
        (a + b).sum().backward()
        debugger.stop()
        debugger.step()


class _Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(x, 1))


def _train_cnn(debugger: Any, perturbed: int) -> None:
    torch.manual_seed(1234)
    model = _Cnn()
    if perturbed:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8, generator=generator)
        y = torch.randint(0, 5, (2,), generator=generator)
        debugger.start(model=model)
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(x), y).backward()
        optimizer.step()
        debugger.stop()
        debugger.step()


def _record(directory: pathlib.Path, train: Callable[[Any, int], None], variant: int, task: str = "tensor",
            **section: Any) -> pathlib.Path:
    """The dump_path of one run of `train`."""
    directory.mkdir()
    config = directory / "config.json"
    config.write_text(json.dumps({
        "task": task, "dump_path": str(directory / "dump"), "rank": [], "step": [], "level": "L1",
        "risk_level": "ALL", task: {"summary_mode": "md5", **section}}))
    debugger = PrecisionDebugger(config_path=str(config))
    train(debugger, variant)
    PrecisionDebugger.wait_exported()
    debugger.close()
    return directory / "dump"


def _names(value: Any, keys: set[tuple[str, ...]]) -> Any:
    """The data_name of each tensor, in its place; `keys` gets the members of tensors."""
    if isinstance(value, list):
        return [_names(item, keys) for item in value]
    if isinstance(value, dict):
        if value.get("type") == "torch.Tensor":
            keys.add(tuple(value))
            return value["data_name"]
        return None if "type" in value else {name: _names(item, keys) for name, item in value.items()}
    return None


@pytest.mark.parametrize("name, train, variant", [
    ("bench_bdiff_n1", _train_dropout, 6), ("bench_bdiff_n2", _train_dropout, 6),
    ("bench_bdiff_n-1", _train_dropout, 6), ("bench_bdiff_same", _train_dropout, 5),
    pytest.param("cnn_bench_diff1", _train_cnn, 1, marks=_GOLDEN_SGD),
    pytest.param("cnn_bench_same", _train_cnn, 0, marks=_GOLDEN_SGD),
])
def test_like_msprobe(tmp_path: pathlib.Path, name: str, train: Callable, variant: int) -> None:
    golden = _GOLDEN["scenarios"][name]
    bench = _record(tmp_path / "bench", train, 5 if train is _train_dropout else 0, task="statistics")
    mine = _record(tmp_path / "mine", train, variant,
                   **{**golden["config"], "bench_path": str(bench)})
    assert sorted(p.name for p in mine.iterdir() if p.is_dir() and not p.name.startswith(".")) == [
        f"step{step}" for step in golden["steps"]]
    for step, expected in golden["steps"].items():
        (directory,) = (mine / f"step{step}").iterdir()
        saved = sorted(path.name for path in directory.glob("dump_tensor_data/*"))
        assert saved == expected["payloads"], step
        data = json.loads((directory / "dump.json").read_text())
        assert (data["dump_data_dir"] is not None) == expected["has_data_dir"]
        assert list(data["data"]) == list(expected["entries"]), step
        keys: set[tuple[str, ...]] = set()
        assert _names(data["data"], keys) == expected["entries"], step
        assert keys == {tuple(_GOLDEN["leaf_keys"])}
        stacks = json.loads((directory / "stack.json").read_text())
        assert sorted(entry for stack in stacks.values() for entry in stack[0]) == expected["stacked"]
    manifest = json.loads((mine / "manifest.json").read_text())
    assert manifest["gaps"] == [] and manifest["incomplete"] == []
    # Each saved file holds what dump.json says of it.
    for path in mine.glob("step*/*/dump_tensor_data/*.pt"):
        record = json.loads((path.parent.parent / "dump.json").read_text())["data"]
        entry, side, index = path.name[:-3].rsplit(".", 2)
        leaf = record[entry]["input_args" if side == "input" else "output"][int(index)]
        tensor = torch.load(path)
        assert list(tensor.shape) == leaf["shape"]
        assert tensor.max().item() == pytest.approx(leaf["Max"])


def test_a_dump_written_by_msprobe_is_a_bench(tmp_path: pathlib.Path) -> None:
    golden = harness.ROOT / "tests" / "golden" / "dumps" / "cnn_md5_mix"
    (tree,) = golden.rglob("step0/proc*/dump.json")
    mine = _record(tmp_path / "mine", _train_cnn, 0, bench_path=str(tree.parents[2]), diff_nums=-1)
    (directory,) = (mine / "step0").iterdir()
    assert not (directory / "dump_error_info.log").exists()


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("x")])
def test_a_bench_that_is_no_directory_is_refused_at_once(dump, make: Callable) -> None:
    path = dump.path.parent / "bench"
    make(path)
    with pytest.raises(InvalidParameterError, match="bench_path"):
        dump.debugger(task="tensor", section={"summary_mode": "md5", "bench_path": str(path)})
    assert PrecisionDebugger._instance is None and not dump.path.exists()


def test_a_step_that_the_bench_lacks_is_recorded_without_comparison(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bench").mkdir()
    mine = _record(tmp_path / "mine", _train_dropout, 6, bench_path=str(tmp_path / "bench"))
    for step in (0, 1):
        (directory,) = (mine / f"step{step}").iterdir()
        assert f"step {step} is not compared" in (directory / "dump_error_info.log").read_text()
        assert not (directory / "dump_tensor_data").exists() or not list((directory / "dump_tensor_data").iterdir())
        assert len(json.loads((directory / "dump.json").read_text())["data"]) == 12


# --- against a collector of its own: several ranks, a bench in the archive

_RANK = textwrap.dedent("""
    import json, os, pathlib, sys, time
    import torch
    import torch.nn.functional as F
    from rankprobe.pytorch import PrecisionDebugger
    rank, config, differs, out, stop = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4], sys.argv[5]
    torch.set_num_threads(1)
    debugger = PrecisionDebugger(config_path=config)
    debugger._session.native.wait_connected(20.0)
    for step in range(2000):
        x = torch.arange(8.0)
        debugger.start(rank_id=rank)
        torch.manual_seed(step + (1 if step in differs else 0))
        F.dropout(x, 0.5)
        on = debugger._session.recording
        debugger.stop()
        debugger.step()
        with open(out, "a") as log:
            log.write(json.dumps([step, on]) + "\\n")
        if pathlib.Path(stop).exists():
            break
        time.sleep(0.02)
    debugger.close()
""")


class _Ranks:
    def __init__(self, directory: pathlib.Path, collector: harness.Collector, run: str, section: dict,
                 differs: list[list[int]]) -> None:
        directory.mkdir()
        self.stop_file = directory / "stop"
        config = directory / "config.json"
        config.write_text(json.dumps({"task": "tensor", "dump_path": str(directory / "dump"), "rank": [], "step": [],
                                      "level": "L1", "risk_level": "ALL", "tensor": section}))
        environment = {**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": run}
        self.logs = [directory / f"log{rank}" for rank in range(len(differs))]
        self.processes = [
            subprocess.Popen([sys.executable, "-c", _RANK, str(rank), str(config), json.dumps(steps),
                              str(self.logs[rank]), str(self.stop_file)], env=environment)
            for rank, steps in enumerate(differs)]

    def steps(self, rank: int) -> list[list]:
        if not self.logs[rank].exists():
            return []
        return [json.loads(line) for line in self.logs[rank].read_text().splitlines()]

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def end(self) -> None:
        self.stop_file.touch()
        for process in self.processes:
            assert process.wait(timeout=60) == 0


def _events(collector: harness.Collector, kind: str) -> list[dict]:
    return [event for event in collector.json("events", "--run", "new")["events"] if event["kind"] == kind]


def test_ranks_share_one_budget_and_a_run_is_a_bench(collector, tmp_path: pathlib.Path, request) -> None:
    base = _Ranks(tmp_path / "base", collector, "good", {"summary_mode": "md5"}, [[], []])
    request.addfinalizer(base.kill)
    harness.wait_for(lambda: all(len(base.steps(rank)) >= 5 for rank in (0, 1)), 60, "the bench run")
    base.end()

    # Rank 0 differs in steps 1 and 3, rank 1 in step 2 only: three together.
    section = {"summary_mode": "md5", "bench_path": "run:good", "diff_nums": 3}
    job = _Ranks(tmp_path / "job", collector, "new", section, [[1, 3], [2]])
    request.addfinalizer(job.kill)
    harness.wait_for(lambda: all(job.steps(rank)[-1:] and not job.steps(rank)[-1][1] for rank in (0, 1)), 60,
                     "all ranks to be switched off")
    events = _events(collector, "KIND_DIFFERENCE")
    job.end()
    assert sorted((int(event["identity"]["rank"]), int(event["step"])) for event in events) == [
        (0, 1), (0, 3), (1, 2)]
    assert {event["entry"] for event in events} == {"Functional.dropout.0.forward"}
    assert sorted(event["outcome"] for event in events) == [f"difference {i} of 3" for i in (1, 2, 3)]
    assert "diff_nums reached" in _events(collector, "KIND_SWITCHED")[-1]["detail"]
    # On until then, off ever after, at the same step on both ranks.
    first_off = set()
    for rank in (0, 1):
        on = [recording for _, recording in job.steps(rank)]
        first_off.add(on.index(False))
        assert not any(on[on.index(False):])
    assert len(first_off) == 1, first_off
    assert min(first_off) > 3

    out = tmp_path / "export"
    collector.cli("export", "--run", "new", "--output", out)
    saved = sorted(str(path.relative_to(out)) for path in out.rglob("*.pt"))
    assert saved == sorted(f"step{step}/rank{rank}/dump_tensor_data/Functional.dropout.0.forward.{side}.0.pt"
                           for rank, step in ((0, 1), (0, 3), (1, 2)) for side in ("input", "output"))
    assert json.loads((out / "manifest.json").read_text())["gaps"] == []
