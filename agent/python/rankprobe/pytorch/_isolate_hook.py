# SPDX-License-Identifier: Apache-2.0
"""Attachment of `rankprobe isolate` to a process: finds the model as `rankprobe run` does, isolates one step, writes the report
for the waiting command, and ends the program."""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
from typing import Any, Optional

import torch

from rankprobe._frontend.attach import say
from rankprobe.pytorch import _hidden_hooks
from rankprobe.pytorch._attach_hook import find_models
from rankprobe._isolation_report import NOTICE
from rankprobe.pytorch._redirect import unseen
from rankprobe.pytorch.isolation import Isolation, IsolationError

# A training that creates its optimizer late runs a forward or two before it.
_PATIENCE = 3


class _Isolated:
    """State of an isolated process. settings: `step` of the program, `out` (directory of reports), `options` and `reference` of
    Isolation."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._optimizer: Any = None
        self._models: list[torch.nn.Module] = []
        self._steps = self._calls = 0
        self._waiting: list[Any] = []
        self._isolation: Optional[Isolation] = None
        self._ended = False
        self._depth = threading.local()
        register = torch.nn.modules.module.register_module_forward_pre_hook
        self._watch: Any = register(lambda module, _: self._called(module))
        atexit.register(self._at_exit)

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes the model from the first optimizer with parameters of a module."""
        if os.getpid() != self._pid or self._optimizer is not None or self._ended:
            return
        models = find_models(p for group in optimizer.param_groups for p in group["params"])
        if models:
            self._optimizer, self._models = optimizer, models
            self._watch_no_more()
            self._wait()

    def entered(self, by: int) -> bool:
        """Call when a step() begins (1) or ends (-1). Returns whether it is the outermost one in this thread."""
        self._depth.value = getattr(self._depth, "value", 0) + by
        return bool(self._depth.value == (1 if by > 0 else 0))

    def steps(self, optimizer: Any) -> None:
        """Call before a step() of an optimizer. Ends an isolated step, so that its gradients change no parameter."""
        if os.getpid() == self._pid and optimizer is self._optimizer and self._isolation is not None:
            self._end()

    def stepped(self, optimizer: Any) -> None:
        if os.getpid() == self._pid and optimizer is self._optimizer and not self._ended:
            self._steps += 1
            self._wait()

    def _wait(self) -> None:
        """Installs hooks that begin the isolation at the first forward of the step, since a model may be moved or cast before it."""
        if self._steps != self._settings["step"] or self._waiting:
            return
        _hidden_hooks.hold()
        for model in self._models:
            begin = _hidden_hooks.marked(lambda _, module, *__: self._begin(module))
            self._waiting.append(_hidden_hooks.HookHandle("_forward_pre_hooks", begin).put(model))

    def _called(self, module: torch.nn.Module) -> None:
        """Call when a module is called while there is no optimizer. A step is then one forward of the outermost module."""
        if os.getpid() != self._pid or self._ended or self._isolation is not None or next(module.parameters(), None) is None:
            return
        if find_models(module.parameters())[:1] != [module]:
            return
        self._calls += 1
        if torch.is_grad_enabled() and module.training and self._calls < _PATIENCE:
            return
        self._steps += 1
        if self._steps > self._settings["step"]:
            self._models = [module]
            self._begin(module)

    def _watch_no_more(self) -> None:
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _begin(self, module: torch.nn.Module) -> None:
        self._watch_no_more()
        if self._isolation is not None or self._ended:
            return
        for handle in self._waiting:
            handle.remove()
        models: Any = self._models[0] if len(self._models) == 1 else self._models
        try:
            isolation = Isolation(models, self._settings["reference"], **self._settings["options"])
        except IsolationError as error:
            self._write(json.dumps({"fault": str(error)}))
            raise SystemExit(2) from None
        self._isolation = isolation
        say(f"step {self._settings['step']} of {', '.join(type(one).__name__ for one in self._models[:3])} is isolated on "
            f"{isolation.reference}: {NOTICE}. The program ends after it")
        isolation.on_forward_end = self._forward_ended
        isolation.begin_within(module)

    def _forward_ended(self) -> None:
        isolation = self._isolation
        if isolation is not None and (self._optimizer is None or isolation.complete()):
            self._end()

    def _end(self) -> None:
        self._report()
        # Status 0, because with another one a launcher would kill ranks that have not reported yet. The command reads the reports.
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)

    def _report(self, note: str = "") -> None:
        isolation, self._isolation, self._ended = self._isolation, None, True
        assert isolation is not None
        isolation.__exit__(None, None, None)
        if note:
            isolation.report.notes.append(note)
        self._write(isolation.report.to_json())

    def _write(self, text: str) -> None:
        self._ended = True
        name = f"rank{os.environ['RANK']}" if os.environ.get("RANK", "").isdigit() else f"proc{os.getpid()}"
        path = os.path.join(self._settings["out"], f"{name}.json")
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.part", path)

    def _at_exit(self) -> None:
        if os.getpid() == self._pid and self._isolation is not None:
            self._report("the program ended within the step")


def _wrap_step(cls: Any, isolated: _Isolated) -> None:
    step = cls.step
    if getattr(step, "rankprobe_watched", False):
        return

    @functools.wraps(step)
    def rankprobe_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isolated.entered(1):
            isolated.steps(self)
        try:
            result = step(self, *args, **kwargs)
        finally:
            outermost = isolated.entered(-1)
        if outermost:
            isolated.stepped(self)
        return result

    rankprobe_step.rankprobe_watched = True  # type: ignore[attr-defined]
    cls.step = unseen(rankprobe_step)


def install(optimizer_class: Any, settings: str) -> None:
    """Watches every optimizer that is created from now on. settings: JSON of RANKPROBE_ISOLATE."""
    isolated = _Isolated(json.loads(settings))
    make = optimizer_class.__init__

    @functools.wraps(make)
    def rankprobe_init(self: Any, *args: Any, **kwargs: Any) -> None:
        _wrap_step(type(self), isolated)
        make(self, *args, **kwargs)
        isolated.made(self)

    optimizer_class.__init__ = unseen(rankprobe_init)
