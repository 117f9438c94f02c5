# SPDX-License-Identifier: Apache-2.0
"""Bindings of the native code to the installed PyTorch: types and descriptors.

Tensors are read through the descriptors of the base class, so reading runs no
patched attribute and no `__torch_function__`, and no PyTorch ABI is compiled in.
Tensors that are not strided CPU memory go through `describe`; objects that are
neither a tensor nor a plain value go through `convert`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import weakref
import zlib
from typing import Any, Callable, Iterator, Optional

import torch
import torch.utils._python_dispatch

from rankprobe._frontend.source_lines import source_line
from rankprobe._frontend.values import tagged
from rankprobe.pytorch import _device, _graph_ops
from rankprobe.pytorch._device import DeviceReader, memory_of

try:
    import numpy
except ImportError:  # pragma: no cover - torch without numpy
    numpy = None  # type: ignore[assignment]

_BASE = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase


def without_dispatch_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function` so that dispatch modes of the program do not see its operators."""
    depth = getattr(torch._C, "_len_torch_dispatch_stack", None)
    modes_off = getattr(torch.utils._python_dispatch, "_disable_current_modes", None)
    if depth is None or modes_off is None:  # below 2.0
        return function

    def unseen(*args: Any) -> Any:
        # While a graph is traced, its mode must see the operators, which become part of the graph that records.
        if depth() == 0 or (_graph_ops.sink is not None and _graph_ops.in_trace()):
            return function(*args)
        with modes_off():
            return function(*args)

    return unseen


_NO_DISPATCH = getattr(torch.Tensor, "__torch_dispatch__", None)


@contextlib.contextmanager
def without_own_dispatch(tensor: Any) -> Iterator[None]:
    """Context manager in which operations on `tensor` do not call a __torch_dispatch__ of its class."""
    if getattr(type(tensor), "__torch_dispatch__", None) is _NO_DISPATCH:
        yield
        return
    off: Any = torch._C._DisableTorchDispatch()
    with off if hasattr(off, "__enter__") else contextlib.nullcontext():  # Below 2.0 it is active as long as the object exists.
        yield


@contextlib.contextmanager
def unprofiled() -> Iterator[None]:
    """Context manager in which a profiler of the program does not count the operators of this thread."""
    profiled = torch._C._autograd._profiler_enabled()
    if profiled:
        torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        if profiled:
            torch._C._autograd._enable_record_function(True)


def _modes_aside() -> list[Any]:
    """Pops the program's modes and returns them, because below 2.0 DisableTorchFunction does not hide calls from them."""
    return [torch.overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())]


def _modes_back(modes: list[Any]) -> None:
    for mode in reversed(modes):
        torch.overrides._push_mode(mode)


# Placement kinds of types.proto.
_SHARD, _REPLICATE, _PARTIAL, _STRIDED_SHARD = 1, 2, 3, 4


def _distributed() -> Any:
    return torch.distributed if torch.distributed.is_available() else None


def _dtensor_type() -> Any:
    import sys

    module = sys.modules.get("torch.distributed.tensor") or sys.modules.get("torch.distributed._tensor")
    return getattr(module, "DTensor", None)


def _sizes(tensor: Any) -> tuple[int, ...]:
    """Returns the sizes. Uses the hint of a symbolic size while a graph is traced, because int() would specialize the graph."""
    return tuple(size if type(size) is int else int(getattr(size.node, "hint", None) or 0) for size in tensor.shape)


def _described(tensor: Any, **fields: Any) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype), "shape": _sizes(tensor),
            "requires_grad": bool(tensor.requires_grad), **fields}


def _placements(tensor: Any) -> list[tuple[int, int, str, int]]:
    """Returns (kind, dimension of the tensor, reduction, split factor) for each mesh dimension."""
    out = []
    for placement in tensor.placements:
        if type(placement).__name__ == "_StridedShard":  # below 2.10 it is a Shard as well
            out.append((_STRIDED_SHARD, placement.dim, "", int(getattr(placement, "split_factor", 0))))
        elif placement.is_shard():
            out.append((_SHARD, placement.dim, "", 0))
        elif placement.is_replicate():
            out.append((_REPLICATE, 0, "", 0))
        elif placement.is_partial():
            # A rank's part of an embedding with sharded rows is a term of the sum only after it is masked.
            masked = "masked_" if "Mask" in type(placement).__name__ else ""
            out.append((_PARTIAL, 0, masked + str(getattr(placement, "reduce_op", "sum")), 0))
    return out


_SPECIAL = {
    "FakeTensor": "torch._subclasses.fake_tensor.FakeTensor",
    "AsyncCollectiveTensor": "torch.distributed._functional_collectives.AsyncCollectiveTensor",
}


def describe(devices: DeviceReader, tensor: Any, needs: int, generation: int) -> dict[str, Any]:
    """Describes a tensor (or ndarray) that is not plain strided CPU memory.

    Returns the fields that ValueReader::ReadDescribed() takes; without `address`,
    `slot` and `stats` the statistics are null. needs, generation: see DeviceReader.read().
    Calls no __torch_function__ of the tensor's class or of a mode of the program.
    """
    with torch._C.DisableTorchFunction():
        return _describe(devices, tensor, needs, generation)


def _describe(devices: DeviceReader, tensor: Any, needs: int, generation: int) -> dict[str, Any]:
    def describe_plain(plain: torch.Tensor) -> dict[str, Any]:
        return _describe_plain(plain, lambda memory: devices.read(memory, plain, needs, generation)
                               if devices.holds(memory) else memory_of(memory))

    def described_special(special: torch.Tensor) -> dict[str, Any]:
        kind = type(special).__name__
        if kind == "AsyncCollectiveTensor":
            devices.tell("the statistics of an AsyncCollectiveTensor are null: the program has not waited for its collective, "
                         "and a wait by rankprobe could change the order of the program's")
        return _described(special, type=_SPECIAL[kind])

    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return _describe_ndarray(tensor)
    if hasattr(torch._C, "_functorch") and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_gradtrackingtensor(tensor):
            inner = torch._C._functorch.get_unwrapped(tensor)
            return {**describe_plain(inner), "type": "GradTrackingTensor",
                    "requires_grad": bool(tensor.requires_grad)}
        return _described(tensor, type="BatchedTensor")
    if type(tensor).__name__ in _SPECIAL:
        return described_special(tensor)
    dtensor = _dtensor_type()
    if dtensor is not None and isinstance(tensor, dtensor):
        # Avoids to_local(), which is a call of autograd.
        local = getattr(tensor, "_local_tensor", None)
        if local is None:
            local = tensor.to_local()
        fields = described_special(local) if type(local).__name__ in _SPECIAL else describe_plain(local)
        return {**fields, "type": "torch.distributed.tensor.DTensor", "requires_grad": bool(tensor.requires_grad),
                "mesh": json.dumps(tensor.device_mesh.mesh.tolist()), "placements": _placements(tensor),
                "global_shape": _sizes(tensor)}
    if getattr(tensor, "is_nested", False):
        return {**describe_plain(tensor.values()), "requires_grad": bool(tensor.requires_grad)}
    with without_own_dispatch(tensor):
        return describe_plain(tensor)


def _describe_plain(tensor: torch.Tensor, read: Callable[[torch.Tensor], dict[str, Any]]) -> dict[str, Any]:
    """Describes a tensor of any layout; `read` returns the fields of strided memory."""
    requires_grad = bool(tensor.requires_grad)
    with torch.no_grad():
        if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized or tensor.dtype is _FLOAT4:
            try:
                statistics = _statistics_of_values(tensor)
            except RuntimeError:  # This PyTorch lacks an operator for the dtype.
                statistics = None
            return {**_described(tensor), **({} if statistics is None else {"stats": statistics})}
        plain = tensor.detach()
        if plain.is_complex() and plain.is_conj():
            plain = plain.resolve_conj()
        if plain.is_neg():
            plain = plain.resolve_neg()
        if type(tensor) is not torch.Tensor and plain.numel() > 0 and plain.data_ptr() == 0:  # Only its class can access the data.
            return _described(tensor)
        return {**_described(plain, **read(plain)), "requires_grad": requires_grad}


# An element of this dtype holds two values, in the lower and the upper half of its byte. Below are the values of the 16 patterns.
_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)
_FLOAT4_VALUES = [sign * value for sign in (1.0, -1.0) for value in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)]


def _statistics_of_values(tensor: torch.Tensor) -> Optional[tuple[Any, ...]]:
    """Returns Max, Min, Mean and Norm of a sparse, quantized or float4 tensor in host memory, as for the dense tensor of its values.

    Returns None if it has no elements, is not a real floating-point tensor, or is on a device, for which this would wait.
    """
    if tensor.device.type != "cpu" or tensor.numel() == 0:
        return None
    if tensor.dtype is _FLOAT4:
        packed = tensor.view(torch.uint8)
        values = torch.tensor(_FLOAT4_VALUES)[torch.stack((packed & 15, packed >> 4)).long()]
    elif tensor.is_quantized:
        values = tensor.dequantize()
    elif not tensor.is_floating_point():
        return None
    else:
        # coalesce() adds up entries with the same index, in a copy.
        values = (tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor).values()
    values = values.detach().float() if values.dtype != torch.float64 else values.detach()
    zeros = max(tensor.numel() - values.numel(), 0)  # Negative for float4, which has two values in each element.
    if values.numel() == 0:
        return (0.0, 0.0, 0.0, 0.0)
    most, least = values.max().item(), values.min().item()
    if zeros and most == most:  # A NaN is kept.
        most, least = max(most, 0.0), min(least, 0.0)
    return (most, least, values.sum().item() / (values.numel() + zeros), values.norm().item())


def _describe_ndarray(array: Any) -> dict[str, Any]:
    fields = {"type": "numpy.ndarray", "numpy": True, "dtype": str(array.dtype), "shape": tuple(array.shape),
              "requires_grad": False}
    statistics = _ndarray_statistics(array)
    if statistics is not None:
        fields["stats"] = statistics
    if array.dtype.kind in "biuf" and array.dtype.isnative:
        array = numpy.ascontiguousarray(array).reshape(array.shape)
        fields.update(address=array.__array_interface__["data"][0], keep=array,
                      strides=tuple(s // array.itemsize for s in array.strides))
    elif array.dtype.kind in "US" and array.nbytes > 0:
        array = numpy.ascontiguousarray(array)
        fields.update(address=array.__array_interface__["data"][0], keep=array, strides=(1,),
                      text_bytes=array.nbytes)
    return fields


def _ndarray_statistics(array: Any) -> Optional[tuple[Any, ...]]:
    """Returns Max, Min, Mean and Norm as NumPy computes them, in every summary mode; for complex numbers those of the magnitudes,
    without Norm. None for an empty array or another type."""
    if array.size == 0 or array.dtype.kind not in "biufc":
        return None
    try:
        with numpy.errstate(all="ignore"):
            values = numpy.abs(array) if array.dtype.kind == "c" else array
            norm = None if array.dtype.kind == "c" else numpy.linalg.norm(array).item()
            return (values.max().item(), values.min().item(), values.mean().item(), norm)
    except (TypeError, ValueError, MemoryError):
        return None


def group_of(group: Any) -> tuple[tuple[int, ...], str]:
    """Returns the ranks of a process group and msprobe's name for it."""
    ranks = sorted(torch.distributed.get_process_group_ranks(group)) if hasattr(
        torch.distributed, "get_process_group_ranks") else sorted(
            torch.distributed.distributed_c10d._pg_group_ranks[group])
    return tuple(ranks), f"{zlib.crc32(str(list(ranks)).encode()):08x}"


def _field(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def convert(value: Any) -> Optional[tuple[Any, ...]]:
    """Converts an object that is not a tensor, number, text, list or plain dict to a tagged tuple; None means null. Checks types and calls
    methods of base classes, because isinstance() and methods of subclasses could run the program's code."""
    found = tagged(value)
    if found is not None:
        return found
    kind = type(value)
    if issubclass(kind, _graph_ops.Fields):
        return ("value", value.fields)
    if hasattr(kind, "__dataclass_fields__"):
        return ("value", {f.name: _field(value, f.name) for f in dataclasses.fields(kind)})
    dist = _distributed()
    if dist is not None:
        if issubclass(kind, dist.ProcessGroup):
            ranks, name = group_of(value)
            return ("group", ranks, name)
        if issubclass(kind, (getattr(dist.ReduceOp, "RedOpType", dist.ReduceOp), dist.ReduceOp)):
            return ("reduce_op", str(value))
        if issubclass(kind, dist.P2POp):
            group = value.group if value.group is not None else dist.group.WORLD
            return ("p2p", value.tensor, getattr(value.op, "__name__", str(value.op)),
                    value.peer, value.tag, group_of(group)[1])
    return None


def _node_types() -> tuple[type, bool]:
    """Returns the type of the nodes that accumulate gradients, and whether nodes have a sequence number."""
    with torch.inference_mode(False), torch.enable_grad():  # Nothing has a node in inference mode.
        leaf = torch.empty(0, requires_grad=True, device="cpu")
        return type(_accumulator(leaf)), hasattr(_BASE.neg(leaf).grad_fn, "_sequence_nr")


def _accumulator(leaf: torch.Tensor) -> Any:
    """Returns the autograd node that accumulates the gradient of `leaf`."""
    with torch.enable_grad(), unprofiled(), without_own_dispatch(leaf):
        return _BASE.view_as(leaf, leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def _gradient_sum(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns the sum as a new tensor outside of any graph."""
    return _BASE.add(_BASE.detach(one), _BASE.detach(other))


def _gradient_outside(whole: torch.Tensor, inside: torch.Tensor) -> Optional[torch.Tensor]:
    """Returns the part of the gradient `whole` that does not come from `inside`; None if there is none. Its last bits may differ
    from those of a separate sum."""
    if whole is inside:
        return None
    whole, inside = _BASE.detach(whole), _BASE.detach(inside)
    if _graph_ops.sink is not None and _graph_ops.in_trace():  # Values are not known during tracing.
        return _BASE.sub(whole, inside)
    return None if torch._C._VariableFunctions.equal(whole, inside) else _BASE.sub(whole, inside)


def make_capture(session: Any, package: str) -> Any:
    """Makes the Capture of a native Session. package: the directory whose frames are omitted from stacks."""
    devices = DeviceReader()
    capture = session.capture(bindings(devices), package)
    weak = weakref.ref(capture)

    def on_fault(what: str) -> None:
        alive = weak()
        if alive is not None:
            alive.report_fault(what)

    devices.on_fault = on_fault
    return capture


def bindings(devices: DeviceReader) -> dict[str, Any]:
    """Returns the dict that the native TorchBindings takes. devices: the reader of one Capture."""
    dist = _distributed()
    accumulator_type, numbered = without_dispatch_modes(_node_types)()
    return {
        "Tensor": torch.Tensor, "Parameter": torch.nn.Parameter, "Size": torch.Size,
        "shape": _BASE.shape, "dtype": _BASE.dtype, "requires_grad": _BASE.requires_grad,
        "dlpack_table": getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),
        "version": _BASE._version, "is_cpu": _BASE.is_cpu, "layout": _BASE.layout, "grad_fn": _BASE.grad_fn,
        "output_nr": _BASE.output_nr, "accumulator": without_dispatch_modes(_accumulator),
        "accumulator_type": accumulator_type,
        "sequence_number": getattr(torch._C._autograd, "_get_sequence_nr", None) if numbered else None,
        "graph_task": getattr(torch._C, "_current_graph_task_id", None),
        "queue_callback": torch.autograd.Variable._execution_engine.queue_callback,
        "add_hook": getattr(torch.autograd.Function, "_register_hook", None),
        "gradient_sum": without_dispatch_modes(_gradient_sum), "gradient_outside": without_dispatch_modes(_gradient_outside),
        "data_ptr": _BASE.data_ptr, "stride": _BASE.stride, "storage_offset": _BASE.storage_offset,
        "is_neg": _BASE.is_neg, "is_conj": _BASE.is_conj, "strided": torch.strided,
        "dtype_type": torch.dtype, "device_type": torch.device, "memory_format_type": torch.memory_format,
        "ndarray": None if numpy is None else numpy.ndarray,
        "ProcessGroup": dist.ProcessGroup if dist else None,
        "Work": torch._C._distributed_c10d.Work if dist else None,
        "is_grad_enabled": torch._C.is_grad_enabled if hasattr(torch._C, "is_grad_enabled") else torch.is_grad_enabled,
        "disable_torch_function": torch._C.DisableTorchFunction,
        **({} if hasattr(torch._C, "DisableTorchFunctionSubclass") else {"modes_aside": _modes_aside, "modes_back": _modes_back}),
        "describe": without_dispatch_modes(functools.partial(describe, devices)), "finish_devices": devices.finish,
        "device_slots": devices.statistics, "device_statistics": devices.statistics if _device.CUDA_DRIVER else None,
        "is_cuda": _BASE.is_cuda, "get_device": _BASE.get_device, "raw_stream": _device.current_raw_stream,
        "convert": convert, "source_line": source_line,
        "dtypes": {value: str(value) for value in vars(torch).values()
                   if isinstance(value, torch.dtype) and not any(n in str(value) for n in ("quint", "qint"))},
    }
