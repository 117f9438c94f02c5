# SPDX-License-Identifier: Apache-2.0
"""The directory of a private collector, dump_path/.rankprobe/collector-HOST.

    job.json         run, root (dump_path), the programs, the lock file of root,
                     whether the job made root, when the job began
    launch           where the ranks of the job meet; empty: not known
    data/            the archive
    users.lock       every user holds it shared; the kernel lets it go whatever
                     way the user ends
    supervisor.lock  held by the supervisor
    standby.lock     held by the process that waits to follow the supervisor
    socket           what the collector listens on; where no socket can be made
                     there, or its name is too long, it is in spare_directory
    listens          there while the collector serves: where, as it was told
    address          the same for others, also after it was killed and started
                     again
    unfinished/*     one for each user that has not said that all it recorded
                     is in dump_path; its name says what was lost with the user
                     (lost_name)
    manifests/*      of its exports so far
    kept/*           records of users until they are committed
                     (agent/runtime/session/spool.h)

EmbeddedCollector (embedded.py) makes it, whole, and nobody else does. Its
processes, supervisors and collector, have it as their working directory, and
not its name: one that comes too late, when a directory of another job has the
name, harms nothing.

Needs the standard library alone and no other file of the package: the
supervisor runs without them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import stat
import sys
import tempfile
import time
from typing import Callable, Iterator, NamedTuple, Optional

# Free space that the collector leaves to the training: it goes on, and the records wait.
MIN_FREE_BYTES = 64 << 20
# Exit code of what starts a supervisor that was killed before it said how it went.
KILLED = 2
_REMOVE_SECONDS = 5.0
SUPERVISOR = pathlib.Path(__file__).resolve().with_name("_supervise.py")


class Failed(Exception):
    """What dump_path does not get; the text is for a person."""


def lock(path: str, how: int) -> Optional[int]:
    """A descriptor that holds the lock; None: somebody else does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def say(text: str) -> None:
    print(f"rankprobe: {text}", file=sys.stderr, flush=True)


def read(path: str) -> str:
    """Its text; "" if there is no such file."""
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def temporary_directory() -> pathlib.Path:
    """The directory for temporary files. Where tempfile finds none that takes files it is /tmp, whose use then fails as on a full disk."""
    try:
        return pathlib.Path(tempfile.gettempdir())
    except FileNotFoundError:  # tempfile tries the working directory last, which a job may have removed
        return pathlib.Path("/tmp")


def note_of(place: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """Where a person is told about the archive that stays in `place`."""
    return directory / f"rankprobe-{place.name}.txt"


class Lost(NamedTuple):
    """What a process could not deliver before it ended; steps -1: it had no records."""

    rank: str  # its directory
    records: int
    payloads: int
    first_step: int
    last_step: int


_LOST = re.compile(r"[0-9a-f-]+\.((?:rank|proc)\d+)\.(\d+)\.(\d+)\.(-1|\d+)\.(-1|\d+)")


def lost_name(mark: str, rank: str, lost: tuple[int, int, int, int]) -> str:
    return ".".join([mark, rank, *map(str, lost)])


def lost_of(mark: str) -> Optional[Lost]:
    """What the name of a mark says."""
    found = _LOST.fullmatch(mark)
    return Lost(found[1], *map(int, found.groups()[1:])) if found else None


def open_own(path: pathlib.Path) -> int:
    """A descriptor of a directory that only this user can have made and change: programs are run, and addresses
    believed, from what is in it. Failed: it is a link, somebody else's, or open to others; FileNotFoundError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except NotADirectoryError:
        raise Failed(f"{path} is a link or no directory: it is not used") from None
    found = os.fstat(fd)
    own = os.geteuid(), 0
    if _made_by(found) != own and _made_by(found) != _made_here(path.parent, own):
        os.close(fd)
        raise Failed(f"{path} belongs to user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):04o}: others may "
                     "have made it or can change it, so it is not used; remove it, or take another dump_path")
    return fd


def _made_by(found: os.stat_result) -> tuple[int, int]:
    return found.st_uid, stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)


def _made_here(directory: pathlib.Path, own: tuple[int, int]) -> tuple[int, int]:
    """As what this user makes looks on a file system with other owners (root squash) or modes (SMB)."""
    with contextlib.suppress(OSError):
        probe = tempfile.mkdtemp(prefix=".rankprobe-", dir=directory)
        try:
            return _made_by(os.lstat(probe))
        finally:
            os.rmdir(probe)
    return own


class JobDirectory:
    """A directory that is there, and the working directory of this process from now on.

    FileNotFoundError: it is not there. Failed: see open_own. `path`: its name, as long as is_there(). Its files are opened by their names in it.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        os.close(open_own(path.parent))
        fd = open_own(path)
        try:
            os.fchdir(fd)
            found = os.fstat(fd)
        finally:
            os.close(fd)
        self._key = found.st_dev, found.st_ino
        job = json.loads(read("job.json") or "null")
        if job is None:
            raise FileNotFoundError(f"{path} is not a directory of a job")
        self.run: str = job["run"]
        self.root = pathlib.Path(job["root"])
        self.rankprobed: str = job["rankprobed"]
        self.rankprobe: str = job["rankprobe"]
        self._root_lock = pathlib.Path(job["lock"])
        self._made_root: bool = job.get("made", False)
        self.since: float = job.get("since", 0.0)

    @property
    def spare_directory(self) -> pathlib.Path:
        """Where the socket is that cannot be in `path`."""
        return temporary_directory() / f"rankprobe-{os.getuid()}-{self._key[0]:x}-{self._key[1]:x}"

    def is_there(self) -> bool:
        """Its name is still its own."""
        return self._is_this(self.path)

    def _is_this(self, path: pathlib.Path) -> bool:
        try:
            found = os.stat(path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._key

    def processes(self, wanted: Callable[[list[bytes]], bool]) -> Iterator[int]:
        """Others that work in it, by their command lines."""
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != os.getpid() and self.is_process(int(name), wanted):
                yield int(name)

    def is_process(self, pid: int, wanted: Callable[[list[bytes]], bool]) -> bool:
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return wanted(words) and self._is_this(pathlib.Path(f"/proc/{pid}/cwd"))

    # --- its end

    def remove(self) -> Optional[str]:
        """None, or why it cannot be. It gets another name first, so that half
        of it is never seen."""
        if not self.is_there():
            return None
        try:
            self.path.rename(self._gone())
        except OSError as error:
            return str(error)
        self.remove_gone()
        return None

    def _gone(self) -> pathlib.Path:
        return self.path.with_name(f"gone-{self._key[1]:x}")

    def remove_gone(self) -> None:
        """What remove() did, or was killed before it could."""
        gone = self._gone()
        if self._is_this(gone):
            # A supervisor that was killed may have started a collector of which nothing
            # was to be seen yet. The standby goes on with the removal should we be killed.
            for pid in self.processes(lambda words: b"--job-dir" in words or words == [b""]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + _REMOVE_SECONDS
            while gone.exists() and time.monotonic() < deadline:
                shutil.rmtree(gone, ignore_errors=True)
        shutil.rmtree(self.spare_directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(self.path.parent)
            if self._made_root:  # of a job that recorded nothing; refused where anything lies
                os.rmdir(self.root)
        self._remove_root_lock()

    def _remove_root_lock(self) -> None:
        """A process that was killed while it held it left it (root_lock of embedded.py)."""
        path = self._root_lock
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                path.unlink()
        except OSError:  # it is held
            pass
        finally:
            os.close(fd)

    def leave(self, reason: str) -> None:
        """The archive stays, under a name that the next user does not take."""
        if not self.is_there():  # a new job may have created another one at this path
            say(f"not all of run {self.run} is in {self.root}: {reason}; {self.path} was removed")
            return
        place = self.path.with_name(f"left-{time.time_ns():x}")
        try:
            self.path.rename(place)
        except OSError:
            place = self.path
        command = shlex.join([sys.executable, str(SUPERVISOR), str(place), "--finish"])
        line = (f"not all of run {self.run} is in {self.root}: {reason}. Its archive stays in {place}; "
                f"this exports it and removes the archive: {command}")
        say(line)
        for directory in (self.root, place, temporary_directory()):
            note = note_of(place, directory)
            with contextlib.suppress(OSError):
                note.unlink(missing_ok=True)
            try:
                # Mode "x" does not follow a link and does not open a pipe that another user may have planted.
                with open(note, "x", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(line + "\n")
                return
            except FileExistsError:
                pass
            except OSError:
                with contextlib.suppress(OSError):
                    note.unlink(missing_ok=True)

    def remove_notes(self) -> None:
        for place in (self.root, temporary_directory()):
            with contextlib.suppress(OSError):
                note_of(self.path, place).unlink(missing_ok=True)
