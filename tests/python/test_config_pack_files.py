# SPDX-License-Identifier: Apache-2.0
"""Odd files for `rankprobe config_check -d`, and settings that it does not disclose."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile

import pytest

import harness

SECRETS = {
    "--pass": "s1", "--passphrase": "s2", "--pw": "s3", "--psw": "s4", "--pat": "s5", "--hf-tok": "s6", "--jwt": "s7", "--sas": "s8",
    "--license": "s9", "--access_id": "s10", "--aws": "s11", "--pwd": "s12", "--my-private": "s13", "--api-key": "s14",
    "--url": "https://user:s15@host/x", "--s3": "s3://AKIA:s16@bucket", "--opts": "api_key=s17", "--header": "Authorization:s18",
}
HARMLESS = {"--path": "/data/x", "--compass": "north", "--passes": "3", "--lr": "0.1", "--data-url": "https://host/x@y", "--pattern": "a*"}


def _pack(directory, *words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([harness.BIN / "rankprobe", "config_check", *words], cwd=directory, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "RANKPROBE_PYTHON": sys.executable, **environment})


with_yaml = pytest.mark.skipif(importlib.util.find_spec("yaml") is None, reason="no PyYAML here")


@with_yaml
def test_secrets_are_in_no_pack(tmp_path) -> None:
    options = " ".join(f"{name} {value}" for name, value in {**SECRETS, **HARMLESS}.items())
    (tmp_path / "train.sh").write_text(f"torchrun train.py {options}\n")
    (tmp_path / "model.yaml").write_text("db: {uri: 'postgres://u:s20@h/db', private: s21}\nlayers: 4\n")
    done = _pack(tmp_path, "-d", "train.sh", "model.yaml", "-o", "p.zip", NCCL_DEBUG_FILE="http://u:s30@h", NCCL_ALGO="Ring")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "p.zip") as pack:
        told = json.loads(pack.read("hyperparameters/hyperparameters_static.json"))
        environment = json.loads(pack.read("env"))
    assert {name: told[name[2:]] for name in SECRETS} == dict.fromkeys(SECRETS, "(not recorded)")
    assert {name: told[name[2:]] for name in HARMLESS if name != "--compass"} == {n: v for n, v in HARMLESS.items() if n != "--compass"}
    assert told["db.uri"] == told["db.private"] == "(not recorded)" and told["layers"] == 4
    assert environment["NCCL_ALGO"] == "Ring" and "NCCL_DEBUG_FILE" not in environment


@with_yaml
@pytest.mark.parametrize("text,words", [
    ("a: &a [*a]", "nested more than 64 deep"),
    ("a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
     "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e]", "more than 100000 values"),
    ("a: [", "no YAML"),
], ids=["cycle", "aliases", "broken"])
def test_settings_that_are_none(tmp_path, text, words) -> None:
    (tmp_path / "model.yaml").write_text(text)
    done = _pack(tmp_path, "-d", "model.yaml", "-o", "p.zip")
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not list(tmp_path.glob("*.zip")) and not list(tmp_path.glob(".rankprobe*"))


def test_without_pyyaml_a_pack_says_what_it_lacks(tmp_path) -> None:
    (tmp_path / "model.yaml").write_text("layers: 4\n")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "yaml.py").write_text("raise ImportError('none here')\n")
    done = _pack(tmp_path, "-d", "model.yaml", "-o", "p.zip", PYTHONPATH=f"{tmp_path / 'hidden'}:{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 2 and "pip install pyyaml" in done.stderr and not (tmp_path / "p.zip").exists(), done.stderr


def test_what_is_no_file(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo.sh")
    (tmp_path / "there.sh").write_text("torchrun train.py --lr 0.1\n")
    (tmp_path / "link.sh").symlink_to("there.sh")
    for name, words in (("fifo.sh", "is not a regular file"), ("link.sh", "is a symbolic link"), ("gone.sh", "gone.sh")):
        done = _pack(tmp_path, "-d", name, "-o", "p.zip")
        assert done.returncode == 2 and words in done.stderr and "--force" not in done.stderr, (name, done.stderr)
    assert _pack(tmp_path, "-d", "there.sh", "-o", "p.zip").returncode == 0
    done = _pack(tmp_path, "-d", "there.sh", "-o", "p.zip")
    assert done.returncode == 2 and "p.zip already exists" in done.stderr, done.stderr
