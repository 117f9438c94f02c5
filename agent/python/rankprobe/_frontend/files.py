# SPDX-License-Identifier: Apache-2.0
"""Reading of files that a setting names."""

from __future__ import annotations

import json
from typing import Any

from rankprobe._inputs import open_regular

MAX_CONFIG_BYTES = 2 << 20
_MAX_OBJECT_BYTES = 10 << 20


def read_regular(path: str, max_bytes: int) -> bytes:
    """Returns the content of a file. Raises OSError, and ValueError if it is not a regular file or is larger than `max_bytes`."""
    descriptor = open_regular(path)
    if descriptor is None:
        raise ValueError("is not a regular file")
    with open(descriptor, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return data


def read_object(path: str) -> dict[str, Any]:
    """Reads a JSON object of at most 10 MiB. Raises OSError, and ValueError if the file does not hold one."""
    try:
        given = json.loads(read_regular(path, _MAX_OBJECT_BYTES))
    except RecursionError:
        raise ValueError("is nested too deep") from None
    if not isinstance(given, dict):
        raise ValueError(f"an object is expected, not {type(given).__name__}")
    return given
