# SPDX-License-Identifier: Apache-2.0
"""Rules of acc_check that compare a device's results with those of a second device.

Both devices ran the same call; `golden` is the result in a higher precision (float64 for float32, else float32). The
error of each device is measured against `golden`, and the verdict depends on the ratio of the device's error to the
reference's:

    result = compare_devices("matmul", device, reference, golden)
    result.status, result.ratios["rmse"]       # "pass", 1.02

The functions are pure and take CPU tensors; no device is needed.
"""

from __future__ import annotations

import dataclasses
import math

import torch

EMPTY = "empty"
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
# The oldest supported PyTorch lacks the float8 types.
FLOAT8 = tuple(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name))


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Limits of one dtype. An element with |golden| <= small is judged by its absolute error, others by their relative error."""

    small: float = 2**-20
    atol_absolute: float = 2**-30  # for small elements in standard "absolute"
    atol_benchmark: float = 2**-30  # for small elements in standard "benchmark"
    rtol: float = 2**-20
    accumulated: float = 2**-11  # absolute and relative bound in standard "accumulative"
    balance: float = 2**-14  # for standard "accumulative"
    least_error: float = 2**-14  # a reference's error counts as at least this


_BOUNDS = {
    torch.float16: Bounds(2**-10, 2**-16, 1e-16, 2**-10, 2**-8, 2**-20, 2**-11),
    torch.bfloat16: Bounds(2**-10, 1e-16, 1e-16, 2**-8, 2**-7, 2**-7, 2**-8),
}


def bounds_of(dtype: torch.dtype) -> Bounds:
    return _BOUNDS.get(dtype, Bounds())


# By dtype: mantissa bits and smallest exponent.
_ULP = {torch.float16: (10, -14), torch.bfloat16: (7, -126), torch.float32: (23, -126)}

# By tier: limits of the ratio to the reference's error, for max_rel, mean_rel, rmse.
_TIERS = ((10.0, 2.0, 2.0), (5.0, 1.5, 1.5), (2.0, 1.2, 1.2))
_TIER_1 = {"embedding", "npu_fusion_attention", "npu_fusion_attention_grad", "scatter_", "scatter_add_"}
_TIER_2 = {"addmm", "matmul", "mm", "layer_norm", "GELU", "index", "one_hot", "sum", "nonzero", "npu_rms_norm",
           "npu_rms_norm_backward", "npu_cross_entropy_loss", "npu_cross_entropy_loss_backward"}
_SHARE_LIMIT = 2.0  # limit of the ratio for small_share and balance


def tier_of(op: str) -> int:
    """Returns the tier of an op: 0, 1 or 2. A higher tier allows less error."""
    return 2 if op in _TIER_2 else 1 if op in _TIER_1 else 0


def standard_of(dtype: torch.dtype, input_dtype: torch.dtype | None = None) -> str:
    """Returns the standard for an output of `dtype`: "benchmark", "ulp", "absolute" or "binary"."""
    if dtype in FLOAT8:
        return "ulp"
    if input_dtype in FLOAT8:
        return "absolute"
    return "benchmark" if dtype in (*FLOATS, torch.float64) else "binary"


@dataclasses.dataclass
class _Errors:
    """Elementwise errors of a flattened tensor, in the wider of the two precisions."""

    dtype: torch.dtype
    value: torch.Tensor
    golden: torch.Tensor
    finite: torch.Tensor
    error: torch.Tensor
    relative: torch.Tensor

    @classmethod
    def of(cls, value: torch.Tensor, golden: torch.Tensor) -> _Errors:
        if value.shape != golden.shape:
            raise ValueError(f"shape {list(value.shape)} against {list(golden.shape)}")
        dtype = value.dtype
        if dtype == torch.bfloat16:  # Computes in float32, but keeps the eps of bfloat16.
            value, golden = value.float(), golden.float()
        eps = 2**-8 if dtype == torch.bfloat16 else torch.finfo(golden.dtype).eps
        wide = torch.promote_types(value.dtype, golden.dtype)
        finite = torch.isfinite(value) & torch.isfinite(golden.to(value.dtype))
        value, golden = value.reshape(-1), golden.reshape(-1)
        error = (value.to(wide) - golden.to(wide)).abs()
        return cls(dtype, value, golden, finite.reshape(-1), error, error / (golden.abs() + eps).to(wide))

    def small(self, limit: float) -> torch.Tensor:
        return self.finite & (self.golden.abs() <= limit)


def _share(mask: torch.Tensor, of: torch.Tensor) -> float:
    count = int(of.sum())
    return int((mask & of).sum()) / count if count else 0.0


def _balance(errors: _Errors) -> float:
    difference = errors.value - errors.golden.to(errors.value.dtype)
    return abs(int((difference > 0).sum()) - int((difference < 0).sum())) / errors.value.numel()


def _benchmark_metrics(errors: _Errors) -> dict[str, float]:
    bounds = bounds_of(errors.dtype)
    small = errors.small(bounds.small)
    normal = errors.finite & ~small
    relative, error = errors.relative[normal].double(), errors.error[normal].double()
    some = relative.numel() > 0
    return {"small_share": _share(errors.error > bounds.atol_benchmark, small),
            "rmse": float(error.square().mean().sqrt()) if some else 0.0,
            "max_rel": float(relative.max()) if some else 0.0, "mean_rel": float(relative.mean()) if some else 0.0,
            "balance": _balance(errors),
            # Share of the elements that are finite on exactly one side.
            "special_share": float((torch.isfinite(errors.value) != torch.isfinite(
                errors.golden.to(errors.value.dtype))).double().mean())}


def _special_share(errors: _Errors, rtol: float) -> float:
    """Returns the share, among elements that are not finite on both sides, of those that differ when clamped to the dtype's range."""
    special = ~errors.finite
    limit = torch.finfo(errors.dtype).max
    golden = errors.golden.to(errors.value.dtype)
    cut = [t.clamp(-limit, limit) for t in (errors.value, golden)]
    scale = errors.golden.abs() + (2**-8 if errors.dtype == torch.bfloat16 else torch.finfo(errors.golden.dtype).eps)
    near = (cut[0] - cut[1]).abs() / scale <= rtol
    return _share(~(near | (torch.isnan(errors.value) & torch.isnan(golden))), special)


def _bounded_metrics(errors: _Errors, small_limit: float, rtol: float, atol: float) -> dict[str, float]:
    small = errors.small(small_limit)
    return {"special_share": _special_share(errors, rtol),
            "relative_share": _share(errors.relative > rtol, errors.finite & ~small),
            "small_share": _share(errors.error > atol, small)}


def _ulp_errors(errors: _Errors) -> torch.Tensor:
    mantissa, least = _ULP[errors.dtype]
    value, golden = errors.value.double(), errors.golden.double()
    # frexp has mantissas in [0.5, 1), so its exponent is one more than that of IEEE 754. Zero gets exponent 0.
    exponent = torch.where(golden == 0, torch.zeros_like(golden), torch.frexp(golden).exponent.double() - 1)
    return (value - golden).abs() * torch.exp2(mantissa - exponent.clamp_min(least))


def _ulp8_errors(value: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
    """Returns the errors in ulps of an 8-bit float. The number of mantissa bits shrinks with the distance of the exponent from 0;
    beyond 2^15 there are none, and exponents are compared."""
    value, golden = value.double().reshape(-1), golden.double().reshape(-1)
    tiny = 2.0**-1000
    exponent = torch.log2(golden.abs() + tiny).clamp_min(-22)
    whole = torch.floor(exponent)
    bits = (whole.abs() <= 15).double() + (whole.abs() <= 7).double() + (whole.abs() <= 3).double()
    scaled = (value - golden) * torch.exp2(bits - whole)
    signs = [torch.where(t >= 0, 1.0, -1.0).double() for t in (value, golden)]
    by_exponent = torch.log2(value.abs() + tiny) * signs[0] - exponent * signs[1]
    return torch.where(bits == 0, by_exponent, scaled)


def metrics(standard: str, value: torch.Tensor, golden: torch.Tensor) -> dict[str, float]:
    """Returns the errors of one device's tensor by a standard: "benchmark", "absolute", "accumulative", "ulp", "thousandth"
    or "binary". `value` and `golden` have the same shape. Raises ValueError if the shapes differ, if there are no elements, or if
    the standard does not support the dtype."""
    if value.numel() == 0 and value.shape == golden.shape:
        raise ValueError(EMPTY)
    if standard == "binary":
        if value.shape != golden.shape:
            raise ValueError(f"shape {list(value.shape)} against {list(golden.shape)}")
        return {"mismatch_share": float((value != golden).double().mean())}
    if standard == "ulp" and value.dtype in FLOAT8:
        ulp = _ulp8_errors(value, golden)
        return {"max_ulp": float(ulp.max()), "mean_ulp": float(ulp.mean()), "ulp_share": float((ulp > 1).double().mean())}
    if value.dtype not in FLOATS:
        raise ValueError(f"{standard}: no bounds for {value.dtype}")
    errors = _Errors.of(value, golden)
    bounds = bounds_of(value.dtype)
    if standard == "benchmark":
        return _benchmark_metrics(errors)
    if standard == "absolute":
        return _bounded_metrics(errors, bounds.small, bounds.rtol, bounds.atol_absolute)
    if standard == "accumulative":
        return _bounded_metrics(errors, 1, bounds.accumulated, bounds.accumulated) | {"balance": _balance(errors)}
    if standard == "ulp":
        ulp = _ulp_errors(errors)
        limit = 32 if value.dtype == torch.float32 else 1
        return {"max_ulp": float(ulp.max()), "mean_ulp": float(ulp.mean()),
                "ulp_share": float((ulp > limit).double().mean())}
    if standard == "thousandth":
        return {"thousandth_share": float((errors.relative < 0.001).double().mean())}
    raise ValueError(f"no standard {standard!r}")


def ratio_of(device: float, reference: float, dtype: torch.dtype) -> float | None:
    """Returns the ratio of the device's error to the reference's; None if both are the same infinity or NaN, inf if only one is."""
    if math.isfinite(device) and math.isfinite(reference):
        return abs(device) / max(abs(reference), bounds_of(dtype).least_error)
    same = device == reference or (math.isnan(device) and math.isnan(reference))
    return None if same else math.inf


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Verdict on an output. `status`: "pass", "error" or "SKIP"; `faults`: the metrics that exceed their limit."""

    standard: str
    status: str
    device: dict[str, float]
    reference: dict[str, float]
    ratios: dict[str, float | None]
    faults: tuple[str, ...] = ()
    message: str = ""


def judge(standard: str, op: str, dtype: torch.dtype, device: dict[str, float],
          reference: dict[str, float]) -> Judgement:
    """Judges the metrics of two devices for an output of `op`. Only "benchmark" and "ulp" use those of the reference."""
    ratios: dict[str, float | None] = {}
    faults: list[str] = []
    if standard == "benchmark":
        limits = dict(zip(("max_rel", "mean_rel", "rmse"), _TIERS[tier_of(op)])) | {"small_share": _SHARE_LIMIT}
        ratios = {name: ratio_of(device[name], reference[name], dtype) for name in (*limits, "balance")}
        faults = [name for name, limit in limits.items() if (ratio := ratios[name]) is not None and ratio > limit]
        # Relative errors exclude elements that are not finite, but a device that alone produces NaN must not pass.
        if device.get("special_share", 0.0) > reference.get("special_share", 0.0):
            faults.append("special_share")
    elif standard == "ulp":
        share_limit = 0.05 if dtype == torch.float32 else 0.001
        fine = device["ulp_share"] < share_limit
        if dtype not in FLOAT8:
            mean, other = device["mean_ulp"], reference["mean_ulp"]
            ratios["ulp_share"] = ratio_of(device["ulp_share"], reference["ulp_share"], dtype)
            if not (math.isfinite(mean) and math.isfinite(other)):
                # The mean cannot be compared: both sides must agree in that, and the shares still decide.
                alike = mean == other or (math.isnan(mean) and math.isnan(other))
                fine = fine and alike or alike and (ratios["ulp_share"] or 0.0) < 1
            else:
                fine = fine or (dtype == torch.float32 and mean < 64) or (ratios["ulp_share"] or 0.0) < 1
        faults = [] if fine else ["ulp_share"]
    elif standard == "thousandth":
        faults = [] if device["thousandth_share"] >= 0.999 else ["thousandth_share"]
    else:
        limits = {"balance": bounds_of(dtype).balance}
        faults = [name for name, value in device.items() if value > limits.get(name, 0.0)]
    return Judgement(standard, "error" if faults else "pass", device, reference, ratios, tuple(faults))


def compare_devices(op: str, device: torch.Tensor, reference: torch.Tensor, golden: torch.Tensor, *,
                    standard: str | None = None, input_dtype: torch.dtype | None = None) -> Judgement:
    """Judges `device` relative to `reference`, both results of `op` with the shape of `golden`, by `standard`; None selects the
    standard for the dtype. A wrong dtype or shape is an error in the result; nothing is raised."""
    standard = standard or standard_of(device.dtype, input_dtype)
    if device.dtype == torch.float64 or device.dtype.is_complex:
        return Judgement(standard, "SKIP", {}, {}, {}, message=f"{device.dtype} has no standard")
    if device.dtype != reference.dtype:
        return Judgement(standard, "error", {}, {}, {}, ("dtype",), f"{device.dtype} against {reference.dtype}")
    try:
        return judge(standard, op, device.dtype, metrics(standard, device, golden),
                     metrics(standard, reference, golden))
    except ValueError as fault:
        if str(fault) == EMPTY:
            return Judgement(standard, "SKIP", {}, {}, {}, message="no elements")
        return Judgement(standard, "error", {}, {}, {}, ("shape",), str(fault))
