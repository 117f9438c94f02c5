# SPDX-License-Identifier: Apache-2.0
"""rankprobe for PyTorch: a drop-in for msprobe.pytorch.

    from rankprobe.pytorch import PrecisionDebugger, seed_all

    seed_all()
    debugger = PrecisionDebugger(config_path="config.json")
    for batch in data:
        debugger.start(model)
        ...
        debugger.stop()
        debugger.step()
"""

from rankprobe.pytorch._errors import InterfaceUsageError, InvalidParameterError, RankprobeError
from rankprobe.pytorch._functions import module_dump, module_dump_end, save
from rankprobe.pytorch._trainer_mon import TrainerMon
from rankprobe.pytorch._trainer_monitor_v2 import TrainerMonitorV2
from rankprobe.pytorch.debugger import PrecisionDebugger
from rankprobe.pytorch.reproducibility import random_save, seed_all

__all__ = [
    "InterfaceUsageError", "InvalidParameterError", "PrecisionDebugger", "RankprobeError", "TrainerMon", "TrainerMonitorV2",
    "module_dump", "module_dump_end", "random_save", "save", "seed_all",
]
