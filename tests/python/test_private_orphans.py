# SPDX-License-Identifier: Apache-2.0
"""No process of a private collector stays without a user, and none makes a directory anew (private_rounds, seed 413, round 80)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import zlib

import harness
import pytest
from test_private_endings import HERE, RECORDS, _calls, _ended, _run, environment  # noqa: F401 - a fixture

sys.path.insert(0, str(HERE.parent / "crash"))

import private_rounds
from rankprobe._job_directory import KILLED

# It looks once a second, and gives up after ten.
ALONE_SECONDS = 60


def spawn(*words: object, cwd: pathlib.Path) -> subprocess.Popen:
    return subprocess.Popen([harness.BIN / "rankprobed", "--listen", "unix:socket", *map(str, words)], cwd=cwd, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ends(process: subprocess.Popen, seconds: float = ALONE_SECONDS) -> tuple[int, str]:
    try:
        output = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"still there after {seconds} s: {process.communicate()[0]}") from None
    return process.returncode, output


def kill(pids) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none starts another one
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
                os.kill(pid, number)


def supervisors(dump: pathlib.Path) -> list[int]:
    return [pid for pid, words in private_rounds.processes(dump).items() if "--job-dir" not in words]


def left_by_a_killed_job(dump: pathlib.Path, environment: dict[str, str]) -> tuple[pathlib.Path, dict[int, list[str]]]:  # noqa: F811
    """The archive of a job of which every process was killed at once, and what they were."""
    job = subprocess.Popen([sys.executable, "-c", RECORDS + "for step, _ in enumerate(steps(2)):\n"
                            "    if step == 1: print('here', flush=True); time.sleep(300)", str(dump)],
                           env=environment, stdout=subprocess.PIPE)
    assert job.stdout.readline() == b"here\n"
    job.stdout.close()
    served = private_rounds.processes(dump)
    kill([*served, job.pid])
    job.wait()
    harness.wait_for(lambda: not private_rounds.processes(dump), 30, "the end of all")
    (archive,) = dump.glob(".rankprobe/collector-*")
    return archive, served


@pytest.mark.parametrize("relative", [True, False])
def test_a_collector_started_after_its_directory_went(tmp_path: pathlib.Path, relative: bool) -> None:
    gone = tmp_path / "gone"
    words = ("--job-dir", ".", "--data-dir", "data", "--port-file", "listens") if relative else (
        "--job-dir", gone, "--data-dir", gone / "data", "--port-file", gone / "listens")
    process = subprocess.Popen(["sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$0" "$@"', harness.BIN / "rankprobed",
                                "--listen", "unix:socket", *map(str, words)], cwd=tmp_path, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    code, output = ends(process)
    assert code == 4 and "no job is in" in output and len(output.splitlines()) == 1, output
    assert not list(tmp_path.iterdir())


def test_a_supervisor_started_after_its_directory_went(tmp_path: pathlib.Path) -> None:
    script = pathlib.Path(private_rounds.EmbeddedCollector.__init__.__code__.co_filename).with_name("_supervise.py")
    for make in (False, True):  # not there; there, and no job is in it
        if make:
            (tmp_path / "gone").mkdir()
        done = subprocess.run([sys.executable, "-I", "-S", script, tmp_path / "gone"], capture_output=True, timeout=60)
        assert done.returncode == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["gone"]


def test_a_collector_whose_users_are_dead_ends_by_itself(tmp_path: pathlib.Path, environment) -> None:  # noqa: F811
    """Started by hand, as nobody's supervisor would. What it serves stays for the next job."""
    dump = tmp_path / "dump"
    archive, served = left_by_a_killed_job(dump, environment)
    (words,) = [words for words in served.values() if "--job-dir" in words]
    code, output = ends(spawn(*[word for word in words[3:] if word], cwd=archive))
    assert code == 0 and "its job has ended" in output, output
    assert not (archive / "listens").exists(), "whoever reads it would ask a collector that no longer answers"
    done = _run("for _ in steps(0): pass", dump, {**environment, "RANKPROBE_RUN": "next"})
    assert done.returncode == 0, done.stderr
    _ended(dump)
    assert list(_calls(dump)) == ["step0", "step1"]


@pytest.mark.parametrize("where", ["dump_path", "archive"])
def test_a_strange_manifest_keeps_no_job_waiting(tmp_path: pathlib.Path, environment, where: str) -> None:  # noqa: F811
    """The end of the job before it comes to an end. In dump_path a manifest that is none is passed over; a fault
    that nobody has thought of leaves the archive, with a note."""
    dump = tmp_path / "dump"
    archive, _ = left_by_a_killed_job(dump, environment)
    if where == "dump_path":
        (dump / "manifest.json").write_text('{"run": "x", "files": ["a.txt"]}')
    else:
        packed = zlib.compress(b"[1]")
        (archive / "manifests" / "1-1").write_bytes(struct.pack("=QQ", len(packed), 3) + packed)
    # It has an end: fifteen minutes are more than it is given here.
    done = _run("for _ in steps(0): pass", dump, {**environment, "RANKPROBE_RUN": "next"})
    assert done.returncode == 0, done.stderr
    harness.wait_for(lambda: not private_rounds.processes(dump), 30, "the end of all")
    notes = [note.read_text() for note in dump.glob("rankprobe-left-*.txt")]
    if where == "dump_path":
        assert not notes and list(_calls(dump)) == ["step0", "step1"]
        _ended(dump)
    else:
        (note,) = notes
        assert "'list' object has no attribute" in note and "--finish" in note
        assert [path.name for path in dump.glob(".rankprobe/*/data")] == ["data"]


def test_its_directory_is_removed_while_it_runs(tmp_path: pathlib.Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    for name in ("users.lock", "supervisor.lock"):
        (job / name).touch()
    with open(job / "supervisor.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = spawn("--job-dir", ".", "--data-dir", "data", "--port-file", "listens", cwd=job)
        harness.wait_for(lambda: (job / "listens").exists(), 30, "the collector")
        job.rename(tmp_path / "gone")
        shutil.rmtree(tmp_path / "gone")
        code, output = ends(process)
    assert code == 0 and "is removed" in output, output
    assert not list(tmp_path.iterdir())


def test_all_who_kept_it_are_killed_and_then_the_users(tmp_path: pathlib.Path, environment) -> None:  # noqa: F811
    """The collector alone is left. It ends, and the command exports the archive."""
    dump = tmp_path / "dump"
    job = subprocess.Popen([sys.executable, "-c", RECORDS + "for _ in steps(1): print('here', flush=True); time.sleep(300)",
                            str(dump)], env=environment, stdout=subprocess.PIPE)
    assert job.stdout.readline() == b"here\n"
    job.stdout.close()
    kill([*supervisors(dump), job.pid])
    job.wait()
    assert private_rounds.guard(dump, "collector")
    harness.wait_for(lambda: not private_rounds.processes(dump), ALONE_SECONDS, "the end of the collector")
    done = subprocess.run([sys.executable, "-m", "rankprobe.embedded", str(dump)], env=environment, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert list(_calls(dump)) == ["step0"]
    _ended(dump)


def test_a_dump_path_that_is_removed_and_made_anew(tmp_path: pathlib.Path, environment) -> None:  # noqa: F811
    """The end of the first job touches nothing of the second one, whose directory has the same name."""
    dump = tmp_path / "dump"
    script = RECORDS + "for _ in steps(1): print('here', flush=True); sys.stdin.readline()"
    jobs = []
    for name in ("first", "second"):
        job = subprocess.Popen([sys.executable, "-c", script, str(dump)], env={**environment, "RANKPROBE_RUN": name},
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        jobs.append(job)
        assert job.stdout.readline() == b"here\n"
        if name == "first":
            served = [*private_rounds.processes(dump)]
            shutil.rmtree(dump)
    jobs[0].kill()
    jobs[0].communicate()
    harness.wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in served), 90, "the end of the first")
    (archive,) = dump.glob(".rankprobe/collector-*")
    assert json.loads((archive / "job.json").read_text())["run"] == "second"
    assert not list(dump.glob("rankprobe-left-*"))
    jobs[1].communicate(b"\n", timeout=120)
    assert jobs[1].returncode == 0
    _ended(dump)
    assert list(_calls(dump)) == ["step0"]
    assert json.loads((dump / "manifest.json").read_text())["run"] == "second"


def test_a_late_collector_is_ended_with_the_directory_and_a_standby_is_not(tmp_path: pathlib.Path) -> None:
    """The standby goes on with the removal when the supervisor is killed in it (private_rounds, seed 21, round 236)."""
    package = pathlib.Path(private_rounds.EmbeddedCollector.__init__.__code__.co_filename).parent
    job = tmp_path / "base" / "job"
    job.mkdir(parents=True)
    (job / "job.json").write_text(json.dumps({"run": "r", "root": str(tmp_path), "rankprobed": "", "rankprobe": "",
                                              "lock": str(tmp_path / "lock")}))
    waits = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(300)"]
    late, standby, elsewhere = processes = [
        subprocess.Popen([*waits, word], cwd=where, stdout=subprocess.PIPE)
        for word, where in (("--job-dir", job), (str(package / "_supervise.py"), job), ("--job-dir", tmp_path))]
    try:
        for process in processes:
            assert process.stdout.readline() == b"here\n"
        script = ("import pathlib, sys; sys.path.append(sys.argv[1]); import _job_directory\n"
                  "sys.exit(_job_directory.JobDirectory(pathlib.Path(sys.argv[2])).remove())")
        assert subprocess.run([sys.executable, "-I", "-c", script, package, job], timeout=60).returncode == 0
        assert late.wait(30) == -signal.SIGKILL
        assert standby.poll() is None and elsewhere.poll() is None
        assert not list(tmp_path.iterdir())
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("end", ["kill -9 $$", f"exit {KILLED}"], ids=["the_starter", "the_supervisor"])
def test_a_supervisor_that_is_killed_while_it_starts_is_started_again(tmp_path: pathlib.Path, environment, end: str) -> None:  # noqa: F811
    """private_rounds, seed 11, round 1, on a busy machine: the rank recorded nothing."""
    python, dump = tmp_path / "python", tmp_path / "dump"
    python.write_text(f"#!/bin/sh\nif mkdir {tmp_path}/killed 2> /dev/null; then {end}; fi\nexec {sys.executable} \"$@\"\n")
    python.chmod(0o700)
    done = subprocess.run([sys.executable, "-c", f"import sys\nsys.executable = {str(python)!r}{RECORDS}for _ in steps(1): pass",
                           dump], env=environment, capture_output=True, text=True, timeout=120)
    assert (tmp_path / "killed").is_dir() and done.returncode == 0 and "no private collector" not in done.stderr, done.stderr
    _ended(dump)
    assert _calls(dump) == {"step0": ["Torch.relu.0.forward"]}
