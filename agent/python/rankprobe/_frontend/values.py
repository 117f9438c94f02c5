# SPDX-License-Identifier: Apache-2.0
"""Argument values that belong to no framework: those of NumPy, and tuples."""

from __future__ import annotations

import sys
from typing import Any, Optional


def tagged(value: Any) -> Optional[tuple[Any, ...]]:
    """Returns the value in the form of the native reader: ("tensor", array), ("scalar", type, number) or ("value", items); None if it
    is neither of NumPy nor a tuple. Uses the type and calls no method of a subclass, which would run the program's code."""
    kind = type(value)
    numpy = sys.modules.get("numpy")  # A value of NumPy exists only where the program has imported it.
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return ("tensor", value)
    if numpy is not None and issubclass(kind, numpy.generic):
        return ("scalar", kind.__name__, numpy.generic.item(value))
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
        items = tuple.__iter__(value)
        return ("value", list(items) if names is None else dict(zip(names, items)))
    return None
