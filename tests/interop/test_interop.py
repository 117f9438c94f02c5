# SPDX-License-Identifier: Apache-2.0
"""Every scenario under the real msprobe and under rankprobe: the same trees.

Differences that are meant are listed, with reasons, in
intended_differences.json; anything else fails. Those that are asked for run once, in
forks of one warm process (runner.py), before the first test.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import peer
import scenarios
import trees
from selected import names_of

HERE = pathlib.Path(__file__).parent
INTENDED = json.loads((HERE / "intended_differences.json").read_text())


@pytest.fixture(scope="session")
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    kept = os.environ.get("INTEROP_OUT")
    directory = pathlib.Path(kept) if kept else tmp_path_factory.mktemp("interop")
    done = subprocess.run([sys.executable, str(HERE / "runner.py"), str(directory), *names_of(request)], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (directory / "runner.log").write_text(done.stdout)
    return directory


def _log(directory: pathlib.Path) -> str:
    return "".join(f"--- {log}\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(directory.glob("log*")))


def test_there_are_enough_scenarios() -> None:
    assert len(scenarios.SCENARIOS) >= 25


@pytest.mark.parametrize("name", list(scenarios.SCENARIOS))
def test_same_tree(out: pathlib.Path, name: str) -> None:
    directory = out / name
    for tool in ("msprobe", "rankprobe"):
        assert f"{name} {tool} ended with" not in (out / "runner.log").read_text(), _log(directory / tool)
        assert list((directory / tool / "dump").glob("step*/*")), f"{tool} wrote nothing: {_log(directory / tool)}"
    meant = [re.compile(d["where"]) for d in INTENDED if d["scenario"] == name]
    unmeant = [line for line in trees.differences(directory / "msprobe" / "dump", directory / "rankprobe" / "dump")
               if not any(pattern.search(line) for pattern in meant)]
    assert not unmeant, f"{len(unmeant)} differences (msprobe / rankprobe):\n" + "\n".join(unmeant[:40])


def test_every_intended_difference_names_a_scenario_and_a_reason() -> None:
    for difference in INTENDED:
        assert difference["scenario"] in scenarios.SCENARIOS
        assert len(difference["reason"]) > 40


@pytest.mark.parametrize("name", ["cnn_mix", "transformer_mix"])
def test_msprobe_compares_our_export(out: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    """`msprobe compare` takes our tree beside its own and finds no difference."""
    paths = [next((out / name / tool / "dump" / "step0").iterdir()) / "dump.json" for tool in ("msprobe", "rankprobe")]
    status, text = peer.run("compare", "-tp", paths[1], "-gp", paths[0], "-o", tmp_path, directory=tmp_path)
    assert status == 0, text[-4000:]
    tables = [p for p in tmp_path.rglob("*") if p.suffix in (".csv", ".xlsx")]
    assert tables, text[-3000:]


@pytest.mark.parametrize("name", ["cnn_mix"])
def test_msprobe_draws_our_export(out: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    """`msprobe graph_visualize` builds a graph from our tree."""
    directory = next((out / name / "rankprobe" / "dump" / "step0").iterdir())
    status, text = peer.run("graph_visualize", "-tp", directory, "-o", tmp_path, directory=tmp_path)
    assert status == 0, text[-4000:]
    assert list(tmp_path.rglob("*.vis.db")), text[-3000:]
