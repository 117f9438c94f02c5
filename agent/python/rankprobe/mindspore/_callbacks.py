# SPDX-License-Identifier: Apache-2.0
"""Callbacks of mindspore.train.Model, which make a step of the debugger of each of its steps."""

from __future__ import annotations

from typing import Any

import mindspore


class MsprobeStep(mindspore.train.Callback):  # type: ignore[misc]
    """Calls start(), stop() and step() of the debugger around each step of Model.train()."""

    def __init__(self, debugger: Any) -> None:
        super().__init__()
        self._debugger = debugger

    def on_train_step_begin(self, run_context: Any) -> None:
        # This is the network wrapped with the loss and the optimizer, which Model calls.
        self._debugger.start(getattr(run_context.original_args(), "network", None))

    def on_train_step_end(self, run_context: Any) -> None:
        self._debugger.stop()
        self._debugger.step()


class MsprobeInitStep(mindspore.train.Callback):  # type: ignore[misc]
    """Sets the number of the first step to the one from which the training continues."""

    def on_train_begin(self, run_context: Any) -> None:
        from rankprobe.mindspore.debugger import PrecisionDebugger

        if PrecisionDebugger.instance is not None:
            PrecisionDebugger.set_init_step(int(run_context.original_args().cur_step_num))
