# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the APIs of PyTorch, and the mode that sees the rest.

Each listed API is replaced, where its name lives, by a native stand-in that
records the outermost call of a thread. A function taken before that (`from
torch import relu` above the debugger) is seen by a torch function mode, which
maps it to its stand-in.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from typing import Any, Callable, Iterator, Optional

import torch
from torch.overrides import TorchFunctionMode

from rankprobe import _native
from rankprobe._say import say
from rankprobe.pytorch._api_list import load_list, parse_list
from rankprobe.pytorch._bindings import pop_mode, push_mode
from rankprobe.pytorch._process import warn

# Arguments that are receive buffers before the call, by position and keyword.
_IGNORED_INPUTS: dict[str, tuple[list[int], list[str]]] = {
    "recv": ([0], []), "irecv": ([0], ["tensor"]), "all_gather": ([0], []), "gather": ([1], []),
    "scatter": ([0], []), "reduce_scatter": ([0], []), "_reduce_scatter_base": ([0], []),
    "_all_gather_base": ([0], []), "all_to_all_single": ([0], []), "all_to_all": ([0], []),
    "all_gather_into_tensor": ([0], []), "reduce_scatter_tensor": ([0], []),
}
# They change arguments (running statistics) behind the version counter's back.
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


class _Mode(TorchFunctionMode):
    """Sends calls of functions bound before the debugger to their stand-ins."""

    def __init__(self, stand_ins: dict[Any, Any]) -> None:
        super().__init__()
        # Each call of PyTorch comes by here while a step is recorded: native.
        self.__torch_function__ = types.MethodType(_native.mode_function(stand_ins), self)  # type: ignore[method-assign]


class Apis:
    """Installs and removes the stand-ins of one Capture."""

    def __init__(self, capture: Any, path: Optional[str] = None, only: Optional[str] = None) -> None:
        """only: of the own list the functions of this prefix; none of them needs the mode."""
        self._capture, self._only = capture, only
        self._own_list = {prefix: names for prefix, names in load_list(path).items() if only in (None, prefix)}
        # An operator's list, as text; "": it is this process' own.
        self._text = ""
        # (host, name, stand-in, original; None: inherited)
        self._places: list[tuple[Any, str, Any, Any]] = []
        self._by_original: dict[Any, Any] = {}
        self._installed = False
        # Calls of show_originals() that are open.
        self._hidden = 0
        # torch.compile was called.
        self.on_compile: Callable[[], None] = lambda: None
        self._undo: list[Callable[[], None]] = []
        # (module, name, original, prefix, stand-in)
        self._custom: dict[tuple[int, str], tuple[Any, str, Any, str, Any]] = {}
        self._mode: Optional[_Mode] = None
        self._mode_entered = self._paused = False
        self._collect(self._own_list)

    def use(self, text: str) -> None:
        """The list to record from now on, as an operator gave it; "": the process' own.

        Between steps. Raises ValueError, and changes nothing, for a bad one.
        """
        if text == self._text:
            return
        chosen = parse_list(text) if text else self._own_list
        installed = self._installed
        self.leave_mode()
        self.remove()
        self._places, self._by_original, self._mode = [], {}, None
        self._text = text
        self._collect(chosen)
        if installed:
            self.install()

    def _collect(self, chosen: dict[str, list[str]]) -> None:
        for prefix, names in chosen.items():
            for host in _hosts(prefix):
                for name in names:
                    self._add(prefix, host, name)
        if not self._places and self._only is None:
            say("rankprobe: no function of the list of APIs "
                  f"{'that an operator gave' if self._text else 'of this process'} is here to be recorded "
                  f"({_some(chosen)}): none of its functions is recorded")

    def _add(self, prefix: str, host: Any, dotted: str) -> None:
        *path, name = dotted.split(".")
        for part in path:
            host = getattr(host, part, None)
        function = getattr(host, name, None) if host is not None else None
        if function is None or not callable(function) or isinstance(function, type):
            return
        try:
            known = self._by_original.get(function)
        except TypeError:  # not hashable
            known = None
        same = known is not None and known.rankprobe_name == f"{prefix}.{name}"
        api: Any = known if same else _native.api(function, self._capture, prefix, name, _traits(prefix, name))
        if not same:
            api.rankprobe_name = f"{prefix}.{name}"
        # Methods of Tensor are not bound early; some share a function with a name
        # that is not listed (__rtruediv__), which msprobe does not record.
        if prefix != "Tensor":
            self._by_original.setdefault(function, api)
        own = vars(host) if hasattr(host, "__dict__") else {}
        self._places.append((host, name, api, own.get(name)))

    def install(self) -> None:
        if self._installed:
            return
        self._installed = True
        self._hidden = 1
        self.show_stand_ins()
        for module, name, _, _, api in self._custom.values():
            setattr(module, name, api)
        self._wrap_work()
        self._wrap_compilers()
        if self._only is None:
            self._wrap_optimizers()

    def remove(self) -> None:
        if not self._installed:
            return
        self._installed = False
        for host, name, api, original in self._places:
            if vars(host).get(name) is not api:
                continue
            if original is None:
                delattr(host, name)
            else:
                setattr(host, name, original)
        for entry in self._custom.values():
            self._take_off_custom(entry)
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _replace(self, host: Any, name: str, value: Any) -> None:
        original = getattr(host, name)
        setattr(host, name, value)
        self._undo.append(lambda: setattr(host, name, original))

    def _wrap_work(self) -> None:
        """Waiting for an asynchronous collective completes its record."""
        if not torch.distributed.is_available():
            return
        work = torch._C._distributed_c10d.Work
        wait, done = work.wait, self._capture.work_done

        def rankprobe_wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = wait(self, *args, **kwargs)
            done(self)
            return result

        self._replace(work, "wait", rankprobe_wait)

    def _wrap_compilers(self) -> None:
        """TorchScript compiles the originals, not the stand-ins; torch.compile keeps tables of them."""
        for host, name in ((torch.jit, "script"), (torch, "compile")):
            if hasattr(host, name):
                self._replace(host, name, self._with_originals(getattr(host, name)))
        export: Any = sys.modules.get("torch.export")
        if hasattr(export, "export"):
            self._replace(export, "export", self._unwatched(export.export))

    def _unwatched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def rankprobe_export(*args: Any, **kwargs: Any) -> Any:
            with self.unseen():
                return function(*args, **kwargs)

        return rankprobe_export

    def _with_originals(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def rankprobe_compile(*args: Any, **kwargs: Any) -> Any:
            self.show_originals()
            try:
                return function(*args, **kwargs)
            finally:
                self.show_stand_ins()
                self.on_compile()

        return rankprobe_compile

    def _wrap_optimizers(self) -> None:
        """PyTorch's own optimizers hold no early bound functions: under the mode
        each attribute they read of a parameter would be a call of Python."""
        def before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # A closure is the user's code.
            if type(optimizer).__module__.startswith("torch.optim.") and not args[1:] and not kwargs:
                self._pause_mode()

        self._undo += around_optimizer_steps(before, lambda *_: self._resume_mode())
        for host in (torch.optim.Optimizer, torch.nn.Module):
            self._replace(host, "zero_grad", self._without_mode(host.zero_grad))

    def _without_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def rankprobe_call(*args: Any, **kwargs: Any) -> Any:
            paused = self._pause_mode()
            try:
                return function(*args, **kwargs)
            finally:
                if paused:
                    self._resume_mode()

        return rankprobe_call

    def show_originals(self) -> None:
        """Until show_stand_ins(), as often: PyTorch as it is without stand-ins."""
        self._hidden += 1
        if self._hidden > 1 or not self._installed:
            return
        for host, name, _, original in self._places:
            if original is not None:
                setattr(host, name, original)
            elif name in vars(host):
                delattr(host, name)

    def show_stand_ins(self) -> None:
        self._hidden -= 1
        if self._hidden > 0 or not self._installed:
            return
        for host, name, api, _ in self._places:
            try:
                setattr(host, name, api)
            except (AttributeError, TypeError):  # a read-only namespace
                continue

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Neither stand-ins nor mode, for this thread."""
        paused = self._pause_mode()
        self.show_originals()
        try:
            yield
        finally:
            self.show_stand_ins()
            if paused:
                self._resume_mode()

    # The mode lies on the stack of the thread that starts a step.
    def enter_mode(self) -> None:
        self._paused = False
        if self._mode_entered:
            return
        self._mode = self._mode or _Mode(self._by_original)
        self._capture.set_mode(self._mode)
        push_mode(self._mode)
        self._mode_entered = True

    def _pause_mode(self) -> bool:
        if not self._mode_entered or self._paused:
            return False
        self.leave_mode()
        self._paused = not self._mode_entered
        return self._paused

    def _resume_mode(self) -> None:
        if self._paused:
            self.enter_mode()

    def leave_mode(self) -> None:
        self._paused = False
        if not self._mode_entered:
            return
        above = []
        while torch._C._len_torch_function_stack() > 0:
            top = pop_mode()
            if top is self._mode:
                self._mode_entered = False
                break
            above.append(top)
        for mode in reversed(above):
            push_mode(mode)

    # --- register_custom_api
    def register_custom(self, module: Any, name: str, prefix: Optional[str], traits: Optional[dict[str, Any]] = None) -> None:
        """Records `module.name` as `{prefix}.{name}`, while the stand-ins are in place;
        what is registered stays as it is.
        traits: as those of a list's functions.

        Raises ValueError when there is no such callable or for a bad prefix.
        """
        if not isinstance(name, str) or not callable(getattr(module, name, None)):
            raise ValueError(f"{module!r} has no callable attribute {name!r}")
        if prefix is None:
            prefix = getattr(module, "__name__", type(module).__name__)
        if not isinstance(prefix, str) or not prefix:
            raise ValueError(f"api_prefix must be a non-empty str, not {prefix!r}")
        key = (id(module), name)
        if key in self._custom:
            known = self._custom[key][3]
            if known != prefix:
                warn(f"register_custom_api: {name} is recorded as {known}.{name} already, not as {prefix}.{name}; "
                     "restore_custom_api first")
            return
        original = getattr(module, name)
        api = _native.api(original, self._capture, prefix, name, traits or {})
        self._custom[key] = (module, name, original, prefix, api)
        if self._installed:
            setattr(module, name, api)

    def restore_custom(self, module: Any, name: str) -> None:
        entry = self._custom.pop((id(module), name), None)
        if entry is not None:
            self._take_off_custom(entry)

    @staticmethod
    def _take_off_custom(entry: tuple[Any, str, Any, str, Any]) -> None:
        module, name, original, _, api = entry
        if getattr(module, name, None) is api:
            setattr(module, name, original)


def around_optimizer_steps(before: Callable[..., Any], after: Callable[..., Any]) -> list[Callable[[], None]]:
    """Hooks on the steps of all optimizers, where PyTorch has such (2.0); what takes them off again."""
    optimizer = importlib.import_module("torch.optim.optimizer")
    if not hasattr(optimizer, "register_optimizer_step_pre_hook"):
        return []
    return [optimizer.register_optimizer_step_pre_hook(before).remove,
            optimizer.register_optimizer_step_post_hook(after).remove]


def optimizer_scopes(capture: Any) -> Iterator[Callable[[], None]]:
    """Puts what optimizers and gradient clipping do under a pseudo parent.

    Yields what takes each of these hooks off again.
    """
    yield from around_optimizer_steps(lambda *_: capture.push_scope("optimizer"),
                                       lambda *_: capture.pop_scope("optimizer"))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        original = getattr(torch.nn.utils.clip_grad, name)

        def clip(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            capture.push_scope("clip_grad")
            try:
                return _original(*args, **kwargs)
            finally:
                capture.pop_scope("clip_grad")

        clip.__wrapped__ = original  # type: ignore[attr-defined]
        for host in (torch.nn.utils, torch.nn.utils.clip_grad):
            setattr(host, name, clip)
            yield functools.partial(setattr, host, name, original)
