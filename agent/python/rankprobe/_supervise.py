# SPDX-License-Identifier: Apache-2.0
"""Supervises one private collector while it has users, and exports what it
holds to dump_path when the last user has ended. Run as a script:

    _supervise.py DIRECTORY [--soon]     in the background; returns when the
                                         collector listens (--soon: before)
    _supervise.py DIRECTORY --finish [-o DIR]
                                         in the foreground: exports an archive
                                         that was left, to dump_path or to DIR

_job_directory.py describes the content of DIRECTORY, which must exist.

The supervisor, its standby and the collector belong to no process group or
terminal of the job. If one of the three is killed, the others replace it; if all
are killed, the users do (EmbeddedCollector.ensure_supervised), else the next user
of dump_path. Without users nothing is restarted and the processes end: the
supervisors when everything is exported, a collector without supervisors after ten
seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import select
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Optional

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

if TYPE_CHECKING:
    from rankprobe._collector_process import Collector
    from rankprobe._ending import Ending
    from rankprobe._job_directory import KILLED, Failed, JobDirectory, lock, say
else:  # As a script this runs without the package and imports modules from its own directory.
    from _collector_process import Collector
    from _ending import Ending
    from _job_directory import KILLED, Failed, JobDirectory, lock, say

# Interval at which a collector checks whether it has a supervisor; it holds users.lock for a moment then.
_LOOK_SECONDS = 1.0


class Supervisor:
    """The supervisor of a job directory; one process at a time has this role.

    `tell`: a pipe that gets one line when the collector listens (with `soon`: when
    there is a supervisor): an empty line, or the error.
    """

    def __init__(self, job: JobDirectory, tell: Optional[int] = None, soon: bool = False) -> None:
        self._job, self._tell, self._soon = job, tell, soon
        self._collector = Collector(job)
        self._lock: Optional[int] = None
        self._users: Optional[int] = None
        self._standby = 0

    def started(self, fault: Optional[str]) -> None:
        # Reports the outcome of the start through the pipe, once.
        if self._tell is not None:
            with contextlib.suppress(BrokenPipeError):  # The process that waits for the line was killed.
                os.write(self._tell, f"{fault or ''}\n".encode())
            os.close(self._tell)
            self._tell = None

    # --- election of the supervisor

    def take_role(self) -> bool:
        """Returns True as the supervisor; False if there are a supervisor and a
        standby already, or if the previous supervisor has finished the job."""
        self._lock = lock("supervisor.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        if self._lock is None:
            standby = lock("standby.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.started(None)
            if standby is None:
                return False
            self._lock = lock("supervisor.lock", fcntl.LOCK_EX)  # Blocks until the supervisor has ended.
            os.close(standby)
        return self._job.is_there()

    def _follow(self) -> None:
        """Forks the standby, which becomes the supervisor when this process ends."""
        pid = os.fork()
        if pid:
            self._standby = pid
            return
        code = 1
        try:
            for fd in (self._lock, self._users, self._tell):
                if fd is not None:
                    os.close(fd)  # The inherited descriptor would keep the parent's locks.
            code = Supervisor(self._job).main()
        except BaseException:  # noqa: BLE001 - the forked process has no caller that could handle it
            traceback.print_exc()
        finally:
            os._exit(code)

    # --- as the supervisor

    def main(self) -> int:
        # Runs the supervisor until the job is exported and its directory removed or left. Returns the exit status.
        try:
            if not self.take_role():
                self._job.remove_gone()
                return 0
        except FileNotFoundError:  # The directory was removed since this process opened it.
            self.started("the previous collector has just ended")
            return 0
        # If there are no users, holds the lock exclusively, so that the archive of an ended job gets no new users.
        self._users = lock("users.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        if self._soon:
            self.started(None)
        self._follow()
        if self._users is None:
            self.started(self._keep())
            self._until_unused()
        failed = self._finish()
        if not self._job.is_there():
            say(f"{self._job.path} was moved or removed while it was in use: nothing more is exported to {self._job.root}")
        elif failed is None:
            failed = self._job.remove()
        if failed is not None:
            self._end_standby()
            self._job.leave(failed)
        return 0

    def _keep(self) -> Optional[str]:
        # Starts the collector if it does not run. Returns the error, or None.
        try:
            self._collector.ensure()
        except (Failed, OSError) as error:
            return str(error)
        return None

    def _until_unused(self) -> None:
        """Restarts the collector and the standby when they are killed, until the last user has ended."""
        self._users = users = os.open("users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        gone, tell = os.pipe()

        def wait() -> None:
            fcntl.flock(users, fcntl.LOCK_EX)
            os.write(tell, b".")

        threading.Thread(target=wait, daemon=True).start()
        collector_pause, standby_pause = Pause(5.0), Pause(10.0)
        while True:
            # Without a pidfd the end of a process is not signalled, so it is polled.
            watched = [_handle(self._collector.pid), _handle(self._standby)]
            pauses = [pause.left() for pause, handle in zip((collector_pause, standby_pause), watched) if handle is None]
            handles = [gone, *(handle for handle in watched if handle is not None)]
            ready = select.select(handles, [], [], max(0.02, min(pauses)) if pauses else None)[0]
            for handle in handles[1:]:
                os.close(handle)
            if gone in ready:
                return
            if not self._collector.alive() and collector_pause.over():
                say("the collector has ended and is started again")
                fault = self._keep()
                if fault is not None:
                    say(fault)
            if self._standby and os.waitpid(self._standby, os.WNOHANG)[0]:
                self._standby = 0
            # If a user has started another standby, the forked process finds its lock held and ends at once.
            if not self._standby and standby_pause.over():
                self._follow()

    def _finish(self) -> Optional[str]:
        """Exports what is not in dump_path yet and stops the collector. Returns why the archive must stay, or None."""
        failed = None
        if self._job.is_there():
            ending = Ending(self._job, self._collector)
            try:
                if ending.needed():
                    ending.export()
            except Exception as error:  # noqa: BLE001 - else the standby would retry it, and the next job would wait for both
                failed = _text(error)
        self._collector.stop()
        return failed

    def _end_standby(self) -> None:
        if self._standby:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._standby, signal.SIGKILL)
                os.waitpid(self._standby, 0)


class Pause:
    """Backoff between restarts, in seconds: grows up to `longest` while restarts
    follow each other closely, and is reset otherwise."""

    def __init__(self, longest: float) -> None:
        self._longest, self._pause, self._last = longest, 0.0, -longest

    def left(self) -> float:
        # Returns the seconds until the next restart is allowed.
        return max(0.0, self._last + self._pause - time.monotonic())

    def over(self) -> bool:
        # Returns whether a restart is allowed now; if so, counts it as done.
        if self.left() > 0:
            return False
        now = time.monotonic()
        close = now - self._last < self._pause + self._longest
        self._pause = min(self._longest, 2 * self._pause + 0.05) if close else 0.0
        self._last = now
        return True


def _text(error: Exception) -> str:
    """Returns the message for the user. For an unexpected exception, a traceback is logged as well."""
    if isinstance(error, (Failed, OSError)):
        return str(error) or repr(error)
    traceback.print_exception(type(error), error, error.__traceback__)
    return repr(error)


def _handle(pid: int) -> Optional[int]:
    """Returns a descriptor that becomes readable when the process ends; None if the kernel has no pidfds or there is no process."""
    try:
        return os.pidfd_open(pid) if pid else None
    except (OSError, AttributeError):
        return None


def _lock_soon(name: str) -> Optional[int]:
    # Takes the lock, retrying for longer than a collector's check for a supervisor; None if another process holds it.
    deadline = time.monotonic() + 2 * _LOOK_SECONDS
    while (held := lock(name, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


def finish(directory: pathlib.Path, target: Optional[str]) -> int:
    """Exports an archive that was left, to `target` or else to its dump_path, and removes it. Returns the exit status."""
    try:
        job = JobDirectory(directory)
    except (OSError, ValueError, KeyError) as error:
        say(f"{directory} is not an archive that was left: {error}")
        return 1
    users, supervisor = _lock_soon("users.lock"), _lock_soon("supervisor.lock")
    if users is None or supervisor is None:
        say(f"{directory} is in use: it is exported when its last user has ended")
        return 1
    collector = Collector(job)
    ending = Ending(job, collector)
    try:
        lost = ending.export() if target is None else ending.export_all(target)
    except Exception as error:  # noqa: BLE001
        say(f"the archive stays in {directory}: {_text(error)}")
        return 1
    finally:
        collector.stop()
    job.remove_notes()
    fault = job.remove()
    if fault is not None:
        say(f"{directory} was exported and could not be removed: {fault}")
    print(f"rankprobe: dump.json is at {target or job.root}/step*/ (run {job.run})")
    if lost:
        print(f"rankprobe: {lost} processes ended with records that were never received: manifest.json there lists them")
    return int(lost > 0)


def _detach(directory: pathlib.Path, soon: bool) -> int:
    """Forks the supervisor and waits for its report. Returns 0 if it started, KILLED if it was killed before it
    reported, 1 for another error."""
    told, tell = os.pipe()
    if supervisor := os.fork():
        os.close(tell)
        fault = b""
        while data := os.read(told, 65536):
            fault += data
        if fault != b"\n":
            say(fault.decode(errors="replace").strip() or "the supervisor has ended")
        killed = not fault and os.WIFSIGNALED(os.waitpid(supervisor, 0)[1])
        return KILLED if killed else int(fault != b"\n")
    os.close(told)
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # A handler, unlike SIG_IGN, is not inherited by the collector.
    code = 1
    try:
        code = Supervisor(JobDirectory(directory), tell, soon).main()
    except BaseException:  # noqa: BLE001 - the forked process has no caller that could handle it
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> int:
    words = sys.argv[1:]
    directory = pathlib.Path(words[0]).resolve()
    if "--finish" in words:
        target = os.path.abspath(words[words.index("-o") + 1]) if "-o" in words else None
        return finish(directory, target)
    return _detach(directory, "--soon" in words)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
