# SPDX-License-Identifier: Apache-2.0
"""Recording of servers without --enforce-eager, where vLLM uses torch.compile and captures no graphs (as it does on a CPU).

A class that vLLM compiles calls its compiled code directly, bypassing Dynamo and all hooks. Neither that code nor its
cache is changed, so batches that are not recorded run the same code. For a recorded batch, `__call__` of the class is
replaced. The replacement uses the module's own torch.compile object, so that vLLM's backend compiles the graphs that
record (pytorch/_graphs.py) with vLLM's options, in addition to its own.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import Any, Callable, Iterator, Optional

import torch


def _marks(given: Any) -> list[int]:
    """Converts dimensions, as support_torch_compile() takes them, to a list."""
    return [given] if isinstance(given, int) else list(given)


class CompiledParts:
    """The modules of a model that vLLM has compiled. Used only by the thread that runs the model.

    Between enter() and leave() they run graphs that record, which are compiled at their first call.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parts = {id(module): module for module in model.modules()
                       if hasattr(module, "_compiled_callable") and not getattr(module, "do_not_compile", True)}
        self._marked: set[int] = set()
        # By class: its own __call__, and whether the class itself defines it.
        self._original: dict[type, tuple[Any, bool]] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def enter(self) -> None:
        for kind in {type(part) for part in self._parts.values()}:
            if kind not in self._original:
                own = vars(kind).get("__call__")
                self._original[kind] = (own, own is not None)
                kind.__call__ = self._recorded(kind.__call__)  # type: ignore[method-assign]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def leave(self) -> None:
        while self._original:
            kind, (own, has_own) = self._original.popitem()
            if has_own:
                kind.__call__ = own  # type: ignore[method-assign]
            else:
                del kind.__call__

    def _recorded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        parts = self._parts

        @functools.wraps(original)
        def rankprobe_call(part: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or id(part) not in parts or _skips_compiled():
                return original(part, *args, **kwargs)
            return self._call(part, args, kwargs)

        return rankprobe_call

    def _call(self, part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if id(part) not in self._marked:
            self._marked.add(id(part))
            _mark_dynamic(part, args, kwargs)
        # vLLM stores the code that Dynamo generates for this function, also for the graphs that record, so it is restored.
        code = getattr(part, "_compiled_bytecode", None)
        try:
            with torch._dynamo.config.patch(recompile_limit=2048, accumulated_recompile_limit=8192,
                                            enable_cpp_symbolic_shape_guards=False), _of_inductor(part):
                return part._compiled_callable(*args, **kwargs)
        finally:
            if hasattr(part, "_compiled_bytecode"):
                part._compiled_bytecode = code


def _skips_compiled() -> bool:
    context = sys.modules.get("vllm.forward_context")
    return context is not None and bool(context.is_forward_context_available()
                                        and getattr(context.get_forward_context(), "skip_compiled", False))


def _of_inductor(part: Any) -> Any:
    """Returns a context manager with the Inductor options that vLLM sets while it compiles."""
    shapes = getattr(part.vllm_config.compilation_config, "dynamic_shapes_config", None)
    wide: Optional[bool] = getattr(shapes, "assume_32_bit_indexing", None)
    return torch._inductor.config.patch({} if wide is None else {"assume_32bit_indexing": wide})


def _mark_dynamic(part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Marks the dimensions that a graph must not specialize, as vLLM does when it compiles."""
    bound = inspect.signature(type(part).forward).bind(part, *args, **kwargs)
    for name, dims in part._dynamic_arg_dims.items():
        value = bound.arguments.get(name)
        tensors = [value] if isinstance(value, torch.Tensor) else list(getattr(value, "tensors", {}).values())
        for tensor in tensors:
            torch._dynamo.mark_dynamic(tensor, [tensor.ndim + d if d < 0 else d for d in _marks(dims)])
