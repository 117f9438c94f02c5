"""Fixtures: a real collector on an ephemeral port."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

import harness  # noqa: E402


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
