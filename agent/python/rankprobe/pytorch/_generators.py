# SPDX-License-Identifier: Apache-2.0
"""The states of the random generators of Python and NumPy, as the run card says them."""

from __future__ import annotations

import _random
import random
from typing import Any, Callable

from rankprobe import _native

# Of a generator: the memory that its state is in, and what was said of it. A generator makes a thousand objects to tell its state.
_said_of: dict[str, tuple[Any, str]] = {}
# What a type of C keeps in its objects is behind this: their count of references, and the type.
_HEAD = object.__basicsize__
_PYTHON_BYTES = _random.Random.__basicsize__ - _HEAD


def _unchanged(of: Any, memory: Callable[[Any], Any], say: Callable[[Any], str]) -> str:
    """say(of), or what it said when memory(of) was the same; None: it is not known."""
    now = memory(of)
    known = _said_of.get(of.__name__)
    if known is None or now is None or known[0] != now:
        known = now, say(of)
        if memory(of) == now:  # else another thread draws
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
    """Of a Mersenne Twister: a seed leaves it behind its last words, with a start that no drawing leaves (`rankprobe` reads this)."""
    seeded = first == 1 << 31 or second == (1812433253 * (first ^ first >> 30) + 1) % (1 << 32)
    return ", never drawn from" if seeded and position >= 623 else ""


def python_state() -> str:
    """Of the generator behind the functions of `random`."""
    return _unchanged(random, _python_memory, _tell_python)


def numpy_state(of: Any) -> str:
    """Of the generator behind the functions of numpy.random, which is given."""
    return _unchanged(of, _numpy_memory, _tell_numpy)


__all__ = ["numpy_state", "python_state"]
