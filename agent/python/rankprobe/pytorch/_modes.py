# SPDX-License-Identifier: Apache-2.0
"""Detection of modules in evaluation mode while their model is trained, for modules that behave differently in it.

A dropout that is off, or a BatchNorm that uses its running statistics, changes no shape and raises no error. Modes are read and
never set. A mode is read when a loss begins its backward, and counts for a model that an optimizer changes in the same step.
"""

from __future__ import annotations

import weakref
from typing import Any, Iterable, Iterator, Optional

import torch

_DROPOUTS = torch.nn.modules.dropout._DropoutNd
_NORMS = torch.nn.modules.batchnorm._NormBase
# Steps in which hooks are counted: a loop that adds some does so from its first step on.
_HOOK_STEPS = 32


def _depends_on_mode(module: torch.nn.Module) -> bool:
    if isinstance(module, _DROPOUTS):
        return bool(module.p > 0)
    if isinstance(module, _NORMS):
        return bool(module.track_running_stats)
    if isinstance(module, torch.nn.MultiheadAttention):
        return bool(module.dropout > 0)
    return isinstance(module, torch.nn.RNNBase) and bool(module.dropout > 0)


def _settings_of(modules: Iterable[Any]) -> dict[str, float]:
    """Returns the largest probability of all dropouts, and the largest momentum of all norms with running statistics, if there are
    such modules."""
    found: dict[str, float] = {}
    for module in modules:
        name, value = "", None
        if isinstance(module, _DROPOUTS):
            name, value = "drop_probability", module.p
        elif isinstance(module, _NORMS):
            name, value = "norm_momentum", module.momentum  # None if all batches have the same weight
        if isinstance(value, (int, float)):
            found[name] = max(found.get(name, 0.0), float(value))
    return found


def _modules_below(root: torch.nn.Module, around: dict[int, torch.nn.Module]) -> list[torch.nn.Module]:
    """Returns `root` and all modules below it, each once. Adds the parent of each, by id, to `around`. Calls no method of the program."""
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
    """Returns whether the module, or the nearest enclosing one with parameters, has a parameter that requires a gradient."""
    parameters = _parameters_below(module)
    while not parameters:
        outer = around.get(id(module))
        if outer is None:
            return False
        module = outer
        parameters = _parameters_below(module)
    return any(parameter.requires_grad for parameter in parameters)


def _hooks_of(owner: Any, *tables: str) -> int:
    """Returns the number of hooks of the program on a module or parameter; rankprobe's own have negative keys."""
    return sum(isinstance(key, int) and key >= 0 for table in tables for key in getattr(owner, table, None) or ())


class _Root:
    """A model, and its modules that depend on the mode."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.root = weakref.ref(root)
        # A wrapper (DistributedDataParallel) does not change its mode if eval() of the wrapped model is called.
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
        self.norms = [weakref.ref(module) for module in found if isinstance(module, _NORMS)]

    def most_hooks(self) -> int:
        """Returns the largest number of hooks on a module or parameter of the model. A subclass of Parameter may have code of its own."""
        root = self.root()
        modules = [] if root is None else _modules_below(root, {})
        return max((hooks for module in modules for hooks in (
            _hooks_of(module, "_forward_hooks", "_forward_pre_hooks", "_backward_hooks"),
            *(_hooks_of(one, "_backward_hooks", "_post_accumulate_grad_hooks") for one in module._parameters.values()
              if type(one) is torch.nn.Parameter))), default=0)

    def unlearned_norms(self) -> list[torch.Tensor]:
        """Returns, for each norm in evaluation, whether its running statistics are those that it began with."""
        norms = [norm for norm in (one() for one in self.norms) if norm is not None and not norm.training]
        return [((mean == 0).all() & (variance == 1).all()).double() for mean, variance in (
            [norm._buffers.get(name) for name in ("running_mean", "running_var")] for norm in norms)
                if type(mean) is torch.Tensor is type(variance) and mean.device == variance.device]


class Modes:
    """Modes in one step. Call begin() at its beginning, note() before each backward, hold() at each optimizer's step, and take() at its
    end."""

    def __init__(self) -> None:
        self._roots: list[_Root] = []
        # By root: modules that were in evaluation at every loss of this step, and whether the model was.
        self._asleep: list[list[weakref.ref[Any]]] = []
        self._evaluated: list[bool] = []
        self._noted = False
        self._hook_steps = 0
        self._held: set[int] = set()
        # Settings of the models in the last take() that did not return None.
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
        """Call when a step of `optimizer` begins."""
        for number, known in enumerate(self._roots):
            if number not in self._held and any(id(parameter) in known.parameters for parameter in _parameters_of(optimizer)):
                self._held.add(number)

    def hooks(self) -> Optional[int]:
        """Returns the largest number of hooks of the program on one module or parameter; None after _HOOK_STEPS calls."""
        self._hook_steps += 1
        return max((known.most_hooks() for known in self._roots), default=0) if self._hook_steps <= _HOOK_STEPS else None

    def unlearned_norms(self) -> list[torch.Tensor]:
        """Returns the number of norms in evaluation whose running statistics are those that they began with, and of all in evaluation; []
        if there are none."""
        found = [one for known in self._roots for one in known.unlearned_norms()]
        if not found or len({one.device for one in found}) > 1:
            return []
        return [torch.stack(found).sum(), torch.tensor(float(len(found)), dtype=torch.float64)]

    def take(self) -> Optional[list[int]]:
        """Returns the number of mode-dependent modules in evaluation, the number of all of them, and 1 if all models were in evaluation,
        else 0. Returns None if no trained module depends on the mode."""
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
