# SPDX-License-Identifier: Apache-2.0
"""Tensors on devices: asked for in the stream, delivered at the end of the step.

Where there is a GPU the real thing runs. Everywhere else the host plays a device
whose work is done only when its event is waited for: the same reductions, slots
and deliveries, and whoever reads too early reads what was never written.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import pathlib
import signal

import pytest
import torch
import torch.nn.functional as F

from rankprobe.pytorch import PrecisionDebugger, _bindings, _device

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class _Late(torch.Tensor):
    """Host memory that is written when the device gets to it."""

    def copy_(self, source, non_blocking=False):
        assert non_blocking
        taken = source.detach().clone()
        LateDevice.queue.append(lambda: torch.Tensor.copy_(self, taken))
        return self


class LateDevice:
    """torch.cuda's part of the interface, for a device that is the host."""

    queue: list = []
    waits = 0
    capturing = False

    class Event:
        def record(self, _stream):
            self.until = len(LateDevice.queue)

        def synchronize(self):
            LateDevice.waits += 1
            for work in LateDevice.queue[:self.until]:
                work()
            LateDevice.queue[:self.until] = [lambda: None] * self.until

    @staticmethod
    def current_stream(_device):
        return "stream"

    @staticmethod
    def is_current_stream_capturing():
        return LateDevice.capturing

    device = staticmethod(lambda _device: contextlib.nullcontext())


@pytest.fixture
def host_as_device(monkeypatch):
    """Every tensor of the process lies on a device."""
    LateDevice.queue, LateDevice.waits, LateDevice.capturing = [], 0, False
    real = _bindings.bindings

    def patched(devices):
        devices._find_backend = lambda _device: LateDevice
        devices.holds = lambda _tensor: True
        patched.reader = devices
        return {**real(devices), "dlpack_table": None, "is_cpu": property(lambda _tensor: False)}

    monkeypatch.setattr(_bindings, "bindings", patched)
    monkeypatch.setattr(_device, "pinned", lambda shape, dtype: torch.full(
        tuple(shape), 77, device="cpu").to(dtype).as_subclass(_Late))
    return patched


class FakeCuda:
    """agent/runtime/device/testing/fake_cuda.cc: a driver that plays a GPU on the host."""

    PATH = str(pathlib.Path(os.environ["RANKPROBE_BUILD_DIR"]) / "agent/runtime/device/librankprobe_fake_cuda.so")

    def __init__(self) -> None:
        self._library = ctypes.CDLL(self.PATH)
        self._library.fake_cuda_reset()

    def fail(self, function: str, result: int = 2) -> None:
        self._library.fake_cuda_fail(function.encode(), result)

    def count(self, function: str) -> int:
        return self._library.fake_cuda_count(function.encode())

    def capture(self, stream: int) -> None:
        self._library.fake_cuda_capture(ctypes.c_void_p(stream))


@pytest.fixture
def host_as_cuda(host_as_device, monkeypatch):
    """The same, and the device is a CUDA device: our kernel reduces there."""
    if torch.cuda.is_available() and not os.path.exists(FakeCuda.PATH):
        pytest.skip("a wheel has no driver that plays a GPU, and here is one")
    before = _bindings.bindings
    monkeypatch.setattr(_device, "CUDA_DRIVER", FakeCuda.PATH)
    monkeypatch.setattr(_device, "current_raw_stream", lambda _device: 0)
    monkeypatch.setattr(_device, "cuda_device", lambda _tensor: 0)
    monkeypatch.setattr(_bindings, "bindings", lambda devices: {
        **before(devices), "is_cuda": property(lambda _tensor: True), "get_device": lambda _tensor: 0})
    return FakeCuda()


def _values(device: str) -> dict:
    nan, inf = float("nan"), float("inf")
    x = torch.linspace(-3, 5, 24, device=device).reshape(4, 6)
    return {
        "float": x, "transposed": x.t()[1:], "strided": x[:, ::2], "expanded": x[:, :1].expand(4, 9),
        "nan": torch.tensor([1.0, nan, 2.0], device=device), "inf": torch.tensor([inf, -inf, 1.0], device=device),
        "bfloat": x.bfloat16(), "double": x.double(), "int": (x * 100).long(), "large": torch.tensor(
            [2**62 + 1, -2**62 - 1], device=device), "byte": (x * 10).abs().to(torch.uint8),
        "bool": x > 1, "none_true": x > 99, "complex": torch.complex(x, -x), "scalar": x[2, 3],
        "scalar_int": torch.tensor(-7, device=device), "scalar_bool": torch.tensor(True, device=device),
        "empty": x[:0], "zero": torch.zeros(3, device=device), "relu": F.relu(x - 10),
        # Older PyTorch lacks them.
        **{name: (x * 7).t().to(getattr(torch, name)) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)},
    }


def _record(debugger, device: str) -> None:
    """One step: calls, a module, gradients, in-place writes, a list."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(inplace=True), torch.nn.Linear(5, 2)).to(device)
    values = _values(device)
    debugger.start(model=net)
    for value in values.values():
        torch.clone(value)
    x = values["float"].clone()
    y = torch.add(x, 1)
    y.mul_(2)
    torch.cat([x, y])
    net(x).square().mean().backward()
    debugger.stop()
    debugger.step()


def _tensors(node) -> list:
    """Every tensor of a dump.json, in order."""
    if isinstance(node, list):
        return [t for item in node for t in _tensors(item)]
    if isinstance(node, dict):
        return [node] if node.get("type") == "torch.Tensor" else [t for v in node.values() for t in _tensors(v)]
    return []


def _close(a, b) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-7)
    return a == b and type(a) is type(b)


def _check_same(ours: dict, expected: dict) -> None:
    assert list(ours["data"]) == list(expected["data"])
    for entry, call in expected["data"].items():
        for got, want in zip(_tensors(ours["data"][entry]), _tensors(call), strict=True):
            assert got.keys() == want.keys(), entry
            for key in want:
                close = key in ("Mean", "Norm")
                same = _close(got[key], want[key]) if close else json.dumps(got[key]) == json.dumps(want[key])
                assert same, (entry, key, got, want)


CASES = {
    "statistics": dict(level="mix"),
    "md5": dict(level="L1", section={"summary_mode": "md5"}),
    "xor": dict(level="L1", section={"summary_mode": "xor"}),
    "high": dict(level="L1", precision="high"),
    "some_payloads": dict(level="L1", section={"tensor_list": ["relu"]}),
    "tensor": dict(level="mix", task="tensor"),
}


def _run(make_dump, directory, case: dict, device: str) -> tuple[dict, dict]:
    directory.mkdir()
    dump = make_dump(directory)
    debugger = dump.debugger(**case)
    _record(debugger, device)
    PrecisionDebugger.wait_exported()
    where = dump.rank_directory()
    payloads = {}
    for path in sorted(where.glob("dump_tensor_data/*.pt")):
        payloads[path.name] = torch.load(path)
    faults = debugger._capture.faults
    debugger.close()
    assert faults == 0
    return json.loads((where / "dump.json").read_text()), payloads


def _check_payloads(ours: dict, expected: dict) -> None:
    assert ours.keys() == expected.keys()
    for name, want in expected.items():
        got = ours[name]
        assert got.dtype == want.dtype and got.shape == want.shape, name
        assert bytes(got.flatten().view(torch.uint8).tolist()) == bytes(want.flatten().view(torch.uint8).tolist()), name


@pytest.mark.parametrize("kind", ["host_as_device", "host_as_cuda"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_device_says_is_what_the_host_reads(dump, tmp_path, request, case, kind) -> None:
    expected, expected_payloads = _run(type(dump), tmp_path / "host", case, "cpu")
    cuda = request.getfixturevalue(kind)
    ours, payloads = _run(type(dump), tmp_path / "device", case, "cpu")
    _check_same(ours, expected)
    _check_payloads(payloads, expected_payloads)
    assert not case.get("task") == "tensor" or payloads
    # Delivered once, at the end of the step; once more for what came after stop.
    if kind == "host_as_device":
        assert 1 <= LateDevice.waits <= 2
    elif case is CASES["statistics"]:
        assert cuda.count("cuLaunchKernel") > 50 and 1 <= cuda.count("cuEventSynchronize") <= 2


@needs_gpu
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_gpu_says_what_the_host_reads(dump, tmp_path, case) -> None:
    """Calls whose result does not depend on the device; torch.add and the like."""
    expected, expected_payloads = _run(type(dump), tmp_path / "host", case, "cpu")
    ours, payloads = _run(type(dump), tmp_path / "gpu", case, "cuda")
    exact = ("clone", "add", "mul_", "cat", "relu")
    for document in (ours, expected):
        document["data"] = {k: v for k, v in document["data"].items()
                            if k.endswith("forward") and k.split(".")[1] in exact and "relu" not in k}
    _check_same(ours, expected)
    keep = [name for name in expected_payloads if name.split(".")[1] == "clone"]
    _check_payloads({n: payloads[n] for n in keep}, {n: expected_payloads[n] for n in keep})


@needs_gpu
def test_a_gpu_is_not_waited_for_before_the_end_of_the_step(dump) -> None:
    """PyTorch itself raises where a call waits for the device."""
    debugger = dump.debugger(level="mix")
    x = torch.randn(512, 512, device="cuda", requires_grad=True)
    torch.mm(x, x)  # libraries are loaded
    debugger.start(model=torch.nn.Identity())
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            torch.relu(torch.mm(x, x)).mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    debugger.stop()
    debugger.step()
    assert debugger._capture.faults == 0
    calls = json.loads((dump.rank_directory() / "dump.json").read_text())["data"]
    assert sum(name.startswith("Torch.mm") for name in calls) == 40
    assert all(t["Max"] is not None for t in _tensors(calls))


@needs_gpu
def test_the_kernel_reduces_every_dtype_and_layout_on_a_gpu(dump) -> None:
    """Beside PyTorch's own reductions of the same tensor on the host."""
    torch.manual_seed(0)
    floats, ints = (torch.float16, torch.bfloat16, torch.float32, torch.float64), (
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
    views = []
    for dtype in (*floats, *ints):
        base = (torch.randn(3, 70, 1000, device="cuda") * 50).to(dtype)
        views += [base, base.flatten()[1:], base.flatten()[:4099], base[:, :, ::3], base.transpose(0, 2), base[1:, 3:9, 8:16],
                  base[:, :1].expand(3, 5, 1000), base[0, 0, 0], base[0, 0, :1], base.repeat(1, 40, 1)]
    debugger = dump.debugger(level="L1")
    debugger.start()
    for view in views:
        torch.clone(view)
    debugger.stop()
    debugger.step()
    assert debugger._capture.faults == 0
    calls = json.loads((dump.rank_directory() / "dump.json").read_text())["data"]
    for number, view in enumerate(views):
        got, host = calls[f"Torch.clone.{number}.forward"]["input_args"][0], view.cpu()
        what = (number, view.dtype, view.shape, got)
        assert got["Max"] == host.max().item() and got["Min"] == host.min().item(), what
        if view.dtype in (torch.float16, torch.bfloat16, torch.float32) and view.dim() > 0:
            # Given in the tensor's own type: the norm of many float16 is beyond its range.
            mean, norm = (value.to(view.dtype).item() for value in (host.double().mean(), host.double().norm()))
            tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(view.dtype, 1e-5)
            assert math.isclose(got["Norm"], norm, rel_tol=tolerance), what
            assert math.isclose(got["Mean"], mean, rel_tol=tolerance, abs_tol=1e-4), what


@needs_gpu
def test_a_gpu_stream_of_its_own(dump) -> None:
    debugger = dump.debugger(level="L1")
    debugger.start()
    side = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    for i in range(2000):
        with torch.cuda.stream(side if i % 2 else torch.cuda.current_stream()):
            torch.mul(x, i)
    debugger.stop()
    debugger.step()
    calls = json.loads((dump.rank_directory() / "dump.json").read_text())["data"]
    assert [calls[f"Torch.mul.{i}.forward"]["output"][0]["Max"] for i in range(2000)] == [float(i) for i in range(2000)]


def test_a_tensor_seen_again_unchanged_is_asked_for_once(dump, host_as_device) -> None:
    debugger = dump.debugger(level="L1")
    debugger.start()
    x = torch.ones(8)
    reader = host_as_device.reader
    for _ in range(5):
        torch.sum(x)
    seen = reader.statistics.next_slot - reader.statistics.first_slot
    assert seen == 1 + 5  # x, and five results
    x.add_(1)
    torch.sum(x)
    assert reader.statistics.next_slot - reader.statistics.first_slot > seen + 1  # x is another now
    debugger.stop()
    debugger.step()
    calls = json.loads((dump.rank_directory() / "dump.json").read_text())["data"]
    assert calls["Torch.sum.4.forward"]["input_args"][0]["Max"] == 1.0
    assert calls["Torch.sum.5.forward"]["input_args"][0]["Max"] == 2.0


def test_memory_that_changed_hands_is_another_tensor(dump, host_as_device) -> None:
    debugger = dump.debugger(level="L1")
    debugger.start()
    for i in range(20):
        torch.neg(torch.full((64,), float(i)))  # freed: its memory comes back
    debugger.stop()
    debugger.step()
    calls = json.loads((dump.rank_directory() / "dump.json").read_text())["data"]
    assert [calls[f"Torch.neg.{i}.forward"]["input_args"][0]["Max"] for i in range(20)] == [float(i) for i in range(20)]


@pytest.mark.parametrize("limit, value", [("MAX_COPIED_BYTES", 4000), ("MAX_SLOTS", 7), ("_GATHERED", 3)])
def test_what_is_held_is_bounded(dump, host_as_device, monkeypatch, limit, value) -> None:
    monkeypatch.setattr(_device, limit, value)
    payloads = limit == "MAX_COPIED_BYTES"
    debugger = dump.debugger(level="L1", task="tensor" if payloads else "statistics")
    debugger.start()
    for i in range(30):
        torch.add(torch.full((256,), float(i)), 1)
    assert LateDevice.waits == (0 if limit == "_GATHERED" else pytest.approx(12, abs=6))
    debugger.stop()
    debugger.step()
    where = dump.rank_directory()
    calls = json.loads((where / "dump.json").read_text())["data"]
    assert [calls[f"Torch.add.{i}.forward"]["output"][0]["Max"] for i in range(30)] == [i + 1.0 for i in range(30)]
    if payloads:
        for i in range(30):
            assert torch.load(where / f"dump_tensor_data/Torch.add.{i}.forward.output.0.pt").tolist() == [i + 1.0] * 256


@pytest.mark.parametrize("where", ["reduce", "wait", "gather"])
def test_a_device_that_fails_leaves_nulls_and_the_training(dump, host_as_device, monkeypatch, where) -> None:
    def fail(*_args, **_kwargs):
        raise RuntimeError("device lost")

    target = {"reduce": (_device._DeviceWork, "reduce"), "gather": (_device._DeviceWork, "begin_copy"),
              "wait": (LateDevice.Event, "synchronize")}[where]
    debugger = dump.debugger(level="L1")
    with monkeypatch.context() as patch:
        patch.setattr(*target, fail)
        debugger.start()
        assert torch.add(torch.ones(4), 1).tolist() == [2.0] * 4
        debugger.stop()
        debugger.step()
    directory = dump.rank_directory()
    output = json.loads((directory / "dump.json").read_text())["data"]["Torch.add.0.forward"]["output"][0]
    assert output["shape"] == [4] and output["Max"] is None and output["Norm"] is None
    assert debugger._capture.faults > 0
    # The next step is recorded as ever.
    debugger.start()
    torch.add(torch.ones(4), 1)
    debugger.stop()
    debugger.step()
    output = json.loads((dump.rank_directory(1) / "dump.json").read_text())["data"]["Torch.add.0.forward"]["output"][0]
    assert output["Max"] == 2.0


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("where", ["gather", "wait"])
def test_an_alarm_while_the_device_delivers_is_the_programs_and_holds_nothing_up(dump, host_as_device, monkeypatch, where, raised) -> None:
    def handler(*_args):
        raise raised("alarm")

    target = {"gather": (_device._DeviceWork, "begin_copy"), "wait": (LateDevice.Event, "synchronize")}[where]
    before = signal.signal(signal.SIGALRM, handler)
    debugger = dump.debugger(level="L1")
    try:
        debugger.start()
        torch.add(torch.ones(4), 1)
        with monkeypatch.context() as patch, pytest.raises(raised, match="alarm"):
            patch.setattr(*target, lambda *_args: signal.raise_signal(signal.SIGALRM))
            debugger.stop()
    finally:
        signal.signal(signal.SIGALRM, before)
    debugger.stop()
    debugger.step()
    output = json.loads((dump.rank_directory() / "dump.json").read_text())["data"]["Torch.add.0.forward"]["output"][0]
    assert output["shape"] == [4] and output["Max"] is None


def _one_call(dump, step: int = 0) -> dict:
    """Output of the first call of a step."""
    calls = json.loads((dump.rank_directory(step) / "dump.json").read_text())["data"]
    return calls["Torch.add.0.forward"]["output"][0]


def test_a_kernel_that_fails_leaves_the_work_to_pytorch_and_says_so_once(dump, host_as_cuda) -> None:
    debugger = dump.debugger(level="L1")
    host_as_cuda.fail("cuLaunchKernel", 700)
    for step in range(2):
        debugger.start()
        for _ in range(3):
            torch.add(torch.ones(4), 1)
        debugger.stop()
        debugger.step()
        assert _one_call(dump, step)["Max"] == 2.0
    assert host_as_cuda.count("cuLaunchKernel") == 1
    assert debugger._capture.faults == 1
    told = (dump.rank_directory() / "dump_error_info.log").read_text()
    assert told.count("cuLaunchKernel failed: CUDA_ERROR_FAKE (700)") == 1, told


class _Subclass(torch.Tensor):
    """Not read by descriptors, as DTensor is not."""


def test_a_subclass_is_reduced_by_the_kernel_too(dump, host_as_cuda) -> None:
    debugger = dump.debugger(level="L1")
    x = torch.arange(6.0).reshape(2, 3).t().as_subclass(_Subclass)
    debugger.start()
    torch.add(x, 1)
    torch.add(x, 1)
    # x once, and the outputs.
    assert host_as_cuda.count("cuLaunchKernel") == 3
    debugger.stop()
    debugger.step()
    assert _one_call(dump)["Max"] == 6.0 and _one_call(dump)["Min"] == 1.0


@pytest.mark.parametrize("where", ["cuMemcpyDtoHAsync", "cuEventSynchronize"])
def test_numbers_of_the_kernel_that_do_not_arrive_are_null(dump, host_as_cuda, where) -> None:
    debugger = dump.debugger(level="L1")
    debugger.start()
    assert torch.add(torch.ones(4), 1).tolist() == [2.0] * 4
    host_as_cuda.fail(where)
    debugger.stop()
    host_as_cuda.fail(where, 0)
    debugger.step()
    output = _one_call(dump)
    assert output["shape"] == [4] and output["Max"] is None and debugger._capture.faults == 1
    debugger.start()
    torch.add(torch.ones(4), 1)
    debugger.stop()
    debugger.step()
    assert _one_call(dump, 1)["Max"] == 2.0


def test_the_kernel_stays_out_of_a_captured_graph(dump, host_as_cuda) -> None:
    debugger = dump.debugger(level="L1")
    debugger.start()
    host_as_cuda.capture(0)
    LateDevice.capturing = True
    torch.add(torch.ones(4), 1)
    LateDevice.capturing = False
    host_as_cuda.capture(-1)
    torch.mul(torch.ones(4), 3)
    debugger.stop()
    debugger.step()
    assert _one_call(dump)["Max"] is None
    assert debugger._capture.faults == 0
    calls = json.loads((dump.rank_directory() / "dump.json").read_text())["data"]
    assert calls["Torch.mul.0.forward"]["output"][0]["Max"] == 3.0


def test_content_the_kernel_has_seen_is_reduced_once(dump, host_as_cuda) -> None:
    debugger = dump.debugger(level="L1")
    debugger.start()
    x = torch.ones(8)
    for _ in range(5):
        torch.sum(x)
    assert host_as_cuda.count("cuLaunchKernel") == 1 + 5
    x.add_(1)
    torch.sum(x)
    for i in range(20):
        torch.neg(torch.full((64,), float(i)))  # freed: its memory comes back
    debugger.stop()
    debugger.step()
    calls = json.loads((dump.rank_directory() / "dump.json").read_text())["data"]
    assert calls["Torch.sum.4.forward"]["input_args"][0]["Max"] == 1.0
    assert calls["Torch.sum.5.forward"]["input_args"][0]["Max"] == 2.0
    assert [calls[f"Torch.neg.{i}.forward"]["input_args"][0]["Max"] for i in range(20)] == [float(i) for i in range(20)]


def test_a_captured_graph_has_no_numbers(dump, host_as_device) -> None:
    debugger = dump.debugger(level="L1")
    debugger.start()
    LateDevice.capturing = True
    torch.add(torch.ones(4), 1)
    LateDevice.capturing = False
    debugger.stop()
    debugger.step()
    output = json.loads((dump.rank_directory() / "dump.json").read_text())["data"]["Torch.add.0.forward"]["output"][0]
    assert output["shape"] == [4] and output["Max"] is None


def test_saved_values_and_gradients_after_stop(dump, host_as_device) -> None:
    debugger = dump.debugger(level="debug")
    x = torch.full((3,), 2.0, requires_grad=True)
    debugger.start()
    y = x * 3
    debugger.save(y, "y")
    debugger.stop()
    y.sum().backward()
    debugger.step()
    calls = json.loads((dump.rank_directory() / "debug.json").read_text())["data"]
    assert calls["y.0.debug"]["Max"] == 6.0
    assert calls["y_grad.0.debug"]["Max"] == 1.0
