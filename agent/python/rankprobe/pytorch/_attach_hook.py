# SPDX-License-Identifier: Apache-2.0
"""What `rankprobe run` puts into a process: models and steps.

The first optimizer with parameters of a module names the model: the outermost
module that owns them. A step lasts from the end of one optimizer.step() of it
to the end of the next. Where a model is called and there is no optimizer
(inference, a server), it is the model, and a step is one forward of it; an
optimizer that is made later takes over. The user's script knows nothing of this.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import threading
from typing import Any, Callable, Iterable, Optional

import torch

from rankprobe import _native
from rankprobe._frontend.attach import config_file, say
from rankprobe._inputs import run_flag
from rankprobe.pytorch import _hidden_hooks
from rankprobe.pytorch._errors import CollectorMissingError
from rankprobe.pytorch._hidden_hooks import marked
from rankprobe.pytorch.debugger import PrecisionDebugger

def find_models(parameters: Iterable[torch.Tensor]) -> list[torch.nn.Module]:
    """The outermost modules of this process that own any of `parameters`."""
    wanted = {id(p) for p in parameters}
    # By type: isinstance() would wake what only pretends to be something.
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    inner = {id(child) for m in modules for child in m.children()}
    roots = [m for m in modules if id(m) not in inner and any(id(p) in wanted for p in m.parameters())]
    return sorted(roots, key=lambda m: -sum(1 for p in m.parameters() if id(p) in wanted))


class _Forwards:
    """Steps that are forwards of `model`. Of two that run at once in different
    threads the first is a step, the other belongs to nobody."""

    def __init__(self, model: torch.nn.Module, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._owner: Optional[int] = None
        self._depth = 0
        # Without it nobody tells of a forward that ended with an exception.
        self._always = hasattr(model, "_forward_hooks_always_called")
        always = {"always_call": True} if self._always else {}
        _hidden_hooks.hold()
        self._handles = [model.register_forward_pre_hook(marked(lambda *_: _guarded(self.enter))),
                         model.register_forward_hook(marked(lambda *_: _guarded(self.leave)), **always)]

    def enter(self) -> None:
        if self._is_anothers():
            return
        if self._depth > 0 and not self._always:
            self._end()
        self._depth += 1
        if self._depth == 1:
            self._owner = threading.get_ident()
            self._begin()

    def leave(self) -> None:
        if self._depth == 0 or self._is_anothers():
            return
        if self._depth == 1:
            self._end()
        else:
            self._depth -= 1

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        _hidden_hooks.release()
        if self._depth > 0:
            self._end()

    def _is_anothers(self) -> bool:
        return PrecisionDebugger._instance is None or (self._depth > 0 and self._owner != threading.get_ident())

    def _end(self) -> None:
        self._depth = 0
        PrecisionDebugger.stop()
        PrecisionDebugger.step()


class _Attachment:
    """The one attached optimizer, or model without one, of a process."""

    # A training that makes its optimizer late runs a forward or two before it.
    _PATIENCE = 3

    def __init__(self) -> None:
        self._optimizer: Optional[torch.optim.Optimizer] = None
        self._forwards: Optional[_Forwards] = None
        self._models: list[torch.nn.Module] = []
        self._pid = os.getpid()
        self.depth = 0
        self._called: Optional[torch.nn.Module] = None
        self._calls = 0
        self._watch: Any = None

    def watch_calls(self) -> None:
        """Looks at every call of a module until something is attached to."""
        register = torch.nn.modules.module.register_module_forward_pre_hook
        self._watch = register(lambda module, _: _guarded(self.called, module))
        atexit.register(self._say_why_not)

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        if self._optimizer is not None or os.getpid() != self._pid:
            return
        if PrecisionDebugger._instance is not None and self._forwards is None:
            return
        models = find_models(p for group in optimizer.param_groups for p in group["params"])
        if not models:
            return
        if self._forwards is not None:
            self._forwards.stop()
            self._forwards = None
            self._models = models
            say("an optimizer was made: a step now ends with its step()")
        else:
            self._attach(models)
            self._tell()
        self._optimizer = optimizer
        self._begin()

    def called(self, module: torch.nn.Module) -> None:
        """A module is called, and there is no optimizer."""
        if PrecisionDebugger._instance is not None:
            return self._watch_no_more()
        if os.getpid() != self._pid or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            return None
        if self._called is None and next(module.parameters(), None) is not None:
            self._called = module
        if module is not self._called:
            # Perhaps a part of it was called first, alone.
            if self._called is None or not any(child is self._called for child in module.modules()):
                return None
            self._called, self._calls = module, 0
        self._calls += 1
        training = torch.is_grad_enabled() and module.training
        outermost = find_models(module.parameters())[:1] == [module]
        if (training or not outermost) and self._calls < self._PATIENCE:
            return None
        # The model's own hooks do not see the call that is under way.
        self._attach([module])
        self._forwards = _Forwards(module, self._begin)
        self._tell("; a step is one forward, for there is no optimizer")
        self._forwards.enter()
        return None

    def stand_back(self) -> None:
        self._watch_no_more()
        self._pid = -1

    def _attach(self, models: list[torch.nn.Module]) -> None:
        self._watch_no_more()
        path = config_file(os.environ.get("RANKPROBE_ATTACH", "idle"))
        try:
            PrecisionDebugger(config_path=path)
        except CollectorMissingError as error:
            if os.environ.get("RANKPROBE_ON_COLLECTOR_MISSING") == "fail":
                raise SystemExit(f"rankprobe: not attached: {error}") from error
            raise
        finally:
            os.unlink(path)
        self._models = models
        # Before the debugger's own, which was registered before it.
        atexit.register(_guarded, self._end)

    def _end(self) -> None:
        """The calls behind the optimizer's last step are a step of their own, where the program has come to its end."""
        debugger = PrecisionDebugger._instance
        if debugger is None or self._optimizer is None or os.getpid() != self._pid or hasattr(sys, "last_type"):
            return
        if not debugger._over() and not debugger._session.native.step_is_empty:
            PrecisionDebugger.stop()
            PrecisionDebugger.step()

    def _watch_no_more(self) -> None:
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _say_why_not(self) -> None:
        if self._watch is None or os.getpid() != self._pid or os.environ.get("RANK", "0") != "0":
            return
        if "rankprobe.vllm" in sys.modules:  # its workers are other processes
            return
        main = getattr(sys.modules.get("__main__"), "__spec__", None)
        # torchrun, and workers of the compiler.
        tool = (getattr(main, "name", None) or os.path.basename(sys.argv[0] or "")).startswith(("torch.", "torchrun"))
        if not tool:
            say("not attached: no optimizer was made of a module's parameters, and no module with parameters was called")

    def _tell(self, how: str = "") -> None:
        """How to switch recording on; one rank says it."""
        debugger = PrecisionDebugger._instance
        # One that cannot record has no session, and has said why.
        if os.environ.get("RANK", "0") != "0" or debugger is None or debugger._inert:
            return
        session, switch = debugger._session, debugger._switch
        state = "recording" if switch.enabled else "idle"
        say(f"attached to {', '.join(type(m).__name__ for m in self._models[:3])}, {state}{how}; switch with: "
             f"rankprobe enable|disable --collector {session.address} {run_flag(session.run)}")

    def _begin(self) -> None:
        PrecisionDebugger.start(model=self._models[0] if len(self._models) == 1 else self._models)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer is not self._optimizer or os.getpid() != self._pid or PrecisionDebugger._instance is None:
            return
        PrecisionDebugger._instance._optimizer_stepped(optimizer)
        PrecisionDebugger.report_replica(self._models)
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
        self._begin()


def _guarded(function: Callable[..., None], *arguments: Any) -> None:
    """A fault of ours is one line on stderr; the training goes on."""
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001
        if not _native.raise_later_if_programs(error):
            say(f"not attached: {error!r}")


_attachment: Optional[_Attachment] = None


def stand_back() -> None:
    """Another front end (rankprobe.vllm) knows the models and steps of this process."""
    if _attachment is not None:
        _attachment.stand_back()


def install(optimizer_class: Any) -> None:
    """Watches every optimizer that is made from now on."""
    global _attachment
    attachment = _attachment = _Attachment()
    make = optimizer_class.__init__

    @functools.wraps(make)
    def rankprobe_init(self: Any, *args: Any, **kwargs: Any) -> None:
        _wrap_step(type(self), attachment)
        make(self, *args, **kwargs)
        _guarded(attachment.made, self)

    optimizer_class.__init__ = rankprobe_init
    attachment.watch_calls()


def _wrap_step(cls: type, attachment: _Attachment) -> None:
    step = cls.step  # type: ignore[attr-defined]
    if getattr(step, "rankprobe_watched", False):
        return

    @functools.wraps(step)
    def rankprobe_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        attachment.depth += 1  # a class may call its base's step
        try:
            result = step(self, *args, **kwargs)
        finally:
            attachment.depth -= 1
        if attachment.depth == 0:
            _guarded(attachment.stepped, self)
        return result

    rankprobe_step.rankprobe_watched = True  # type: ignore[attr-defined]
    cls.step = rankprobe_step  # type: ignore[attr-defined]
