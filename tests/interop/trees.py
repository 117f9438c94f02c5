# SPDX-License-Identifier: Apache-2.0
"""Compares two dump trees entry by entry.

`differences(theirs, ours)` yields one line for each difference, "where: what":
names, order, keys, values. Max/Min and checksums are exact, Mean/Norm within
1e-5 relative, payloads bit-equal.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
from typing import Any, Iterator

import torch

_TOLERANCE = 1e-5
_MISSING = "(absent)"


def _numbers_equal(key: str, a: Any, b: Any) -> bool:
    if isinstance(a, bool) != isinstance(b, bool) or isinstance(a, int) != isinstance(b, int):
        return False
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if key in ("Mean", "Norm"):
        return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-7)
    return a == b


def _values(where: str, key: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            if set(a) == set(b):
                yield f"{where}: order of keys {list(a)} / {list(b)}"
            else:
                yield f"{where}: keys {list(a)} / {list(b)}"
        for name in a:
            if name in b:
                yield from _values(f"{where}.{name}", name, a[name], b[name])
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{where}: length {len(a)} / {len(b)}"
        for i, (x, y) in enumerate(zip(a, b)):
            yield from _values(f"{where}.{i}", str(i), x, y)
    elif isinstance(a, (int, float)) and isinstance(b, (int, float)):
        if not _numbers_equal(key, a, b):
            yield f"{where}: {a!r} / {b!r}"
    elif a != b:
        yield f"{where}: {json.dumps(a)[:120]} / {json.dumps(b)[:120]}"


def _names(where: str, a: list[str], b: list[str]) -> Iterator[str]:
    """Missing, extra and moved names."""
    for name in a:
        if name not in b:
            yield f"{where}: {name} only in msprobe"
    for name in b:
        if name not in a:
            yield f"{where}: {name} only in rankprobe"
    common_a, common_b = [n for n in a if n in b], [n for n in b if n in a]
    if common_a != common_b:
        at = next(i for i, (x, y) in enumerate(zip(common_a, common_b)) if x != y)
        yield f"{where}: order differs from {common_a[at]} / {common_b[at]}"


def _load(path: pathlib.Path) -> Any:
    if not path.exists():
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def _dump(where: str, theirs: Any, ours: Any) -> Iterator[str]:
    for key in ("task", "level", "framework"):
        if theirs.get(key) != ours.get(key):
            yield f"{where}.{key}: {theirs.get(key)} / {ours.get(key)}"
    if (theirs.get("dump_data_dir") is None) != (ours.get("dump_data_dir") is None):
        yield f"{where}.dump_data_dir: {theirs.get('dump_data_dir')} / {ours.get('dump_data_dir')}"
    a, b = theirs.get("data", {}), ours.get("data", {})
    yield from _names(where, list(a), list(b))
    for name in a:
        if name in b:
            yield from _values(f"{where}:{name}", "", a[name], b[name])


def _stacks(where: str, theirs: Any, ours: Any) -> Iterator[str]:
    def by_entry(stacks: dict) -> dict[str, list[str]]:
        return {entry: frames for entries, frames in stacks.values() for entry in entries}

    a, b = by_entry(theirs), by_entry(ours)
    yield from _names(where, list(a), list(b))
    for name in a:
        if name in b and a[name] != b[name]:
            at = next((i for i, (x, y) in enumerate(zip(a[name], b[name])) if x != y), min(len(a[name]), len(b[name])))
            pair = [frames[at] if at < len(frames) else _MISSING for frames in (a[name], b[name])]
            yield f"{where}:{name}: frame {at}: {pair[0]!r} / {pair[1]!r}"


def _payloads(where: str, theirs: pathlib.Path, ours: pathlib.Path) -> Iterator[str]:
    a = sorted(p.name for p in theirs.glob("*")) if theirs.exists() else []
    b = sorted(p.name for p in ours.glob("*")) if ours.exists() else []
    yield from _names(where, a, b)
    for name in a:
        if name not in b or not name.endswith(".pt"):
            continue
        x, y = (torch.load(d / name, weights_only=True).detach() for d in (theirs, ours))
        if x.dtype != y.dtype or x.shape != y.shape:
            yield f"{where}:{name}: {x.dtype}{list(x.shape)} / {y.dtype}{list(y.shape)}"
        elif x.numel() and not torch.equal(x.contiguous().reshape(-1).view(torch.uint8),
                                           y.contiguous().reshape(-1).view(torch.uint8)):
            yield f"{where}:{name}: bytes differ"


def _rank_name(name: str) -> str:
    return re.sub(r"^proc\d+$", "proc", name)


def differences(theirs: pathlib.Path, ours: pathlib.Path) -> Iterator[str]:
    """Everything in which the tree `ours` differs from the tree `theirs`."""
    def ranks(root: pathlib.Path) -> dict[str, pathlib.Path]:
        return {f"{step.name}/{_rank_name(rank.name)}": rank
                for step in sorted(root.glob("step*")) for rank in sorted(step.iterdir())}

    a, b = ranks(theirs), ranks(ours)
    yield from _names("tree", list(a), list(b))
    for key in a:
        if key not in b:
            continue
        for file, compare in (("dump.json", _dump), ("debug.json", _dump), ("stack.json", _stacks),
                              ("construct.json", None)):
            x, y = _load(a[key] / file), _load(b[key] / file)
            where = f"{key}/{file}"
            if (x is None) != (y is None):
                yield f"{where}: only in {'rankprobe' if x is None else 'msprobe'}"
            elif x is None:
                continue
            elif compare is not None:
                yield from compare(where, x, y)
            else:
                yield from _names(where, list(x), list(y))
                for name in x:
                    if name in y and x[name] != y[name]:
                        yield f"{where}:{name}: {x[name]} / {y[name]}"
        yield from _payloads(f"{key}/dump_tensor_data", a[key] / "dump_tensor_data", b[key] / "dump_tensor_data")


if __name__ == "__main__":
    import sys

    for line in differences(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])):
        print(line)
