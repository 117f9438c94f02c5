# SPDX-License-Identifier: Apache-2.0
"""A collector, and a training of MindSpore's that knows nothing of rankprobe and is recorded while it runs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

import harness  # noqa: E402
from conftest import HERE  # noqa: E402
from polling import wait_for  # noqa: E402

TRAIN = HERE / "plain_train.py"


@pytest.fixture
def collector(tmp_path: pathlib.Path) -> Iterator[harness.Collector]:
    directory = tmp_path / "collector"
    directory.mkdir()
    running = harness.Collector(directory).start()
    yield running
    assert running.stop() == 0, running.log_text()[-2000:]


def attached(*words: object) -> list[str]:
    return [sys.executable, "-m", "rankprobe.run", *map(str, words)]


def trained(*words: object, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done


class Training:
    """plain_train.py, attached and idle until it is switched, that goes on until finish()."""

    def __init__(self, directory: pathlib.Path, collector: harness.Collector, run: str, *words: object) -> None:
        self.end, self.log, self.errors = directory / "end", directory / "out.log", directory / "err.log"
        self._collector, self._run = collector, run
        with open(self.log, "wb") as out, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [*attached("--collector", collector.address, "--run", run, *words, "--"), sys.executable, str(TRAIN), "1",
                 str(self.end)], stdout=out, stderr=errors)
        wait_for(self._connected, 120, "the rank")

    def _connected(self) -> bool:
        done = self._collector.cli("status", "--run", self._run, "--json", check=False)
        return done.returncode == 0 and any(agent["connected"] for agent in json.loads(done.stdout)["agents"])

    def steps(self) -> list[str]:
        """A line a step that is done."""
        return [line for line in self.log.read_text().splitlines(True) if line.startswith("STEP") and line.endswith("\n")]

    def wait_steps(self, count: int) -> None:
        target = len(self.steps()) + count
        wait_for(lambda: len(self.steps()) >= target, 120, f"{count} steps; {self.errors}")

    def recorded(self) -> list[int]:
        return sorted(int(s["step"]) for s in self._collector.json("status", "--run", self._run, "--steps").get("steps", []))

    def finish(self) -> None:
        """It ends well, and every step of it is that of the script alone."""
        self.end.write_text("")
        assert self.process.wait(120) == 0, self.errors.read_text()
        alone = trained(sys.executable, TRAIN, len(self.steps())).stdout
        assert self.steps() == [line for line in alone.splitlines(True) if line.startswith("STEP")], "the training is another one"

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def whole(self, steps: list[int]) -> None:
        """The ledger's account: of exactly these steps every record is stored, and nothing else was."""
        ledger = [json.loads(line) for line in self._collector.cli("ledger", "--run", self._run, "--json").stdout.splitlines()]
        assert [int(s["step"]) for s in ledger] == steps, ledger
        for step in ledger:
            assert step["state"] == "STATE_WHOLE" and not step.get("gaps"), step
            assert int(step["expected_records"]) == int(step["stored_records"]) > 10, step
            assert step["expected_payloads"] == step["stored_payloads"], step


@pytest.fixture
def training(tmp_path: pathlib.Path, collector: harness.Collector) -> Iterator:
    running: list[Training] = []

    def start(run: str, *words: object) -> Training:
        running.append(Training(tmp_path, collector, run, *words))
        return running[-1]

    yield start
    for job in running:
        job.kill()
