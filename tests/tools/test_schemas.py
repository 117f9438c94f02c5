# SPDX-License-Identifier: Apache-2.0
"""The output of every command with --json fits the schema that `rankprobe schema` prints of it, by the package jsonschema of PyPI."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Iterator

import jsonschema
import numpy
import pytest

import harness
import rankprobe

DUMPS = pathlib.Path(__file__).resolve().parents[1] / "golden/dumps"
# A reference of isolate is a dump of task tensor, and acc_check wants a dump.json; both are made by this.
PROGRAM = """
import sys, torch
from rankprobe.pytorch import PrecisionDebugger
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
debugger = PrecisionDebugger(config_path=sys.argv[1]) if sys.argv[1:] else None
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if debugger: debugger.start(model=model)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
if debugger:
    debugger.stop()
    debugger.step()
"""


class Commands:
    """asked: the commands whose output was validated."""

    def __init__(self, collector: harness.Collector, directory: pathlib.Path) -> None:
        self.collector, self.directory = collector, directory
        self.asked: set[str] = set()

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "RANKPROBE_COLLECTOR": self.collector.address, "RANKPROBE_PYTHON": os.environ.get("RANKPROBE_TORCH_PYTHON", sys.executable)}
        return subprocess.run([harness.BIN / "rankprobe", *words], capture_output=True, text=True, cwd=self.directory, env=environment, timeout=200)

    def valid(self, command: str, *words: str) -> list[Any]:
        """`command` with --json and `words`: each line is validated, and there is one."""
        schema = json.loads(self.cli("schema", *command.split()).stdout)
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        verbs = command.split()
        asked = [*verbs, "--json", *words] if verbs[0] in ("check", "doctor", "isolate", "merge_result") else ["--json", *verbs, *words]
        done = self.cli(*asked)
        assert done.returncode in (0, 1), (asked, done.stdout, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, (asked, done.stderr)
        for line in lines:
            validator.validate(line)
        # A key that is missing and one that is not known are faults by it.
        assert not validator.is_valid({**lines[0], "other": 1})
        if lines[0]:
            assert not validator.is_valid(dict(list(lines[0].items())[1:])), command
        self.asked.add(command)
        return lines


@pytest.fixture(scope="module")
def commands(collector: harness.Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    directory = tmp_path_factory.mktemp("commands")
    (directory / "train.py").write_text(PROGRAM)
    yield Commands(collector, directory)


def step(name: str) -> str:
    return str(DUMPS / name / "step0")


def test_of_dumps(commands: Commands) -> None:
    here = commands.directory
    commands.valid("overflow_check", "-i", step("cnn_stat_mix"), "-o", "overflow", "--force")
    commands.valid("first-divergence", step("cnn_stat_mix"), step("cnn_stat_L1"), "--force")
    commands.valid("replicas", step("ddp_stat_mix"), "--gradients", "--force")
    commands.valid("diagnose", step("weird_stat_mix"), "--force")
    commands.valid("compare", "--target_path", step("ddp_stat_mix"), "--golden_path", step("ddp_stat_mix"), "-o", "tables", "--force")
    (here / "merge.yaml").write_text("api:\n  - Functional.linear\n")
    commands.valid("merge_result", "tables", "--output_dir", "merged", "--config-path", "merge.yaml")
    commands.valid("graph_visualize", "--target_path", step("cnn_stat_mix"), "--golden_path", step("cnn_stat_mix"), "-o", "graph", "--force")


def test_of_programs_in_python(commands: Commands) -> None:
    here = commands.directory
    (here / "config.json").write_text(json.dumps({"task": "tensor", "dump_path": str(here / "reference"), "rank": [], "step": [], "level": "mix"}))
    python = os.environ["RANKPROBE_TORCH_PYTHON"]
    made = subprocess.run([python, "train.py", "config.json"], cwd=here, capture_output=True, text=True, timeout=200)
    assert made.returncode == 0, made.stderr
    dump = next(here.glob("reference/step0/*/dump.json"))
    commands.valid("config_check", str(dump.parents[1]), str(dump.parents[1]))
    commands.valid("acc_check", "-api_info", str(dump), "-o", "checked")
    details = next((here / "checked").glob("*details*.csv"))
    commands.valid("acc_check", "--compare", str(details), str(details), "-o", "both")
    assert commands.valid("acc_check", "-api_info", str(dump), "--repeat", "2")[0]["runs"] == 2
    answer = commands.valid("isolate", "--reference", str(here / "reference/step0"), "--", python, "train.py")[0]
    assert answer["ranks"]
    assert commands.valid("check", "--update", "golden.json", "--", python, "train.py")[0]["updated"]
    (here / "other.py").write_text(PROGRAM.replace("ReLU", "GELU").replace("torch.ones(2, 4)", "torch.full((2, 4), torch.inf)"))
    assert commands.valid("check", "golden.json", "--", python, "other.py")[0]["differences"]
    assert commands.valid("doctor")[0]["findings"]


def test_of_a_run(commands: Commands) -> None:
    here = commands.directory
    run = ("--run", "train/1")
    (here / "plan.json").write_text('{"task": "statistics", "dump_path": "d", "level": "mix"}')
    (here / "triggers.json").write_text('{"flight": {"steps": 4, "level": "mix"}, "rules": [{"name": "nan", "non_finite": {"nan_only": true}}]}')
    session = rankprobe.Session(commands.collector.address, run="live", rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    for value in range(3):
        session.start()
        session.call("Torch", "log", [numpy.ones(4, "f")], [numpy.full(4, value, "f")])
        session.stop()
        session.step()
    commands.valid("runs")
    commands.valid("status")
    assert commands.valid("status", *run, "--steps")[0]["steps"]
    assert commands.valid("events", *run)[0]["events"]
    lines = commands.valid("watch", *run, "--rounds", "1")
    assert {key for line in lines for key in line} >= {"event", "agents"}
    assert len(commands.valid("ledger", *run)) > 9
    assert len(commands.valid("query", *run)) > 1
    commands.valid("query", *run, "--over-ranks")
    commands.valid("query", *run, "--names")
    assert commands.valid("scan", *run)[0]["findings"]
    answer = commands.valid("diagnose", "run:train/1")[0]
    assert answer["findings"]
    commands.valid("overflow_check", "run:train/1@7")
    commands.valid("first-divergence", "run:train/1@7", "run:train/1@6")
    commands.valid("explain", "--run", "live")
    commands.valid("config set", "plan.json", "--run", "live", "--no-wait")
    commands.valid("config get", "--run", "live")
    commands.valid("triggers set", "triggers.json", "--run", "live")
    commands.valid("triggers get", "--run", "live")
    commands.valid("flight", "--run", "live")
    commands.valid("enable", "--run", "live", "--for-steps", "2", "--no-wait")
    commands.valid("disable", "--run", "live", "--no-wait")
    commands.valid("export", *run, "-o", "exported")
    commands.valid("export", *run, "--format", "parquet", "-o", "values.parquet")
    commands.valid("verify")
    commands.valid("backup", str(commands.collector.directory / "backup"))
    (here / "spool").mkdir()
    commands.valid("deliver", str(here / "spool"))
    session.close()
    commands.valid("delete", "--run", "live")


def test_of_a_page(commands: Commands) -> None:
    with subprocess.Popen([harness.BIN / "rankprobe", "--json", "view", "--port", "0", "--no-open"], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "RANKPROBE_COLLECTOR": commands.collector.address}) as server:
        try:
            line = json.loads(server.stdout.readline())
        finally:
            server.terminate()
    jsonschema.validate(line, json.loads(commands.cli("schema", "view").stdout))
    commands.asked.add("view")


def test_no_command_is_left_out(commands: Commands) -> None:
    left = set(commands.cli("schema").stdout.splitlines()) - commands.asked
    assert left == {"align"}, left  # tests/python/test_align.py has a server and its reference
    assert commands.cli("schema", "top").returncode == 4
