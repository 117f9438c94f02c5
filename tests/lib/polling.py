# SPDX-License-Identifier: Apache-2.0
"""Waiting for other processes, with a deadline."""

from __future__ import annotations

import time
from typing import Any, Callable, Union


def wait_for(condition: Callable[[], Any], seconds: float = 30.0,
             what: Union[str, Callable[[], str]] = "a condition") -> Any:
    """Polls `condition` until it is truthy, and returns that; after `seconds` fails naming `what`.

    A function as `what` is asked only then.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {seconds} s waiting for {what() if callable(what) else what}")
        time.sleep(0.03)
