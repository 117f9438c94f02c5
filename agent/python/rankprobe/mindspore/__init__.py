# SPDX-License-Identifier: Apache-2.0
"""rankprobe for MindSpore in PyNative mode: a drop-in for msprobe.mindspore.

    from rankprobe.mindspore import PrecisionDebugger, seed_all

    debugger = PrecisionDebugger(config_path="config.json")
    for batch in data:
        debugger.start(net)
        loss, gradients = grad_fn(batch)
        optimizer(gradients)
        debugger.stop()
        debugger.step()
"""

try:
    import mindspore as _  # noqa: F401
except ImportError as error:
    raise ImportError(f"rankprobe.mindspore needs MindSpore in this environment (mindspore 2.10, numpy below 2): {error}") from error

from rankprobe._frontend.errors import InterfaceUsageError, InvalidParameterError, RankprobeError
from rankprobe.mindspore._callbacks import MsprobeInitStep, MsprobeStep
from rankprobe.mindspore.debugger import PrecisionDebugger
from rankprobe.mindspore.reproducibility import seed_all

__all__ = [
    "InterfaceUsageError", "InvalidParameterError", "MsprobeInitStep", "MsprobeStep", "PrecisionDebugger", "RankprobeError",
    "seed_all",
]
