# SPDX-License-Identifier: Apache-2.0
"""The collector's messages as Python classes, generated from proto/ when this module is first imported, and the records
and checksums that RawAgent's frames are made of.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Iterable

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _load_crc32c(directory: str) -> Any:
    library = f"{directory}/crc32c.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, pathlib.Path(__file__).with_name("crc32c.c")], check=True)
    function = ctypes.CDLL(library).crc32c
    function.restype = ctypes.c_uint32
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return function


def crc32c(data: bytes) -> int:
    return _crc32c(data, len(data))


def sealed(encoded: bytes) -> bytes:
    """The bytes with the checksum of them, as agent and collector send them."""
    return encoded + b"\xa5\x06" + crc32c(encoded).to_bytes(4, "little")


def seal(message: Any) -> bytes:
    return sealed(message.SerializeToString())


def _generate_stubs(directory: str) -> None:
    protos = sorted(str(p.relative_to(ROOT / "proto")) for p in (ROOT / "proto").rglob("*.proto"))
    subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={directory}", f"--grpc_python_out={directory}",
                    f"--plugin=protoc-gen-grpc_python={shutil.which('grpc_python_plugin')}", *protos], check=True)
    for name in ("agent", "archive", "control", "leaf"):
        stub = pathlib.Path(directory) / "rankprobe" / "v1" / f"{name}_pb2_grpc.py"
        sealed = re.sub(r"[\w.]+\.\w+\.SerializeToString", "wire.seal", stub.read_text())
        stub.write_text("import wire\n" + sealed)
    sys.path.insert(0, directory)


_directory = tempfile.mkdtemp(prefix="rankprobe-stubs-")
atexit.register(shutil.rmtree, _directory, ignore_errors=True)
_crc32c = _load_crc32c(_directory)
_generate_stubs(_directory)

from rankprobe.v1 import access_pb2 as access  # noqa: E402
from rankprobe.v1 import agent_pb2 as agent  # noqa: E402
from rankprobe.v1 import agent_pb2_grpc as agent_grpc  # noqa: E402
from rankprobe.v1 import archive_pb2 as archive  # noqa: E402
from rankprobe.v1 import archive_pb2_grpc as archive_grpc  # noqa: E402
from rankprobe.v1 import control_pb2 as control  # noqa: E402
from rankprobe.v1 import control_pb2_grpc as control_grpc  # noqa: E402
from rankprobe.v1 import leaf_pb2 as leaf  # noqa: E402
from rankprobe.v1 import types_pb2 as types  # noqa: E402
from rankprobe.v1 import triggers_pb2 as watch  # noqa: E402


# --- bytes on the wire -----------------------------------------------------------


class _Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


@functools.lru_cache(maxsize=1)
def _xxhash() -> Any:
    function = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    function.restype = _Hash128
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return function


def digest(data: bytes) -> bytes:
    """PayloadRef.digest: XXH3-128, canonical."""
    value = _xxhash()(data, len(data))
    return value.high.to_bytes(8, "big") + value.low.to_bytes(8, "big")


# --- records ---------------------------------------------------------------------


def tensor(data: bytes | None = None, *, payload_digest: bytes | None = None, length: int | None = None,
           dtype: int = types.DTYPE_FLOAT32, shape: list[int] | None = None, **fields: Any) -> types.Value:
    """A tensor leaf; with `data`, or a digest and a length, it refers to a payload."""
    summary = types.TensorSummary(dtype=dtype, shape=[len(data) // 4] if shape is None else shape, **fields)
    summary.stats.max_f, summary.stats.min_f, summary.stats.mean_f, summary.stats.norm_f = 1, 0, 0.5, 1
    if data is not None or payload_digest is not None:
        summary.payload.digest = payload_digest or digest(data)
        summary.payload.length_bytes = len(data) if length is None else length
    return types.Value(tensor=summary)


def text(value: str) -> types.Value:
    return types.Value(scalar=types.ScalarValue(type="str", s=value))


def call(entry: str, outputs: Iterable[types.Value] = (), inputs: Iterable[types.Value] = (),
         kind: int = types.CALL_KIND_API_FORWARD, **fields: Any) -> types.CallPhase:
    phase = types.CallPhase(entry=entry, kind=kind, **fields)
    phase.input_args.SetInParent()
    phase.output.SetInParent()
    phase.input_args.items.extend(inputs)
    phase.output.items.extend(outputs)
    return phase


def begin_record(order: int = 0, task: str = "tensor", level: str = "L1", has_payloads: bool = True,
                 plan_epoch: int = 0, **fields: Any) -> types.Record:
    return types.Record(order=order, step_begin=types.StepBegin(
        task=task, level=level, has_payloads=has_payloads, framework="pytorch", plan_epoch=plan_epoch,
        extra_info=True, **fields))


def call_record(order: int, phase: types.CallPhase) -> types.Record:
    return types.Record(order=order, call=phase)


def end_record(order: int, call_phases: int, payloads: int = 0) -> types.Record:
    return types.Record(order=order, step_end=types.StepEnd(call_phases=call_phases, payloads=payloads))
