# SPDX-License-Identifier: Apache-2.0
"""Calls of MindSpore's optimizers, which have no hooks for all of them: watched at their classes."""

from __future__ import annotations

import functools
from typing import Any, Callable

from mindspore import nn
from mindspore.experimental.optim.optimizer import Optimizer as ExperimentalOptimizer

# Those of mindspore.mint.optim are of the second.
OPTIMIZERS = (nn.Optimizer, ExperimentalOptimizer)
Before = Callable[[Any, tuple[Any, ...]], None]
After = Callable[[Any], None]


class OptimizerCalls:
    """Tells its watchers of each call of an optimizer; the last that came is the innermost. With none there is
    nothing in MindSpore. Watchers do not raise."""

    def __init__(self) -> None:
        self._watchers: list[tuple[Before, After]] = []
        # (class, the __call__ that it had of its own; None: inherited, stand-in)
        self._places: list[tuple[type, Any, Any]] = []

    def watch(self, before: Before, after: After) -> Callable[[], None]:
        """before: with the arguments of the call. after: not where it ends with an exception. Returns what undoes it."""
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
                continue  # another has wrapped it; ours only calls on
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
