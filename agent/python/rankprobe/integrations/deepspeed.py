# SPDX-License-Identifier: Apache-2.0
"""Integration of DeepSpeed, for a loop with the engine's forward, backward() and step().

    engine, *_ = deepspeed.initialize(model=model, config=config)
    watch(engine)

A step ends with the engine.step() that increments global_steps: at the boundary of gradient accumulation, also if the
loss scale overflowed. Its number is the engine's global_steps, also after load_checkpoint().
"""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from rankprobe.integrations.loops import Watched, watch_loop


def watch(engine: Any, config_path: Optional[Union[str, "os.PathLike[str]"]] = None) -> Optional[Watched]:
    """Records the steps of an engine. engine: from deepspeed.initialize(), after a checkpoint was loaded, if any. config_path,
    result and errors: as in rankprobe.integrations.loops.watch."""
    done = int(engine.global_steps)

    def is_step() -> bool:
        nonlocal done
        before, done = done, int(engine.global_steps)
        return done != before

    return watch_loop("a DeepSpeed engine", [engine.module], [engine], engine, done, config_path, is_step)


__all__ = ["watch"]
