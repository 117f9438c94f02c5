# SPDX-License-Identifier: Apache-2.0
"""What is in place in MindSpore while a plan is in force."""

from __future__ import annotations

from typing import Any, Callable, Sequence, Union

from mindspore import nn

from rankprobe.mindspore._apis import Apis
from rankprobe.mindspore._cells import CellHooks, named_cells

Model = Union[nn.Cell, Sequence[nn.Cell]]


class Instruments:
    """The stand-ins of APIs and the hooks of cells, as rankprobe._frontend.debugger uses them. Between the end of a recording
    and the next step they stay in place: the Capture records nothing then."""

    def __init__(self, capture: Any, on_root_begin: Callable[[], None], on_root_end: Callable[[], None]) -> None:
        self.apis = Apis(capture)
        self._cells = CellHooks(capture)
        self._cells.on_root_begin, self._cells.on_root_end = on_root_begin, on_root_end
        # They are those of the plan in force.
        self.applied = False

    def apply(self, plan: dict[str, Any]) -> None:
        """Stand-ins and hooks that this level needs, and no others."""
        if self.applied:
            self.take_off()
        self.applied = True
        # construct.json names backward calls even where their data is not wanted.
        self._cells.backward = plan["backward"] or plan["extra_info"]
        self._cells.parameters_grad = plan["parameters_grad"]
        if plan["records_apis"]:
            self.apis.install()

    def take_off(self) -> None:
        """In steps that are not recorded nothing of ours is left in MindSpore."""
        self.applied = False
        self.apis.remove()
        self._cells.remove()

    set_aside = remove = take_off

    def put_back(self, plan: dict[str, Any]) -> None:
        """A step is recorded again, by the plan that was applied."""
        if not self.applied:
            self.apply(plan)

    def watch(self, model: Model, plan: dict[str, Any], tokens: bool, bare_roots: bool) -> None:
        """The model(s) that the step records. tokens: their forwards are counted."""
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
