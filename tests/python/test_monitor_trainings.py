# SPDX-License-Identifier: Apache-2.0
"""Task monitor tells sharded, accumulated, scaled and fused trainings apart, and rightly: before and after reduction,
accumulation and unscaling; held against a model apart (monitored_trainings.py)."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import monitored_trainings as trainings

from ports import free_port

_PROGRAM = trainings.__file__
_TOLERANCE = 2e-5


def _run(directory: pathlib.Path, case: str, ranks: int = 1) -> list[list[dict]]:
    """What each rank expects of each step."""
    config = directory / "monitor.json"
    config.write_text(json.dumps({"task": "monitor", "dump_path": str(directory / "dump"), "monitor": {"every": 1}}))
    several = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    running = [subprocess.Popen(
        [sys.executable, _PROGRAM, case, str(directory / "out"), str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **({**several, "RANK": str(rank)} if ranks > 1 else {})}) for rank in range(ranks)]
    for process in running:
        _, text = process.communicate(timeout=240)
        assert process.returncode == 0, text
    return [json.loads((directory / f"out{rank}").read_text()) for rank in range(ranks)]


def _place(directory: pathlib.Path, step: int, rank: int, ranks: int) -> pathlib.Path:
    (place,) = (directory / "dump" / f"step{step}").glob(f"rank{rank}" if ranks > 1 else "*")
    assert not (place / "dump_error_info.log").exists()
    return place


def _data(place: pathlib.Path, file: str) -> dict:
    return json.loads((place / file).read_text())["data"]


def _norms(data: dict, kind: str, value: str) -> dict[str, float]:
    found = {name[len(kind) + 1:-len(".0.debug")]: entry for name, entry in data.items() if name.startswith(f"{kind}.")}
    return {name: entry[value]["Norm"] for name, entry in found.items() if value in entry}


def _unreduced(modules: dict, micro: int) -> dict[str, float]:
    found = {}
    for entry, parameters in modules.items():
        path, mark, number = entry.partition(".parameters_grad.")
        if mark and int(number) == micro:
            prefix = path[len("Module."):].rpartition(".")[0]
            found |= {f"{prefix}.{name}": tensors[0]["Norm"] for name, tensors in parameters.items()}
    return found


def _losses(training: dict) -> list[float]:
    loss = training["loss"]
    return [value["Norm"] for value in (loss if isinstance(loss, list) else [loss])]


def _check(directory: pathlib.Path, case: str, ranks: int) -> None:
    truth = _run(directory, case, ranks)
    loose = {"rel": _TOLERANCE, "abs": 1e-7}
    for rank, steps in enumerate(truth):
        for step, seen in enumerate(steps):
            place = _place(directory, step, rank, ranks)
            data, modules = _data(place, "debug.json"), _data(place, "dump.json")
            training = data["Training.0.debug"]
            assert _norms(data, "Parameter", "grad") == pytest.approx(seen["grad"], **loose), (rank, step)
            assert _norms(data, "Parameter", "param") == pytest.approx(seen["param"], **loose), (rank, step)
            assert _norms(data, "Update", "update") == pytest.approx(seen["update"], **loose), (rank, step)
            assert _losses(training) == pytest.approx(seen["loss"], **loose), (rank, step)
            assert training["grad_norm"]["Norm"] == pytest.approx(sum(g * g for g in seen["grad"].values()) ** 0.5, **loose)
            assert ("loss_scale" in training) == (seen["scale"] != 1)
            assert training.get("loss_scale", {"Norm": 1})["Norm"] == seen["scale"]
            for micro in range(trainings.MICRO):
                assert _unreduced(modules, micro) == pytest.approx(seen["unreduced"][micro], **loose), (rank, step, micro)


@pytest.mark.parametrize("case", [name for name, case in trainings.CASES.items() if "shard" not in case])
def test_before_and_after_accumulation_and_unscaling(tmp_path, case) -> None:
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("PyTorch has no GradScaler for the CPU")
    _check(tmp_path, case, ranks=1)


@pytest.mark.parametrize("case", [name for name, case in trainings.CASES.items() if "shard" in case])
def test_before_and_after_reduction(tmp_path, case) -> None:
    if case == "fsdp2" and tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        pytest.skip("FSDP2 as PyTorch 2.6 and later have it")
    _check(tmp_path, case, ranks=2)
