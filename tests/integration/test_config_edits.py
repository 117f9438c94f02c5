# SPDX-License-Identifier: Apache-2.0
"""config.json is edited while the job runs: file and operator, the newest wins (design.md, "Who decides").

One table for every kind of job; what a job records is read from its own step
log and from the tree. A private collector is for Python only.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Callable, Optional

import harness
import pytest

torch = pytest.importorskip("torch")

_EDIT_JOB = pathlib.Path(__file__).with_name("edit_job.py")


def _config(on: bool, task: str = "statistics", level: str = "L1", dump_path: str = "./dump") -> str:
    return json.dumps({"task": task, "dump_path": dump_path, "rank": [], "step": [], "level": level,
                       "risk_level": "ALL", "dump_enable": on, task: {}})


BAD_JSON, BAD_FIELD = '{"task": "statistics", ', '{"task": "statistic", "dump_path": "./dump", "dump_enable": true}'


@dataclasses.dataclass(frozen=True)
class Row:
    """What is done, and what every rank records then."""

    name: str
    file: Optional[Callable[[str], str]] = None
    operator: Optional[str] = None
    on: bool = True
    task: str = "statistics"
    source: str = "SOURCE_FILE"
    fault: str = ""


# Each row begins where the one before ended.
TABLE = [
    Row("off to on", file=lambda d: _config(True, dump_path=d)),
    Row("field change", file=lambda d: _config(True, "tensor", dump_path=d), task="tensor"),
    Row("on to off", file=lambda d: _config(False, "tensor", dump_path=d), on=False),
    Row("operator after file off", operator="enable", task="tensor", source="SOURCE_OPERATOR"),
    Row("file after operator", file=lambda d: _config(False, dump_path=d), on=False),
    Row("bad while off", file=lambda d: BAD_JSON, on=False, fault="not valid JSON"),
    Row("mended", file=lambda d: _config(True, dump_path=d)),
    Row("bad while on", file=lambda d: BAD_FIELD, on=False, fault="task"),
    Row("operator after bad", operator="enable", source="SOURCE_OPERATOR"),
    Row("operator after operator", operator="disable", on=False, source="SOURCE_OPERATOR"),
    Row("mended after operator", file=lambda d: _config(True, "tensor", dump_path=d), task="tensor"),
]


class PythonJob:
    """Ranks of edit_job.py that share a config file; a collector of their own when `collector` is None."""

    def __init__(self, directory: pathlib.Path, collector: Optional[str], world_size: int, schedule: Optional[dict] = None,
                 rank_ids: Optional[list] = None):
        directory.mkdir()
        self.stop_file, self.config = directory / "stop", directory / "config.json"
        self.dump_path = str(directory / "dump")
        self.config.write_text(_config(False, dump_path=self.dump_path))
        self.ranks = []
        for r in range(world_size):
            env = {**os.environ, "PYTHONPATH": str(harness.BUILD / "python"), "RANKPROBE_RUN": "edits"}
            env.pop("RANKPROBE_COLLECTOR", None)
            if collector is not None:
                env["RANKPROBE_COLLECTOR"] = collector
            if rank_ids is None:
                env.update(RANK=str(r), WORLD_SIZE=str(world_size))
            step_log, log = directory / f"steps-{r}.jsonl", directory / f"rank-{r}.log"
            words = [sys.executable, _EDIT_JOB, "--config", self.config, "--step-log", step_log,
                     "--stop-file", self.stop_file, "--schedule", json.dumps(schedule or {})]
            if rank_ids is not None:
                words += ["--rank-id", str(rank_ids[r])]
            with open(log, "wb") as out:
                process = subprocess.Popen(list(map(str, words)), stdout=out, stderr=out, env=env)
            self.ranks.append(harness.Rank(r, process, step_log, log))

    def began(self) -> dict:
        return harness.wait_for(lambda: all(r.steps() for r in self.ranks) and self.ranks[0].steps()[0], 60, "the job")

    def steps(self, rank: int) -> list[dict]:
        return [s for s in self.ranks[rank].steps() if "step" in s]

    finish, end = harness.Job.finish, harness.Job.end


class CppJob(harness.Job):
    """train_transformer, small."""

    def __init__(self, directory: pathlib.Path, collector: str, world_size: int):
        directory.mkdir()
        self.dump_path = "./dump"
        super().__init__(directory, collector, "edits", json.loads(_config(False)), world_size,
                         extra=("--width=16", "--heads=2", "--blocks=1", "--length=16", "--batch=1"))
        self.config = directory / "config.json"

    def began(self) -> dict:
        return harness.wait_for(lambda: all(r.steps() for r in self.ranks), 120, "the job")

    def steps(self, rank: int) -> list[dict]:
        return self.ranks[rank].steps()


def _settled(job, on: bool, since: list[int]) -> bool:
    """Every rank has gone on and does now what it should."""
    for rank in range(len(job.ranks)):
        assert job.ranks[rank].process.poll() is None, job.ranks[rank].log.read_text()[-2000:]
        steps = job.steps(rank)
        if len(steps) < since[rank] + 3 or any(s["dumping"] != on for s in steps[-2:]):
            return False
    return True


def _run_table(job, client: harness.Collector) -> None:
    """Goes through TABLE with a live job."""
    for row in TABLE:
        since = [len(job.steps(r)) for r in range(len(job.ranks))]
        if row.file is not None:
            fresh = job.config.with_suffix(".new")
            fresh.write_text(row.file(job.dump_path))
            fresh.rename(job.config)
        else:
            client.cli(row.operator, "--run", "edits", "--wait", "60")

        def arrived() -> bool:
            # The step logs first: a question to the collector is a process each time.
            if not _settled(job, row.on, since):
                return False
            got = client.json("config", "get", "--run", "edits")
            return (got.get("source") == row.source and got.get("enabled", False) == row.on
                    and row.fault in got.get("config_fault", "")
                    and (row.fault != "" or got.get("config_fault", "") == "")
                    and (not row.on or json.loads(got["config_json"])["task"] == row.task))

        def told(agent: dict) -> bool:
            """What a rank does and found the collector hears from the rank, a moment later."""
            fault = agent.get("config_fault", "")
            return agent.get("dumping", False) == row.on and (
                row.fault in fault if row.fault else row.file is None or not fault)

        harness.wait_for(arrived, 90,
                         lambda: f"row '{row.name}': {client.cli('config', 'get', '--run', 'edits').stdout}")
        harness.wait_for(lambda: all(told(agent) for agent in client.json("status", "--run", "edits")["agents"]), 60,
                         lambda: f"row '{row.name}': {client.cli('status', '--run', 'edits').stdout}")


def _changes(job, rank: int) -> list[tuple[int, bool]]:
    """The steps in which a rank's recording went on or off."""
    steps = job.steps(rank)
    return [(s["step"], s["dumping"]) for before, s in zip(steps, steps[1:]) if before["dumping"] != s["dumping"]]


def _check_shared(job, collector: harness.Collector, tmp_path: pathlib.Path) -> None:
    _run_table(job, collector)
    assert job.finish() == [0, 0]
    wanted: dict[int, set[str]] = {}
    for rank in range(2):
        for step in job.steps(rank):
            if step["dumping"]:
                wanted.setdefault(step["step"], set()).add(f"rank{rank}")
    out = tmp_path / "tree"
    collector.cli("export", "--run", "edits", "-o", out)
    assert harness.tree_ranks(out) == wanted
    tasks = [json.loads((out / f"step{s}" / "rank0" / "dump.json").read_text())["task"]
             for s in sorted(wanted) if "rank0" in wanted[s]]
    changes = [t for before, t in zip([""] + tasks, tasks) if t != before]
    assert changes == ["statistics", "tensor", "statistics", "tensor"]
    # One line for each fault and rank.
    for rank in job.ranks:
        assert rank.log.read_text().count("cannot be used; dumping is off") == 2, rank.log.read_text()


@pytest.fixture
def python_job(tmp_path):
    jobs = []

    def start(*args, **kwargs) -> PythonJob:
        jobs.append(PythonJob(tmp_path / f"job{len(jobs)}", *args, **kwargs))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


def test_shared_collector_python(collector, python_job, tmp_path) -> None:
    job = python_job(collector.address, 2)
    job.began()
    _check_shared(job, collector, tmp_path)


def test_shared_collector_cpp(collector, tmp_path) -> None:
    job = CppJob(tmp_path / "job", collector.address, 2)
    try:
        job.began()
        _check_shared(job, collector, tmp_path)
        # Ranks that train in step change in the same step.
        assert _changes(job, 0) == _changes(job, 1)
    finally:
        job.end()


def test_private_collector_takes_an_edit_in_the_start_that_follows_it(python_job, tmp_path) -> None:
    """In a tight loop too; then the operator and the file in turn."""
    job_directory = tmp_path / "job0"
    dump = str(job_directory / "dump")
    schedule = {3: _config(True, dump_path=dump), 5: _config(True, "tensor", dump_path=dump),
                6: _config(False, dump_path=dump), 8: BAD_JSON, 9: _config(True, dump_path=dump), 10: BAD_FIELD,
                12: _config(True, "tensor", dump_path=dump), 13: _config(False, dump_path=dump)}
    job = python_job(None, 1, schedule)
    head = job.began()
    harness.wait_for(lambda: len(job.steps(0)) > 20, 60, "the schedule")
    recorded = {s["step"]: s["task"] for s in job.steps(0)[:17] if s["dumping"]}
    assert recorded == {3: "statistics", 4: "statistics", 5: "tensor", 9: "statistics", 12: "tensor"}
    assert job.ranks[0].log.read_text().count("cannot be used; dumping is off") == 2, job.ranks[0].log.read_text()

    client = harness.Collector(job_directory)
    client.port = int(head["collector"].rpartition(":")[2])
    (job_directory / "collector.log").touch()
    _run_table(job, client)
    assert job.finish() == [0]
    steps = {s["step"] for s in job.steps(0) if s["dumping"]}
    assert set(harness.tree_ranks(pathlib.Path(dump))) == steps
    assert steps >= set(recorded)


def test_two_processes_that_say_the_same_rank_id(collector, python_job) -> None:
    """B4: the second is refused by name, its training goes on; once the first has gone, it is taken."""
    first = python_job(collector.address, 1, rank_ids=[0])
    first.began()
    harness.wait_for(lambda: any(a["identity"].get("rank") is not None or "rank" in a["identity"]
                                 for a in collector.json("status", "--run", "edits")["agents"]), 30, "rank 0")
    second = python_job(collector.address, 1, rank_ids=[0])
    second.began()
    log = second.ranks[0].log
    harness.wait_for(lambda: "rank 0" in log.read_text(), 60, "the refusal")
    (line,) = [text for text in log.read_text().splitlines() if "rank 0" in text]
    for process in (first.ranks[0].process, second.ranks[0].process):
        assert str(process.pid) in line, line
    before = len(second.steps(0))
    harness.wait_for(lambda: len(second.steps(0)) > before + 5, 60, "the training")
    assert first.finish() == [0]

    def taken() -> bool:
        agents = collector.json("status", "--run", "edits")["agents"]
        return any(a["connected"] and str(a["identity"]["pid"]) == str(second.ranks[0].process.pid) for a in agents
                   if a.get("connected"))

    harness.wait_for(taken, 60, "the second to be taken")
    assert second.finish() == [0]
