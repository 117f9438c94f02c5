# SPDX-License-Identifier: Apache-2.0
"""State of PyTorch in this process: version, rank and whether it compiles."""

from __future__ import annotations

import os
import sys
from typing import Optional

import torch

from rankprobe._frontend import process
from rankprobe._frontend.errors import InterfaceUsageError
from rankprobe._frontend.framework import Framework
from rankprobe._frontend.process import InstanceOfProcess, report_fault, warn


# The original function: tests of programs may replace it by a mock without a process group.
_is_initialized = torch.distributed.is_initialized if torch.distributed.is_available() else None


def is_distributed() -> bool:
    return _is_initialized is not None and _is_initialized()


def _rank() -> Optional[tuple[int, int]]:
    if not is_distributed():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


FRAMEWORK = Framework("pytorch", torch.__version__, torch.nn.Module, "torch.nn.Module", _rank)


def check_torch_compile() -> None:
    """Raises InterfaceUsageError while Dynamo compiles, because it would trace the stand-ins and fail later."""
    # Checks sys.modules, because an access through torch would import Dynamo.
    if "torch._dynamo" not in sys.modules:
        return
    compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if compiling is not None and compiling() and os.environ.get("TORCHDYNAMO_DISABLE") != "1":
        raise InterfaceUsageError("rankprobe cannot record inside torch.compile; set TORCHDYNAMO_DISABLE=1")


def environment_rank() -> Optional[int]:
    """Returns the rank of torch.distributed, else that of the launcher; None if it is not known yet."""
    return process.environment_rank(FRAMEWORK)


__all__ = ["FRAMEWORK", "InstanceOfProcess", "check_torch_compile", "environment_rank", "is_distributed", "report_fault", "warn"]
