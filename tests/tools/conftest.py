# SPDX-License-Identifier: Apache-2.0
"""Programs that people use beside rankprobe, as PyPI has them (tests/stages/tools.sh). PyTorch is in another environment:
RANKPROBE_TORCH_PYTHON."""

from __future__ import annotations

import pathlib
import sys
from typing import Iterator

import numpy
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

import harness
import rankprobe


@pytest.fixture(scope="session")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Collector]:
    """It holds the run `train/1`, with a NaN from step 7 on."""
    directory = tmp_path_factory.mktemp("collector")
    one = harness.Collector(directory, "--export-root", directory).start()
    session = rankprobe.Session(one.address, run="train/1", rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    for step in range(10):
        session.start()
        session.call("Torch", "log", [numpy.ones(4, "f")], [numpy.full(4, numpy.nan if step >= 7 else 1.0, "f")])
        session.stop()
        session.step()
    session.close()
    harness.wait_for(lambda: "KIND_DISCONNECTED" in one.cli("events", "--json").stdout, 60, "the end of the run")
    yield one
    assert one.stop() == 0
