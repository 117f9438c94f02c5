# SPDX-License-Identifier: Apache-2.0
"""State of MindSpore in this process: version, rank and mode."""

from __future__ import annotations

from typing import Optional

import mindspore
from mindspore import nn
from mindspore.communication import GlobalComm, get_group_size, get_rank

from rankprobe._frontend.errors import InterfaceUsageError
from rankprobe._frontend.framework import Framework


def _rank() -> Optional[tuple[int, int]]:
    return (get_rank(), get_group_size()) if GlobalComm.INITED else None


FRAMEWORK = Framework("mindspore", mindspore.__version__, nn.Cell, "mindspore.nn.Cell", _rank)


def check_mode() -> None:
    """Raises InterfaceUsageError in graph mode, which runs no Python hooks, so that the dump would be empty."""
    if mindspore.get_context("mode") == mindspore.GRAPH_MODE:
        raise InterfaceUsageError(
            "rankprobe records MindSpore only in PyNative mode: in graph mode a network is one compiled program, which only "
            "MindSpore's own dump on an NPU sees; set_context(mode=mindspore.PYNATIVE_MODE)")
