# SPDX-License-Identifier: Apache-2.0
"""seed_all() for reproducible runs."""

from __future__ import annotations

import os
import random
from typing import Any

import mindspore
from mindspore import mint, nn, ops

from rankprobe._frontend.errors import InvalidParameterError

_MAX_SEED = 2**32 - 1


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seeds Python, NumPy and MindSpore, and selects deterministic kernels.

    seed: 0 .. 2**32 - 1. mode: set_context(deterministic="ON"), else "OFF".
    rm_dropout: dropout cells created from now on, and dropout functions, drop nothing.

    Raises InvalidParameterError for another type or range.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _MAX_SEED:
        raise InvalidParameterError(f"seed must be an int in [0, {_MAX_SEED}], not {seed!r}")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise InvalidParameterError(f"{name} must be a bool, not {value!r}")
    os.environ["PYTHONHASHSEED"] = str(seed)
    os.environ["HCCL_DETERMINISTIC"] = str(mode)
    random.seed(seed)
    mindspore.set_seed(seed)  # Seeds NumPy too.
    mindspore.set_context(deterministic="ON" if mode else "OFF")
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    for kind, names in ((nn, ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")), (mint.nn, ("Dropout", "Dropout2d"))):
        for name in names:
            if hasattr(kind, name):
                _replace_cell(kind, name)
    for host in (ops, mint.nn.functional):
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
            if hasattr(host, name):
                setattr(host, name, _unchanged)


def _unchanged(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces a dropout function; returns the input."""
    return input


def _replace_cell(host: object, name: str) -> None:
    base = getattr(host, name)

    def construct(self: Any, x: Any) -> Any:
        return x

    setattr(host, name, type(name, (base,), {"construct": construct, "__module__": base.__module__}))
