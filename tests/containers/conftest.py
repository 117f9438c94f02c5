# SPDX-License-Identifier: Apache-2.0
"""Podman on this machine, as tests/stages/containers.sh has set it up. Whoever starts
a container ends it, and says so with its name; nothing is left."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "lib"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("RANKPROBE_CONTAINERS") != "yes":
        for item in items:
            item.add_marker(pytest.mark.skip(reason="no image: run by tests/run.sh --stage containers"))


def command(*words: Any, check: bool = True, seconds: float = 300, text: bool = True) -> subprocess.CompletedProcess:
    result = subprocess.run([*map(str, words)], capture_output=True, text=text, timeout=seconds, cwd=ROOT)
    assert not check or result.returncode == 0, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def podman(*words: Any, **options: Any) -> subprocess.CompletedProcess:
    return command("podman", *words, **options)


def left_over() -> list[str]:
    """What podman still has, besides images and the network that it always has."""
    found = []
    for kind, words in {"container": ["ps", "--all"], "pod": ["pod", "ls"], "volume": ["volume", "ls"],
                        "network": ["network", "ls"]}.items():
        names = podman(*words, "--format", "{{.Names}}" if kind == "container" else "{{.Name}}").stdout.split()
        found += [f"{kind} {name}" for name in names if name != "podman"]
    return found


class Collector:
    """The commands of a collector in a container, as its operator."""

    def __init__(self, container: str):
        self.container = container

    def cli(self, *words: Any, **options: Any) -> subprocess.CompletedProcess:
        return podman("exec", self.container, "rankprobe", *words, **options)

    def ranks(self, run: str) -> dict[int, dict]:
        """The ranks of the run by number; none while it is not there."""
        result = self.cli("status", "--run", run, "--json", check=False)
        if result.returncode != 0:
            return {}
        return {a["identity"].get("rank", 0): a for a in json.loads(result.stdout).get("agents", [])}

    def connected(self, run: str) -> set[int]:
        return {rank for rank, agent in self.ranks(run).items() if agent.get("connected")}

    def step(self, run: str) -> int:
        """The step that the slowest rank is at."""
        return min((int(agent.get("step", 0)) for agent in self.ranks(run).values()), default=0)
