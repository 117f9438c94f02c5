# SPDX-License-Identifier: Apache-2.0
"""The values of one call of a module: places in nested containers, and a copy with other tensors in some places."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Iterator, Mapping

import torch

_MAX_DEPTH = 45


def tensors(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) of what lists, tuples and dicts hold, in order."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth < _MAX_DEPTH and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors(item, f"{path}.{index}", depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{path}.{key}", depth + 1)


def with_tensors(value: Any, path: str, instead: Mapping[str, torch.Tensor], depth: int = 0) -> Any:
    """The value with other tensors in these places; containers are copied, the program's are left as they are."""
    if isinstance(value, torch.Tensor):
        return instead.get(path, value)
    if depth >= _MAX_DEPTH or not any(place.startswith(f"{path}.") for place in instead):
        return value
    if isinstance(value, (list, tuple)):
        items = [with_tensors(item, f"{path}.{index}", instead, depth + 1) for index, item in enumerate(value)]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, item in value.items():
            changed = with_tensors(item, f"{path}.{key}", instead, depth + 1)
            if changed is not item:
                made[key] = changed
        return made
    return value


def as_outputs(output: Any) -> Any:
    """As dumps have it: a list of what was returned."""
    return output if isinstance(output, (list, tuple)) else [output]


class Arguments:
    """Names of a module's arguments, so that one that is given by position here and by keyword there is the same one."""

    def __init__(self, module: torch.nn.Module) -> None:
        try:
            parameters = inspect.signature(module.forward).parameters.values()
            self._names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        except (TypeError, ValueError):
            self._names = []

    def name(self, path: str) -> str:
        """Of `input.0.1` or `kwargs.mask`."""
        kind, _, rest = path.partition(".")
        if kind == "kwargs":
            return rest
        index, dot, deeper = rest.partition(".")
        place = int(index)
        return (self._names[place] if place < len(self._names) else f"input.{index}") + dot + deeper
