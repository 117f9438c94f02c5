# SPDX-License-Identifier: Apache-2.0
"""The documents against the tree and the programs. Needs no PyTorch but for the walkthroughs."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release"))


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture(scope="session")
def build() -> pathlib.Path:
    return BUILD


@pytest.fixture(scope="session")
def tracked() -> list[pathlib.Path]:
    """Every file of the repository."""
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout
    return [ROOT / line for line in out.splitlines() if (ROOT / line).is_file()]


def documents() -> list[pathlib.Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "agent/python/README.md", ROOT / "tests/features.md",
                   ROOT / "tests/attack/README.md", ROOT / "tests/view/README.md", ROOT / "tests/workloads/README.md", ROOT / "tests/golden/README.md"])
