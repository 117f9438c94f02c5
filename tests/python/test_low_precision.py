# SPDX-License-Identifier: Apache-2.0
"""Statistics of 8-bit floating-point tensors are those of a cast to float32, bit by bit."""

from __future__ import annotations

import json
import math

import pytest
import torch

DTYPES = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
          if hasattr(torch, name)]


def _tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    patterns = torch.arange(256, dtype=torch.uint8).view(dtype)
    real = patterns[patterns.float().isfinite()]
    generator = torch.Generator().manual_seed(1)
    many = real[torch.randint(len(real), (64, 96), generator=generator)]
    return {**{f"pattern{bits}": patterns[bits] for bits in range(256)}, "all": patterns, "finite": real, "many": many,
            "strided": many[:, ::3], "transposed": many.t(), "expanded": many[:1].expand(5, 96), "empty": many[:0],
            "zeros": torch.zeros(3).to(dtype), "half": many[:, :48]}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_statistics_are_those_of_a_cast(dump, dtype: torch.dtype):
    debugger = dump.debugger(level="debug")
    tensors = _tensors(dtype)
    for name, tensor in tensors.items():
        debugger.save(tensor, f"low_{name}")
        debugger.save(tensor.float(), f"cast_{name}")
    debugger.step()
    data = dump.data(0, "debug.json")
    for name in tensors:
        low, cast = data[f"low_{name}.0.debug"], data[f"cast_{name}.0.debug"]
        assert low["dtype"] == str(dtype)
        for statistic in ("Max", "Min", "Mean", "Norm"):
            a, b = low[statistic], cast[statistic]
            assert json.dumps(a) == json.dumps(b) or (math.isnan(a) and math.isnan(b)), (name, statistic, a, b)
    assert data["low_finite.0.debug"]["Max"] == torch.finfo(dtype).max


def test_extra_statistics_and_payloads(dump):
    debugger = dump.debugger(level="debug", task="tensor", section={"extra_statistics": ["counts", "std"]})
    tensor = torch.tensor([1.0, float("nan"), 0.0, -3.0, 500.0]).to(torch.float8_e5m2)
    debugger.save(tensor, "x")
    debugger.step()
    entry = dump.data(0, "debug.json")["x.0.debug"]
    assert (entry["NanCount"], entry["InfCount"], entry["ZeroCount"]) == (1, 0, 1), entry
    back = torch.load(dump.rank_directory() / "dump_tensor_data" / entry["data_name"])
    assert back.dtype == tensor.dtype and back.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()
