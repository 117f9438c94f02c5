# SPDX-License-Identifier: Apache-2.0
"""Files that a setting names."""

from __future__ import annotations

import json
from typing import Any

from rankprobe._inputs import open_regular

MAX_CONFIG_BYTES = 2 << 20
_MAX_OBJECT_BYTES = 10 << 20


def read_regular(path: str, max_bytes: int) -> bytes:
    """Its bytes. Raises OSError, and ValueError of no regular file and of a larger one."""
    descriptor = open_regular(path)
    if descriptor is None:
        raise ValueError("is not a regular file")
    with open(descriptor, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return data


def read_object(path: str) -> dict[str, Any]:
    """A config in JSON. Raises OSError, and ValueError of what is none."""
    try:
        given = json.loads(read_regular(path, _MAX_OBJECT_BYTES))
    except RecursionError:
        raise ValueError("is nested too deep") from None
    if not isinstance(given, dict):
        raise ValueError(f"an object is expected, not {type(given).__name__}")
    return given
