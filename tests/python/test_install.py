# SPDX-License-Identifier: Apache-2.0
"""Contents of `cmake --install` for a C++ program: find_package(rankprobe) and pkg-config, from a prefix of its own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

import harness

CONSUMER = harness.ROOT / "tests/package/consumer"
pytestmark = pytest.mark.skipif(not (harness.BUILD / "agent/runtime/recorder/librankprobe_recorder.a").exists(),
                                reason="the archives are not built")


def run(*command: object, **environment: str) -> str:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600,
                            env={**os.environ, **environment})
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", harness.BUILD, "--component", "development", "--prefix", prefix)
    # Found by what is installed, not by the source tree.
    headers = list(prefix.rglob("*.h"))
    assert headers and not any(h.name.endswith("_test.h") for h in headers)
    for text in [*prefix.rglob("*.cmake"), *prefix.rglob("*.pc")]:
        assert str(harness.ROOT) not in text.read_text(), text
    return prefix


def records(program: pathlib.Path, collector: harness.Collector, tmp_path: pathlib.Path) -> None:
    run(program, collector.address, tmp_path.name)
    collector.cli("export", "--run", tmp_path.name, "-o", tmp_path / "tree")
    data = json.loads((tmp_path / "tree/step0/rank0/dump.json").read_text())["data"]
    assert data["Torch.add.0.forward"]["input_args"][0]["Max"] == 4.0


def test_cmake_and_pkg_config(prefix: pathlib.Path, collector: harness.Collector, tmp_path: pathlib.Path):
    build = tmp_path / "build"
    run("cmake", "-G", "Ninja", "-S", CONSUMER, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_COMPILER=clang++", "-DCMAKE_C_COMPILER=clang", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    records(build / "consumer", collector, tmp_path)

    where = {"PKG_CONFIG_PATH": str(next(prefix.rglob("rankprobe.pc")).parent)}
    (tmp_path / "by_pkg_config").mkdir()
    program = tmp_path / "by_pkg_config/consumer"
    flags = run("pkg-config", "--cflags", "--libs", "rankprobe", **where).split()
    assert prefix / "include/rankprobe" in [pathlib.Path(flag[2:]).resolve() for flag in flags if flag.startswith("-I")]
    run("clang++", "-std=c++17", "-O1", CONSUMER / "main.cc", "-o", program, *flags)
    records(program, collector, tmp_path / "by_pkg_config")


def test_a_wrong_version_is_refused(prefix: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(x LANGUAGES NONE)\nfind_package(rankprobe 9.0 REQUIRED)\n")
    result = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}"],
                            capture_output=True, text=True, timeout=120)
    assert result.returncode != 0 and "compatible with requested version" in result.stderr
