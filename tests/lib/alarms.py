# SPDX-License-Identifier: Apache-2.0
"""Alarms in the midst of a model that is recorded, whose handler raises: does what it raises reach the program?"""

from __future__ import annotations

import functools
import signal
import time
from typing import Callable


class Limit(Exception):
    """An exception of the program's own."""


_KINDS = {kind.__name__: kind for kind in (Limit, TimeoutError, KeyboardInterrupt, SystemExit)}


def missed(kind_name: str, start: Callable[[], Callable[[], None]], rounds: int = 40) -> int:
    """An alarm in each of `rounds`, at another moment each, while what start() returns is called again and again: in how
    many of them its exception did not come out whole."""
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
                while time.monotonic() - began < 2:  # until it comes
                    forward()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            count += 1
        except kind as error:
            count += str(error) != "alarm"
    return count
