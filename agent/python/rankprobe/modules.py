"""Modules of a torch model through a Session: forward inputs and outputs,
parameters, and gradients of parameters, by PyTorch's own hooks (level L0).

The full drop-in for msprobe's Python API is not built yet; this is what the
example and the quickstart need.
"""

from __future__ import annotations

from typing import Any

import torch

from rankprobe._native import Session


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _tensors(item)]
    return []


class ModuleRecorder:
    """Records every submodule of `model` (the root itself is not recorded).

    Hooks cost one attribute test a call while the session is not recording.
    A fault of a hook never reaches the model: it is counted in `faults`.
    """

    def __init__(self, session: Session, model: torch.nn.Module):
        self.faults = 0
        self._session = session
        self._open: list[int] = []
        for path, module in model.named_modules():
            if module is model:
                continue
            name = f"Module.{path}.{type(module).__name__}"
            module.register_forward_pre_hook(self._pre(name))
            module.register_forward_hook(self._post())
            for parameter_name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    self._watch(name, parameter_name, parameter)

    def _pre(self, name: str):
        def hook(module, args):
            if not self._session.recording:
                return
            try:
                with torch.no_grad():
                    self._open.append(self._session.begin_module(name, _tensors(args)))
            except Exception:  # noqa: BLE001 - the model must not notice
                self.faults += 1

        return hook

    def _post(self):
        def hook(module, args, output):
            if not self._open:
                return
            try:
                self._open.pop()
                self._session.end_module(_tensors(output), dict(module.named_parameters(recurse=False)))
            except Exception:  # noqa: BLE001
                self.faults += 1

        return hook

    def _watch(self, module_name: str, parameter_name: str, parameter: torch.nn.Parameter) -> None:
        # The accumulator runs its hooks once the gradient has been added up.
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]

        def hook(*_unused):
            if not self._session.recording or parameter.grad is None:
                return
            try:
                self._session.parameter_gradient(module_name, parameter_name, parameter.grad)
            except Exception:  # noqa: BLE001
                self.faults += 1

        accumulator.register_hook(hook)
        # The graph holds accumulators weakly.
        self.__dict__.setdefault("_accumulators", []).append(accumulator)
