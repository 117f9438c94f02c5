# SPDX-License-Identifier: Apache-2.0
"""Scenarios, each run once with each tool."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

HERE = pathlib.Path(__file__).parent
_SECONDS = 300


def program(name: str, *words: Any, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
    """A script of this directory in a process of its own."""
    done = subprocess.run([sys.executable, str(HERE / name), *map(str, words)], capture_output=True, text=True,
                          timeout=_SECONDS, env={**os.environ, **environment})
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def cli(*words: Any, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([os.path.join(os.environ["RANKPROBE_BUILD_DIR"], "bin", "rankprobe"), *map(str, words)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done


@pytest.fixture(scope="session")
def scenario(tmp_path_factory: pytest.TempPathFactory):
    """scenario(name, tool): the directory of that run, made once in a session. Those of other tools are kept
    from session to session in SCENARIO_RUNS, a directory, where that is set."""
    kept = os.environ.get("SCENARIO_RUNS")

    @functools.lru_cache(maxsize=None)
    def run(name: str, tool: str) -> pathlib.Path:
        if kept and tool != "rankprobe":
            directory = pathlib.Path(kept) / f"{name}-{tool}"
            if (directory / "result.json").exists():
                return directory
        else:
            directory = tmp_path_factory.mktemp(f"{name}-{tool}")
        program("scenario.py", name, tool, directory)
        return directory

    return run


def result(directory: pathlib.Path) -> dict:
    return json.loads((directory / "result.json").read_text())
