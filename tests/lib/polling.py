# SPDX-License-Identifier: Apache-2.0
"""Waiting for other processes, with a deadline.

Deadlines of tests serve to end a test that hangs, not to measure. They are multiplied by RANKPROBE_TEST_PATIENCE (default 4), also
in wait() and communicate() of subprocess.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any, Callable, Union

_PATIENCE = float(os.environ.get("RANKPROBE_TEST_PATIENCE", "4"))


def patient(seconds: float) -> float:
    """Returns a time limit of a test, scaled for this machine."""
    return seconds * _PATIENCE


def wait_for(condition: Callable[[], Any], seconds: float = 30.0,
             what: Union[str, Callable[[], str]] = "a condition") -> Any:
    """Polls `condition` until it is truthy and returns its value. Raises AssertionError, which names `what`, after patient(`seconds`).

    If `what` is a function, it is called only then. The pause between two polls is a tenth of the time waited, so that a condition
    that starts a process does not load the machine.
    """
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        if waited > patient(seconds):
            raise AssertionError(f"timed out after {waited:.0f} s waiting for {what() if callable(what) else what}")
        time.sleep(min(max(waited / 10, 0.01), 0.5))


class _PatientPopen(subprocess.Popen):
    """A Popen whose time limits are scaled as in wait_for()."""

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(timeout if timeout is None else patient(timeout))

    def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
        return super().communicate(input, timeout if timeout is None else patient(timeout))


# subprocess.run() uses this class too.
subprocess.Popen = _PatientPopen  # type: ignore[misc]
