# SPDX-License-Identifier: Apache-2.0
"""TensorBoard histograms of the tensors of an exported dump.

Reads the files of torch.save without PyTorch: zip archives with the elements as one
member. Other files are skipped and counted.
"""

from __future__ import annotations

import json
import math
import pathlib
import zipfile
from typing import Any, Iterator, Optional

import numpy

# NumPy has no bfloat16: its two bytes are read as an integer, the upper half of a float32.
_TYPES = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2", "int8": "i1", "uint8": "u1", "int16": "<i2",
          "int32": "<i4", "int64": "<i8", "bool": "u1"}
_BINS = 64
_MAX_DEPTH = 64


def read_elements(path: pathlib.Path, dtype: str, count: int) -> Optional[Any]:
    """Returns the `count` elements of the file as a 1-D float64 array; None if they cannot be read."""
    kind = _TYPES.get(dtype.removeprefix("torch."))
    if kind is None:
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("/data/0"))
            if archive.getinfo(name).file_size != count * numpy.dtype(kind).itemsize:
                return None
            elements = numpy.frombuffer(archive.read(name), kind)
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    if dtype.endswith("bfloat16"):
        elements = (elements.astype("<u4") << 16).view("<f4")
    return elements.astype("f8")


def histogram(elements: Any) -> Optional[dict[str, Any]]:
    """Returns the fields of HistogramProto for the finite elements; None if there are none."""
    finite = elements[numpy.isfinite(elements)]
    if not finite.size:
        return None
    low, high = float(finite.min()), float(finite.max())
    # With values near both ends of the double range, high - low overflows, so two bins with explicit edges are used.
    counts, edges = numpy.histogram(finite, _BINS if math.isfinite(high - low) else [low, 0.0, high])
    with numpy.errstate(over="ignore"):
        total, squares = float(finite.sum()), float(numpy.square(finite).sum())
    return {"min": low, "max": high, "num": float(finite.size), "sum": total, "sum_squares": squares,
            "bucket_limit": edges[1:].tolist(), "bucket": counts.astype("f8").tolist()}


def _tensors(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict) and isinstance(value.get("data_name"), str) and "shape" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item, depth + 1)


class Payloads:
    """The tensors of an exported dump. unread: the number of tensors that could not be read. Raises FileNotFoundError if `dump` has
    no dump.json or debug.json."""

    def __init__(self, dump: pathlib.Path) -> None:
        if not any(dump.glob("step*/*/dump.json")) and not any(dump.glob("step*/*/debug.json")):
            raise FileNotFoundError(2, "no step*/rank*/dump.json below it", str(dump))
        self._dump = dump
        self.unread = 0

    def of(self, step: int, process: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields name (such as "Module.fc.Linear.forward.0.output.0") and histogram of each tensor of a process in a step."""
        place = self._dump / f"step{step}" / process
        for file in ("dump.json", "debug.json"):
            try:
                data = json.loads((place / file).read_text(encoding="utf-8"))["data"]
            except FileNotFoundError:
                continue
            for tensor in _tensors(data):
                name = tensor["data_name"]
                path = place / "dump_tensor_data" / name
                # The name is untrusted input: a path that leaves the directory is not opened.
                elements = read_elements(path, str(tensor.get("dtype")), math.prod(tensor["shape"])) if (
                    pathlib.PurePath(name).name == name) else None
                made = histogram(elements) if elements is not None else None
                if elements is None:
                    self.unread += 1
                elif made is not None:
                    yield name.removesuffix(".pt"), made


__all__ = ["Payloads", "histogram", "read_elements"]
