# SPDX-License-Identifier: Apache-2.0
"""Integration of the Hugging Face Trainer, and of the trainers of TRL that inherit from it.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[RankprobeCallback()])

A step is an optimizer step of the trainer: its micro batches, clipping and the optimizer, from on_step_begin to
on_step_end. Its number is the trainer's global_step at its beginning, also after resume_from_checkpoint.
"""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from transformers.trainer_callback import TrainerCallback

from rankprobe.integrations._steps import TrainingSteps


class RankprobeCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Records the steps of a Trainer.

    config_path: config.json; None (default) leaves it to the environment and `rankprobe run` what is recorded.

    Raises InvalidParameterError for a bad config.
    """

    def __init__(self, config_path: Optional[Union[str, "os.PathLike[str]"]] = None) -> None:
        self._steps = TrainingSteps("transformers.Trainer", None if config_path is None else os.fspath(config_path))

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if model is not None:
            self._steps.begin([model], int(state.global_step))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.end()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.pause()


__all__ = ["RankprobeCallback"]
