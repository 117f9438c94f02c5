# SPDX-License-Identifier: Apache-2.0
"""Flags that make a leaf ignore how full the disk of the test machine is. By default it refuses payloads when the disk is 70 % full."""

from __future__ import annotations

from typing import Any, Iterable


def whatever_is_free(flags: Iterable[Any]) -> tuple[str, ...]:
    """Returns the flags of a rankprobed. For a leaf without --disk-* flags, adds flags that disable the checks of disk usage."""
    given = tuple(map(str, flags))
    if "leaf" in given and not any(flag.startswith("--disk-") for flag in given):
        return (*given, "--disk-high-percent", "0", "--disk-full-percent", "0")
    return given
