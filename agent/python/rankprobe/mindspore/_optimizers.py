# SPDX-License-Identifier: Apache-2.0
"""Observation of calls of MindSpore's optimizers at their classes, since MindSpore has no hooks for all optimizers."""

from __future__ import annotations

import functools
from typing import Any, Callable

from mindspore import nn
from mindspore.experimental.optim.optimizer import Optimizer as ExperimentalOptimizer

# The optimizers of mindspore.mint.optim derive from the second class.
OPTIMIZERS = (nn.Optimizer, ExperimentalOptimizer)
Before = Callable[[Any, tuple[Any, ...]], None]
After = Callable[[Any], None]


class OptimizerCalls:
    """Notifies watchers of each call of an optimizer; the watcher added last is the innermost. Without watchers nothing is installed
    in MindSpore. Watchers must not raise."""

    def __init__(self) -> None:
        self._watchers: list[tuple[Before, After]] = []
        # (class, its own __call__ or None if inherited, stand-in)
        self._places: list[tuple[type, Any, Any]] = []

    def watch(self, before: Before, after: After) -> Callable[[], None]:
        """Adds a watcher. before: called with the optimizer and the arguments of the call. after: called with the optimizer, unless
        the call raises. Returns a function that removes the watcher."""
        watcher = (before, after)
        self._watchers.append(watcher)
        if not self._places:
            self._install()

        def undo() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)
            if not self._watchers:
                self._remove()

        return undo

    def _install(self) -> None:
        for kind in OPTIMIZERS:
            stand_in = self._stand_in(kind.__call__)
            self._places.append((kind, vars(kind).get("__call__"), stand_in))
            kind.__call__ = stand_in

    def _remove(self) -> None:
        for kind, own, stand_in in self._places:
            if vars(kind).get("__call__") is not stand_in:
                continue  # Another wrapper is installed; without watchers, the stand-in only calls the original.
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own  # type: ignore[method-assign]
        self._places.clear()

    def _stand_in(self, call: Any) -> Any:
        @functools.wraps(call)
        def rankprobe_call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            watchers = list(self._watchers)
            for before, _ in watchers:
                before(optimizer, (*args, *kwargs.values()))
            result = call(optimizer, *args, **kwargs)
            for _, after in reversed(watchers):
                after(optimizer)
            return result

        return rankprobe_call


calls = OptimizerCalls()
