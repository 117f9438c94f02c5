# SPDX-License-Identifier: Apache-2.0
"""Integration of Lightning, imported as `lightning` or as `pytorch_lightning`.

    trainer = L.Trainer(callbacks=[RankprobeCallback()])

A step ends with the batch in which an optimizer stepped; it includes the batches before, whose gradients are accumulated.
The first step has the number of the trainer's global_step, also after fit(ckpt_path=). Validation belongs to no step.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Optional, Union

from rankprobe.integrations._steps import TrainingSteps

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback
elif "lightning.pytorch" not in sys.modules and "pytorch_lightning" in sys.modules:
    from pytorch_lightning.callbacks import Callback
else:
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback


class RankprobeCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Records the steps of a Lightning trainer.

    config_path: config.json; None (default) leaves it to the environment and `rankprobe run` what is recorded.

    Raises InvalidParameterError for a bad config.
    """

    def __init__(self, config_path: Optional[Union[str, "os.PathLike[str]"]] = None) -> None:
        super().__init__()
        self._steps = TrainingSteps("lightning.Trainer", None if config_path is None else os.fspath(config_path))
        self._global_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._global_step = trainer.global_step
        self._steps.begin([pl_module], int(trainer.global_step))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._steps.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self._steps.end()
        else:
            self._steps.pause()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._steps.pause()


__all__ = ["RankprobeCallback"]
