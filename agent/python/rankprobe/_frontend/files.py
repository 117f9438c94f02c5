# SPDX-License-Identifier: Apache-2.0
"""Files that a setting names."""

from __future__ import annotations

from rankprobe._inputs import open_regular


def read_regular(path: str, max_bytes: int) -> bytes:
    """Its bytes. Raises OSError, and ValueError of no regular file and of a larger one."""
    descriptor = open_regular(path)
    if descriptor is None:
        raise ValueError("is no regular file")
    with open(descriptor, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return data
