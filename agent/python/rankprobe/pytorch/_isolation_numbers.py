# SPDX-License-Identifier: Apache-2.0
"""Difference of a value from the recorded one, and the tolerance for rounding (docs/analysis.md, "Tolerances")."""

from __future__ import annotations

import math
from typing import Any, Iterable, NamedTuple

import torch

_EPSILON = {torch.float64: 2.0**-53, torch.complex128: 2.0**-53, torch.float32: 2.0**-24, torch.complex64: 2.0**-24,
            torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_TF32 = 2.0**-11
# Factor between the allowed error of one element, relative to the largest, and that of all elements, relative to their norm.
_PEAK = 4.0
# Allowed multiple of the measured effect of input rounding, because rounding also occurs within the module.
NOISE = 3.0


class Difference(NamedTuple):
    """error: relative to the recorded value, for comparison with a tolerance. absolute: norm of the difference. size: norm of the
    recorded value."""

    error: float
    absolute: float
    size: float


def epsilon(*dtypes: torch.dtype) -> float:
    """Returns the unit roundoff of the coarsest dtype; 0 for integers."""
    return max((_EPSILON.get(dtype, 2.0**-4 if dtype.is_floating_point else 0.0) for dtype in dtypes), default=0.0)


def epsilon_of(values: Iterable[torch.Tensor]) -> float:
    """Returns the unit roundoff of tensors, including TF32 on a device and the dtype of autocast."""
    values = list(values)
    found = epsilon(*(value.dtype for value in values))
    for kind in {value.device.type for value in values}:
        if kind != "meta" and torch.is_autocast_enabled(kind):
            found = max(found, epsilon(torch.get_autocast_dtype(kind)))
        if kind == "cuda" and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32):
            found = max(found, _TF32)
    return found


def auto_tolerance(rounding: float, elements: int, operands: Iterable[int], rows: int = 1) -> float:
    """Returns 4 * eps * sqrt(K), as AutoTolerance() of analysis/root_cause/row_difference.cc. operands: their numbers of elements.
    rows: the number of rows that the gradient of a parameter sums."""
    sizes, out = sorted(operands, reverse=True), max(1, elements)
    length = 1.0
    if len(sizes) >= 2:
        length = max(1.0, math.sqrt(sizes[0] * sizes[1] / out), sizes[0] / out)
    elif sizes:
        length = max(1.0, sizes[0] / out)
    length = max(length, float(rows))
    # Sums of 16-bit numbers are accumulated in float32, so only float32 rounding grows with their length.
    root = math.sqrt(length) if rounding < _EPSILON[torch.float16] else 1 + math.sqrt(length) * _EPSILON[torch.float32] / rounding
    return 4 * rounding * root


def difference(own: torch.Tensor, recorded: torch.Tensor) -> Difference:
    """Returns the difference of two tensors of the same shape; infinite if elements that are not finite differ."""
    if not (own.is_floating_point() or own.is_complex()):
        wrong = int((own.cpu() != recorded.cpu().to(own.dtype)).sum())
        return Difference(wrong / max(1, own.numel()), float(wrong), float(own.numel()))
    kind = torch.complex128 if own.is_complex() or recorded.is_complex() else torch.float64
    n, b = own.detach().cpu().to(kind).reshape(-1), recorded.detach().cpu().to(kind).reshape(-1)
    if own.is_floating_point() and recorded.is_floating_point() and own.dtype != recorded.dtype:
        # A mask may hold the smallest number of its dtype, which in a smaller dtype becomes the smallest of that, or an infinity.
        masked = (b.abs() >= 0.99 * torch.finfo(recorded.dtype).max) & (n.abs() >= 0.99 * torch.finfo(own.dtype).max)
        n = torch.where(masked & (torch.sign(n) == torch.sign(b)), b, n)
    finite = torch.isfinite(n) & torch.isfinite(b)
    if not bool(finite.all()):
        n_rest, b_rest = n[~finite], b[~finite]
        if not bool(((n_rest == b_rest) | (torch.isnan(n_rest) & torch.isnan(b_rest))).all()):
            return Difference(math.inf, math.inf, float(b[finite].norm()))
        n, b = n[finite], b[finite]
    if not n.numel():
        return Difference(0.0, 0.0, 0.0)
    apart = (n - b).abs()
    absolute, size, largest = float(apart.norm()), float(b.norm()), float(b.abs().max())
    if absolute == 0:
        return Difference(0.0, 0.0, size)
    if size == 0:
        return Difference(math.inf, absolute, size)
    return Difference(max(absolute / size, float(apart.max()) / largest / _PEAK), absolute, size)


def put_into(recorded: torch.Tensor, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Returns a copy in the dtype of the target. A finite number that is too large becomes the largest finite one, so that an
    additive mask of the smallest float32 does not become one of infinities."""
    value = recorded.to(device=device, dtype=dtype, copy=True)
    if recorded.is_floating_point() and dtype.is_floating_point and epsilon(dtype) > epsilon(recorded.dtype):
        made = torch.isinf(value) & torch.isfinite(recorded.to(device))
        if bool(made.any()):
            value[made] = torch.sign(value[made]) * torch.finfo(dtype).max
    return value


def signs(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Returns random signs in the shape and dtype of `like`, drawn from `generator`."""
    drawn = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8).to(like.device, like.dtype)
    return drawn * 2 - 1
