# SPDX-License-Identifier: Apache-2.0
"""Functions of msprobe's interface besides PrecisionDebugger."""

from __future__ import annotations

from typing import Any

import torch

from rankprobe.pytorch.debugger import PrecisionDebugger


def module_dump(module: torch.nn.Module, dump_name: str) -> None:
    """Records only `module`, as Module.{dump_name}.{Class}, until module_dump_end();
    its children and all APIs are not recorded.

    It ends with the step at the latest. Has no effect, except for a warning, for a
    module that start(model) has hooked. Raises InvalidParameterError for other
    types, InterfaceUsageError before PrecisionDebugger exists.
    """
    PrecisionDebugger._get("module_dump")._instruments.module_dump.begin(module, dump_name)


def module_dump_end() -> None:
    """Ends module_dump(). Raises InterfaceUsageError before PrecisionDebugger exists."""
    PrecisionDebugger._get("module_dump_end")._instruments.module_dump.end()


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Calls PrecisionDebugger.save()."""
    PrecisionDebugger.save(variable, name, save_backward)
