# SPDX-License-Identifier: Apache-2.0
"""auto_export, the manifest of dump_path, names of runs."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import harness
import pytest
import torch

import rankprobe
from rankprobe.pytorch import InvalidParameterError, PrecisionDebugger
from rankprobe._manifests import merge_manifests, read_manifest, read_runs, write_manifest
from rankprobe._published import Published

from ports import free_port

SCRIPT = '''
import os, sys
import torch
import torch.distributed as dist
from rankprobe.pytorch import PrecisionDebugger
dist.init_process_group("gloo")
debugger = PrecisionDebugger(config_path=sys.argv[1])
for _ in range(2):
    debugger.start()
    torch.relu(torch.ones(3) * dist.get_rank())
    debugger.stop()
    debugger.step()
'''


def _steps(count: int) -> None:
    for _ in range(count):
        PrecisionDebugger.start()
        torch.relu(torch.ones(3))
        PrecisionDebugger.stop()
        PrecisionDebugger.step()


def _paths(directory: pathlib.Path) -> list[str]:
    return sorted(f["path"] for f in json.loads((directory / "manifest.json").read_text())["files"])


def _there(directory: pathlib.Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.glob("step*/*/*"))


@pytest.mark.parametrize("remote", [False, True], ids=["private", "remote"])
def test_a_restart_overwrites_nothing(dump, start_collector, monkeypatch, capfd, remote: bool) -> None:
    """Nor another run: what either replaces is kept, whole, and the manifest names it. The rank is the same."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("RANKPROBE_BIN_DIR", str(pathlib.Path(os.environ["RANKPROBE_BUILD_DIR"]) / "bin"))
    if remote:
        monkeypatch.setenv("RANKPROBE_COLLECTOR", start_collector().address)
    for attempt, (run, steps) in enumerate((("job", 3), ("job", 2), ("other", 1), ("other", 1))):
        monkeypatch.setenv("RANKPROBE_RUN", run)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        debugger = dump.debugger(auto_export=True)
        value = torch.full((3,), float(attempt))
        for _ in range(steps):
            PrecisionDebugger.start()
            torch.relu(value)
            PrecisionDebugger.stop()
            PrecisionDebugger.step()
        debugger.wait_exported()
        said = capfd.readouterr().err
        assert f"moved to {dump.path}/earlier" in said if attempt else "earlier" not in said, said
        debugger.close()
        harness.wait_for(lambda: not list(dump.path.glob(".rankprobe/*")), 60, "the end of the collector")

    def attempt_of(place: str) -> float:
        (call,) = json.loads((dump.path / place / "rank0/dump.json").read_text())["data"].values()
        return call["input_args"][0]["Max"]

    assert [attempt_of(f"step{step}") for step in range(3)] == [3.0, 1.0, 0.0]
    assert [attempt_of(f"earlier/{place}") for place in ("job/step0", "job/step1", "job.2/step0", "other/step0")] == [0.0, 0.0, 1.0, 2.0]
    told = sorted((one["run"], one.get("directory", ""), *sorted({file["path"].split("/")[0] for file in one["files"]})) for one in read_runs(dump.path))
    # Each job by itself, also of two that have one name. The ranks of a job without a private collector have no beginning in common.
    jobs = [("job", "", "step1", "step2")] if remote else [("job", "", "step1"), ("job", "", "step2")]
    assert told == [*jobs, ("job", "earlier/job", "step0", "step1"), ("job", "earlier/job.2", "step0"),
                    ("other", "", "step0"), ("other", "earlier/other", "step0")]
    # What a user removes there is told no longer.
    shutil.rmtree(dump.path / "earlier/job/step1")
    write_manifest(dump.path, read_manifest(dump.path, "other"), dump.path / "scratch")
    (first,) = (one for one in read_runs(dump.path) if one.get("directory") == "earlier/job")
    assert {entry["step"] for entry in first["ledger"]} == {0}


@pytest.mark.parametrize("auto_export", [None, True])
def test_remote_collector(dump, collector, monkeypatch, auto_export) -> None:
    """A collector elsewhere: the tree comes when asked, and only then."""
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "remote")
    monkeypatch.setenv("RANKPROBE_BIN_DIR", str(pathlib.Path(os.environ["RANKPROBE_BUILD_DIR"]) / "bin"))
    debugger = dump.debugger(task="tensor", **({} if auto_export is None else {"auto_export": auto_export}))
    _steps(2)
    debugger.close()
    if auto_export is None:
        assert not dump.path.exists()
        return
    assert len(_there(dump.path)) == 10  # per step dump, stack, construct, run_card; dump_tensor_data
    assert [p.name for p in sorted(dump.path.iterdir())] == ["manifest.json", "step0", "step1"]
    assert {p.split("/")[0] for p in _paths(dump.path)} == {"step0", "step1"}
    tensors = list(dump.path.glob("step1/*/dump_tensor_data/*.pt"))
    assert len(tensors) == 2 and all(torch.load(t).tolist() == [1.0, 1.0, 1.0] for t in tensors)


def test_a_tree_that_no_export_made_is_not_replaced(dump, collector, monkeypatch) -> None:
    """That of a process that was killed is: it has left a list in place of a manifest."""
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_BIN_DIR", str(pathlib.Path(os.environ["RANKPROBE_BUILD_DIR"]) / "bin"))
    debugger = dump.debugger(auto_export=True)
    place = f"proc{os.getpid()}"
    theirs = dump.path / "step0" / place / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    _steps(1)
    with pytest.warns(RuntimeWarning, match="step 0 was not exported.*was not made by an export"):
        debugger.wait_exported()
        _steps(1)
    debugger.wait_exported()
    assert theirs.read_text() == "precious" and os.listdir(theirs.parent) == ["notes.txt"]
    assert (dump.path / "step1" / place / "dump.json").is_file() and not (dump.path / "manifest.json").exists()
    again = Published(dump.path, lambda _: {}, dump.path / ".rankprobe-published", "r", {("step1", place)})
    fresh = dump.path / "fresh"
    fresh.mkdir()
    assert "was not made by an export" in again.put(fresh, ("step0", place), dump.path / "old")
    assert again.put(fresh, ("step1", place), dump.path / "old") == ""
    assert (dump.path / "old" / f"step1-{place}" / "dump.json").is_file()


def test_no_step_waits_for_a_collector_elsewhere(dump, collector, monkeypatch, tmp_path: pathlib.Path) -> None:
    """It answers once three steps are over: until then what fetches the first tree does not return."""
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    fetches = tmp_path / "fetches"
    fetches.write_text(f"#!/bin/sh\nwhile [ ! -e '{tmp_path}/go' ]; do sleep 0.05; done\nexec '{harness.BIN}/rankprobe' \"$@\"\n")
    fetches.chmod(0o755)
    monkeypatch.setattr("rankprobe._frontend.exports.find_binary", lambda name: str(fetches))
    debugger = dump.debugger(auto_export=True)
    _steps(3)
    assert not dump.path.exists() or not list(dump.path.glob("step*"))
    (tmp_path / "go").touch()
    debugger.wait_exported()
    assert sorted(path.name for path in dump.path.glob("step*")) == ["step0", "step1", "step2"]


def test_auto_export_of_an_unreachable_program_is_a_warning(dump, collector, monkeypatch) -> None:
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setattr("rankprobe._frontend.exports.find_binary", lambda name: "/bin/false")
    debugger = dump.debugger(auto_export=True)
    with pytest.warns(RuntimeWarning, match="step 0 was not exported"):
        _steps(1)
        debugger.wait_exported()


def test_what_a_killed_process_left_is_removed(dump, collector, monkeypatch) -> None:
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    host = socket.gethostname()
    (dump.path / f".rankprobe-rank0-{host}-{gone.pid}" / "step0").mkdir(parents=True)
    (dump.path / f".rankprobe-manifest-{host}-{gone.pid}").write_text("{")
    others = [dump.path / f".rankprobe-rank0-{host}-{os.getpid()}x", dump.path / f".rankprobe-rank0-elsewhere-{gone.pid}",
              dump.path / f".rankprobe-manifest-{host}-{os.getppid()}"]
    for other in others:
        other.write_text("of somebody else")
    dump.debugger(auto_export=True).close()
    assert sorted(dump.path.iterdir()) == sorted(others)


def test_bad_auto_export(tmp_path: pathlib.Path, dump) -> None:
    with pytest.raises(InvalidParameterError, match="auto_export"):
        PrecisionDebugger(dump_path=str(tmp_path), auto_export="yes")
    with pytest.raises(InvalidParameterError, match="auto_export"):
        dump.debugger(auto_export="yes")


def test_manifest_speaks_of_all_steps(dump) -> None:
    debugger = dump.debugger()
    _steps(3)
    debugger.close()
    assert _paths(dump.path) == _there(dump.path)
    assert {p.split("/")[0] for p in _paths(dump.path)} == {"step0", "step1", "step2"}


def test_own_places_win_and_others_are_kept() -> None:
    def part(step: int, rank: int, size: int) -> dict:
        return {"run": "r", "files": [{"path": f"step{step}/rank{rank}/dump.json", "bytes": size}],
                "gaps": [], "ledger": [{"step": step, "rank": f"rank{rank}", "stored_records": size}]}

    theirs = part(0, 1, 5)
    both = {key: part(0, 0, 7)[key] + part(0, 1, 1)[key] for key in ("files", "gaps", "ledger")}
    merged = merge_manifests([theirs, both, part(1, 0, 8)], {"rank0"})
    assert [(f["path"], f["bytes"]) for f in merged["files"]] == [
        ("step0/rank0/dump.json", 7), ("step0/rank1/dump.json", 5), ("step1/rank0/dump.json", 8)]
    assert [e["stored_records"] for e in merged["ledger"]] == [7, 5, 8] and merged["run"] == "r"


def test_earlier_runs_stay_in_the_manifest(tmp_path: pathlib.Path) -> None:
    def of(run: str, *steps: int) -> dict:
        return {"format": "f", "run": run, "files": [{"path": f"step{step}/rank0/dump.json"} for step in steps],
                "gaps": [{"step": step, "rank": "rank0", "reason": run} for step in steps]}

    def told() -> dict[str, list[str]]:
        return {one["run"]: [file["path"].partition("/")[0] for file in one["files"]] for one in read_runs(tmp_path)}

    def write(manifest: dict) -> None:
        for file in manifest["files"]:
            (tmp_path / file["path"]).parent.mkdir(parents=True, exist_ok=True)
        write_manifest(tmp_path, manifest, tmp_path / "scratch")

    write(of("one", 0, 1, 2))
    write(of("two", 0, 7))
    assert told() == {"two": ["step0", "step7"], "one": ["step1", "step2"]}
    assert [gap["step"] for gap in read_manifest(tmp_path, "one")["gaps"]] == [1, 2]
    write(of("three", 7))
    # The next process of a run: what the others left stays.
    write(merge_manifests([read_manifest(tmp_path, "three"), of("three", 8)], {"rank0"}))
    assert told() == {"three": ["step7", "step8"], "two": ["step0"], "one": ["step1", "step2"]}
    # A run goes on, and one that nothing is left of is not told.
    write(merge_manifests([read_manifest(tmp_path, "one"), of("one", 0)], {"rank0"}))
    assert told() == {"one": ["step0", "step1", "step2"], "three": ["step7", "step8"]}
    whole = json.loads((tmp_path / "manifest.json").read_text())
    assert list(whole)[0] == "format" and list(whole)[-1] == "earlier_runs" and "earlier_runs" not in whole["earlier_runs"][0]
    # Of a run of which a user has removed a tree, or all.
    shutil.rmtree(tmp_path / "step7")
    write(of("four", 9))
    assert told() == {"four": ["step9"], "one": ["step0", "step1", "step2"], "three": ["step8"]}
    assert [gap["step"] for gap in read_manifest(tmp_path, "three")["gaps"]] == [8]
    shutil.rmtree(tmp_path / "step8")
    write(of("four", 9))
    assert told() == {"four": ["step9"], "one": ["step0", "step1", "step2"]}


STRANGE = ("[]", '{"run": 3}', "{", '{"run": "x", "files": ["a.txt"]}', '{"run": "x", "files": null}',
           '{"run": "x", "gaps": {}}', '{"run": "x", "files": [{"path": "a.txt"}]}', '{"run": "x", "files": [{"path": 1}]}',
           '{"run": "x", "ledger": [{"step": 0, "rank": ["r"]}]}', "[" * 100_000, f'{{"run": "x", "a": {"[" * 500}{"]" * 500}}}')


@pytest.mark.parametrize("text", [*STRANGE, *(f'{{"run": "y", "earlier_runs": [{one}]}}' for one in STRANGE),
                                  '{"run": "y", "earlier_runs": 3}'], ids=lambda text: text[:40])
def test_a_strange_manifest_is_in_nobodys_way(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    (tmp_path / "step0/rank0").mkdir(parents=True)
    write_manifest(tmp_path, {"run": "one", "files": [{"path": "step0/rank0/dump.json"}]}, tmp_path / "scratch")
    assert [one["run"] for one in read_runs(tmp_path)] == ["one"]
    assert "earlier_runs" not in json.loads((tmp_path / "manifest.json").read_text())


def test_the_training_ends_well_whatever_dump_path_holds(dump, monkeypatch) -> None:
    debugger = dump.debugger()
    dump.path.mkdir(exist_ok=True)
    (dump.path / "manifest.json").write_text(STRANGE[3])
    _steps(1)
    debugger.close()
    assert _paths(dump.path) == _there(dump.path)
    # Whatever else may be wrong there.
    monkeypatch.setattr("rankprobe._frontend.exports.merge_manifests", lambda *_: 1 / 0)
    debugger = dump.debugger()
    _steps(1)
    with pytest.warns(RuntimeWarning, match="is not complete: division"):
        debugger.close()


@pytest.mark.skipif(torch.__version__ < "2", reason="torchrun of PyTorch 1.13 does not start on Python 3.11")
@pytest.mark.parametrize("remote", [False, True])
def test_two_ranks_without_a_name(tmp_path: pathlib.Path, request, remote: bool) -> None:
    """torchrun names no run: its ranks are one run all the same, in one tree."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": "L1", "dump_path": str(tmp_path / "dump"), "rank": [],
                                  "step": [], "auto_export": remote}))
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(rankprobe.__file__).parents[1]),
                   "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    if remote:
        environment["RANKPROBE_COLLECTOR"] = request.getfixturevalue("collector").address
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port",
                           str(free_port()), str(tmp_path / "train.py"), str(config)], env=environment,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    dump = tmp_path / "dump"
    assert sorted(str(p.relative_to(dump)) for p in dump.glob("step*/*")) == [
        "step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"]
    assert _paths(dump) == _there(dump)
    harness.wait_for(lambda: not [p for p in dump.iterdir() if p.name.startswith(".")], 60, "the end of the collector")
