# SPDX-License-Identifier: Apache-2.0
"""Loops that a program writes itself, and those of frameworks that look like them.

    watch(model, optimizer)                                                                  # before the loop
    watch(model, optimizer, step=args.iteration)                                             # Megatron: a list of models, its own optimizer
    watch(trainer.model_parts, trainer.optimizers, step=lambda: trainer.step)                # torchtitan
    watch(engine.module, engine.optimizer_step, step=trainer.resume_global_step)             # verl: an engine of a trainer or worker

A step lasts from the first forward of the model for training to the end of optimizer.step(), also of one that a
GradScaler left out. Forwards without gradients and forwards in eval() are in no step.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from typing import Any, Callable, Optional, Sequence, Union

from rankprobe.integrations._steps import Step, TrainingSteps


class Watched:
    """What watch() has in place. remove() takes it off; then no step begins."""

    def __init__(self, steps: TrainingSteps, called: Sequence[Any], optimizer: Any, is_step: Callable[[], bool]) -> None:
        self._steps, self._is_step = steps, is_step
        # The method that ends a step, where it is not called step().
        method = "step"
        if isinstance(optimizer, types.MethodType):
            optimizer, method = optimizer.__self__, optimizer.__name__
        try:
            self._optimizer: Callable[[], Any] = weakref.ref(optimizer)
        except TypeError:  # a class with __slots__
            self._optimizer = lambda: optimizer
        else:
            # Else what is in place around its class's step() would stay as long as the process. Hooks of models go with the
            # models: this may come in the middle of a forward that goes over them.
            weakref.finalize(optimizer, steps.guarded, self._let_step_go).atexit = False
        # No forward for training was seen in a step: steps last from one optimizer step to the next.
        self._unseen = False
        self._stepped = 0
        self._undo: list[Callable[[], None]] = []
        self._undo_around: list[Callable[[], None]] = []
        steps.guarded(self._install, called, optimizer, method)
        if not steps.recordable:
            self.remove()

    def _install(self, called: Sequence[Any], optimizer: Any, method: str) -> None:
        from rankprobe.pytorch import _hidden_hooks
        from rankprobe.pytorch._redirect import Around

        _hidden_hooks.hold()
        self._undo.append(_hidden_hooks.release)
        for model in called:
            hook = _hidden_hooks.marked(lambda _, module, *__: self._forward(module))
            self._undo.append(_hidden_hooks.HookHandle("_forward_pre_hooks", hook).put(model).remove)
        # The method of the class, whose calls come here: the program's object stays as it is, also for pickle.
        around = Around(getattr(type(optimizer), method), self._around_step)
        if not around.works:
            raise TypeError(f"{type(optimizer).__name__}.{method} is not a function of Python whose calls can be seen")
        self._undo_around.append(around.remove)
        scalers = sys.modules.get("torch.amp.grad_scaler") or sys.modules.get("torch.cuda.amp.grad_scaler")
        if scalers is not None:
            self._undo_around.append(Around(scalers.GradScaler.step, self._around_scaler).remove)

    def remove(self) -> None:
        self._let_step_go()
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._steps.pause()

    def _let_step_go(self) -> None:
        for undo in self._undo_around:
            undo()
        self._undo_around.clear()

    def _forward(self, module: Any) -> None:
        import torch

        if self._optimizer() is None or not torch.is_grad_enabled() or not (module.training or self._unseen):
            self._steps.pause()
        else:
            self._steps.start()

    def _around_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def rankprobe_step(own: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(own, *args, **kwargs)
            if own is self._optimizer():
                self._steps.guarded(self._ended)
            return result

        return rankprobe_step

    def _around_scaler(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def rankprobe_scaler_step(own: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            stepped = self._stepped
            result = step(own, optimizer, *args, **kwargs)
            if optimizer is self._optimizer() and self._stepped == stepped:
                self._steps.guarded(self._ended)
            return result

        return rankprobe_scaler_step

    def _ended(self) -> None:
        self._stepped += 1
        if not self._is_step():
            return
        self._unseen = self._unseen or not self._steps.running
        self._steps.end()
        if self._unseen:
            self._steps.start()


def watch_loop(loop: str, models: Sequence[Any], called: Sequence[Any], optimizer: Any, step: Step, config_path: Any,
               is_step: Callable[[], bool] = lambda: True) -> Optional[Watched]:
    """models: what is recorded. called: what the loop calls. optimizer: anything with a step(), or another method of it;
    is_step: whether the call of it that has just ended was the end of a step."""
    steps = TrainingSteps(loop, None if config_path is None else os.fspath(config_path))
    return Watched(steps, called, optimizer, is_step) if steps.begin(models, step) else None


def watch(model: Any, optimizer: Any, step: Step = 0,
          config_path: Optional[Union[str, "os.PathLike[str]"]] = None) -> Optional[Watched]:
    """model: a module, or a list of them (pipeline stages, parts). optimizer: the one whose step() ends a step; any object
    with such a method, or a method that is called otherwise. step: the number of the next step, of a loop that resumes, or a
    function that is asked for the number when a step begins, and is kept with what it names. config_path: config.json of what is recorded; without one the
    environment and `rankprobe run` say it.

    Returns None where nothing asks for recording, and then changes nothing. Raises InvalidParameterError for a bad config.
    """
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    return watch_loop("the loop", models, models, optimizer, step, config_path)


__all__ = ["Watched", "watch"]
