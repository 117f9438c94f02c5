"""What is in place in PyTorch while a plan is in force."""

from __future__ import annotations

from typing import Any, Callable, Sequence, Union

import torch

from rankprobe.pytorch._apis import Apis, optimizer_scopes
from rankprobe.pytorch._module_dump import ModuleDump
from rankprobe.pytorch._modules import ModuleHooks
from rankprobe.pytorch._process import warn
from rankprobe.pytorch._recompute import Recomputations

Model = Union[torch.nn.Module, Sequence[torch.nn.Module]]


class Instruments:
    """The stand-ins of APIs, the hooks of modules, recomputations and optimizers,
    all recording through one Capture: puts in place those that the level needs,
    and takes them off again. Called by PrecisionDebugger alone.

    on_root_begin, on_root_end: around each forward of a model of token_range.
    """

    def __init__(self, capture: Any, on_root_begin: Callable[[], None], on_root_end: Callable[[], None]) -> None:
        self._capture = capture
        self.apis = Apis(capture)
        self._modules = ModuleHooks(capture, warn)
        self._modules.on_root_begin = on_root_begin
        self._modules.on_root_end = on_root_end
        self.module_dump = ModuleDump(capture, self._modules)
        self._recomputations = Recomputations(lambda: capture.active)
        self._scopes: list[Callable[[], None]] = []
        # They are those of the plan in force.
        self.applied = False

    def apply(self, plan: dict) -> None:
        """Patches and hooks that this level needs, and no others."""
        self.applied = True
        # construct.json names backward calls even where their data is not wanted.
        self._modules.backward = plan["backward"] or plan["extra_info"]
        self._modules.parameters_grad = plan["parameters_grad"]
        if not plan["records_saved"]:
            self._recomputations.install()
        if plan["records_apis"]:
            self.apis.use(plan["api_list"])
            self.apis.install()
        else:
            self.apis.leave_mode()
            self.apis.remove()
        for undo in self._scopes:
            undo()
        self._scopes.clear()
        if plan["records_apis"] and plan["records_modules"]:
            self._scopes = list(optimizer_scopes(self._capture))

    def take_off(self) -> None:
        """While dumping is off. Hooks of modules stay: they cost one test each."""
        if self.applied:
            self.applied = False
            self.apis.remove()
            self._recomputations.remove()

    def watch(self, model: Model, plan: dict, tokens: bool) -> None:
        """The model(s) that the step records. tokens: their forwards are counted."""
        if plan["records_modules"]:
            self._modules.hook_model(model)
        if tokens:
            self._modules.hook_roots(model)
        self._recomputations.watch(list(model) if isinstance(model, (list, tuple)) else [model])

    def begin_step(self, plan: dict) -> None:
        self._modules.begin_step()
        if plan["records_apis"]:
            self.apis.enter_mode()

    def leave_mode(self) -> None:
        """No API is recorded from here on."""
        self.apis.leave_mode()

    def remove(self) -> None:
        """Everything, for good."""
        self.apis.remove()
        self._modules.remove()
        self._recomputations.remove()
        for undo in self._scopes:
            undo()
