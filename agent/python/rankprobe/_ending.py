# SPDX-License-Identifier: Apache-2.0
"""Brings what is in the archive of a job, and not in its dump_path, there."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankprobe import _manifests, _published
    from rankprobe._collector_process import Collector
    from rankprobe._job_directory import Failed, JobDirectory, lock, lost_of
else:  # beside this file, without the package
    import _manifests
    import _published
    from _collector_process import Collector
    from _job_directory import Failed, JobDirectory, lock, lost_of

# Of one `rankprobe` that exports steps.
_EXPORT_SECONDS = 24 * 3600.0
_STEPS_AT_ONCE = 16
# What a process that was killed had sent already is taken from its sockets.
_DISCONNECT_SECONDS = 3.0
# Until an export that goes on without its process is ended with the collector.
_OTHER_EXPORT_SECONDS = 60.0
_TRIES = 5
# Of StagedTree (common/io/staged_tree.h).
_PUBLISHED = pathlib.Path("staging/published")
# What made way for a tree, here and there.
_OLD = pathlib.Path("old")
_OLDS = (_OLD, pathlib.Path("staging/old"))


class Ending:
    """What is in the archive and not in dump_path, into dump_path."""

    def __init__(self, job: JobDirectory, collector: Collector) -> None:
        self._collector = collector
        self._run, self._root, self._program, self._since = job.run, job.root, job.rankprobe, job.since

    def needed(self) -> bool:
        return any(any(pathlib.Path().glob(files)) for files in ("unfinished/*", "manifests/*", "kept/*.spool"))

    def export(self) -> int:
        """Failed names the steps that are not there afterwards, and what was kept and is not delivered. How many
        processes ended with something that never came: manifest.json says so."""
        self._await_disconnects()
        fault = self._deliver_kept()
        staging = self._own_staging()
        try:
            lost = self._export()
        except Failed as error:
            raise Failed("; ".join(filter(None, (fault, str(error))))) from None
        finally:
            os.close(staging)
        if fault:
            raise Failed(fault)
        return lost

    def export_all(self, target: str) -> int:
        """The whole run to another place, an absolute path. Failed and the count as export()."""
        fault = self._deliver_kept()
        self._call("export", f"--run={self._run}", "-o", target)
        losses = self._losses()
        if losses:
            root = pathlib.Path(target)
            parts = [_manifests.read_manifest(root, self._run, self._since), _manifests.part_of_losses(self._run, losses)]
            _manifests.write_manifest(root, _manifests.merge_manifests([part for part in parts if part], None),
                                      root / ".rankprobe-manifest", self._since)
        if fault:
            raise Failed(fault)
        return len(losses)

    def _call(self, verb: str, *words: str, seconds: float = _EXPORT_SECONDS) -> str:
        """Output of `rankprobe`; the collector is started again if it was killed, or ended while it was asked: a
        supervisor that was killed had told it to."""
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("RANKPROBE_") and not key.lower().endswith("_proxy")}
        for left in reversed(range(_TRIES)):
            address = self._collector.ensure(same_address=False)
            try:
                done = subprocess.run([self._program, verb, "--collector", address, *words], env=environment,
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
            except subprocess.TimeoutExpired:
                raise Failed(f"rankprobe {verb} took longer than {seconds:.0f} s") from None
            if done.returncode in (0, 1):  # 1: with gaps, which the manifest lists
                return done.stdout
            if left == 0 or self._collector.serves():
                break
        raise Failed((done.stderr or done.stdout).strip()[-1000:])

    def _await_disconnects(self) -> None:
        deadline = time.monotonic() + _DISCONNECT_SECONDS
        while time.monotonic() < deadline:
            agents = json.loads(self._call("status", "--json"))["agents"]
            if not any(agent["connected"] for agent in agents):
                return
            time.sleep(0.02)

    def _deliver_kept(self) -> str:
        """What users who were killed had kept and not delivered. "", or why some of it is still there and nowhere else."""
        if not _kept():
            return ""
        # Nobody who keeps anything is left; what was forked without exec holds its parent's locks, and would do so for good.
        for held in pathlib.Path().glob("kept/*.lock"):
            # In one step: a spool whose lock is gone is nobody's, and we may be killed here, too.
            free = held.with_suffix(".free")
            free.touch(mode=0o600)
            free.replace(held)
        try:
            said = self._call("deliver", "kept")
        except Failed as error:
            said = str(error)
        left = _kept()
        why = "; ".join(line for line in said.splitlines() if not line.startswith("delivered: "))
        return f"{len(left)} files with records of killed processes were not delivered: {why}" if left else ""

    def _own_staging(self) -> int:
        """So that no export of a process that was killed goes on beside us."""
        directory = pathlib.Path("staging")
        directory.mkdir(mode=0o750, exist_ok=True)
        deadline = time.monotonic() + _OTHER_EXPORT_SECONDS
        while (held := lock("staging/lock", fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
            if time.monotonic() > deadline + _OTHER_EXPORT_SECONDS:
                raise Failed(f"another export holds {directory.absolute()}")
            if time.monotonic() > deadline:
                self._collector.stop(signal.SIGKILL)
            time.sleep(0.02)
        return held

    def _is_there(self) -> bool:
        return any(run["run"] == self._run for run in json.loads(self._call("runs", "--json"))["runs"])

    def _recorded(self) -> list[dict[str, Any]]:
        steps = json.loads(self._call("status", f"--run={self._run}", "--steps", "--json"))["steps"]
        return [step for step in steps if not step["deleted"]]

    def _losses(self, is_there: bool = True) -> list[tuple[str, int, int, str]]:
        """As their processes told the collector, or, when that could keep nothing (not even the run: `is_there`), left in
        the name of their marks."""
        losses = []
        told = self._call("ledger", f"--run={self._run}", "--counts", "--json") if is_there else ""
        for line in told.splitlines():
            account = json.loads(line)
            losses += [(_directory_of(account), int(gap["records"]), int(gap["payloads"]), gap["detail"])
                       for gap in account["gaps"] if int(account["step"]) < 0 and gap["reason"] == "PROCESS_EXIT"]
        ranks = {rank for rank, *_ in losses}
        left = [lost for mark in sorted(pathlib.Path().glob("unfinished/*")) if (lost := lost_of(mark.name))]
        return losses + [(lost.rank, lost.records, lost.payloads,
                          (f"steps {lost.first_step} to {lost.last_step}: " if lost.first_step >= 0 else "")
                          + "the process ended before the collector received them")
                         for lost in left if lost.rank not in ranks]

    def _export(self) -> int:
        is_there = self._is_there()
        if not is_there and not self._losses(is_there):
            return 0  # they ended before anything was recorded
        recorded = self._recorded() if is_there else []
        manifest = _manifests.read_manifest(self._root, self._run, self._since)
        parts = [] if manifest is None else [manifest]
        for file in sorted(pathlib.Path().glob("manifests/*")):
            theirs = _manifests.read_parts(file)
            pid = int(file.name.partition("-")[0])
            own = {_directory_of(step) for step in recorded if step["pid"] == pid}
            if theirs:
                parts = [_manifests.merge_manifests([*parts, *theirs], own)]
        missing = _missing(recorded, parts)
        published = _published.Published(self._root, _manifests.named_places, _PUBLISHED, self._run)
        for old in _OLDS:
            published.put_back(old)
            shutil.rmtree(old, ignore_errors=True)
        faults = []
        steps = sorted({step for step, _ in missing})
        for at in range(0, len(steps), _STEPS_AT_ONCE):
            some = steps[at:at + _STEPS_AT_ONCE]
            try:
                made, refused = self._export_steps(some, {place for place in missing if place[0] in some}, published)
                parts = [_manifests.merge_manifests([*parts, made], None)]
                faults += refused
            except (Failed, OSError) as error:
                faults.append(f"steps {', '.join(map(str, some))}: {error}")
        losses = self._losses(is_there)
        if losses:
            parts = [_manifests.merge_manifests([*parts, _manifests.part_of_losses(self._run, losses)], None)]
        if parts:
            # That of another machine may have written there since.
            now = _manifests.read_manifest(self._root, self._run, self._since)
            if now is not None:
                own = {_directory_of(step) for step in recorded} | {rank for rank, *_ in losses}
                parts = [_manifests.merge_manifests([now, parts[0]], own)]
            _manifests.write_manifest(self._root, parts[0], pathlib.Path("manifest.new"), self._since)
        if faults:
            raise Failed("; ".join(faults))
        return len(losses)

    def _export_steps(self, steps: list[int], places: set[tuple[int, str]],
                      published: _published.Published) -> tuple[dict[str, Any], list[str]]:
        """The manifest of these steps, when `places` of them are in dump_path, and why some are not: there is something
        that no export made."""
        # An export of a supervisor that was killed may go on writing to its own for a while.
        fresh = pathlib.Path(f"fresh-{os.getpid()}")
        for left in pathlib.Path().glob("fresh-*"):
            shutil.rmtree(left, ignore_errors=True)
        self._call("export", f"--run={self._run}", "--steps", ",".join(map(str, steps)), "-o", str(fresh))
        refused: dict[_published.Place, str] = {}
        for step, place in sorted(places):
            fault = published.put(fresh / f"step{step}" / place, (f"step{step}", place), _OLD)
            if fault:
                refused[f"step{step}", place] = fault
        manifest = _manifests.without(json.loads((fresh / "manifest.json").read_bytes()), refused)
        for left in (fresh, _OLD):
            shutil.rmtree(left, ignore_errors=True)
        return manifest, list(refused.values())


def _kept() -> list[pathlib.Path]:
    return sorted(pathlib.Path().glob("kept/*.spool"))


def _directory_of(step: dict[str, Any]) -> str:
    return f"proc{step['pid']}" if step["rank"] is None else f"rank{step['rank']}"


def _missing(recorded: list[dict[str, Any]], parts: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """(step, directory of a rank) that dump_path lacks, or has less of than the
    archive: a tree only ever grows, so equal counts are equal trees."""
    told = {(entry["step"], entry["rank"], entry["expected_records"], entry["stored_records"])
            for part in parts for entry in part.get("ledger", [])}
    doubtful = {_manifests.place_of(gap) for part in parts for gap in part.get("gaps", [])}
    places: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for step in recorded:
        places.setdefault((step["step"], _directory_of(step)), []).append(step)
    missing = set()
    for (number, place), lives in places.items():
        last = max(lives, key=lambda life: (life["complete"], life["updated_unix_ns"]))
        key = (number, place, last["expected_records"], last["stored_records"])
        if len(lives) > 1 or key not in told or (f"step{number}", place) in doubtful:
            missing.add((number, place))
    return missing
