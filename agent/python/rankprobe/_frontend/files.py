# SPDX-License-Identifier: Apache-2.0
"""Files that a setting names."""

from __future__ import annotations

import os
import stat


def read_regular(path: str, max_bytes: int) -> bytes:
    """Its bytes. Raises OSError, and ValueError of what has no end or no content of its own: a FIFO would wait for its other
    end, a device never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is no regular file")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return data
