# SPDX-License-Identifier: Apache-2.0
"""Reader of the stream of `rankprobe export --format columns -o -` (docs/formats.md, "Stream of values") as Arrow record batches."""

from __future__ import annotations

import json
import struct
from typing import IO, Any, Iterator

import pyarrow as pa
import pyarrow.compute as pc

MAGIC = b"RPVALUES"
STATISTICS = ("Max", "Min", "Mean", "Norm", "NanCount", "InfCount", "ZeroCount", "Std")
_TEXT = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema([("run", _TEXT), ("step", pa.int64()), ("rank", pa.int64()), ("pid", pa.int64()), ("module", _TEXT),
                    ("call", _TEXT), ("phase", _TEXT), ("position", _TEXT), *((key, pa.float64()) for key in STATISTICS)])
_MAX_HEADER_BYTES = 1 << 30
_NO_STREAM = "this is not a stream of values"


class Cut(Exception):
    """The stream is incomplete, or is not a stream of values."""


def split_entry(entry: str) -> tuple[str, str]:
    """Splits the name of an entry of dump.json into module and phase: "Module.fc.Linear.forward.0" gives ("Module.fc.Linear",
    "forward"), and "Functional.relu.0.forward" gives ("Functional.relu", "forward"). The phase is "" if the entry has none."""
    parts = entry.split(".")
    numbered = parts[-1].isdigit() and len(parts) > 2
    word = parts[-2] if numbered else parts[-1]
    if entry.startswith(("Module.", "Cell.")) and word in ("forward", "backward", "parameters_grad"):
        return ".".join(parts[:-2 if numbered else -1]), word
    if not numbered and word in ("forward", "backward", "debug") and len(parts) > 2 and parts[-2].isdigit():
        return ".".join(parts[:-2]), word
    return entry, ""


class _Texts:
    """Dictionary of a text column: stores each text once, and makes rows from numbers of names."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._of_names: list[int] = []
        self._arrays: tuple[Any, Any] | None = None

    def add(self, text: str) -> None:
        self._of_names.append(self._numbers.setdefault(text, len(self._numbers)))
        self._arrays = None

    def rows(self, names: Any) -> Any:
        if self._arrays is None:
            self._arrays = pa.array(self._of_names, pa.int32()), pa.array(list(self._numbers), pa.string())
        of_names, texts = self._arrays
        return pa.DictionaryArray.from_arrays(of_names.take(names), texts)


class ValueStream:
    """Iterates over the batches of a stream. Afterwards `end` has the counts of the last frame. Raises Cut if the stream is incomplete
    or invalid."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._texts = {name: _Texts() for name in ("module", "call", "phase", "position")}
        self.end: dict[str, int] = {}
        if self._read(len(MAGIC)) != MAGIC:
            raise Cut(_NO_STREAM)
        head = self._header()
        if head.get("version") != 1:
            raise Cut(f"a stream of values of version {head.get('version')}; this reads 1")
        self.run: str = head["run"]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            header = self._header()
            if "end" in header:
                self.end = header["end"]
                return
            yield self._batch(header)

    def _batch(self, header: dict[str, Any]) -> pa.RecordBatch:
        rows = header["rows"]
        for entry, value in header["names"]:
            module, phase = split_entry(entry)
            for name, text in (("module", module), ("call", entry), ("phase", phase), ("position", value)):
                self._texts[name].add(text)
        payload = memoryview(self._read(sum(size for _, size in header["buffers"])))
        buffers: dict[str, Any] = {}
        begin = 0
        for name, size in header["buffers"]:
            buffers[name] = pa.py_buffer(payload[begin:begin + size])
            begin += size

        def numbers(kind: pa.DataType, name: str) -> Any:
            return pa.Array.from_buffers(kind, rows, [buffers.get(name + "?"), buffers[name]])

        names = numbers(pa.uint32(), "name")
        ranks = numbers(pa.int64(), "rank")
        columns = {"run": pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([self.run])),
                   "step": numbers(pa.int64(), "step"), "pid": numbers(pa.int64(), "pid"),
                   "rank": pc.if_else(pc.less(ranks, 0), pa.scalar(None, pa.int64()), ranks),
                   **{name: texts.rows(names) for name, texts in self._texts.items()},
                   **{key: numbers(pa.float64(), key) if key in buffers else pa.nulls(rows, pa.float64())
                      for key in STATISTICS}}
        return pa.RecordBatch.from_arrays([columns[field.name] for field in SCHEMA], schema=SCHEMA)

    def _header(self) -> dict[str, Any]:
        size, = struct.unpack("<I", self._read(4))
        if size > _MAX_HEADER_BYTES:
            raise Cut(_NO_STREAM)
        try:
            header: dict[str, Any] = json.loads(self._read(size))
            return header
        except ValueError:
            raise Cut(_NO_STREAM) from None

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise Cut("the stream of values ended early")
        return data
