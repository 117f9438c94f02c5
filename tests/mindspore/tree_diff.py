# SPDX-License-Identifier: Apache-2.0
"""Entry by entry: a tree of rankprobe.mindspore beside one of the real msprobe.mindspore.

What is not compared, or compared otherwise, is meant; each has its reason in
docs/mindspore.md, "Differences from msprobe".
"""

from __future__ import annotations

import json
import math
import pathlib
import re
from typing import Any, Iterator

import numpy

# Sums of float32 in another order of addition.
TOLERANCE = 2e-5
_STATISTICS = ("Max", "Min", "Mean", "Norm")


def places(tree: pathlib.Path) -> dict[str, pathlib.Path]:
    """step0 -> its only directory."""
    return {step.name: next(step.iterdir()) for step in sorted(tree.glob("step*"))}


def differences(ours: pathlib.Path, theirs: pathlib.Path, ordered: bool = True, ahead: int = 0) -> list[str]:
    """ahead: by how much the numbers of primitives in `theirs` are larger."""
    mine, peer = places(ours), places(theirs)
    if list(mine) != list(peer):
        return [f"steps {list(mine)} and {list(peer)}"]
    out: list[str] = []
    for step, directory in mine.items():
        if directory.name.rstrip("0123456789") != peer[step].name.rstrip("0123456789"):
            out.append(f"{step}: {directory.name} and {peer[step].name}")
        out += [f"{step}: {text}" for text in _of_step(directory, peer[step], ordered, ahead)]
    return out


def _read(path: pathlib.Path, ahead: int = 0) -> dict:
    text = path.read_text(encoding="utf-8")
    if ahead:
        text = re.sub(r'"(Primitive\.\w+\.\w+)\.(\d+)\.', lambda match: f'"{match[1]}.{int(match[2]) - ahead}.', text)
    return json.loads(text)


def _of_step(mine: pathlib.Path, peer: pathlib.Path, ordered: bool, ahead: int) -> Iterator[str]:
    files = sorted(p.name for p in peer.iterdir() if p.suffix == ".json")
    if sorted(p.name for p in mine.iterdir() if p.suffix == ".json" and p.name != "run_card.json") != files:
        yield f"files {sorted(p.name for p in mine.iterdir())} and {files}"
        return
    name = "debug.json" if "debug.json" in files else "dump.json"
    one, other = _read(mine / name), _read(peer / name, ahead)
    for key in ("task", "level", "framework"):
        if one[key] != other[key]:
            yield f"{key}: {one[key]} and {other[key]}"
    if (one["dump_data_dir"] is None) != (other["dump_data_dir"] is None):
        yield f"dump_data_dir: {one['dump_data_dir']} and {other['dump_data_dir']}"
    yield from _entries(one["data"], other["data"], mine, peer, ordered)
    if "construct.json" in files:
        yield from _construct(_read(mine / "construct.json"), _read(peer / "construct.json", ahead))
        yield from _stacks(_read(mine / "stack.json"), _read(peer / "stack.json", ahead))


def _entries(mine: dict, peer: dict, my_place: pathlib.Path, peer_place: pathlib.Path, ordered: bool) -> Iterator[str]:
    for entry in peer:
        if entry not in mine:
            yield f"only msprobe has {entry}"
    for entry in mine:
        if entry not in peer:
            yield f"only rankprobe has {entry}"
    common = [entry for entry in mine if entry in peer]
    # When a leaf's gradient is complete depends on the nodes around it, of which msprobe adds some.
    one, other = ([entry for entry in side if entry in mine and entry in peer and ".parameters_grad." not in entry]
                  for side in (mine, peer))
    if ordered and one != other:
        at = next(i for i, (a, b) in enumerate(zip(one, other)) if a != b)
        yield f"order: {one[at]} at {at}, where msprobe has {other[at]}"
    for entry in common:
        one, other = mine[entry], peer[entry]
        if entry.startswith("Primitive.") and entry.endswith(".backward"):
            one, other = _as_arrived(one), _as_arrived(other)
        if ".parameters_grad." in entry:  # in the order in which they come, which nodes of msprobe's own may change
            one, other = dict(sorted(one.items())), dict(sorted(other.items()))
        for path, text in _values(one, other, entry, my_place, peer_place):
            yield f"{path}: {text}"


def _as_arrived(record: dict) -> dict:
    """msprobe appends gradients as they come; rankprobe puts each at its position, null where none came."""
    def key(item: dict) -> str:
        return json.dumps([item["shape"], item["dtype"], round(item["Max"], 6) if item.get("Max") is not None else None])

    return {part: sorted((item for item in items if item is not None), key=key) for part, items in record.items()}


def _values(one: Any, other: Any, path: str, mine: pathlib.Path, peer: pathlib.Path) -> Iterator[tuple[str, str]]:
    if isinstance(one, dict) and isinstance(other, dict):
        if one.get("type") == "mindspore.Tensor" and other.get("type") == "mindspore.Tensor":
            yield from _tensors(one, other, path, mine, peer)
            return
        if list(one) != list(other):
            yield path, f"keys {list(one)} and {list(other)}"
            return
        for key in one:
            yield from _values(one[key], other[key], f"{path}.{key}", mine, peer)
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield path, f"{len(one)} items and {len(other)}: {one} and {other}"
            return
        for index, (a, b) in enumerate(zip(one, other)):
            yield from _values(a, b, f"{path}.{index}", mine, peer)
    elif not _equal(one, other):
        yield path, f"{one!r} and {other!r}"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and one == other


def _tensors(one: dict, other: dict, path: str, mine: pathlib.Path, peer: pathlib.Path) -> Iterator[tuple[str, str]]:
    if list(one) != list(other):
        yield path, f"keys {list(one)} and {list(other)}"
        return
    for key in one:
        a, b = one[key], other[key]
        if key in _STATISTICS and isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool):
            scale = max((abs(v) for v in (other["Max"], other["Min"]) if isinstance(v, (int, float))), default=0.0)
            if not (_equal(float(a), float(b)) or abs(a - b) <= TOLERANCE * max(abs(b), scale if key == "Mean" else 0, 1e-30)):
                yield f"{path}.{key}", f"{a!r} and {b!r}"
        elif not _equal(a, b) and not (key == "data_name" and path.startswith("Primitive.") and ".backward." in path):
            yield f"{path}.{key}", f"{a!r} and {b!r}"
    if "data_name" in one:
        x = numpy.load(mine / "dump_tensor_data" / one["data_name"])
        y = numpy.load(peer / "dump_tensor_data" / other["data_name"])
        if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
            yield path, f"bytes of {one['data_name']} differ: {x.dtype}{x.shape} and {y.dtype}{y.shape}"


def _construct(mine: dict, peer: dict) -> Iterator[str]:
    for entry in dict.fromkeys([*mine, *peer]):
        one, other = mine.get(entry, "-"), peer.get(entry, "-")
        if one != other:
            yield f"construct {entry}: {one} and {other}"


def _frames(stack: dict) -> dict[str, list[str]]:
    return {entry: frames for entries, frames in stack.values() for entry in entries}


def _stacks(mine: dict, peer: dict) -> Iterator[str]:
    one, other = _frames(mine), _frames(peer)
    if list(one) != list(other) and sorted(one) != sorted(other):
        yield f"stacks of {sorted(set(one) ^ set(other))}"
    for entry in one:
        # msprobe's API is a Cell of its own: its call stands first in the stack.
        a, b = (_of_user(frames[entry]) for frames in (one, other) if entry in frames) if entry in other else ((), ())
        if a != b:
            yield f"stack {entry}: {list(a)[:2]} and {list(b)[:2]}"


def _of_user(frames: list[str]) -> tuple[str, ...]:
    frames = list(frames)
    while frames and any(part in frames[0] for part in ("/mindspore/nn/cell.py", "/check_jit_forbidden_api.py")):
        frames.pop(0)
    return tuple(frames)
