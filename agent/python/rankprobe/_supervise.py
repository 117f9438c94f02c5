"""Keeps one private collector as long as somebody uses it, and brings what it
holds into dump_path when nobody does any more. Run as a script:

    _supervise.py DIRECTORY [--soon]     in the background; returns when the
                                         collector listens (--soon: before)
    _supervise.py DIRECTORY --finish [-o DIR]
                                         in the foreground: exports an archive
                                         that was left, to dump_path or to DIR

What the files of DIRECTORY say (embedded.py makes it, whole, with job.json):

    job.json         run, root (dump_path), the programs, the lock file of root
    users.lock       every user holds it shared; the kernel lets it go whatever
                     way the user ends
    supervisor.lock  held by the supervisor
    standby.lock     held by the process that waits to follow the supervisor
    address          where the collector listens, also after it was killed and
                     started again
    unfinished/*     one for each user that has not said that all it recorded
                     is in dump_path
    manifests/*      of its exports so far

The supervisor, its standby and the collector belong to no group or terminal of
the job. Whoever of the three is killed is replaced by the others; when all are,
the users do it (EmbeddedCollector.ensure_supervised), else the next user of
dump_path. DIRECTORY gets another name before it is removed, so that half of one
is never seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Optional

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import _manifests  # noqa: E402 - beside this script, without the package

_START_SECONDS = 60.0
# Of one `rankprobe` that exports steps.
_EXPORT_SECONDS = 24 * 3600.0
_STEPS_AT_ONCE = 16
# What a process that was killed had sent already is taken from its sockets.
_DISCONNECT_SECONDS = 3.0
_STOP_SECONDS = 60.0
_TRIES = 5


class Failed(Exception):
    """What dump_path does not get; the text is for a person."""


def _lock(path: pathlib.Path, how: int) -> Optional[int]:
    """A descriptor that holds the lock; None: somebody else does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _say(text: str) -> None:
    print(f"rankprobe: {text}", file=sys.stderr, flush=True)


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


class Collector:
    """The rankprobed of a directory: found when it runs, else started."""

    def __init__(self, directory: pathlib.Path, binary: str, root: str) -> None:
        self._directory, self._binary, self._root = directory, binary, root
        self._data = str(directory / "data")
        self._child: Optional[subprocess.Popen] = None
        self._pid = 0

    def alive(self) -> bool:
        if self._child is not None:
            if self._child.poll() is None:
                return True
            self._child, self._pid = None, 0
        if self._pid and not self._is_it(self._pid):
            self._pid = 0
        return self._pid != 0

    def ensure(self, same_address: bool = True) -> str:
        """Its address. Failed if it does not come up."""
        if not self.alive() and not self._find():
            self._start(same_address)
        deadline = time.monotonic() + _START_SECONDS
        while not (port := _read(self._directory / "port")).endswith("\n"):
            if not self.alive() or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                raise Failed(f"the collector did not start:\n{_read(self._directory / 'collector.log')[-2000:]}")
            time.sleep(0.002)
        address = f"127.0.0.1:{int(port)}"
        if _read(self._directory / "address") != address:
            fresh = self._directory / "address.new"
            fresh.write_text(address, encoding="utf-8")
            fresh.replace(self._directory / "address")
        return address

    @property
    def pid(self) -> int:
        """0: none."""
        return self._pid if self.alive() else 0

    def stop(self, how: int = signal.SIGTERM) -> None:
        for signal_number, seconds in ((how, _STOP_SECONDS), (signal.SIGKILL, 10.0)):
            if not self.alive() and not self._find():
                return
            try:
                os.kill(self._pid, signal_number)
            except ProcessLookupError:
                pass
            if self._wait(seconds):
                return

    def _wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def _start(self, same_address: bool) -> None:
        before = _read(self._directory / "address") if same_address else ""
        (self._directory / "port").unlink(missing_ok=True)
        self._child = subprocess.Popen(
            [self._binary, "--listen", before or "127.0.0.1:0", "--data-dir", self._data,
             "--port-file", str(self._directory / "port"), "--export-root", self._root],
            stdin=subprocess.DEVNULL)
        self._pid = self._child.pid

    def _is_it(self, pid: int) -> bool:
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"--port-file" in words and os.fsencode(self._data) in words

    def _find(self) -> bool:
        """That of a supervisor that was killed."""
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != os.getpid() and self._is_it(int(name)):
                self._pid = int(name)
                return True
        return False


class Ending:
    """What is in the archive and not in dump_path, into dump_path."""

    def __init__(self, directory: pathlib.Path, job: dict, collector: Collector) -> None:
        self._directory, self._collector = directory, collector
        self._run, self._root, self._program = job["run"], pathlib.Path(job["root"]), job["rankprobe"]

    def needed(self) -> bool:
        return any(any(self._directory.glob(f"{kind}/*")) for kind in ("unfinished", "manifests"))

    def export(self) -> None:
        """Failed names the steps that are not there afterwards."""
        self._await_disconnects()
        staging = self._own_staging()
        try:
            self._export()
        finally:
            os.close(staging)

    def export_all(self, target: str) -> None:
        """The whole run to another place."""
        self._call("export", f"--run={self._run}", "-o", os.path.abspath(target))

    def _call(self, verb: str, *words: str, seconds: float = _EXPORT_SECONDS) -> str:
        """Output of `rankprobe`; the collector is started again if it was killed."""
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
            if left == 0 or self._collector.alive():
                break
        raise Failed((done.stderr or done.stdout).strip()[-1000:])

    def _await_disconnects(self) -> None:
        deadline = time.monotonic() + _DISCONNECT_SECONDS
        while time.monotonic() < deadline:
            agents = json.loads(self._call("status", "--json"))["agents"]
            if not any(agent["connected"] for agent in agents):
                return
            time.sleep(0.02)

    def _own_staging(self) -> int:
        """So that no export of a process that was killed goes on beside us."""
        directory = self._directory / "staging"
        directory.mkdir(mode=0o750, exist_ok=True)
        deadline = time.monotonic() + _START_SECONDS
        while (lock := _lock(directory / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
            if time.monotonic() > deadline + _START_SECONDS:
                raise Failed(f"another export holds {directory}")
            if time.monotonic() > deadline:
                self._collector.stop(signal.SIGKILL)
            time.sleep(0.02)
        return lock

    def _export(self) -> None:
        if all(run["run"] != self._run for run in json.loads(self._call("runs", "--json"))["runs"]):
            return  # they ended before anything was recorded
        recorded = [step for step in json.loads(self._call("status", f"--run={self._run}", "--steps", "--json"))["steps"]
                    if not step["deleted"]]
        manifest = _manifests.read_manifest(self._root, self._run)
        parts = [] if manifest is None else [manifest]
        for file in sorted((self._directory / "manifests").glob("*")):
            theirs = _manifests.read_parts(file)
            pid = int(file.name.partition("-")[0])
            own = {_directory_of(step) for step in recorded if step["pid"] == pid}
            if theirs:
                parts = [_manifests.merge_manifests([*parts, *theirs], own)]
        missing = _missing(recorded, parts)
        faults = []
        steps = sorted({step for step, _ in missing})
        for at in range(0, len(steps), _STEPS_AT_ONCE):
            some = steps[at:at + _STEPS_AT_ONCE]
            try:
                theirs = self._export_steps(some, {place for place in missing if place[0] in some})
                parts = [_manifests.merge_manifests([*parts, theirs], None)]
            except (Failed, OSError) as error:
                faults.append(f"steps {', '.join(map(str, some))}: {error}")
        if parts:
            _manifests.write_manifest(self._root, parts[0], self._directory / "manifest.new")
        if faults:
            raise Failed("; ".join(faults))

    def _export_steps(self, steps: list[int], places: set[tuple[int, str]]) -> dict:
        """The manifest of these steps, when `places` of them are in dump_path."""
        fresh, old = self._directory / "fresh", self._directory / "old"
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
        self._call("export", f"--run={self._run}", "--steps", ",".join(map(str, steps)), "-o", str(fresh))
        for step, place in sorted(places):
            source, target = fresh / f"step{step}" / place, self._root / f"step{step}" / place
            target.parent.mkdir(mode=0o750, exist_ok=True)
            if target.exists():
                old.mkdir(exist_ok=True)
                target.rename(old / f"{step}-{place}")
            source.rename(target)
        manifest = json.loads((fresh / "manifest.json").read_bytes())
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
        return manifest


def _directory_of(step: dict) -> str:
    return f"proc{step['pid']}" if step["rank"] is None else f"rank{step['rank']}"


def _missing(recorded: list[dict], parts: list[dict]) -> set[tuple[int, str]]:
    """(step, directory of a rank) that dump_path lacks, or has less of than the
    archive: a tree only ever grows, so equal counts are equal trees."""
    told = {(entry["step"], entry["rank"], entry["expected_records"], entry["stored_records"])
            for part in parts for entry in part.get("ledger", [])}
    doubtful = {_manifests.place_of(gap) for part in parts for gap in part.get("gaps", [])}
    places: dict[tuple[int, str], list[dict]] = {}
    for step in recorded:
        places.setdefault((step["step"], _directory_of(step)), []).append(step)
    missing = set()
    for (number, place), lives in places.items():
        last = max(lives, key=lambda life: (life["complete"], life["updated_unix_ns"]))
        key = (number, place, last["expected_records"], last["stored_records"])
        if len(lives) > 1 or key not in told or (f"step{number}", place) in doubtful:
            missing.add((number, place))
    return missing


class Supervisor:
    """One process of a directory at a time. `tell`: a pipe that gets one line
    once the collector listens (`soon`: when there is a supervisor): empty, or what
    went wrong."""

    def __init__(self, directory: pathlib.Path, tell: Optional[int] = None, soon: bool = False) -> None:
        self._directory, self._tell, self._soon = directory, tell, soon
        self._inode = os.stat(directory).st_ino
        self._job = json.loads((directory / "job.json").read_text(encoding="utf-8"))
        self._collector = Collector(directory, self._job["rankprobed"], self._job["root"])
        self._lock: Optional[int] = None
        self._users: Optional[int] = None
        self._standby = 0

    def started(self, fault: Optional[str]) -> None:
        if self._tell is not None:
            with contextlib.suppress(BrokenPipeError):  # who asked was killed
                os.write(self._tell, f"{fault or ''}\n".encode())
            os.close(self._tell)
            self._tell = None

    # --- who is it

    def take_role(self) -> bool:
        """Returns as the supervisor. False: there are enough already, or the
        one before has done all there was."""
        path = self._directory / "supervisor.lock"
        self._lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if self._lock is None:
            standby = _lock(self._directory / "standby.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.started(None)
            if standby is None:
                return False
            self._lock = _lock(path, fcntl.LOCK_EX)  # granted when the supervisor has ended
            os.close(standby)
        return self._is_there()

    def _is_there(self) -> bool:
        try:
            return os.stat(self._directory).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _follow(self) -> None:
        """Forks the standby."""
        pid = os.fork()
        if pid:
            self._standby = pid
            return
        code = 1
        try:
            for fd in (self._lock, self._users, self._tell):
                if fd is not None:
                    os.close(fd)  # it would hold the parent's locks
            fresh = Supervisor(self._directory)
            fresh._inode = self._inode
            code = fresh.main()
        except BaseException:  # noqa: BLE001 - nobody is above
            traceback.print_exc()
        finally:
            os._exit(code)

    # --- as the supervisor

    def main(self) -> int:
        try:
            if not self.take_role():
                self._remove_gone()
                return 0
        except FileNotFoundError:  # it went between two looks
            self.started("the collector before has just ended")
            return 0
        # The archive of a job that has ended gets no new users.
        self._users = _lock(self._directory / "users.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        if self._soon:
            self.started(None)
        self._follow()
        if self._users is None:
            self.started(self._keep())
            self._until_unused()
        failed = self._finish()
        if failed is None:
            self._remove()
        else:
            self._leave(failed)
        return 0

    def _keep(self) -> Optional[str]:
        try:
            self._collector.ensure()
        except (Failed, OSError) as error:
            return str(error)
        return None

    def _until_unused(self) -> None:
        """Replaces whoever is killed, until the last user has gone."""
        self._users = users = os.open(self._directory / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        gone, tell = os.pipe()

        def wait() -> None:
            fcntl.flock(users, fcntl.LOCK_EX)
            os.write(tell, b".")

        threading.Thread(target=wait, daemon=True).start()
        collector_pause, standby_pause = Pause(5.0), Pause(10.0)
        while True:
            # Where the kernel cannot tell of an end, it is looked for.
            watched = [_handle(self._collector.pid), _handle(self._standby)]
            pauses = [pause.left() for pause, handle in zip((collector_pause, standby_pause), watched) if handle is None]
            handles = [gone, *(handle for handle in watched if handle is not None)]
            ready = select.select(handles, [], [], max(0.02, min(pauses)) if pauses else None)[0]
            for handle in handles[1:]:
                os.close(handle)
            if gone in ready:
                return
            if not self._collector.alive() and collector_pause.over():
                _say("the collector has ended and is started again")
                fault = self._keep()
                if fault is not None:
                    _say(fault)
            if self._standby and os.waitpid(self._standby, os.WNOHANG)[0]:
                self._standby = 0
            # There may be another one, whom a user started: then this one ends at once.
            if not self._standby and standby_pause.over():
                self._follow()

    def _finish(self) -> Optional[str]:
        """None, or why the archive must stay."""
        ending = Ending(self._directory, self._job, self._collector)
        failed = None
        try:
            if ending.needed():
                ending.export()
        except (Failed, OSError, ValueError, KeyError) as error:
            failed = str(error) or repr(error)
        self._collector.stop()
        return failed

    def _gone(self) -> pathlib.Path:
        return self._directory.with_name(f"gone-{self._inode:x}")

    def _remove(self) -> None:
        try:
            self._directory.rename(self._gone())
        except OSError as error:
            self._leave(str(error))
            return
        self._remove_gone()

    def _remove_gone(self) -> None:
        shutil.rmtree(self._gone(), ignore_errors=True)
        try:
            os.rmdir(self._directory.parent)
        except OSError:
            pass
        self._remove_root_lock()

    def _remove_root_lock(self) -> None:
        """A process that was killed while it held it left it (root_lock of embedded.py)."""
        path = pathlib.Path(self._job["lock"])
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

    def _leave(self, reason: str) -> None:
        """The archive stays, under a name that the next user does not take."""
        if self._standby:
            try:
                os.kill(self._standby, signal.SIGKILL)
                os.waitpid(self._standby, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        place = self._directory.with_name(f"left-{time.time_ns():x}")
        try:
            self._directory.rename(place)
        except OSError:
            place = self._directory
        line = (f"not all of run {self._job['run']} is in {self._job['root']}: {reason}. Its archive stays in {place}; "
                f"this exports it and removes the archive: {command(place)}")
        _say(line)
        for directory in (pathlib.Path(self._job["root"]), place, pathlib.Path(tempfile.gettempdir())):
            note = note_of(place, directory)
            try:
                note.write_text(line + "\n", encoding="utf-8")
                return
            except OSError:
                with contextlib.suppress(OSError):
                    note.unlink(missing_ok=True)


def note_of(place: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    return directory / f"rankprobe-{place.name}.txt"


def command(place: pathlib.Path) -> str:
    return f"{sys.executable} {os.path.abspath(__file__)} {place} --finish"


class Pause:
    """Longer and longer between one new start and the next, as long as they
    follow each other closely."""

    def __init__(self, longest: float) -> None:
        self._longest, self._pause, self._last = longest, 0.0, -longest

    def left(self) -> float:
        return max(0.0, self._last + self._pause - time.monotonic())

    def over(self) -> bool:
        if self.left() > 0:
            return False
        now = time.monotonic()
        close = now - self._last < self._pause + self._longest
        self._pause = min(self._longest, 2 * self._pause + 0.05) if close else 0.0
        self._last = now
        return True


def _handle(pid: int) -> Optional[int]:
    """Readable when the process has ended; None: the kernel does not say."""
    try:
        return os.pidfd_open(pid) if pid else None
    except (OSError, AttributeError):
        return None


def finish(directory: pathlib.Path, target: Optional[str]) -> int:
    """Of an archive that was left."""
    supervisor = Supervisor(directory)
    users = _lock(directory / "users.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    supervisor._lock = _lock(directory / "supervisor.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    if users is None or supervisor._lock is None:
        _say(f"{directory} is in use: it is exported when its last user has ended")
        return 1
    ending = Ending(directory, supervisor._job, supervisor._collector)
    try:
        if target is None:
            ending.export()
        else:
            ending.export_all(target)
    except (Failed, OSError, ValueError, KeyError) as error:
        _say(f"the archive stays in {directory}: {error}")
        return 1
    finally:
        supervisor._collector.stop()
    for place in (pathlib.Path(supervisor._job["root"]), pathlib.Path(tempfile.gettempdir())):
        note_of(directory, place).unlink(missing_ok=True)
    supervisor._remove()
    print(f"rankprobe: dump.json is at {target or supervisor._job['root']}/step*/ (run {supervisor._job['run']})")
    return 0


def _detach(directory: pathlib.Path, soon: bool) -> int:
    """The supervisor as a process without a parent; 0 when it has started."""
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        fault = b""
        while data := os.read(told, 65536):
            fault += data
        if fault != b"\n":
            _say(fault.decode(errors="replace").strip() or "the supervisor has ended")
        return int(fault != b"\n")
    os.close(told)
    os.chdir("/")
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # not inherited by the collector
    code = 1
    try:
        code = Supervisor(directory, tell, soon).main()
    except BaseException:  # noqa: BLE001 - nobody is above
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> int:
    words = sys.argv[1:]
    directory = pathlib.Path(words[0]).resolve()
    if "--finish" in words:
        target = words[words.index("-o") + 1] if "-o" in words else None
        return finish(directory, target)
    return _detach(directory, "--soon" in words)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
