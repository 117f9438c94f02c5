# SPDX-License-Identifier: Apache-2.0
"""A collector that is cut off, or lies, against the command line: an answer is whole or an error, every command ends, its own files go."""

import concurrent.futures
import ctypes
import os
import pathlib
import shutil
import subprocess
import threading

import grpc
import pytest

import harness
from harness import archive, archive_grpc

DIRECTORY = archive.ExportEvent(directory="step0/rank0")
FILE = archive.ExportEvent(files=archive.ExportFiles(files=[archive.ExportFile(path="step0/rank0/dump.json", data=b"{}")]))
HUGE = archive.ExportEvent(file_begin=archive.ExportFileBegin(path="step0/rank0/d.pt", length_bytes=2**63 - 1))
DATA = archive.ExportEvent(file_data=archive.ExportFileData(data=b"x"))
DONE = archive.ExportEvent(done=archive.ExportDone(files=1, bytes=2))


class Liar(archive_grpc.ArchiveServiceServicer):
    def __init__(self):
        self.events, self.pages = [], 0
        self.steps = archive.ListStepsResponse()

    def Export(self, request, context):
        yield from self.events

    def ListSteps(self, request, context):
        return self.steps

    def ListRuns(self, request, context):
        self.pages += 1
        return archive.ListRunsResponse(runs=[archive.RunInfo(run=f"run{i:04}") for i in range(3)], truncated=True)


@pytest.fixture
def liar():
    service, server = Liar(), grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    archive_grpc.add_ArchiveServiceServicer_to_server(service, server)
    service.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service
    server.stop(None).wait(10)


def cli(liar, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run([harness.BIN / "rankprobe", "--collector", f"127.0.0.1:{liar.port}", *map(str, arguments)],
                          capture_output=True, text=True, timeout=60)


def names(directory: pathlib.Path) -> list[str]:
    return sorted(p.name for p in directory.rglob("*"))


@pytest.mark.parametrize("flag", ["-o", "--tar"])
def test_an_export_without_its_end_is_an_error(liar, tmp_path, flag):
    for liar.events in ([], [DIRECTORY, FILE]):
        result = cli(liar, "export", "--run", "x", flag, tmp_path / "out")
        assert result.returncode == 5 and "ended before the export was complete" in result.stderr, result
        assert names(tmp_path) == [] and "dump.json is at" not in result.stdout
    liar.events = [DIRECTORY, FILE, DONE]
    assert cli(liar, "export", "--run", "x", flag, tmp_path / "out").returncode == 0
    assert "out" in names(tmp_path)


def test_a_dump_of_a_run_without_its_end_is_an_error(liar):
    liar.events = [DIRECTORY, FILE]
    result = cli(liar, "overflow_check", "-i", "run:x")
    assert result.returncode == 5 and "ended before the export was complete" in result.stderr, result


def test_steps_that_come_again_and_again_end(liar):
    liar.steps = archive.ListStepsResponse(steps=[archive.StepInfo(step=3)], truncated=True)
    for words in (["overflow_check", "-i", "run:x"], ["diagnose", "run:x"]):
        result = cli(liar, *words)
        assert result.returncode == 5 and "again and again" in result.stderr, result


def test_runs_that_come_again_and_again_end(liar):
    result = cli(liar, "runs")
    assert result.returncode == 5 and "again and again" in result.stderr, result
    assert liar.pages == 2


def test_a_tar_that_fails_in_a_huge_file_ends_and_leaves_nothing(liar, tmp_path):
    liar.events = [DIRECTORY, HUGE, DATA, DONE]
    (tmp_path / "t.tar").write_text("the good one")
    for _ in range(2):
        result = cli(liar, "export", "--run", "x", "--tar", tmp_path / "t.tar")
        assert result.returncode == 5 and "bytes too few" in result.stderr, result
        assert names(tmp_path) == ["t.tar"] and (tmp_path / "t.tar").read_text() == "the good one"
    (tmp_path / "t.tar.tmp").write_text("somebody's")
    assert "t.tar.tmp" in cli(liar, "export", "--run", "x", "--tar", tmp_path / "t.tar").stderr
    assert (tmp_path / "t.tar.tmp").read_text() == "somebody's"


def test_a_fifo_that_nobody_reads_is_refused_at_once(liar, tmp_path):
    liar.events = [DIRECTORY, FILE, DONE]
    os.mkfifo(tmp_path / "fifo")
    result = cli(liar, "export", "--run", "x", "--tar", tmp_path / "fifo")
    assert result.returncode == 2 and "it has no reader" in result.stderr, result
    reader = subprocess.Popen(["tar", "-t", "-f", tmp_path / "fifo"], stdout=subprocess.PIPE, text=True)
    # Once it has opened it.
    harness.wait_for(lambda: cli(liar, "export", "--run", "x", "--tar", tmp_path / "fifo").returncode == 0, harness.SOON, "a reader")
    assert "step0/rank0/dump.json" in reader.communicate(timeout=60)[0]


def test_a_step_that_becomes_a_link_while_it_is_exported_leads_nowhere(liar, tmp_path):
    liar.events = [DIRECTORY, FILE, DONE]
    out, outside, spare = tmp_path / "out", tmp_path / "outside", tmp_path / "spare"
    assert cli(liar, "export", "--run", "x", "-o", out).returncode == 0
    (outside / "rank0").mkdir(parents=True)
    (outside / "rank0" / "precious").write_text("precious")
    # The way a rank directory gets replaced: the link's target looks like an export of ours.
    for name in os.listdir(out / "step0"):
        shutil.copytree(out / "step0" / name, outside / name, dirs_exist_ok=True)
    before = {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in outside.rglob("*")}
    spare.symlink_to(outside)
    libc, ended = ctypes.CDLL(None, use_errno=True), threading.Event()

    def swap():
        while not ended.is_set():
            libc.renameat2(-100, os.fsencode(spare), -100, os.fsencode(out / "step0"), 2)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(60):
            cli(liar, "export", "--run", "x", "-o", out)
    finally:
        ended.set()
        swapper.join()
    assert (outside / "rank0" / "precious").read_text() == "precious"
    assert before == {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in outside.rglob("*")}
