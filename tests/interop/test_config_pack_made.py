# SPDX-License-Identifier: Apache-2.0
"""Packs of `rankprobe config_check -d` beside those of the real msprobe config_check -d, and what msprobe makes of them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import zipfile

import openpyxl
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness

SCRIPT = """#!/bin/bash
# torchrun old.py --seed 1
RATE=0.1   # of Adam
SECOND_ARGS="--global-batch-size 8
  --bf16 true"
torchrun --nproc_per_node 2 train.py --lr ${RATE} --seed $SEED \\
  --use-flash-attn true $SECOND_ARGS --steps 20 | tee log.txt
"""
SETTINGS = """
model: {layers: 4, names: [a, b], blocks: [{width: 8}, {width: 16}]}
lr: 0.2
empty:
"""
MSPROBE = str(pathlib.Path(sys.executable).parent / "msprobe")


def _ours(directory: pathlib.Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([harness.BIN / "rankprobe", "config_check", *words], cwd=directory, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "RANKPROBE_PYTHON": sys.executable, **environment})


@pytest.fixture
def packs(tmp_path) -> pathlib.Path:
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "model.yaml").write_text(SETTINGS)
    environment = {"NCCL_ALGO": "Ring", "MY_TOKEN": "secret-value", "WANDB_API_KEY": "secret-value",
                   "TORCHINDUCTOR_CACHE_DIR": "/tmp/x"}  # which msprobe's own import of torch sets
    done = subprocess.run([MSPROBE, "config_check", "-d", "train.sh", "model.yaml", "-o", "theirs.zip"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=240, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    done = _ours(tmp_path, "-d", "train.sh", "model.yaml", "-o", "ours.zip", **environment)
    assert done.returncode == 0 and done.stdout.startswith("ours.zip: env, hyperparameters/"), done.stdout + done.stderr
    return tmp_path


def _members(path: pathlib.Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as pack:
        assert pack.testzip() is None
        return {name: pack.read(name).decode() for name in pack.namelist()}


def test_the_members_are_msprobes(packs) -> None:
    theirs, ours = _members(packs / "theirs.zip"), _members(packs / "ours.zip")
    assert set(ours) == set(theirs) == {"pip", "env", "hyperparameters/hyperparameters_static.json"}
    settings = json.loads(ours["hyperparameters/hyperparameters_static.json"])
    assert settings == json.loads(theirs["hyperparameters/hyperparameters_static.json"])
    assert settings["lr"] == {"description": "duplicate_value", "values": ["0.1", 0.2]} and settings["model.blocks.1.width"] == 16
    assert sorted(ours["pip"].splitlines()) == sorted(theirs["pip"].splitlines())
    known, all_of_it = json.loads(ours["env"]), json.loads(theirs["env"])
    assert known["NCCL_ALGO"] == "Ring" and known.items() <= all_of_it.items()
    # msprobe packs the whole environment.
    assert "secret-value" in theirs["env"] and "secret-value" not in ours["env"] and "WANDB_API_KEY" not in known


def test_msprobe_and_rankprobe_find_no_difference_between_the_two(packs) -> None:
    sheets = {}
    for pack in ("ours", "theirs"):
        done = subprocess.run([MSPROBE, "config_check", "-c", f"{pack}.zip", "theirs.zip", "-o", f"result_{pack}"], cwd=packs,
                              capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        book = openpyxl.load_workbook(packs / f"result_{pack}" / "result.xlsx")
        sheets[pack] = {name: sorted(map(str, book[name].iter_rows(values_only=True))) for name in book.sheetnames}
    assert set(sheets["ours"]) == {"summary", "pip", "env", "hyperparameters"} and sheets["ours"] == sheets["theirs"]
    done = _ours(packs, "ours.zip", "theirs.zip")
    assert done.returncode == 0 and done.stdout.startswith("0 differences in "), done.stdout + done.stderr


def test_bad_files_are_named_and_nothing_is_written(packs) -> None:
    (packs / "broken.yaml").write_text("a: [1\n")
    (packs / "bytes.sh").write_bytes(b"\xff\xfe\x00")
    for words, fault in ((["-d", "broken.yaml"], "broken.yaml: no YAML"), (["-d", "none.sh"], "none.sh: "), (["-d", "bytes.sh"], "bytes.sh: "),
                         (["-d", "ours.zip"], "ours.zip: a script (.sh)"), (["-d", "-o", "pack.tar"], "pack.tar: the name of a pack"),
                         (["-d", "-o", "nowhere/x.zip"], "nowhere"), (["-d", "-o", "ours.zip"], "ours.zip already exists"), (["ours.zip"], "two dumps"),
                         (["-o", "x.zip", "ours.zip", "theirs.zip"], "--dump")):
        before = {path.name: path.read_bytes() for path in packs.iterdir() if path.is_file()}
        done = _ours(packs, *words)
        assert done.returncode == 2 and fault in done.stderr and not done.stdout, (words, done)
        assert {path.name: path.read_bytes() for path in packs.iterdir() if path.is_file()} == before


def test_no_files_are_packages_and_environment(tmp_path) -> None:
    done = _ours(tmp_path, "-d")
    assert done.returncode == 0 and done.stdout == "config_check_pack.zip: env, pip\n", done.stdout + done.stderr
    assert set(_members(tmp_path / "config_check_pack.zip")) == {"env", "pip"}
