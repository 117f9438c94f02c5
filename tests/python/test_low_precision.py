# SPDX-License-Identifier: Apache-2.0
"""Statistics of 8-bit floating-point tensors are those of a cast to float32, bit by bit; of sparse, quantized and float4 tensors those
of their values."""

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


@pytest.mark.skipif(not DTYPES, reason="this PyTorch has no 8-bit floats")
def test_extra_statistics_and_payloads(dump):
    debugger = dump.debugger(level="debug", task="tensor", section={"extra_statistics": ["counts", "std"]})
    tensor = torch.tensor([1.0, float("nan"), 0.0, -3.0, 500.0]).to(torch.float8_e5m2)
    debugger.save(tensor, "x")
    debugger.step()
    entry = dump.data(0, "debug.json")["x.0.debug"]
    assert (entry["NanCount"], entry["InfCount"], entry["ZeroCount"]) == (1, 0, 1), entry
    back = torch.load(dump.rank_directory() / "dump_tensor_data" / entry["data_name"])
    assert back.dtype == tensor.dtype and back.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


def _sparse(values: list[float]) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 2, 2], [1, 0, 0]]), torch.tensor(values), (3, 4))


def _float4() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


_FLOAT4 = [sign * value for sign in (1, -1) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
VALUES = {
    "coo": (lambda: _sparse([1.5, -2.0, 0.5]), lambda: _sparse([1.5, -2.0, 0.5]).to_dense()),
    "all negative": (lambda: _sparse([-1.0, -2.0, -3.0]), lambda: _sparse([-1.0, -2.0, -3.0]).to_dense()),
    "nan": (lambda: _sparse([1.0, math.nan, 0.5]), lambda: _sparse([1.0, math.nan, 0.5]).to_dense()),
    "inf": (lambda: _sparse([math.inf, 1.0, 0.5]), lambda: _sparse([math.inf, 1.0, 0.5]).to_dense()),
    "no value": (lambda: torch.sparse_coo_tensor(size=(3, 4)), lambda: torch.zeros(3, 4)),
    "csr": (lambda: torch.eye(4).mul(3).to_sparse_csr(), lambda: torch.eye(4) * 3),
    "bsr": (lambda: torch.eye(4).bfloat16().to_sparse_bsr((2, 2)), lambda: torch.eye(4)),
    "quint8": (lambda: torch.quantize_per_tensor(torch.arange(12.0).reshape(3, 4) / 7, 0.1, 3, torch.quint8),
               lambda: torch.quantize_per_tensor(torch.arange(12.0).reshape(3, 4) / 7, 0.1, 3, torch.quint8).dequantize()),
    "channels": (lambda: torch.quantize_per_channel(torch.arange(12.0).reshape(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), 0, torch.qint8),
                 lambda: torch.quantize_per_channel(torch.arange(12.0).reshape(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), 0, torch.qint8).dequantize()),
    **({"float4": (_float4, lambda: torch.tensor([_FLOAT4[nibble] for byte in range(256) for nibble in (byte & 15, byte >> 4)]))}
       if hasattr(torch, "float4_e2m1fn_x2") else {}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VALUES)
def test_statistics_of_the_values(dump, name):
    make, dense = VALUES[name]
    tensor, plain = make(), dense()
    debugger = dump.debugger(level="debug")
    debugger.save(tensor, "x")
    debugger.step()
    entry = dump.data(0, "debug.json")["x.0.debug"]
    assert entry["shape"] == list(tensor.shape) and entry["dtype"] == str(tensor.dtype)
    for statistic, wanted in (("Max", plain.max()), ("Min", plain.min()), ("Mean", plain.mean()), ("Norm", plain.norm())):
        assert entry[statistic] == pytest.approx(wanted.item(), rel=1e-6, nan_ok=True), statistic


def test_the_sparse_gradient_of_an_embedding_stays_as_it_is(dump):
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    debugger = dump.debugger(level="debug")
    embedding(torch.tensor([1, 1, 3])).sum().backward()
    debugger.save(embedding.weight.grad, "grad")
    debugger.step()
    gradient = embedding.weight.grad
    assert not gradient.is_coalesced() and gradient._nnz() == 3
    entry = dump.data(0, "debug.json")["grad.0.debug"]
    assert (entry["Max"], entry["Min"], entry["Mean"]) == (2.0, 0.0, 0.3)
