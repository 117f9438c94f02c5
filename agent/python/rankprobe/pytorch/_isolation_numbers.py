# SPDX-License-Identifier: Apache-2.0
"""How far a value is from the recorded one, and how far rounding alone may take it (docs/analysis.md, "Tolerances")."""

from __future__ import annotations

import math
from typing import Any, Iterable, NamedTuple

import torch

_EPSILON = {torch.float64: 2.0**-53, torch.complex128: 2.0**-53, torch.float32: 2.0**-24, torch.complex64: 2.0**-24,
            torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_TF32 = 2.0**-11
# One element may be this many times as far off, relative to the largest, as all of them, relative to their norm.
_PEAK = 4.0
# How many times the measured effect of rounding is allowed: rounding happens inside of the module as well.
NOISE = 3.0


class Difference(NamedTuple):
    """error: relative to the recorded value, what a tolerance is compared with; absolute, size: norms of both."""

    error: float
    absolute: float
    size: float


def epsilon(*dtypes: torch.dtype) -> float:
    """The unit roundoff of the coarsest of them; 0 for integers."""
    return max((_EPSILON.get(dtype, 2.0**-4 if dtype.is_floating_point else 0.0) for dtype in dtypes), default=0.0)


def epsilon_of(values: Iterable[torch.Tensor]) -> float:
    """Of tensors, with what a device makes of a float32 (TF32) and what autocast computes in."""
    values = list(values)
    found = epsilon(*(value.dtype for value in values))
    for kind in {value.device.type for value in values}:
        if kind != "meta" and torch.is_autocast_enabled(kind):
            found = max(found, epsilon(torch.get_autocast_dtype(kind)))
        if kind == "cuda" and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32):
            found = max(found, _TF32)
    return found


def auto_tolerance(rounding: float, elements: int, operands: Iterable[int], rows: int = 1) -> float:
    """4 * eps * sqrt(K), as AutoTolerance of analysis/root_cause/row_difference.cc has it. operands: their numbers of elements.
    rows: of a gradient of a parameter, how many rows it is a sum of."""
    sizes, out = sorted(operands, reverse=True), max(1, elements)
    length = 1.0
    if len(sizes) >= 2:
        length = max(1.0, math.sqrt(sizes[0] * sizes[1] / out), sizes[0] / out)
    elif sizes:
        length = max(1.0, sizes[0] / out)
    length = max(length, float(rows))
    # Sums of 16-bit numbers are made in float32: what grows with their length is the rounding of that.
    root = math.sqrt(length) if rounding < _EPSILON[torch.float16] else 1 + math.sqrt(length) * _EPSILON[torch.float32] / rounding
    return 4 * rounding * root


def difference(own: torch.Tensor, recorded: torch.Tensor) -> Difference:
    """Of two tensors of one shape. Infinite where something is not finite in one of them alone."""
    if not (own.is_floating_point() or own.is_complex()):
        wrong = int((own.cpu() != recorded.cpu().to(own.dtype)).sum())
        return Difference(wrong / max(1, own.numel()), float(wrong), float(own.numel()))
    kind = torch.complex128 if own.is_complex() or recorded.is_complex() else torch.float64
    n, b = own.detach().cpu().to(kind).reshape(-1), recorded.detach().cpu().to(kind).reshape(-1)
    if own.is_floating_point() and recorded.is_floating_point() and own.dtype != recorded.dtype:
        # The smallest number of a dtype, as a mask has it: in a smaller one the smallest of that, or an infinity.
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
    """A copy in the dtype of the target. A finite number that is too large for it becomes its largest: an additive mask of
    the smallest float32 is none of infinities in a smaller dtype."""
    value = recorded.to(device=device, dtype=dtype, copy=True)
    if recorded.is_floating_point() and dtype.is_floating_point and epsilon(dtype) > epsilon(recorded.dtype):
        made = torch.isinf(value) & torch.isfinite(recorded.to(device))
        if bool(made.any()):
            value[made] = torch.sign(value[made]) * torch.finfo(dtype).max
    return value


def signs(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random signs, drawn from a generator of ours."""
    drawn = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8).to(like.device, like.dtype)
    return drawn * 2 - 1
