# SPDX-License-Identifier: Apache-2.0
"""A private collector for a job that names no collector.

The first process of a machine that records into a dump_path starts it, and all
others with the same dump_path share it. It outlives them: when the last of them
has ended, in any way, the remaining steps are exported to dump_path, and only then
does it end (_supervise.py). Step directories appear in dump_path; the archive is
in dump_path/.rankprobe and is removed at the end, unless an export failed. An
archive that is left, also when a complete machine or container was killed at once,
is exported by

    python -m rankprobe.embedded DUMP_PATH
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import pathlib
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
import zlib
from os import getpid
from typing import Any, Iterator, Optional

from ._inputs import show
from ._job_directory import KILLED, MIN_FREE_BYTES, Failed, lost_name, note_of, open_own, read
from ._manifests import read_runs
from ._say import say

_START_SECONDS = 60.0
# Wait for the export of an earlier job of the same dump_path whose processes were killed.
_ENDING_SECONDS = 900.0
_TELL_SECONDS = 5.0
# Longer than a running process holds the lock, even if its supervisor does not start.
_LOCK_SECONDS = 600.0
_CONNECT_SECONDS = 30.0
# Limit for the wait in stop() until a step's records are committed.
_COMMIT_SECONDS = 10.0
_BACK_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_SUPERVISOR = pathlib.Path(__file__).resolve().with_name("_supervise.py")


def find_binary(name: str) -> str:
    """Returns the path of `rankprobed` or `rankprobe`. Searches $RANKPROBE_BIN_DIR,
    the package, the build tree and PATH, in this order. Raises FileNotFoundError,
    which names the searched places."""
    package = pathlib.Path(__file__).resolve().parent
    places = [package / "bin", package.parent.parent / "bin"]
    if os.environ.get("RANKPROBE_BIN_DIR"):
        places.insert(0, pathlib.Path(os.environ["RANKPROBE_BIN_DIR"]))
    places += [pathlib.Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    for place in places:
        if os.access(place / name, os.X_OK) and (place / name).is_file():
            # Skips a console script of the same name.
            with open(place / name, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    return str(place / name)
    raise FileNotFoundError(f"no program {name} beside {package} or in PATH; set RANKPROBE_BIN_DIR")


def _is_private(fd: int, path: pathlib.Path) -> bool:
    """Returns whether it is a regular file that only this user can have created and can open. Another user who can open it could
    hold its lock for ever."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return False
    if _seen_as(found) == (os.geteuid(), 0):
        return True
    with tempfile.NamedTemporaryFile(prefix="rankprobe-", dir=path.parent) as probe:  # The file system may change owner (root squash) or mode (SMB).
        return _seen_as(found) == _seen_as(os.fstat(probe.fileno()))


def _seen_as(found: os.stat_result) -> tuple[int, int]:
    return found.st_uid, stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not _is_private(fd, path):
                raise PermissionError(errno.EACCES, "another user has made it or can open it, so it cannot be a lock", str(path))
            if _try_lock(fd, fcntl.LOCK_EX):
                # The holder unlinks the file, so the lock counts only if the locked file still has its name.
                if os.path.samestat(os.stat(path), os.fstat(fd)):
                    break
            elif time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"a process has held this lock for {_LOCK_SECONDS:.0f} s", str(path))
            else:
                time.sleep(0.005)
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # The previous holder has removed this file; opens the new one.
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # Before the release: a waiting process then finds that its file was removed.
        os.close(fd)


class OtherJobError(RuntimeError):
    """Another job records into this dump_path at present."""


def _launch() -> str:
    """Returns the rendezvous address, which distinguishes the ranks of two jobs; "" if this process is not a rank or it is not known."""
    place = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
    return ":".join(place) if os.environ.get("RANK") and all(place) else ""


def _root_lock_path(root: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir()) / f"rankprobe-{os.getuid()}-{zlib.crc32(os.fsencode(root)):08x}.lock"


def root_lock(root: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Returns a context manager that admits one process of this machine at a time. The lock file is in the temporary directory,
    because the directories below `root` are removed."""
    return _locked(_root_lock_path(root))


def _warn(text: str, level: int) -> None:
    """Emits a RuntimeWarning; writes to stderr in a program for which warnings are errors."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=level)
    except RuntimeWarning:
        say(text)


class EmbeddedCollector:
    """This process's use of the collector of a dump_path.

    `address`: address of the collector, a Unix socket; it stays the same when the
    collector is killed and started again. `run`: name of the run. `since`: time in
    seconds when the job began. `manifests`: file for the manifests of this
    process's exports. `unfinished`: set it if data is not in dump_path and must be
    exported when the last user has ended; otherwise leave() confirms that
    everything is there. A forked child must not use it.

    Raises FileNotFoundError if a program of rankprobe is missing, OtherJobError if
    another job uses the dump_path, and RuntimeError if a collector neither ends nor
    answers.
    """

    def __init__(self, dump_path: str, run: str) -> None:
        self.root = pathlib.Path(dump_path).resolve()
        self.unfinished = False
        self._base = self.root / ".rankprobe"
        self._pid = getpid()
        self._users: Optional[int] = None
        self._supervisor: Optional[int] = None
        self._commits = True
        self._told_of_left = False
        self._programs = {name: os.path.abspath(find_binary(name)) for name in ("rankprobed", "rankprobe")}
        begun = time.monotonic()
        told = False
        while not self._join(run):
            waited = time.monotonic() - begun
            if waited > _ENDING_SECONDS or (waited > _START_SECONDS and not self._is_supervised()):
                raise RuntimeError(f"the private collector below {self._base} neither ends nor answers")
            if waited > _TELL_SECONDS and not told:
                told = True
                _warn(f"rankprobe: waiting until the previous job is exported to {self.root}", level=3)
            time.sleep(0.02)
        _in_use.add(self)

    @property
    def directory(self) -> pathlib.Path:
        # The name has the host, because several machines may share the file system.
        return self._base / f"collector-{socket.gethostname()}"

    def _join(self, run: str) -> bool:
        """Joins the running collector or starts one. Returns False if the caller must try again."""
        with root_lock(self.root):
            self._made = not self.root.exists()
            self.root.mkdir(parents=True, exist_ok=True)
            for path in (self._base, self.directory):
                try:
                    os.close(open_own(path))
                except FileNotFoundError:
                    break
                except Failed as error:
                    raise RuntimeError(str(error)) from None
            self._sweep()
            first = False
            try:
                users = _open(self.directory / "users.lock", os.O_RDWR)
            except FileNotFoundError:
                try:
                    users, first = self._create(run), True
                except FileNotFoundError:  # The base directory was removed concurrently.
                    return False
            try:
                if not first:
                    self._refuse_other_job(users)
                joined = self._enter(users, first)
            except FileNotFoundError:
                os.close(users)
                if (self.directory / "job.json").exists():
                    raise
                return False  # The directory was removed concurrently, because its job has ended.
            except BaseException:
                os.close(users)
                raise
            if not joined:
                os.close(users)
            return joined

    def _refuse_other_job(self, users: int) -> None:
        """Raises OtherJobError if another job uses the collector. Two jobs have the same ranks and steps, which one archive could not
        distinguish.

        A job without running processes is not refused: torchrun restarts the ranks of one job at another port.
        """
        launch = _launch()
        path = self.directory / "launch"
        other = read(str(path))
        if not launch or other in ("", launch):
            return
        if not _is_unused(users):
            raise OtherJobError(f"the ranks of another job, whose rendezvous is {other}, record into it at present; give this job a "
                                "dump_path of its own, or start it after the other has ended")
        path.write_text(launch, encoding="utf-8")

    def _sweep(self) -> None:
        """Removes directories that killed processes left partly created or partly removed."""
        # Only those of this machine, where the caller holds root_lock(); on another one the creation may be in progress.
        for pattern in (f"new-{glob.escape(socket.gethostname())}-*", "gone-*"):
            for left in self._base.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)

    def _create(self, run: str) -> int:
        """Creates the directory and returns the descriptor of users.lock, which is locked before the directory gets its name."""
        job = {"run": run, "root": str(self.root), **self._programs, "lock": str(_root_lock_path(self.root)),
               "made": self._made, "since": time.time()}
        self._base.mkdir(mode=0o750, exist_ok=True)
        fresh = self._base / f"new-{socket.gethostname()}-{getpid()}-{time.time_ns():x}"
        fresh.mkdir(mode=0o700)
        try:
            for name in ("unfinished", "manifests", "kept"):
                (fresh / name).mkdir(mode=0o700)
            (fresh / "launch").write_text(_launch(), encoding="utf-8")
            (fresh / "job.json").write_text(json.dumps(job), encoding="utf-8")
            users = _open(fresh / "users.lock", os.O_RDWR | os.O_CREAT)
            fcntl.flock(users, fcntl.LOCK_SH)
            try:
                fresh.rename(self.directory)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                # A process with another TMPDIR, or in another container with the same host name, uses another file for root_lock().
                if (self.directory / "users.lock").exists():
                    raise FileNotFoundError(f"{self.directory} was just made by another process") from None
                # A job directory has users.lock before it gets this name. One without
                # it was created by a collector that was killed too late, after its
                # archive had been exported and renamed.
                gone = self._base / f"gone-{getpid()}-{time.time_ns():x}"
                self.directory.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
                fresh.rename(self.directory)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        for left in self._base.glob("left-*"):
            note = note_of(left, self.root)
            # The supervisor that left it may have been killed before it wrote the note.
            tells = (f"{note} says why, and what exports it" if note.exists()
                     else f"python -m rankprobe.embedded {shlex.quote(str(self.root))} exports it")
            _warn(f"rankprobe: the archive of an earlier job is still in {left}; {tells}", level=5)
        return users

    def _enter(self, users: int, first: bool) -> bool:
        """Becomes a user of the collector. Returns False if the job is ending."""
        # Without supervisor and users, this is the archive of a job that has ended
        # with its supervisors killed. It must be exported before a new job begins.
        if not first and not self._is_supervised() and _is_unused(users):
            if not self._told_of_left:
                self._told_of_left = True
                left = json.loads((self.directory / "job.json").read_text(encoding="utf-8"))["run"]
                say(f"rankprobe: run {left} was killed with its collector; its archive is exported to {self.root} first")
            self._supervise(soon=True)
            return False
        if not _try_lock(users, fcntl.LOCK_SH):
            return False
        if not self._is_supervised():
            self._supervise(soon=False)
        address = self._address()
        job = json.loads((self.directory / "job.json").read_text(encoding="utf-8"))
        name = f"{getpid()}-{time.time_ns():x}"
        self._mark = self.directory / "unfinished" / name
        self._mark.touch(mode=0o600)
        self.manifests = self.directory / "manifests" / name
        self._supervisor = _open(self.directory / "supervisor.lock", os.O_RDWR | os.O_CREAT)
        self._users, self.address, self.run, self.since = users, address, job["run"], job.get("since", 0.0)
        return True

    def _address(self) -> str:
        # The process that started the collector, and the supervisor, may have been killed before it listened.
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(FileNotFoundError):
                return (self.directory / "address").read_text(encoding="utf-8")
            if not self._is_supervised():
                self._supervise(soon=False)
            elif time.monotonic() > deadline:
                raise RuntimeError(f"the private collector did not start; see {self.directory / 'collector.log'}")
            time.sleep(0.01)

    def _is_supervised(self) -> bool:
        try:
            fd = self._supervisor
            if fd is None:
                fd = _open(self.directory / "supervisor.lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if not _try_lock(fd, fcntl.LOCK_SH):
                return True
            fcntl.flock(fd, fcntl.LOCK_UN)
            return False
        finally:
            if fd != self._supervisor:
                os.close(fd)

    def _supervise(self, soon: bool) -> None:
        """Starts a supervisor. Raises RuntimeError if the collector does not start; with `soon`, does not wait for it."""
        words = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(self.directory), *(["--soon"] if soon else [])]
        path = self.directory / "collector.log"
        with open(path, "ab") as log:
            for _ in range(2):
                try:
                    code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                          timeout=2 * _START_SECONDS).returncode
                except subprocess.TimeoutExpired:
                    code = 1
                if code >= 0 and code != KILLED:  # Tries once more only if it was killed while it started.
                    break
        if code != 0 and not soon:
            raise RuntimeError(f"the private collector did not start: {path.read_text(errors='replace')[-2000:]}")

    def ensure_supervised(self) -> None:
        """Starts another supervisor if all of them were killed."""
        if getpid() == self._pid and self._users is not None and not self._is_supervised():
            with contextlib.suppress(OSError):
                self._supervise(soon=True)

    def connect(self, session: Any) -> None:
        """Waits until the collector has accepted the session, at most _CONNECT_SECONDS.
        Raises TimeoutError, or RuntimeError if it refuses the session; in both cases
        leaves the collector."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        try:
            while True:
                try:
                    session.wait_connected(1.0)
                    return
                except TimeoutError:
                    if time.monotonic() > deadline:
                        raise
                    self.ensure_supervised()
        except BaseException:
            self.leave()
            raise

    @property
    def kept(self) -> pathlib.Path:
        """Directory where users keep records until they are committed."""
        return self.directory / "kept"

    def commit(self, session: Any, kept: bool) -> bool:
        """Call after session.stop(), which returned `kept`. If that is false, waits for the commit longer than stop() did, since the
        collector may be restarting. Returns False if the records are not committed and this was not reported before."""
        self.ensure_supervised()
        if kept or self._committed(session, 0.0):
            return True
        # After a failure there is no wait until the collector has committed something again.
        if not self._commits:
            return True
        # If the collector is connected, stop() has waited long enough, except for one that has just restarted.
        deadline = time.monotonic() + (_BACK_SECONDS if session.stats()["connected"] else _COMMIT_SECONDS)
        # A silent collector is taken to hang, so there is no further wait.
        while not session.stats()["silent"] and self.free_bytes_if_full() is None and time.monotonic() < deadline:
            self.ensure_supervised()
            if self._committed(session, _LOOK_SECONDS):
                return True
        self._commits = False
        return False

    def _committed(self, session: Any, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError, RuntimeError):
            session.flush(seconds)
            self._commits = True
            return True
        return False

    def free_bytes_if_full(self) -> Optional[int]:
        """Returns the free bytes of the disk if there are too few for the collector to write; None if there are enough or it is not
        known."""
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self.directory).free
            return free if free < MIN_FREE_BYTES else None
        return None

    def why_stuck(self) -> str:
        """Returns the reason for a False of commit(), as far as this process can see it."""
        free = self.free_bytes_if_full()
        if free is not None:
            return (f"the disk of {self.directory} is full ({free >> 20} MiB are free, it stops writing "
                    f"below {MIN_FREE_BYTES >> 20} MiB)")
        return f"{self.directory}/collector.log says more"

    def first_to_tell(self) -> bool:
        """Returns True in exactly one process of the job, which reports to the user."""
        try:
            os.close(_open(self.directory / "told", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def exporting(self) -> Iterator[None]:
        """Admits one process at a time, which may replace a step's directory. The lock file is removed with the job directory."""
        with open(self.directory / "export.lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def leave(self, lost: Optional[tuple[int, int, int, int]] = None, rank: str = "") -> None:
        """Ends the use. `lost`: what is lost with this process, as its session's close() returns it. `rank`: the directory of the rank;
        "" if it has none yet."""
        if self._users is None or getpid() != self._pid:
            return
        if lost is not None:
            # The loss is stored in the file name, because the disk may have no free byte.
            self._mark.rename(self._mark.with_name(lost_name(self._mark.name, rank or f"proc{self._pid}", lost)))
        elif not self.unfinished:
            self._mark.unlink(missing_ok=True)
        self._close()

    def forget(self) -> None:
        """Ends the use instead of leave() if the program has closed the descriptors: that has released the lock, so the supervisor
        knows it."""
        self._users = self._supervisor = None

    def _close(self) -> None:
        for fd in (self._users, self._supervisor):
            if fd is not None:
                os.close(fd)
        self._users = self._supervisor = None


# The instances of this process; a forked child must not keep their locks.
_in_use: "weakref.WeakSet[EmbeddedCollector]" = weakref.WeakSet()


def _after_fork() -> None:
    for collector in list(_in_use):
        collector._close()


os.register_at_fork(after_in_child=_after_fork)


def _open(path: pathlib.Path, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _try_lock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_unused(users: int) -> bool:
    # Retries, because a collector without a supervisor locks the file for a moment once a second.
    for pause in (0.0, 0.005, 0.02):
        time.sleep(pause)
        if _try_lock(users, fcntl.LOCK_EX):
            fcntl.flock(users, fcntl.LOCK_UN)
            return True
    return False


def _tell_nothing_left(root: str) -> int:
    """Reports that no archive is left. Returns 1 if the manifest lists losses, which no command can recover."""
    gaps = [(one["run"], gap) for one in read_runs(pathlib.Path(root)) for gap in one.get("gaps", [])]
    if not gaps:
        say(f"rankprobe: nothing is left in {root}")
        return 0
    runs = ", ".join(show(run) for run in dict.fromkeys(run for run, _ in gaps))
    lost = sum(gap.get("records") or 0 for _, gap in gaps if isinstance(gap.get("records"), int))
    say(f"rankprobe: no archive is left in {root}; {len(gaps)} gaps of run {runs} ({lost} records) are lost for good: "
          "manifest.json there lists them")
    return 1


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m rankprobe.embedded DUMP_PATH", file=sys.stderr)
        return 2
    base = pathlib.Path(arguments[0]).resolve() / ".rankprobe"
    with contextlib.suppress(FileNotFoundError, Failed):
        os.close(open_own(base))
        for gone in base.glob("gone-*"):
            shutil.rmtree(gone, ignore_errors=True)
    # A directory `gone-*` was exported before it got this name, and `new-*` holds no records yet.
    left = sorted(job for job in base.glob("*/job.json") if not job.parent.name.startswith(("new-", "gone-")))
    if not left:
        return _tell_nothing_left(arguments[0])
    return max([subprocess.run([sys.executable, "-I", "-S", str(_SUPERVISOR), str(job.parent), "--finish"]).returncode
                for job in left], default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
