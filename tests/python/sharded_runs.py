# SPDX-License-Identifier: Apache-2.0
"""Dumps of programs that train on several gloo ranks, and what rankprobe says of them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Callable

import harness
import pytest

Record = Callable[..., pathlib.Path]
_HERE = pathlib.Path(__file__).resolve().parent


def recorder(tmp_path_factory: pytest.TempPathFactory, program: str) -> Record:
    """Runs PROGRAM LAYOUT FAULT DIRECTORY on ranks; each run is made once and gives the directory of its dump."""
    made: dict[tuple, pathlib.Path] = {}

    def run(layout: str, ranks: int = 1, fault: str = "none", level: str = "L0", task: str = "statistics") -> pathlib.Path:
        key = (layout, ranks, fault, level, task)
        if key in made:
            return made[key]
        directory = tmp_path_factory.mktemp("run")
        (directory / "config.json").write_text(json.dumps(
            {"task": task, "level": level, "rank": [], "step": [], "risk_level": "ALL", "dump_path": str(directory / "dump")}))
        processes = []
        for rank in range(ranks):
            several = {"RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
            log = (directory / f"log{rank}").open("w")
            processes.append(subprocess.Popen(
                [sys.executable, str(_HERE / program), layout, fault, str(directory)], stdout=log, stderr=log,
                env={**{k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "RANKPROBE_COLLECTOR")},
                     "RANKPROBE_RUN": directory.name, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **several}))
        try:
            codes = [process.wait(timeout=180) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert codes == [0] * ranks, "".join((directory / f"log{rank}").read_text()[-1500:] for rank in range(ranks))
        made[key] = directory / "dump"
        return made[key]

    return run


def cli(*arguments: object, code: int | None = None) -> str:
    """What it prints: with `code` of neither 0 nor 1 on standard error."""
    done = subprocess.run([str(harness.BIN / "rankprobe"), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode in ((0, 1) if code is None else (code,)), done.stderr
    return done.stdout if code in (None, 0, 1) else done.stderr


def calls(step: pathlib.Path) -> set[str]:
    names: set[str] = set()
    for path in step.glob("*/dump.json"):
        names |= set(json.loads(path.read_text())["data"])
    return names
