# SPDX-License-Identifier: Apache-2.0
"""Programs of public reports give the same bits and the same words with and without rankprobe. RANKPROBE_HARMLESS=all: all of them
(stage harmless); else ten, in fewer modes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Iterator

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]

import harness  # noqa: E402
from programs import DEFAULT, PROGRAMS  # noqa: E402

pytest.importorskip("torch")
ALL = os.environ.get("RANKPROBE_HARMLESS") == "all"
NAMES = list(PROGRAMS) if ALL else list(DEFAULT)
MODES = ["L0:statistics", "L1:statistics", "mix:statistics", *(["mix:tensor", "switched"] if ALL else [])]


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Collector]:
    running = harness.Collector(tmp_path_factory.mktemp("collector")).start()
    yield running
    assert running.stop() == 0


def _answers(words: list[str], directory: pathlib.Path, address: str, seconds: float = 240) -> list[dict]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RANKPROBE_")}
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=seconds,
                          env={**environment, "RANKPROBE_COLLECTOR": address, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
            collector: harness.Collector) -> dict[str, list[dict]]:
    """Of all programs whose tests are run, off and in all modes: torch is imported once for them."""
    names = list(dict.fromkeys(item.callspec.params["name"] for item in request.session.items
                               if item.fspath == request.node.fspath and "answers" in item.fixturenames))
    told = _answers([sys.executable, str(HERE / "runner.py"), ",".join(names), "off", *MODES],
                    tmp_path_factory.mktemp("programs"), collector.address, 3600)
    return {name: [answer for answer in told if answer["program"] == name] for name in names}


def test_the_table_names_each_program_and_its_report() -> None:
    rows = [line for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert rows == [f"| {name} | {report} |" for name, (report, _) in PROGRAMS.items()]


@pytest.mark.parametrize("name", NAMES)
def test_the_debugger_changes_nothing(name: str, answers: dict[str, list[dict]]) -> None:
    plain, *watched = answers[name]
    assert plain["error"] == "" and [answer["mode"] for answer in watched] == MODES
    for answer in watched:
        assert answer.pop("faults") == 0, answer
        assert {**answer, "mode": "off"} == plain, answer["mode"]


@pytest.mark.parametrize("name, how", [(name, "--on") for name in (NAMES if ALL else NAMES[:4])]
                         + [(name, "idle") for name in (DEFAULT if ALL else ())])
def test_rankprobe_run_changes_nothing(name: str, how: str, answers: dict[str, list[dict]], tmp_path: pathlib.Path,
                                       collector: harness.Collector) -> None:
    """idle: nothing is recorded."""
    words = [sys.executable, str(HERE / "runner.py"), name, "off"]
    attach = [sys.executable, "-m", "rankprobe.run", "--run", f"run-{name}", *([how] if how == "--on" else []), "--"]
    assert _answers([*attach, *words], tmp_path, collector.address) == answers[name][:1]
