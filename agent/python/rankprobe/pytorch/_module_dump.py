# SPDX-License-Identifier: Apache-2.0
"""Recording of a single module by module_dump(), without its children and without APIs."""

from __future__ import annotations

from typing import Any, Optional

import torch

from rankprobe.pytorch._errors import InvalidParameterError
from rankprobe.pytorch._modules import ModuleHooks
from rankprobe.pytorch._process import warn


class ModuleDump:
    """Records at most one module at a time; a further one replaces it."""

    def __init__(self, capture: Any, hooks: ModuleHooks) -> None:
        self._capture, self._hooks = capture, hooks
        self._dumped: Optional[tuple[torch.nn.Module, list[Any]]] = None

    def begin(self, module: Any, name: Any) -> None:
        """Starts recording `module` under `name`. Raises InvalidParameterError for other types or an empty name."""
        if not isinstance(module, torch.nn.Module):
            raise InvalidParameterError(f"module must be a torch.nn.Module, not {type(module).__name__}")
        if not isinstance(name, str) or not name:
            raise InvalidParameterError(f"dump_name must be a non-empty str, not {name!r}")
        if self._hooks.is_hooked(module):
            warn("module_dump: the module is recorded by start(model) already")
            return
        self.end()
        self._capture.set_apis_enabled(False)
        self._capture.set_modules_forced(True)
        self._dumped = (module, self._hooks.hook_module(name, module))

    def end(self) -> None:
        if self._dumped is not None:
            module, handles = self._dumped
            self._dumped = None
            self._hooks.remove(handles)
            self._hooks.forget(module)
        self._capture.set_apis_enabled(True)
        self._capture.set_modules_forced(False)

    def end_step(self) -> None:
        """Ends a module_dump() with the step, with a warning. An exception may have prevented module_dump_end()."""
        if self._dumped is not None:
            warn("module_dump() was not followed by module_dump_end(): it ends with the step")
            self.end()
