# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine for programs that want theirs said."""

from __future__ import annotations

import fcntl
import os
import pathlib
import random
import socket

# Below those that the kernel gives to clients: one of these would take the port while its server is restarted.
_FIRST, _LAST = 12000, 32767
_held: list[int] = []


def free_port() -> int:
    """One of 127.0.0.1 that nobody listens on, and that no other process of tests is given while this one lives."""
    locks = pathlib.Path(f"/tmp/rankprobe-ports-{os.getuid()}")  # for all runs of tests, whatever their TMPDIR
    locks.mkdir(exist_ok=True)
    while True:
        port = random.randint(_FIRST, _LAST)
        lock = os.open(locks / str(port), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            os.close(lock)
            continue
        _held.append(lock)
        return port
