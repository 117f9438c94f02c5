# SPDX-License-Identifier: Apache-2.0
"""Packs that the real msprobe config_check made: what rankprobe finds in two of them, beside msprobe's own comparison."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import openpyxl
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness

SCRIPT = """
import sys
import torch
from msprobe.core.config_check import ConfigChecker
ConfigChecker.apply_patches("pytorch")

seed, name = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
with torch.no_grad():
    model[1].bias += 0.5 * (seed > 1)
ConfigChecker(model, ["train.sh"], name)
torch.manual_seed(seed)
for _ in range(2):
    model(torch.randn(3, 4))
"""


@pytest.fixture(scope="module")
def packs(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("packs")
    (directory / "train.py").write_text(SCRIPT)
    for name, seed, rate, algorithm in (("a", 1, "0.1", "Ring"), ("b", 2, "0.2", "Tree"), ("same", 1, "0.1", "Ring")):
        (directory / "train.sh").write_text(f"torchrun train.py --learning-rate {rate} --steps 2\n")
        done = subprocess.run([sys.executable, "train.py", str(seed), f"{name}.zip"], cwd=directory, capture_output=True, text=True, timeout=240,
                              env={**os.environ, "NCCL_ALGO": algorithm, "MY_TOKEN": f"secret-{name}"})
        assert done.returncode == 0, done.stdout + done.stderr
    return directory


def _ours(packs: pathlib.Path, new: str, old: str, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([harness.BIN / "rankprobe", "config_check", f"{new}.zip", f"{old}.zip", "--all", *flags], cwd=packs,
                          capture_output=True, text=True, timeout=60)


def test_what_msprobe_calls_different_is_named(packs) -> None:
    done = subprocess.run([str(pathlib.Path(sys.executable).parent / "msprobe"), "config_check", "-c", "b.zip", "a.zip", "-o", "result"],
                          cwd=packs, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    book = openpyxl.load_workbook(packs / "result" / "result.xlsx")
    rows = {name: list(book[name].iter_rows(values_only=True)) for name in book.sheetnames}

    def of(sheet: str) -> list[dict]:
        return [dict(zip(rows[sheet][0], row)) for row in rows[sheet][1:]]

    report = json.loads(_ours(packs, "a", "b", "--json").stdout)
    ours: dict[str, dict[str, dict]] = {}
    for difference in report["differences"]:
        ours.setdefault(difference["section"], {})[difference["name"]] = difference
    weights = {row["weight_name"] for row in of("weights") if row["equal"] is False}
    assert weights == set(ours["weights"]) == {"1.bias"}
    assert {row["tag"] for row in of("dataset") if row["equal"] is False} == set(ours["batch"])
    hyper = {row["bench_para"].lstrip("-").replace("-", "_"): (row["cmp_value"], row["bench_value"]) for row in of("hyperparameters")}
    assert hyper == {name: (d["target"], d["reference"]) for name, d in ours["hyperparameters"].items()} == {
        "learning_rate": ("0.1", "0.2")}
    # msprobe has the two sides of the environment the other way round.
    environment = {row["cmp_env_name"]: {row["cmp_value"], row["bench_value"]} for row in of("env")}
    assert environment["NCCL_ALGO"] == {"Ring", "Tree"}
    assert {name: (d["target"], d["reference"]) for name, d in ours["environment"].items()} == {"NCCL_ALGO": ("Ring", "Tree")}
    assert not of("pip") and "packages" not in ours


def test_no_secret_of_a_pack_is_told(packs) -> None:
    done = _ours(packs, "a", "b")
    assert done.returncode == 1 and done.stdout.startswith("weights 1.bias, step 0, rank 0: "), done.stdout + done.stderr
    assert "secret" not in done.stdout and "TOKEN" not in done.stdout


def test_equal_packs_differ_in_nothing(packs) -> None:
    done = _ours(packs, "same", "a")
    assert done.returncode == 0 and done.stdout.startswith("0 differences in "), done.stdout + done.stderr
