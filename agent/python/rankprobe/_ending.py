# SPDX-License-Identifier: Apache-2.0
"""Final export of a job: brings the steps that are in its archive but not in its dump_path to dump_path."""

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
else:  # The supervisor runs without the package and imports modules from its own directory.
    import _manifests
    import _published
    from _collector_process import Collector
    from _job_directory import Failed, JobDirectory, lock, lost_of

# Timeout in seconds of one `rankprobe` command.
_EXPORT_SECONDS = 24 * 3600.0
_STEPS_AT_ONCE = 16
# Wait until the collector has read what killed processes had already sent.
_DISCONNECT_SECONDS = 3.0
# Wait for an export whose process was killed, before the collector is killed to end it.
_OTHER_EXPORT_SECONDS = 60.0
_TRIES = 5
# List file of StagedTree (common/io/staged_tree.h).
_PUBLISHED = pathlib.Path("staging/published")
# Directories for replaced trees: of this process, and of exports by the collector.
_OLD = pathlib.Path("old")
_OLDS = (_OLD, pathlib.Path("staging/old"))


class Ending:
    """Exports from the archive of `job` what is not in dump_path. The working directory is the job directory."""

    def __init__(self, job: JobDirectory, collector: Collector) -> None:
        self._collector = collector
        self._run, self._root, self._program, self._since = job.run, job.root, job.rankprobe, job.since

    def needed(self) -> bool:
        # Returns whether a user left anything that must be exported, delivered or listed.
        return any(any(pathlib.Path().glob(files)) for files in ("unfinished/*", "manifests/*", "kept/*.spool"))

    def export(self) -> int:
        """Exports to dump_path. Returns the number of processes that ended with undelivered records, which manifest.json lists. Raises
        Failed, which names the steps that could not be exported and kept records that could not be delivered."""
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
        """Exports the complete run to `target`, an absolute path. Returns and raises as export()."""
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
        """Runs `rankprobe` and returns its output. Restarts the collector and retries if it was killed or ended during the call, as a
        killed supervisor may have requested. Raises Failed."""
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("RANKPROBE_") and not key.lower().endswith("_proxy")}
        for left in reversed(range(_TRIES)):
            address = self._collector.ensure(same_address=False)
            try:
                done = subprocess.run([self._program, verb, "--collector", address, *words], env=environment,
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
            except subprocess.TimeoutExpired:
                raise Failed(f"rankprobe {verb} took longer than {seconds:.0f} s") from None
            if done.returncode in (0, 1):  # Status 1 means gaps, which the manifest lists.
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
        """Delivers the records that killed users had kept. Returns "", or the reason why some exist only in their files."""
        if not _kept():
            return ""
        # No user is left, but a child forked without exec may hold its parent's lock for ever, so the lock files are replaced.
        for held in pathlib.Path().glob("kept/*.lock"):
            # Replaced atomically: a spool without a lock file has no owner, and this process may be killed here.
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
        """Returns the locked descriptor of staging/, so that no export of a killed process runs concurrently. Raises Failed."""
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
        """Returns the losses that processes reported to the collector or, if it could store nothing (not even the run: `is_there`),
        wrote into the names of their files in unfinished/."""
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
            return 0  # The processes ended before anything was recorded.
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
            # A supervisor on another machine may have written the manifest in the meantime.
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
        """Exports `places` of these steps to dump_path. Returns their manifest and the reasons for refused places, which hold something
        that no export made."""
        # The name has the process id, because an export of a killed supervisor may continue writing to its own directory.
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
    """Returns the (step, directory of a rank) that dump_path lacks or has less of than
    the archive. A tree only grows, so equal counts mean equal trees."""
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
