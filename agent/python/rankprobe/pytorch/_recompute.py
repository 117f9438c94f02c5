# SPDX-License-Identifier: Apache-2.0
"""Recomputed forwards of torch.utils.checkpoint(use_reentrant=False), recorded whole.

PyTorch ends a recomputation as soon as it has the tensors that the backward
needs, by an exception in the middle of the forward: a module around that place
has inputs and no outputs. While a step is recorded such a recomputation goes
on to its end, where that cannot change the training:

* nothing in the checkpointed function talked to other processes, as far as can
  be known: there is one process only (a rank that records would wait for one
  that does not);
* PyTorch's random state is restored afterwards (preserve_rng_state, the
  default), and the forward did not use Python's or NumPy's;
* the forward left all buffers of the recorded models as they were (a running
  average would be updated once more). At level L1 without a model that is not
  known.

Elsewhere it ends where PyTorch ends it, and the entries say so. What the rest
of the forward raises, and tensors that it saves too many, are ignored: without
us it would not have run.
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
    """Whether `error` is the exception that ends a recomputation."""
    # PyTorch below 2.1 has none, it recomputes to the end.
    return error is not None and error is getattr(sys.modules.get(_MODULE), "_StopRecomputationError", None)


def _alone() -> bool:
    return not (is_distributed() and torch.distributed.get_world_size() > 1)


def _keeps_random_state(function: Callable[..., Any]) -> bool:
    """The `preserve_rng_state` that this recompute_fn of PyTorch has closed over."""
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
    """One checkpointed region: from its forward to its recomputations."""

    def __init__(self, frame: Any, recompute: Callable[..., Any], owner: "Recomputations") -> None:
        self._frame, self._recompute, self._owner = frame, recompute, owner
        self._before: Any = self._state()
        self._unchanged = False

    def _state(self) -> Any:
        try:
            buffers = self._owner.buffers()
            return None if buffers is None else (buffers, _random_states())
        except Exception as error:  # noqa: BLE001 - a fault of ours: not known
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
        except Exception as error:  # see above; another region's end is not ours
            enough = sum(counter.values()) - before >= needed
            if stopped(type(error)) or not enough or came_from_signal(error.__traceback__):
                raise
        finally:
            frame.early_stop, frame.runs_on = True, False
            # Of tensors beyond the needed ones early stop hears nothing.
            frame.ignore_saved_mismatch = strict
            for group, count in list(counter.items()):
                counter[group] = min(count, needed)


def _frame_class(owner: "Recomputations", base: Any) -> type:
    class Frame(base):  # type: ignore[misc]
        """PyTorch's record of a checkpointed region, with a recomputation of ours."""

        runs_on = False

        def __init__(self, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            self._completed = False
            self._whole: Optional[_Whole] = None
            super().__init__(recompute_fn, *args, **kwargs)
            if owner.wanted():
                self._whole = self.recompute_fn = _Whole(self, recompute_fn, owner)

        @property
        def forward_completed(self) -> bool:
            # While it runs on, more saved tensors than needed are no error.
            return self._completed and not self.runs_on

        @forward_completed.setter
        def forward_completed(self, value: bool) -> None:
            self._completed = value
            if value and self._whole is not None:
                self._whole.forward_completed()

    return Frame


class Recomputations:
    """Puts this in place of PyTorch's records, and takes it away again.

    wanted: whether calls are recorded now.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self.wanted = wanted
        self._models: list[weakref.ref[Any]] = []
        # Dicts of the modules that have buffers.
        self._buffers: Optional[list[dict[str, Any]]] = None
        # torch.utils.checkpoint, its class, and what is in place of it.
        self._code: Any = None
        self._original: Any = None
        self._class: Optional[type] = None

    def watch(self, models: Sequence[torch.nn.Module]) -> None:
        """The models whose buffers tell whether a forward changes state."""
        if self._buffers is None or len(models) != len(self._models) or any(
                one is not other() for one, other in zip(models, self._models)):
            self._models = [weakref.ref(model) for model in models]  # a program may give them up
            self._buffers = [module._buffers for model in models for module in _walk.modules(model) if module._buffers]

    def buffers(self) -> Optional[tuple[Any, ...]]:
        """Which buffers there are, and how often each was written; None: not known."""
        if self._buffers is None:
            return None
        return tuple((id(buffer), buffer._version) for own in self._buffers for buffer in own.values()
                     if buffer is not None and not buffer.is_inference())

    def install(self) -> None:
        if self._class is not None:
            return
        # Not before: an attached process knows us before its torch is whole.
        self._code = importlib.import_module(_MODULE)
        self._original = getattr(self._code, "_CheckpointFrame", None)
        if self._original is not None and hasattr(self._code, "_StopRecomputationError"):
            self._class = self._code._CheckpointFrame = _frame_class(self, self._original)

    def remove(self) -> None:
        if self._class is not None and self._code._CheckpointFrame is self._class:
            self._code._CheckpointFrame = self._original
        self._class = None
