# SPDX-License-Identifier: Apache-2.0
"""TrainerMon beside the real msprobe's: the same script, the same csv files, row by row and column by column."""

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
    from msprobe.pytorch import TrainerMon
elif sys.argv[1] == "rankprobe":
    from rankprobe.pytorch import TrainerMon
torch.manual_seed(0)
torch.set_num_threads(1)
""" + NET + """
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
if sys.argv[1] != "alone":
    TrainerMon(sys.argv[2], params_have_main_grad=False).set_monitor(
        model, grad_acc_steps=told["micro"], optimizer=optimizer, start_iteration=told.get("start", 0))
generator = torch.Generator().manual_seed(1)
for step in range(5):
    optimizer.zero_grad()
    for _ in range(told["micro"]):
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
    optimizer.step()
with open(sys.argv[1] + ".state", "w") as file:
    json.dump([p.detach().numpy().tobytes().hex() for p in model.parameters()], file)
"""
ALL = {"xy_distribution": True, "wg_distribution": True, "mv_distribution": True, "param_distribution": True}

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
    from msprobe.pytorch import TrainerMon
else:
    from rankprobe.pytorch import TrainerMon
TrainerMon(sys.argv[2], params_have_main_grad=False).set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
generator = torch.Generator().manual_seed(rank)


def reduce_all():
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(3, 4, generator=generator)).square().mean().backward()
    reduce_all()
    dist.all_gather([torch.zeros(4) for _ in range(2)], model.bias.grad * (rank + 1))
    dist.all_reduce(torch.full((2,), float(rank)), async_op=True).wait()
    dist.broadcast(tensor=torch.full((2,), rank + 3.0), src=1)
    dist.all_gather_into_tensor(torch.zeros(8), torch.arange(4.0) + rank)
    dist.reduce_scatter_tensor(torch.zeros(2), torch.arange(4.0))
    dist.reduce(torch.arange(3.0), 0)
    if rank == 0:  # msprobe's monitor leaves out what is received from another rank than 0
        dist.send(torch.arange(5.0) + step, 1)
    else:
        dist.recv(torch.zeros(5), 0)
    optimizer.step()
dist.destroy_process_group()
"""


def _run(directory: pathlib.Path, which: str, config: dict, told: dict) -> dict[tuple, dict]:
    """The rows of all csv files by metric, name, step and micro step."""
    (directory / "train.py").write_text(SCRIPT)
    (directory / "config.json").write_text(json.dumps(config))
    out = directory / which
    done = subprocess.run([sys.executable, "train.py", which, "config.json"], cwd=directory, timeout=240, capture_output=True,
                          text=True, env={**os.environ, "TOLD": json.dumps(told), "MONITOR_OUTPUT_DIR": str(out)})
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {}
    for path in out.glob("*-rank0-*/*.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                rows[path.stem, row["name"], row["step"], row.get("micro_step")] = row
    return rows


def _same(ours: str, theirs: str) -> bool:
    try:
        a, b = float(ours), float(theirs)
    except ValueError:
        return ours == theirs
    # Both are rounded to six places, and msprobe's norm and mean are of doubles.
    return (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 2e-6 + 1e-6 * abs(b)


@pytest.mark.parametrize("config, told", [
    ({**ALL, "targets": {}, "ops": ["norm", "max", "min", "mean"]}, {"micro": 1}),
    ({**ALL, "targets": {}, "ops": ["norm", "nans"], "step_interval": 2, "start_step": 1}, {"micro": 2}),
    ({**ALL, "targets": {"blocks.0.fc": {}, "0:head": {}}, "ops": ["max"], "collect_times": 2}, {"micro": 1}),
    ({"wg_distribution": True, "targets": {"blocks.1": {}}, "ops": ["norm"], "step_count_per_record": 3}, {"micro": 2, "start": 10}),
    ({"param_distribution": True, "targets": {}, "ops": ["norm", "mean"]}, {"micro": 1}),
    ({"xy_distribution": True, "forward_only": True, "targets": {"head": {}}, "ops": ["mean", "min"]}, {"micro": 1}),
], ids=["all", "micro-batches", "targets", "gradients", "parameters", "forward"])
def test_every_row_and_column_is_msprobes(tmp_path, config, told) -> None:
    theirs = _run(tmp_path, "msprobe", config, told)
    ours = _run(tmp_path, "rankprobe", config, told)
    # Of the model itself, which level L0 has not.
    theirs = {key: row for key, row in theirs.items() if not key[1].startswith(".")}
    assert len(theirs) > 3 and set(ours) == set(theirs)
    for key, row in theirs.items():
        assert list(ours[key]) == list(row), key
        assert all(_same(ours[key][column], row[column]) for column in row), (ours[key], row)


def _communicate(directory: pathlib.Path, which: str, config: dict) -> tuple[dict[tuple, list[list[str]]], str]:
    """The rows of the files of communication, by rank and file, and what was printed."""
    (directory / "calls.py").write_text(COMMUNICATION)
    (directory / "config.json").write_text(json.dumps(config))
    out, port = directory / which, str(free_port())
    running = [subprocess.Popen(
        [sys.executable, "calls.py", which, "config.json"], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
             "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "MONITOR_OUTPUT_DIR": str(out)}) for rank in (0, 1)]
    printed = [process.communicate(timeout=240)[0] for process in running]
    if not config["cc_distribution"].get("cc_log_only"):
        assert [process.returncode for process in running] == [0, 0], printed
    rows = {}
    for rank in (0, 1):
        for path in out.glob(f"*-rank{rank}-*/other_*.csv"):
            with path.open(newline="") as file:
                rows[rank, path.name] = list(csv.reader(file))
    return rows, printed[0]


# What send() and recv() call themselves is not a call of the program's; msprobe's monitor has it, too.
_WITHIN_OTHERS = {"isend", "irecv"}
# What a call only receives into has no value before it: msprobe's monitor has what happened to be in the buffer.
_RECEIVES = {"all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "recv"}


@pytest.mark.parametrize("config", [
    {"ops": ["norm", "max", "min", "mean"], "cc_distribution": {"enable": True}},
    {"ops": ["norm", "nans"], "cc_distribution": {"enable": True, "cc_pre_hook": True}, "step_count_per_record": 2},
    {"ops": ["mean", "min"], "cc_distribution": {"enable": True, "cc_codeline": ["reduce_all"]}},
], ids=["after", "before-and-after", "code line"])
def test_communication_is_msprobes_row_by_row(tmp_path, config) -> None:
    (theirs, _), (ours, _) = (_communicate(tmp_path, which, {"targets": {}, **config}) for which in ("msprobe", "rankprobe"))
    assert theirs and set(ours) == set(theirs)
    theirs = {key: [row for row in rows if row[0] not in _WITHIN_OTHERS] for key, rows in theirs.items()}
    for key, rows in theirs.items():
        assert [row[0] for row in ours[key]] == [row[0] for row in rows], key
        assert ours[key][0] == rows[0], "the header"
        for own, row in zip(ours[key][1:], rows[1:]):
            assert len(own) == len(row), (key, own, row)
            unknown = row[0] in _RECEIVES and config["cc_distribution"].get("cc_pre_hook")
            assert all(_same(a, b) or (unknown and a == "nan") for a, b in zip(own, row)), (key, own, row)


def test_where_communication_is_called_from_is_said_and_the_training_goes_on(tmp_path) -> None:
    config = {"targets": {}, "ops": ["norm"], "cc_distribution": {"enable": True, "cc_log_only": True}}
    used = {}
    for which in ("msprobe", "rankprobe"):
        _, printed = _communicate(tmp_path, which, config)
        line = printed.partition("Used communication ops and corresponding stack")[2].strip().splitlines()[0]
        used[which] = json.loads(line[line.index("{"):])
    sites = {which: {function: {frame for stack in stacks for frame in stack if "calls.py" in frame}
                     for function, stacks in found.items()} for which, found in used.items()}
    assert sites["rankprobe"] == {name: places for name, places in sites["msprobe"].items() if name not in _WITHIN_OTHERS}


def test_the_training_is_the_one_without_it(tmp_path) -> None:
    config, told = {**ALL, "targets": {}, "ops": ["norm"]}, {"micro": 2}
    for which in ("rankprobe", "alone"):
        _run(tmp_path, which, config, told)
    assert (tmp_path / "rankprobe.state").read_text() == (tmp_path / "alone.state").read_text()
