# SPDX-License-Identifier: Apache-2.0
"""Which modules that behave differently in evaluation are in it while the model is trained.

A dropout that is off, or a BatchNorm that uses what it learned before, changes no shape and raises nothing. Modes are read, never
set. A mode counts where a loss begins its backward, of a model that an optimizer's step of the same step of the program changes.
"""

from __future__ import annotations

import weakref
from typing import Any, Iterable, Iterator, Optional

import torch

_DROPOUTS = torch.nn.modules.dropout._DropoutNd
_NORMS = torch.nn.modules.batchnorm._NormBase


def _depends_on_mode(module: torch.nn.Module) -> bool:
    if isinstance(module, _DROPOUTS):
        return bool(module.p > 0)
    if isinstance(module, _NORMS):
        return bool(module.track_running_stats)
    if isinstance(module, torch.nn.MultiheadAttention):
        return bool(module.dropout > 0)
    return isinstance(module, torch.nn.RNNBase) and bool(module.dropout > 0)


def _settings_of(modules: Iterable[Any]) -> dict[str, float]:
    """The largest share of numbers that a dropout drops, and the largest weight of the newest batch in a norm's running statistics;
    each where there is such a module."""
    found: dict[str, float] = {}
    for module in modules:
        name, value = "", None
        if isinstance(module, _DROPOUTS):
            name, value = "drop_probability", module.p
        elif isinstance(module, _NORMS):
            name, value = "norm_momentum", module.momentum  # None: all batches have one weight
        if isinstance(value, (int, float)):
            found[name] = max(found.get(name, 0.0), float(value))
    return found


def _modules_below(root: torch.nn.Module, around: dict[int, torch.nn.Module]) -> list[torch.nn.Module]:
    """It and all modules in it, each once. around: gets the one that each was found in. Methods of the program are not called."""
    found = [root]
    for module in found:
        for child in module._modules.values():
            if child is not None and child is not root and id(child) not in around:
                around[id(child)] = module
                found.append(child)
    return found


def _parameters_below(root: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for module in _modules_below(root, {}) for parameter in module._parameters.values() if parameter is not None]


def _is_trained(module: torch.nn.Module, around: dict[int, torch.nn.Module]) -> bool:
    """Whether it or the nearest module around it that has parameters has one that requires a gradient."""
    parameters = _parameters_below(module)
    while not parameters:
        outer = around.get(id(module))
        if outer is None:
            return False
        module = outer
        parameters = _parameters_below(module)
    return any(parameter.requires_grad for parameter in parameters)


class _Root:
    """A model: what is called, and what of it depends on its mode."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.root = weakref.ref(root)
        # A wrapper (DistributedDataParallel) keeps its mode when eval() is called of what it wraps.
        inner = root
        while len(inner._modules) == 1 and not inner._parameters:
            child = next(iter(inner._modules.values()))
            if child is None or isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
                break
            inner = child
        self.inner = weakref.ref(inner)
        around: dict[int, torch.nn.Module] = {}
        found = [module for module in _modules_below(root, around) if _depends_on_mode(module)]
        self.switches = [weakref.ref(module) for module in found if _is_trained(module, around)]
        self.parameters = {id(parameter) for parameter in _parameters_below(root)} if self.switches else set()


class Modes:
    """begin() with a step, note() before each backward, hold() at each optimizer's step, take() at the end of the step."""

    def __init__(self) -> None:
        self._roots: list[_Root] = []
        # By root: the switches that no loss of this step found in training, and whether the model was in evaluation at all of them.
        self._asleep: list[list[weakref.ref[Any]]] = []
        self._evaluated: list[bool] = []
        self._noted = False
        self._held: set[int] = set()
        # Of the models of the last take() that gave something.
        self.settings: dict[str, float] = {}

    def begin(self, model: Any) -> None:
        roots = [] if model is None else list(model) if isinstance(model, (list, tuple)) else [model]
        if len(roots) != len(self._roots) or any(known.root() is not root or known.inner() is None or
                                                 any(switch() is None for switch in known.switches)
                                                 for known, root in zip(self._roots, roots)):
            self._roots = [_Root(root) for root in roots]
        self._noted, self._held = False, set()
        self._asleep = [known.switches for known in self._roots]
        self._evaluated = [True] * len(self._roots)

    def note(self) -> None:
        self._noted = True
        for number, known in enumerate(self._roots):
            self._asleep[number] = [switch for switch in self._asleep[number] if not getattr(switch(), "training", True)]
            self._evaluated[number] = self._evaluated[number] and not getattr(known.inner(), "training", True)

    def hold(self, optimizer: Any) -> None:
        """A step of it begins."""
        for number, known in enumerate(self._roots):
            if number not in self._held and any(id(parameter) in known.parameters for parameter in _parameters_of(optimizer)):
                self._held.add(number)

    def take(self) -> Optional[list[int]]:
        """Switches in evaluation, all switches, and 1 where all models were in evaluation; None: nothing depends on it."""
        trained = sorted(self._held) if self._noted else []
        number = sum(len(self._roots[one].switches) for one in trained)
        self._noted, self._held = False, set()
        if number == 0:
            return None
        self.settings = _settings_of(switch() for one in trained for switch in self._roots[one].switches)
        return [sum(len(self._asleep[one]) for one in trained), number, int(all(self._evaluated[one] for one in trained))]


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


__all__ = ["Modes"]
