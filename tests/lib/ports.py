# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine for programs that want theirs said."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that nobody listens on now, of 127.0.0.1; somebody else may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
