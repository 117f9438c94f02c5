# SPDX-License-Identifier: Apache-2.0
"""Position of the training loop: the current step and its state."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence

from rankprobe._frontend.config import is_int
from rankprobe._frontend.errors import InvalidParameterError
from rankprobe._frontend.process import warn
from rankprobe._say import say

# The collector accepts steps up to 2**53, the limit of exact integers in JSON; this leaves as many steps to train.
_MAX_FIRST = 2**52


def check_first(step: Any) -> None:
    """Raises InvalidParameterError if `step` cannot be the number of a first step."""
    if not is_int(step) or not 0 <= step <= _MAX_FIRST:
        raise InvalidParameterError(f"init step must be an int, 0 to {_MAX_FIRST}, not {step!r}")


class StepState:
    """The number of the current step, whether it and which of its forwards are
    recorded, and the steps that are still to be exported. Depends on neither PyTorch
    nor the collector. Called only by PrecisionDebugger and its hooks on root models.
    """

    def __init__(self) -> None:
        self._first = 0
        self._loop = 0
        self.running = False
        # token_range, with both ends inclusive, and the number of forwards since start().
        self.token_range: Optional[tuple[int, int]] = None
        self._tokens = 0
        # Steps that have records and were not taken for their export.
        self.dirty: set[int] = set()
        self._end_told = False

    @property
    def current(self) -> int:
        return self._first + self._loop

    def set_first(self, step: int) -> None:
        """Makes the current step the first one, with the number `step`."""
        self._first, self._loop = step, 0

    def begin(self, token_range: Optional[Sequence[int]]) -> None:
        """Starts recording. If the step is already running, its count of forwards continues."""
        if not self.running:
            self._tokens = 0
        self.running = True
        self.mark_dirty()
        self.token_range = None if token_range is None else (token_range[0], token_range[1])

    @property
    def token_wanted(self) -> bool:
        """Whether the forward that begins is in token_range."""
        return self.token_range is None or self.token_range[0] <= self._tokens <= self.token_range[1]

    def token_done(self) -> None:
        self._tokens += 1

    def end(self) -> None:
        """Ends the current step and makes the next one current."""
        self._tokens = 0
        self._loop += 1

    def mark_dirty(self) -> None:
        """Notes that the current step has records."""
        self.dirty.add(self.current)

    @property
    def has_records(self) -> bool:
        """Whether the current step has records."""
        return self.current in self.dirty

    def take_dirty(self, step: int) -> bool:
        """Returns whether `step` has records and was not taken before, and marks it as taken."""
        if step not in self.dirty:
            return False
        self.dirty.discard(step)
        return True

    def new_plan(self) -> None:
        """Resets the notice of the last step, which another plan changes."""
        self._end_told = False

    def finished(self, last: Optional[int]) -> bool:
        """Returns whether the current step is after `last`, the last step to record; reports it once for each plan. None: no last step."""
        if last is None or self.current <= last:
            return False
        if not self._end_told:
            self._end_told = True
            if self._first > last:
                if os.environ.get("RANK", "0") == "0":
                    warn(f"config.json asks for no step after {last} and this process begins with step {self._first}: "
                         "nothing is recorded")
                return True
            if os.environ.get("RANK", "0") == "0":
                say("rankprobe: recording of the chosen steps is done; the training continues")
        return True
