# SPDX-License-Identifier: Apache-2.0
"""Stand-ins and hooks that are installed in MindSpore while a plan is in force."""

from __future__ import annotations

from typing import Any, Callable, Sequence, Union

from mindspore import nn

from rankprobe.mindspore._apis import Apis
from rankprobe.mindspore._cells import CellHooks, named_cells

Model = Union[nn.Cell, Sequence[nn.Cell]]


class Instruments:
    """Stand-ins of APIs and hooks of cells, with the interface that rankprobe._frontend.debugger uses. They stay installed between
    the end of a recording and the next step, while the Capture records nothing."""

    def __init__(self, capture: Any, on_root_begin: Callable[[], None], on_root_end: Callable[[], None]) -> None:
        self.apis = Apis(capture)
        self._cells = CellHooks(capture)
        self._cells.on_root_begin, self._cells.on_root_end = on_root_begin, on_root_end
        # Whether the stand-ins and hooks of the plan in force are installed.
        self.applied = False

    def apply(self, plan: dict[str, Any]) -> None:
        """Installs the stand-ins and hooks that the plan's level needs, and removes others."""
        if self.applied:
            self.take_off()
        self.applied = True
        # construct.json lists backward calls even if their data is not recorded.
        self._cells.backward = plan["backward"] or plan["extra_info"]
        self._cells.parameters_grad = plan["parameters_grad"]
        if plan["records_apis"]:
            self.apis.install()

    def take_off(self) -> None:
        """Removes everything from MindSpore, for steps that are not recorded."""
        self.applied = False
        self.apis.remove()
        self._cells.remove()

    set_aside = remove = take_off

    def put_back(self, plan: dict[str, Any]) -> None:
        """Installs the stand-ins and hooks again when a step is recorded with the plan that was applied."""
        if not self.applied:
            self.apply(plan)

    def watch(self, model: Model, plan: dict[str, Any], tokens: bool, bare_roots: bool) -> None:
        """Hooks the model(s) that the step records. tokens: counts their forwards."""
        if plan["records_modules"]:
            self._cells.hook_model(model)
        if plan["records_apis"]:
            self.apis.watch_primitives([cell for _, cell, _ in named_cells(model)])
        if tokens:
            self._cells.hook_roots(model)

    def begin_step(self, plan: dict[str, Any]) -> None:
        self._cells.begin_step()

    def end_recording(self) -> None:
        pass

    def end_step(self) -> None:
        pass
