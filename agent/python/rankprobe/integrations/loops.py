# SPDX-License-Identifier: Apache-2.0
"""Integration of loops that a program writes itself, and of similar loops of frameworks.

    watch(model, optimizer)                                                                  # before the loop
    watch(model, optimizer, step=args.iteration)                                             # Megatron: a list of models, its own optimizer
    watch(trainer.model_parts, trainer.optimizers, step=lambda: trainer.step)                # torchtitan
    watch(engine.module, engine.optimizer_step, step=trainer.resume_global_step)             # verl: an engine of a trainer or worker

A step lasts from the first training forward of the model to the end of optimizer.step(), also of one that a GradScaler
skipped. Forwards without gradients and forwards in eval() mode belong to no step.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from typing import Any, Callable, Optional, Sequence, Union

from rankprobe.integrations._steps import Step, TrainingSteps


class Watched:
    """The hooks that watch() installed. remove() uninstalls them; then no step begins."""

    def __init__(self, steps: TrainingSteps, called: Sequence[Any], optimizer: Any, is_step: Callable[[], bool]) -> None:
        self._steps, self._is_step = steps, is_step
        # If `optimizer` is a bound method, that method ends a step; else step() does.
        method = "step"
        if isinstance(optimizer, types.MethodType):
            optimizer, method = optimizer.__self__, optimizer.__name__
        try:
            self._optimizer: Callable[[], Any] = weakref.ref(optimizer)
        except TypeError:  # A class with __slots__ may have no weak references.
            self._optimizer = lambda: optimizer
        else:
            # Without this, the wrapper around step() of its class would stay until the process ends. Hooks of models are removed
            # with the models and not here, because the finalizer may run during a forward that iterates over them.
            weakref.finalize(optimizer, steps.guarded, self._let_step_go).atexit = False
        # True if a step had no training forward that was seen; steps then last from one optimizer step to the next.
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
        # Wraps the method of the class, so that the program's object stays unchanged, also for pickle.
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
            # If the scaler skips the step, it does not call the optimizer, and the count stays the same.
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
    """Records the steps of a loop. models: the modules to record. called: the modules that the loop calls. optimizer: an object with
    step(), or a bound method. is_step: returns whether the call of the optimizer that has just returned ended a step. Returns None
    if nothing requests recording. Raises InvalidParameterError for a bad config."""
    steps = TrainingSteps(loop, None if config_path is None else os.fspath(config_path))
    return Watched(steps, called, optimizer, is_step) if steps.begin(models, step) else None


def watch(model: Any, optimizer: Any, step: Step = 0,
          config_path: Optional[Union[str, "os.PathLike[str]"]] = None) -> Optional[Watched]:
    """Records the steps of a loop.

    model: a module, or a list of them (pipeline stages, parts). optimizer: an object whose step() ends a step, or a bound method
    with another name. step: number of the next step, for a loop that resumes (default 0), or a function that returns the number
    when a step begins; the function and what it refers to are kept alive. config_path: config.json; None (default) leaves it to
    the environment and `rankprobe run` what is recorded.

    Returns None and changes nothing if nothing requests recording. Raises InvalidParameterError for a bad config.
    """
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    return watch_loop("the loop", models, models, optimizer, step, config_path)


__all__ = ["Watched", "watch"]
