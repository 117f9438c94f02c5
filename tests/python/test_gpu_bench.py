# SPDX-License-Identifier: Apache-2.0
"""tests/bench/gpu: what a GPU will be measured with, in small and on the host; what it reads out of a profile."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = ROOT / "tests/bench/gpu/gpu.py"
SMALL = ["--layers=1", "--width=32", "--heads=2", "--batch=2", "--length=8", "--dtype=float32", "--launches=1", "--turns=2", "--steps=2"]


def _program():
    spec = importlib.util.spec_from_file_location("gpu_bench", GPU)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_bench"] = module
    path = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
        del sys.modules["gpu_bench"]
    return module


def test_it_runs_where_there_is_no_gpu_and_says_what_that_is_worth() -> None:
    done = subprocess.run([sys.executable, GPU, "--device=cpu", "--cases=off,mix", *SMALL], text=True, capture_output=True,
                          timeout=300)
    assert done.returncode in (0, 1), done.stderr  # 1: slower than a limit, which says nothing here
    assert done.stdout.startswith("conditions CPU, which says nothing of a GPU, PyTorch "), done.stdout
    found = re.findall(r"^gpu_eager_(\w+) ([\d.]+) (\S+) (met|missed|-)  \(wall ([\d.]+) ms", done.stdout, re.M)
    assert [line[0] for line in found] == ["plain", "again", "off", "mix"], done.stdout
    assert [line[2] for line in found] == ["-", "-", "1.005", "1.15"]
    assert found[0][1] == "1.0000" and all(float(line[4]) > 0 for line in found)
    assert done.stdout.count("\n| ") == 2 + 4
    assert "gpu_eager_numbers 0 0 met  (" in done.stdout


def test_changed_numbers_are_a_failure(capsys) -> None:
    program = _program()
    plain = {"plain": ["a", "a"], "again": ["a", "a"]}
    assert program.same_numbers("eager", {**plain, "L0": ["a", "a"]})
    assert not program.same_numbers("eager", {**plain, "L0": ["a", "a"], "mix": ["a", "b"]})
    assert program.same_numbers("compiled", {**plain, "mix": ["b", "b"]})
    assert program.same_numbers("eager", {"plain": ["a"], "again": ["b"], "L0": ["c"]})
    assert [line.split("  (")[0] for line in capsys.readouterr().out.splitlines()] == [
        "gpu_eager_numbers 0 0 met", "gpu_eager_numbers 1 0 missed", "gpu_compiled_numbers 1 - -", "gpu_eager_numbers - - -"]


def test_a_wheel_is_measured_in_place_of_a_build(tmp_path) -> None:
    import shutil

    import rankprobe

    place = tmp_path / "wheel"
    shutil.copytree(pathlib.Path(rankprobe.__file__).parent, place / "rankprobe", ignore=shutil.ignore_patterns("__pycache__", "bin"))
    (place / "rankprobe/bin").mkdir()
    build = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build/release"))
    for name in ("rankprobed", "rankprobe"):
        shutil.copy(build / "bin" / name, place / "rankprobe/bin")
    wheel = shutil.make_archive(str(tmp_path / "rankprobe-0-any"), "zip", place)
    done = subprocess.run([ROOT / "tests/bench/gpu/run.sh", "--device=cpu", "--cases=L0", *SMALL], text=True, capture_output=True,
                          timeout=300, env={**os.environ, "RANKPROBE_PYTHON": sys.executable, "RANKPROBE_WHEEL": wheel,
                                            "PYTHONPATH": "", "RANKPROBE_BUILD_DIR": "/nowhere"})
    assert done.returncode in (0, 1) and "gpu_eager_L0 " in done.stdout, done.stdout + done.stderr


def test_a_wheel_of_another_python_is_named(tmp_path) -> None:
    import zipfile

    wheel = tmp_path / "rankprobe-0-cp27-cp27m-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("rankprobe/__init__.py", "")
        archive.writestr("rankprobe/bin/rankprobed", "")
    done = subprocess.run([ROOT / "tests/bench/gpu/run.sh", "--device=cpu"], text=True, capture_output=True, timeout=120,
                          env={**os.environ, "RANKPROBE_PYTHON": sys.executable, "RANKPROBE_WHEEL": str(wheel)})
    assert done.returncode == 1 and f"{wheel} is not for Python 3." in done.stderr, done.stdout + done.stderr


def test_a_process_that_fails_says_why() -> None:
    done = subprocess.run([sys.executable, GPU, "--device=cpu", "--cases=off", "--heads=3", *(word for word in SMALL if "heads" not in word)],
                          text=True, capture_output=True, timeout=300)
    assert done.returncode == 1 and "the process of plain,eager ended with 1" in done.stderr, done.stderr
    assert "shape" in done.stderr and "RuntimeError" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured_and_that_is_said() -> None:
    done = subprocess.run([ROOT / "tests/bench/gpu/run.sh"], text=True, capture_output=True, timeout=120,
                          env={**os.environ, "RANKPROBE_PYTHON": sys.executable})
    assert done.returncode == 77 and "Not run: there is " in done.stdout, done.stdout + done.stderr
    done = subprocess.run([sys.executable, GPU], text=True, capture_output=True, timeout=120)
    assert done.returncode == 77 and "no GPU" in done.stderr


@pytest.mark.parametrize("arguments, word", [(["--modes=fast"], "'fast' is none of eager"), (["--cases=L3"], "'L3' is none of off"),
                                             (["--device=cpu", "--modes=captured"], "a CPU captures no CUDA graph")])
def test_wrong_arguments_are_named(arguments, word) -> None:
    done = subprocess.run([sys.executable, GPU, *arguments], text=True, capture_output=True, timeout=120)
    assert done.returncode == 2 and word in done.stderr


def test_copies_and_waits_of_a_profile() -> None:
    trace = {"traceEvents": [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "args": {"bytes": 4096, "stream": 7}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "args": {"bytes": 1024}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "args": {"bytes": 512}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "args": {"bytes": 1 << 30}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventSynchronize"},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync"},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"},
        {"ph": "X", "cat": "cuda_driver", "name": "cuStreamSynchronize"},
        {"ph": "X", "cat": "cpu_op", "name": "cudaDeviceSynchronize"},
        {"ph": "M", "name": "process_name"}]}
    found = _program().traffic(trace, 2)
    assert (found.from_device_bytes, found.to_device_bytes, found.waits) == (2560, 256, 1)
