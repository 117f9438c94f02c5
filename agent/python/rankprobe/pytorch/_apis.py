# SPDX-License-Identifier: Apache-2.0
"""Recording of calls of PyTorch's APIs and of registered functions.

The calls of each listed function are redirected to a native recorder of the outermost call of a thread (_redirect.py). The
function remains the same object, also for a program that imported it before (`from torch import relu` above the debugger). A
function that a program assigns in its place is not touched.

Where one object is known by several names that are recorded apart, one of them has its calls redirected. In the places of
the others stand objects of ours while a step is recorded, which compare, hash, pickle and copy as the function:
`torch.conv2d` and others that torch.nn.functional has too, `torch.lstm`, four methods of Tensor that are called by operators
as well (`abs`, `neg`, `__idiv__`, `__rdiv__`), and what is registered and no function.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import sys
import types
import weakref
from typing import Any, Callable, Iterator, Optional

import torch

from rankprobe import _native
from rankprobe._say import say
from rankprobe.pytorch._api_list import load_list, parse_list
from rankprobe.pytorch._process import warn
from rankprobe.pytorch._redirect import Around, redirect, unseen

# Arguments that are receive buffers before the call, by position and keyword.
_IGNORED_INPUTS: dict[str, tuple[list[int], list[str]]] = {
    "recv": ([0], []), "irecv": ([0], ["tensor"]), "all_gather": ([0], []), "gather": ([1], []),
    "scatter": ([0], []), "reduce_scatter": ([0], []), "_reduce_scatter_base": ([0], []),
    "_all_gather_base": ([0], []), "all_to_all_single": ([0], []), "all_to_all": ([0], []),
    "all_gather_into_tensor": ([0], []), "reduce_scatter_tensor": ([0], []),
}
# These functions change arguments (running statistics) without incrementing the version counter.
_HIDDEN_WRITES = ("batch_norm", "instance_norm", "moving_avg", "embedding_renorm")
_IGNORED_OUTPUTS = {"Distributed.isend": [0], "NPU.npu_fusion_attention": [4, 5]}


def _hosts(prefix: str) -> list[Any]:
    if prefix == "Functional":
        return [torch.nn.functional]
    if prefix == "Tensor":
        return [torch.Tensor]
    if prefix == "Torch":
        return [torch]
    if prefix == "VF":
        return [torch._VF]
    if prefix == "Distributed" and torch.distributed.is_available():
        return [torch.distributed, torch.distributed.distributed_c10d]
    if prefix == "NPU":
        try:
            import torch_npu
        except ImportError:
            return []
        return [torch_npu, torch.ops.npu]
    if prefix == "MindSpeed":
        try:
            import mindspeed.ops
            import torch_npu
        except ImportError:
            return []
        return [mindspeed.ops]
    return []


def _traits(prefix: str, op: str) -> dict[str, Any]:
    traits: dict[str, Any] = {}
    if prefix == "Distributed":
        traits["distributed"] = True
        traits["ignored"] = _IGNORED_INPUTS.get(op, ([], []))
    traits["ignored_outputs"] = _IGNORED_OUTPUTS.get(f"{prefix}.{op}", [])
    dunder = op.startswith("__") and op.endswith("__")
    if (op.endswith("_") and not dunder) or op == "__setitem__" or (dunder and op.startswith("__i") and op not in (
            "__init__", "__int__", "__iter__", "__index__", "__invert__")):
        traits["in_place"] = True
    if any(part in op for part in _HIDDEN_WRITES):
        traits["writes_arguments"] = True
    if "dropout" in op:
        traits["dropout"] = True
    return traits


def _some(chosen: dict[str, list[str]]) -> str:
    names = [f"{prefix}.{name}" for prefix, listed in chosen.items() for name in listed]
    return ", ".join(name[:100] for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class Apis:
    """Installs and removes the recording of API calls for one Capture."""

    def __init__(self, capture: Any, path: Optional[str] = None, only: Optional[str] = None) -> None:
        """path: the list of APIs, see load_list(). only: uses only the functions of this prefix."""
        self._capture, self._only = capture, only
        self._own_list = {prefix: names for prefix, names in load_list(path).items() if only in (None, prefix)}
        # The list of an operator (a person) as text; "" for the process's own list.
        self._text = ""
        self._calls = _native.RedirectedCalls()
        self._installed = False
        # Number of show_originals() calls without show_stand_ins().
        self._hidden = 0
        # Called when torch.compile was called.
        self.on_compile: Callable[[], None] = lambda: None
        # Redirects of functions that are not recorded, and these functions; see _watch().
        self._watches: _native.RedirectedCalls = _native.RedirectedCalls()
        self._watched: tuple[Any, ...] = (None,) * 4
        # By host and name: prefix, redirect and recorder.
        self._custom: dict[tuple[int, str], tuple[str, _native.Redirect, Any]] = {}
        self._collect(self._own_list)

    def use(self, text: str) -> None:
        """Sets the list to record, as an operator (a person) gave it; "" selects the process's own.

        Call between steps. Raises ValueError for a bad list and changes nothing then.
        """
        if text == self._text:
            return
        chosen = parse_list(text) if text else self._own_list
        installed = self._installed
        self.remove()
        self._text = text
        self._collect(chosen)
        if installed:
            self.install()

    def _collect(self, chosen: dict[str, list[str]]) -> None:
        self._calls = _native.RedirectedCalls()
        # By object: the name under which its calls are recorded. Torch has the lowest priority of the prefixes.
        names: dict[int, str] = {}
        for prefix in sorted(chosen, key=lambda prefix: prefix == "Torch"):
            for host in _hosts(prefix):
                for name in chosen[prefix]:
                    self._add(prefix, host, name, names, chosen[prefix])
        if not names and self._only is None:
            say("rankprobe: no function of the list of APIs "
                  f"{'that an operator gave' if self._text else 'of this process'} is here to be recorded "
                  f"({_some(chosen)}): none of its functions is recorded")

    def _add(self, prefix: str, host: Any, dotted: str, names: dict[int, str], listed: list[str]) -> None:
        *path, name = dotted.split(".")
        for part in path:
            host = getattr(host, part, None)
        function = getattr(host, name, None) if host is not None else None
        if function is None or not callable(function) or isinstance(function, type):
            return
        known, full = names.get(id(function)), f"{prefix}.{name}"
        if known == full:
            return
        apart = known is not None or (prefix == "Tensor" and _has_unlisted_names(function, listed))
        self._calls.add(*self._call(host, name, function, prefix, _traits(prefix, name), apart))
        names.setdefault(id(function), full)

    def _call(self, host: Any, name: str, function: Any, prefix: str, traits: dict[str, Any], apart: bool) -> tuple[_native.Redirect, Any]:
        """Returns the redirect of a function and the recorder. apart: records only calls by this name."""
        itself = None if apart else redirect(function)
        found = itself or _native.place_redirect(host, name, function)
        api = _native.api(found.original, self._capture, prefix, name, traits,
                          function if itself is not None and type(function) is types.FunctionType else None)
        if itself is None:  # The stand-in is visible to the program.
            _look_up_as(function, api)
        return found, api

    def install(self) -> None:
        if self._installed:
            return
        self._installed = True
        self._hidden = 0
        self._put()
        self._watch()

    def remove(self) -> None:
        if not self._installed:
            return
        self._watches.take()
        if self._hidden == 0:
            self._take()
        self._installed = False

    def _put(self) -> None:
        self._calls.put()
        for _, function, api in self._custom.values():
            function.put(api)

    def _take(self) -> None:
        for _, function, api in reversed(self._custom.values()):
            function.take(api)
        self._calls.take()

    def _watch(self) -> None:
        """Redirects Work.wait(), which completes the record of an asynchronous collective, and the functions of TorchScript and the
        compiler, which read the code of functions and must not see the redirects."""
        functions: Any = (torch._C._distributed_c10d.Work.wait if torch.distributed.is_available() else None,
                          getattr(torch.jit, "script", None), getattr(torch, "compile", None),
                          getattr(sys.modules.get("torch.export"), "export", None))
        if not all(map(operator.is_, functions, self._watched)):
            self._watches, self._watched = _native.RedirectedCalls(), functions
            compiled = functools.partial(self._unseen_by, lambda: self.on_compile())
            makes: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
                self._done_after, compiled, compiled, functools.partial(self._unseen_by, lambda: None))
            for function, make in zip(functions, makes):
                found = None if function is None else redirect(function)
                if found is not None:
                    self._watches.add(found, unseen(make(found.original)))
        self._watches.put()

    def _done_after(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        done = self._capture.work_done

        def rankprobe_wait(*args: Any, **kwargs: Any) -> Any:
            result = wait(*args, **kwargs)
            if args:
                done(args[0])
            return result

        return rankprobe_wait

    def _unseen_by(self, then: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
        def rankprobe_unseen(*args: Any, **kwargs: Any) -> Any:
            if function.__name__ == "script" and len(args) < 3:
                # script() resolves names in the frame of its caller, which is above the two frames of this wrapper.
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 2
            try:
                with self.unseen():
                    return function(*args, **kwargs)
            finally:
                then()

        return rankprobe_unseen

    def show_originals(self) -> None:
        """Removes all redirects until a matching call of show_stand_ins(); calls nest."""
        self._hidden += 1
        if self._hidden == 1 and self._installed:
            self._take()

    def show_stand_ins(self) -> None:
        self._hidden -= 1
        if self._hidden == 0 and self._installed:
            self._put()

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Context manager in which PyTorch's functions have no redirects."""
        self.show_originals()
        try:
            yield
        finally:
            self.show_stand_ins()

    # --- register_custom_api
    def register_custom(self, module: Any, name: str, prefix: Optional[str], traits: Optional[dict[str, Any]] = None) -> None:
        """Records `module.name` as `{prefix}.{name}` while a step is recorded; an
        earlier registration is not changed. prefix: default the module's name.
        traits: as for functions of a list.

        Raises ValueError if there is no such callable or the prefix is bad.
        """
        if not isinstance(name, str) or not callable(getattr(module, name, None)):
            raise ValueError(f"{module!r} has no callable attribute {name!r}")
        if prefix is None:
            prefix = getattr(module, "__name__", type(module).__name__)
        if not isinstance(prefix, str) or not prefix:
            raise ValueError(f"api_prefix must be a non-empty str, not {prefix!r}")
        key = (id(module), name)
        if key in self._custom:
            known = self._custom[key][0]
            if known != prefix:
                warn(f"register_custom_api: {name} is recorded as {known}.{name} already, not as {prefix}.{name}; "
                     "restore_custom_api first")
            return
        function, api = self._call(module, name, getattr(module, name), prefix, traits or {}, False)
        self._custom[key] = (prefix, function, api)
        if self._installed and self._hidden == 0:
            function.put(api)

    def restore_custom(self, module: Any, name: str) -> None:
        entry = self._custom.pop((id(module), name), None)
        if entry is not None:
            entry[1].take(entry[2])


def _look_up_as(function: Any, stand_in: Any) -> None:
    """Registers the stand-in with TorchScript and torch.fx, which look operators up by the id of their function; a graph that was traced
    in a recorded step refers to the stand-in."""
    table: dict[int, str] = getattr(torch.jit._builtins, "_builtin_table", None) or {}
    operator = table.get(id(function))
    if operator is not None:
        table[id(stand_in)] = operator
        weakref.finalize(stand_in, table.pop, id(stand_in), None).atexit = False


def _has_unlisted_names(function: Any, listed: list[str]) -> bool:
    """Returns whether a method of Tensor is also called by an operator of Python, which msprobe does not record."""
    names = [name for kind in torch.Tensor.__mro__ for name, value in vars(kind).items() if value is function]
    return any(name not in listed for name in names)


class _StepHook:
    """A hook in a table of torch.optim. If an optimizer class is pickled by value (cloudpickle), the table is pickled too; the hook
    then becomes a function of the standard library that does nothing."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> Any:
        return self._hook(*args)

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


def around_optimizer_steps(before: Callable[..., Any], after: Callable[..., Any]) -> list[Callable[[], None]]:
    """Installs hooks around the steps of all optimizers (PyTorch 2.0 and later). Returns functions that remove them; [] without."""
    optimizer = importlib.import_module("torch.optim.optimizer")
    if not hasattr(optimizer, "register_optimizer_step_pre_hook"):
        return []
    return [optimizer.register_optimizer_step_pre_hook(_StepHook(before)).remove,
            optimizer.register_optimizer_step_post_hook(_StepHook(after)).remove]


def optimizer_scopes(capture: Any) -> Iterator[Callable[[], None]]:
    """Records the calls of optimizers and gradient clipping under a pseudo parent.

    Yields functions that remove these hooks.
    """
    yield from around_optimizer_steps(lambda *_: capture.push_scope("optimizer"),
                                       lambda *_: capture.pop_scope("optimizer"))

    def around(clip: Callable[..., Any]) -> Callable[..., Any]:
        def rankprobe_clip(*args: Any, **kwargs: Any) -> Any:
            capture.push_scope("clip_grad")
            try:
                return clip(*args, **kwargs)
            finally:
                capture.pop_scope("clip_grad")

        return rankprobe_clip

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        yield Around(getattr(torch.nn.utils.clip_grad, name), around).remove
