# SPDX-License-Identifier: Apache-2.0
"""The private collector keeps what it acknowledged, however its users end (issue 11, A.2)."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys

import harness
import pytest
import torch

import rankprobe
from rankprobe import embedded

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "crash"))

import private_rounds  # noqa: E402

RECORDS = '''
import os, signal, sys, threading, time
import torch
from rankprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path=sys.argv[1])
def steps(count):
    for _ in range(count):
        debugger.start()
        torch.relu(torch.ones(3))
        debugger.stop()
        yield
        debugger.step()
'''


@pytest.fixture
def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "RANKPROBE_COLLECTOR")}
    return {**kept, "PYTHONPATH": str(pathlib.Path(rankprobe.__file__).parents[1]), "OMP_NUM_THREADS": "1",
            "RANKPROBE_BIN_DIR": str(harness.BIN), "RANKPROBE_RUN": "endings"}


# Longer than a job may take here: one that waits for a collector comes to no end in time.
WAITS_LONG = {"RANKPROBE_WAIT_MS": "3600000"}


def _run(script: str, dump: pathlib.Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", RECORDS + script, str(dump)], env=environment, capture_output=True,
                          text=True, timeout=120)


def _ended(dump: pathlib.Path) -> None:
    harness.wait_for(lambda: not (dump / ".rankprobe").exists(), 90, "the end of the collector")


def _calls(dump: pathlib.Path) -> dict[str, list[str]]:
    return {tree.parent.name: list(json.loads((tree / "dump.json").read_text())["data"])
            for tree in sorted(dump.glob("step*/*"))}


def test_random_rounds(environment) -> None:
    """tests/crash/private_rounds.py, a short run of it."""
    done = subprocess.run([sys.executable, str(HERE.parent / "crash" / "private_rounds.py"), "--rounds", "12", "--seed",
                           "11"], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    assert "0 rounds failed" in done.stdout


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)",
                                 "os._exit(0)"])
def test_what_stop_returned_for_is_there(tmp_path: pathlib.Path, environment, end: str) -> None:
    dump = tmp_path / "dump"
    _run(f"for step, _ in enumerate(steps(3)):\n    if step == 2: {end}", dump, environment)
    _ended(dump)
    assert _calls(dump) == {f"step{step}": ["Torch.relu.0.forward"] for step in range(3)}
    manifest = json.loads((dump / "manifest.json").read_text())
    assert [entry["step"] for entry in manifest["ledger"]] == [0, 1, 2]
    assert [entry["step"] for entry in manifest["incomplete"]] == [2]
    assert {entry["path"].partition("/")[0] for entry in manifest["files"]} == {"step0", "step1", "step2"}


def test_stop_waits_for_no_collector_and_what_it_returned_for_is_there(tmp_path: pathlib.Path, environment) -> None:
    """The collector stands still; the rank is killed the moment its last stop() has returned."""
    dump = tmp_path / "dump"
    job = subprocess.Popen([sys.executable, "-c", RECORDS + f"sys.path.insert(0, {str(HERE.parent / 'crash')!r})\n"
                            "import pathlib, private_rounds\n"
                            "collector = private_rounds.guard(pathlib.Path(sys.argv[1]), 'collector')\n"
                            "os.kill(collector, signal.SIGSTOP)\n"
                            "for _ in range(20):\n"
                            "    debugger.start()\n"
                            "    torch.relu(torch.ones(3))\n"
                            "    debugger.stop()\n"
                            "print(collector, flush=True)\n"
                            "os.kill(os.getpid(), signal.SIGKILL)\n", str(dump)],
                           env=environment | WAITS_LONG, stdout=subprocess.PIPE, text=True)
    collector = job.communicate(timeout=120)[0]
    os.kill(int(collector), signal.SIGCONT)
    _ended(dump)
    assert _calls(dump) == {"step0": [f"Torch.relu.{number}.forward" for number in range(20)]}
    (place,) = json.loads((dump / "manifest.json").read_text())["incomplete"]
    assert place["step"] == 0


def test_what_was_kept_and_cannot_be_delivered_stays_and_is_said(tmp_path: pathlib.Path, environment) -> None:
    """The rest is exported; when it can be, the command brings it too."""
    dump = tmp_path / "dump"
    killed = _run("for _ in steps(2): pass\n"
                  "debugger.wait_exported()\n"
                  f"sys.path.insert(0, {str(HERE.parent / 'crash')!r})\n"
                  "import pathlib, private_rounds\n"
                  "root = pathlib.Path(sys.argv[1])\n"
                  "collector = private_rounds.guard(root, 'collector')\n"
                  "os.kill(collector, signal.SIGSTOP)\n"
                  "next(steps(1))\n"
                  "for spool in root.glob('.rankprobe/*/kept/*.spool'): spool.chmod(0o666)\n"
                  "print(collector, flush=True)\n"
                  "os.kill(os.getpid(), signal.SIGKILL)\n", dump, environment)
    os.kill(int(killed.stdout), signal.SIGCONT)
    (note,) = harness.wait_for(lambda: list(dump.glob("rankprobe-left-*.txt")), 90, "the note")
    said = note.read_text()
    assert "files with records of killed processes were not delivered: 1 not opened: others made them or can change" in said, said
    (kept,) = dump.glob(".rankprobe/left-*/kept")
    assert list(kept.glob("*.spool"))
    assert set(_calls(dump)) >= {"step0", "step1"}
    for spool in kept.glob("*.spool"):
        spool.chmod(0o600)
    done = _left_by_command(dump, environment)
    assert done.returncode == 0, done
    _ended(dump)
    assert _calls(dump) == {f"step{step}": ["Torch.relu.0.forward"] for step in range(3)}


@pytest.mark.parametrize("between", ["", "os.open('/dev/null', os.O_RDONLY) and [os.open('/dev/null', os.O_RDONLY) for _ in range(200)]"],
                         ids=["closed", "others_have_the_numbers"])
def test_a_program_that_closes_all_descriptors_goes_on_unrecorded(tmp_path: pathlib.Path, environment, between: str) -> None:
    """As what makes a daemon of itself does: one line, the same end, and what was recorded before is there."""
    dump = tmp_path / "dump"
    done = _run("began = time.monotonic()\n"
                "for step, _ in enumerate(steps(5)):\n"
                "    if step == 2:\n"
                "        debugger.wait_exported()\n"
                "        os.closerange(3, 256)\n"
                f"        {between or 'pass'}\n"
                "debugger.save(torch.ones(2), 'saved')\n"
                "debugger.report_loss(1.0)\n"
                "print('trained in time' if time.monotonic() - began < 30 else 'late', flush=True)\n", dump, environment)
    assert done.returncode == 0 and done.stdout == "trained in time\n", done
    said = [line for line in done.stderr.splitlines() if line.startswith("rankprobe: ")]
    assert len(said) == 2 and "nothing is recorded from now on" in said[1] and "Traceback" not in done.stderr, done.stderr
    _ended(dump)
    assert {"step0", "step1"} <= set(_calls(dump)) <= {"step0", "step1", "step2"}


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_manifest_keeps_what_earlier_jobs_left(tmp_path: pathlib.Path, environment, end: str) -> None:
    dump = tmp_path / "dump"
    for run, steps in (("first", 3), ("second", 2)):
        _run(f"for _ in steps({steps}): pass\n{end}", dump, {**environment, "RANKPROBE_RUN": run, "RANK": "0"})
        _ended(dump)
    manifest = json.loads((dump / "manifest.json").read_text())
    assert manifest["run"] == "second" and [entry["step"] for entry in manifest["ledger"]] == [0, 1]
    told = {one.get("directory"): one for one in manifest["earlier_runs"]}
    assert {one["run"] for one in told.values()} == {"first"}
    steps_of = {where: [entry["step"] for entry in one["ledger"]] for where, one in told.items()}
    assert steps_of == {None: [2], "earlier/first": [0, 1]}
    for where, one in told.items():
        assert {entry["path"].partition("/")[0] for entry in one["files"]} == {f"step{step}" for step in steps_of[where]}
        assert all((dump / (where or "") / entry["path"]).is_file() for entry in one["files"])


def test_killed_before_anything_is_recorded(tmp_path: pathlib.Path, environment) -> None:
    dump = tmp_path / "dump"
    _run("os.kill(os.getpid(), signal.SIGKILL)", dump, environment)
    _ended(dump)
    assert not dump.exists()


def test_what_a_collector_killed_too_late_made_is_in_nobodys_way(tmp_path: pathlib.Path, environment) -> None:
    """Its archive had been moved away already; it makes the data directory anew. private_rounds, seed 413, round 80."""
    dump = tmp_path / "dump"
    late = dump / ".rankprobe" / f"collector-{socket.gethostname()}"
    (late / "data" / "index").mkdir(parents=True)
    (late / "listens").write_text("unix:socket")
    done = _run("for _ in steps(1): pass", dump, environment)
    assert done.returncode == 0, done.stderr
    assert len(_calls(dump)) == 1
    _ended(dump)


def test_a_forked_child_does_not_keep_it(tmp_path: pathlib.Path, environment) -> None:
    dump = tmp_path / "dump"
    done = _run("for _ in steps(1): pass\n"
                "child = os.fork()\n"
                "if child == 0:\n"
                "    os.closerange(0, 3)\n"
                "    time.sleep(300)\n"
                "print(child, flush=True)\n"
                "os.kill(os.getpid(), signal.SIGKILL)", dump, environment)
    child = int(done.stdout)
    try:
        _ended(dump)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
    assert list(_calls(dump)) == ["step0"]


def test_what_was_kept_is_delivered_beside_a_forked_child(tmp_path: pathlib.Path, environment) -> None:
    """It holds the lock of what its parent, who was killed, had kept."""
    dump = tmp_path / "dump"
    done = _run(f"sys.path.insert(0, {str(HERE.parent / 'crash')!r})\n"
                "import pathlib, private_rounds\n"
                "collector = private_rounds.guard(pathlib.Path(sys.argv[1]), 'collector')\n"
                "os.kill(collector, signal.SIGSTOP)\n"
                "next(steps(1))\n"
                "child = os.fork()\n"
                "if child == 0:\n"
                "    os.closerange(0, 3)\n"
                "    time.sleep(300)\n"
                "print(child, collector, flush=True)\n"
                "os.kill(os.getpid(), signal.SIGKILL)", dump, environment)
    child, collector = map(int, done.stdout.split())
    try:
        os.kill(collector, signal.SIGKILL)  # with what had reached its sockets
        _ended(dump)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
    assert _calls(dump) == {"step0": ["Torch.relu.0.forward"]}


def test_the_group_of_the_job_is_killed(tmp_path: pathlib.Path, environment) -> None:
    """Ctrl-C and the end of a terminal reach a group, as a launcher's kill does."""
    dump = tmp_path / "dump"
    job = subprocess.Popen([sys.executable, "-c", RECORDS + "for _ in steps(1):\n    print('here', flush=True)\n"
                            "    time.sleep(300)", str(dump)], env=environment, stdout=subprocess.PIPE,
                           start_new_session=True)
    assert job.stdout.readline() == b"here\n"
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL):
        os.killpg(job.pid, number)
    job.wait()
    job.stdout.close()
    _ended(dump)
    assert list(_calls(dump)) == ["step0"]


def test_one_line_says_where_the_dump_is(tmp_path: pathlib.Path, environment) -> None:
    dump = tmp_path / "dump"
    done = _run("for _ in steps(3): pass", dump, environment)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [f"rankprobe: dump.json is at {dump}/step*/ (run endings)"]
    _ended(dump)
    assert sorted(path.name for path in dump.iterdir()) == ["manifest.json", "step0", "step1", "step2"]


def test_what_cannot_be_exported_stays(tmp_path: pathlib.Path, environment) -> None:
    """One line of a note says where the archive is; the command in it brings it to dump_path, whatever that is called."""
    dump = tmp_path / "späces & dumps"
    dump.mkdir()
    (dump / "step0").write_text("in the way")
    done = _run("for _ in steps(2): pass", dump, environment)
    assert "step 0 was not exported" in done.stderr and done.returncode == 0
    (left,) = harness.wait_for(lambda: list(dump.glob(".rankprobe/left-*")), 90, "the archive that stays")
    note = harness.wait_for(lambda: list(dump.glob("rankprobe-left-*.txt")), 60, "the note")[0].read_text()
    assert len(note.splitlines()) == 1 and str(left) in note
    assert list(_calls(dump)) == ["step1"]
    next_job = _run("for _ in steps(0): pass", dump, environment)
    assert "archive of an earlier job is still in" in next_job.stderr
    (dump / "step0").unlink()
    command = shlex.split(note.rpartition("removes the archive: ")[2])
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert list(_calls(dump)) == ["step0", "step1"]
    assert {entry["step"] for entry in json.loads((dump / "manifest.json").read_text())["ledger"]} == {0, 1}
    _ended(dump)
    assert not list(dump.glob("rankprobe-*"))


_HELD = """
import fcntl, pathlib
for _ in steps(1): pass
debugger.wait_exported()
(lock,) = pathlib.Path(sys.argv[1]).glob(".rankprobe/collector-*/export.lock")
held = lock.open("w")
fcntl.flock(held, fcntl.LOCK_EX)
for _ in steps(40): pass
root = pathlib.Path(sys.argv[1])
assert len(list(root.glob("step*"))) == 1 + len(list(root.glob("step5"))), "trees are written without the lock"
fcntl.flock(held, fcntl.LOCK_UN)
debugger.wait_exported()
print(len(list(root.glob("step*/*/dump.json"))), flush=True)
"""


def test_no_step_waits_for_the_tree_of_an_earlier_one(tmp_path: pathlib.Path, environment) -> None:
    """While an export cannot go on, forty steps are trained and recorded; then their trees are written."""
    dump = tmp_path / "dump"
    done = _run(_HELD, dump, environment)
    assert done.returncode == 0 and done.stdout.split() == ["41"] and "not exported" not in done.stderr, done.stderr
    assert sorted(_calls(dump)) == sorted(f"step{number}" for number in range(41))
    ledger = json.loads((dump / "manifest.json").read_text())["ledger"]
    assert sorted(entry["step"] for entry in ledger) == list(range(41))


def test_a_place_that_is_taken_costs_no_other_of_the_steps_that_waited(tmp_path: pathlib.Path, environment) -> None:
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "step5").write_text("in the way")
    done = _run(_HELD, dump, environment)
    assert done.returncode == 0 and done.stdout.split() == ["40"], done.stderr
    assert done.stderr.count("was not exported") == 1 and "step 5 was not exported" in done.stderr, done.stderr
    assert sorted(_calls(dump)) == sorted(f"step{number}" for number in range(41) if number != 5)


@pytest.mark.parametrize("there", ["directory", "link_to_a_step", "link_to_a_rank"])
def test_what_no_export_made_is_neither_replaced_nor_followed(tmp_path: pathlib.Path, environment, there: str) -> None:
    """A dump of msprobe in the same dump_path, say; also at the end of the job, by the collector."""
    dump, elsewhere = tmp_path / "dump", tmp_path / "elsewhere"
    theirs = (dump if there == "directory" else elsewhere) / "step0" / "rank0"
    theirs.mkdir(parents=True)
    (theirs / "dump.json").write_text("precious")
    (dump / "step0").mkdir(parents=True, exist_ok=True)
    if there == "link_to_a_step":
        (dump / "step0").rmdir()
        (dump / "step0").symlink_to(elsewhere / "step0")
    elif there == "link_to_a_rank":
        (dump / "step0" / "rank0").symlink_to(theirs)
    done = _run("for _ in steps(2): pass", dump, {**environment, "RANK": "0", "WORLD_SIZE": "1"})
    assert done.returncode == 0 and "step 0 was not exported" in done.stderr, done.stderr
    (left,) = harness.wait_for(lambda: [path for path in dump.glob("rankprobe-left-*.txt")], 90, "what is left is told")
    said = left.read_text()
    assert str(dump / "step0") in said and ("was not made by an export" in said or "symbolic link" in said), said
    assert (theirs / "dump.json").read_text() == "precious" and os.listdir(theirs) == ["dump.json"]
    assert (dump / "step0" / "rank0").is_symlink() == (there == "link_to_a_rank")
    assert (dump / "step1" / "rank0" / "dump.json").is_file()
    manifest = json.loads((dump / "manifest.json").read_text())
    assert {file["path"].partition("/")[0] for file in manifest["files"]} == {"step1"}


def test_a_job_ends_promptly_without_its_collector(tmp_path: pathlib.Path, environment) -> None:
    """The collector is killed again and again, and training goes on."""
    dump = tmp_path / "dump"
    done = _run(f"sys.path.insert(0, {str(HERE.parent / 'crash')!r})\n"
                "import pathlib, private_rounds\n"
                "for step, _ in enumerate(steps(6)):\n"
                "    while step in (1, 2, 4) and not private_rounds.kill_guards(pathlib.Path(sys.argv[1]), 'collector'):\n"
                "        time.sleep(0.01)  # the one before is being replaced, and no stop() waits for that\n"
                "    print(step)",
                dump, environment | WAITS_LONG)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6
    assert "not exported" not in done.stderr
    assert list(_calls(dump)) == [f"step{step}" for step in range(6)]
    _ended(dump)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_named_and_harms_no_training(tmp_path: pathlib.Path, environment) -> None:
    """It is waited for once. What was recorded meanwhile is in dump_path when there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk]).returncode != 0:
        pytest.skip("this machine does not allow a tmpfs mount")
    try:
        dump = disk / "dump"
        done = _run("import json, subprocess\n"
                    "took, begun = [], time.monotonic()\n"
                    "for step, _ in enumerate(steps(40)):\n"
                    "    now = time.monotonic()\n"
                    "    took.append(now - begun)\n"
                    "    begun = now\n"
                    "    if step != 30: continue\n"
                    "    debugger.wait_exported()\n"
                    f"    subprocess.run(['mount', '-o', 'remount,size=600m', {str(disk)!r}], check=True)\n"
                    "print(json.dumps(took))", dump, environment)
        assert done.returncode == 0, done.stderr
        took = json.loads(done.stdout)
        # stop() has waited for a second in the first step; ten are for a collector that may be slow. A second of each
        # step would be twenty-seven.
        assert sum(took[:3]) < 9 and sum(took[3:30]) < 20, took
        assert done.stderr.count(f"the disk of {dump}/.rankprobe/") == 1, done.stderr
        assert done.stderr.count("was not exported") <= 1 and "step 0 was not exported" in done.stderr, done.stderr
        _ended(dump)
        assert set(_calls(dump)) == {f"step{step}" for step in range(40)}
        manifest = json.loads((dump / "manifest.json").read_text())
        assert sorted(entry["step"] for entry in manifest["ledger"]) == list(range(40)) and not manifest["gaps"]
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_of_100_mib_is_room_enough(tmp_path: pathlib.Path, environment) -> None:
    """The private collector leaves 64 MiB to the training, not 256 as one of its own does."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", disk]).returncode != 0:
        pytest.skip("this machine does not allow a tmpfs mount")
    try:
        dump = disk / "dump"
        done = _run("for _ in steps(3): pass", dump, environment)
        assert done.stderr.splitlines() == [f"rankprobe: dump.json is at {dump}/step*/ (run endings)"], done.stderr
        _ended(dump)
        assert _calls(dump) == {f"step{step}": ["Torch.relu.0.forward"] for step in range(3)}
        assert json.loads((dump / "manifest.json").read_text())["gaps"] == []
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def _left_by_command(dump: pathlib.Path, environment) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "rankprobe.embedded", str(dump)], env=environment, capture_output=True,
                          text=True, timeout=120)


def _check_the_loss(dump: pathlib.Path) -> None:
    manifest = json.loads((dump / "manifest.json").read_text())
    (gap,) = manifest["gaps"]
    assert manifest["run"] == "endings" and manifest["files"] == [] and not list(dump.glob("step*"))
    assert gap["step"] == -1 and gap["rank"] == "rank3" and gap["reason"] == "PROCESS_EXIT", gap
    assert gap["records"] == 21 and gap["detail"].startswith("steps 0 to 2: "), gap


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("to_the_last_byte", [False, True])
def test_a_disk_that_stays_full_is_in_the_manifest(tmp_path: pathlib.Path, environment, to_the_last_byte: bool) -> None:
    """Nothing reaches the archive until the job ends: stderr promises nothing that cannot be kept, and manifest.json
    says what was lost, at the latest when there is room for it."""
    disk, scratch = tmp_path / "disk", tmp_path / "scratch"
    disk.mkdir()
    scratch.mkdir()
    environment = {**environment, "RANK": "3", "TMPDIR": str(scratch), "RANKPROBE_WAIT_MS": "1000"}
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk]).returncode != 0:
        pytest.skip("this machine does not allow a tmpfs mount")
    try:
        dump, ballast = disk / "dump", disk / "ballast"
        fill = f"""
with open({str(ballast)!r}, "wb", buffering=0) as file:
    try:
        while True: file.write(bytes(1 << 16))
    except OSError: pass
    try:
        while True: file.write(b"x")
    except OSError: pass
"""
        done = _run("for step, _ in enumerate(steps(3)): pass\n" + (fill if to_the_last_byte else ""), dump, environment)
        assert done.returncode == 0, done.stderr
        assert "2 more steps, the last of them step 2, were not exported" in done.stderr, done.stderr
        assert "tried again" not in done.stderr and "21 records and 0 payloads" in done.stderr, done.stderr
        if to_the_last_byte:
            # Where a collector that ends gives its file's block back, the note has room in dump_path.
            def notes() -> list[pathlib.Path]:
                return [path for place in (dump, scratch) for path in place.glob("rankprobe-left-*.txt")]
            (note,) = harness.wait_for(notes, 90, "the note")
            assert "No space left" in note.read_text() and not (dump / "manifest.json").exists()
            ballast.unlink()
            again = _left_by_command(dump, environment)
            assert again.returncode == 1 and "manifest.json there lists them" in again.stdout, again
            assert not notes()
        _ended(dump)
        _check_the_loss(dump)
        nothing = _left_by_command(dump, environment)
        assert nothing.returncode == 1 and "21 records) are lost for good" in nothing.stderr, nothing
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


@pytest.mark.parametrize("by_command", [False, True])
def test_everything_is_killed(tmp_path: pathlib.Path, environment, by_command: bool) -> None:
    """As at the end of a container: the next job, or a command, exports what was left first."""
    dump = tmp_path / "dump"
    job = subprocess.Popen([sys.executable, "-c", RECORDS + "for step, _ in enumerate(steps(4)):\n"
                            "    if step == 3: print('here', flush=True); time.sleep(300)", str(dump)],
                           env=environment, stdout=subprocess.PIPE)
    assert job.stdout.readline() == b"here\n"
    job.stdout.close()
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none starts another one
        for pid in (*private_rounds.processes(dump), job.pid):
            with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
                os.kill(pid, number)
    job.wait()
    harness.wait_for(lambda: not private_rounds.processes(dump), 30, "the end of all")
    if by_command:
        done = subprocess.run([sys.executable, "-m", "rankprobe.embedded", str(dump)], env=environment,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and f"dump.json is at {dump}/step*/ (run endings)" in done.stdout, done.stderr
        assert [entry["step"] for entry in json.loads((dump / "manifest.json").read_text())["ledger"]] == [0, 1, 2, 3]
    else:
        done = _run("for _ in steps(1): pass", dump, {**environment, "RANKPROBE_RUN": "next"})
        assert done.stderr.splitlines() == [
            f"rankprobe: run endings was killed with its collector; its archive is exported to {dump} first",
            f"rankprobe: dump.json is at {dump}/step*/ (run next); steps of run endings that this run records too are moved to "
            f"{dump}/earlier"]
    _ended(dump)
    places = [(tree.parent.name, tree.name == f"proc{job.pid}") for tree in sorted(dump.glob("step*/*"))]
    assert {(f"step{step}", True) for step in range(1, 4)} <= set(places)
    # Two processes of two runs in one step can be read as neither.
    assert [of_first for step, of_first in places if step == "step0"] == [by_command]
    assert (dump / f"earlier/endings/step0/proc{job.pid}/dump.json").exists() != by_command
    # The supervisor removes its directory before it ends.
    harness.wait_for(lambda: not private_rounds.processes(dump), 30, "the end of the supervisor")


def test_a_step_whose_records_are_kept_asks_no_disk_for_room(dump, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(embedded.EmbeddedCollector, "free_bytes_if_full", lambda self: asked.append(self))
    monkeypatch.delenv("RANKPROBE_COLLECTOR", raising=False)
    debugger = dump.debugger()
    for _ in range(5):
        debugger.start()
        torch.relu(torch.ones(3))
        debugger.stop()
        debugger.step()
    debugger.close()
    assert asked == [] and len(list(dump.path.glob("step*"))) == 5


def test_ranks_of_two_jobs_do_not_share_an_archive(tmp_path, environment) -> None:
    """They have the same ranks and steps. The second one is not recorded, and says so; what the first one recorded stays whole."""
    dump = tmp_path / "dump"
    rank = {**environment, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    first = subprocess.Popen([sys.executable, "-c", RECORDS + "for _ in steps(3): pass\nprint('recorded', flush=True)\nsys.stdin.readline()", str(dump)],
                             env={**rank, "MASTER_PORT": "29501"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "recorded\n"
    # Another rank of the same job is one of its users; of another job none is.
    same = _run("for _ in steps(3): pass", dump, {**rank, "RANK": "1", "MASTER_PORT": "29501"})
    assert same.returncode == 0 and "another job" not in same.stderr, same.stderr
    other = _run("for _ in steps(5): pass\nprint('trained')", dump, {**rank, "RANK": "1", "MASTER_PORT": "29502"})
    assert (other.returncode, other.stdout) == (0, "trained\n"), other.stderr
    assert other.stderr.count("the ranks of another job, whose rendezvous is 127.0.0.1:29501, record into it at present") == 1, other.stderr
    assert "nothing is recorded, and the training continues" in other.stderr
    # A start of the same job at another port, as torchrun does it after a rank has failed.
    first.kill()
    first.wait()
    again = _run("for _ in steps(2): pass", dump, {**rank, "MASTER_PORT": "29503"})
    assert again.returncode == 0 and "another job" not in again.stderr, again.stderr
    _ended(dump)
    assert sorted(path.name for path in dump.glob("step*/rank1")) == ["rank1"] * 3
    assert {path.name for path in dump.glob("step*")} == {"step0", "step1", "step2"}
