# SPDX-License-Identifier: Apache-2.0
"""The directory of a private collector, dump_path/.rankprobe/collector-HOST.

    job.json         run, root (dump_path), the programs, the lock file of root,
                     whether the job made root, when the job began
    launch           rendezvous of the job's ranks; empty if it is not known
    data/            the archive
    users.lock       every user holds it shared; the kernel releases it however
                     the user ends
    supervisor.lock  held by the supervisor
    standby.lock     held by the process that waits to follow the supervisor
    socket           socket of the collector; it is in spare_directory if no socket
                     can be made here or the path is too long
    listens          exists while the collector serves: its address, as given to it
    address          the address for users; it is kept when the collector is killed
                     and started again
    unfinished/*     one file for each user that has not confirmed that all its
                     records are in dump_path; its name says what was lost with the
                     user (lost_name)
    manifests/*      manifests of the users' exports so far
    kept/*           records of users until they are committed
                     (agent/runtime/session/spool.h)

Only EmbeddedCollector (embedded.py) creates it, under another name that it
renames when the content is complete. The supervisors and the collector have it as
their working directory and do not use its name: a process that is too late, when
a directory of another job has the name, does no harm.

Imports only the standard library and no other file of the package, because the
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

# Free space in bytes that the collector leaves to the training, which continues while the records wait.
MIN_FREE_BYTES = 64 << 20
# Exit code of the start of a supervisor that was killed before it reported the outcome.
KILLED = 2
_REMOVE_SECONDS = 5.0
SUPERVISOR = pathlib.Path(__file__).resolve().with_name("_supervise.py")


class Failed(Exception):
    """Something cannot be brought into dump_path; the text is for the user."""


def lock(path: str, how: int) -> Optional[int]:
    """Returns a descriptor that holds the lock; None if another process holds it and `how` has LOCK_NB."""
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
    """Returns the text of the file; "" if there is no such file."""
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def temporary_directory() -> pathlib.Path:
    """Returns the directory for temporary files; /tmp if tempfile finds no usable one, so that its use fails as on a full disk."""
    try:
        return pathlib.Path(tempfile.gettempdir())
    except FileNotFoundError:  # tempfile tries the working directory last, which a job may have removed
        return pathlib.Path("/tmp")


def note_of(place: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """Returns the path of the note in `directory` that informs the user of the archive left in `place`."""
    return directory / f"rankprobe-{place.name}.txt"


class Lost(NamedTuple):
    """Records and payloads that a process did not deliver before it ended. Both steps are -1 if it had no records."""

    rank: str  # name of the rank's directory
    records: int
    payloads: int
    first_step: int
    last_step: int


_LOST = re.compile(r"[0-9a-f-]+\.((?:rank|proc)\d+)\.(\d+)\.(\d+)\.(-1|\d+)\.(-1|\d+)")


def lost_name(mark: str, rank: str, lost: tuple[int, int, int, int]) -> str:
    return ".".join([mark, rank, *map(str, lost)])


def lost_of(mark: str) -> Optional[Lost]:
    """Parses the name of a file in unfinished/; None if it states no loss."""
    found = _LOST.fullmatch(mark)
    return Lost(found[1], *map(int, found.groups()[1:])) if found else None


def open_own(path: pathlib.Path) -> int:
    """Opens a directory that only this user can have created and can change, because programs are run and addresses trusted by its
    content. Returns a descriptor. Raises Failed if it is a link, belongs to another user or is writable by others, and
    FileNotFoundError if it does not exist."""
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
    """Returns owner and mode that a directory created by this user gets; file systems may change the owner (root squash) or the
    mode (SMB)."""
    with contextlib.suppress(OSError):
        probe = tempfile.mkdtemp(prefix=".rankprobe-", dir=directory)
        try:
            return _made_by(os.lstat(probe))
        finally:
            os.rmdir(probe)
    return own


class JobDirectory:
    """An existing job directory. The constructor makes it the working directory of this process, so its files are opened by
    relative names. `path` is its name while is_there() is true. Raises FileNotFoundError if it does not exist, and Failed as
    open_own().
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
        """Directory of the socket if it cannot be in `path`."""
        return temporary_directory() / f"rankprobe-{os.getuid()}-{self._key[0]:x}-{self._key[1]:x}"

    def is_there(self) -> bool:
        """Returns whether `path` still names this directory."""
        return self._is_this(self.path)

    def _is_this(self, path: pathlib.Path) -> bool:
        try:
            found = os.stat(path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._key

    def processes(self, wanted: Callable[[list[bytes]], bool]) -> Iterator[int]:
        """Yields the ids of other processes with this working directory whose command line satisfies `wanted`."""
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != os.getpid() and self.is_process(int(name), wanted):
                yield int(name)

    def is_process(self, pid: int, wanted: Callable[[list[bytes]], bool]) -> bool:
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return wanted(words) and self._is_this(pathlib.Path(f"/proc/{pid}/cwd"))

    # --- removal

    def remove(self) -> Optional[str]:
        """Removes the directory. Returns the reason if that fails, else None. It
        is renamed first, so that a partly removed one never has its name."""
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
        """Deletes the renamed directory, also for a process that was killed in
        remove(), and everything else that the job left."""
        gone = self._gone()
        if self._is_this(gone):
            # A killed supervisor may have started a collector that was not visible yet. If
            # this process is killed, the standby continues the removal.
            for pid in self.processes(lambda words: b"--job-dir" in words or words == [b""]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + _REMOVE_SECONDS
            while gone.exists() and time.monotonic() < deadline:
                shutil.rmtree(gone, ignore_errors=True)
        shutil.rmtree(self.spare_directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(self.path.parent)
            if self._made_root:  # rmdir() succeeds only if the job recorded nothing.
                os.rmdir(self.root)
        self._remove_root_lock()

    def _remove_root_lock(self) -> None:
        """Removes the lock file that a process left that was killed while it held the lock (root_lock of embedded.py)."""
        path = self._root_lock
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have removed this file and created a new one since it was opened.
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                path.unlink()
        except OSError:  # Another process holds the lock and removes the file itself.
            pass
        finally:
            os.close(fd)

    def leave(self, reason: str) -> None:
        """Keeps the archive under a name that the next job does not use, and reports it
        on stderr and in a note."""
        if not self.is_there():  # A new job may have created another directory at this path.
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
