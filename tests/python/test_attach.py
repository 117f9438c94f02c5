# SPDX-License-Identifier: Apache-2.0
"""`python -m rankprobe.run`: a script that knows nothing of rankprobe."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

import harness
import rankprobe

SCRIPT = '''
import torch, torch.nn as nn
assert "rankprobe" not in globals()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scheduler.step()
print("weights", [round(p.sum().item(), 6) for p in net.parameters()])
'''


def _run(directory: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
    script = directory / "train.py"
    script.write_text(SCRIPT)
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    return subprocess.run([sys.executable, "-m", "rankprobe.run", *flags, "--", sys.executable, str(script)],
                          cwd=directory, env={**os.environ, "PYTHONPATH": package}, capture_output=True, text=True,
                          timeout=180)


def test_records_steps_of_the_optimizer(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "dump_path": str(tmp_path / "dump"),
                                  "rank": [], "step": []}))
    done = _run(tmp_path, "--on", "--config", str(config))
    assert done.returncode == 0 and "not attached" not in done.stderr, done.stderr
    for step in range(3):
        (directory,) = (tmp_path / "dump" / f"step{step}").iterdir()
        data = json.loads((directory / "dump.json").read_text())["data"]
        assert {"Module.0.Linear.forward.0", "Functional.linear.1.forward",
                "Module.2.Linear.parameters_grad.0"} <= set(data)


@pytest.mark.parametrize("flags", [("--on",), ("--monitor", "--every", "1")], ids=["on", "monitor"])
def test_the_end_of_the_last_step_begins_none(tmp_path: pathlib.Path, collector, flags) -> None:
    done = _run(tmp_path, "--collector", collector.address, "--run", "ended", *flags)
    assert done.returncode == 0 and "not attached" not in done.stderr, done.stderr
    said = collector.cli("ledger", "--run", "ended")
    # What the program prints of its weights is made of calls, too.
    assert ("4" if "--on" in flags else "3") + " rank-steps" in said.stdout and "unfinished" not in said.stdout, said.stdout


def test_a_step_that_an_exception_ends_is_not_whole(tmp_path: pathlib.Path, collector) -> None:
    done = _run_script(tmp_path, SCRIPT + "\nnet(torch.ones(2, 4))\nraise KeyError('mine')\n", "--collector", collector.address,
                       "--run", "raised", "--on")
    assert done.returncode == 1 and "KeyError: 'mine'" in done.stderr
    said = collector.cli("ledger", "--run", "raised", check=False)
    assert said.returncode == 1 and "1 rank-step unfinished" in said.stdout, said.stdout


INFERENCE = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
with torch.no_grad():
    for i in range(4):
        try:
            net(torch.full((2, 4 if i != 2 else 3), float(i)))
        except RuntimeError:
            print("a bad request")
        torch.ones(2).sin()
"""


def _steps(directory: pathlib.Path) -> dict[int, dict]:
    """The steps that have any call: the one that a program ends in may have none."""
    trees = directory.glob("dump_path/step*/*/dump.json")
    return {int(t.parts[-3][4:]): data for t in trees if (data := json.loads(t.read_text())["data"])}


# What follows the last step, the sums that it prints, is a step of its own.
QUIET = SCRIPT.split("print(")[0]


def _run_script(directory: pathlib.Path, text: str, *flags: str) -> subprocess.CompletedProcess:
    script = directory / "program.py"
    script.write_text(text)
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    return subprocess.run([sys.executable, "-m", "rankprobe.run", *flags, "--", sys.executable, str(script)],
                          cwd=directory, env={**os.environ, "PYTHONPATH": package}, capture_output=True, text=True,
                          timeout=180)


def test_without_an_optimizer_a_step_is_a_forward(tmp_path: pathlib.Path) -> None:
    done = _run_script(tmp_path, INFERENCE, "--on")
    assert done.returncode == 0 and done.stdout == "a bad request\n", done.stderr
    assert "a step is one forward" in done.stderr and "not attached" not in done.stderr, done.stderr
    steps = _steps(tmp_path)
    assert sorted(steps) == [0, 1, 2, 3]
    for step in (0, 1, 3):
        data = steps[step]
        assert data["Module.0.Linear.forward.0"]["input_args"][0]["Max"] == step
        assert "Functional.relu.0.forward" in data and not any("sin" in entry for entry in data)
    assert "Module.2.Linear.forward.0" not in steps[2]


@pytest.mark.parametrize("given, mode", [("", "no_grad"), ("input=", "no_grad"), ("", "inference_mode")])
def test_each_forward_of_a_model_that_is_one_layer_is_recorded(tmp_path: pathlib.Path, given: str, mode: str) -> None:
    """Also the first, during which the model is found."""
    done = _run_script(tmp_path, f"import torch\nnet = torch.nn.Linear(4, 2)\nwith torch.{mode}():\n    for i in range(1, 3):\n"
                       f"        net({given}torch.full((1, 4), float(i)))\n", "--on")
    assert done.returncode == 0 and "not attached" not in done.stderr, done.stderr
    steps = _steps(tmp_path)
    assert sorted(steps) == [0, 1]
    for step, data in steps.items():
        call = data["Module.Linear.forward.0"]
        (one,) = call["input_args"] or call["input_kwargs"].values()
        assert one["Max"] == step + 1 and call["output"]


def test_an_optimizer_that_comes_late_takes_over(tmp_path: pathlib.Path) -> None:
    """A dry run first, as for lazy layers."""
    lines = QUIET.split("optimizer = ")
    script = lines[0] + "with torch.no_grad():\n    net(torch.ones(1, 4))\noptimizer = " + lines[1]
    done = _run_script(tmp_path, script, "--on")
    assert done.returncode == 0 and "an optimizer was made: a step now ends with SGD.step()" in done.stderr, done.stderr
    steps = _steps(tmp_path)
    assert sorted(steps) == [0, 1, 2, 3]
    assert not any("backward" in entry for entry in steps[0])
    assert all("Module.2.Linear.parameters_grad.0" in steps[step] for step in (1, 2, 3))


def test_a_training_that_makes_its_optimizer_after_two_forwards_has_its_steps(tmp_path: pathlib.Path) -> None:
    lines = QUIET.split("optimizer = ")
    script = lines[0] + "net(torch.ones(1, 4))\nnet(torch.ones(1, 4))\noptimizer = " + lines[1]
    done = _run_script(tmp_path, script, "--on")
    assert done.returncode == 0 and "one forward" not in done.stderr, done.stderr
    assert sorted(_steps(tmp_path)) == [0, 1, 2]


def test_what_calls_no_model_is_told_why_not(tmp_path: pathlib.Path) -> None:
    done = _run_script(tmp_path, "import torch\nprint(torch.ones(2).sum().item())")
    assert done.returncode == 0 and done.stdout == "2.0\n"
    assert done.stderr.count("not attached: no optimizer was made") == 1, done.stderr


def test_what_a_helper_says_is_what_the_program_reads(tmp_path: pathlib.Path) -> None:
    """subprocess.run(.., stderr=STDOUT) of what imports PyTorch and trains nothing."""
    done = _run_script(tmp_path, """
import subprocess, sys
helper = subprocess.run([sys.executable, "-c", "import torch; print('alive')"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(repr(helper.stdout))
subprocess.run([sys.executable, "-c", "import torch"])
""")
    assert (done.returncode, done.stdout) == (0, "'alive\\n'\n")
    assert done.stderr.count("not attached: no optimizer was made") == 1, done.stderr


def test_a_process_of_multiprocessing_that_trains_nothing_is_no_failure(tmp_path: pathlib.Path) -> None:
    done = _run_script(tmp_path, """import multiprocessing, torch
def work():
    print(torch.ones(2).sum().item(), flush=True)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
""")
    assert done.returncode == 0 and done.stdout == "2.0\n"
    assert done.stderr.count("not attached: no optimizer was made") == 1, done.stderr


LOOP = SCRIPT.replace("for _ in range(3):", "import os, time\nwhile not os.path.exists('stop'):\n    time.sleep(0.02)") \
    .replace("print(", "pass #")


def test_switched_on_from_outside(tmp_path: pathlib.Path) -> None:
    """Idle, then two steps by the command that the process itself has told."""
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    log = tmp_path / "log"
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    with open(log, "w") as file:
        process = subprocess.Popen([sys.executable, "-m", "rankprobe.run", "--", sys.executable, str(script)],
                                   cwd=tmp_path, env={**os.environ, "PYTHONPATH": package}, stdout=file, stderr=file)
    try:
        harness.wait_for(lambda: "switch it on with" in log.read_text(), 60, "the attached process")
        words = log.read_text().split("switch it on with: rankprobe enable ")[1].split("\n")[0].split()
        time.sleep(0.3)
        assert not list(tmp_path.glob("dump_path/step*"))
        done = subprocess.run([harness.BIN / "rankprobe", "enable", "--for-steps", "2", *words], capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == 0 and "1/1 ranks" in done.stdout, done.stdout + done.stderr
        harness.wait_for(lambda: len(list(tmp_path.glob("dump_path/step*/*/dump.json"))) == 2, 60, log.read_text())
    finally:
        (tmp_path / "stop").touch()
        assert process.wait(timeout=60) == 0
    data = json.loads(next(tmp_path.glob("dump_path/step*/*/dump.json")).read_text())["data"]
    assert {"Module.0.Linear.forward.0", "Functional.linear.1.backward"} <= set(data)


@pytest.mark.parametrize("name", ["it's\x1b[31m red\n\\ü\u202e", "-rf", "a b; c"])
def test_the_command_that_is_told_can_be_pasted_whatever_the_name(tmp_path: pathlib.Path, collector, name) -> None:
    done = _run(tmp_path, "--collector", collector.address, f"--run={name}", "--on")
    assert done.returncode == 0 and "not attached" not in done.stderr, done.stderr
    for head, tail in (("switch it off with: rankprobe disable ", ""), ("; rankprobe export ", " writes dump.json")):
        (line,) = [line for line in done.stderr.splitlines() if head in line]
        assert line.isprintable(), line
        words = line.split(head)[1][:-len(tail) or None]
        pasted = subprocess.run(["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, timeout=60)
        given = pasted.stdout.decode().split("\0")
        assert f"--run={name}" in given or name in given[given.index("--run") + 1:], given
        assert given[given.index("--collector") + 1] == collector.address, given


def test_a_name_that_looks_like_a_flag_is_told_how_to_write_it(tmp_path: pathlib.Path) -> None:
    done = _run(tmp_path, "--run", "-rf")
    assert done.returncode == 2, done.stderr
    assert done.stderr == "rankprobe run: argument --run: expected one argument; one that begins with - is written --run=VALUE\n"


REPLICAS = LOOP.replace("    scheduler.step()", """
    scheduler.step()
    if os.environ["RANK"] == "2" and os.path.exists("corrupt"):
        with torch.no_grad():
            net[2].bias[1] += 1e-3""").replace("while not", """while not os.path.exists('go'):
    time.sleep(0.02)
while not""", 1)


def test_a_replica_that_differs_is_found_without_a_word_in_the_script(tmp_path, collector) -> None:
    """Three ranks train alike; one bit of one of them goes its own way."""
    script = tmp_path / "train.py"
    script.write_text(REPLICAS)
    env = {**os.environ, "PYTHONPATH": str(pathlib.Path(rankprobe.__file__).parents[1]), "WORLD_SIZE": "3",
           "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "replicas"}
    ranks = [subprocess.Popen([sys.executable, "-m", "rankprobe.run", "--", sys.executable, str(script)],
                              cwd=tmp_path, env={**env, "RANK": str(rank)}) for rank in range(3)]
    try:
        harness.wait_for(lambda: sum(a["connected"] for a in collector.json("status")["agents"]) == 3, 180, "the ranks")
        rules = tmp_path / "rules.json"
        rules.write_text(json.dumps({"rules": [{"name": "alike", "replica": {}, "raise_to": "EVIDENCE_NONE"}]}))
        collector.cli("triggers", "set", rules, "--run", "replicas")

        def fired() -> list:
            events = collector.json("events", "--run", "replicas")["events"]
            return [e for e in events if "TRIGGER_FIRED" in json.dumps(e)]

        (tmp_path / "go").touch()
        time.sleep(0.5)
        assert not fired()
        (tmp_path / "corrupt").touch()
        event = harness.wait_for(fired, 60, "the event")[0]
        assert event["identity"]["rank"] == 2 and "of 3 ranks" in event["detail"], event
    finally:
        (tmp_path / "stop").touch()
        assert [rank.wait(timeout=60) for rank in ranks] == [0, 0, 0]


def test_idle_changes_nothing_and_writes_nothing(tmp_path: pathlib.Path) -> None:
    done = _run(tmp_path)
    assert done.returncode == 0 and "not attached" not in done.stderr, done.stderr
    plain = subprocess.run([sys.executable, str(tmp_path / "train.py")], capture_output=True, text=True, timeout=180)
    assert done.stdout == plain.stdout
    assert not list(tmp_path.glob("dump_path/step*"))


@pytest.mark.parametrize("flags,status", [([], 2), (["--config", "/no/such.json", "--", "true"], 2),
                                          (["--", "no-such-program"], 127)])
def test_bad_usage(flags: list, status: int) -> None:
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    done = subprocess.run([sys.executable, "-m", "rankprobe.run", *flags], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": package})
    assert done.returncode == status and done.stderr


@pytest.mark.parametrize("mask", ["0002", "0077"])
def test_what_the_job_writes_is_its_own_affair(tmp_path: pathlib.Path, mask: str) -> None:
    """`rankprobe` writes 0640 itself, and hands its caller's umask on."""
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    done = subprocess.run([harness.BIN / "rankprobe", "run", "--", "sh", "-c", "umask"], cwd=tmp_path, text=True,
                          env={**os.environ, "PYTHONPATH": package, "RANKPROBE_PYTHON": sys.executable},
                          umask=int(mask, 8), capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{mask}\n"), done.stderr


def test_an_interrupt_while_the_native_module_is_imported_reaches_the_program(tmp_path: pathlib.Path) -> None:
    done = _run_script(tmp_path, """
import sys
class Interrupted:
    def find_spec(name, *_):
        if name == "rankprobe._native": raise ImportError("initialization failed") from KeyboardInterrupt()
sys.meta_path.insert(0, Interrupted)
try:
    import torch
except KeyboardInterrupt:
    print("interrupted")
""")
    assert done.stdout == "interrupted\n" and "not attached" not in done.stderr, done


def test_a_launcher_that_does_not_say_how_many_ranks_are_here_gives_no_warning(tmp_path: pathlib.Path) -> None:
    done = _run_script(tmp_path, """
import os
os.environ.update(LOCAL_RANK="0", NODE_RANK="0", WORLD_SIZE="2")  # As Lightning does.
""" + SCRIPT, "--on")
    assert done.returncode == 0 and "several machines" not in done.stderr and "dump.json is at" in done.stderr, done.stderr
