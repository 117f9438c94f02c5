# SPDX-License-Identifier: Apache-2.0
"""Publication of directories of ranks below a dump_path, and the record of those that exports have made.

The counterpart of PublishedRanks for exports of the collector (common/io/published_ranks.h): only directories that a manifest or a
list names may be replaced, and those of another job move to `earlier/` of the dump_path. Imports only the standard library, because
the supervisor of a private collector runs without the package.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import pathlib
import re
import stat
from typing import Callable, Container, Iterator, Mapping, Optional

Place = tuple[str, str]  # ("step0", "rank1")
EARLIER = "earlier"
_MAX_NAME_BYTES = 100


def _directory_name(run: str) -> str:
    """Converts a run's name to a directory name, in the same way as common/io/published_ranks.cc."""
    name = re.sub(rb"[^A-Za-z0-9._-]", b"_", run.encode("utf-8", "replace")[:_MAX_NAME_BYTES]).decode()
    return f"_{name[1:]}" if name.startswith(".") else name or "unnamed"


class Published:
    """The directories of one dump_path, `root`.

    `named`: returns the places that the manifests of a root name, with the run of each (named_places of _manifests); called only if
    a place is occupied. `list_path`: a file shared by all processes that write to `root`; it lists, one per line, places that may
    not be in a manifest yet. `run`: the run that publishes. `own`: places that it has published already; None means those of the list."""

    def __init__(self, root: pathlib.Path, named: Callable[[pathlib.Path], Mapping[Place, str]], list_path: pathlib.Path,
                 run: str, own: Optional[Container[Place]] = None) -> None:
        self._root, self._named, self._list = root, named, list_path
        self._run, self._own = run, own

    @functools.cached_property
    def _runs(self) -> Mapping[Place, str]:
        """Run of every place that an export made; "" if the run is not known."""
        return {**dict.fromkeys(self._listed(), ""), **self._named(self._root)}

    def _is_of_another_job(self, place: Place) -> bool:
        """Returns whether an existing place, made by an export, belongs to another job. A restart is another job, although its run may
        have the same name."""
        return place not in (self._listed() if self._own is None else self._own)

    def _listed(self) -> set[Place]:
        try:
            lines = self._list.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return set()
        return {(step, rank) for step, _, rank in (line.partition("/") for line in lines)}

    @staticmethod
    def _directory(opened: contextlib.ExitStack, name: str, **at: int) -> int:
        """Opens a directory until `opened` is closed. Follows no link below `root`, also none that is created concurrently, since all
        paths are relative to descriptors."""
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, **at)
        opened.callback(os.close, descriptor)
        return descriptor

    def put(self, source: pathlib.Path, place: Place, old: pathlib.Path) -> str:
        """Moves the directory `source` to its place. An existing directory of this job moves to `old`, where put_back() finds it, one
        of another job to EARLIER. All must be on one file system. Returns "", or the reason why the place cannot be used. Raises
        OSError."""
        step, rank = place
        with contextlib.ExitStack() as opened:
            above = self._directory(opened, os.path.realpath(self._root))
            with contextlib.suppress(FileExistsError):
                os.mkdir(step, 0o750, dir_fd=above)
            try:
                below = self._directory(opened, step, dir_fd=above)
            except OSError as error:  # O_NOFOLLOW reports a link as ENOTDIR.
                return f"{self._root / step} is a symbolic link or no directory: {error.strerror}"
            moved: Optional[pathlib.Path] = None
            aside: Optional[int] = None
            with contextlib.suppress(FileNotFoundError):
                there = os.stat(rank, dir_fd=below, follow_symlinks=False)
                if not stat.S_ISDIR(there.st_mode) or place not in self._runs:
                    return (f"{self._root / step / rank} exists and was not made by an export (no manifest names it): "
                            "move it elsewhere")
                if self._is_of_another_job(place):
                    aside = self._set_aside(opened, above, below, place)
                else:
                    moved = old / f"{step}-{rank}"
            if rank.startswith("proc"):
                # Processes without ranks of two runs do not form one job, so a step with both could not be analyzed.
                for other in os.listdir(below):
                    if (other.startswith("proc") and self._runs.get((step, other), self._run) != self._run
                            and self._is_of_another_job((step, other))):
                        self._set_aside(opened, above, below, (step, other))
            # Listed before the move, so that a successor may replace the directory if this process is killed in between.
            with self._locked_list() as file:
                os.write(file, f"{step}/{rank}\n".encode())
            if moved is not None:
                old.mkdir(mode=0o750, exist_ok=True)
                try:
                    os.rename(rank, moved, src_dir_fd=below)
                except FileNotFoundError:  # A user has removed it in the meantime.
                    moved = None
            try:
                os.rename(source, rank, dst_dir_fd=below)
            except OSError:
                if moved is not None:  # Restores the previous directory.
                    os.rename(moved, rank, dst_dir_fd=below)
                elif aside is not None:
                    os.rename(rank, rank, src_dir_fd=aside, dst_dir_fd=below)
                raise
        return ""

    def _set_aside(self, opened: contextlib.ExitStack, above: int, below: int, place: Place) -> int:
        """Moves a directory from the step, open at `below`, to an unused name below EARLIER. Returns a descriptor of the new parent."""
        step, rank = place
        name = _directory_name(self._runs[place])
        shelf = self._made(opened, EARLIER, above)
        for number in itertools.count(1):
            target = self._made(opened, step, self._made(opened, name if number == 1 else f"{name}.{number}", shelf))
            try:
                os.stat(rank, dir_fd=target, follow_symlinks=False)
            except FileNotFoundError:
                break
        os.rename(rank, rank, src_dir_fd=below, dst_dir_fd=target)
        return target

    def _made(self, opened: contextlib.ExitStack, name: str, above: int) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o750, dir_fd=above)
        return self._directory(opened, name, dir_fd=above)

    def put_back(self, old: pathlib.Path) -> None:
        """Restores the directories in `old` for which nothing was published, because put() or an export of the collector
        (common/io/staged_tree.h) was killed. Afterwards `old` can be removed. Raises OSError, and `old` is still needed then."""
        for moved in sorted(old.glob("step*-*")):
            step, _, rank = moved.name.rpartition("-")
            with contextlib.ExitStack() as opened:
                above = self._directory(opened, os.path.realpath(self._root))
                try:
                    below = self._directory(opened, step, dir_fd=above)
                except FileNotFoundError:  # A user has removed the step.
                    continue
                try:
                    os.stat(rank, dir_fd=below, follow_symlinks=False)
                except FileNotFoundError:
                    os.rename(moved, rank, dst_dir_fd=below)

    @contextlib.contextmanager
    def _locked_list(self) -> Iterator[int]:
        """Yields a descriptor for appending to the list, under a lock that excludes other writers and forget()."""
        while True:
            file = os.open(self._list, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
            try:
                with contextlib.suppress(OSError):  # The file system may not support locks.
                    fcntl.flock(file, fcntl.LOCK_EX)
                if self._is_list(file):
                    yield file
                    return
            finally:
                os.close(file)

    def _is_list(self, file: int) -> bool:
        """Returns whether the open file is still the list; forget() may have replaced it."""
        try:
            return os.path.samestat(os.fstat(file), os.lstat(self._list))
        except FileNotFoundError:
            return False

    def forget(self) -> None:
        """Removes from the list what the manifests name now. The caller holds the lock of `root`."""
        if not self._list.exists():
            return
        with self._locked_list():
            rest = sorted(self._listed() - set(self._named(self._root)))
            if rest:
                fresh = self._list.with_name(f"{self._list.name}-{os.uname().nodename}-{os.getpid()}")
                fresh.write_text("".join(f"{step}/{rank}\n" for step, rank in rest), encoding="utf-8")
                fresh.replace(self._list)
            else:
                self._list.unlink(missing_ok=True)
