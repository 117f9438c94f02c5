# SPDX-License-Identifier: Apache-2.0
"""Traversal of the modules below a model. Calls no methods of modules, because a class may override them, and an attribute may have
the name of a method (`self.named_modules = {}`)."""

from __future__ import annotations

import weakref
from typing import Any, Generic, Iterator, Optional, TypeVar

import torch

_Value = TypeVar("_Value")


class ByModule(Generic[_Value]):
    """Values by module, which do not keep the modules alive. Modules are identified by id and never hashed or compared, because their
    class may override __eq__ and __hash__."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[Any], _Value]] = {}

    def get(self, module: torch.nn.Module) -> Optional[_Value]:
        reference, value = self._values.get(id(module), (None, None))
        return value if reference is not None and reference() is module else None

    def set(self, module: torch.nn.Module, value: _Value) -> _Value:
        key, values = id(module), self._values

        def gone(reference: weakref.ref[Any]) -> None:
            if values.get(key, (None, None))[0] is reference:
                del values[key]

        values[key] = (weakref.ref(module, gone), value)
        return value

    def values(self) -> list[_Value]:
        return [value for _, value in list(self._values.values())]

    def clear(self) -> None:
        self._values.clear()


def named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields (path, module) of `root` and all modules below it, each once, in the order of PyTorch's method."""
    seen: set[int] = set()
    left = [("", root)]
    while left:
        path, module = left.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module
            left += [(f"{path}.{name}" if path else name, child)
                     for name, child in reversed(list(module._modules.items())) if child is not None]


def modules(root: torch.nn.Module) -> Iterator[torch.nn.Module]:
    return (module for _, module in named_modules(root))


def own_parameters(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the parameters of the module itself by name; a parameter with several names has the first one."""
    found: dict[str, torch.Tensor] = {name: p for name, p in module._parameters.items() if p is not None}
    if len(found) > 1 and len(set(map(id, found.values()))) < len(found):
        first = {id(p): name for name, p in reversed(found.items())}
        return {name: p for name, p in found.items() if first[id(p)] == name}
    return found


def _named_tensors(root: torch.nn.Module, table: str) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    for path, module in named_modules(root):
        for name, tensor in getattr(module, table).items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor


def named_parameters(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return _named_tensors(root, "_parameters")


def named_buffers(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return _named_tensors(root, "_buffers")


def parameters(root: torch.nn.Module) -> Iterator[torch.Tensor]:
    return (parameter for _, parameter in named_parameters(root))


__all__ = ["ByModule", "modules", "named_buffers", "named_modules", "named_parameters", "own_parameters", "parameters"]
