# SPDX-License-Identifier: Apache-2.0
"""torch.compile at level L0, where recorded steps run compiled code that records.

Each compiled region has two sets of graphs. That of the program's own steps is
never changed. The other one is compiled by the same backend with the same options
in the first recorded step, with the hooks of modules traced into it (_graph_calls).
Dynamo distinguishes them by the backend, a stand-in for the program's, and by a
separate region for recompilations (`isolate_recompiles`), so that they do not affect
the program's counts and limits.

If a graph cannot record, or its compilation fails, the code runs as plain Python in
this step and all later ones (EagerStance). A frame is compiled before it runs, so
nothing runs twice.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from typing import Any, Callable, Iterator

import torch

from rankprobe import _native
from rankprobe._say import say
from rankprobe.pytorch import _graph_calls, _graph_ops

_DYNAMO = "torch._dynamo"
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class CannotRecordGraphError(Exception):
    """This graph cannot be recorded from within; the text says why."""


def _check(graph: torch.fx.GraphModule) -> None:
    """Raises CannotRecordGraphError if modules are called in a branch of torch.cond, the body of a loop or a checkpointed function, which
    do not run exactly once and in order."""
    traced = (_graph_calls.traced_begin, _graph_calls.traced_end)
    for name, part in graph.named_modules():
        if name and isinstance(part, torch.fx.GraphModule) and any(node.target in traced for node in part.graph.nodes):
            users = [node for node in graph.graph.nodes
                     if any(argument.op == "get_attr" and argument.target == name for argument in node.all_input_nodes)]
            operator = str(users[0].target) if users else name
            raise CannotRecordGraphError(f"modules are called inside of {operator}")


class _Backend:
    """Wrapper of the program's backend for graphs that record. Dynamo shares graphs between equal backends. The attribute for the
    wrapped backend does not have Dynamo's name, by which Dynamo would find the program's graphs."""

    def __init__(self, backend: Any) -> None:
        self._rankprobe_backend = backend
        self.__name__ = getattr(backend, "__name__", type(backend).__name__)
        # Copied instead of using __getattr__, whose Python frame could cause a recursion when Dynamo reads them.
        for name in ("get_compiler_config", "compiler_name"):
            if hasattr(backend, name):
                setattr(self, name, getattr(backend, name))

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        _check(graph)
        _graph_calls.forget_traces()
        # Compiles the backward now and not in the program's backward, so that a failure occurs before anything runs.
        with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
            return self._rankprobe_backend(graph, inputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Backend) and bool(self._rankprobe_backend == other._rankprobe_backend)

    def __hash__(self) -> int:
        return hash(type(self))


def _whole_for_ddp() -> Any:
    """Returns a context manager that keeps Dynamo from splitting the graph of a DistributedDataParallel by its buckets, also within a
    module. The same gradients are reduced, but all of them after the backward."""
    from torch._dynamo import config

    parallel = sys.modules.get("torch.nn.parallel.distributed")
    active = getattr(getattr(parallel, "DistributedDataParallel", None), "_active_ddp_module", None)
    if active is None or config.optimize_ddp not in (True, "ddp_optimizer"):
        return contextlib.nullcontext()
    return config.patch(optimize_ddp=False)


class _Variant:
    """Replacement of one callback of Dynamo in recorded steps."""

    def __init__(self, callback: Any, failed: Callable[[str], None]) -> None:
        from torch._dynamo import convert_frame
        from torch._dynamo.eval_frame import innermost_backend

        self._failed = failed
        # Whether the code runs as plain Python after a failure.
        self._broken = False
        hooks = callback.hooks
        self._torchdynamo_orig_backend = convert_frame.catch_errors_wrapper(
            convert_frame.convert_frame(_Backend(innermost_backend(callback)), hooks), hooks)

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        from torch._dynamo.types import ConvertFrameReturn

        if frame.f_code.co_filename.startswith(_PACKAGE):
            # A frame of a hook of the outermost module of a region. PyTorch calls it as an eager hook, for which the
            # compiled function is a single node.
            return ConvertFrameReturn()
        if not self._broken:
            try:
                with _whole_for_ddp():
                    result = self._torchdynamo_orig_backend(frame, cache_entry, frame_state)
                if result.guarded_code is not None:
                    return result
                # Dynamo's result would apply to this code permanently, also for the program's own graphs, so it is dropped.
                return ConvertFrameReturn()
            except Exception as error:  # noqa: BLE001 - the program runs as if it were not compiled
                innermost = _innermost(error)
                if not _native.raise_later_if_programs(innermost):
                    self._broken = True
                    self._failed(_reason(innermost))
        return ConvertFrameReturn()


def _innermost(error: BaseException) -> BaseException:
    """Returns the error that Dynamo has wrapped in its own errors."""
    inner = getattr(error, "inner_exception", None) or error.__cause__
    while inner is not None and inner is not error:
        error, inner = inner, getattr(inner, "inner_exception", None) or inner.__cause__
    return error


def _reason(error: BaseException) -> str:
    """Returns the error as one line of text."""
    text = " ".join(str(error).split())
    return text if isinstance(error, CannotRecordGraphError) else f"{type(error).__name__}: {text[:200]}"


class RecordedGraphs:
    """Makes compiled code record in steps of level L0. Called only by Instruments.

    RANKPROBE_COMPILED=eager disables it. on_fault: called when recorded steps must
    run as plain Python from now on.
    """

    def __init__(self, capture: Any, hooks: Any, on_fault: Callable[[], None]) -> None:
        self._hooks, self._on_fault = hooks, on_fault
        self._calls = _graph_calls.GraphCalls(capture, hooks)
        self._asked = _graph_calls.SUPPORTED and os.environ.get("RANKPROBE_COMPILED", "") != "eager"
        # Why recorded steps must run as plain Python; "" if they need not.
        self._fault = ""
        self._told: set[str] = set()
        self._original: Any = None
        # The context manager that operators with a compiler of their own enter before they compile.
        self._operators: Any = None
        self._environment: Any = None
        self._variants: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        # Region for graphs that record, by the program's region.
        self._regions: dict[int, int] = {}
        self.wanted = False

    def enter(self) -> bool:
        """Begins a recorded step of level L0. Returns False if it must run as plain Python."""
        if not self._asked or self._fault:
            return False
        self.wanted = True
        return _DYNAMO not in sys.modules or self.compiler_came()

    def compiler_came(self) -> bool:
        if not self.wanted or self._original is not None:
            return self.wanted
        # Not `from`, for which the interpreter runs a function of Python's.
        import torch._dynamo.config
        import torch._dynamo.eval_frame

        config, eval_frame = torch._dynamo.config, torch._dynamo.eval_frame
        stance = eval_frame._stance
        if (stance.stance != "default" or stance.backend is not None or stance.skip_guard_eval_unsafe
                or config.compiled_autograd or not _graph_ops.supported()):
            self.wanted = False
            return False
        _graph_calls.define()
        self._calls.enter()
        self._original = eval_frame._callback_from_stance
        eval_frame._callback_from_stance = self._callback
        self._operators = sys.modules.get("torch._higher_order_ops.utils")
        self._environment = getattr(self._operators, "setup_compilation_env", None)
        if self._environment is not None:
            self._operators.setup_compilation_env = self._of_operators
        return True

    @contextlib.contextmanager
    def _of_operators(self) -> Iterator[Any]:
        """Disables tracing for torch.cond in plain Python, which has its own compiler and whose branches are not recorded."""
        traced, _graph_calls.TRACED = _graph_calls.TRACED, False
        try:
            with self._environment() as backend:
                yield backend
        finally:
            _graph_calls.TRACED = traced

    def _callback(self, callback: Any) -> Any:
        found = self._original(callback)
        if self._fault or not _graph_calls.TRACED:
            return found
        if found is not callback or callback is None or callback is False or not hasattr(callback, "hooks"):
            return found
        from torch._dynamo import eval_frame

        self._hooks.give_numbers()
        variant = self._variants.get(callback)
        if variant is None:
            variant = self._variants[callback] = _Variant(callback, self._failed)
        self._tell("graph", "torch.compile: recorded steps run graphs of their own, compiled at the first of them, that record "
                   "modules and gradients; what they fuse may differ, and so may last bits; the other steps run compiled")
        of = eval_frame.get_eval_frame_isolate_recompiles_id()  # type: ignore[attr-defined]
        if of not in self._regions:
            self._regions[of] = next(eval_frame._next_isolate_recompiles_id)
        # The caller restores the region.
        eval_frame.set_eval_frame_isolate_recompiles_id(self._regions[of])  # type: ignore[attr-defined]
        return variant

    def _failed(self, reason: str) -> None:
        first, self._fault = not self._fault, reason
        self._calls.leave()
        if first and self.wanted:
            self._on_fault()
        self._tell("fault", "torch.compile: calls inside compiled code cannot be recorded: "
                   f"{reason}; from now on recorded steps run as plain Python")

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            say(f"rankprobe: {text}")

    def leave(self) -> None:
        """Stops recording forwards; the program's graphs are used again."""
        self.wanted = False
        self._calls.leave()
        if self._original is not None:
            eval_frame: Any = sys.modules[f"{_DYNAMO}.eval_frame"]
            if eval_frame._callback_from_stance == self._callback:
                eval_frame._callback_from_stance = self._original
            self._original = None
            if self._environment is not None:
                self._operators.setup_compilation_env = self._environment

    def end_step(self) -> None:
        """Ends the step; no part of it is recorded afterwards."""
        self.leave()
        self._calls.forget()
