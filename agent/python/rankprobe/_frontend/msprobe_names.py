# SPDX-License-Identifier: Apache-2.0
"""Names inside msprobe's PrecisionDebugger that drivers use: verl sets `PrecisionDebugger._instance.service.config.dump_path`.

Some drivers discard the exceptions that this raises, so an error is also one line on stderr.
"""

from __future__ import annotations

from typing import Any

from rankprobe._say import say

_told: set[str] = set()


def _tell(text: str) -> str:
    if text not in _told:
        _told.add(text)
        say(f"rankprobe: {text}")
    return text


class _Config:
    """`service.config`: the config in force. A driver may set dump_path for each stage; the assignment has no effect."""

    def __init__(self, debugger: Any) -> None:
        object.__setattr__(self, "_debugger", debugger)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self._debugger.config, name)
        except AttributeError:
            raise AttributeError(_tell(f"service.config has no {name} here: rankprobe replaces msprobe, and has the fields of "
                                       "config.json")) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "dump_path":
            raise AttributeError(_tell(f"service.config.{name} cannot be set: edit config.json, or rankprobe enable --config"))
        _tell(f"dump_path cannot change in a running job: dumps continue in {self._debugger.config.dump_path}/step*, and what a driver "
              "records for each stage is one step after the other there")


class Service:
    """`PrecisionDebugger.service`."""

    def __init__(self, debugger: Any) -> None:
        self.config = _Config(debugger)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(_tell(f"PrecisionDebugger.service has no {name} here: rankprobe replaces msprobe, and has "
                                   "service.config"))


__all__ = ["Service"]
