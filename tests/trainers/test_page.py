# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/trainers.md and docs/debug-mode.md are run as they are."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import walkthrough

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _typed(page: str, directory: pathlib.Path) -> str:
    """What its commands print."""
    build = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release"))
    blocks = walkthrough.blocks(ROOT / "docs" / page)
    done = subprocess.run(["bash", "--norc", "-c", walkthrough.script(blocks)], cwd=directory, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300,
                          env={**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{build}/bin:{os.environ['PATH']}",
                               "PYTHONPATH": str(build / "python"), "RANKPROBE_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0 and not walkthrough.faults(blocks, done.stdout), done.stdout
    return done.stdout


def test_the_page_of_trainers(tmp_path: pathlib.Path) -> None:
    said = _typed("trainers.md", tmp_path)
    assert "a step is one of transformers.Trainer" in said and said.split()[-3:] == ["manifest.json", "step0", "step1"], said


def test_the_page_of_debug_mode(tmp_path: pathlib.Path) -> None:
    said = _typed("debug-mode.md", tmp_path)
    assert said.count("    [nn.Mod] Sequential.0\n") == 2 and said.count("torch._C._nn.linear(t: f32[2, 4], ") == 2, said
