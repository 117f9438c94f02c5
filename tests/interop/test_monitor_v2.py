# SPDX-License-Identifier: Apache-2.0
"""TrainerMonitorV2 (`monitors`, msprobe's second kind of config) beside the real msprobe's: the same script, the same
files, row by row and column by column."""

from __future__ import annotations

import csv
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from monitored_net import NET
from ports import free_port

SCRIPT = """
import json, os, sys
import torch

told = json.loads(os.environ["TOLD"])
if sys.argv[1] == "msprobe":
    from msprobe.core.monitor_v2.trainer import TrainerMonitorV2
elif sys.argv[1] == "rankprobe":
    from rankprobe.pytorch import TrainerMonitorV2
torch.manual_seed(0)
torch.set_num_threads(1)
""" + NET + """
model = Net()
# msprobe's second monitor hangs its hooks on nodes that it does not keep: without them it has no gradient "unreduced".
nodes = [parameter.expand_as(parameter).grad_fn.next_functions[0][0] for parameter in model.parameters()]
chunks = [model] if told.get("chunks") else model
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
monitor = None
if sys.argv[1] != "alone":
    monitor = TrainerMonitorV2(sys.argv[2])
    monitor.start(model=chunks, optimizer=optimizer)
generator = torch.Generator().manual_seed(1)
for step in range(6):
    optimizer.zero_grad()
    for _ in range(told.get("micro", 1)):
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
    optimizer.step()
    if monitor and told.get("manual"):
        monitor.step()
if monitor:
    monitor.stop()
if sys.argv[1] != "msprobe":
    optimizer.step()  # nothing of it is recorded; msprobe's own leaves an optimizer behind that cannot step
with open(sys.argv[1] + ".state", "w") as file:
    json.dump([p.detach().numpy().tobytes().hex() for p in model.parameters()], file)
"""

COMMUNICATION = """
import os, sys
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
if sys.argv[1] == "msprobe":
    from msprobe.core.monitor_v2.trainer import TrainerMonitorV2
else:
    from rankprobe.pytorch import TrainerMonitorV2
monitor = TrainerMonitorV2(sys.argv[2])
monitor.start(model=model, optimizer=optimizer)
generator = torch.Generator().manual_seed(rank)


def reduce_all():
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(3, 4, generator=generator)).square().mean().backward()
    reduce_all()
    dist.all_reduce(torch.full((2,), float(rank)), async_op=True).wait()
    dist.broadcast(tensor=torch.full((2,), rank + 3.0), src=1)
    dist.all_gather_into_tensor(torch.zeros(8), torch.arange(4.0) + rank)
    optimizer.step()
monitor.stop()
dist.destroy_process_group()
"""
EACH = {"enabled": True}
ALL = {"module": EACH, "weight_grad": EACH, "optimizer": EACH, "param": EACH}


def _rows(out: pathlib.Path) -> tuple[dict[tuple, list[dict]], dict[str, list[str]]]:
    """The rows of all files by rank, file, name, scope, step and micro step, in their order, and the files' columns."""
    rows: dict[tuple, list[dict]] = {}
    columns = {}
    for path in out.glob("rank_*/*.csv"):
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            columns[f"{path.parent.name}/{path.name}"] = list(reader.fieldnames)
            for row in reader:
                key = (path.parent.name, path.name, row["module_name"], row["scope"], row["step"], row.get("micro_step"))
                rows.setdefault(key, []).append(row)
    return rows, columns


def _run(directory: pathlib.Path, which: str, config: dict, told: dict) -> tuple[dict, dict, str]:
    out = directory / which
    out.mkdir()  # msprobe's wants it
    (directory / "train.py").write_text(SCRIPT)
    (directory / f"{which}.json").write_text(json.dumps({**config, "output_dir": str(out)}))
    done = subprocess.run([sys.executable, "train.py", which, f"{which}.json"], cwd=directory, timeout=240, capture_output=True,
                          text=True, env={**os.environ, "TOLD": json.dumps(told)})
    assert done.returncode == 0, done.stdout + done.stderr
    return *_rows(out), done.stderr


def _same(ours: str, theirs: str) -> bool:
    try:
        a, b = float(ours), float(theirs)
    except ValueError:
        return ours == theirs
    # msprobe's are float32, its norm and mean too.
    return (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-6 + 1e-5 * abs(b)


def _is_of_the_root(name: str) -> bool:
    """Of the model itself, which level L0 has not."""
    return name.startswith((".", "0:."))


@pytest.mark.parametrize("config, told", [
    ({"monitors": ALL}, {}),
    ({"monitors": {**ALL, "weight_grad": {"enabled": True, "grad_acc_steps": 2, "monitor_mbs_grad": True}}, "step_interval": 2,
      "start_step": 1, "rank": [0]}, {"micro": 2}),
    ({"monitors": {"weight_grad": {"enabled": True, "micro_batch_number": 3, "ops": ["norm"]}}, "stop_step": 4}, {"micro": 3}),
    ({"monitors": {"module": {"targets": ["blocks.0", "head"], "ops": ["max", "nans"]}}, "step_count_per_record": 4}, {}),
    ({"monitors": {"param": {"enabled": True, "ops": "mean"}, "module": {"enabled": False}}, "collect_times": 2, "start_step": 2,
      "rank": 0}, {}),
    ({"monitors": {"optimizer": EACH}, "patch_optimizer_step": False}, {"manual": True}),
    ({"monitors": {"optimizer": {"enabled": True, "ops": ["norm", "min"]}, "module": {"targets": ["0:head"]}, "param": EACH}},
     {"chunks": True}),
], ids=["all", "micro-batches", "last-micro-batch", "targets", "parameters", "own-steps", "chunks"])
def test_every_row_and_column_is_msprobes(tmp_path, config, told) -> None:
    theirs, their_columns, _ = _run(tmp_path, "msprobe", config, told)
    ours, our_columns, _ = _run(tmp_path, "rankprobe", config, told)
    theirs = {key: rows for key, rows in theirs.items() if not _is_of_the_root(key[2])}
    assert len(theirs) > 3 and set(ours) == set(theirs)
    assert our_columns == their_columns
    for key, rows in theirs.items():
        assert len(ours[key]) == len(rows), key
        for own, row in zip(ours[key], rows):
            assert all(_same(own[column], row[column]) for column in row), (key, own, row)


def test_communication_is_msprobes(tmp_path) -> None:
    config = {"monitors": {"cc": {"enabled": True, "ops": ["norm", "max", "min", "mean"], "cc_codeline": ["reduce_all", "<module>"]}}}
    found = {}
    (tmp_path / "calls.py").write_text(COMMUNICATION)
    for which in ("msprobe", "rankprobe"):
        out, port = tmp_path / which, str(free_port())
        out.mkdir()
        (tmp_path / f"{which}.json").write_text(json.dumps({**config, "output_dir": str(out)}))
        running = [subprocess.Popen(
            [sys.executable, "calls.py", which, f"{which}.json"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}) for rank in (0, 1)]
        printed = [process.communicate(timeout=240)[0] for process in running]
        # msprobe's has written its files by then, and ends in an abort at times.
        assert which == "msprobe" or [process.returncode for process in running] == [0, 0], printed
        found[which] = _rows(out)
    (theirs, their_columns), (ours, our_columns) = found["msprobe"], found["rankprobe"]
    assert len(theirs) > 3 and set(ours) == set(theirs)
    for name, columns in their_columns.items():
        assert our_columns[name] == columns, name
    for key, rows in theirs.items():
        for own, row in zip(ours[key], rows, strict=True):
            assert all(_same(own[column], row[column]) for column in row), (key, own, row)


def test_the_training_is_the_one_without_it(tmp_path) -> None:
    for which in ("rankprobe", "alone"):
        _run(tmp_path, which, {"monitors": ALL}, {"micro": 2})
    assert (tmp_path / "rankprobe.state").read_text() == (tmp_path / "alone.state").read_text()


def test_what_has_no_equal_is_warned_about_by_name(tmp_path) -> None:
    config = {"monitors": {"param": {"enabled": True, "heat": 1}, "optimizer": {"enabled": True, "ur_distribution": True}, "moe": EACH},
              "async_write": True, "alert": {}}
    rows, _, said = _run(tmp_path, "rankprobe", config, {})
    assert rows
    for name in ("monitors.param.heat", "monitors.optimizer.ur_distribution", "monitors.moe", "async_write", "alert"):
        assert f"TrainerMonitorV2: {name} has no effect here" in said, said


def test_a_program_of_msprobes_runs_unchanged(tmp_path) -> None:
    out = tmp_path / "out"
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "config.json").write_text(json.dumps({"monitors": {"param": EACH}, "output_dir": str(out)}))
    done = subprocess.run([sys.executable, "-m", "rankprobe.run", "--as-msprobe", "--", sys.executable, "train.py", "msprobe", "config.json"], cwd=tmp_path,
                          timeout=240, capture_output=True, text=True, env={**os.environ, "TOLD": "{}"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(_rows(out)[0]) == 6 * 2 * 10, list(out.rglob("*"))
