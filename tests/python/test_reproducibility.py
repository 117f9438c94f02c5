# SPDX-License-Identifier: Apache-2.0
"""seed_all and random_save, each in a process of its own: they patch globally."""

from __future__ import annotations

import csv
import os
import pathlib
import subprocess
import sys

import pytest

import rankprobe
from rankprobe.pytorch import InvalidParameterError, random_save, seed_all


@pytest.mark.parametrize("arguments", [
    {"seed": -1}, {"seed": 2**32}, {"seed": 1.0}, {"seed": True}, {"mode": 1}, {"rm_dropout": "yes"},
    {"is_enhanced": None},
])
def test_bad_seed_arguments(arguments: dict) -> None:
    with pytest.raises(InvalidParameterError):
        seed_all(**arguments)


@pytest.mark.parametrize("path", [3, "", None])
def test_bad_random_save_path(path) -> None:
    with pytest.raises(InvalidParameterError):
        random_save(path)


def _run(script: str, tmp_path: pathlib.Path) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(pathlib.Path(rankprobe.__file__).parents[1])})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_same_numbers_again(tmp_path: pathlib.Path) -> None:
    script = ("import random, numpy, torch; from rankprobe.pytorch import seed_all; seed_all(7);"
              "print(random.random(), numpy.random.rand(), torch.rand(1).item())")
    assert _run(script, tmp_path) == _run(script, tmp_path)


def test_enhanced_repeats_every_call_and_dropout_is_gone(tmp_path: pathlib.Path) -> None:
    out = _run("import torch; from rankprobe.pytorch import seed_all; seed_all(7, False, True, True);"
               "print(torch.equal(torch.rand(3), torch.rand(3)));"
               "x = torch.ones(50); print(torch.equal(torch.nn.functional.dropout(x, 0.9), x))", tmp_path)
    assert out.split() == ["True", "True"]


def test_random_save_writes_each_call(tmp_path: pathlib.Path) -> None:
    _run("import random, numpy, torch\nfrom rankprobe.pytorch import random_save\nrandom_save('out')\n"
         "random.random()\nnumpy.random.rand()\ntorch.rand(2)\ntorch.rand(2)\ntorch.ones(2).normal_()\n", tmp_path)
    (file,) = (tmp_path / "out").glob("random_proc*.csv")
    rows = list(csv.reader(file.open()))
    assert rows[0] == ["api_name", "stack"]
    assert [r[0] for r in rows[1:]] == ["python_random.random.0", "numpy_random.rand.0", "torch_random.rand.0",
                                        "torch_random.rand.1", "tensor_random.normal_.0"]
