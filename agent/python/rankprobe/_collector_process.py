# SPDX-License-Identifier: Apache-2.0
"""Start, search and stop of the rankprobed process of a job directory, used by its supervisor."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from rankprobe import _unix_socket
    from rankprobe._job_directory import MIN_FREE_BYTES, Failed, JobDirectory, open_own, read
else:  # The supervisor runs without the package and imports modules from its own directory.
    import _unix_socket
    from _job_directory import MIN_FREE_BYTES, Failed, JobDirectory, open_own, read

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
# A path relative to the working directory, so that a collector that starts late uses this directory or none.
_HERE = f"unix:{_unix_socket.NAME}"


class Collector:
    """The collector of a job directory: a running one is found, else one is started. It exits by itself when it has neither a
    supervisor nor users."""

    def __init__(self, job: JobDirectory) -> None:
        self._job = job
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._pid = 0

    def alive(self) -> bool:
        if self._child is not None:
            if self._child.poll() is None:
                return True
            self._child, self._pid = None, 0
        if self._pid and not self._job.is_process(self._pid, _is_collector):
            self._pid = 0
        return self._pid != 0

    def ensure(self, same_address: bool = True) -> str:
        """Returns the address of the collector, which it starts if none runs. Waits for one that is shutting down, as a killed
        supervisor had requested, and starts another. Raises Failed if the collector does not start."""
        started = False
        while not (listens := self._listens()):
            if started:
                raise Failed(f"the collector did not start:\n{read('collector.log')[-2000:]}")
            self._start(same_address)
            started = True
        address = f"unix:{self._job.path}/{_unix_socket.NAME}" if listens == _HERE else listens
        if read("address") != address:
            # Replaced atomically, because users may read it at any time.
            fresh = pathlib.Path("address.new")
            fresh.write_text(address, encoding="utf-8")
            fresh.replace("address")
        return address

    def serves(self) -> bool:
        """Returns whether the collector runs and is not shutting down: it removes the file `listens` first when it shuts down."""
        return self.alive() and read("listens").endswith("\n")

    def _listens(self) -> str:
        """Waits until the collector listens and returns its address; "" if there is no collector. Kills one that does not listen
        within _START_SECONDS."""
        if not self.alive() and not self._find():
            return ""
        deadline = time.monotonic() + _START_SECONDS
        while not (listens := read("listens")).endswith("\n"):
            if not self.alive() or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                return ""
            time.sleep(0.002)
        return listens.rstrip("\n")

    @property
    def pid(self) -> int:
        """Process id of the running collector; 0 if there is none."""
        return self._pid if self.alive() else 0

    def stop(self, how: int = signal.SIGTERM) -> None:
        # Sends the signal `how` and waits for the end of the process; sends SIGKILL after _STOP_SECONDS.
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
        before = read("address") if same_address else ""
        # An abstract name is random, so a restarted collector must get the same one for its clients to find it.
        listen = before if before.startswith("unix-abstract:") else self._place()
        pathlib.Path("listens").unlink(missing_ok=True)
        self._child = subprocess.Popen(
            [self._job.rankprobed, "--listen", listen, "--job-dir", ".", "--data-dir", "data",
             "--port-file", "listens", "--min-free-bytes", str(MIN_FREE_BYTES), "--export-root", str(self._job.root)],
            stdin=subprocess.DEVNULL)
        self._pid = self._child.pid

    def _place(self) -> str:
        """Returns the address to listen on: a socket in the job directory, else one in the spare directory, else an abstract name."""
        if _unix_socket.takes_sockets(self._job.path):
            return _HERE
        spare = self._job.spare_directory
        with contextlib.suppress(OSError, Failed):
            spare.mkdir(mode=0o700, exist_ok=True)
            os.close(open_own(spare))  # Raises Failed if another user created it.
            if _unix_socket.takes_sockets(spare):
                return f"unix:{spare}/{_unix_socket.NAME}"
        return _unix_socket.abstract_address()

    def _find(self) -> bool:
        """Looks for a collector that a killed supervisor started; returns whether there is one."""
        self._pid = next(self._job.processes(_is_collector), 0)
        return self._pid != 0


def _is_collector(words: list[bytes]) -> bool:
    return b"--job-dir" in words
