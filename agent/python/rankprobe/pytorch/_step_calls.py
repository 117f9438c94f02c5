# SPDX-License-Identifier: Apache-2.0
"""The order in which a training calls backward(), gradient clipping and its optimizers.

A clipping behind the optimizer's step changes gradients that are no longer used, and an optimizer that is made again in each step has no
averages. A generator of parameters is read, and another one of the same parameters is passed on.
"""

from __future__ import annotations

import types
import weakref
from typing import Any, Callable, Iterator, Optional

import torch

from rankprobe.pytorch._redirect import Around

_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


class StepCalls:
    """The calls of one step. Call note_backward(), note_clip() and note_optimizer() when these begin, and take() at the step's end."""

    def __init__(self) -> None:
        # Optimizers that stepped, by id; and whether there was one before this step.
        self._known: dict[int, weakref.ref[Any]] = {}
        self._has_trained = False
        # By the id of a parameter: its version in the first and in the newest step. The next model may get the same ids, and its
        # parameters have the versions of new ones again. There are no weak references to parameters, because
        # torch.utils.swap_tensors(), which Module.to() may use, refuses tensors that have them.
        self._versions: dict[int, tuple[int, int]] = {}
        self._clear()

    def _clear(self) -> None:
        # Whether a backward, and whether a clipping without one before it, is followed by no other call.
        self._has_backward = self._is_early = False
        self._clips = self._misplaced = self._repeated = self._empty = 0
        # Parameters that were clipped since the last step of an optimizer, and those of them before the last backward.
        self._clipped: set[int] = set()
        self._before: set[int] = set()
        # Optimizers without a state, and the number of all that stepped.
        self._fresh: list[weakref.ref[Any]] = []
        self._stepped = 0
        # Optimizers whose first step this is, and whether one of them or another trains what was trained before.
        self._began: set[int] = set()
        self._goes_on = False

    def watch(self, guarded: Callable[[Callable[[Any], None]], None]) -> Iterator[Callable[[], None]]:
        """Watches the clipping of this step; guarded(f) calls f and catches faults. Yields functions that undo it."""
        def around(clip: Callable[..., Any]) -> Callable[..., Any]:
            def rankprobe_clip(*args: Any, **kwargs: Any) -> Any:
                parameters = args[0] if args else None
                if isinstance(parameters, types.GeneratorType):
                    parameters = list(parameters)
                    args = ((one for one in parameters), *args[1:])
                guarded(lambda _: self.note_clip(parameters if args else kwargs.get("parameters")))
                return clip(*args, **kwargs)

            return rankprobe_clip

        for name in _CLIPS:
            yield Around(getattr(torch.nn.utils.clip_grad, name), around).remove

    def note_backward(self) -> None:
        self._misplaced += self._is_early
        self._has_backward, self._is_early = True, False
        self._before |= self._clipped

    def note_clip(self, parameters: Any) -> None:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        ids = {id(one) for one in parameters} if isinstance(parameters, (list, tuple)) else set()
        self._clips += 1
        self._empty += isinstance(parameters, (list, tuple)) and not parameters
        self._is_early = not self._has_backward
        self._repeated += not ids.isdisjoint(self._before)
        self._clipped |= ids

    def note_optimizer(self, optimizer: Any) -> None:
        self._has_backward = self._is_early = False
        self._clipped, self._before = set(), set()
        self._stepped += 1
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        known = self._known.get(id(optimizer))
        if known is not None and known() is optimizer:
            self._goes_on |= id(optimizer) not in self._began
        else:
            self._began.add(id(optimizer))
            self._goes_on |= any(self._was_trained(parameter) for parameter in parameters)
            self._known = {key: other for key, other in self._known.items() if other() is not None}
            self._known[id(optimizer)] = weakref.ref(optimizer)
        for parameter in parameters:
            version = _version(parameter) or 0
            first, last = self._versions.get(id(parameter), (version, version))
            self._versions[id(parameter)] = (first if version >= last else version, version)
        if not _has_state(optimizer):
            self._fresh.append(weakref.ref(optimizer))

    def _was_trained(self, parameter: Any) -> bool:
        known, version = self._versions.get(id(parameter)), _version(parameter)
        return known is not None and (version is None or version > known[0] and version >= known[1])

    def take(self) -> dict[str, list[int]]:
        """Returns `clips`: clippings without a backward since the last step of an optimizer, clippings of parameters that were clipped
        before the last backward, and all; `empty_clips`: those of no parameters, as of a generator that is used up;
        `fresh_optimizers`: those whose state begins with this step, and all that stepped; and `new_training`: 1 if parameters were trained
        before, and this step trains none of them, as the next seed or fold, or the student of a teacher that was trained first."""
        made: dict[str, list[int]] = {}
        if self._clips:
            made["clips"] = [self._misplaced + self._is_early, self._repeated, self._clips]
        if self._empty:
            made["empty_clips"] = [self._empty]
        if self._stepped:
            made["fresh_optimizers"] = [sum(_has_state(optimizer()) for optimizer in self._fresh), self._stepped]
            if self._has_trained and not self._goes_on:
                made["new_training"] = [1]
            self._has_trained = True
        self._clear()
        return made


def _version(parameter: Any) -> Optional[int]:
    """Returns how often a parameter was changed in place; None for a subclass such as DTensor, which may count otherwise."""
    return parameter._version if type(parameter) in (torch.Tensor, torch.nn.Parameter) else None


def _has_state(optimizer: Any) -> bool:
    """Returns whether the optimizer keeps tensors for a parameter."""
    state = getattr(optimizer, "state", None)
    return isinstance(state, dict) and any(isinstance(one, dict) and any(isinstance(value, torch.Tensor) for value in one.values())
                                           for one in state.values())


__all__ = ["StepCalls"]
