# SPDX-License-Identifier: Apache-2.0
"""Reading of tensors on accelerators without waiting for the device.

While training runs, a tensor is read in the current stream: by reductions whose
results stay on the device, or by a copy of its bytes to pinned host memory. At the
end of the step one copy brings all results to the host; only this waits for the
device. A tensor that is seen again unchanged is read once.

On CUDA devices a kernel of rankprobe reduces a tensor (DeviceStatistics of
agent/runtime/device). The native code launches it without calling this module; this
module launches it for tensors that the native code does not read itself (subclasses,
DTensor). Operators of PyTorch reduce what the kernel does not support, and tensors on
other devices.

Works with every backend of PyTorch that has streams and events (torch.cuda,
torch.npu, torch.xpu); tensors of others are copied at once. Nothing is read while a
CUDA graph is being captured; such tensors have no statistics.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any, Callable, Optional

import torch

from rankprobe import _native

# Values of RecordedCall::Needs in recorded_call.h.
NUMBERS, BYTES, NOW = 0, 1, 2

# Limits of host copies in bytes, and of slots, beyond which results are delivered within a step.
MAX_COPIED_BYTES = 256 << 20
MAX_SLOTS = 1 << 18
# Number of 0-dimensional results that are then stacked, since each occupies a block
# of 512 bytes on the device.
_GATHERED = 1024
_WORDS = 4

_SMALL_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


@functools.lru_cache(maxsize=None)
def _is_named(dtype: torch.dtype, part: str) -> bool:
    return part in str(dtype)  # Compares names, because older PyTorch lacks some of these types.


def memory_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns the fields by which the native code reads `tensor` (strided, on the CPU)."""
    return {"address": tensor.data_ptr(), "strides": tuple(tensor.stride()), "keep": tensor}


class _Results:
    """0-dimensional tensors of one dtype, and the indices of the words that they fill."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.gathered: list[torch.Tensor] = []
        self.words: list[int] = []

    def add(self, values: tuple[torch.Tensor, ...], word: int) -> None:
        self.values += values
        self.words += range(word, word + len(values))

    def gather(self, of_other_streams: bool, stream: Any) -> None:
        """Stacks the values in `stream`, which has waited for the streams of the values."""
        if not self.values:
            return
        if of_other_streams:  # Keeps the allocator from reusing their memory before `stream` has read it.
            for value in self.values:
                value.record_stream(stream)
        self.gathered.append(torch.stack(self.values))
        self.values = []

    def wide(self) -> torch.Tensor:
        """Returns all gathered values as bits of 64-bit numbers, int64 of shape [values]."""
        values = torch.cat(self.gathered) if len(self.gathered) > 1 else self.gathered[0]
        if values.is_floating_point():
            return values.to(torch.float64).view(torch.int64)
        return values.to(torch.int64)


class _DeviceWork:
    """Pending results of one device since the last delivery."""

    def __init__(self, backend: Any, device: torch.device) -> None:
        self._backend, self._device = backend, device
        self._results: dict[torch.dtype, _Results] = {}
        self._streams: set[Any] = set()
        self._pending = 0

    def note_stream(self) -> None:
        self._streams.add(self._backend.current_stream(self._device))

    def reduce(self, tensor: torch.Tensor, word: int) -> None:
        """Computes maximum, minimum and, for small floats, mean and norm, for the words from `word`."""
        if tensor.dim() == 0 and tensor.dtype is not torch.bool:
            self._add((tensor.clone(),), word)
            return
        low, high = torch.aminmax(tensor)
        self._add((high, low), word)
        if tensor.dtype in _SMALL_FLOATS:
            self._add((torch.mean(tensor, dtype=torch.float32), torch.linalg.vector_norm(tensor, dtype=torch.float32)), word + 2)

    def _add(self, values: tuple[torch.Tensor, ...], word: int) -> None:
        """Adds values of one dtype for the words from `word`."""
        dtype = values[0].dtype
        results = self._results.get(dtype)
        if results is None:
            results = self._results[dtype] = _Results()
        results.add(values, word)
        self._pending += len(values)
        if self._pending >= _GATHERED:
            self._gather()

    def _gather(self) -> None:
        current = self._backend.current_stream(self._device)
        others = [stream for stream in self._streams if stream != current]
        for stream in others:
            current.wait_stream(stream)
        for each in self._results.values():
            each.gather(bool(others), current)
        # The gathered tensors belong to the current stream.
        self._streams = {current}
        self._pending = 0

    def begin_copy(self) -> "_Copy":
        """Starts one copy of all results to the host, followed by an event."""
        with self._backend.device(self._device):
            self._gather()
            words: list[int] = []
            parts = []
            for results in self._results.values():
                parts.append(results.wide())
                words += results.words
            host = None
            if parts:
                on_device = torch.cat(parts)
                host = pinned(on_device.shape, on_device.dtype)
                host.copy_(on_device, non_blocking=True)
            event = self._backend.Event()
            event.record(self._backend.current_stream(self._device))
        # Keeps the tensors on the device alive until the event.
        return _Copy(event, host, words, (self._results, parts))


class _Copy:
    def __init__(self, event: Any, host: Optional[torch.Tensor], words: list[int], keep: Any) -> None:
        self._event, self._host, self._words, self._keep = event, host, words, keep

    def wait(self, numbers: torch.Tensor) -> None:
        self._event.synchronize()
        if self._host is not None:
            numbers[torch.tensor(self._words, device="cpu")] = self._host


def pinned(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Returns pinned host memory, which a device can write asynchronously; ordinary memory if there is none."""
    try:
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
    except (RuntimeError, AssertionError):
        return torch.empty(shape, dtype=dtype, device="cpu")


def backend_of(device: torch.device) -> Any:
    """Returns the backend module of a device, such as torch.cuda; None if it has no streams."""
    backend = getattr(torch, device.type, None)
    needed = ("current_stream", "Event", "device")
    return backend if backend is not None and all(hasattr(backend, name) for name in needed) else None


# The library of NVIDIA's driver, which is loaded already if PyTorch has a CUDA device.
CUDA_DRIVER = "libcuda.so.1" if torch.version.cuda is not None else ""


# Returns the handle of the current stream of a CUDA device.
current_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: 0)


def cuda_device(tensor: torch.Tensor) -> int:
    """Returns the number of the tensor's CUDA device; -1 if it is not on one."""
    return tensor.get_device() if tensor.is_cuda else -1


class DeviceReader:
    """Assigns slots to tensors on devices and delivers their results. Thread-safe.

    A slot is never reused. `on_fault` is called with each error of rankprobe, once.
    """

    def __init__(self, find_backend: Callable[[torch.device], Any] = backend_of) -> None:
        self._find_backend = find_backend
        self._lock = threading.Lock()
        self._work: dict[torch.device, _DeviceWork] = {}
        self.statistics = _native.DeviceStatistics(CUDA_DRIVER)
        self._copied_bytes = 0
        self._copies: list[torch.Tensor] = []
        # By content: (weak tensor, generation, fields).
        self._seen: dict[tuple[Any, ...], tuple[Callable[[], Any], int, dict[str, Any]]] = {}
        self._told: set[str] = set()
        self.on_fault: Optional[Callable[[str], None]] = None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Returns whether `tensor` is on a device."""
        return tensor.device.type != "cpu"

    def read(self, tensor: torch.Tensor, origin: torch.Tensor, needs: int, generation: int) -> dict[str, Any]:
        """Returns the fields of ValueReader::ReadDescribed() besides dtype, shape and requires_grad.

        tensor: strided, detached, not on the CPU. origin: the tensor whose memory it
        shares. generation: results of the same generation can be reused; below 0 if
        the tensor may have changed unnoticed.
        """
        if tensor.numel() == 0:
            return memory_of(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))
        if needs == NUMBERS and _is_named(tensor.dtype, "float4"):  # Each element has two values.
            return {}
        try:
            return self._read(tensor, origin, needs, generation)
        except Exception as error:  # noqa: BLE001 - for example out of memory, or a missing kernel
            if not _native.raise_later_if_programs(error):
                self.tell(f"no statistics of a tensor on {tensor.device}: {type(error).__name__}: {error}")
            return {}

    def _read(self, tensor: torch.Tensor, origin: torch.Tensor, needs: int, generation: int) -> dict[str, Any]:
        if error := self.statistics.take_error():
            self.tell(f"from now on operators of PyTorch compute the statistics of tensors on CUDA devices, which is slower: {error}")
        backend = self._find_backend(tensor.device)
        if backend is not None and getattr(backend, "is_current_stream_capturing", lambda: False)():
            return {}
        if needs == NOW or backend is None:
            return memory_of(tensor.cpu())
        # Devices have no 8-bit reductions; a cast to float32 is exact.
        is_float8 = needs == NUMBERS and _is_named(tensor.dtype, "float8")
        if needs == NUMBERS and tensor.dtype not in (*_SMALL_FLOATS, torch.float64, *_INTS) and not is_float8:
            needs = BYTES
        key = None
        if generation >= 0 and not tensor.is_inference():
            key = (tensor.data_ptr(), tensor._version, tensor.dtype, tensor.shape, tensor.stride(), needs)
        with self._lock:
            if key is not None:
                known = self._seen.get(key)
                if known is not None and known[1] == generation:
                    alive = known[0]()
                    if alive is not None and alive.data_ptr() == key[0]:
                        return known[2]
            if is_float8:
                tensor = tensor.to(torch.float32)
            slot = self._reduced(tensor) if needs == NUMBERS else None
            if slot is not None:
                fields: dict[str, Any] = {"slot": slot, "full": self.statistics.full}
                if key is not None:
                    self._seen[key] = (weakref.ref(origin), generation, fields)
                return fields
            work = self._work.get(tensor.device)
            if work is None:
                work = self._work[tensor.device] = _DeviceWork(backend, tensor.device)
            work.note_stream()
            slot, first = self.statistics.take_slot(), self.statistics.first_slot
            fields = {"slot": slot}
            if needs == NUMBERS:
                work.reduce(tensor, _WORDS * (slot - first))
            else:
                host = pinned(tensor.shape, tensor.dtype)
                host.copy_(tensor, non_blocking=True)
                self._copies.append(host)
                self._copied_bytes += host.numel() * host.element_size()
                fields.update(memory_of(host))
            if self._copied_bytes > MAX_COPIED_BYTES or slot - first >= MAX_SLOTS:
                fields["full"] = True
                key = None
            if key is not None:
                self._seen[key] = (weakref.ref(origin), generation, fields)
            return fields

    def _reduced(self, tensor: torch.Tensor) -> Optional[int]:
        """Launches rankprobe's kernel and returns the slot; None if the kernel cannot reduce the tensor."""
        device = cuda_device(tensor) if CUDA_DRIVER else -1
        if device < 0:
            return None
        return self.statistics.reduce(str(tensor.dtype), tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()),
                                      device, current_raw_stream(device))

    def finish(self) -> tuple[int, int, int, Any]:
        """Waits for the devices. Returns (first slot, end slot, address of four int64 for each slot, object that owns them). The
        address is 0 if there are no results.
        """
        with self._lock:
            streams = {device: current_raw_stream(device) for device in self.statistics.devices()}
            delivery = self.statistics.take_pending(streams)
            first, end = delivery.first, delivery.end
            if first == end:
                return first, end, 0, None
            work, self._work = self._work, {}
            copies, self._copies = self._copies, []
            self._copied_bytes = 0
            self._seen.clear()
            with torch.no_grad():
                try:
                    waiting = [each.begin_copy() for each in work.values()]
                except Exception as error:  # noqa: BLE001 - see read()
                    self._tell_lost(error)
                    return first, end, 0, None
        try:
            numbers = torch.zeros((end - first) * _WORDS, dtype=torch.int64, device="cpu")
            for copy in waiting:
                copy.wait(numbers)
            delivery.wait(numbers.data_ptr())
        except Exception as error:  # noqa: BLE001 - the device failed, which the user must learn
            self._tell_lost(error)
            return first, end, 0, copies
        return first, end, numbers.data_ptr(), (numbers, copies)

    def _tell_lost(self, error: Exception) -> None:
        # Reported even for an error of the program, since the statistics are lost.
        self.tell(f"statistics computed on a device are lost: {type(error).__name__}: {error}")
        _native.raise_later_if_programs(error)

    def tell(self, what: str) -> None:
        """Calls on_fault, once for each text and for at most 100 texts."""
        if self.on_fault is not None and what not in self._told and len(self._told) < 100:
            self._told.add(what)
            self.on_fault(what)


