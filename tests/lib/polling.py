# SPDX-License-Identifier: Apache-2.0
"""Waiting for other processes, with a deadline.

The deadlines of tests are there to end a test that hangs, not to measure: RANKPROBE_TEST_PATIENCE times as long as what a test
says (4 by default) is waited, also by subprocess' own wait() and communicate().
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any, Callable, Union

_PATIENCE = float(os.environ.get("RANKPROBE_TEST_PATIENCE", "4"))


def patient(seconds: float) -> float:
    """A limit of a test on this machine."""
    return seconds * _PATIENCE


def wait_for(condition: Callable[[], Any], seconds: float = 30.0,
             what: Union[str, Callable[[], str]] = "a condition") -> Any:
    """Polls `condition` until it is truthy, and returns that; after patient(`seconds`) fails naming `what`.

    A function as `what` is asked only then. The pause between two looks is a tenth of the time waited: a condition that starts
    a process is no load on what it waits for.
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
    """Whose limits are as patient as wait_for's."""

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(timeout if timeout is None else patient(timeout))

    def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
        return super().communicate(input, timeout if timeout is None else patient(timeout))


# subprocess.run() makes one of these, too.
subprocess.Popen = _PatientPopen  # type: ignore[misc]
