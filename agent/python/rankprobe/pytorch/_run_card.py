# SPDX-License-Identifier: Apache-2.0
"""What tells whether two runs are the same experiment, for `rankprobe config_check`.

In the first step that it records a process says once what it is: versions,
settings, the model and its weights. In every recorded step it says the states of
its random generators, the digests of what the model is called with and the
learning rates. Environment and command line pass an allow-list: what is not
known to be harmless is named without its value.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import os
import pathlib
import platform
import re
import socket
import sys
import weakref
from typing import Any, Callable, ContextManager, Iterable, Iterator, Mapping, Optional

import torch
import torch.utils._python_dispatch

from rankprobe import _native
from rankprobe._harmless import SECRET, environment
from rankprobe.pytorch import _walk
from rankprobe.pytorch._generators import numpy_state, python_state
from rankprobe.pytorch._modules import is_compiled, uncompiled_path
from rankprobe.pytorch._process import is_distributed

Fact = tuple[str, str, str]

# Of each parameter this much is read: another seed or another checkpoint differs from its first elements on.
_WEIGHT_BYTES = 256 << 10
# Of what one forward is called with.
_BATCH_BYTES = 16 << 20
_MAX_PARAMETERS = 4096
_MAX_LEAVES = 256
# What every call of a module runs in.
_CALL = torch.nn.Module._call_impl
# Of dispatch: PyTorch 1.13 has no such functions.
_disable_modes = getattr(torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_AS_IT_IS = contextlib.nullcontext()
# Whose methods a program that puts its own into torch.Tensor does not see called.
_BASE = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase

# Options whose values say how the training is done, whatever they are.
_OPTION = re.compile(
    r"(.*[-_.])?(seed|lr|learning[-_]rate|batch[-_]size|epochs?|steps?|optimizer|optim|scheduler|dtype|precision|"
    r"model|arch|backend|device|loss|dropout|momentum|weight[-_]decay|warmup|layers?|heads?|hidden[-_]size)",
    re.IGNORECASE)
_PLAIN = re.compile(r"[-+]?\d[\d_]*(\.\d*)?([eE][-+]?\d+)?|true|false|none|on|off|yes|no", re.IGNORECASE)
_HYPERPARAMETER = (bool, int, float, str, type(None))


def is_wanted() -> bool:
    return os.environ.get("RANKPROBE_RUN_CARD", "1") not in ("0", "off", "false")


def _early_modes() -> int:
    # Looked up late: this file is imported in the middle of an import of torch.
    return getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", lambda: 0)()


def _without_modes() -> ContextManager[Any]:
    # Disabling none costs a tenth of a millisecond.
    return _disable_modes() if _modes() or _early_modes() else _AS_IT_IS


def digest(tensor: torch.Tensor, limit_bytes: int) -> str:
    """ "float32[2, 3] 91c0..": of the first `limit_bytes` of its elements; without digits
    where they cannot be read. No call of a __torch_function__ of the program's, nor of a mode of its, which would trace what we read."""
    with torch._C.DisableTorchFunction(), _without_modes():
        return _digest(tensor, limit_bytes)


def _digest(tensor: torch.Tensor, limit_bytes: int) -> str:
    local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
    head = f"{str(local.dtype).replace('torch.', '')}{list(local.shape)}"
    # No operator for what lies in memory as it is: a profiler of the program would count it.
    if type(local) not in (torch.Tensor, torch.nn.Parameter):
        local = local.detach()
    if type(local) not in (torch.Tensor, torch.nn.Parameter):
        return head  # of a FakeTensor, say: there is no memory, and a question for a symbolic size would bind a graph to it
    if local.layout != torch.strided or local.device.type == "meta" or local.is_quantized or not _BASE.numel(local):
        return head
    size = _BASE.element_size(local)
    count = max(1, min(_BASE.numel(local), limit_bytes // size))
    flat = local
    if local.device.type != "cpu" or not _BASE.is_contiguous(local) or _BASE.is_conj(local) or _BASE.is_neg(local):
        local = local.detach()
        flat = local.view(-1)[:count] if local.is_contiguous() else local.reshape(-1)[:count]
        flat = flat.resolve_conj().resolve_neg().cpu().contiguous()
    address = _BASE.data_ptr(flat)
    # None where the storage was given back, as FSDP does.
    return f"{head} {_native.memory_digest(address, count * size)}" if address else head


def _short(data: bytes) -> str:
    return _native.content_digest(data)


def random_state(quick: Callable[[torch.Tensor, int], str]) -> Iterator[tuple[str, str]]:
    """quick: digest() of what is plain; "" of what is not."""
    yield "python", python_state()
    state = torch.default_generator.get_state()
    yield "torch", quick(state, 1 << 20) or digest(state, 1 << 20)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield "numpy", numpy_state(numpy.random)
    if torch.cuda.is_initialized():
        yield f"cuda:{torch.cuda.current_device()}", digest(torch.cuda.get_rng_state(), 1 << 20)


def versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    yield "torch", str(torch.__version__)
    yield "torch commit", str(torch.version.git_version)
    yield "cuda", str(torch.version.cuda)
    if torch.backends.cudnn.is_available():
        yield "cudnn", str(torch.backends.cudnn.version())
    yield "system", f"{platform.system()} {platform.machine()}"
    yield "libc", " ".join(platform.libc_ver())


def packages() -> Iterator[tuple[str, str]]:
    """Of a name that two folders of sys.path have, the first: that is the one that is imported."""
    known: set[str] = set()
    for found in importlib.metadata.distributions():
        # The name of the folder: reading each one's metadata takes half a second.
        folder = re.fullmatch(r"(.+?)-([^-]+)(-py[\d.]+)?\.(dist|egg)-info",
                              getattr(getattr(found, "_path", None), "name", ""))
        if folder is None:
            continue
        name = folder.group(1).replace("_", "-").lower()
        if name not in known:
            known.add(name)
            yield name, folder.group(2)


def _option_value(name: str, value: str) -> str:
    """`value`, where it is known to be harmless; else 16 bits that tell two values apart."""
    if SECRET.search(name):
        return "(not recorded)"
    if _PLAIN.fullmatch(value) or (_OPTION.fullmatch(name) and len(value) <= 64 and "://" not in value):
        return value
    return f"(not recorded, checksum {_short(value.encode(errors='replace'))[:4]})"


def command_line(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Of sys.argv: options by name (`--lr 0.1`, `--lr=0.1`, `lr=0.1`), others by position."""
    if not arguments:
        return
    yield "program", os.path.basename(arguments[0])
    position = index = 0
    rest = arguments[1:]
    while index < len(rest):
        text = rest[index]
        index += 1
        option = re.fullmatch(r"(--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w.@/]*(?==))(=(.*))?", text, re.DOTALL)
        if option is None:
            position += 1
            yield f"argument {position}", _option_value("", text)
        elif option.group(2) is not None:
            yield option.group(1), _option_value(option.group(1).lstrip("-+"), option.group(3))
        else:
            values = []
            while index < len(rest) and (not rest[index].startswith("-") or _PLAIN.fullmatch(rest[index])):
                values.append(_option_value(text.lstrip("-"), rest[index]))
                index += 1
            yield text, " ".join(values) if values else "(set)"


def host() -> Iterator[tuple[str, str]]:
    yield "hostname", socket.gethostname()
    yield "cores", str(os.cpu_count())
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        yield "processor", next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        yield "device", torch.cuda.get_device_name()


def world() -> Iterator[tuple[str, str]]:
    if is_distributed():
        yield "ranks", str(torch.distributed.get_world_size())
        yield "backend", str(torch.distributed.get_backend())
    else:
        yield "ranks", os.environ.get("WORLD_SIZE", "1")


def replicas(model: Any) -> Iterator[tuple[str, str]]:
    """The ranks that hold the same parameters as this one: those of a DistributedDataParallel that has all of the model's."""
    own = {id(parameter) for _, root in _roots(model) for parameter in _walk.parameters(root)}
    ranks_of = getattr(torch.distributed, "get_process_group_ranks", None)
    if not own or ranks_of is None or not is_distributed():
        return
    for wrapper in _living(torch.nn.parallel.DistributedDataParallel):
        if "module" not in wrapper._modules or "process_group" not in vars(wrapper):  # its __init__ has not ended
            continue
        ignored = vars(wrapper).get("parameters_to_ignore", ())
        held = {id(parameter) for name, parameter in _walk.named_parameters(wrapper._modules["module"]) if name not in ignored}
        if own <= held:
            yield "replicas", ",".join(map(str, sorted(ranks_of(wrapper.process_group))))
            return


def layout(model: Any) -> Iterator[tuple[str, str]]:
    """How the ranks share the model, as its framework says: Megatron's groups, the mesh of a DTensor among the parameters."""
    groups = sys.modules.get("megatron.core.parallel_state")
    if groups is not None and groups.model_parallel_is_initialized():
        for name in ("tensor_model", "pipeline_model", "context", "expert_model"):
            yield f"megatron {name.removesuffix('_model')} parallel", str(getattr(groups, f"get_{name}_parallel_world_size")())
        yield "megatron data parallel", str(groups.get_data_parallel_world_size())
    for parameter in (one for _, root in _roots(model) for one in _walk.parameters(root)):
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            names = mesh.mesh_dim_names or [f"dim{index}" for index in range(mesh.ndim)]
            yield "mesh", ", ".join(f"{name} {mesh.size(index)}" for index, name in enumerate(names))
            return


def determinism() -> Iterator[tuple[str, str]]:
    yield "torch seed", str(torch.initial_seed())
    yield "deterministic algorithms", str(torch.are_deterministic_algorithms_enabled())
    cudnn = torch.backends.cudnn
    for name in ("deterministic", "benchmark", "allow_tf32"):
        yield f"cudnn.{name}", str(getattr(cudnn, name))
    yield "matmul.allow_tf32", str(torch.backends.cuda.matmul.allow_tf32)
    yield "float32 matmul precision", torch.get_float32_matmul_precision()
    yield "default dtype", str(torch.get_default_dtype())
    yield "threads", str(torch.get_num_threads())
    yield "threads between operators", str(torch.get_num_interop_threads())
    yield "autocast", str(torch.is_autocast_enabled())


def _roots(model: Any) -> list[tuple[str, torch.nn.Module]]:
    if isinstance(model, (list, tuple)):
        return [(f"{index}.", root) for index, root in enumerate(model)]
    return [] if model is None else [("", model)]


def model_facts(model: Any) -> Iterator[Fact]:
    parameters = elements = trainable = 0
    whole: list[str] = []
    for prefix, root in _roots(model):
        while is_compiled(root):  # a compiled model is the same model
            root = root._orig_mod  # type: ignore[assignment]
        modules = [(uncompiled_path(path), type(module).__qualname__) for path, module in _walk.named_modules(root)
                   if not is_compiled(module)]
        yield "model", f"{prefix}class", type(root).__qualname__
        yield "model", f"{prefix}modules", f"{len(modules)} {_short(repr(modules).encode())}"
        yield "model", f"{prefix}training", str(root.training)
        for path, parameter in _walk.named_parameters(root):
            path = uncompiled_path(path)
            parameters += 1
            elements += _BASE.numel(parameter)
            trainable += _BASE.numel(parameter) if parameter.requires_grad else 0
            told = digest(parameter, _WEIGHT_BYTES)
            whole.append(f"{prefix}{path} {told}\n")
            if parameters <= _MAX_PARAMETERS:
                yield "weights", f"{prefix}{path}", told
        for path, buffer in _walk.named_buffers(root):
            whole.append(f"{prefix}{uncompiled_path(path)} {digest(buffer, _WEIGHT_BYTES)}\n")
    if parameters:
        yield "model", "parameters", f"{parameters}, {elements} elements, {trainable} trainable"
        yield "weights", "(all, and buffers)", _short("".join(whole).encode())


def _living(base: type) -> list[Any]:
    # By type: isinstance() would wake what only pretends to be something.
    return [found for found in gc.get_objects() if issubclass(type(found), base)]


def _size_of(optimizer: Any) -> tuple[str, list[list[int]]]:
    return type(optimizer).__name__, [[_BASE.numel(parameter) for parameter in group["params"]] for group in optimizer.param_groups]


def _said(value: Any) -> str:
    """repr, without addresses, which are no setting: "<function f at 0x7efc2a6eb7e0>"."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def optimizer_facts(optimizers: Iterable[Any], schedulers: Iterable[Any]) -> Iterator[Fact]:
    for number, optimizer in enumerate(optimizers):
        name = f"{number} {type(optimizer).__name__}"
        yield "optimizer", name, f"{len(optimizer.param_groups)} groups"
        for index, group in enumerate(optimizer.param_groups[:64]):
            for key, value in group.items():
                if key == "params":
                    yield "optimizer", f"{name}.group {index}.parameters", str(len(value))
                elif isinstance(value, _HYPERPARAMETER) or isinstance(value, (tuple, list)):
                    yield "optimizer", f"{name}.group {index}.{key}", _said(value)
    for number, scheduler in enumerate(schedulers):
        name = f"{number} {type(scheduler).__name__}"
        yield "scheduler", name, "in use"
        for key, value in vars(scheduler).items():
            if not key.startswith("_") and key not in ("last_epoch", "verbose") and isinstance(
                    value, _HYPERPARAMETER + (tuple, list)):
                yield "scheduler", f"{name}.{key}", _said(value)


def _tensors(value: Any, out: list[torch.Tensor], depth: int = 0) -> None:
    if len(out) >= _MAX_LEAVES or depth > 8:
        return
    if isinstance(value, torch.Tensor):
        out.append(value)
    elif isinstance(value, Mapping):
        for key in value:
            _tensors(value[key], out, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _tensors(item, out, depth + 1)


def batch_digest(arguments: tuple[Any, ...], keywords: Optional[Mapping[str, Any]],
                 quick: Callable[[torch.Tensor, int], str] = digest) -> str:
    """One digest of all tensors on the host; what lies on a device is not waited for. quick: as of random_state()."""
    tensors: list[torch.Tensor] = []
    _tensors(arguments, tensors)
    _tensors(keywords or {}, tensors)
    if not tensors:
        return ""
    limit = _BATCH_BYTES // len(tensors)
    told = [quick(t, limit) for t in tensors]
    if not all(told):
        with torch._C.DisableTorchFunction():
            on_device = any(t.device.type != "cpu" for t in tensors)
        if on_device:
            return "on a device: not read"
        told = [known or digest(t, limit) for known, t in zip(told, tensors)]
    return told[0] if len(told) == 1 else f"{len(told)} tensors {_short(repr(told).encode())}"


def _rates(number: int, optimizer: Any) -> list[Fact]:
    rates = ", ".join([str(group.get("lr")) for group in optimizer.param_groups[:64]])
    return [("learning rate", f"{number} {type(optimizer).__name__}", rates)] if rates else []


class RunCard:
    """Says the facts of one process through its Capture. Called by PrecisionDebugger
    alone. A fault of ours is a fact, and nothing else comes of it.

    on_first_module: has a function called when the first module of the step begins.
    """

    def __init__(self, capture: Any, on_first_module: Callable[[Optional[Callable[[], None]]], None]) -> None:
        self._capture = capture
        self._on_first_module = on_first_module
        self._wanted = is_wanted()
        # The process has said what it is, and what optimizers it has.
        self._told = self._optimizers_told = False
        self._optimizers: list[Any] = []
        self._step: Optional[int] = None
        # The prefixes of models' names, by their ids.
        self._roots: dict[int, str] = {}

    def begin_step(self, step: int, model: Any) -> None:
        """The step is recorded; again in the same step it does nothing."""
        if not self._wanted or self._step == step or not self._capture.wants_facts:
            return
        self._step = step
        facts = self._section("random state", lambda: random_state(self._capture.digest))
        if not self._told:
            self._told = True
            for section, source in (("versions", versions), ("packages", packages), ("host", host), ("world", world),
                                    ("determinism", determinism)):
                facts += self._section(section, source)
            facts += self._section("environment", lambda: environment(os.environ))
            facts += self._section("command line", lambda: command_line(sys.argv))
            facts += self._section("world", lambda: replicas(model))
            facts += self._section("world", lambda: layout(model))
            facts += self._facts("model", lambda: model_facts(model))
        self._capture.record_facts(facts)
        self._roots = {id(root): prefix for prefix, root in _roots(model)}
        self._on_first_module(self._batch)

    def end_recording(self) -> None:
        """Before the step's records end."""
        self._on_first_module(None)
        if self._step is None or not self._capture.wants_facts:
            return
        facts = []
        if not self._optimizers_told:
            self._optimizers_told = True
            facts += self._facts("optimizer", self._find_optimizers)
        for number, reference in enumerate(self._optimizers):
            optimizer = reference()
            if optimizer is not None:
                facts += self._facts("learning rate", functools.partial(_rates, number, optimizer))
        self._capture.record_facts(facts)

    def end_step(self) -> None:
        self._step = None

    def _find_optimizers(self) -> list[Fact]:
        # The collector of garbage has them in an order that differs from run to run.
        optimizers = sorted(_living(torch.optim.Optimizer), key=_size_of)
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        scheduler = getattr(torch.optim.lr_scheduler, "LRScheduler", torch.optim.lr_scheduler._LRScheduler)
        numbers = {id(optimizer): number for number, optimizer in enumerate(optimizers)}
        schedulers = sorted(_living(scheduler), key=lambda one: (numbers.get(id(getattr(one, "optimizer", None)), -1),
                                                                 type(one).__name__))
        return list(optimizer_facts(optimizers, schedulers))

    def _batch(self) -> None:
        self._capture.record_facts(self._section("batch", self._forwards))

    def _forwards(self) -> Iterator[tuple[str, str]]:
        """What the models are called with that the caller's caller is a part of."""
        # A hook on a model would show in every stack below it.
        frame: Any = sys._getframe()
        while frame is not None:
            if frame.f_code is _CALL.__code__:
                called = frame.f_locals
                prefix = self._roots.get(id(called.get("self")))
                if prefix is not None:
                    yield f"{prefix}forward", batch_digest(called.get("args", called.get("input", ())),
                                                           called.get("kwargs"), self._capture.digest)
            frame = frame.f_back

    def _section(self, section: str, source: Callable[[], Iterable[tuple[str, str]]]) -> list[Fact]:
        return self._facts(section, lambda: ((section, name, value) for name, value in source() if value))

    def _facts(self, section: str, source: Callable[[], Iterable[Fact]]) -> list[Fact]:
        self._capture.enter_quiet()  # what we ask of tensors is no call of the user's
        try:
            return [(part, _text(name), _text(value)) for part, name, value in source()]
        except Exception as error:  # noqa: BLE001 - the training must not notice
            _native.raise_later_if_programs(error)
            return [(section, "(not recorded)", type(error).__name__)]
        finally:
            self._capture.leave_quiet()


def _text(value: str) -> str:
    """What can be sent: no lone surrogates."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
