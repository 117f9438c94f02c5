# SPDX-License-Identifier: Apache-2.0
"""A leaf takes no payloads once its disk is 70 % full. How full the disk of the machine that runs the tests is, is no matter of theirs."""

from __future__ import annotations

from typing import Any, Iterable


def whatever_is_free(flags: Iterable[Any]) -> tuple[str, ...]:
    """A rankprobed's flags, with those that make a leaf not ask how full its disk is, unless the flags themselves say when."""
    given = tuple(map(str, flags))
    if "leaf" in given and not any(flag.startswith("--disk-") for flag in given):
        return (*given, "--disk-high-percent", "0", "--disk-full-percent", "0")
    return given
