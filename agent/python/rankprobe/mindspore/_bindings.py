# SPDX-License-Identifier: Apache-2.0
"""Bindings of the native code to the installed MindSpore: types, and how tensors and the graph are read.

A tensor is read at the address that asnumpy() returns, in place if its elements are
contiguous; that call waits for pending computations of the tensor. The graph of a
PyNative forward is MindSpore's own; it is read and not extended.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy
from mindspore import ops
from mindspore._c_expression import TensorPy, typing
from mindspore.common.api import _no_grad, _pynative_executor

from rankprobe._frontend.source_lines import source_line
from rankprobe._frontend.values import tagged
from rankprobe._program_error import raise_programs

# Bound before stand-ins are installed.
_ADD, _SUB = ops.add, ops.sub


def grad_enabled() -> bool:
    """Returns whether calls become part of a graph now."""
    return bool(_pynative_executor.requires_grad() and _pynative_executor.enable_grad())


def is_tensor(value: Any) -> bool:
    return isinstance(value, TensorPy)


def wait() -> None:
    """Waits until all operators that the program has called are computed.

    A failed operator raises once, in the next wait for anything, which may be this one. The error is raised as one of the
    program's, so that the program gets it as it would without rankprobe.
    """
    try:
        _pynative_executor.sync()
    except Exception as error:  # noqa: BLE001 - an operator may raise any type
        raise_programs(error)


def array_of(tensor: Any) -> Optional[numpy.ndarray[Any, Any]]:
    """Returns tensor.asnumpy() after wait(); None if NumPy has no such type."""
    wait()
    try:
        array: numpy.ndarray[Any, Any] = tensor.asnumpy()
        return array
    except (RuntimeError, TypeError, ValueError):
        return None


def describe(tensor: Any, needs: int, generation: int) -> dict[str, Any]:
    """Returns the fields that ValueReader::ReadDescribed() takes; without `address` and `stats` the statistics are null."""
    if isinstance(tensor, numpy.ndarray):
        return _of_array(tensor, {"type": "numpy.ndarray", "numpy": True, "dtype": str(tensor.dtype),
                                  "stats": _numpy_statistics(tensor)}, tensor.shape)
    array = array_of(tensor)
    fields = {"dtype": str(tensor.dtype), "requires_grad": bool(getattr(tensor, "_requires_grad", False))}
    if array is None:
        return {**fields, "shape": tuple(tensor.shape)}
    if array.dtype.kind == "c":
        fields["stats"] = _numpy_statistics(array)
    return _of_array(array, fields, array.shape)


def _of_array(array: Any, fields: dict[str, Any], shape: tuple[Any, ...]) -> dict[str, Any]:
    size = array.itemsize
    if array.dtype.kind in "OUSMm" or not array.dtype.isnative or any(stride % size for stride in array.strides):
        return {**fields, "shape": shape}
    return {**fields, "shape": shape, "address": array.__array_interface__["data"][0], "keep": array,
            "strides": tuple(stride // size for stride in array.strides)}


def _numpy_statistics(array: Any) -> Optional[tuple[Any, ...]]:
    """Returns Max, Min, Mean and Norm, for complex numbers those of the magnitudes; None for an empty array or another type."""
    if array.size == 0 or array.dtype.kind not in "biufc":
        return None
    with numpy.errstate(all="ignore"):
        values = numpy.abs(array) if array.dtype.kind == "c" else array
        return (values.max().item(), values.min().item(), values.mean().item(), numpy.linalg.norm(values).item())


def _gradient_sum(one: Any, other: Any) -> Any:
    """Returns the sum as a new tensor outside of any graph."""
    with _no_grad():
        return _ADD(one, other)


def _gradient_outside(whole: Any, inside: Any) -> Any:
    """Returns the part of the gradient `whole` that does not come from `inside`; None if there is none."""
    if whole is inside or numpy.array_equal(array_of(whole), array_of(inside)):  # type: ignore[arg-type] # None equals None
        return None
    with _no_grad():
        return _SUB(whole, inside)


def make_capture(session: Any, package: str) -> Any:
    """Makes the Capture of a native Session. package: the directory whose frames are omitted from stacks."""
    return session.capture({
        "Tensor": TensorPy, "shape": TensorPy.shape, "dtype": TensorPy.dtype,
        "requires_grad": property(lambda tensor: bool(getattr(tensor, "_requires_grad", False))),
        "grad_fn": TensorPy._grad_node, "output_nr": property(_output_number),
        "node_id": lambda node: node._unique_id(), "calls_like_modules": True,
        "gradient_sum": _gradient_sum, "gradient_outside": _gradient_outside,
        "queue_callback": _pynative_executor.queue_backward_final_callback,
        "dtype_type": typing.Number, "ndarray": numpy.ndarray, "is_grad_enabled": grad_enabled,
        "describe": describe, "finish_devices": lambda: (0, 0, 0, None), "convert": tagged, "source_line": source_line,
        "dtypes": {},
    }, package)


def _output_number(tensor: Any) -> int:
    number = tensor._output_index
    return int(number() if callable(number) else number)
