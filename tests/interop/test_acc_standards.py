# SPDX-License-Identifier: Apache-2.0
"""rankprobe.acc_standards beside msprobe's own classes: metrics, ratios and verdicts on the same tensors."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from msprobe.core.common.const import CompareConst
from msprobe.pytorch.api_accuracy_checker.compare import api_precision_compare as peer_compare
from msprobe.pytorch.api_accuracy_checker.compare.algorithm import calc_ulp_err_fp8, get_abs_bench_with_eps
from msprobe.pytorch.api_accuracy_checker.compare.compare_utils import ApiPrecisionCompareColumn as Column
from msprobe.pytorch.api_accuracy_checker.precision_standard import absolute_threshold, accumulative_error_compare, \
    benchmark_compare, binary_consistency, thousandth_standard, ulp_compare
from msprobe.pytorch.api_accuracy_checker.precision_standard.standard_register import StandardRegistry

from rankprobe import acc_standards as ours

# numpy's, about infinities in msprobe's formulas
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MEASURES = {"benchmark": benchmark_compare.BenchmarkCompare, "absolute": absolute_threshold.AbsolutethdCompare,
            "accumulative": accumulative_error_compare.AccumulativeErrorCompare, "ulp": ulp_compare.UlpCompare,
            "thousandth": thousandth_standard.ThousandthStdCompare, "binary": binary_consistency.BinaryCompare}
# Our name, theirs, the column of their csv.
NAMES = {
    "benchmark": [("small_share", "small_value_err_ratio", Column.SMALL_VALUE_ERROR_RATE), ("rmse", "rmse", Column.RMSE),
                  ("max_rel", "max_rel_error", Column.MAX_REL_ERR), ("mean_rel", "mean_rel_error", Column.MEAN_REL_ERR),
                  ("balance", "eb", Column.EB)],
    "absolute": [("special_share", "inf_nan_error_ratio", Column.INF_NAN_ERROR_RATIO),
                 ("relative_share", "rel_err_ratio", Column.REL_ERR_RATIO),
                 ("small_share", "abs_err_ratio", Column.ABS_ERR_RATIO)],
    "ulp": [("mean_ulp", "mean_ulp_error", Column.MEAN_ULP_ERR), ("max_ulp", "max_ulp_error", None),
            ("ulp_share", "ulp_error_proportion", Column.ULP_ERR_PROPORTION)],
    "thousandth": [("thousandth_share", "rel_err_thousandth", Column.REL_ERR_THOUSANDTH)],
    "binary": [("mismatch_share", "error_rate", Column.ERROR_RATE)],
}
NAMES["accumulative"] = [*NAMES["absolute"], ("balance", "eb", Column.EB)]
JUDGES = {"benchmark": peer_compare.record_benchmark_compare_result,
          "absolute": peer_compare.record_absolute_threshold_result,
          "accumulative": peer_compare.record_accumulative_error_compare_result,
          "ulp": peer_compare.record_ulp_compare_result, "thousandth": peer_compare.record_thousandth_threshold_result,
          "binary": peer_compare.record_binary_consistency_result}


def results(dtype: torch.dtype, noise: float, seed: int, *, small: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    """A device's result and the golden one: sizes over many powers of two, some near zero."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    golden = torch.randn(2000, generator=generator, dtype=wide) * torch.exp2(
        torch.randint(-6, 6, (2000,), generator=generator).to(wide))
    golden[:int(2000 * small)] *= 2.0**-22
    error = 1 + noise * torch.randn(2000, generator=generator, dtype=wide)
    return (golden * error).to(dtype), golden


def peer_metrics(standard: str, value: torch.Tensor, golden: torch.Tensor) -> dict[str, float]:
    dtype = value.dtype
    if dtype == torch.bfloat16:
        value, golden = value.float(), golden.float()
    found: dict[str, float] = {}
    bench, device = golden.numpy(), value.numpy()
    _, scale = get_abs_bench_with_eps(bench, dtype)
    data = SimpleNamespace(bench_output=bench, device_output=device, dtype=dtype, rel_err_orign=abs(device - bench) / scale,
                           compare_column=SimpleNamespace(update=found.update))
    MEASURES[standard](data).compare()
    return found


def peer_status(standard: str, op: str, dtype: torch.dtype, device: dict, reference: dict) -> str:
    def row(values: dict) -> dict:
        return {column: str(values[theirs]) for _, theirs, column in NAMES[standard] if column} | {
            Column.DEVICE_DTYPE: str(dtype)}

    column = peer_compare.ApiPrecisionOutputColumn()
    data = SimpleNamespace(row_npu=row(device), row_gpu=row(reference), dtype=str(dtype), compare_column=column, api_name=op)
    return JUDGES[standard](data)


def assert_same(standard: str, mine: dict[str, float], theirs: dict[str, float]) -> None:
    for name, other, _ in NAMES[standard]:
        # Their root mean square has two terms of 1e-4 against division by zero; here it is the mean.
        tolerance = 1e-3 if name == "rmse" else 1e-5
        assert mine[name] == pytest.approx(float(theirs[other]), rel=tolerance, abs=1e-12, nan_ok=True), (standard, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("standard", MEASURES)
def test_metrics(standard: str, dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    for seed, noise in enumerate((0.0, eps / 2, 3 * eps, 40 * eps)):
        value, golden = results(dtype, noise, seed)
        if standard == "binary":
            golden = golden.to(dtype)
        assert_same(standard, ours.metrics(standard, value, golden), peer_metrics(standard, value, golden))


@pytest.mark.parametrize("standard", MEASURES)
def test_verdicts(standard: str) -> None:
    """Devices of every quality beside each other, in each tier."""
    seen = set()
    for dtype in DTYPES:
        eps = torch.finfo(dtype).eps
        noises = (0.0, eps / 2, eps, 1.6 * eps, 3 * eps, 8 * eps, 64 * eps, 0.05)
        for i, noise in enumerate(noises):
            device, golden = results(dtype, noise, 7, small=0.1 * (i % 3))
            if standard == "binary":
                golden = golden.to(dtype)
            of_device = peer_metrics(standard, device, golden)
            for other in noises[:6]:
                reference, _ = results(dtype, other, 7, small=0.1 * (i % 3))
                of_reference = peer_metrics(standard, reference, golden)
                for op in ("relu", "embedding", "matmul"):
                    mine = ours.compare_devices(op, device, reference, golden, standard=standard)
                    theirs = peer_status(standard, op, dtype, of_device, of_reference)
                    assert mine.status == theirs, (op, dtype, noise, other, mine)
                    seen.add(theirs)
    assert seen == {CompareConst.PASS, CompareConst.ERROR}


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_of_the_tiers(dtype: torch.dtype) -> None:
    """Metrics just under and just over each limit."""
    base = dict.fromkeys(("small_share", "rmse", "max_rel", "mean_rel", "balance"), 0.5)
    for op in ("relu", "scatter_", "addmm", "npu_rms_norm"):
        for name, _, _ in NAMES["benchmark"]:
            for times in (0.1, 1.19, 1.21, 1.49, 1.51, 1.99, 2.01, 4.9, 5.1, 9.9, 10.1, math.inf, math.nan):
                for low in (0.5, 1e-9, math.inf, math.nan):
                    device, reference = base | {name: times * 0.5}, base | {name: low}
                    peer = [{t: values[n] for n, t, _ in NAMES["benchmark"]} for values in (device, reference)]
                    assert ours.judge("benchmark", op, dtype, device, reference).status == \
                        peer_status("benchmark", op, dtype, *peer), (op, name, times, low)


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_of_ulp(dtype: torch.dtype) -> None:
    values = (0.0, 0.0009, 0.0011, 0.049, 0.051, 0.9, math.inf, math.nan)
    for mean in (1.0, 63.9, 64.1, math.inf, math.nan):
        for other_mean in (1.0, math.inf, math.nan):
            for share in values[:6]:
                for other_share in values[:6]:
                    device = {"mean_ulp": mean, "max_ulp": 0.0, "ulp_share": share}
                    reference = {"mean_ulp": other_mean, "max_ulp": 0.0, "ulp_share": other_share}
                    peer = [{t: v[n] for n, t, _ in NAMES["ulp"]} for v in (device, reference)]
                    assert ours.judge("ulp", "mm", dtype, device, reference).status == \
                        peer_status("ulp", "mm", dtype, *peer), (mean, other_mean, share, other_share)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("standard", ["absolute", "accumulative"])
def test_infinities(standard: str, dtype: torch.dtype) -> None:
    value, golden = results(dtype, 0.0, 3)
    limit = torch.finfo(dtype).max
    for i, (n, g) in enumerate(((math.inf, math.inf), (math.nan, math.nan), (math.inf, limit), (math.inf, 1.0),
                                (math.nan, 1.0), (-math.inf, math.inf), (1.0, math.nan), (limit, math.inf))):
        value[-1 - i], golden[-1 - i] = n, g
        assert_same(standard, ours.metrics(standard, value, golden), peer_metrics(standard, value, golden))


@pytest.mark.skipif(not ours.FLOAT8, reason="no float8 in this PyTorch")
def test_float8() -> None:
    golden = results(torch.float32, 0.0, 5)[1] * 100
    for dtype in ours.FLOAT8:
        value = (golden * 1.1).float().to(dtype)
        theirs = calc_ulp_err_fp8(golden.numpy(), value.double().numpy())
        mine = ours.metrics("ulp", value, golden)
        assert mine["max_ulp"] == pytest.approx(theirs.max())
        assert mine["ulp_share"] == pytest.approx((theirs > 1).mean())


def test_choice_of_the_standard() -> None:
    names = {CompareConst.BENCHMARK: "benchmark", CompareConst.ULP_COMPARE: "ulp",
             CompareConst.ABSOLUTE_THRESHOLD: "absolute", CompareConst.BINARY_CONSISTENCY: "binary"}
    registry = StandardRegistry()
    for op in ("mul", "relu", "matmul", "conv2d", "softmax"):
        for dtype in (*DTYPES, torch.float64, torch.int32, torch.int64, torch.bool, *ours.FLOAT8):
            for input_dtype in (torch.float32, torch.int64, *ours.FLOAT8):
                theirs = names[registry._get_standard_category(op, dtype, input_dtype)]
                assert ours.standard_of(dtype, input_dtype) == theirs, (op, dtype, input_dtype)


def test_a_nan_of_the_device_alone() -> None:
    """Intended difference: msprobe's benchmark standard leaves out what is not finite, so a lone NaN passes there."""
    device, golden = results(torch.float32, 1e-7, 1)
    reference = device.clone()
    device[5] = math.nan
    assert peer_status("benchmark", "relu", torch.float32, peer_metrics("benchmark", device, golden),
                       peer_metrics("benchmark", reference, golden)) == CompareConst.PASS
    assert ours.compare_devices("relu", device, reference, golden).faults == ("special_share",)


def test_what_cannot_be_judged() -> None:
    x = torch.ones(3)
    assert ours.compare_devices("relu", x.double(), x.double(), x.double()).status == "SKIP"
    assert ours.compare_devices("relu", x[:0], x[:0], x[:0]).status == "SKIP"
    assert ours.compare_devices("relu", x, x.half(), x.double()).faults == ("dtype",)
    assert ours.compare_devices("relu", x, x, torch.ones(4)).faults == ("shape",)
    assert ours.compare_devices("sort", torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1, 3])).status == "error"
