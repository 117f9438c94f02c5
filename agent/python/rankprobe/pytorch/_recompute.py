# SPDX-License-Identifier: Apache-2.0
"""Complete recording of recomputed forwards of torch.utils.checkpoint(use_reentrant=False).

PyTorch ends a recomputation by an exception in the forward as soon as it has the
tensors that the backward needs, so enclosing modules have inputs and no outputs.
While a step is recorded, a recomputation continues to its end if that cannot change
the training:

* the checkpointed function does not communicate with other processes; this is only
  known if there is a single process (a rank that records would wait for one that
  does not);
* PyTorch's random state is restored afterwards (preserve_rng_state, the default),
  and the forward did not use that of Python or NumPy;
* the forward did not change a buffer of the recorded models (a running average
  would be updated once more). At level L1 without a model this is not known.

Otherwise it ends where PyTorch ends it, and the entries say so. Exceptions of the
rest of the forward, and tensors that it saves in addition, are ignored, because it
would not have run without rankprobe.
"""

from __future__ import annotations

import importlib
import random
import sys
import weakref
from typing import Any, Callable, Optional, Sequence

import torch

from rankprobe import _native
from rankprobe._program_error import came_from_signal
from rankprobe.pytorch import _walk
from rankprobe.pytorch._process import is_distributed

_MODULE = "torch.utils.checkpoint"


def stopped(error: Optional[type]) -> bool:
    """Returns whether `error` is the type of the exception that ends a recomputation."""
    # PyTorch below 2.1 has no such exception and recomputes to the end.
    return error is not None and error is getattr(sys.modules.get(_MODULE), "_StopRecomputationError", None)


def _alone() -> bool:
    return not (is_distributed() and torch.distributed.get_world_size() > 1)


def _keeps_random_state(function: Callable[..., Any]) -> bool:
    """Returns the value of `preserve_rng_state` in the closure of PyTorch's recompute_fn."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    names = code.co_freevars if code is not None else ()
    return dict(zip(names, cells))["preserve_rng_state"].cell_contents is True


def _random_states() -> tuple[Any, ...]:
    states: tuple[Any, ...] = (random.getstate(),)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, keys, *position = numpy.random.get_state()
        states += (keys.tobytes(), tuple(position))
    return states


class _Whole:
    """One checkpointed region, from its forward to its recomputations."""

    def __init__(self, frame: Any, recompute: Callable[..., Any], owner: "Recomputations") -> None:
        self._frame, self._recompute, self._owner = frame, recompute, owner
        self._before: Any = self._state()
        self._unchanged = False

    def _state(self) -> Any:
        try:
            buffers = self._owner.buffers()
            return None if buffers is None else (buffers, _random_states())
        except Exception as error:  # noqa: BLE001 - after a fault of rankprobe the state is not known
            _native.raise_later_if_programs(error)
            return None

    def forward_completed(self) -> None:
        self._unchanged = self._before is not None and self._before == self._state()
        self._before = None

    def _may_run_on(self) -> bool:
        try:
            return (self._unchanged and self._frame.early_stop and self._owner.wanted() and _alone()
                    and _keeps_random_state(self._recompute))
        except Exception as error:  # noqa: BLE001 - another PyTorch: as it does it
            _native.raise_later_if_programs(error)
            return False

    def __call__(self, *args: Any) -> None:
        frame = self._frame
        if not self._may_run_on():
            self._recompute(*args)
            return
        counter, needed = frame.recomp_counter, len(frame.weak_holders)
        before = sum(counter.values())
        strict = frame.ignore_saved_mismatch
        frame.early_stop, frame.runs_on = False, True
        try:
            self._recompute(*args)
        except Exception as error:  # Ignored only after all needed tensors were saved, and not if another region ends.
            enough = sum(counter.values()) - before >= needed
            if stopped(type(error)) or not enough or came_from_signal(error.__traceback__):
                raise
        finally:
            frame.early_stop, frame.runs_on = True, False
            # Early stopping must not count tensors beyond the needed ones.
            frame.ignore_saved_mismatch = strict
            for group, count in list(counter.items()):
                counter[group] = min(count, needed)


def _frame_class(owner: "Recomputations", base: Any) -> type:
    class Frame(base):  # type: ignore[misc]
        """PyTorch's record of a checkpointed region, with a recomputation that can run to its end."""

        runs_on = False

        def __init__(self, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            self._completed = False
            self._whole: Optional[_Whole] = None
            super().__init__(recompute_fn, *args, **kwargs)
            if owner.wanted():
                self._whole = self.recompute_fn = _Whole(self, recompute_fn, owner)

        @property
        def forward_completed(self) -> bool:
            # While it runs to its end, saving more tensors than needed is not an error.
            return self._completed and not self.runs_on

        @forward_completed.setter
        def forward_completed(self, value: bool) -> None:
            self._completed = value
            if value and self._whole is not None:
                self._whole.forward_completed()

    return Frame


class Recomputations:
    """Installs and removes the replacement of PyTorch's records.

    wanted: returns whether calls are recorded now.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self.wanted = wanted
        self._models: list[weakref.ref[Any]] = []
        # Dicts of the modules that have buffers.
        self._buffers: Optional[list[dict[str, Any]]] = None
        # The module torch.utils.checkpoint, its class, and the replacement.
        self._code: Any = None
        self._original: Any = None
        self._class: Optional[type] = None

    def watch(self, models: Sequence[torch.nn.Module]) -> None:
        """Sets the models whose buffers show whether a forward changes state."""
        if self._buffers is None or len(models) != len(self._models) or any(
                one is not other() for one, other in zip(models, self._models)):
            self._models = [weakref.ref(model) for model in models]  # The program may delete them.
            self._buffers = [module._buffers for model in models for module in _walk.modules(model) if module._buffers]

    def buffers(self) -> Optional[tuple[Any, ...]]:
        """Returns the ids and version counters of all buffers; None if no model is known."""
        if self._buffers is None:
            return None
        return tuple((id(buffer), buffer._version) for own in self._buffers for buffer in own.values()
                     if buffer is not None and not buffer.is_inference())

    def install(self) -> None:
        if self._class is not None:
            return
        # Imported here, because in an attached process this file may be imported before torch is complete.
        self._code = importlib.import_module(_MODULE)
        self._original = getattr(self._code, "_CheckpointFrame", None)
        if self._original is not None and hasattr(self._code, "_StopRecomputationError"):
            self._class = self._code._CheckpointFrame = _frame_class(self, self._original)

    def remove(self) -> None:
        if self._class is not None and self._code._CheckpointFrame is self._class:
            self._code._CheckpointFrame = self._original
        self._class = None
