# SPDX-License-Identifier: Apache-2.0
"""Task monitor: what of a step belongs to parameters, optimizers and the step as a whole.

Activations and gradients of modules are recorded by the hooks of level L0; here
are the rest, as one record each, named as docs/monitor.md says:

    Parameter.{name}: grad, param, and the optimizer's state (exp_avg ..), as the
                      optimizer's step finds them
    Update.{name}:    param after the step, update (what it added), ratio of their norms
    Training:         loss, lr, grad_norm, loss_scale, step_seconds

With a GradScaler loss and grad are told without its factor, whoever takes it out.
"""

from __future__ import annotations

import functools
import gc
import math
import time
import types
import weakref
from typing import Any, Callable, Iterator, Optional

import torch

from rankprobe.pytorch._apis import around_optimizer_steps
from rankprobe.pytorch._modules import named_targets
from rankprobe.pytorch._process import report_fault

_MAX_LOSSES = 64


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, which needs no dispatch to be read; else the tensor."""
    return getattr(tensor, "_local_tensor", tensor)


def _added(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """What was added to a tensor, in the place of the copy of what it was: new memory costs more than the subtraction."""
    same = now.dtype == before.dtype and now.shape == before.shape and now.device == before.device and not now.is_sparse
    return torch.sub(now, before, out=before) if same else torch.sub(now, before)


def _unscaled(gradient: torch.Tensor, scale: Any) -> torch.Tensor:
    """What a fused optimizer makes of a gradient that it takes with its scale."""
    if not isinstance(scale, torch.Tensor) or gradient.is_sparse:
        return gradient
    local = _local(gradient)
    divided = torch.div(local, scale.to(local.device))
    if local is gradient:
        return divided
    # Of a DTensor: with its mesh and placements.
    return type(gradient).from_local(divided, gradient.device_mesh, gradient.placements, run_check=False,
                                     shape=gradient.shape, stride=gradient.stride())


def _scalers() -> Iterator[type]:
    """The classes of scalers that are there, each with a scale() of its own."""
    base = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    classes = [base]
    while classes:
        one = classes.pop()
        if "scale" in vars(one):
            yield one
        classes += one.__subclasses__()


def _is_optimizer_state(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and _local(value).numel() == _local(parameter).numel()


def parameter_names(model: Any, wanted: list[str]) -> dict[int, str]:
    """id of each parameter below the root(s), and of the root(s) themselves -> its name.

    wanted: parts of names of modules (Module.{path}.{Class}) or parameters; empty: all.
    """
    roots = list(model) if isinstance(model, (list, tuple)) else [model]
    names: dict[int, str] = {}

    def add(module: torch.nn.Module, path: str) -> None:
        entry = f"Module.{path}.{type(module).__name__}"
        for own, parameter in module.named_parameters(recurse=False):
            name = f"{path}.{own}" if path else own
            if not wanted or any(part in entry or part in name for part in wanted):
                names.setdefault(id(parameter), name)

    for index, root in enumerate(roots):
        add(root, str(index) if isinstance(model, (list, tuple)) else "")
    for path, module in named_targets(model):
        add(module, path)
    return names


class Monitor:
    """Records, in the steps of task monitor, what modules do not know. Called by
    PrecisionDebugger alone, and by hooks that are in place in such steps only.

    Faults of ours are counted by the Capture and never reach the training.
    """

    def __init__(self, capture: Any) -> None:
        self._capture = capture
        self._spec: Optional[dict] = None
        self._names: dict[int, str] = {}
        self._undo: list[Callable[[], None]] = []
        # Of the optimizers whose step is under way: what their parameters were.
        self._before: list[tuple[Any, list[tuple[str, torch.Tensor, Optional[torch.Tensor]]]]] = []
        self._losses: list[torch.Tensor] = []
        # A loss that a scaler made, and what it made it of.
        self._scaled: list[tuple[weakref.ref, torch.Tensor]] = []
        self._scale: Optional[torch.Tensor] = None
        self._squares: Optional[float] = None
        self._rates: list[float] = []
        self._last_end: Optional[float] = None
        self._backwards = 0

    def begin_step(self, plan: dict, model: Any) -> None:
        """A step of `plan` begins, or goes on."""
        spec = plan.get("monitor")
        if spec is None:
            return self.end_step()
        if self._spec is not None:
            return
        self._spec = spec
        self._squares, self._losses, self._rates = None, [], []
        self._scaled, self._scale = [], None
        try:
            self._names = parameter_names(model, plan["list"]) if model is not None else {}
            self._install(spec)
        except Exception as error:  # noqa: BLE001 - the training must not notice
            report_fault(self._capture, "monitor", error)

    def _install(self, spec: dict) -> None:
        if any(spec[word] for word in ("weight_gradients", "parameters", "optimizer", "updates", "training")):
            hooks = around_optimizer_steps(lambda optimizer, *_: self.before_optimizer(optimizer),
                                           lambda optimizer, *_: self.after_optimizer(optimizer))
            self._undo += hooks or self._wrap_steps()
        if spec["training"]:
            self._watch_loss()
            for scaler in _scalers():
                self._undo.append(self._watch_scaler(scaler))

    def _wrap_steps(self) -> list[Callable[[], None]]:
        """PyTorch below 2.0 has no hooks of optimizers: their `step` is wrapped, for this step."""
        undo = []
        for optimizer in gc.get_objects():
            if issubclass(type(optimizer), torch.optim.Optimizer) and hasattr(optimizer, "param_groups"):
                undo.append(self._wrap_step(optimizer))
        return undo

    def _wrap_step(self, optimizer: Any) -> Callable[[], None]:
        own, step = vars(optimizer).get("step"), optimizer.step

        @functools.wraps(step)
        def rankprobe_step(_: Any, *args: Any, **kwargs: Any) -> Any:
            self.before_optimizer(optimizer)
            result = step(*args, **kwargs)
            self.after_optimizer(optimizer)
            return result

        # A method as before: a scheduler that is made now asks it whose it is.
        method = optimizer.step = types.MethodType(rankprobe_step, optimizer)

        def undo() -> None:
            if vars(optimizer).get("step") is not method:
                return  # that scheduler has wrapped it in its turn; outside of our steps it only calls on
            if own is None:
                del optimizer.step
            else:
                optimizer.step = own

        return undo

    def _watch_loss(self) -> None:
        backward = torch.autograd.backward

        def rankprobe_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self._note_loss(tensors)
            backward(tensors, *args, **kwargs)

        rankprobe_backward.__wrapped__ = backward  # type: ignore[attr-defined]
        torch.autograd.backward = rankprobe_backward

        def undo() -> None:
            if torch.autograd.backward is rankprobe_backward:
                torch.autograd.backward = backward

        self._undo.append(undo)

    def _watch_scaler(self, scaler: Any) -> Callable[[], None]:
        scale = scaler.scale

        @functools.wraps(scale)
        def rankprobe_scale(own: Any, outputs: Any) -> Any:
            scaled = scale(own, outputs)
            if isinstance(scaled, torch.Tensor) and scaled is not outputs:
                self._note_scaled(own, outputs, scaled)
            return scaled

        scaler.scale = rankprobe_scale

        def undo() -> None:
            if scaler.scale is rankprobe_scale:
                scaler.scale = scale

        return undo

    def _note_scaled(self, scaler: Any, loss: torch.Tensor, scaled: torch.Tensor) -> None:
        factor = getattr(scaler, "_scale", None)
        if self._scale is None and isinstance(factor, torch.Tensor):
            self._scale = factor.detach().clone()  # it changes in place at the end of the step
        if len(self._scaled) < _MAX_LOSSES:
            self._scaled.append((weakref.ref(scaled), loss.detach()))

    def _note_loss(self, tensors: Any) -> None:
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and len(self._losses) < _MAX_LOSSES:
            own = next((unscaled for scaled, unscaled in self._scaled if scaled() is loss), None)
            self._losses.append(loss.detach() if own is None else own)

    def before_optimizer(self, optimizer: Any) -> None:
        """optimizer.step() begins: the gradients are whole, nothing is changed yet."""
        self._guarded(self._record_before, optimizer)

    def after_optimizer(self, optimizer: Any) -> None:
        """optimizer.step() has ended."""
        self._guarded(self._record_after, optimizer)

    def _guarded(self, function: Callable, optimizer: Any) -> None:
        if self._spec is None:
            return
        self._capture.enter_quiet()
        try:
            with torch.no_grad():
                function(optimizer, self._spec)
        except Exception as error:  # noqa: BLE001 - the training must not notice
            report_fault(self._capture, "monitor", error)
        finally:
            self._capture.leave_quiet()

    def _watched(self, optimizer: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                if name is not None:
                    yield name, parameter

    def _record_before(self, optimizer: Any, spec: dict) -> None:
        if any(one is optimizer for one, _ in self._before):
            return  # its class calls the step of its base
        before: list[tuple[str, torch.Tensor, Optional[torch.Tensor]]] = []
        self._before.append((optimizer, before))
        for group in optimizer.param_groups:
            rate = group.get("lr")
            self._rates.append(float(rate) if rate is not None else math.nan)
        state = getattr(optimizer, "state", {})
        scale = getattr(optimizer, "grad_scale", None)
        for name, parameter in self._watched(optimizer):
            values: dict[str, Any] = {}
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if spec["weight_gradients"] and gradient is not None:
                values["grad"] = _unscaled(gradient, scale)
            if spec["parameters"]:
                values["param"] = parameter.detach()
            if spec["optimizer"]:
                own = state.get(parameter)
                if isinstance(own, dict):
                    values.update((key, value) for key, value in own.items() if _is_optimizer_state(value, parameter))
            # Without a gradient, too: a closure may make it.
            copied = spec["updates"] and parameter.requires_grad
            if copied or spec["parameters"]:
                before.append((name, parameter, _local(parameter).detach().clone() if copied else None))
            if not values:
                continue
            norm = self._capture.save_monitored(f"Parameter.{name}", values)
            if norm is not None:
                self._squares = (self._squares or 0.0) + norm * norm

    def _record_after(self, optimizer: Any, spec: dict) -> None:
        while self._before:
            one, before = self._before.pop()
            if one is not optimizer:
                continue  # left by an exception
            for name, parameter, old in before:
                values: dict[str, Any] = {} if old is None else {"update": _added(_local(parameter).detach(), old)}
                if spec["parameters"]:
                    values["param"] = parameter.detach()
                self._capture.save_monitored(f"Update.{name}", values)
            return

    def end_recording(self) -> None:
        """The step ends: what belongs to it as a whole."""
        self._guarded(self._record_training, None)

    def _record_training(self, _: Any, spec: dict) -> None:
        if not spec["training"]:
            return
        values: dict[str, Any] = {}
        if self._losses:
            values["loss"] = self._losses[0] if len(self._losses) == 1 else list(self._losses)
        if self._rates:
            rates = [torch.tensor(rate, dtype=torch.float64) for rate in self._rates]
            values["lr"] = rates[0] if len(rates) == 1 else rates
        if self._scale is not None:
            values["loss_scale"] = self._scale
        if self._squares is not None:
            values["grad_norm"] = torch.tensor(math.sqrt(self._squares), dtype=torch.float64)
        if self._last_end is not None:
            values["step_seconds"] = torch.tensor(time.perf_counter() - self._last_end, dtype=torch.float64)
        self._losses, self._rates, self._squares = [], [], None
        self._scaled, self._scale = [], None
        if values:
            self._capture.save_monitored("Training", values)

    def end_step(self) -> None:
        """Nothing of ours is left in place."""
        self._last_end = time.perf_counter()
        if self._spec is None:
            return
        self._spec = None
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._before.clear()
        self._names = {}


__all__ = ["Monitor", "parameter_names"]
