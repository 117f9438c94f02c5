# SPDX-License-Identifier: Apache-2.0
"""The version is written once, in CMakeLists.txt; everything else takes it from there."""

from __future__ import annotations

import pathlib
import re
import subprocess
import tomllib

import pytest

import harness
import rankprobe


def _version() -> str:
    text = (harness.ROOT / "CMakeLists.txt").read_text()
    found = re.findall(r"project\(rankprobe VERSION ([0-9]+\.[0-9]+\.[0-9]+)", text)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("program", ["rankprobe", "rankprobed"])
def test_programs(program: str) -> None:
    path = harness.BIN / program
    out = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert out == f"{program} {_version()}\n"


def test_python_package() -> None:
    assert rankprobe.__version__ == _version()


def test_wheel_reads_it_from_the_same_place() -> None:
    path = harness.ROOT / "agent" / "python" / "pyproject.toml"
    settings = tomllib.loads(path.read_text())
    assert "version" not in settings["project"] and "version" in settings["project"]["dynamic"]
    provider = settings["tool"]["scikit-build"]["metadata"]["version"]
    source = pathlib.Path(path.parent / provider["input"]).resolve()
    assert source == harness.ROOT / "CMakeLists.txt"
    match = re.search(provider["regex"], source.read_text())
    assert match is not None and match.group("value") == _version()


def test_nobody_else_writes_it() -> None:
    """Not in the sources: a second place would be forgotten at the next release."""
    pattern = re.compile(r"""["'\s]""" + re.escape(_version()) + r"""["']""")
    hits = []
    for room in ("agent", "analysis", "cli", "cmake", "collector", "common", "deploy", "dump_format", "examples", "tests"):
        for path in (harness.ROOT / room).rglob("*"):
            if path.suffix in (".cc", ".h", ".in", ".py", ".toml", ".sh", ".cmake") and pattern.search(
                    path.read_text(errors="replace")):
                hits.append(str(path.relative_to(harness.ROOT)))
    assert hits == []
