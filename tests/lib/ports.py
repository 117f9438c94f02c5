# SPDX-License-Identifier: Apache-2.0
"""Free ports of this machine for programs that require a port number."""

from __future__ import annotations

import fcntl
import os
import pathlib
import random
import socket

# Below the range that the kernel assigns to clients, because a client could take the port while its server is restarted.
_FIRST, _LAST = 12000, 32767
_held: list[int] = []


def free_port() -> int:
    """Returns an unused port of 127.0.0.1, which is reserved for this process among all test processes until it ends."""
    locks = pathlib.Path(f"/tmp/rankprobe-ports-{os.getuid()}")  # Shared by all test runs, independent of TMPDIR.
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
