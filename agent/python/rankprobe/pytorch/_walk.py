# SPDX-License-Identifier: Apache-2.0
"""What is below a model. Methods of modules are not called: a class may have others, and an attribute may have the name of one
(`self.named_modules = {}`)."""

from __future__ import annotations

from typing import Iterator

import torch


def named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """It and all modules below it with their paths, each once, in the order of PyTorch's own."""
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
    """By name, each once."""
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


__all__ = ["modules", "named_buffers", "named_modules", "named_parameters", "own_parameters", "parameters"]
