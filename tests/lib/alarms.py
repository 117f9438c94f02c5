# SPDX-License-Identifier: Apache-2.0
"""Alarms during a recorded model whose signal handler raises, to check that the exception reaches the program."""

from __future__ import annotations

import functools
import signal
import time
from typing import Callable


class Limit(Exception):
    """An exception that the program defines."""


_KINDS = {kind.__name__: kind for kind in (Limit, TimeoutError, KeyboardInterrupt, SystemExit)}


def missed(kind_name: str, start: Callable[[], Callable[[], None]], rounds: int = 40) -> int:
    """Sets an alarm in each of `rounds`, each time with another delay, while the result of start() is called repeatedly. Returns the
    number of rounds in which the exception of the handler did not arrive unchanged."""
    kind = _KINDS[kind_name]

    def handler(why: str, *_: object) -> None:
        raise kind(why)

    signal.signal(signal.SIGALRM, functools.partial(handler, "alarm"))
    count = 0
    for number in range(rounds):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0001 * number)
                forward, began = start(), time.monotonic()
                while time.monotonic() - began < 2:  # Until the alarm interrupts the loop.
                    forward()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            count += 1
        except kind as error:
            count += str(error) != "alarm"
    return count
