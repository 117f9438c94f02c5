# SPDX-License-Identifier: Apache-2.0
"""A rankprobed process for tests, from RANKPROBE_BUILD_DIR/bin."""

from __future__ import annotations

import os
import pathlib
import resource
import signal
import subprocess
from typing import Any

from disk_room import whatever_is_free
from polling import wait_for
from ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release"))
BIN = BUILD / "bin"


class Rankprobed:
    """A rankprobed with a data directory. It can be stopped or killed, and started again on the same port.

    `address_space` limits its memory in bytes (RLIMIT_AS), `descriptors` its open files; `environment` is added to that of
    this process.
    """

    def __init__(self, directory: pathlib.Path, *flags: Any, data_dir: pathlib.Path | None = None,
                 address_space: int | None = None, descriptors: int | None = None, environment: dict[str, str] | None = None):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.data_dir = data_dir or directory / "data"
        self.flags = [str(flag) for flag in flags]
        self.port = 0
        self.process: subprocess.Popen | None = None
        self._limits = {resource.RLIMIT_AS: address_space, resource.RLIMIT_NOFILE: descriptors}
        self._environment = environment or {}
        self._log = directory / "collector.log"

    def start(self) -> Any:
        self.port = self.port or free_port()
        port_file = self.directory / "port"
        port_file.unlink(missing_ok=True)
        self.spawn(port_file)
        wait_for(lambda: self._started(port_file), 60, f"rankprobed; see {self._log}")
        self.port = int(port_file.read_text())
        return self

    def spawn(self, port_file: pathlib.Path) -> None:
        """Starts the process without waiting for it, for starts that should fail."""
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [BIN / "rankprobed", "--listen", f"127.0.0.1:{self.port}", "--data-dir", self.data_dir,
                 "--port-file", port_file, *whatever_is_free(self.flags)],
                stdout=log, stderr=log, env={**os.environ, **self._environment}, preexec_fn=self._set_limits)

    def _set_limits(self) -> None:
        for limit, value in self._limits.items():
            if value is not None:
                resource.setrlimit(limit, (value, value))

    def _started(self, port_file: pathlib.Path) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"rankprobed exited with {self.process.returncode}: {self.log_text()[-2000:]}")
        return port_file.exists() and port_file.read_text().strip() != ""

    def stop(self, seconds: float = 120) -> int:
        """Sends SIGTERM and returns the exit status. If the daemon does not end, kills it and raises AssertionError."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired as late:
                self.kill()
                raise AssertionError(f"rankprobed was still there {late.timeout} s after SIGTERM") from None
        return self.process.returncode

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log_text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def cli(self, *arguments: Any, check: bool = True, timeout: float = 120,
            environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        """Runs `rankprobe` with these arguments and the daemon as its collector. With `check`, raises AssertionError if it fails."""
        result = subprocess.run([BIN / "rankprobe", "--collector", self.address, *map(str, arguments)], capture_output=True,
                                text=True, errors="replace", timeout=timeout, env={**os.environ, **(environment or {})})
        if check and result.returncode != 0:
            raise AssertionError(f"rankprobe {arguments} exited with {result.returncode}\n{result.stdout}\n"
                                 f"{result.stderr}\n{self.log_text()[-2000:]}")
        return result
