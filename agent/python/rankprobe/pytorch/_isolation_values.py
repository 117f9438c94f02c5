# SPDX-License-Identifier: Apache-2.0
"""Values of one call of a module: tensors by place in nested containers, and copies with some tensors replaced."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Iterator, Mapping

import torch

_MAX_DEPTH = 45


def tensors(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (path, tensor) of the tensors in lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth < _MAX_DEPTH and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors(item, f"{path}.{index}", depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{path}.{key}", depth + 1)


def with_tensors(value: Any, path: str, instead: Mapping[str, torch.Tensor], depth: int = 0) -> Any:
    """Returns the value with the tensors at these places replaced. Changed containers are copied; those of the program are not
    modified."""
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
    """Returns the outputs as a list, as dumps have them."""
    return output if isinstance(output, (list, tuple)) else [output]


class Arguments:
    """Names of a module's arguments, which match an argument passed by position with one passed by keyword."""

    def __init__(self, module: torch.nn.Module) -> None:
        try:
            parameters = inspect.signature(module.forward).parameters.values()
            self._names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        except (TypeError, ValueError):
            self._names = []

    def name(self, path: str) -> str:
        """Returns the name of the argument at a path such as `input.0.1` or `kwargs.mask`."""
        kind, _, rest = path.partition(".")
        if kind == "kwargs":
            return rest
        index, dot, deeper = rest.partition(".")
        place = int(index)
        return (self._names[place] if place < len(self._names) else f"input.{index}") + dot + deeper
