# SPDX-License-Identifier: Apache-2.0
"""Export of finished steps to dump_path, during the training of the next step.

A private collector writes them itself; steps that it could not write are exported
at the end of the job. From another collector they are fetched by `rankprobe
export` if the config has auto_export: this rank's part of the step, on this
machine. manifest.json of dump_path lists all steps when the process has ended.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import glob
import os
import pathlib
import shutil
import subprocess
import zlib
from json import loads
from os import getpid
from typing import Any, Callable, Optional

from rankprobe import _native
from rankprobe._inputs import run_flag, shell_word, show
from rankprobe._manifests import merge_manifests, named_places, read_manifest, read_parts, write_manifest
from rankprobe._published import EARLIER, Place, Published
from rankprobe._say import say
from rankprobe.embedded import EmbeddedCollector, find_binary, root_lock

_EXPORT_SECONDS = 3600
_FLUSH_SECONDS = 60.0
_STUCK_FLUSH_SECONDS = 0.25


class Exports:
    """The exports of one process. `warn` reports failures, which do not stop the training."""

    def __init__(self, session: Any, run: str, root: str, embedded: Optional[EmbeddedCollector],
                 rank: Callable[[], Optional[int]], warn: Callable[[str], None]) -> None:
        self._run, self.embedded, self._rank, self._warn = run, embedded, rank, warn
        self.root = embedded.root if embedded is not None else pathlib.Path(root).resolve()
        self._steps: Any
        if embedded is None:
            self._steps = _Fetches(session, run, self.root, self._label, rank)
        else:
            self._steps = session.step_exports(embedded.address, run, str(self.root), str(embedded.directory),
                                               str(embedded.manifests))
        self._session = session
        self._told = False
        self._since = embedded.since if embedded is not None else 0.0

    def _label(self) -> str:
        rank = self._rank()
        return f"proc{getpid()}" if rank is None else f"rank{rank}"

    def commit(self, kept: bool) -> None:
        """Call after stop(), which returned `kept`. Waits for a private collector that was killed
        and is restarted, so that the step's records are committed."""
        if self.embedded is not None and not self.embedded.commit(self._session, kept):
            self._steps.stuck()
            # Not a warning, which would name an unrelated line of the script and may be disabled.
            say("rankprobe: the private collector does not accept records: "
                  f"{self.embedded.why_stuck()}; they wait in this process, and the training continues")

    def begin(self, step: int) -> None:
        """Exports `step` in the background, after earlier exports."""
        self._steps.begin(step)
        self._tell()

    def wait(self) -> None:
        """Waits until the last step is exported."""
        self._steps.wait()
        self._tell()

    def _tell(self) -> None:
        for fault in self._steps.take_faults():
            if self.embedded is not None:
                self.embedded.unfinished = True
                fault += ("; what the collector has by then is exported there when the last process of the job has ended"
                          if self.embedded.directory.is_dir() else
                          f"; {self.embedded.directory}, where a private collector keeps its data until the end of the job, is missing")
            self._warn(fault)

    def close(self) -> None:
        """Waits for all exports, and writes the manifest of all steps."""
        self._steps.close()
        self._tell()
        try:
            if self.embedded is None:
                parts = [loads(part) for part in self._steps.take_manifests()]
                scratch = self.root / f".rankprobe-manifest-{_here()}"
                with root_lock(self.root):
                    self._write_manifest(parts, scratch)
                    self._steps.published().forget()
            else:
                self.embedded.ensure_supervised()
                with self.embedded.exporting():
                    self._write_manifest(read_parts(self.embedded.manifests),
                                         self.embedded.directory / f"manifest-{getpid()}")
                    self.embedded.manifests.unlink(missing_ok=True)
        except Exception as error:  # noqa: BLE001 - the training must not fail at its end
            if self.embedded is not None:
                self.embedded.unfinished = True
            self._warn(f"manifest.json of {self.root} is not complete: {error}")
            _native.raise_later_if_programs(error)

    def _write_manifest(self, parts: list[dict[str, Any]], scratch: pathlib.Path) -> None:
        if not parts:
            return
        there = read_manifest(self.root, self._run, self._since)
        if there is not None:
            parts.insert(0, there)
        write_manifest(self.root, merge_manifests(parts, {self._label()}), scratch, self._since)


def tell_place(run: str, root: str, exports: Optional[Exports], rank: Optional[int]) -> None:
    """Prints one line with the destination for the user of the job; only one rank does."""
    if exports is not None and exports.embedded is not None:
        mine = exports.embedded.first_to_tell()
    else:
        mine = rank in (None, 0)
    if not mine:
        return
    collector = os.environ.get("RANKPROBE_COLLECTOR", "")
    text = (f"dump.json is at {exports.root}/step*/ (run {run}){_making_way(exports.root, run)}" if exports is not None else
            f"records go to run {run} at {collector}; "
            f"rankprobe export --collector {shell_word(collector)} {run_flag(run)} -o {shell_word(str(root))} writes dump.json")
    say(f"rankprobe: {show(text)}")


def _making_way(root: pathlib.Path, run: str) -> str:
    """Returns a text that says where earlier steps of the directory are kept, or ""."""
    there = sorted(set(named_places(root).values()))
    if not there:
        return ""
    whose = "an earlier attempt" if there == [run] else f"run {there[0]}" if len(there) == 1 else f"{len(there)} earlier runs"
    return f"; steps of {whose} that this run records too are moved to {root / EARLIER}"


def _here() -> str:
    """Returns the suffix of this process's temporary files. It has the host name, because hosts may share a dump_path."""
    return f"{os.uname().nodename}-{getpid()}"


def _remove_leftovers(published: Published, root: pathlib.Path) -> None:
    """Removes temporary files of killed processes of this machine."""
    for left in root.glob(f".rankprobe-*-{glob.escape(os.uname().nodename)}-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            if left.is_dir() and not left.is_symlink():
                with contextlib.suppress(OSError):  # Keeps the directory if its content could not be put back.
                    published.put_back(left / "old")
                    shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


class _Fetches:
    """Exports from a named collector; the counterpart of StepExporter for a private one."""

    def __init__(self, session: Any, run: str, root: pathlib.Path, label: Callable[[], str],
                 rank: Callable[[], Optional[int]]) -> None:
        self._session, self._run, self._root, self._label, self._rank = session, run, root, label, rank
        self._threads: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._running: Optional[concurrent.futures.Future[Any]] = None
        self._faults: list[str] = []
        self._parts: list[bytes] = []
        self._put: set[Place] = set()
        # Whether the last wait for a commit timed out.
        self._stuck = False
        _remove_leftovers(self.published(), root)

    def begin(self, step: int) -> None:
        """Queues the export after earlier ones. Does not block step(), even if an earlier export waits for a collector that hangs."""
        try:
            if self._threads is None:
                self._threads = concurrent.futures.ThreadPoolExecutor(1, "rankprobe-export")
            self._running = self._threads.submit(self._now, step)
        except RuntimeError:  # At exit no thread can be started.
            self._now(step)

    def wait(self) -> None:
        if self._running is not None:
            concurrent.futures.wait([self._running])
            self._running = None

    def take_faults(self) -> list[str]:
        faults, self._faults = self._faults, []
        return faults

    def take_manifests(self) -> list[bytes]:
        return [zlib.decompress(part) for part in self._parts]

    def close(self) -> None:
        self.wait()
        if self._threads is not None:
            self._threads.shutdown()

    def _now(self, step: int) -> None:
        try:
            self._session.flush(_STUCK_FLUSH_SECONDS if self._stuck else _FLUSH_SECONDS)
            self._stuck = False
            self._parts.append(zlib.compress(self._fetch(step)))
        except Exception as error:  # noqa: BLE001 - the training continues
            self._stuck = isinstance(error, TimeoutError)
            self._faults.append(f"step {step} was not exported to {self._root}: {error}")
            _native.raise_later_if_programs(error)

    def published(self) -> Published:
        """Returns the current state of the directory, to which other ranks and jobs write too."""
        return Published(self._root, named_places, self._root / ".rankprobe-published", self._run, self._put)

    def _fetch(self, step: int) -> bytes:
        """Fetches and publishes this rank's part of a step. Returns its manifest. Raises RuntimeError and OSError."""
        fresh = self._root / f".rankprobe-{self._label()}-{_here()}"
        words = [find_binary("rankprobe"), "export", "--run", self._run, "--steps", str(step), "-o", str(fresh)]
        if self._rank() is not None:
            words += ["--ranks", str(self._rank())]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=_EXPORT_SECONDS)
            if done.returncode not in (0, 1):  # Status 1 means gaps, which the manifest lists.
                raise RuntimeError((done.stderr or done.stdout).strip()[-1000:])
            tree = fresh / f"step{step}" / self._label()
            if not tree.is_dir():
                raise RuntimeError(f"the collector has no {tree.name} at step {step}")
            fault = self.published().put(tree, (f"step{step}", tree.name), fresh / "old")
            if fault:
                raise RuntimeError(fault)
            self._put.add((f"step{step}", tree.name))
            return (fresh / "manifest.json").read_bytes()
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
