# SPDX-License-Identifier: Apache-2.0
"""First answers to a new user: about a name that was used twice, of a job without a collector of its own,
of replicas that parted."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import sys

import pytest

import harness
import rankprobe

PACKAGE = str(pathlib.Path(rankprobe.__file__).parents[1])
BINARY = str(harness.BIN / "rankprobe")


def cli(*words: object, cwd: pathlib.Path | None = None) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RANKPROBE_COLLECTOR")}
    return subprocess.run([BINARY, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def record(address: str, run: str, steps: int, values: dict[int, str], rank: int | None = 0, calls: int = 1, first: int = 0) -> None:
    """One process of a job; values: of steps whose call makes another number than 1."""
    program = f'''
import numpy, rankprobe
session = rankprobe.Session({address!r}, run={run!r}, rank={rank!r}, config_json='{{"dump_path": "d", "level": "mix"}}')
session.wait_connected(60)
session.set_init_step({first!r})
for step in range({first!r}, {first + steps!r}):
    session.start()
    for call in range({calls!r}):
        session.call("Torch", "log", [numpy.ones(3, numpy.float32)], [numpy.full(3, float({values!r}.get(step, "1")), numpy.float32)])
    session.stop()
    session.step()
session.close()
'''
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "RANKPROBE_JOB": f"{run} {first} {steps}"}  # as `rankprobe run` names each job
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rank", [0, None], ids=["rank 0", "no rank"])
def test_of_a_name_that_two_jobs_used_the_newest_is_judged(collector, rank: int | None):
    record(collector.address, "x", 8, {6: "nan"}, rank)
    record(collector.address, "x", 4, {}, rank)
    runs = collector.cli("runs").stdout
    assert "x: 2 jobs had this name; `rankprobe status --run x` says which steps are whose, `rankprobe diagnose run:x` judges the newest" in runs
    status = collector.cli("status", "--run", "x").stdout
    assert "2 jobs had the name of this run: job 1, process " in status and "(steps 0-7, until " in status and "(steps 0-3, until " in status
    newest = collector.cli("diagnose", "run:x", check=False)
    assert newest.returncode == 0 and newest.stdout.startswith("Run x has steps of 2 jobs: job 1, process "), newest.stdout
    assert "\nJudged: job 2, the newest. " in newest.stdout and "NaN" not in newest.stdout.split("Sound")[0], newest.stdout
    assert "Not judged: steps 0-7 of job 1\n  to judge it: rankprobe diagnose run:x --job 1\n" in newest.stdout
    first = collector.cli("diagnose", "run:x", "--job", "1", check=False)
    assert first.returncode == 1 and "First: step 6" in first.stdout and "\nJudged: job 1. " in first.stdout, first.stdout
    assert collector.cli("scan", "--run", "x", check=False).returncode == 0
    scan = collector.cli("scan", "run:x", "--job", 1, check=False)
    assert scan.returncode == 1 and "Judged: job 1" in scan.stdout, scan.stdout
    assert "notes" in json.loads(collector.cli("diagnose", "run:x", "--json").stdout)
    # As a dump it is the newest job's, too.
    whole = collector.cli("first-divergence", "run:x", "run:x", check=False)
    assert "Judged: job 2, the newest" in whole.stderr and "in the 4 calls" in whole.stdout, whole.stdout + whole.stderr
    whole = collector.cli("first-divergence", "run:x", "run:x", "--job", "1", check=False)
    assert "Judged: job 1. " in whole.stderr and "Judged: job 2, the newest" in whole.stderr, whole.stderr
    # Only the newest record of a rank can be read.
    theirs = "0-7" if rank is None else "4-7"
    assert f"has steps {theirs} and run:x has steps 0-3. Those with different numbers are compared when both are named, as " in (
        whole.stdout + whole.stderr), whole.stdout + whole.stderr
    assert ("a later job recorded steps 0-3 of job 1 again" in whole.stderr) == (rank is not None), whole.stderr
    replaced = collector.cli("overflow_check", "run:x@2", "--job", 1, check=False)
    assert (replaced.returncode, "a later job recorded step 2 of job 1 again" in replaced.stderr) == ((0, False) if rank is None else (5, True))
    none = collector.cli("diagnose", "run:x", "--job", "3", check=False)
    assert none.returncode == 2 and "--job 3: run x has 2 jobs: job 1, process " in none.stderr


def test_two_jobs_without_ranks_are_read_one_by_one(collector, tmp_path: pathlib.Path):
    record(collector.address, "x", 8, {6: "nan"}, None)
    record(collector.address, "x", 4, {}, None)
    for words in (["compare", "run:x", "run:x", "-o", tmp_path / "o"], ["overflow_check", "run:x@2"], ["diagnose", "run:x@2"]):
        done = collector.cli(*words, check=False)
        assert done.returncode == 0 and "Judged: job 2" in done.stderr, done.stdout + done.stderr
    # Of a step that the newest did not reach.
    done = collector.cli("overflow_check", "run:x@6", check=False)
    assert done.returncode == 1 and "made NaN" in done.stdout and "Judged: job 1. " in done.stderr, done.stdout + done.stderr
    # Of a range each step is that of the newest job that has it.
    done = collector.cli("compare", "run:x@0-7", "run:x@0-7", "-o", tmp_path / "r", check=False)
    assert done.returncode == 0 and done.stdout.count("rows, 0 error") == 8, done.stdout + done.stderr
    collector.cli("export", "--run", "x", "-o", tmp_path / "d")
    pids = sorted(int(place.name[4:]) for place in (tmp_path / "d" / "step0").iterdir())
    refused = cli("compare", tmp_path / "d", tmp_path / "d", "-o", tmp_path / "p")
    assert refused.returncode == 2 and f"2 jobs: job 1, process {pids[0]} (steps 0-" in refused.stderr, refused.stderr
    assert f"; job 2, process {pids[1]} (steps 0-" in refused.stderr and "choose one with --job N" in refused.stderr, refused.stderr
    longest = 1 if (tmp_path / "d" / "step6" / f"proc{pids[0]}").exists() else 2
    for job in (1, 2):
        done = cli("diagnose", tmp_path / "d", "--job", job)
        assert done.returncode == (job == longest) and f"Read: job {job}" in done.stdout, done.stdout + done.stderr
    done = cli("compare", tmp_path / "d", tmp_path / "d", "-o", tmp_path / "p", "--job", longest, "--reference-job", 3 - longest)
    assert done.returncode == 0 and done.stdout.count("rows, 0 error") == 4 and "has steps 0-7 and " in done.stdout, done.stdout + done.stderr
    # Each verb that reads dumps takes them, and what it makes of the dumps before it compares them.
    chosen = ["--job", longest, "--reference-job", longest]
    for words in (["first-divergence", "--layout", "auto"], ["first-divergence"], ["diagnose"], ["graph_visualize", "-o", tmp_path / "g"],
                  ["compare", "--layout", "auto", "-o", tmp_path / "q"]):
        done = cli(words[0], tmp_path / "d", tmp_path / "d", *words[1:], *chosen)
        assert done.returncode == (words[0] == "diagnose") and f"Read: job {longest}" in done.stdout + done.stderr, done.stdout + done.stderr
    done = cli("replicas", tmp_path / "d", "--job", longest)
    assert done.returncode == 2 and "has one rank only" in done.stderr, done.stderr
    done = cli("overflow_check", tmp_path / "d" / "step6", "--job", 3)
    assert done.returncode == 2 and "is of one job" in done.stderr, done.stderr


def test_a_job_that_goes_on_is_judged_with_the_one_before(collector):
    record(collector.address, "x", 3, {1: "nan"})
    record(collector.address, "x", 2, {}, first=3)
    said = collector.cli("diagnose", "run:x", check=False)
    assert said.returncode == 1 and "\nJudged together: " in said.stdout and "First: step 1" in said.stdout, said.stdout


def test_of_jobs_with_names_of_their_own_nothing_is_said(collector):
    for run in ("x", "y"):
        record(collector.address, run, 4, {})
    assert "jobs" not in collector.cli("diagnose", "run:y").stdout and "jobs" not in collector.cli("runs").stdout


def test_an_answer_about_a_run_names_no_temporary_directory(collector):
    record(collector.address, "old", 2, {}, calls=2)
    record(collector.address, "new", 2, {1: "2"}, calls=3)
    for words in (("run:new", "run:old"), ("run:new@1", "run:old@1"), ("--json", "run:new", "run:old")):
        said = collector.cli("first-divergence", *words, check=False)
        assert said.returncode == 1 and "run:new@" in said.stdout and "/tmp/" not in said.stdout + said.stderr, said.stdout + said.stderr
        assert os.environ.get("TMPDIR", "/tmp") not in said.stdout + said.stderr
    assert "run:new@0/rank0: Torch.log.2.forward is in this dump only" in collector.cli("first-divergence", "run:new", "run:old", check=False).stdout
    said = collector.cli("replicas", "run:new@0", check=False)
    assert "run:new@0: has one rank only" in said.stderr, said.stderr


TRAIN = '''
import sys, torch
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("over", flush=True)
sys.stdin.read()
'''


def start(directory: pathlib.Path, name: str = "x", **more: str) -> subprocess.Popen:
    directory.mkdir(exist_ok=True)
    (directory / "train.py").write_text(TRAIN)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RANKPROBE_COLLECTOR")}
    job = subprocess.Popen([sys.executable, "-m", "rankprobe.run", "--on", "--run", name, "--", sys.executable, "train.py"], cwd=directory,
                           env={**environment, "PYTHONPATH": PACKAGE, **more}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "over\n"
    return job


def end(job: subprocess.Popen, dump_path: pathlib.Path) -> None:
    job.communicate("", timeout=120)
    assert job.returncode == 0
    harness.wait_for(lambda: not (dump_path / ".rankprobe").exists(), 120, "the end of the private collector")


def test_status_finds_the_private_collectors_of_a_directory(tmp_path: pathlib.Path):
    here = tmp_path / "here"
    job = start(here)
    dump = here / "dump_path"
    try:
        for words, named, cwd in ((("status", dump), dump, None), (("status", here), dump, None), (("status", f"{dump}/.rankprobe"), dump, None),
                                  (("status", "dump_path"), "dump_path", here), (("status", "."), "./dump_path", here)):
            said = cli(*words, cwd=cwd)
            assert said.returncode == 0 and f"{named}: run x records here, into a private collector\n" in said.stdout, said.stdout + said.stderr
            assert "connected" in said.stdout and f"Next: rankprobe top --collector {named}\n" in said.stdout, said.stdout
        (agent,) = json.loads(cli("status", "--json", dump).stdout)["agents"]
        assert agent["identity"]["run"] == "x"
        # Every command takes the directory for its collector.
        assert "x " in cli("runs", "--collector", dump).stdout
        assert "of a directory, or of a run of a collector (--run), not both" in cli("status", dump, "--run", "x").stderr
        # Nobody was named: the job of this directory is found, and named where something may be changed.
        nobody = cli("enable", cwd=here)
        if nobody.returncode == 3:  # no collector at the usual port of this machine
            assert "; the job of ./dump_path has a private collector: --collector ./dump_path\n" in nobody.stderr, nobody.stderr
            assert "./dump_path: run x records here" in cli("status", cwd=here).stdout
    finally:
        end(job, dump)
    for words, named in ((("status", dump), dump), (("status", here), dump)):
        said = cli(*words)
        assert said.returncode == 0 and f"{named}: no job records here now; it holds steps 0-2 of run x\nNext: rankprobe diagnose {named}\n" in said.stdout
    said = cli("status", "--collector", dump)
    assert said.returncode == 3 and "no private collector answers there; `rankprobe status " in said.stderr, said.stderr
    # Two programs without ranks, neither of which is the newest.
    several = tmp_path / "several"
    for step, pid in itertools.product(range(2), (7, 8)):
        (several / f"step{step}" / f"proc{pid}").mkdir(parents=True)
        (several / f"step{step}" / f"proc{pid}" / "dump.json").write_text('{"task": "statistics", "level": "L1", "data": {}}')
    said = cli("status", several)
    assert said.returncode == 0 and f"{several}: no job records here now; it holds steps of 2 jobs: job 1, " in said.stdout, said
    assert "; --job N reads one of them\n" in said.stdout and f"Next: rankprobe diagnose {several} --job 1\n" in said.stdout
    (tmp_path / "empty").mkdir()
    said = cli("status", tmp_path / "empty")
    assert said.returncode == 4 and "no job records here into a private collector, and it holds no dump" in said.stderr, said.stderr
    nowhere = cli("status", tmp_path / "none")
    assert nowhere.returncode == 2 and "is not a directory" in nowhere.stderr


def test_a_second_job_of_the_same_name_in_one_dump_path_is_told_apart(tmp_path: pathlib.Path):
    here = tmp_path / "here"
    dump = here / "dump_path"
    end(start(here, RANK="0", WORLD_SIZE="1"), dump)
    (here / "config.json").write_text(json.dumps({"dump_path": "dump_path", "level": "mix", "step": [0]}))
    job = subprocess.run([sys.executable, "-m", "rankprobe.run", "--on", "--run", "x", "--config", "config.json", "--", sys.executable, "train.py"],
                         cwd=here, env={**os.environ, "PYTHONPATH": PACKAGE, "RANK": "0", "WORLD_SIZE": "1"}, input="", capture_output=True, text=True, timeout=120)
    assert job.returncode == 0, job.stderr
    harness.wait_for(lambda: not (dump / ".rankprobe").exists(), 120, "the end of the private collector")
    manifest = json.loads((dump / "manifest.json").read_text())
    assert {file["path"].split("/")[0] for file in manifest["files"]} == {"step0"}
    in_place = [one for one in manifest["earlier_runs"] if "directory" not in one]
    assert [{file["path"].split("/")[0] for file in one["files"]} for one in in_place] == [{"step1", "step2"}]
    said = cli("diagnose", dump)
    assert "Not judged: steps 1-2 of an earlier job (run x), which are in the same directory" in said.stdout, said.stdout


DRIFT = '''
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
torch.manual_seed(dist.get_rank())
for step in range(4):
    optimizer.zero_grad()
    with model.no_sync():
        model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
'''


@pytest.mark.parametrize("steps", [[], [3]], ids=["all steps", "a step behind it"])
def test_replicas_that_drifted_apart_are_no_shards(tmp_path: pathlib.Path, steps: list[int]):
    (tmp_path / "train.py").write_text(DRIFT)
    (tmp_path / "config.json").write_text(json.dumps({"dump_path": "dump", "level": "mix", "step": steps}))
    done = subprocess.run([sys.executable, "-m", "rankprobe.run", "--on", "--config", "config.json", "--", sys.executable, "-m", "torch.distributed.run",
                           "--standalone", "--nproc-per-node", "2", "train.py"], cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    harness.wait_for(lambda: not (tmp_path / "dump" / ".rankprobe").exists(), 120, "the end of the private collector")
    said = cli("diagnose", tmp_path / "dump")
    step = steps[0] if steps else 1
    assert said.returncode == 1 and said.stdout.startswith(f"First: step {step}, ") and "parameter that should be the same" in said.stdout, said.stdout
    assert "shards" not in said.stdout
    replicas = cli("replicas", tmp_path / "dump" / f"step{step}")
    assert replicas.returncode == 1 or steps == [], replicas.stdout


def test_a_monitored_program_that_fails_early_is_not_told_to_monitor(collector, tmp_path: pathlib.Path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
                      "model(torch.ones(1, 2))\nraise SystemExit(3)\n")
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "RANKPROBE_PYTHON": sys.executable}
    words = ["--collector", collector.address, "--run", "early", "--monitor", "--every", "1"]
    done = subprocess.run([BINARY, "run", *words, "--", sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    said = collector.cli("diagnose", "run:early").stdout
    assert "Not judged: rules whose values no recorded step has: " in said and "--monitor" not in said, said
