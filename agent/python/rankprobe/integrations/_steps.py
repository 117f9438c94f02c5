# SPDX-License-Identifier: Apache-2.0
"""Steps of a training as its framework reports them: begin() of the training, then start(), pause() and end() of each step.

If nothing requests recording, every call returns at once. After a fault of rankprobe, which is reported in one line on stderr,
nothing more is recorded; the training continues.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any, Callable, Optional, Sequence, Union

from rankprobe import _native
from rankprobe._frontend.errors import CollectorMissingError
from rankprobe._say import say


# The number of the next step, or a function that returns the number of the step that begins.
Step = Union[int, Callable[[], int]]


def _debugger_of_process() -> Any:
    """Returns the PrecisionDebugger of this process, or None. Imports nothing."""
    module = sys.modules.get("rankprobe.pytorch.debugger")
    return None if module is None else module.PrecisionDebugger._instance


def _check(config_path: str) -> None:
    """Raises InvalidParameterError naming every fault of the file, before the training begins."""
    from rankprobe._frontend import config

    config.parse(config.merged_text(config_path, {}), config_path)


class TrainingSteps:
    """The steps of one training.

    loop: name of the trainer or loop, for messages. config_path: config.json; None leaves it to the environment and
    `rankprobe run` what is recorded. Raises InvalidParameterError for a bad config."""

    def __init__(self, loop: str, config_path: Optional[str] = None) -> None:
        self._loop, self._config_path = loop, None if config_path is None else os.path.abspath(config_path)
        self._debugger: Any = None
        self._models: list[weakref.ref[Any]] = []
        self._faulty = self._numbers_told = False
        self._next: Optional[Callable[[], int]] = None
        # True between start() and pause() or end().
        self.running = False
        # True between the first start() of a step and its end().
        self._begun = False
        if self._config_path is not None:
            _check(self._config_path)
        if os.environ.get("RANKPROBE_ATTACH"):
            self.guarded(self._claim)

    @staticmethod
    def _claim() -> None:
        """Keeps optimizers that the framework creates later from beginning steps under `rankprobe run`."""
        from rankprobe.pytorch import _attach_hook

        _attach_hook.claim()

    def begin(self, models: Sequence[Any], step: Step) -> bool:
        """Begins the training of `models`, whose next step has the number `step`. Returns whether it can be recorded."""
        self._debugger, self.running, self._begun = None, False, False
        self._next = step if callable(step) else None
        asked = (self._config_path or os.environ.get("RANKPROBE_ATTACH") or os.environ.get("RANKPROBE_CONFIG")
                 or os.environ.get("RANKPROBE_COLLECTOR") or _debugger_of_process() is not None)
        if asked and not self._faulty:
            self.guarded(self._begin, list(models), 0 if callable(step) else step)
        return self.recordable

    @property
    def recordable(self) -> bool:
        """Whether begin() was called for a training that can be recorded."""
        return self._debugger is not None

    def start(self) -> None:
        """Starts recording the current step, or continues it after pause()."""
        if self._debugger is not None and not self.running:
            if self._next is None and self._debugger._start_idle():
                self.running = self._begun = True
                return
            if self._next is not None and not self._begun:
                self.guarded(self._ask_number)
            self.guarded(self._start)

    def _ask_number(self) -> None:
        assert self._next is not None
        self._number(self._debugger, int(self._next()))

    def _start(self) -> None:
        if self._debugger is not None:  # None if a fault in _ask_number() has ended the recording.
            models = self._alive()
            self.running = self._begun = True
            self._debugger._start(models[0] if len(models) == 1 else models, None, None)

    def pause(self) -> None:
        """Interrupts the step, for example for an evaluation or a checkpoint."""
        if self.running:
            self.running = False
            self.guarded(self._debugger._stop)

    def end(self) -> None:
        """Ends the step when the optimizer has done or skipped it. The next step becomes the current one."""
        if self._debugger is not None:
            self.running = self._begun = False
            if not self._debugger._end_idle():
                self.guarded(self._end)

    def _begin(self, models: list[Any], step: int) -> None:
        from rankprobe._frontend.attach import make_debugger
        from rankprobe.pytorch import _attach_hook
        from rankprobe.pytorch.debugger import PrecisionDebugger

        how = f"; a step is one of {self._loop}"
        if not _attach_hook.hand_over(models, how) and PrecisionDebugger._instance is None:
            path = self._config_path or os.environ.get("RANKPROBE_CONFIG")
            if path:
                PrecisionDebugger(config_path=path)
            else:
                make_debugger(PrecisionDebugger, "idle")
                _attach_hook.tell(models, how)
        debugger = PrecisionDebugger._instance
        if debugger is None or debugger._inert:
            return
        self._models = [weakref.ref(model) for model in models]
        self._number(debugger, step)
        self._debugger = debugger

    def _number(self, debugger: Any, step: int) -> None:
        """Sets the number of the current step, unless it is below the current number. Recorded steps keep their numbers."""
        state, native = debugger._steps, debugger._session.native
        if step <= state.current:
            if step < state.current and not self._numbers_told and os.environ.get("RANK", "0") == "0":
                self._numbers_told = True
                say(f"rankprobe: {self._loop} continues with step {step}, and this process has had {state.current} steps: "
                    f"the numbers continue with {state.current}")
            return
        if state.has_records and not native.forget_empty_step():
            debugger._step()
        debugger.set_init_step(max(step, state.current))

    def _alive(self) -> list[Any]:
        """The models, as long as the program has them: nothing here keeps one."""
        return [model for model in [known() for known in self._models] if model is not None]

    def _end(self) -> None:
        if self._debugger._capture.wants_replica:
            self._debugger.report_replica(self._alive())
        self._debugger._stop()
        self._debugger._step()

    def guarded(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls the function. A fault of rankprobe ends the recording but not the training."""
        try:
            function(*arguments)
        except CollectorMissingError:
            raise  # RANKPROBE_ON_COLLECTOR_MISSING=fail requests it.
        except Exception as error:  # noqa: BLE001 - the training continues
            if not _native.raise_later_if_programs(error):
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        debugger, self._debugger = self._debugger, None
        self._faulty, self.running = True, False
        say(f"rankprobe: {self._loop}: nothing more is recorded, and the training continues: {error!r}")
        try:
            if debugger is not None:
                debugger._stop()
        except Exception as fault:  # noqa: BLE001
            _native.raise_later_if_programs(fault)


__all__ = ["TrainingSteps"]
