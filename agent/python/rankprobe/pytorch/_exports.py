"""Trees of finished steps into dump_path, beside the training of the next step.

A private collector writes them itself. From a collector elsewhere they are
fetched by `rankprobe export` when the config says auto_export: this rank's
part of the tree, on this machine. manifest.json of dump_path speaks of all
steps once the process has ended.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import zlib
from typing import Any, Callable, Optional

from rankprobe.embedded import EmbeddedCollector, find_binary, root_lock

_SECTIONS = ("files", "gaps", "ledger", "incomplete", "conflicts")
_EXPORT_SECONDS = 3600


def _place(entry: dict) -> tuple[str, str]:
    """(step, directory of the rank) that an entry of a manifest speaks of."""
    if "path" in entry:
        step, rank, *_ = entry["path"].split("/")
        return step, rank
    return f"step{entry.get('step')}", str(entry.get("rank"))


def merge_manifests(parts: list[dict], rank: str) -> dict:
    """One manifest of several, older ones first. Of a place that more than one
    speaks of the last one counts; for places of other ranks the first part,
    dump_path's own manifest, knows best."""
    out = {key: value for key, value in parts[0].items() if key not in _SECTIONS}
    told: dict[tuple[str, str], dict] = {}
    for part in parts:
        found: dict[tuple[str, str], dict] = {}
        for section in _SECTIONS:
            for entry in part.get(section, []):
                found.setdefault(_place(entry), {}).setdefault(section, []).append(entry)
        for place, entries in found.items():
            if place[1] == rank or place not in told:
                told[place] = entries
    for section in _SECTIONS:
        out[section] = [entry for place in sorted(told) for entry in told[place].get(section, [])]
    return out


class Exports:
    """The exports of one process. `warn` tells of what failed: the training goes on."""

    def __init__(self, session: Any, run: str, root: str, embedded: Optional[EmbeddedCollector], calls: Any,
                 rank: Callable[[], Optional[int]], warn: Callable[[str], None]) -> None:
        self._session, self._run, self._embedded, self._calls = session, run, embedded, calls
        self._rank, self._warn = rank, warn
        self.root = embedded.root if embedded is not None else pathlib.Path(root).resolve()
        self._parts: list[bytes] = []
        self._executor: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._running: Optional[concurrent.futures.Future] = None

    def _label(self) -> str:
        rank = self._rank()
        return f"proc{os.getpid()}" if rank is None else f"rank{rank}"

    def begin(self, step: int) -> None:
        """Exports `step` in the background, after the one before it."""
        self.wait()
        if self._executor is None:
            self._executor = concurrent.futures.ThreadPoolExecutor(1, "rankprobe-export")
        self._running = self._executor.submit(self.now, step)

    def now(self, step: int) -> None:
        try:
            self._session.flush(60.0)
            if self._embedded is not None:
                with self._embedded.exporting():
                    self._calls.export(self._run, step, str(self.root))
                    manifest = (self.root / "manifest.json").read_bytes()
            else:
                manifest = self._fetch(step)
            self._parts.append(zlib.compress(manifest))
        except Exception as error:  # noqa: BLE001 - the training goes on
            text = f"step {step} was not exported to {self.root}"
            if self._embedded is not None:
                self._embedded.keep()
                text += f", its archive is kept in {self._embedded.directory}"
            self._warn(f"{text}: {error}")

    def _fetch(self, step: int) -> bytes:
        """This rank's part of a step from a collector elsewhere."""
        fresh = self.root / f".rankprobe-{self._label()}-{os.getpid()}"
        words = [find_binary("rankprobe"), "export", "--run", self._run, "--steps", str(step), "-o", str(fresh)]
        if self._rank() is not None:
            words += ["--ranks", str(self._rank())]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=_EXPORT_SECONDS)
            if done.returncode not in (0, 1):  # 1: with gaps, which the manifest lists
                raise RuntimeError((done.stderr or done.stdout).strip()[-1000:])
            tree = fresh / f"step{step}" / self._label()
            if not tree.is_dir():
                raise RuntimeError(f"the collector has no {tree.name} at step {step}")
            target = self.root / f"step{step}" / tree.name
            target.parent.mkdir(exist_ok=True)
            if target.exists():
                target.rename(fresh / "old")
            tree.rename(target)
            return (fresh / "manifest.json").read_bytes()
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def wait(self) -> None:
        """Until the tree of the last step is there."""
        if self._running is not None:
            concurrent.futures.wait([self._running])
            self._running = None

    def close(self) -> None:
        """Waits, and writes the manifest of all steps."""
        self.wait()
        if self._executor is not None:
            self._executor.shutdown()
        if not self._parts:
            return
        try:
            with root_lock(self.root) if self._embedded is None else self._embedded.exporting():
                self._write_manifest()
        except (OSError, ValueError) as error:
            self._warn(f"manifest.json of {self.root} is not complete: {error}")

    def _write_manifest(self) -> None:
        parts = [json.loads(zlib.decompress(part)) for part in self._parts]
        path = self.root / "manifest.json"
        if path.exists():
            there = json.loads(path.read_bytes())
            if there.get("run") == self._run:
                parts.insert(0, there)
        fresh = path.with_name(f".manifest-{os.getpid()}.json")
        fresh.write_text(json.dumps(merge_manifests(parts, self._label()), indent=1), encoding="utf-8")
        fresh.rename(path)
