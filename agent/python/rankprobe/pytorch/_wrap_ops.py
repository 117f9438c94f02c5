# SPDX-License-Identifier: Apache-2.0
"""custom_wrap_ops.yaml: functions of any module that are recorded as {module path}.{name} without a call in the program."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import pathlib
import re
import sys
from typing import Any, Optional

from rankprobe import _native
from rankprobe._frontend.files import read_regular
from rankprobe.pytorch._apis import Apis
from rankprobe.pytorch._process import warn

_MAX_BYTES = 256 << 10
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LINE = re.compile(r"(?P<key>[^\s:#\[\]{}-][^\s:#]*)\s*:(?:\s+(?P<value>.*))?|(?P<indent>\s*)-\s+(?P<item>.*)")


def parse(text: str) -> dict[str, list[str]]:
    """Parses the file to module path -> names. Values are a block list, a list in brackets or one name, as in msprobe 26.2.

    Raises ValueError, which names the line, for other text.
    """
    found: dict[str, list[str]] = {}
    names: Optional[list[str]] = None

    def fault(number: int, why: str) -> ValueError:
        return ValueError(f"line {number}: {why}; expected a module path, and below it one line with \"- \" and a name for each function")

    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", raw).rstrip()
        if not line or number == 1 and line == "---":
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise fault(number, f"{line.strip()!r} is not an entry")
        if match["key"] is not None:
            path = match["key"].strip("'\"")
            if not _MODULE.fullmatch(path):
                raise fault(number, f"{path!r} is not a module path")
            if path in found:
                raise fault(number, f"{path} appears twice")
            value = match["value"] or ""
            listed = value[1:-1].split(",") if value.startswith("[") and value.endswith("]") else [value] if value else []
            names = found[path] = []
        elif names is None:
            raise fault(number, "a name without a module path above it")
        else:
            listed = [match["item"]]
        for name in (text.strip().strip("'\"") for text in listed):
            if not _NAME.fullmatch(name):
                raise fault(number, f"{name!r} is not the name of a function")
            names.append(name)
    return found


def read(path: str) -> dict[str, list[str]]:
    """Parses a file. Raises ValueError, which names it, for a bad file or one that cannot be read."""
    try:
        return parse(read_regular(path, _MAX_BYTES).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"custom_wrap_ops {path}: {error}") from error


def wanted() -> dict[str, list[str]]:
    """Returns the functions of the file that RANKPROBE_CUSTOM_WRAP_OPS names; raises ValueError if it is bad. Otherwise, under
    `rankprobe run --as-msprobe`, uses the file of an installed msprobe, with a warning if it is bad."""
    if path := os.environ.get("RANKPROBE_CUSTOM_WRAP_OPS"):
        return read(path)
    if not os.environ.get("RANKPROBE_AS_MSPROBE"):
        return {}
    try:
        real = importlib.machinery.PathFinder.find_spec("msprobe")
        place = pathlib.Path(real.origin).parent if real is not None and real.origin else None
    except Exception as error:  # noqa: BLE001 - the installation of msprobe may be broken
        _native.raise_later_if_programs(error)
        return {}
    file = None if place is None else place / "pytorch" / "dump" / "api_dump" / "custom_wrap_ops.yaml"
    if file is None or not file.is_file():
        return {}
    try:
        return read(str(file))
    except ValueError as error:
        warn(f"{error}; none of its functions is recorded")
        return {}


class WrapOps:
    """Registers the existing ones of these functions. A module that cannot be imported yet, or lacks a name, is tried again when
    other modules have been loaded. Called only by PrecisionDebugger.
    """

    def __init__(self, apis: Apis, functions: dict[str, list[str]]) -> None:
        self._apis = apis
        self._pending = [(path, name) for path, names in functions.items() for name in dict.fromkeys(names)]
        self._loaded = -1
        self._told: set[tuple[str, str]] = set()
        self._registered: list[tuple[Any, str]] = []

    def refresh(self) -> None:
        """Registers functions that did not exist at the last call. Returns at once if no module was loaded since."""
        if not self._pending or len(sys.modules) == self._loaded:
            return
        left = []
        for path, name in self._pending:
            try:
                host = _resolve(path)
                self._apis.register_custom(host, name, path)
                self._registered.append((host, name))
            except Exception as error:  # noqa: BLE001 - a module of the program may raise any type; the training continues
                left.append((path, name))
                if _native.raise_later_if_programs(error):
                    continue
                if (path, name) not in self._told:
                    self._told.add((path, name))
                    warn(f"custom_wrap_ops: {path}.{name} is not recorded yet: {error}")
        self._pending, self._loaded = left, len(sys.modules)

    def remove(self) -> None:
        """Removes the stand-ins."""
        for host, name in self._registered:
            self._apis.restore_custom(host, name)
        self._registered.clear()
        self._pending.clear()


def _resolve(path: str) -> Any:
    """Returns a module, or an object in one such as a class. Imports modules that are not imported yet."""
    if sys.modules.get(path) is not None:
        return sys.modules[path]
    first, *rest = path.split(".")
    host, at = importlib.import_module(first), first
    for part in rest:
        at += "." + part
        host = getattr(host, part) if hasattr(host, part) else importlib.import_module(at)
    return host
