# SPDX-License-Identifier: Apache-2.0
"""Recorded calls in the text form of PyTorch's DebugMode, for comparison with its output.

    with DebugMode(record_torchfunction=True, record_nn_module=True) as mode, DebugMode.log_tensor_hashes(hash_fn=norm):
        model(batch)
    print(mode.debug_string())
    print(debug_string("dump_path/step0/rank0", root="Llama"))
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
from typing import Any, Iterator, Mapping, Optional, Union

import torch

_SPACES = {"Functional": torch.nn.functional, "Torch": torch, "Tensor": torch.Tensor, "Distributed": torch.distributed}


def norm(tensor: torch.Tensor) -> float:
    """Returns the Norm that rankprobe records, for DebugMode.log_tensor_hashes(hash_fn=norm)."""
    return float(tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64).norm())


def debug_string(directory: Union[str, "os.PathLike[str]"], root: str = "") -> str:
    """Returns the forward calls in a rank's directory of a dump (dump_path/step0/rank0), in the form of DebugMode.debug_string() with
    record_torchfunction, record_nn_module and log_tensor_hashes(hash_fn=norm). root: class name of the model, with which DebugMode
    prefixes names of modules; "" keeps those of named_modules(). Raises OSError, ValueError or KeyError if dump.json is not valid."""
    place = pathlib.Path(directory)
    data = json.loads((place / "dump.json").read_text(encoding="utf-8"))["data"]
    construct = place / "construct.json"
    below = _tree(data, json.loads(construct.read_text(encoding="utf-8")) if construct.exists() else {})
    lines = [_indented(1, f"[nn.Mod] {root}")] if root else []
    lines += _lines(below, None, data, f"{root}." if root else "", 1 if root else 0)
    return "\n".join(lines)


def _tree(data: Mapping[str, Any], parents: Mapping[str, Any]) -> Mapping[Optional[str], list[str]]:
    """Returns the forward calls in each module in the order in which they began; the outermost calls are under None."""
    below: dict[Optional[str], list[str]] = collections.defaultdict(list)
    placed = set()
    for name in data:
        one: Optional[str] = name if ".forward" in name else None
        while one is not None and one not in placed:
            placed.add(one)
            parent = parents.get(one)
            parent = parent[0] if isinstance(parent, list) else parent  # A list also has the number of a micro batch.
            below[parent].append(one)
            one = parent
    return below


def _lines(below: Mapping[Optional[str], list[str]], module: Optional[str], data: Mapping[str, Any], root: str, depth: int) -> Iterator[str]:
    for name in below.get(module, ()):
        if name.startswith("Module."):
            yield _indented(depth + 1, f"[nn.Mod] {root}{'.'.join(name.split('.')[1:-3])}")
            yield from _lines(below, name, data, root, depth + 1)
        elif name in data:
            yield _indented(depth, _call(name, data[name]))
        else:  # A container without an entry of its own, such as that of an optimizer's calls.
            yield from _lines(below, name, data, root, depth)


def _indented(depth: int, text: str) -> str:
    return "  " + "  " * depth + text


def _call(name: str, entry: Mapping[str, Any]) -> str:
    inputs = [str(_value(one)) for one in entry.get("input_args") or []]
    inputs += [f"{key}={_value(one)}" for key, one in (entry.get("input_kwargs") or {}).items()]
    outputs = entry.get("output") or []
    norms = [one.get("Norm") if isinstance(one, dict) else None for one in outputs]
    text = f"{_function(name)}({', '.join(inputs)})"
    if any(one is not None for one in outputs):
        text += f"  ->  {_one_or_all([_value(one) for one in outputs])}"
    if any(one is not None for one in norms):
        text += f"  # {{'hash': {_one_or_all(norms)}}}"
    return text


def _function(name: str) -> str:
    """Returns DebugMode's name for the function of a recorded call."""
    space, _, rest = name.partition(".")
    function = rest.rsplit(".", 2)[0]
    found: Any = _SPACES.get(space)
    for part in function.split("."):
        found = getattr(found, part, None)
    if found is None:
        return f"{space}.{function}"
    module, own = getattr(found, "__module__", None), getattr(found, "__name__", None)
    return f"{module}.{own}" if module and own else str(found)


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "shape" in value and "dtype" in value:
        dtype = getattr(torch, str(value["dtype"]).removeprefix("torch."), None)
        return f"t: {getattr(dtype, 'abbr', value['dtype'])}{value['shape']}"
    if "type" in value and "value" in value:
        return value["value"]
    return {key: _value(one) for key, one in value.items()}


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


__all__ = ["debug_string", "norm"]
