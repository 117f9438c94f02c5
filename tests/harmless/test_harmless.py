# SPDX-License-Identifier: Apache-2.0
"""Tests that programs of public reports give the same bits and the same output with and without rankprobe. RANKPROBE_HARMLESS=all runs
all of them (stage harmless), otherwise ten in fewer modes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]

import harness  # noqa: E402

pytest.importorskip("torch")

import runner  # noqa: E402
from programs import DEFAULT, PROGRAMS  # noqa: E402

ALL = os.environ.get("RANKPROBE_HARMLESS") == "all"
NAMES = list(PROGRAMS) if ALL else list(DEFAULT)
MODES = ["L0:statistics", "L1:statistics", "mix:statistics", "monitored", *(["mix:tensor", "switched", "flight", "attached"] if ALL else [])]
# Task monitor calls methods of tensors that this program replaces and counts (docs/pytorch.md).
COUNTS_MONITOR = "methods_of_tensors_are_counted"
FLIGHT = {"flight": {"steps": 2, "level": "mix"}, "rules": [{"name": "nan", "non_finite": {"nan_only": True}, "max_fires": 1}]}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment variables with the addresses of a collector, and of one that requests a flight recorder."""
    top = tmp_path_factory.mktemp("collectors")
    (top / "flight.json").write_text(json.dumps(FLIGHT))
    running = [harness.Collector(top / "plain").start(), harness.Collector(top / "flight", "--triggers", top / "flight.json").start()]
    yield {"RANKPROBE_COLLECTOR": running[0].address, "COLLECTOR_WITH_FLIGHT_RECORDER": running[1].address}
    assert [collector.stop() for collector in running] == [0, 0]


def _process(words: list[str], directory: pathlib.Path, addresses: dict[str, str], seconds: float = 240) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RANKPROBE_")}
    # `fail` waits for the collector, so that the flight recorder is active from the first step on.
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=seconds,
                          env={**environment, **addresses, "RANKPROBE_ON_COLLECTOR_MISSING": "fail", "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
            addresses: dict[str, str]) -> dict[str, list[dict]]:
    """Results of all programs whose tests are selected, off and in all modes. torch is imported only once for each processor."""
    names = list(dict.fromkeys(item.callspec.params["name"] for item in request.session.items
                               if item.fspath == request.node.fspath and "answers" in item.fixturenames))
    jobs = int(os.environ.get("RANKPROBE_JOBS") or os.cpu_count() or 1) if ALL else 1
    shares = [names[job::jobs] for job in range(min(jobs, len(names)))]
    with ThreadPoolExecutor(len(shares)) as pool:
        runs = list(pool.map(lambda share: _process([sys.executable, str(HERE / "runner.py"), ",".join(share), "off", *MODES],
                                                    tmp_path_factory.mktemp("programs"), addresses, 3600), shares))
    assert [run.returncode for run in runs] == [0] * len(runs), [run.stderr for run in runs]
    told = [json.loads(line) for run in runs for line in run.stdout.splitlines()]
    return {name: [answer for answer in told if answer["program"] == name] for name in names}


def test_the_table_names_each_program_and_its_report() -> None:
    rows = [line for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert rows == [f"| {name} | {report} |" for name, (report, _) in PROGRAMS.items()]


@pytest.mark.parametrize("name", NAMES)
def test_the_debugger_changes_nothing(name: str, answers: dict[str, list[dict]]) -> None:
    plain, *watched = answers[name]
    assert plain["code"] == 0 and "digest" in plain, plain
    assert [answer["mode"] for answer in watched] == MODES
    for answer in watched:
        counted = {"stdout": plain["stdout"]} if (name, answer["mode"]) == (COUNTS_MONITOR, "monitored") else {}
        assert {**answer, **counted, "mode": "off"} == plain, answer["mode"]


@pytest.mark.parametrize("name, how", [(name, how) for name in (DEFAULT if ALL else DEFAULT[:4]) for how in ("--on", "idle")
                                       if ALL or how == "--on"])
def test_rankprobe_run_changes_nothing(name: str, how: str, answers: dict[str, list[dict]], tmp_path: pathlib.Path,
                                       addresses: dict[str, str]) -> None:
    """Runs the program under the command, which attaches from the start of the process. With `idle` nothing is recorded."""
    words = [sys.executable, str(HERE / "runner.py"), "--here", name, "off"]
    attach = [sys.executable, "-m", "rankprobe.run", "--run", f"run-{name}", *([how] if how == "--on" else []), "--"]
    done = _process([*attach, *words], tmp_path, addresses)
    answer = runner.collected(tmp_path, done.returncode, done.stdout, done.stderr)
    assert {"program": name, "mode": "off", **answer} == answers[name][0]
