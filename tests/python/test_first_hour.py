# SPDX-License-Identifier: Apache-2.0
"""First mistakes of a new user: a config with a fault, a mistyped name, no collector."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

import harness
import rankprobe
from ports import free_port

PACKAGE = str(pathlib.Path(rankprobe.__file__).parents[1])
TRAIN = '''
import pathlib, torch
pathlib.Path("started").touch()
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
'''


def attach(directory: pathlib.Path, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    (directory / "train.py").write_text(TRAIN)
    return subprocess.run([sys.executable, "-m", "rankprobe.run", *flags, "--", sys.executable, "train.py"], cwd=directory,
                          env={**os.environ, "PYTHONPATH": PACKAGE, **environment}, capture_output=True, text=True, timeout=180)


def cli(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run([str(harness.BIN / "rankprobe"), *map(str, words)], capture_output=True, text=True, timeout=60)


FAULTS = {
    "broken": ('{"dump_path": "d",\n "task" "tensor"}', ["c.json:2:9: not valid JSON: "]),
    "cut off": ('{"dump_path": "d",\n', ["c.json:", "was it cut off?"]),
    "value": ('{"dump_path": "d",\n "level": "L7"}', ['c.json:2:2: level: "L7" is not legal; expected one of L0, L1, mix, debug']),
    "two": ('{"dump_path": "d", "rank": [-1],\n "statistics":\n  {"lst": ["relu"]}}',
            ["c.json:1:20: rank: -1 is not legal", "c.json:3:4: unknown key statistics.lst; did you mean list?"]),
    "no text": ("\udcff\udcfe", ["c.json: "]),
    "a directory": (None, ["--config c.json: is not a regular file"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_config_with_a_fault_ends_before_the_job(tmp_path: pathlib.Path, name: str):
    text, lines = FAULTS[name]
    if text is None:
        (tmp_path / "c.json").mkdir()
    else:
        (tmp_path / "c.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    done = attach(tmp_path, "--on", "--config", "c.json")
    assert done.returncode == 2 and not (tmp_path / "started").exists()
    for line in lines:
        assert line in done.stderr, done.stderr
    assert all(line.startswith("rankprobe run: ") for line in done.stderr.splitlines()) and "Traceback" not in done.stderr
    if name == "value":
        by_environment = attach(tmp_path, "--on", RANKPROBE_CONFIG="c.json")
        assert by_environment.returncode == 2 and lines[0] in by_environment.stderr


@pytest.mark.parametrize("flag, said", [("--confg", "there is no flag --confg; did you mean --config?"), ("--xyz", "there is no flag --xyz\n")])
def test_a_slip_in_a_flag_of_run_is_named(tmp_path: pathlib.Path, flag: str, said: str):
    done = attach(tmp_path, flag, "c.json")
    assert done.returncode == 2 and done.stderr.startswith(f"rankprobe run: {said}") and not (tmp_path / "started").exists(), done.stderr


@pytest.mark.parametrize("asked, said", [
    ({"rank": ["5-7"]}, "asks for rank ['5-7'] and this job has ranks 0 to 1: nothing is recorded"),
    ({"step": [40]}, "asks for step [40] and the training ended before it: nothing is recorded"),
], ids=["rank", "step"])
def test_ranks_and_steps_that_never_come_are_said_once_by_rank_0(tmp_path: pathlib.Path, asked: dict, said: str):
    (tmp_path / "c.json").write_text(json.dumps({"dump_path": "d", **asked}))
    done = attach(tmp_path, "--on", "--config", "c.json", RANK="0", WORLD_SIZE="2")
    assert done.returncode == 0 and done.stderr.count(said) == 1, done.stderr
    assert (", recording nothing;" in done.stderr) == ("rank" in asked) and (", recording;" in done.stderr) == ("step" in asked), done.stderr
    other = attach(tmp_path, "--on", "--config", "c.json", RANK="1", WORLD_SIZE="2")
    assert other.returncode == 0 and "nothing is recorded" not in other.stderr, other.stderr


@pytest.mark.parametrize("asked, said", [
    ({"rank": [5]}, "asks for rank [5] and this job has ranks 0 to 1: nothing is"),
    ({"step": [500]}, "asks for step [500] and the training ended before it: nothing is"),
], ids=["rank", "step"])
def test_a_flight_recorder_does_not_hide_what_never_comes(start_collector, tmp_path: pathlib.Path, asked: dict, said: str):
    (tmp_path / "rules.json").write_text('{"flight": {"steps": 2}, "rules": [{"name": "nan", "non_finite": {}}]}')
    (tmp_path / "c.json").write_text(json.dumps({"dump_path": "d", **asked}))
    collector = start_collector("--triggers", str(tmp_path / "rules.json"))
    # It begins once the collector has answered: the flight recorder's plan is in force from the first step.
    done = attach(tmp_path, "--on", "--config", "c.json", RANK="0", WORLD_SIZE="2", RANKPROBE_COLLECTOR=collector.address,
                  RANKPROBE_ON_COLLECTOR_MISSING="fail")
    assert done.returncode == 0 and done.stderr.count(f"rankprobe: config.json {said}") == 1, done.stderr
    assert "notices.py" not in done.stderr and "RuntimeWarning" not in done.stderr and "./flight" not in done.stderr, done.stderr


BARE = TRAIN.replace("    optimizer.step()", """    optimizer.step()
    if _ == 0:
        net.bias.data.fill_(float("nan"))""")


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_model_of_one_layer_is_recorded_and_judged(tmp_path: pathlib.Path, level: str):
    (tmp_path / "c.json").write_text(json.dumps({"dump_path": "d", "level": level, "step": [1, 2]}))
    (tmp_path / "bare.py").write_text(BARE)
    done = subprocess.run([sys.executable, "-m", "rankprobe.run", "--on", "--config", "c.json", "--", sys.executable, "bare.py"], cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    harness.wait_for(lambda: not (tmp_path / "d/.rankprobe").exists(), 120, "the end of the private collector")
    (place,) = (tmp_path / "d/step1").iterdir()
    calls = json.loads((place / "dump.json").read_text())["data"]
    assert {"Module.Linear.forward.0", "Module.Linear.backward.0", "Module.Linear.parameters_grad.0"} <= calls.keys()
    assert set(calls["Module.Linear.forward.0"]["parameters"]) == {"weight", "bias"}
    if level == "mix":
        assert json.loads((place / "construct.json").read_text())["Functional.linear.0.forward"] == "Module.Linear.forward.0"
    said = cli("diagnose", tmp_path / "d")
    assert said.returncode == 1 and said.stdout.startswith("First: step 1") and (level == "mix" or " in Linear\n" in said.stdout), said.stdout


def test_a_debugger_of_the_program_under_run_is_told_that_it_has_no_effect(tmp_path: pathlib.Path):
    (tmp_path / "own.json").write_text('{"dump_path": "own", "step": [0]}')
    (tmp_path / "own.py").write_text(TRAIN.replace("for _ in range(3):", """from rankprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(config_path="own.json")
for _ in range(3):
    debugger.start(net)""") + "    debugger.stop()\n    debugger.step()\nprint('mine')\n")
    done = subprocess.run([sys.executable, "-m", "rankprobe.run", "--on", "--", sys.executable, "own.py"], cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0 and done.stdout == "mine\n", done.stderr
    assert done.stderr.count("the program's own PrecisionDebugger has no effect") == 1 and "--as-msprobe" in done.stderr, done.stderr
    assert sorted(p.name for p in (tmp_path / "dump_path").glob("step*")) == ["step0", "step1", "step2"]


def test_a_debugger_that_is_never_started_is_said(dump):
    with pytest.warns(RuntimeWarning, match=r"start\(\) was never called: nothing is recorded"):
        dump.debugger().close()


def test_a_name_that_is_no_path_may_be_a_run():
    assert "does not exist; a run of a collector is written run:nosuchthing" in cli("diagnose", "nosuchthing").stderr
    assert "a command is required" in cli().stderr


def test_a_first_step_behind_the_last_one_wanted_is_said(tmp_path: pathlib.Path):
    from rankprobe._frontend.steps import StepState

    steps = StepState()
    steps.set_first(1000)
    with pytest.warns(RuntimeWarning, match="asks for no step after 7 and this process begins with step 1000: nothing is recorded"):
        assert steps.finished(7)


def test_a_run_that_nobody_knows_is_an_error_that_lists_those_there_are(collector, tmp_path: pathlib.Path):
    session = rankprobe.Session(collector.address, run="training", rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    (tmp_path / "rules.json").write_text('{"rules": []}')
    (tmp_path / "c.json").write_text('{"dump_path": "d"}')
    offered = [("enable",), ("disable",), ("config", "set", tmp_path / "c.json"), ("triggers", "set", tmp_path / "rules.json")]
    others = [("config", "get"), ("triggers", "get"), ("explain",), ("flight",), ("status",), ("status", "--steps"), ("events",),
              ("query",), ("scan",), ("ledger",), ("export", "-o", tmp_path / "out"), ("delete",)]
    for verb in offered + others:
        done = collector.cli(*verb, "--run", "trainign", check=False)
        assert done.returncode == 4, (verb, done.stdout, done.stderr)
        assert 'no run named "trainign"; did you mean training?; there are: training' in done.stderr, (verb, done.stderr)
        assert ("--create" in done.stderr) == (verb in offered), done.stderr
    assert collector.cli(*offered.pop(), "--run", "to come", "--create").returncode == 0
    assert json.loads(collector.cli("triggers", "get", "--run", "to come").stdout)["flight"]["level"] == "L0", "a run that has triggers only"
    for verb in offered:
        assert collector.cli(*verb, "--run", "to come", "--create").returncode == 0
    done = collector.cli("enable", "--run", "to come", check=False)
    assert done.returncode == 1 and "no rank of run to come is connected (this collector knows of none). The setting applies to ranks of this run that connect later" in done.stderr
    assert "--create" not in done.stderr, "it is set already"
    for verb in ("events", "status"):  # a program may wait for it
        done = collector.cli(verb, "--run", "trainign", "--json")
        assert json.loads(done.stdout) is not None and "there are: training" in done.stderr
    for verb in ("watch", "top"):
        done = collector.cli(verb, "--run", "trainign", "--rounds", "1")
        assert done.stderr.count("waiting for it") == 1
    session.close()


def test_ranks_of_a_run_to_come_are_switched_when_they_connect(collector, tmp_path: pathlib.Path):
    (tmp_path / "c.json").write_text('{"level": "L0", "rank": [3]}')
    for run, words in (("plain", ()), ("configured", ("--config", tmp_path / "c.json"))):
        collector.cli("enable", "--run", run, "--create", "--ranks", "1", *words)
        for rank in (0, 1):
            session = rankprobe.Session(collector.address, run=run, rank=rank, world_size=2, config_json='{"dump_path": "d", "dump_enable": false}')
            session.wait_connected(60)
            session.start()
            session.stop()
            session.step()
            session.start()
            assert session.recording == (rank == 1), (run, rank)
            session.stop()
            session.close()
    done = collector.cli("enable", "--run", "plain", check=False)
    assert done.returncode == 1 and "(its processes have ended, or lost their connection). The setting applies to ranks of this run" in done.stderr
    assert "`rankprobe disable --run plain` takes it back" in done.stderr


def test_enable_without_a_config_says_which_one_the_run_has(collector, tmp_path: pathlib.Path):
    session = rankprobe.Session(collector.address, run="r", rank=0, config_json='{"dump_path": "d", "level": "mix"}')
    session.wait_connected(60)
    assert "with the configuration that the run has: task statistics, level mix; `rankprobe config get`" in collector.cli(
        "enable", "--no-wait").stdout
    (tmp_path / "c.json").write_text('{"dump_path": "d", "task": "tensor", "level": "L0", "step": [7]}')
    assert "configuration that" not in collector.cli("enable", "--no-wait", "--config", tmp_path / "c.json").stdout
    collector.cli("disable", "--no-wait")
    assert "that the run has: task tensor, level L0, steps 7; " in collector.cli("enable", "--no-wait").stdout
    told = collector.cli("config", "get").stdout.splitlines()[0]
    assert told.startswith("plan ") and ": recording on from step " in told and told.endswith(", by an operator"), told
    session.close()


def test_a_list_of_steps_that_are_over_is_said_by_the_switch(collector, tmp_path: pathlib.Path):
    session = rankprobe.Session(collector.address, run="r", rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    for _ in range(3):
        session.start()
        session.stop()
        session.step()
    for steps, over in (([0, 1], True), ([0, 10**6], False), ([], False)):
        (tmp_path / "c.json").write_text(json.dumps({"dump_path": "d", "step": steps}))
        for verb in (("enable", "--no-wait", "--config"), ("config", "set", "--no-wait")):
            done = collector.cli(*verb, tmp_path / "c.json", check=False)
            assert done.returncode == over, "a script that goes on takes it that something is recorded"
            assert (f"nothing will be recorded: {tmp_path / 'c.json'} selects steps 0-1, and this takes effect at step " in done.stderr) == over
    session.close()


def test_ranks_that_nobody_has_are_an_error_that_names_those_connected(collector, tmp_path: pathlib.Path):
    session = rankprobe.Session(collector.address, run="r", rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    config = tmp_path / "c.json"
    for ranks, never in (([5, 7], True), ([0, 5], False), ([], False)):
        config.write_text(json.dumps({"dump_path": "d", "rank": ranks}))
        for verb in (("enable", "--no-wait", "--config"), ("config", "set", "--no-wait")):
            plan = collector.cli("config", "get").stdout
            done = collector.cli(*verb, config, check=False)
            assert done.returncode == (4 if never else 0), done.stderr
            assert (f"{config} selects ranks 5,7: none of them is connected, nothing was changed; connected ranks of run r: 0; " in done.stderr) == never
            assert not never or collector.cli("config", "get").stdout == plan
            assert collector.cli(*verb, config, "--create", check=False).returncode == 0, "for a rank that comes later"
    config.write_text('{"dump_path": "d"}')
    for verb in (("enable",), ("disable",), ("config", "set", config)):
        done = collector.cli(*verb, "--no-wait", "--ranks", "7", check=False)
        assert done.returncode == 4 and "--ranks 7: none of them is connected, nothing was changed; connected ranks of run r: 0\n" in done.stderr
        some = collector.cli(*verb, "--no-wait", "--ranks", "0,7", check=False)
        assert some.returncode == 1 and "not connected: rank 7" in some.stdout
    session.close()


def test_a_job_that_reaches_nobody_says_so_in_words_of_its_own(tmp_path: pathlib.Path):
    port = free_port()
    done = attach(tmp_path, "--on", "--collector", f"127.0.0.1:{port}")
    # At the first try, or with what is lost if the job ends before it is told.
    assert "nothing listens there" in done.stderr, done.stderr
    assert "Connection refused" not in done.stderr and "addresses" not in done.stderr, done.stderr


def test_nobody_who_answers_is_said_with_what_to_do(tmp_path: pathlib.Path):
    port = free_port()
    for verb in (["status"], ["enable"], ["runs"], ["overflow_check", "run:r"]):
        done = cli(*verb, "--collector", f"127.0.0.1:{port}")
        assert done.returncode == 3
        assert done.stderr == (f"rankprobe: no rankprobe collector answers at 127.0.0.1:{port}: nothing listens there; `rankprobed "
                               "--data-dir DIR` starts one, --collector HOST:PORT or RANKPROBE_COLLECTOR names another address\n")


@pytest.mark.parametrize("words, said", [
    (["overflowcheck", "d"], "there is no command overflowcheck; did you mean overflow_check?"),
    (["first_divergence", "a", "b"], "there is no command first_divergence; did you mean first-divergence?"),
    (["config", "gett"], "there is no command config gett; did you mean get?"),
    (["first-divergence", "run:b"], "REFERENCE is required"),
    (["compare"], "TARGET is required"),
    (["query"], "--run is required; a run is named by --run NAME or run:NAME (see"),
    (["ledger", "train"], "--run is required; a run is named by --run NAME or run:NAME (see"),
    (["query", "new", "old"], "--run is required; a run is named by --run NAME or run:NAME; two runs are compared by `rankprobe first-divergence "
     "run:new run:old` or `rankprobe diagnose run:new --reference run:old` (see"),
    (["query", "run:new", "run:old"], "query is about one run; two runs are compared by `rankprobe first-divergence run:new run:old` or "),
    (["scan", "run:new", "--json", "run:old"], "scan is about one run; two runs are compared by `rankprobe first-divergence run:new run:old` or "),
    (["disable", "run:new@5"], "run:new@5: disable is about all steps of a run: --run new (see"),
    (["bogus"], "there is no command bogus (see"),
    (["overflow_check", "--inptu_path", "x"], "there is no flag --inptu_path of overflow_check; did you mean --input_path?"),
    (["overflow_check", "--inptu_path=x"], "there is no flag --inptu_path of overflow_check; did you mean --input_path?"),
    (["enable", "--rnaks", "0"], "there is no flag --rnaks of enable; did you mean --ranks?"),
    (["--colector", "x", "status"], "there is no flag --colector; did you mean --collector?"),
    (["export", "--frobnicate"], "there is no flag --frobnicate of export (see"),
], ids=lambda w: " ".join(w) if isinstance(w, list) else None)
def test_a_slip_is_named(words: list, said: str):
    done = cli(*words)
    assert done.returncode == 2 and done.stderr.startswith(f"rankprobe: {said}"), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_dump_may_be_named_in_each_style(tmp_path: pathlib.Path):
    a, b = tmp_path / "a", tmp_path / "b"
    out = ["-o", tmp_path / "out"]
    two = {"compare": out, "graph_visualize": out, "first-divergence": [], "config_check": [], "align": [*out, "--rules", "vllm-llama"]}
    for verb, more in two.items():
        answers = {cli(verb, *words, *more).stderr for words in ([a, b], ["-tp", a, "-gp", b], ["--target_path", a, "--golden_path", b])}
        assert len(answers) == 1 and f"{a}: does not exist" in answers.pop(), (verb, answers)
    answers = {cli("diagnose", *words).stderr for words in ([a, b], [a, "--reference", b], ["-i", a, "--reference", b])}
    assert len(answers) == 1 and f"{a}: does not exist" in answers.pop(), answers
    for verb in ("overflow_check", "replicas"):
        answers = {cli(verb, *words).stderr for words in ([a], ["-i", a], ["--input_path", a])}
        assert len(answers) == 1 and f"{a}: does not exist" in answers.pop(), (verb, answers)
    answers = {cli("merge_result", *words, *out, "-config", b).stderr for words in ([a], ["-i", a], ["--input_dir", a])}
    assert len(answers) == 1, answers


def test_a_dump_path_that_cannot_be_made_is_said_in_one_line(tmp_path: pathlib.Path):
    (tmp_path / "file").write_text("")  # also for root no directory can be below it
    (tmp_path / "c.json").write_text(json.dumps({"dump_path": str(tmp_path / "file" / "dump")}))
    done = attach(tmp_path, "--on", "--config", "c.json")
    assert done.returncode == 0 and "AttributeError" not in done.stderr and "not attached" not in done.stderr, done.stderr
    assert done.stderr.count("nothing is recorded, and the training continues") == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "cannot be written: Not a directory" in done.stderr and "`rankprobe doctor --dump-path " in done.stderr, done.stderr


@pytest.mark.parametrize("there", [False, True], ids=["made", "there before"])
def test_a_run_that_was_off_leaves_no_empty_directory(tmp_path: pathlib.Path, there: bool):
    (tmp_path / "c.json").write_text(json.dumps({"dump_path": "d", "dump_enable": False}))
    if there:
        (tmp_path / "d").mkdir()
    done = attach(tmp_path, "--config", "c.json")
    assert done.returncode == 0 and "idle" in done.stderr, done.stderr
    # Who removes it is another process, which outlives the job for a moment.
    harness.wait_for(lambda: (tmp_path / "d").exists() == there and not (tmp_path / "d" / ".rankprobe").exists(), 60, "the end of the job")


def test_a_nan_has_no_sign(collector, tmp_path: pathlib.Path):
    import numpy

    session = rankprobe.Session(collector.address, run="r", rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    for step in range(2):
        session.start()
        session.call("Torch", "log", [], [numpy.full(3, numpy.copysign(numpy.nan, -1.0 if step else 1.0), numpy.float32)])
        session.stop()
        session.step()
    session.close()
    for verb in (("query",), ("scan",)):
        said = collector.cli(*verb, "--run", "r", check=False).stdout
        assert "nan" in said and "-nan" not in said, said


def test_overflow_check_writes_nothing_that_was_not_asked_for(tmp_path: pathlib.Path, dump):
    import torch

    debugger = dump.debugger()
    debugger.start()
    torch.log(torch.tensor([-1.0]))
    debugger.stop()
    debugger.step()
    step = dump.rank_directory().parent
    here = tmp_path / "here"
    here.mkdir()
    done = subprocess.run([str(harness.BIN / "rankprobe"), "overflow_check", step], cwd=here, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Torch.log.0.forward" in done.stdout and not any(here.iterdir()), done.stdout
    done = subprocess.run([str(harness.BIN / "rankprobe"), "overflow_check", step, "-o", "report"], cwd=here, capture_output=True, text=True,
                          timeout=60)
    assert "details: report/anomaly_analyze_" in done.stdout and len(list((here / "report").iterdir())) == 1


def test_a_command_that_judges_ends_with_1_when_it_finds_something(tmp_path: pathlib.Path, dump):
    """One rule for all of them; what writes a table is no judge, as msprobe's."""
    import torch

    debugger = dump.debugger()
    for value in (1.0, -1.0):
        debugger.start()
        torch.log(torch.tensor([value]))
        debugger.stop()
        debugger.step()
    good, bad = (dump.rank_directory(step).parent for step in (0, 1))
    for words, code in ((("overflow_check", good), 0), (("overflow_check", bad), 1), (("overflow_check", bad, "-o", tmp_path / "report"), 1),
                        (("--json", "overflow_check", bad), 1), (("overflow_check", bad, "--only", "inf"), 0), (("diagnose", good), 0),
                        (("diagnose", bad), 1), (("first-divergence", good, good), 0), (("first-divergence", bad, good), 1),
                        (("compare", bad, good, "-o", tmp_path / "table"), 0)):
        done = cli(*words)
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)


def test_accumulation_and_checkpointing_are_numbered_as_the_documents_say(dump):
    import torch
    from torch.utils.checkpoint import checkpoint

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.relu(self.fc(x))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    net = Net()
    debugger = dump.debugger(level="L0")
    debugger.start(net)
    for _ in range(2):
        net(torch.randn(2, 4, requires_grad=True)).sum().backward()
    debugger.stop()
    debugger.step()
    entries = [name for name in json.loads((dump.rank_directory() / "dump.json").read_text())["data"] if ".blocks.1.fc." in name]
    page = (harness.ROOT / "docs/training-loops.md").read_text()
    shown = page.split("```text\n")[1].split("```")[0].replace("Module.module.", "Module.").splitlines()
    assert entries == shown


def two_starts(collectors, tmp_path: pathlib.Path, run: str, second_while_first: bool, told: str = "", **environment: str) -> str:
    """Runs one script twice under one name, each with its collector; the first waits for the second where both are to live at once, the second until
    it has said `told`. The second's stderr."""
    first, second = tmp_path / "first", tmp_path / "second"
    address = dict(zip((first, second), (collector.address for collector in collectors)))
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "RANKPROBE_RUN": run, **environment}
    for directory in (first, second):
        directory.mkdir()
        (directory / "train.py").write_text(TRAIN + "print('over', flush=True)\ninput()\n")
    def start(directory: pathlib.Path) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-m", "rankprobe.run", "--on", "--", sys.executable, "train.py"], cwd=directory,
                                env={**environment, "RANKPROBE_COLLECTOR": address[directory]}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
    def end(process: subprocess.Popen, told: str = "") -> str:
        said = ""
        while told not in said:
            assert (line := process.stderr.readline()), said
            said += line
        _, error = process.communicate("\n", timeout=180)
        assert process.returncode == 0, error
        return said + error
    one = start(first)
    assert one.stdout.readline() == "over\n"
    if second_while_first:
        error = end(start(second), told)
        assert "by another process" not in end(one)
    else:
        assert "another process" not in (said := end(one)) and "earlier job" not in said
        error = end(start(second), told)
    return error


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one after the other"])
@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1"}], ids=["no rank", "rank 0"])
def test_two_jobs_of_one_name_are_not_merged_without_a_word(collector, tmp_path: pathlib.Path, environment: dict, at_once: bool):
    error = two_starts([collector, collector], tmp_path, "x", at_once, **environment)
    if environment and at_once:
        assert "rank 0 of run x is claimed by process " in error and ", connected since " in error, error
        assert "records go to run" not in error and "RANKPROBE_RUN or `rankprobe run --run NAME`" in error, error
        return
    lines = [line for line in error.splitlines() if "run x is recorded by another" in line or "run x has records of an earlier" in line]
    assert len(lines) == 1 and ("another process" in lines[0]) == at_once and "process " in lines[0] and "RANKPROBE_RUN" in lines[0], error
    runs, ledger = cli("runs", "--collector", collector.address), cli("ledger", "--run", "x", "--collector", collector.address)
    if environment:
        assert " 1 of 2 processes " in runs.stdout and "rank 0 was recorded by 2 processes: " in ledger.stdout, ledger.stdout
    else:
        assert "processes" not in runs.stdout, "each is a place of its own"


@pytest.mark.parametrize("environment, at_once, told", [({}, True, "is recorded by another process"), ({"RANK": "0", "WORLD_SIZE": "1"}, False, "has records of an earlier job")],
                         ids=["at once", "one after the other"])
def test_jobs_at_two_leaves_of_a_root_are_told_of_each_other(start_collector, tmp_path: pathlib.Path, environment: dict, at_once: bool, told: str):
    objects = str(tmp_path / "objects")
    root = start_collector("--role", "root", "--object-store", objects)
    leaves = [start_collector("--role", "leaf", "--object-store", objects, "--root", root.address) for _ in range(2)]
    error = two_starts(leaves, tmp_path, "x", at_once, told, **environment)
    assert error.count(f"run x {told}") == 1 and "RANKPROBE_RUN" in error, error


@pytest.mark.parametrize("restart", [{"TORCHELASTIC_RESTART_COUNT": "1"}, {"RANKPROBE_JOB": "one"}], ids=["torchrun's", "one job"])
def test_a_restart_is_told_nothing(collector, tmp_path: pathlib.Path, restart: dict):
    error = two_starts([collector, collector], tmp_path, "x", False, RANK="0", WORLD_SIZE="1", **restart)
    assert "earlier job" not in error, error


BAD_STEP = '''
import sys
import torch
class Inner(torch.nn.Module):
    def forward(self, x):
        return torch.log(x)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.inner = torch.nn.Linear(4, 4), Inner()
    def forward(self, x, scale):
        return self.inner(torch.sigmoid(self.linear(x)) * scale)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
for step in range(5):
    optimizer.zero_grad()
    net(torch.ones(2, 4), 0.0 if step == 3 else 1.0).sum().backward()
    optimizer.step()
sys.stdin.read()
'''


def test_what_the_flight_recorder_kept_has_module_and_line_of_code(start_collector, tmp_path: pathlib.Path):
    (tmp_path / "nan.json").write_text(json.dumps({"flight": {"steps": 4, "level": "mix"}, "rules": [{"name": "nan", "non_finite": {"nan_only": True}}]}))
    collector = start_collector("--triggers", str(tmp_path / "nan.json"))
    (tmp_path / "train.py").write_text(BAD_STEP)
    # It begins once the collector has answered, with the rules, and ends once the collector has what it asked for.
    job = subprocess.Popen([sys.executable, "-m", "rankprobe.run", "--run", "long", "--", sys.executable, "train.py"], cwd=tmp_path,
                           env={**os.environ, "PYTHONPATH": PACKAGE, "RANKPROBE_COLLECTOR": collector.address,
                                "RANKPROBE_ON_COLLECTOR_MISSING": "fail"}, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kept():
        done = cli("overflow_check", "-i", "run:long@3", "--collector", collector.address)
        return done if "Torch.log.0.forward" in done.stdout else None

    try:
        answer = harness.wait_for(kept, 120, "step 3 of the flight recorder")
    finally:
        error = job.communicate(timeout=120)[1]
    assert job.returncode == 0, error
    assert "in inner (Inner)" in answer.stdout and "train.py:6 in forward" in answer.stdout, answer.stdout + answer.stderr


WRONG_MASK = """
import sys, torch
from rankprobe.pytorch import PrecisionDebugger
torch.manual_seed(0)
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)
        self.register_buffer("mask", torch.triu(torch.full((4, 4), float("-inf")), diagonal=int(sys.argv[1])))
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-2, -1) + self.mask, -1) @ v
net = Attention()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
debugger = PrecisionDebugger(config_path=sys.argv[2])
x = torch.randn(2, 4, 8)
for step in range(3):
    debugger.start(net)
    optimizer.zero_grad()
    net(x).square().sum().backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
"""


def test_a_wrong_mask_is_in_the_first_answer(tmp_path: pathlib.Path):
    (tmp_path / "train.py").write_text(WRONG_MASK)
    for name, diagonal in (("good", 1), ("bad", 2)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"task": "statistics", "dump_path": name, "level": "mix", "step": [0, 1, 2]}))
        subprocess.run([sys.executable, "train.py", str(diagonal), f"{name}.json"], cwd=tmp_path, check=True, timeout=180,
                       env={**os.environ, "PYTHONPATH": PACKAGE})
    bad, good = tmp_path / "bad", tmp_path / "good"
    said = cli("first-divergence", bad, good).stdout
    assert said.startswith("step 0 rank 0: Torch.softmax.0.forward") and "1 more hold an infinity, as a mask does" in said, said
    assert "2 later steps, 1 to 2, differ too" in said and "\nstep 1 rank 0" not in said, said
    assert "can explain this" in said and "\n  weights (all, and buffers), rank 0: " in said, said
    assert "random state" not in said, "the program draws from PyTorch's alone"
    answer = cli("diagnose", bad, good).stdout
    assert answer.startswith("First: step 0 rank 0, Torch.softmax.0.forward") and "the runs differ in weights (all, and buffers)" in answer, answer
    assert "Then:" not in answer, answer
    # One step does not show by itself that nothing draws from a generator.
    one = cli("first-divergence", bad / "step0", good / "step0").stdout
    assert "\n  weights (all, and buffers)" in one and "random state" not in one, one


def test_an_additive_mask_is_no_finding_of_scan(collector):
    import numpy

    session = rankprobe.Session(collector.address, run="r", rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    scores = numpy.ones((2, 2), numpy.float32)
    mask = numpy.array([[0, -numpy.inf], [0, 0]], numpy.float32)
    for step in range(3):
        session.start()
        session.call("Tensor", "__add__", [scores, mask], [scores + mask])
        session.call("Torch", "softmax", [scores + mask], [scores])
        if step == 2:
            session.call("Torch", "log", [scores], [scores + mask])
        session.stop()
        session.step()
    session.close()
    assert "1 finding " in (said := collector.cli("scan", "--run", "r", check=False).stdout) and "Torch.log.0.forward.output.0" in said, said


def test_an_export_without_a_step_names_no_dump(collector, tmp_path: pathlib.Path):
    """A rank that was killed in its first step has a manifest alone."""
    program = """
import sys
from rankprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path="d")
debugger.start()
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, cwd=tmp_path,
                               env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "killed"})
    try:
        harness.wait_for(lambda: any(agent["dumping"] for agent in json.loads(collector.cli("status", "--run", "killed", "--json", check=False).stdout
                                                                              or '{"agents": []}')["agents"]), 60, "a step that is recorded")
    finally:
        process.kill()
        process.wait()
    done = harness.wait_for(lambda: (lambda told: told if told.returncode == 1 else None)(
        collector.cli("export", "--run", "killed", "-o", tmp_path / "out", check=False)), 30, "the end of its connection")
    assert "contains only manifest.json" in done.stdout and "dump.json is at" not in done.stdout, done.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]


def test_a_word_of_an_enumeration_is_refused_with_those_there_are():
    assert "--of: foo not in {outputs,inputs,all} (see --help)" in cli("query", "--run", "r", "--of", "foo").stderr
