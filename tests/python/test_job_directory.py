# SPDX-License-Identifier: Apache-2.0
"""A planted directory of a private collector in a writable dump_path runs no program, and gets no record."""

import fcntl
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

import pytest

from rankprobe import embedded

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making files of another user needs root")

NOBODY = 65534
TRAINER = """
import torch
from rankprobe.pytorch import PrecisionDebugger
model = torch.nn.Linear(4, 4)
debugger = PrecisionDebugger(dump_path="dump", level="L1", task="statistics")
for _ in range(2):
    debugger.start(model)
    model(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()
"""


@pytest.fixture
def planted(tmp_path):
    """dump/.rankprobe/collector-HOST, made by another user, that names a program of his."""
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    program.chmod(0o755)
    dump = tmp_path / "dump"
    place = dump / ".rankprobe" / f"collector-{socket.gethostname()}"
    for name in ("unfinished", "manifests"):
        (place / name).mkdir(parents=True)
    (place / "unfinished" / "1-1").touch()
    (place / "users.lock").touch()
    (place / "address").write_text("unix:/nowhere/socket")
    (place / "job.json").write_text(json.dumps({"run": "r", "root": str(dump), "rankprobed": str(program),
                                                "rankprobe": str(program), "lock": str(tmp_path / "lock")}))
    for path in [dump / ".rankprobe", *(dump / ".rankprobe").rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    dump.chmod(0o1777)
    return tmp_path


def train(directory: pathlib.Path) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "RANKPROBE_COLLECTOR"}
    return subprocess.run([sys.executable, "-c", TRAINER], cwd=directory, env=environment, capture_output=True, text=True,
                          timeout=120)


def test_a_planted_program_is_not_run_by_a_job(planted):
    done = train(planted)
    assert done.returncode == 0 and "belongs to user 65534" in done.stderr and "nothing is recorded" in done.stderr, done
    assert not (planted / "ran").exists()


def test_a_planted_program_is_not_run_by_the_export_of_what_was_left(planted):
    done = subprocess.run([sys.executable, "-m", "rankprobe.embedded", "dump"], cwd=planted, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode != 0 and "belongs to user 65534" in done.stderr, done
    assert not (planted / "ran").exists()


def test_a_directory_that_others_may_change_is_not_used(planted):
    for path in [planted / "dump" / ".rankprobe", *(planted / "dump" / ".rankprobe").rglob("*")]:
        os.chown(path, 0, 0)
    (planted / "dump" / ".rankprobe").chmod(0o777)
    done = train(planted)
    assert done.returncode == 0 and "mode 0777" in done.stderr and "nothing is recorded" in done.stderr, done
    assert not (planted / "ran").exists()


def test_a_link_in_its_place_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / ".rankprobe").symlink_to(victim)
    done = train(tmp_path)
    assert done.returncode == 0 and "is a link or no directory" in done.stderr and "nothing is recorded" in done.stderr, done
    assert victim.is_dir() and not any(victim.iterdir())


def test_a_directory_that_a_new_job_made_is_not_set_aside(tmp_path, monkeypatch, capfd):
    from rankprobe._job_directory import JobDirectory

    place = tmp_path / ".rankprobe" / "collector-host"
    about = json.dumps({"run": "old", "root": str(tmp_path), "rankprobed": "rankprobed", "rankprobe": "rankprobe", "lock": str(tmp_path / "lock")})
    monkeypatch.chdir(tmp_path)  # and back: a JobDirectory is the working directory
    for whose in ("own", "new"):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True, mode=0o700)
        (place / "job.json").write_text(about)
        if whose == "own":
            job = JobDirectory(place)
    job.leave("a reason")
    assert (place / "job.json").exists() and [entry.name for entry in place.parent.iterdir()] == ["collector-host"]
    assert f"a reason; {place} was removed" in capfd.readouterr().err
    JobDirectory(place).leave("a reason")
    assert not place.exists() and next(place.parent.glob("left-*"))


def make_job(directory: pathlib.Path) -> pathlib.Path:
    """A directory of a job, which a JobDirectory can take. Its own name is not needed by any process."""
    place = directory / "dump" / ".rankprobe" / "collector-host"
    place.mkdir(parents=True, mode=0o700)
    (directory / "lock").touch(mode=0o600)
    (place / "job.json").write_text(json.dumps({"run": "r", "root": str(directory / "dump"), "rankprobed": "rankprobed",
                                                "rankprobe": "rankprobe", "lock": str(directory / "lock")}))
    return place


@pytest.mark.parametrize("kind", ["held", "open to all", "a FIFO"])
def test_a_lock_that_another_user_planted_is_not_waited_for(tmp_path, monkeypatch, kind):
    """Its name can be told from the dump_path, and everybody may make it in /tmp."""
    (tmp_path / "tmp").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    place = embedded._root_lock_path(tmp_path / "dump")
    if kind == "a FIFO":
        os.mkfifo(place, 0o600)
    else:
        place.touch()
        place.chmod(0o666 if kind == "open to all" else 0o600)
    if kind != "open to all":
        os.chown(place, NOBODY, NOBODY)
    with open(place, "r+b", buffering=0) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = train(tmp_path)
    assert done.returncode == 0 and f"it cannot be a lock: '{place}'" in done.stderr and "nothing is recorded" in done.stderr, done
    assert place.exists()


def test_a_lock_whose_holder_is_stopped_is_not_waited_for_for_good(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(embedded, "_LOCK_SECONDS", 0.0)
    with embedded.root_lock(tmp_path / "dump"):
        with pytest.raises(TimeoutError, match="has held this lock"), embedded.root_lock(tmp_path / "dump"):
            pass
    with embedded.root_lock(tmp_path / "dump"):
        pass


def test_no_directory_for_temporary_files_leaves_nothing_of_the_collector(tmp_path, monkeypatch):
    """The working directory, which is tried last, is that of the job, which is removed."""
    from rankprobe._job_directory import JobDirectory

    monkeypatch.chdir(tmp_path)  # and back: a JobDirectory is the working directory
    place = make_job(tmp_path)
    job = JobDirectory(place)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing"), os.curdir])
    assert job.remove() is None
    assert not (tmp_path / "dump" / ".rankprobe").exists() and not (tmp_path / "lock").exists()


def test_a_note_is_not_written_through_a_planted_link(tmp_path, monkeypatch, capfd):
    from rankprobe._job_directory import JobDirectory, note_of

    monkeypatch.chdir(tmp_path)  # and back: a JobDirectory is the working directory
    job = JobDirectory(make_job(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("time.time_ns", lambda: 1)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    note_of(job.path.with_name("left-1"), tmp_path / "dump").symlink_to(mine)
    monkeypatch.setattr(pathlib.Path, "unlink", lambda *_, **__: None)  # of another user's in a sticky directory it is refused
    job.leave("why")
    assert mine.read_text() == "mine" and "why" in capfd.readouterr().err
    assert "why" in (job.path.with_name("left-1") / "rankprobe-left-1.txt").read_text()


def test_the_directory_of_a_process_with_another_lock_is_kept(tmp_path):
    """Two processes of a job that have not the same TMPDIR both find no directory, and both make one."""
    slow = embedded.EmbeddedCollector.__new__(embedded.EmbeddedCollector)
    slow.root, slow._base, slow._programs, slow._made = tmp_path, tmp_path / ".rankprobe", {}, False
    users = slow._create("fast")
    try:
        with pytest.raises(FileNotFoundError, match="just made by another process"):
            slow._create("slow")
        assert json.loads((slow.directory / "job.json").read_text())["run"] == "fast"
        assert [entry.name for entry in slow._base.iterdir()] == [slow.directory.name]
    finally:
        os.close(users)


def test_clocks_of_two_machines_are_not_compared(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of one job on two hosts that share dump_path; the clock of the second is 100 s ahead."""
    import socket
    import time

    from rankprobe import _manifests

    def write(host: str, clock: float, since: float, rank: int) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: host)
        monkeypatch.setattr(time, "time", lambda: clock)
        (tmp_path / "step0" / f"rank{rank}").mkdir(parents=True, exist_ok=True)
        part = {"format": "rankprobe-manifest-1", "run": "r", "files": [{"path": f"step0/rank{rank}/dump.json"}], "gaps": [], "ledger": [], "incomplete": [],
                "conflicts": []}
        there = _manifests.read_manifest(tmp_path, "r", since)
        _manifests.write_manifest(tmp_path, _manifests.merge_manifests([*([there] if there else []), part], {f"rank{rank}"}), tmp_path / "new", since)

    for host, clock, since, rank in (("a", 20, 0, 0), ("b", 121, 100, 2), ("a", 22, 0, 1), ("b", 123, 100, 3)):
        write(host, clock, since, rank)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert sorted(file["path"] for file in manifest["files"]) == [f"step0/rank{rank}/dump.json" for rank in range(4)] and "earlier_runs" not in manifest
    # The next job of that name, on the first host.
    write("a", 60, 50, 0)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [file["path"] for file in manifest["files"]] == ["step0/rank0/dump.json"]
    (earlier,) = manifest["earlier_runs"]
    assert sorted(file["path"] for file in earlier["files"]) == [f"step0/rank{rank}/dump.json" for rank in (1, 2, 3)]
