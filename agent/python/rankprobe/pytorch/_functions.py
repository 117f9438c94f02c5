# SPDX-License-Identifier: Apache-2.0
"""Functions that msprobe has beside PrecisionDebugger."""

from __future__ import annotations

from typing import Any

import torch

from rankprobe.pytorch.debugger import PrecisionDebugger


def module_dump(module: torch.nn.Module, dump_name: str) -> None:
    """Until module_dump_end(): only `module` is recorded, as
    Module.{dump_name}.{Class}; its children and all APIs are silent.

    It ends with the step at the latest. Raises InvalidParameterError for
    another type, InterfaceUsageError before PrecisionDebugger exists. A module hooked by start(model) is left as it is.
    """
    PrecisionDebugger._get("module_dump")._instruments.module_dump.begin(module, dump_name)


def module_dump_end() -> None:
    """Ends module_dump."""
    PrecisionDebugger._get("module_dump_end")._instruments.module_dump.end()


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """PrecisionDebugger.save."""
    PrecisionDebugger.save(variable, name, save_backward)
