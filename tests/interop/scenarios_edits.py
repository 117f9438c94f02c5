# SPDX-License-Identifier: Apache-2.0
"""config.json edited in a running job: the documents' switch, as msprobe can do it.

msprobe looks at the file again in start() and in step(), but not more often
than once in some seconds; before each look it gets that time. rankprobe gets
none: its start() takes what the file says then.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
import torch.nn as nn

from scenario_registry import scenario

_BAD = '{"task": "statistics", '


class _Steps:
    """A job of one process, one step at a time."""

    def __init__(self, probe: Any, config: str) -> None:
        torch.manual_seed(0)
        self._path = config
        with open(config, encoding="utf-8") as file:
            self._fields = json.load(file)
        self._model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        self._debugger = probe.PrecisionDebugger(config_path=config)

    def run(self, count: int) -> None:
        for _ in range(count):
            self._debugger.start(model=self._model)
            self._model(torch.randn(3, 4)).sum().backward()
            self._debugger.stop()
            self._debugger.step()

    def edit(self, text: str = "", **fields: Any) -> None:
        """As editors do: the new file is moved into its place."""
        self._fields.update(fields)
        state = "ENABLED" if self._debugger.config.dump_enable else "DISABLED"
        patience = getattr(type(self._debugger), f"_CONFIG_CHECK_INTERVAL_{state}_S", 0.0)
        with open(self._path + ".new", "w", encoding="utf-8") as file:
            file.write(text or json.dumps(self._fields))
        os.replace(self._path + ".new", self._path)
        if patience:
            time.sleep(patience + 0.2)


def _section(**fields: Any) -> dict:
    return {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics", **fields}


@scenario(level="L1", top={"dump_enable": False})
def edit_switches(probe: Any, config: str) -> None:
    """Off, on, off, on, off: steps 2, 3 and 6."""
    steps = _Steps(probe, config)
    steps.run(2)
    for on, count in ((True, 2), (False, 2), (True, 1), (False, 2)):
        steps.edit(dump_enable=on)
        steps.run(count)


@scenario(level="L1", top={"dump_enable": True})
def edit_fields(probe: Any, config: str) -> None:
    """A field at a time while dumping is on: what is recorded, in which form, at which level, in which steps."""
    steps = _Steps(probe, config)
    steps.run(1)
    for fields in ({"statistics": _section(list=["tanh"])}, {"statistics": _section(summary_mode="md5")},
                   {"task": "tensor", "tensor": _section()}, {"task": "statistics", "level": "mix"},
                   {"step": ["0-4", 6]}):
        steps.edit(**fields)
        steps.run(1)
    steps.run(2)


@scenario(level="L1", top={"dump_enable": True})
def edit_mistakes(probe: Any, config: str) -> None:
    """What is not JSON, and a value that is none, keep dumping off until they are mended."""
    steps = _Steps(probe, config)
    steps.run(1)
    steps.edit(_BAD)
    steps.run(2)
    steps.edit()
    steps.run(1)
    steps.edit(level="L7")
    steps.run(1)
    steps.edit(level="L1")
    steps.run(1)
