"""A private collector for a job that was given none.

The first process that records into a dump_path starts it, all processes with
the same dump_path share it, and it ends with the last of them. The trees of
its steps appear in dump_path; its archive lives in dump_path/.rankprobe and is
removed at the end, unless an export failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from typing import Iterator, Optional

_START_SECONDS = 60.0


def find_binary(name: str) -> str:
    """Path of `rankprobed` or `rankprobe`: $RANKPROBE_BIN_DIR, beside this
    package, the build tree, PATH. FileNotFoundError naming what was tried."""
    package = pathlib.Path(__file__).resolve().parent
    places = [package / "bin", package.parent.parent / "bin"]
    if os.environ.get("RANKPROBE_BIN_DIR"):
        places.insert(0, pathlib.Path(os.environ["RANKPROBE_BIN_DIR"]))
    places += [pathlib.Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    for place in places:
        if os.access(place / name, os.X_OK) and (place / name).is_file():
            # A console script of the same name is not it.
            with open(place / name, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    return str(place / name)
    raise FileNotFoundError(f"no program {name} beside {package} or in PATH; set RANKPROBE_BIN_DIR")


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(fd)  # the holder before removed it
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # nothing is left; whoever waits sees it above
        os.close(fd)


def root_lock(root: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """One process of this machine at a time; not a file in a directory that is removed."""
    name = f"rankprobe-{os.getuid()}-{zlib.crc32(os.fsencode(root)):08x}.lock"
    return _locked(pathlib.Path(tempfile.gettempdir()) / name)


class EmbeddedCollector:
    """This process' use of the collector of a dump_path.

    `address` is where it listens (loopback only), `run` the name of the run.
    """

    def __init__(self, dump_path: str, run: str) -> None:
        self.root = pathlib.Path(dump_path).resolve()
        self._base = self.root / ".rankprobe"
        self._pid = os.getpid()
        self._users: Optional[int] = None
        deadline = time.monotonic() + _START_SECONDS
        while not self._join(run):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the private collector below {self._base} neither ends nor answers")
            time.sleep(0.05)

    def _join(self, run: str) -> bool:
        """Uses the collector that is there, or starts one. False: try again."""
        self.root.mkdir(parents=True, exist_ok=True)
        with root_lock(self.root):
            directory = self._base / "collector"
            users_path = directory / "users.lock"
            if (directory / "job.json").exists():
                users = os.open(users_path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    os.close(users)  # it is ending
                    return False
                job = json.loads((directory / "job.json").read_text())
                if _alive(job["pid"]):
                    self._use(directory, users, job)
                    return True
                os.close(users)
                directory.rename(self._base / f"left-{time.time_ns():x}")  # killed: its archive is kept
            elif directory.exists():
                return False  # being removed
            directory.mkdir(parents=True)
            users = os.open(users_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(users, fcntl.LOCK_SH)
            try:
                job = self._start(directory, run)
            except BaseException:
                os.close(users)
                shutil.rmtree(directory, ignore_errors=True)
                raise
            (directory / "job.json").write_text(json.dumps(job))
            self._use(directory, users, job)
            return True

    def _start(self, directory: pathlib.Path, run: str) -> dict:
        port_file = directory / "port"
        script = pathlib.Path(__file__).resolve().with_name("_supervise.py")
        with open(directory / "collector.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script), str(directory), find_binary("rankprobed"),
                 "--listen", "127.0.0.1:0", "--data-dir", str(directory / "data"), "--port-file", str(port_file),
                 "--export-root", str(self.root)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + _START_SECONDS
        while not (port_file.exists() and port_file.read_text().strip()):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                text = (directory / "collector.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the private collector did not start: {text}")
            time.sleep(0.002)
        process.returncode = 0  # it outlives us: no warning about that
        return {"address": f"127.0.0.1:{int(port_file.read_text())}", "run": run, "pid": process.pid}

    def _use(self, directory: pathlib.Path, users: int, job: dict) -> None:
        self.directory, self._users = directory, users
        self.address, self.run = job["address"], job["run"]

    @contextlib.contextmanager
    def exporting(self) -> Iterator[None]:
        """One process at a time replaces a step's directory. The file goes with the collector."""
        with open(self.directory / "export.lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def leave(self) -> None:
        users, self._users = self._users, None
        if users is not None and os.getpid() == self._pid:
            os.close(users)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
