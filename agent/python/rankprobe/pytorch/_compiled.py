# SPDX-License-Identifier: Apache-2.0
"""Handling of torch.compile while a step is recorded.

Hooks and stand-ins must not be part of compiled code: a compiler that saw them
would break its graphs at each of them and compile them. So compiled functions run
as plain Python in recorded steps (PyTorch's stance "force_eager"). All other steps
use the code that was compiled before, and nothing is compiled again.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
from typing import Any, Callable, ContextManager, Iterator, Optional

import torch

from rankprobe._say import say
from rankprobe.pytorch import _graph_calls
from rankprobe.pytorch._process import warn

_DYNAMO = "torch._dynamo"


def compiles() -> bool:
    """Returns whether torch.compile was called in this process, as far as is known."""
    backends: Optional[dict[str, Any]] = getattr(sys.modules.get(f"{_DYNAMO}.eval_frame"), "cached_backends", None)
    for backend in (backends or {}).values():  # A loop, because a generator adds frames to each step.
        if backend is not None and backend is not False:
            return True
    return False


class CompilerImport:
    """Calls before() and after() around the first import of the compiler, which keeps
    tables of PyTorch's functions; on the thread that imports. The caller of install()
    calls remove().
    """

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._before, self._after = before, after

    def install(self) -> None:
        if _DYNAMO not in sys.modules and self not in sys.meta_path:
            sys.meta_path.insert(0, self)
            _graph_calls.LOADED = False

    def remove(self) -> None:
        _graph_calls.LOADED = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Implements the protocol of sys.meta_path."""
        if name != _DYNAMO:
            return None
        self.remove()
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            self._before()
            try:
                run(module)
            finally:
                self._after()

        loader.exec_module = exec_module
        return spec


class EagerStance:
    """Sets the stance of the compiler in recorded steps. Called only by Instruments.

    A stance that the program sets within a step is kept. Operators that need the
    compiler (torch.cond) use it as without rankprobe.
    unseen: a context manager in which PyTorch has no stand-ins.
    """

    def __init__(self, unseen: Callable[[], ContextManager[Any]]) -> None:
        self._unseen = unseen
        # The context manager that such operators enter before they compile.
        self._operators: Any = None
        self._environment: Any = None
        # Whether a step is being recorded.
        self.wanted = False
        self._told = False
        self._stance: Any = None

    def enter(self) -> None:
        """Call when the recording of a step begins. Repeated calls have no effect."""
        self.wanted = True
        self.compiler_came()

    def enter_quietly(self) -> None:
        """As enter(), but without the notice, since the caller has given another."""
        self._told = True
        self.enter()

    def compiler_came(self) -> None:
        """Sets the stance if the compiler is loaded. Does not import the compiler, which takes seconds."""
        if not self.wanted or self._stance is not None or _DYNAMO not in sys.modules:
            return
        if not hasattr(getattr(torch, "compiler", None), "set_stance"):  # below PyTorch 2.6
            return
        try:
            self._stance = torch.compiler.set_stance("force_eager")
        except RuntimeError as error:  # start() was called in compiled code.
            warn(f"compiled code is recorded where its graph breaks: {error}")
            return
        self._operators = sys.modules.get("torch._higher_order_ops.utils")
        self._environment = getattr(self._operators, "setup_compilation_env", None)
        if self._environment is not None:
            self._operators.setup_compilation_env = self._of_operators
        self._tell()

    @contextlib.contextmanager
    def _of_operators(self) -> Iterator[Any]:
        stance, environment = self._stance, self._environment
        eval_frame = torch._C._dynamo.eval_frame
        # A stance cannot be set within a compiled function that runs as plain Python, so its frame callback is removed meanwhile.
        around = eval_frame.set_eval_frame(None)
        stance.__exit__(None, None, None)
        try:
            with self._unseen(), environment() as backend:
                yield backend
        finally:
            stance.__enter__()
            eval_frame.set_eval_frame(around)

    def leave(self) -> None:
        """Restores the stance, so that compiled code is used again."""
        self.wanted = False
        stance, self._stance = self._stance, None
        if stance is None:
            return
        if self._environment is not None:
            self._operators.setup_compilation_env = self._environment
        self._tell()
        if getattr(sys.modules[f"{_DYNAMO}.eval_frame"], "_stance", stance.stance) is not stance.stance:
            return
        try:
            stance.__exit__(None, None, None)
        except RuntimeError as error:
            warn(f"torch.compile stays off: {error}")

    def _tell(self) -> None:
        """Prints a notice once, when torch.compile was called."""
        if not self._told and compiles():
            self._told = True
            say("rankprobe: torch.compile: recorded steps run as plain Python, not compiled; the other steps run compiled")
