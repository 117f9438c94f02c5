# SPDX-License-Identifier: Apache-2.0
"""Detection of the end of a step by optimizer.step(), for TrainerMon and TrainerMonitorV2."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable

from rankprobe import _native
from rankprobe.pytorch._process import warn
from rankprobe.pytorch._redirect import unseen


class StepEnds:
    """Calls `ended()` after each step() of one optimizer, until remove().

    The wrapper is removed during `ended()`, so that a wrapper that ended() itself installs
    around step() (PyTorch below 2.0 has no hooks of optimizers) is inside of this one again.
    """

    def __init__(self, optimizer: Any, ended: Callable[[], None]) -> None:
        self._optimizer, self._ended = optimizer, ended
        self._own: Any = None
        self._method: Any = None
        self._told = False
        self._install()

    def _install(self) -> None:
        self._own, step = vars(self._optimizer).get("step"), self._optimizer.step

        @functools.wraps(step)
        def rankprobe_step(_: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            removed = self.remove()
            try:
                self._ended()
            except Exception as error:  # noqa: BLE001 - the optimizer has done its step
                if not _native.raise_later_if_programs(error):
                    self._tell(error)
            if removed:
                self._install()
            return result

        self._method = self._optimizer.step = types.MethodType(unseen(rankprobe_step), self._optimizer)

    def _tell(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            warn(f"the end of a step was not recorded, and the training continues: {error!r}")

    def remove(self) -> bool:
        """Returns False if the wrapper stays, because a scheduler has wrapped it, or if it was removed already."""
        if self._method is None or vars(self._optimizer).get("step") is not self._method:
            return False
        if self._own is None:
            del self._optimizer.step
        else:
            self._optimizer.step = self._own
        self._method = None
        return True


__all__ = ["StepEnds"]
