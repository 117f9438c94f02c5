# SPDX-License-Identifier: Apache-2.0
"""Facts that show whether two runs are the same experiment, for `rankprobe config_check`.

In its first recorded step, a process records once its versions and settings, the
model and its weights. In every recorded step it records the states of its random
generators, digests of the model's inputs, and the learning rates. Environment and
command line are filtered by an allow-list: a value that is not known to be harmless
is not recorded, only its name.
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
from rankprobe.pytorch._bindings import without_own_dispatch
from rankprobe.pytorch._generators import numpy_state, python_state
from rankprobe.pytorch._modules import is_compiled, uncompiled_path
from rankprobe.pytorch._process import is_distributed

Fact = tuple[str, str, str]

# Bytes of each parameter that are read, which suffice because another seed or checkpoint differs in the first elements.
_WEIGHT_BYTES = 256 << 10
# Bytes of the inputs of one forward that are read.
_BATCH_BYTES = 16 << 20
_MAX_PARAMETERS = 4096
_MAX_LEAVES = 256
# The function in which every call of a module runs.
_CALL = torch.nn.Module._call_impl
# Functions for dispatch modes, which PyTorch 1.13 lacks.
_disable_modes = getattr(torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_AS_IT_IS = contextlib.nullcontext()
# Methods of this class are called, because a program may replace those of torch.Tensor.
_BASE = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase

# Options of training, whose values are recorded.
_OPTION = re.compile(
    r"(.*[-_.])?(seed|lr|learning[-_]rate|batch[-_]size|epochs?|steps?|optimizer|optim|scheduler|dtype|precision|"
    r"model|arch|backend|device|loss|dropout|momentum|weight[-_]decay|warmup|layers?|heads?|hidden[-_]size)",
    re.IGNORECASE)
_PLAIN = re.compile(r"[-+]?\d[\d_]*(\.\d*)?([eE][-+]?\d+)?|true|false|none|on|off|yes|no", re.IGNORECASE)
_HYPERPARAMETER = (bool, int, float, str, type(None))


def is_wanted() -> bool:
    return os.environ.get("RANKPROBE_RUN_CARD", "1") not in ("0", "off", "false")


def _early_modes() -> int:
    # Looked up at the call, because this file may be imported during the import of torch.
    return getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", lambda: 0)()


def _without_modes() -> ContextManager[Any]:
    # Disabling none costs a tenth of a millisecond.
    return _disable_modes() if _modes() or _early_modes() else _AS_IT_IS


def digest(tensor: torch.Tensor, limit_bytes: int) -> str:
    """Returns a digest of the first `limit_bytes` of the elements, such as "float32[2, 3] 91c0..", without the digits if they cannot be
    read. Calls no __torch_function__, __torch_dispatch__ or mode of the program, which would trace the reading."""
    with torch._C.DisableTorchFunction(), _without_modes():
        return _digest(tensor, limit_bytes)


def _digest(tensor: torch.Tensor, limit_bytes: int) -> str:
    local = getattr(tensor, "_local_tensor", tensor)  # this rank's part of a DTensor
    head = f"{str(local.dtype).replace('torch.', '')}{list(local.shape)}"
    # Plain tensors are read without an operator, which a profiler of the program would count.
    if type(local) not in (torch.Tensor, torch.nn.Parameter):
        with without_own_dispatch(local):
            local = local.detach()
    if type(local) not in (torch.Tensor, torch.nn.Parameter) or not all(type(size) is int for size in local.shape):
        return head  # For example a FakeTensor, which has no memory, and whose symbolic sizes must not be specialized.
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
    # No digits if the storage was freed, as FSDP does.
    return f"{head} {_native.memory_digest(address, count * size)}" if address else head


def _short(data: bytes) -> str:
    return _native.content_digest(data)


def random_state(quick: Callable[[torch.Tensor, int], str]) -> list[tuple[str, str]]:
    """quick: digest() of what is plain; "" of what is not."""
    state = torch.default_generator.get_state()
    facts = [("python", python_state()), ("torch", quick(state, 1 << 20) or digest(state, 1 << 20))]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        facts.append(("numpy", numpy_state(numpy.random)))
    if torch.cuda.is_initialized():
        facts.append((f"cuda:{torch.cuda.current_device()}", digest(torch.cuda.get_rng_state(), 1 << 20)))
    return facts


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
    """Yields name and version of installed packages. If two folders of sys.path have a name, the first counts, which is imported."""
    known: set[str] = set()
    for found in importlib.metadata.distributions():
        # Uses the folder name, because reading the metadata of all packages takes half a second.
        folder = re.fullmatch(r"(.+?)-([^-]+)(-py[\d.]+)?\.(dist|egg)-info",
                              getattr(getattr(found, "_path", None), "name", ""))
        if folder is None:
            continue
        name = folder.group(1).replace("_", "-").lower()
        if name not in known:
            known.add(name)
            yield name, folder.group(2)


def _option_value(name: str, value: str) -> str:
    """Returns `value` if it is known to be harmless, else a checksum of 16 bits that distinguishes two values."""
    if SECRET.search(name):
        return "(not recorded)"
    if _PLAIN.fullmatch(value) or (_OPTION.fullmatch(name) and len(value) <= 64 and "://" not in value):
        return value
    return f"(not recorded, checksum {_short(value.encode(errors='replace'))[:4]})"


def command_line(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the words of sys.argv: options by name (`--lr 0.1`, `--lr=0.1`, `lr=0.1`), others by position."""
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
    """Yields the ranks with the same parameters as this one: those of a DistributedDataParallel that has all parameters of the model."""
    own = {id(parameter) for _, root in _roots(model) for parameter in _walk.parameters(root)}
    ranks_of = getattr(torch.distributed, "get_process_group_ranks", None)
    if not own or ranks_of is None or not is_distributed():
        return
    for wrapper in _living(torch.nn.parallel.DistributedDataParallel):
        if "module" not in wrapper._modules or "process_group" not in vars(wrapper):  # Its __init__ has not finished.
            continue
        ignored = vars(wrapper).get("parameters_to_ignore", ())
        held = {id(parameter) for name, parameter in _walk.named_parameters(wrapper._modules["module"]) if name not in ignored}
        if own <= held:
            yield "replicas", ",".join(map(str, sorted(ranks_of(wrapper.process_group))))
            return


def layout(model: Any) -> Iterator[tuple[str, str]]:
    """Yields how the ranks share the model, by Megatron's groups or the mesh of the first DTensor among the parameters."""
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
        while is_compiled(root):  # A compiled model has the same facts as the model itself.
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
    # issubclass(), because isinstance() would run code of proxy objects.
    return [found for found in gc.get_objects() if issubclass(type(found), base)]


def _size_of(optimizer: Any) -> tuple[str, list[list[int]]]:
    return type(optimizer).__name__, [[_BASE.numel(parameter) for parameter in group["params"]] for group in optimizer.param_groups]


def _said(value: Any) -> str:
    """Returns repr() without addresses such as in "<function f at 0x7efc2a6eb7e0>", which are not settings."""
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
    """Returns one digest of all tensors, "" if there are none. Does not wait for tensors on a device. quick: as in random_state()."""
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
    """Records the facts of one process through its Capture. Called only by
    PrecisionDebugger. A fault of rankprobe becomes a fact and has no other effect.

    on_first_module: sets a function to be called when the first module of the step begins.
    """

    def __init__(self, capture: Any, on_first_module: Callable[[Optional[Callable[[], None]]], None]) -> None:
        self._capture = capture
        self._on_first_module = on_first_module
        self._wanted = is_wanted()
        # Whether the facts of the process, and those of its optimizers, were recorded.
        self._told = self._optimizers_told = False
        self._optimizers: list[Any] = []
        self._step: Optional[int] = None
        # Prefixes of names by the ids of the models.
        self._roots: dict[int, str] = {}

    def begin_step(self, step: int, model: Any) -> None:
        """Records facts at the beginning of a recorded step. Repeated calls in a step have no effect."""
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
        """Records facts about optimizers; call it before the recording of the step ends."""
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
        # Sorted, because the order of gc.get_objects() differs from run to run.
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
        """Yields the digests of the inputs of all models in whose forward the caller runs."""
        # Searches the frames, because a hook on a model would appear in every stack below it.
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
        return self._facts(section, lambda: [(section, name, value) for name, value in source() if value])

    def _facts(self, section: str, source: Callable[[], Iterable[Fact]]) -> list[Fact]:
        self._capture.enter_quiet()  # Calls of rankprobe on tensors must not be recorded.
        try:
            return [(part, name if name.isascii() else _text(name), value if value.isascii() else _text(value))
                    for part, name, value in source()]
        except Exception as error:  # noqa: BLE001 - the training must not notice
            _native.raise_later_if_programs(error)
            return [(section, "(not recorded)", type(error).__name__)]
        finally:
            self._capture.leave_quiet()


def _text(value: str) -> str:
    """What can be sent: no lone surrogates."""
    return value.encode("utf-8", "replace").decode("utf-8")
