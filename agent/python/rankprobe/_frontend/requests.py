# SPDX-License-Identifier: Apache-2.0
"""Requests of a server's step, as passed to start()."""

from __future__ import annotations

import operator
from typing import Any, Mapping, Optional

# (id, tokens, position of the first of them), in the order of their rows.
Requests = list[tuple[str, int, Optional[int]]]


def read_requests(scheduled_tokens: Any, first_positions: Any = None) -> Optional[Requests]:
    """Reads the arguments of start(). Returns None if no requests were given.

    Raises ValueError if an argument is not a mapping of str to integers, which must be
    > 0 for tokens and >= 0 for positions.
    """
    if not scheduled_tokens and isinstance(scheduled_tokens, (Mapping, type(None))):
        return None
    tokens = _numbers("scheduled_tokens", scheduled_tokens, 1)
    positions = _numbers("first_positions", first_positions or {}, 0)
    return [(name, count, positions.get(name)) for name, count in tokens.items()]


def _numbers(what: str, given: Any, least: int) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} must be a dict, not {type(given).__name__}")
    out = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ValueError(f"{what} has a key that is not a str: {name!r}")
        try:
            number = operator.index(value) if not isinstance(value, bool) else least - 1
        except TypeError:
            number = least - 1
        if not least <= number < 1 << 32:
            raise ValueError(f"{what} has no integer >= {least} for {name!r}: {value!r}")
        # Lone surrogates are replaced, because the wire format is UTF-8.
        out[name.encode("utf-8", "replace").decode("utf-8")] = number
    return out
