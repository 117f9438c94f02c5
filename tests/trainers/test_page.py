# SPDX-License-Identifier: Apache-2.0
"""What docs/trainers.md tells to type is typed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import walkthrough

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_page_of_trainers(tmp_path: pathlib.Path) -> None:
    build = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release"))
    done = subprocess.run(["bash", "--norc", "-c", walkthrough.script(walkthrough.blocks(ROOT / "docs/trainers.md"))], cwd=tmp_path, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                          env={**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{build}/bin:{os.environ['PATH']}", "PYTHONPATH": str(build / "python"),
                               "RANKPROBE_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0 and not walkthrough.faults(walkthrough.blocks(ROOT / "docs/trainers.md"), done.stdout), done.stdout
    assert "a step is one of transformers.Trainer" in done.stdout and done.stdout.split()[-3:] == ["manifest.json", "step0", "step1"], done.stdout
