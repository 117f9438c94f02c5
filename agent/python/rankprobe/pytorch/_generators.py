# SPDX-License-Identifier: Apache-2.0
"""Digests of the states of Python's and NumPy's random generators, for the run card."""

from __future__ import annotations

import _random
import random
from typing import Any, Callable

from rankprobe import _native

# For each generator, a digest of the memory that holds its state, and the text made of that state. Reading the state creates a thousand objects.
_said_of: dict[str, tuple[Any, str]] = {}
# Bytes of an object before the fields of its C type: its reference count and its type.
_HEAD = object.__basicsize__
_PYTHON_BYTES = _random.Random.__basicsize__ - _HEAD


def _unchanged(of: Any, memory: Callable[[Any], Any], say: Callable[[Any], str]) -> str:
    """Returns say(of), or its previous result if memory(of) has not changed. memory() returns None if it does not know the object's layout."""
    now = memory(of)
    known = _said_of.get(of.__name__)
    if known is None or now is None or known[0] != now:
        known = now, say(of)
        if memory(of) == now:  # Otherwise another thread has drawn a number in between.
            _said_of[of.__name__] = known
    return known[1]


def _python_memory(of: Any) -> Any:
    own: Any = getattr(of.getstate, "__self__", None)
    if type(own) is not of.Random:
        return None
    return _native.memory_digest(id(own) + _HEAD, _PYTHON_BYTES), own.gauss_next


def _tell_python(of: Any) -> str:
    _, words, spare = of.getstate()
    return _native.words_digest(words, repr(spare).encode()) + _drawn(words[0], words[1], words[-1])


def _numpy_memory(of: Any) -> Any:
    own = getattr(of.get_state, "__self__", None)
    bits = getattr(own, "_bit_generator", None)  # since NumPy 1.17
    if type(own) is not getattr(of, "RandomState", None) or type(bits) is not of.MT19937:
        return None
    return (_native.memory_digest(id(own) + _HEAD, of.RandomState.__basicsize__ - _HEAD),
            _native.memory_digest(id(bits) + _HEAD, of.MT19937.__basicsize__ - _HEAD))


def _tell_numpy(of: Any) -> str:
    kind, keys, *rest = of.get_state()
    said = _drawn(int(keys[0]), int(keys[1]), rest[0]) if kind == "MT19937" else ""
    return _native.content_digest(f"{kind}{rest}".encode() + keys.tobytes()) + said


def _drawn(first: int, second: int, position: int) -> str:
    """Returns a note if a Mersenne Twister was seeded and not used since: seeding leaves a position and first words that drawing does
    not leave. `rankprobe` parses the note."""
    seeded = first == 1 << 31 or second == (1812433253 * (first ^ first >> 30) + 1) % (1 << 32)
    return ", never drawn from" if seeded and position >= 623 else ""


def python_state() -> str:
    """Returns the digest of the generator that the functions of `random` use."""
    return _unchanged(random, _python_memory, _tell_python)


def numpy_state(of: Any) -> str:
    """Returns the digest of the generator that the functions of numpy.random use. of: the module numpy.random."""
    return _unchanged(of, _numpy_memory, _tell_numpy)


__all__ = ["numpy_state", "python_state"]
