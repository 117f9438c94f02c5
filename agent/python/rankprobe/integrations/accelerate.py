# SPDX-License-Identifier: Apache-2.0
"""Integration of Accelerate, for a loop with accelerator.prepare(), accumulate() and backward().

    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    watch(accelerator, model, optimizer)

A step ends with the optimizer.step() that applies the gradients; calls of it while gradients are accumulated do not end a step.
"""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from rankprobe.integrations.loops import Watched, watch_loop


def watch(accelerator: Any, model: Any, optimizer: Any, step: int = 0,
          config_path: Optional[Union[str, "os.PathLike[str]"]] = None) -> Optional[Watched]:
    """Records the steps of an Accelerate loop. model, optimizer: as prepare() returned them. step: number of the next optimizer step,
    for a loop that resumes; default 0. config_path, result and errors: as in rankprobe.integrations.loops.watch."""
    return watch_loop("an Accelerate loop", [model], [model], optimizer, step, config_path, lambda: bool(accelerator.sync_gradients))


__all__ = ["watch"]
