# SPDX-License-Identifier: Apache-2.0
"""Places of the Unix socket on which a private collector listens, so that it needs no network interface, port, firewall rule or
proxy setting.

Imports the standard library only, because _collector_process.py uses it without the package.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket

NAME = "socket"
_TRY = "tested"  # as long as NAME, since the length of a path is limited


def takes_sockets(directory: pathlib.Path) -> bool:
    """Whether a socket in `directory` can be created and connected to by its path. Some file systems have no sockets, a path has at
    most 107 bytes, and gRPC's addresses exclude some characters."""
    path = str(directory / _TRY)
    with contextlib.suppress(OSError):
        os.unlink(path)  # a killed process may have left it
    try:
        path.encode()
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(path)
            try:
                server.listen(1)
                client.connect(path)
            finally:
                os.unlink(path)
    except (OSError, ValueError):  # a ValueError: UnicodeEncodeError, and a path with a null byte
        return False
    return path.isprintable() and "," not in path  # gRPC splits addresses at commas


def abstract_address() -> str:
    """A random name in the abstract namespace. It has no file permissions, so the collector checks the user of each peer; a socket
    in a directory is preferred."""
    return f"unix-abstract:rankprobe-{os.urandom(16).hex()}"
