# SPDX-License-Identifier: Apache-2.0
"""Two operations on files of which a process was killed, or the second failed, between: what is there then is recognised."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import types

import harness
import pytest

import rankprobe
from rankprobe import _monitor_v2_csv, _published, embedded, monitor_csv
from rankprobe._frontend import exports
from rankprobe._manifests import named_places, read_manifest

sys.path.append(os.path.dirname(rankprobe.__file__))  # as the supervisor imports it
import _collector_process
import _ending
import _job_directory

sys.path.pop()

# A `rankprobe` that answers from files of the job's directory, and says there what it was asked for.
PROGRAM = '''#!{python} -ISs
import json, pathlib, sys
verb, words = sys.argv[1], sys.argv[4:]
with open("asked", "a") as file:
    file.write(verb + "\\n")
counts = {{"step": 0, "rank": "rank0", "expected_records": 3, "stored_records": 3}}
if verb == "runs":
    print(json.dumps({{"runs": [{{"run": "r"}}] if pathlib.Path("recorded").exists() else []}}))
elif verb == "status" and "--steps" in words:
    print(json.dumps({{"steps": [{{**counts, "rank": 0, "pid": 1, "deleted": False, "complete": True, "updated_unix_ns": 1}}]}}))
elif verb == "status":
    print(json.dumps({{"agents": []}}))
elif verb == "deliver" and not pathlib.Path("refuses").exists():
    for file in pathlib.Path("kept").iterdir():
        file.unlink()
elif verb == "export":
    out = pathlib.Path(words[words.index("-o") + 1])
    if out.is_dir() and any(out.iterdir()):
        sys.exit(".rankprobe-export holds files that are not ours")
    (out / "step0" / "rank0").mkdir(parents=True)
    (out / "step0" / "rank0" / "dump.json").write_text("after")
    (out / "manifest.json").write_text(json.dumps({{"run": "r", "files": [{{"path": "step0/rank0/dump.json"}}], "gaps": [],
                                                   "ledger": [counts]}}))
'''


class Job:
    """A directory of a private collector that nobody uses any more, and its dump_path."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.root, self.directory, program = directory / "dump", directory / "job", directory / "rankprobe"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        self.root.mkdir()
        for name in ("unfinished", "manifests", "kept"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "recorded").touch()
        job = types.SimpleNamespace(run="r", root=self.root, rankprobe=str(program), since=0.0)
        collector = types.SimpleNamespace(ensure=lambda same_address=True: "unix:1", serves=lambda: True)
        self.ending = _ending.Ending(job, collector)

    def asked(self) -> list[str]:
        return (self.directory / "asked").read_text().split()

    def tree(self, *place: str) -> pathlib.Path:
        """A rank's directory that was there before."""
        tree = self.directory.joinpath(*place)
        tree.mkdir(parents=True)
        (tree / "dump.json").write_text("before")
        return tree


@pytest.fixture
def job(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job(tmp_path)
    monkeypatch.chdir(made.directory)
    return made


@pytest.mark.parametrize("refuses", [False, True])
def test_an_archive_that_goes_elsewhere_brings_what_was_kept(job: Job, tmp_path: pathlib.Path, refuses: bool) -> None:
    """_supervise.py DIRECTORY --finish -o DIR, which removes the archive."""
    (job.directory / "kept" / "0000000000000007.00000000.spool").write_text("RPQ3")
    (job.directory / "unfinished" / "1-1.rank3.5.0.2.4").touch()
    target = tmp_path / "elsewhere"
    if refuses:
        (job.directory / "refuses").touch()
        with pytest.raises(_ending.Failed, match="1 files with records of killed processes were not delivered"):
            job.ending.export_all(str(target))
    else:
        assert job.ending.export_all(str(target)) == 1
    assert job.asked()[:2] == ["deliver", "export"]
    manifest = read_manifest(target, "r")
    assert [(gap["rank"], gap["records"]) for gap in manifest["gaps"]] == [("rank3", 5)]
    assert [file["path"] for file in manifest["files"]] == ["step0/rank0/dump.json"]
    assert sorted(path.name for path in target.iterdir()) == ["manifest.json", "step0"]


def test_losses_are_told_where_the_collector_could_not_even_keep_the_run(job: Job) -> None:
    (job.directory / "recorded").unlink()
    assert job.ending.export() == 0 and not (job.root / "manifest.json").exists()
    (job.directory / "unfinished" / "1-1.rank3.5.0.2.4").touch()
    assert job.ending.export() == 1
    (gap,) = read_manifest(job.root, "r")["gaps"]
    assert (gap["rank"], gap["records"], gap["reason"]) == ("rank3", 5, "PROCESS_EXIT") and "steps 2 to 4" in gap["detail"]


def test_an_export_of_a_killed_supervisor_goes_on_in_nobodys_way(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes files as fast as they are removed."""
    for left in ("fresh", "fresh-1"):
        (job.directory / left / ".rankprobe-export" / "new").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    assert job.ending.export() == 0
    assert (job.root / "step0" / "rank0" / "dump.json").read_text() == "after"


@pytest.mark.parametrize("old", ["old", "staging/old"])
def test_what_made_way_for_a_tree_that_did_not_come_is_put_back(job: Job, old: str) -> None:
    """The collector, or a supervisor, was killed between the two renames; the manifest has said of the tree that it is there."""
    job.tree(old, "step0-rank0")
    job.tree(old, "step0-rank1")
    job.tree(old, "step7-rank0")
    (job.root / "step0" / "rank1").mkdir(parents=True)
    (job.root / "manifest.json").write_text(json.dumps({"run": "r", "files": [{"path": "step0/rank0/dump.json"}], "ledger": [
        {"step": 0, "rank": "rank0", "expected_records": 3, "stored_records": 3}]}))
    assert job.ending.export() == 0
    assert "export" not in job.asked()
    assert (job.root / "step0" / "rank0" / "dump.json").read_text() == "before"
    assert not any((job.root / "step0" / "rank1").iterdir()), "it has come"
    assert sorted(path.name for path in job.root.iterdir()) == ["manifest.json", "step0"], "a user has removed step7"
    assert not (job.directory / old).exists()


# A collector that has its file as `rankprobed` does, and whose end takes until it may.
LATE_COLLECTOR = """#!{python} -ISs
import pathlib, signal, sys, time
listens = pathlib.Path(sys.argv[sys.argv.index("--port-file") + 1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
names = sorted(pathlib.Path().glob("served-*"))
listens.write_text(f"unix:{{len(names) + 1}}\\n")
pathlib.Path(f"served-{{len(names) + 1}}").touch()
signal.sigwait([signal.SIGTERM])
listens.unlink()
while not pathlib.Path("may-end").exists():
    time.sleep(0.002)
"""


@pytest.mark.parametrize("told", ["before", "while it is asked"])
def test_a_collector_on_its_way_out_is_followed_by_another(job: Job, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                                          told: str) -> None:
    """A supervisor was killed when it had told it to end, and the standby has something left to export."""
    program = tmp_path / "rankprobed"
    program.write_text(LATE_COLLECTOR.format(python=sys.executable))
    program.chmod(0o755)
    directory = types.SimpleNamespace(run="r", root=job.root, since=0.0, path=job.directory, spare_directory=tmp_path / "spare",
                                      rankprobe="rankprobe", rankprobed=str(program),
                                      processes=lambda _: iter(()), is_process=lambda pid, _: pathlib.Path(f"/proc/{pid}").exists())
    before = _collector_process.Collector(directory)
    assert before.ensure() == "unix:1"
    pid = before.pid

    def end() -> None:
        os.kill(pid, signal.SIGTERM)
        harness.wait_for(lambda: not pathlib.Path("listens").exists(), 60, "the end of its file")

    if told == "before":
        end()
    collector = _collector_process.Collector(directory)
    # As /proc tells of one that is no child of the process that asks.
    collector._pid = pid
    asked = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess:
        asked.append(words[words.index("--collector") + 1])
        if asked[-1] != "unix:1":
            return subprocess.CompletedProcess(words, 0, "{}", "")
        end()
        return subprocess.CompletedProcess(words, 3, "", "nothing listens there")

    def read(path: str) -> str:
        if path == "listens" and not pathlib.Path("listens").exists() and before.alive():
            pathlib.Path("may-end").touch()
            before._child.wait()
        return _job_directory.read(path)

    monkeypatch.setattr(_collector_process, "read", read)
    monkeypatch.setattr(_ending, "subprocess", types.SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL))
    ending = _ending.Ending(directory, collector)
    try:
        assert ending._call("runs") == "{}"
        assert asked == (["unix:2"] if told == "before" else ["unix:1", "unix:2"])
    finally:
        collector.stop(signal.SIGKILL)
        before.stop(signal.SIGKILL)


def test_another_machines_manifest_that_came_meanwhile_stays(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = _ending._missing

    def later(*arguments):
        (job.root / "step0" / "rank8").mkdir(parents=True)
        (job.root / "manifest.json").write_text(json.dumps({"run": "r", "files": [{"path": "step0/rank8/dump.json"}]}))
        return missing(*arguments)

    monkeypatch.setattr(_ending, "_missing", later)
    assert job.ending.export() == 0
    assert set(named_places(job.root)) == {("step0", "rank0"), ("step0", "rank8")}


@pytest.mark.parametrize("own", [{("step0", "rank0")}, set()], ids=["its own", "another job's"])
def test_a_tree_that_cannot_be_placed_leaves_the_one_before(tmp_path: pathlib.Path, own: set) -> None:
    there = tmp_path / "step0" / "rank0"
    there.mkdir(parents=True)
    published = _published.Published(tmp_path, lambda _: {("step0", "rank0"): "r"}, tmp_path / "list", "r", own)
    with pytest.raises(FileNotFoundError):
        published.put(tmp_path / "is not there", ("step0", "rank0"), tmp_path / "old")
    assert there.is_dir() and not list(tmp_path.glob("old/*")) and not list(tmp_path.glob("earlier/r/step0/*"))


def test_a_killed_process_leaves_no_hole_where_it_replaced_a_tree(tmp_path: pathlib.Path) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    left = tmp_path / f".rankprobe-rank0-{os.uname().nodename}-{gone.pid}"
    (left / "old" / "step0-rank0").mkdir(parents=True)
    (tmp_path / "step0").mkdir()
    exports._Fetches(None, "r", tmp_path, lambda: "rank0", lambda: 0)
    assert (tmp_path / "step0" / "rank0").is_dir() and not left.exists()


def test_what_others_append_to_the_list_is_not_forgotten(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tmp_path / "list"
    (tmp_path / "fresh").mkdir()
    flock, forgets = fcntl.flock, [_published.Published(tmp_path, lambda _: {("step0", "rank0"): "r"}, names, "r")]

    def after(file: int, how: int) -> None:
        if forgets:  # between the open and the lock of put()
            forgets.pop().forget()
            assert not names.exists()
        flock(file, how)

    names.write_text("step0/rank0\n")
    monkeypatch.setattr(fcntl, "flock", after)
    published = _published.Published(tmp_path, lambda _: {}, names, "r")
    assert published.put(tmp_path / "fresh", ("step1", "rank1"), tmp_path / "old") == ""
    assert names.read_text() == "step1/rank1\n"

    def meanwhile(_: pathlib.Path) -> dict:
        with open(names) as file, pytest.raises(BlockingIOError):
            flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return {}

    _published.Published(tmp_path, meanwhile, names, "r").forget()
    assert names.read_text() == "step1/rank1\n"


def user_of(root: pathlib.Path) -> embedded.EmbeddedCollector:
    """One that has not joined yet."""
    user = embedded.EmbeddedCollector.__new__(embedded.EmbeddedCollector)
    user.root, user._base, user._pid, user._programs = root, root / ".rankprobe", os.getpid(), {}
    user._users = user._supervisor = None
    user._told_of_left = user._made = False
    return user


def test_a_job_that_is_just_being_removed_is_not_joined(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = user_of(tmp_path)
    user.directory.mkdir(mode=0o700, parents=True)
    (user.directory / "users.lock").touch()
    (user.directory / "job.json").write_text('{"run": "before"}')

    def removed() -> bool:
        user.directory.rename(user._base / "gone-1")
        return False

    monkeypatch.setattr(user, "_is_supervised", removed)
    assert user._join("after") is False


def test_what_another_machine_is_making_is_not_swept(tmp_path: pathlib.Path) -> None:
    user = user_of(tmp_path)
    theirs, ours, gone = (user._base / name for name in ("new-elsewhere-1-1", f"new-{socket.gethostname()}-1-1", "gone-1"))
    for directory in (theirs, ours, gone):
        directory.mkdir(parents=True)
    user._sweep()
    assert theirs.is_dir() and not ours.exists() and not gone.exists()


def test_an_archive_whose_note_was_not_written_any_more(tmp_path: pathlib.Path) -> None:
    user = user_of(tmp_path)
    (user._base / "left-1").mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match=f"left-1; python -m rankprobe.embedded {tmp_path} exports it"):
        os.close(user._create("r"))


def test_what_was_half_removed_is_no_archive_that_was_left(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    for name in ("gone-1", "new-1"):
        (tmp_path / ".rankprobe" / name).mkdir(parents=True)
        (tmp_path / ".rankprobe" / name / "job.json").write_text("{}")
    (tmp_path / ".rankprobe").chmod(0o755)
    assert embedded.main([str(tmp_path)]) == 0
    assert "nothing is left" in capfd.readouterr().err
    assert [path.name for path in (tmp_path / ".rankprobe").iterdir()] == ["new-1"]


def test_a_table_that_was_made_and_not_begun_gets_its_header(tmp_path: pathlib.Path) -> None:
    (tmp_path / "grad_0-0.csv").touch()
    monitor_csv.write_step(tmp_path, 0, {"grad": []}, ["norm"])
    assert (tmp_path / "grad_0-0.csv").read_text() == "vpp_stage,name,step,norm,shape,dtype\n"
    (tmp_path / "w_step0-0.csv").touch()
    row = dict.fromkeys(_monitor_v2_csv.header("weight", ["norm"]), 1)
    _monitor_v2_csv.write(tmp_path, "w", "weight", ["norm"], [row], 0, 0, 1)
    assert (tmp_path / "w_step0-0.csv").read_text().startswith("vpp_stage,step,module_name,scope,norm")
