# SPDX-License-Identifier: Apache-2.0
"""rankprobe.mindspore where there is no MindSpore. What it does where there is one: tests/mindspore, stage mindspore."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

import rankprobe

_PACKAGE = pathlib.Path(rankprobe.__file__).parent


def _python(text: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(_PACKAGE.parent)})


@pytest.mark.skipif(importlib.util.find_spec("mindspore") is not None, reason="MindSpore is here")
def test_the_import_says_what_is_missing() -> None:
    done = _python("from rankprobe.mindspore import PrecisionDebugger")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last == ("ImportError: rankprobe.mindspore needs MindSpore in this environment (mindspore "
                                             "2.10, numpy below 2): No module named 'mindspore'")


def test_what_front_ends_share_knows_no_framework() -> None:
    modules = [path.stem for path in (_PACKAGE / "_frontend").glob("*.py")]
    assert {"config", "session", "steps", "switch"} <= set(modules)
    text = "import importlib, sys\n" + "".join(f"importlib.import_module('rankprobe._frontend.{name}')\n" for name in modules)
    done = _python(text + "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'mindspore', 'numpy')])")
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_the_list_of_functions_comes_along() -> None:
    names = json.loads((_PACKAGE / "mindspore" / "data" / "apis.json").read_text())
    assert set(names) == {"Functional", "Tensor", "Mint", "MintFunctional", "Distributed", "MintDistributed"}
    assert "relu" in names["Functional"] and "reshape" in names["Tensor"] and "matmul" in names["Mint"]
