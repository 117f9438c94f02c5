# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no tensors: dtypes, devices, memory formats, NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn

HAS_MODULE_KEYWORDS = torch.__version__ >= "2"  # before, no hook gives them

DTYPE = {"type": "torch.dtype", "value": "torch.float16"}
CPU = {"type": "torch.device", "value": "cpu"}
CHANNELS_LAST = {"type": "torch.memory_format", "format": "channels_last"}


class Takes(nn.Module):
    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.takes = Takes()

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.takes(torch.ones(2), *args, **kwargs)


def _recorded(dump: Any, *args: Any, section: dict | None = None, task: str = "statistics", **kwargs: Any) -> dict:
    debugger = dump.debugger(level="L0", task=task, section=section)
    net = Net()
    debugger.start(net)
    net(*args, **kwargs)
    debugger.stop()
    debugger.step()
    return dump.data()["Module.takes.Takes.forward.0"]


def test_dtype_device_and_memory_format_in_any_place_of_a_module(dump) -> None:
    named = {"dtype": torch.float16, "other": torch.float16, "where": torch.device("cpu"),
             "nested": [{"a": (torch.float16,)}], "fmt": torch.channels_last}
    entry = _recorded(dump, torch.float16, torch.device("cpu"), torch.channels_last, {"x": [torch.float16]},
                      **(named if HAS_MODULE_KEYWORDS else {}))
    assert entry["input_args"][1:] == [DTYPE, CPU, CHANNELS_LAST, {"x": [DTYPE]}]
    if HAS_MODULE_KEYWORDS:
        assert entry["input_kwargs"] == {"dtype": DTYPE, "other": DTYPE, "where": CPU, "nested": [{"a": [DTYPE]}],
                                         "fmt": CHANNELS_LAST}


def test_dtype_device_and_memory_format_of_an_api(dump) -> None:
    debugger = dump.debugger(level="L1")
    debugger.start()
    x = torch.ones(1, 2, 2, 2)
    x.to(torch.float16)
    x.to(torch.device("cpu"), torch.float16)
    x.to(memory_format=torch.channels_last)
    x.contiguous(memory_format=torch.channels_last)
    x.to(dtype=torch.float16, device="cpu")
    debugger.stop()
    debugger.step()
    data = dump.data()
    assert data["Tensor.to.0.forward"]["input_args"][1:] == [DTYPE]
    assert data["Tensor.to.1.forward"]["input_args"][1:] == [CPU, DTYPE]
    assert data["Tensor.to.2.forward"]["input_kwargs"] == {"memory_format": CHANNELS_LAST}
    assert data["Tensor.to.3.forward"]["input_kwargs"] == {"dtype": DTYPE, "device": CPU}


@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
def test_numpy_arrays_keep_their_statistics_in_every_summary_mode(dump, mode: str) -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6.0)[::2], np.arange(3), np.array([True, False]),
              np.array(3.5), np.array([3 + 4j, 0]), np.array([1.0, np.nan]), np.array([2**63], dtype=np.uint64)]
    entry = _recorded(dump, *arrays, np.zeros((0, 2)), np.array(["a", "bc"]), np.array([None]),
                      section={"summary_mode": mode})
    items = entry["input_args"][1:]
    for array, item in zip(arrays, items):
        values = np.abs(array) if array.dtype.kind == "c" else array
        norm = None if array.dtype.kind == "c" else np.linalg.norm(array)
        assert (item["type"], item["dtype"], item["shape"]) == ("numpy.ndarray", str(array.dtype), list(array.shape))
        assert [item["Max"], item["Min"], item["Mean"], item["Norm"]] == pytest.approx(
            [values.max(), values.min(), values.mean(), norm], nan_ok=True), item
        assert ("md5" in item) == (mode != "statistics")
    for item in items[len(arrays):]:
        assert [item.get(key) for key in ("Max", "Min", "Mean", "Norm")] == [None] * 4


def test_text_arrays_are_saved_as_npy(dump) -> None:
    arrays = [np.array(["a", "bcé"]), np.array([["x"], ["yz"]]), np.array([b"ab", b"c"]), np.array("alone"),
              np.array(["p", "q", "r"])[::2], np.array(["w"]).astype(">U2")]
    entry = _recorded(dump, *arrays, np.arange(3.0), np.array([], dtype="<U1"), task="tensor",
                      section={"scope": [], "list": [], "data_mode": ["all"]})
    directory = dump.rank_directory() / "dump_tensor_data"
    for index, (array, item) in enumerate(zip(arrays, entry["input_args"][1:]), 1):
        assert item["data_name"] == f"Module.takes.Takes.forward.0.input.{index}.npy"
        assert (item["dtype"], item["shape"], item["Max"]) == (str(array.dtype), list(array.shape), None)
        read = np.load(directory / item["data_name"])
        assert read.dtype == array.dtype and read.shape == array.shape and np.array_equal(read, array)
    numbers = entry["input_args"][len(arrays) + 1]
    assert numbers["data_name"].endswith(".pt") and torch.equal(
        torch.load(directory / numbers["data_name"]), torch.arange(3.0).double())
    assert "data_name" not in entry["input_args"][-1]
