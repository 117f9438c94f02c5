# SPDX-License-Identifier: Apache-2.0
"""Where a collector listens that is for processes of this user on this machine: on a Unix socket, so that no interface,
port, firewall or proxy is needed.

Needs the standard library alone and no other file of the package (_job_directory.py).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket

NAME = "socket"
_TRY = "tested"  # of the same length


def takes_sockets(directory: pathlib.Path) -> bool:
    """Whether a socket in it can be made and reached by its name. Not on every file system, nor by a name of more than
    107 bytes, nor by one that an address cannot have."""
    path = str(directory / _TRY)
    with contextlib.suppress(OSError):
        os.unlink(path)  # of a process that was killed
    try:
        path.encode()
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(path)
            try:
                server.listen(1)
                client.connect(path)
            finally:
                os.unlink(path)
    except (OSError, ValueError):  # UnicodeEncodeError is one, and a path with a zero
        return False
    return path.isprintable() and "," not in path  # gRPC takes that for two addresses


def abstract_address() -> str:
    """A name that is nobody's, and no file. The collector asks the kernel who comes; the permissions of a directory are better."""
    return f"unix-abstract:rankprobe-{os.urandom(16).hex()}"
