# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed: a loop with the engine's forward, backward() and step().

    engine, *_ = deepspeed.initialize(model=model, config=config)
    watch(engine)

A step ends with the engine.step() that counts global_steps up: at the boundary of gradient accumulation, also where a
loss scale overflowed. Its number is the engine's global_steps, also behind load_checkpoint().
"""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from rankprobe.integrations.loops import Watched, watch_loop


def watch(engine: Any, config_path: Optional[Union[str, "os.PathLike[str]"]] = None) -> Optional[Watched]:
    """engine: of deepspeed.initialize(), with a checkpoint loaded where there is one. config_path: as of
    rankprobe.integrations.loops.watch."""
    done = int(engine.global_steps)

    def is_step() -> bool:
        nonlocal done
        before, done = done, int(engine.global_steps)
        return done != before

    return watch_loop("a DeepSpeed engine", [engine.module], [engine], engine, done, config_path, is_step)


__all__ = ["watch"]
