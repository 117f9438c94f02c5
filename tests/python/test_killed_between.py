# SPDX-License-Identifier: Apache-2.0
"""Two operations on files of which a process was killed, or the second failed, between: what is there then is recognised."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import types

import pytest

import rankprobe
from rankprobe import _monitor_v2_csv, _published, embedded, monitor_csv
from rankprobe._frontend import exports
from rankprobe._manifests import named_places, read_manifest

sys.path.append(os.path.dirname(rankprobe.__file__))  # as the supervisor imports it
import _ending  # noqa: E402

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
        job = types.SimpleNamespace(run="r", root=self.root, rankprobe=str(program))
        collector = types.SimpleNamespace(ensure=lambda same_address=True: "127.0.0.1:1", alive=lambda: True)
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
    (job.directory / "kept" / "0000000000000007.00000000.spool").write_text("RPQ2")
    (job.directory / "unfinished" / "1-1.rank3.5.0.2.4").touch()
    target = tmp_path / "elsewhere"
    if refuses:
        (job.directory / "refuses").touch()
        with pytest.raises(_ending.Failed, match="1 files of what killed processes kept were not delivered"):
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
