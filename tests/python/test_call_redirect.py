# SPDX-License-Identifier: Apache-2.0
"""Calls of C functions are redirected under each Python that is installed (agent/python/native/torch/call_redirect.h): what it
changes are internals of CPython, and the interpreter has other instructions for calls in each version."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def find_python(minor: int) -> tuple[pathlib.Path, str]:
    """The interpreter and the directory of its headers."""
    of_pyenv = sorted(pathlib.Path(os.path.expanduser("~/.pyenv/versions")).glob(f"3.{minor}.*/bin/python"))
    on_path = shutil.which(f"python3.{minor}")
    for python in [*of_pyenv, *([pathlib.Path(on_path)] if on_path else [])]:
        said = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"], capture_output=True, text=True)
        include = said.stdout.strip()
        if said.returncode == 0 and (pathlib.Path(include) / "Python.h").exists():
            return python, include
    pytest.skip(f"no Python 3.{minor} with its headers")


@pytest.mark.parametrize("minor", range(9, 14))
def test_calls_of_every_form_are_redirected(tmp_path, minor: int) -> None:
    python, include = find_python(minor)
    subprocess.run(["clang++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{ROOT}", f"-I{include}", HERE / "redirect_module.cc",
                    ROOT / "agent/python/native/torch/call_redirect.cc", "-o", tmp_path / "redirect_module.so"], check=True)
    done = subprocess.run([python, HERE / "redirect_program.py"], capture_output=True, text=True, timeout=120,
                          env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]})
    assert done.returncode == 0 and done.stdout.startswith(f"done 3.{minor}."), done
