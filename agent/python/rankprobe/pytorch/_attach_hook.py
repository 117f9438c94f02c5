# SPDX-License-Identifier: Apache-2.0
"""Attachment of `rankprobe run` to a process: finds models and steps.

The first optimizer with parameters of a module determines the model, which is the
outermost module that owns them. A step lasts from the end of one optimizer.step()
to the end of the next, also of one that a GradScaler skips. Models of further
optimizers are recorded too. If another optimizer has stepped alone for a while, or
the previous one no longer exists, it ends the steps from then on. If a model is
called without an optimizer (inference, a server), a step is one forward of it, until
an optimizer is created. The user's script is not changed, and no object of it is
kept alive.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import multiprocessing
import os
import sys
import threading
import types
import weakref
from os import getpid
from typing import Any, Callable, Iterable, Optional

import torch

from rankprobe import _native
from rankprobe._frontend.attach import make_debugger, say
from rankprobe._inputs import switch_hint
from rankprobe._say import is_read_by_program
from rankprobe.pytorch import _hidden_hooks, _walk
from rankprobe.pytorch._errors import CollectorMissingError
from rankprobe.pytorch._hidden_hooks import HookHandle, marked
from rankprobe.pytorch._redirect import Around, hide_frames, unseen
from rankprobe.pytorch.debugger import PrecisionDebugger

# Trainer by the modules in the stack that creates an optimizer; the first match counts.
_TRAINERS = {"trl": "a trainer of TRL", "transformers.trainer": "transformers.Trainer", "lightning.pytorch": "lightning.Trainer",
             "pytorch_lightning": "lightning.Trainer", "deepspeed.runtime.engine": "a DeepSpeed engine", "torchtitan": "torchtitan",
             "verl": "verl", "megatron.training": "Megatron"}


def find_models(parameters: Iterable[torch.Tensor]) -> list[torch.nn.Module]:
    """Returns the outermost modules of this process that own any of `parameters`, those with most of them first."""
    wanted = {id(p) for p in parameters}
    # issubclass(), because isinstance() would run code of proxy objects. A module under construction may have no _modules yet.
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module) and "_modules" in m.__dict__]
    inner = {id(child) for m in modules for child in m._modules.values()}
    owned = {id(m): _owned(m, wanted) for m in modules if id(m) not in inner}
    return sorted((m for m in modules if owned.get(id(m))), key=lambda m: -owned[id(m)])


def _owned(root: torch.nn.Module, wanted: set[int]) -> int:
    """Returns the number of parameters of `root` whose id is in `wanted`."""
    return len({id(p) for module in _walk.modules(root) for p in module._parameters.values()} & wanted)


class _Forwards:
    """Makes a step of each forward of `model`. If forwards of several threads overlap,
    a step ends when none runs, or with the _MOST-th."""

    _MOST = 64

    def __init__(self, model: torch.nn.Module, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._lock = threading.RLock()
        # Open forwards by thread, and the number of forwards in the step.
        self._open: dict[int, int] = {}
        self._count = 0
        # The thread whose call of enter() was made before that of the hook, for a forward that is about to begin; else 0.
        self._entered = 0
        # Whether hooks are also called for a forward that ended with an exception.
        self._always = hasattr(model, "_forward_hooks_always_called")
        _hidden_hooks.hold()
        self._handles = [HookHandle("_forward_pre_hooks", marked(lambda *_: _guarded(self._hook))).put(model),
                         HookHandle("_forward_hooks", marked(lambda *_: _guarded(self.leave)), always_call=True).put(model)]

    def enter_at_once(self) -> None:
        """Call before this thread begins the forward, so that the hooks of the step are there when it begins."""
        self._entered = threading.get_ident()
        self.enter()

    def _hook(self) -> None:
        if self._entered == threading.get_ident():
            self._entered = 0
        else:
            self.enter()

    def enter(self) -> None:
        with self._lock:
            if PrecisionDebugger._instance is None:
                return
            thread = threading.get_ident()
            if not self._always and self._open.pop(thread, 0) and not self._open:
                self._end()
            self._open[thread] = self._open.get(thread, 0) + 1
            self._count += 1
            if self._count == 1:
                self._begin()

    def leave(self) -> None:
        with self._lock:
            thread = threading.get_ident()
            if PrecisionDebugger._instance is None or thread not in self._open:
                return
            self._open[thread] -= 1
            if self._open[thread] == 0:
                del self._open[thread]
            if not self._open:
                self._end()
            elif self._count >= self._MOST and thread not in self._open:
                PrecisionDebugger._instance._capture.report_fault(
                    f"forwards of {len(self._open)} other threads run while the step ends, for {self._count} have overlapped: what "
                    "they still call is in the next step, or missing")
                self._end()
                self._count = len(self._open)
                self._begin()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        _hidden_hooks.release()
        if self._open:
            self._open.clear()
            self._end()

    def _end(self) -> None:
        self._count = 0
        _step()


class _Rounds:
    """Makes steps from one call of `first`, the next of which begins the first step, to the next one, for a model whose forward() the
    program calls directly, bypassing hooks."""

    def __init__(self, first: torch.nn.Module, end: Callable[[], None]) -> None:
        begun: list[bool] = []
        _hidden_hooks.hold()
        self._handle = HookHandle("_forward_pre_hooks", marked(
            lambda *_: _guarded(end) if begun else begun.append(True))).put(first)

    def stop(self) -> None:
        self._handle.remove()
        _hidden_hooks.release()


class _Attachment:
    """State of a process: the optimizer that ends steps, or a model without one, and the models that are recorded."""

    # A training that creates its optimizer late runs a forward or two before it.
    _PATIENCE = 3
    # After this many steps of others in a row, the optimizer that ended steps is taken to be unused.
    _UNUSED = 6

    def __init__(self) -> None:
        self._optimizer: Callable[[], Optional[torch.optim.Optimizer]] = lambda: None
        # Steps of other optimizers since its last one, and steps of all.
        self._others = self._stepped = 0
        self._forwards: Any = None
        self._models: list[weakref.ref[Any]] = []
        self._pid = getpid()
        # Of each thread: how many step() are open, and whether the optimizer that ends steps was among those that ended.
        self._open = threading.local()
        self._lock = threading.RLock()
        # Optimizers that were made while a spawned process imported the program's file.
        self._imported: list[weakref.ref[torch.optim.Optimizer]] = []
        self._called: Optional[torch.nn.Module] = None
        self._calls = 0
        self._watch: Any = None
        # Whether a trainer's callback (rankprobe.integrations) will begin and end the steps.
        self._claimed = False
        self._scalers: list[Around] = []

    def watch_calls(self) -> None:
        """Watches calls of modules until the process is attached. A global hook of modules would be traced by torch.compile and
        torch.export, and is visible to the program; both take a module without hooks for its forward()."""
        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def rankprobe_call(*args: Any, **kwargs: Any) -> Any:
                _guarded(self.called, *args[:1])
                return call(*args, **kwargs)

            return rankprobe_call

        self._watch = Around(torch.nn.Module._call_impl, around)
        atexit.register(self._say_why_not)

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        if getpid() != self._pid:  # Checked before locking, because another thread may have held the lock at the fork.
            return
        if torch.utils.data.get_worker_info() is not None:
            return  # A worker that a DataLoader started, whose dataset has models of its own.
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # A spawned process imports the program's file, and may be such a worker.
            return self._imported.append(weakref.ref(optimizer))
        with self._lock:
            ours = bool(self._models) or self._forwards is not None
            if self._claimed or ours != (PrecisionDebugger._instance is not None):
                return  # The program has a debugger of its own, or has closed this one.
            models = find_models(p for group in optimizer.param_groups for p in group["params"])
            if not models:
                return
            if self._forwards is not None:
                self._forwards.stop()
                self._forwards, self._models = None, []
                self._adopt(optimizer, models, "an optimizer was made")
            elif not ours:
                self._attach(models)
                self._optimizer = weakref.ref(optimizer)
                self._tell(f"; a step ends with {type(optimizer).__name__}.step()", _trainer())
                self._begin()
            elif self._optimizer() is None or not self._alive():
                self._adopt(optimizer, models, "the previous optimizer no longer exists")
            else:
                self._add(models)

    def _alive(self) -> list[torch.nn.Module]:
        return [model for model in (reference() for reference in self._models) if model is not None]

    def _adopt(self, optimizer: torch.optim.Optimizer, models: list[torch.nn.Module], why: str) -> None:
        """Makes `optimizer` the one that ends steps."""
        self._optimizer, self._others = weakref.ref(optimizer), 0
        self._add(models)
        _say_once_a_job(f"{why}: a step now ends with {type(optimizer).__name__}.step() "
                        f"(of {', '.join(type(m).__name__ for m in models[:3])})")

    def _add(self, models: list[torch.nn.Module]) -> None:
        """Records these models too."""
        known = self._alive()
        new = [model for model in models if not any(model is one for one in known)]
        self._models = [weakref.ref(model) for model in known + new]
        if new and known:
            names = ", ".join(f"Module.{i} is a {type(m).__name__}" for i, m in enumerate(known + new))
            _say_once_a_job(f"another model is recorded too, and names of modules begin with its number from here on: {names}")
        debugger = PrecisionDebugger._instance
        if new and debugger is not None and not debugger._inert:
            debugger._instruments.forget_models()
            self._begin()

    def called(self, module: torch.nn.Module) -> None:
        """Call before a module is called while there is no optimizer."""
        if getpid() == self._pid and torch.utils.data.get_worker_info() is None:
            with self._lock:
                while self._imported:
                    optimizer = self._imported.pop(0)()
                    if optimizer is not None:
                        self.made(optimizer)
                self._see(module)

    def _see(self, module: torch.nn.Module) -> None:
        if self._claimed:
            return None  # An evaluation before the training, which a trainer's callback begins.
        if PrecisionDebugger._instance is not None:
            return self._watch_no_more()
        if _is_traced():
            return None
        if self._called is None and any(p is not None for one in _walk.modules(module) for p in one._parameters.values()):
            self._called = module
        if module is not self._called:
            # A part of it may have been called separately before.
            if self._called is None or not any(child is self._called for child in _walk.modules(module)):
                return None
            self._called, self._calls = module, 0
        self._calls += 1
        training = torch.is_grad_enabled() and module.training
        roots = find_models(p for one in _walk.modules(module) for p in one._parameters.values() if p is not None)
        outermost = roots[:1] == [module]
        if (training or not outermost) and self._calls < self._PATIENCE:
            return None
        self._called = None
        if outermost or not roots:
            self._attach([module])
            self._forwards = _Forwards(module, self._begin)
            self._tell("; a step is one forward, because there is no optimizer")
            self._forwards.enter_at_once()
        else:
            self._attach(roots[:1])
            self._forwards = _Rounds(module, self._end_step)
            self._tell(f"; its forward() is called directly, so a step lasts from one call of its first module "
                       f"({type(module).__name__}) to the next")
            self._begin()
        return None

    def stand_back(self) -> None:
        self._watch_no_more()
        self._pid = -1

    def claim(self) -> None:
        self._claimed = True

    def hand_over(self, models: list[torch.nn.Module], how: str) -> bool:
        if getpid() != self._pid:
            return False
        with self._lock:
            if PrecisionDebugger._instance is None:
                self._attach(models)
            if self._forwards is not None:
                self._forwards.stop()
            debugger = PrecisionDebugger._instance
            if debugger is not None and debugger._attached and not debugger._inert:
                debugger._stop()
                debugger._instruments.forget_models()
                self._models = [weakref.ref(model) for model in models]
                self._tell(how)
            self.stand_back()
            return True

    def _attach(self, models: list[torch.nn.Module]) -> None:
        self._watch_no_more()
        try:
            make_debugger(PrecisionDebugger, os.environ.get("RANKPROBE_ATTACH", "idle"))._attached = True
        except CollectorMissingError as error:
            if os.environ.get("RANKPROBE_ON_COLLECTOR_MISSING") == "fail":
                raise SystemExit(f"rankprobe: not attached: {error}") from error
            raise
        self._models = [weakref.ref(model) for model in models]
        self._watch_scalers()
        # Runs before the debugger's handler, because handlers run in reverse order of registration.
        atexit.register(_guarded, self._end)

    def _end(self) -> None:
        """Ends a last step with the calls after the optimizer's last step, unless the program ended with an exception."""
        debugger = PrecisionDebugger._instance
        if debugger is None or isinstance(self._forwards, _Forwards) or getpid() != self._pid or hasattr(sys, "last_type"):
            return
        if not debugger._over() and not debugger._session.native.step_is_empty:
            _step()

    def _watch_no_more(self) -> None:
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _say_why_not(self) -> None:
        if self._watch is None or getpid() != self._pid or os.environ.get("RANK", "0") != "0":
            return
        # Workers of vLLM are other processes, and a worker of a DataLoader creates no optimizer; neither is a failure.
        if "rankprobe.vllm" in sys.modules or multiprocessing.parent_process() is not None:
            return
        main = getattr(sys.modules.get("__main__"), "__spec__", None)
        # Excludes torchrun and workers of the compiler.
        tool = (getattr(main, "name", None) or os.path.basename(sys.argv[0] or "")).startswith(("torch.", "torchrun"))
        if not tool and not is_read_by_program():
            say("not attached: no optimizer was made of a module's parameters, and no module with parameters was called; "
                "use PrecisionDebugger in the program (docs/pytorch.md)")

    def _tell(self, how: str, where: str = "") -> None:
        tell(self._alive(), how, where)

    def _begin(self) -> None:
        models = self._alive()
        PrecisionDebugger._get("start")._start(models[0] if len(models) == 1 else models, None, None)

    def _end_step(self) -> None:
        _step()
        self._begin()

    def _watch_scalers(self) -> None:
        """Ends a step also if a GradScaler skips the optimizer's step()."""
        def around(step: Callable[..., Any]) -> Callable[..., Any]:
            def rankprobe_scaler_step(*args: Any, **kwargs: Any) -> Any:
                stepped = self._stepped
                result = step(*args, **kwargs)
                optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
                if self._stepped == stepped and optimizer is not None:
                    _guarded(self.stepped, optimizer)
                return result

            return rankprobe_scaler_step

        module = sys.modules.get("torch.amp.grad_scaler") or sys.modules.get("torch.cuda.amp.grad_scaler")
        if module is not None:
            self._scalers.append(Around(module.GradScaler.step, around))

    def enter(self) -> None:
        """Call when step() of an optimizer begins in this thread."""
        self._open.count = getattr(self._open, "count", 0) + 1

    def leave(self, optimizer: torch.optim.Optimizer) -> Optional[torch.optim.Optimizer]:
        """Call when step() of `optimizer` ends in this thread. Returns None unless it was the outermost: a class may call step() of its
        base, and a container (torchtitan's) that of its optimizers. Then returns the one that ends steps, if it was among them, else
        `optimizer`."""
        ends = self._optimizer()
        self._open.count -= 1
        self._open.ended = ended = optimizer is ends or getattr(self._open, "ended", False)
        if self._open.count:
            return None
        self._open.ended = False
        return ends if ended else optimizer

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if getpid() != self._pid or PrecisionDebugger._instance is None or not self._models or self._forwards is not None:
            return
        with self._lock:
            self._stepped += 1
            ends = self._optimizer()
            if optimizer is not ends:
                self._others += 1
                if ends is not None and self._others < self._UNUSED:
                    return
                models = find_models(p for group in optimizer.param_groups for p in group["params"])
                if not models:
                    return
                self._adopt(optimizer, models, "the previous optimizer has not stepped for a while" if ends is not None
                            else "the previous optimizer no longer exists")
            self._others = 0
            PrecisionDebugger._instance._optimizer_stepped(optimizer)
            PrecisionDebugger.report_replica(self._alive())
            self._end_step()


def tell(models: list[torch.nn.Module], how: str, where: str = "") -> None:
    """Prints the state and how to switch recording; only rank 0 does."""
    debugger = PrecisionDebugger._instance
    if os.environ.get("RANK", "0") != "0" or debugger is None or debugger._inert:
        return
    session, switch = debugger._session, debugger._switch
    state = "idle" if not switch.enabled else "recording nothing" if debugger._notices.nobody(switch.asked) else "recording"
    say(f"attached to {', '.join(type(m).__name__ for m in models[:3])}{where}, {state}{how}; "
        f"{switch_hint(switch.enabled, session.address, session.run)}")


def _trainer() -> str:
    """Returns the trainer that is creating its optimizer as " of .."; "" for a loop of the program itself."""
    frame: Optional[types.FrameType] = sys._getframe(1)
    modules = set()
    while frame is not None:
        modules.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    for package, name in _TRAINERS.items():
        if any(module == package or module.startswith(package + ".") for module in modules):
            return f" of {name}"
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    if getattr(state, "_shared_state", None):
        return " of a loop of Accelerate"
    megatron = sys.modules.get("megatron.core.parallel_state")
    return " of a loop of Megatron" if megatron is not None and megatron.model_parallel_is_initialized() else ""


def _is_traced() -> bool:
    """Returns whether the calls of this thread make a graph and no numbers."""
    key = getattr(torch._C, "_TorchDispatchModeKey", None)
    return torch.jit.is_tracing() or key is not None and any(  # type: ignore[attr-defined,no-untyped-call]
        torch._C._get_dispatch_mode(one) is not None for one in (key.FAKE, key.PROXY, key.FUNCTIONAL))


def _step() -> None:
    debugger = PrecisionDebugger._get("step")
    debugger._stop()
    debugger._step()


def _say_once_a_job(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        say(text)


def _guarded(function: Callable[..., None], *arguments: Any) -> None:
    """Calls the function. A fault of rankprobe is one line on stderr; the training continues."""
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001
        if not _native.raise_later_if_programs(error):
            say(f"not attached: {error!r}")


_attachment: Optional[_Attachment] = None


def claim() -> None:
    """Call when a trainer's callback is created, which calls hand_over() when the training begins. Until then no optimizer begins
    steps."""
    if _attachment is not None:
        _attachment.claim()


def hand_over(models: list[torch.nn.Module], how: str) -> bool:
    """Under `rankprobe run`, makes the caller responsible for the steps of `models`; the debugger exists afterwards. Returns False if
    nothing is attached in this process, or it was handed over before."""
    return _attachment is not None and _attachment.hand_over(models, how)


def stand_back() -> None:
    """Stops attaching, because another front end (rankprobe.vllm) knows the models and steps of this process."""
    if _attachment is not None:
        _attachment.stand_back()


def install(optimizer_class: Any) -> None:
    """Watches every optimizer that is created from now on."""
    global _attachment
    attachment = _attachment = _Attachment()
    make = optimizer_class.__init__

    @functools.wraps(make)
    def rankprobe_init(self: Any, *args: Any, **kwargs: Any) -> None:
        _wrap_step(type(self), attachment)
        try:
            make(self, *args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise
        _guarded(attachment.made, self)

    optimizer_class.__init__ = unseen(rankprobe_init)
    attachment.watch_calls()


class _Scope:
    """Context manager around one step() of an optimizer."""

    def __init__(self, attachment: _Attachment, optimizer: Any) -> None:
        self._attachment, self._optimizer = attachment, optimizer

    def __enter__(self) -> None:
        self._attachment.enter()

    def __exit__(self, kind: Any, error: Optional[BaseException], *_: Any) -> None:
        stepped = self._attachment.leave(self._optimizer)
        if stepped is not None and kind is None:
            _guarded(self._attachment.stepped, stepped)
        if error is not None:
            hide_frames(error)


class _Watch:
    """Makes a _Scope. If a class of the program is pickled by value (cloudpickle), this is pickled with its step(). There it makes a
    context that does nothing and does not need rankprobe."""

    def __init__(self, attachment: _Attachment) -> None:
        self._attachment = attachment

    def __call__(self, optimizer: Any) -> _Scope:
        return _Scope(self._attachment, optimizer)

    def __reduce__(self) -> Any:
        return type, (contextlib.nullcontext(),)


def _wrap_step(cls: type, attachment: _Attachment) -> None:
    step = cls.step  # type: ignore[attr-defined]
    if getattr(step, "rankprobe_watched", False):
        return
    watch = _Watch(attachment)

    @functools.wraps(step)
    def rankprobe_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        with watch(self):  # Uses no global of this file, so that the class can be pickled by value.
            return step(self, *args, **kwargs)

    rankprobe_step.rankprobe_watched = True  # type: ignore[attr-defined]
    cls.step = unseen(rankprobe_step)  # type: ignore[attr-defined]
