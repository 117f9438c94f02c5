# SPDX-License-Identifier: Apache-2.0
"""Stand-ins and hooks that are installed in PyTorch while a plan is in force."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Union

import torch

from rankprobe.pytorch._apis import Apis, optimizer_scopes
from rankprobe.pytorch._compiled import CompilerImport, EagerStance, compiles
from rankprobe.pytorch._graphs import RecordedGraphs
from rankprobe.pytorch._module_dump import ModuleDump
from rankprobe.pytorch._modules import ModuleHooks
from rankprobe.pytorch._process import is_distributed, warn
from rankprobe.pytorch._recompute import Recomputations

Model = Union[torch.nn.Module, Sequence[torch.nn.Module]]


class Instruments:
    """Installs and removes what a level needs: recorded API calls and hooks of modules,
    recomputations and optimizers, all of which record through one Capture. Called only
    by PrecisionDebugger.

    on_root_begin, on_root_end: called around each forward of a model with token_range.
    """

    def __init__(self, capture: Any, on_root_begin: Callable[[], None], on_root_end: Callable[[], None]) -> None:
        self._capture = capture
        self.apis = Apis(capture)
        # Recorded calls of torch.distributed for task monitor; created when first needed.
        self._communication: Optional[Apis] = None
        self._modules = ModuleHooks(capture, warn)
        self._modules.on_root_begin = on_root_begin
        self._modules.on_root_end = on_root_end
        self.module_dump = ModuleDump(capture, self._modules)
        self._recomputations = Recomputations(lambda: capture.active)
        self._scopes: list[Callable[[], None]] = []
        self._eager = EagerStance(self.apis.unseen)
        self._graphs = RecordedGraphs(capture, self._modules, self._eager.enter_quietly)
        # Whether forwards are counted in this step, by hooks that graphs do not support.
        self._tokens = False
        self.apis.on_compile = self._compile_called
        self._import = CompilerImport(self._compiler_comes, self._compiler_came)
        # Whether the plan in force was applied, and whether its hooks are installed and not set aside.
        self.applied = self._in_place = False
        # Whether calls of APIs or modules may be recorded, until end_recording().
        self._recording = False

    def apply(self, plan: dict[str, Any]) -> None:
        """Installs the stand-ins and hooks that the plan's level needs, and removes others."""
        self.applied = self._in_place = True
        self._import.install()
        # construct.json lists backward calls even if their data is not recorded.
        self._modules.want(plan["backward"] or plan["extra_info"], plan["parameters_grad"])
        if not plan["records_saved"]:
            self._recomputations.install()
        if plan["records_apis"]:
            self.apis.use(plan["api_list"])
        else:
            self.apis.remove()
        self._remove_scopes()

    def _install_apis(self, plan: dict[str, Any]) -> None:
        self._install_communication(plan)
        if plan["records_apis"]:
            self.apis.install()
            if plan["records_modules"] and not self._scopes:
                self._scopes = list(optimizer_scopes(self._capture))

    def _install_communication(self, plan: dict[str, Any]) -> None:
        # A compiler that saw the stand-ins would break its graphs at each of them.
        if not plan.get("monitor", {}).get("communication") or compiles() or not is_distributed():
            return self._remove_communication()
        if self._communication is None:
            self._communication = Apis(self._capture, only="Distributed")
            self._communication.on_compile = self._remove_communication
        self._communication.install()

    def _remove_communication(self) -> None:
        if self._communication is not None:
            self._communication.remove()

    def take_off(self) -> None:
        """Removes everything while dumping is off."""
        self.applied = False
        self.set_aside()

    def set_aside(self) -> None:
        """Removes everything that a compiler could trace, for steps that are not recorded."""
        if self._in_place:
            self._in_place = False
            self._import.remove()
            self.apis.remove()
            self._remove_communication()
            self._modules.remove()
            self._remove_scopes()
            self._recomputations.remove()

    def put_back(self, plan: dict[str, Any]) -> None:
        """Installs everything again when a step is recorded with the plan that was applied."""
        self._recording = True
        if not self._in_place:
            self.apply(plan)
        self._install_apis(plan)

    def _remove_scopes(self) -> None:
        for undo in self._scopes:
            undo()
        self._scopes.clear()

    def _compile_called(self) -> None:
        if not self._eager.wanted:  # A forward before the first start() may compile.
            self.set_aside()

    def _compiler_comes(self) -> None:
        self.apis.show_originals()
        self._remove_communication()

    def _compiler_came(self) -> None:
        self.apis.show_stand_ins()
        if self._graphs.wanted and not self._graphs.compiler_came():
            self._eager.enter()
        self._eager.compiler_came()

    def watch(self, model: Model, plan: dict[str, Any], tokens: bool, bare_roots: bool) -> None:
        """Hooks the model(s) that the step records. tokens: counts their forwards. bare_roots: as in ModuleHooks."""
        self._modules.bare_roots = bare_roots
        if plan["records_modules"]:
            self._modules.hook_model(model)
        self._tokens = tokens
        if tokens:
            self._modules.hook_roots(model)
        self._recomputations.watch(list(model) if isinstance(model, (list, tuple)) else [model])  # type: ignore[list-item]

    def compile_ahead(self, model: Model, run: Callable[[], Any]) -> None:
        """Compiles the graphs that record now, by `run`, which calls the model; records nothing. It is called before a server
        serves requests, so that its first recorded step does not wait for the compiler."""
        self._modules.hook_model(model)
        try:
            if self._graphs.enter():
                run()
        finally:
            self._graphs.end_step()
            self._modules.remove()

    def forget_models(self) -> None:
        """Removes the hooks of models. Call between steps if the next watch() has other models or other names."""
        self._modules.remove()

    def on_first_module(self, call: Optional[Callable[[], None]]) -> None:
        """Sets a function to be called once when the first module below a model begins its forward; None unsets it."""
        self._modules.on_first = call

    def begin_step(self, plan: dict[str, Any]) -> None:
        self._modules.begin_step()
        only_modules = plan["records_modules"] and not plan["records_apis"] and not self._tokens
        if not (only_modules and self._graphs.enter()):
            self._eager.enter()

    def end_recording(self) -> None:
        """Stops recording APIs; gradients are still recorded."""
        if not self._recording:
            return
        self._recording = False
        self._eager.leave()
        self._graphs.leave()
        self.apis.remove()
        self._remove_scopes()
        if compiles():
            self._remove_communication()

    def end_step(self) -> None:
        """Stops recording gradients of the step as well."""
        self.end_recording()
        self._graphs.end_step()
        self.module_dump.end_step()
        if compiles():
            self.set_aside()

    def remove(self) -> None:
        """Removes everything permanently."""
        self._import.remove()
        self.apis.remove()
        self._remove_communication()
        self._modules.remove()
        self._recomputations.remove()
        self._remove_scopes()
        self._eager.leave()
        self._graphs.end_step()
