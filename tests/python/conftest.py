# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a PrecisionDebugger of its own for each test; a real collector on an ephemeral port."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any, Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

import harness

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


@pytest.fixture
def dump(tmp_path: pathlib.Path) -> "Dump":
    return Dump(tmp_path)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    from rankprobe.pytorch import PrecisionDebugger

    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()


@pytest.fixture
def start_collector(tmp_path: pathlib.Path):
    running = []

    def start(*flags: str) -> harness.Collector:
        directory = tmp_path / f"collector{len(running)}"
        directory.mkdir()
        running.append(harness.Collector(directory, *flags).start())
        return running[-1]

    yield start
    for collector in running:
        if collector.process.poll() is None:
            assert collector.stop() == 0, collector.log_text()[-2000:]


@pytest.fixture
def collector(start_collector):
    return start_collector()


class Dump:
    """A dump_path, its config and what lies in it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.path = directory / "dump"
        self.config_path = directory / "config.json"

    def config(self, task: str = "statistics", level: str = "L1", section: dict | None = None, **top: Any) -> str:
        data = {"task": task, "dump_path": str(self.path), "rank": [], "step": [], "level": level,
                "risk_level": "ALL", **top}
        if section is not None:
            data[task] = section
        self.config_path.write_text(json.dumps(data))
        return str(self.config_path)

    def debugger(self, **kwargs: Any) -> Any:
        from rankprobe.pytorch import PrecisionDebugger

        return PrecisionDebugger(config_path=self.config(**kwargs))

    def rank_directory(self, step: int = 0) -> pathlib.Path:
        from rankprobe.pytorch import PrecisionDebugger

        if PrecisionDebugger._instance is not None:
            PrecisionDebugger.wait_exported()
        (directory,) = (self.path / f"step{step}").iterdir()
        return directory

    def data(self, step: int = 0, file: str = "dump.json") -> dict:
        return json.loads((self.rank_directory(step) / file).read_text())["data"]
