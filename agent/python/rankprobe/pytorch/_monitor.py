# SPDX-License-Identifier: Apache-2.0
"""Task monitor in PyTorch: access to optimizers, losses and scalers for rankprobe._frontend.monitor, which records them."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import types
import weakref
from typing import Any, Callable, Iterator

import torch

from rankprobe._frontend import monitor
from rankprobe._frontend.monitor import Part, classes_with, matching_names
from rankprobe.pytorch import _walk
from rankprobe.pytorch._apis import around_optimizer_steps
from rankprobe.pytorch._bindings import unprofiled, without_dispatch_modes, without_own_dispatch
from rankprobe.pytorch._loss_targets import LossTargets
from rankprobe.pytorch._modes import Modes
from rankprobe.pytorch._modules import named_targets
from rankprobe.pytorch._redirect import Around
from rankprobe.pytorch._step_calls import StepCalls

# The program may replace the attribute of torch.autograd, and its function calls this one.
_BACKWARD = torch.autograd.backward


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a DTensor, which can be read without dispatch; another tensor unchanged."""
    return getattr(tensor, "_local_tensor", tensor)


def _is_part_of_sum(gradient: Any) -> bool:
    """Whether the optimizer sums this DTensor over ranks before it takes it, as the gradient of a normalization behind a sequence that is
    in parts: what this rank has of it is no gradient."""
    return any(placement.is_partial() for placement in getattr(gradient, "placements", ()))


def _unscaled(gradient: torch.Tensor, scale: Any) -> torch.Tensor:
    """Returns the gradient without the scale that a fused optimizer removes."""
    if not isinstance(scale, torch.Tensor) or gradient.is_sparse:
        return gradient
    local = _local(gradient)
    divided = torch.div(local, scale.to(local.device))
    if local is gradient:
        return divided
    # Makes a DTensor with the same mesh and placements.
    sharded: Any = gradient
    made: torch.Tensor = type(sharded).from_local(divided, sharded.device_mesh, sharded.placements, run_check=False,
                                                  shape=sharded.shape, stride=sharded.stride())
    return made


def _is_optimizer_state(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and _local(value).numel() == _local(parameter).numel()


def parameter_names(model: Any, wanted: list[str]) -> dict[int, str]:
    """Returns id -> name of each parameter of the root(s) and the modules below.

    wanted: substrings of names of modules (Module.{path}.{Class}) or parameters; empty selects all.
    """
    return matching_names(((f"Module.{path}.{type(module).__name__}", path, _walk.own_parameters(module).items())
                           for path, module in _modules_of(model)), wanted)


def _modules_of(model: Any) -> list[tuple[str, Any]]:
    roots = list(model) if isinstance(model, (list, tuple)) else [model]
    modules = [(str(index) if isinstance(model, (list, tuple)) else "", root) for index, root in enumerate(roots)]
    return modules + list(named_targets(model))


def _buffer_of(module: weakref.ref[Any], name: str) -> Any:
    """Returns the current tensor of a floating-point buffer, which a module may replace in each step; None if there is none."""
    buffer = getattr(module(), "_buffers", {}).get(name)
    if not isinstance(buffer, torch.Tensor) or not buffer.is_floating_point():
        return None
    # Other subclasses than DTensor may have code of the program for each operator.
    with contextlib.nullcontext() if hasattr(buffer, "_local_tensor") else without_own_dispatch(buffer):
        return buffer.detach()


class Monitor(monitor.Monitor):
    def __init__(self, capture: Any) -> None:
        super().__init__(capture)
        self._loss_targets = LossTargets()
        self._modes = Modes()
        self._calls = StepCalls()
        # Elements of 16-bit parameters that have a gradient: those that the optimizer left as they are, and all.
        self._rounded: list[Any] = []

    def _buffers_of(self, model: Any, wanted: list[str]) -> list[tuple[str, Callable[[], Any]]]:
        found: list[tuple[str, Callable[[], Any]]] = []
        for path, module in _modules_of(model):
            # Running statistics are skipped, because they differ between ranks by PyTorch's design.
            if isinstance(module, torch.nn.modules.batchnorm._NormBase):
                continue
            entry = f"Module.{path}.{type(module).__name__}"
            for name in module._buffers.keys() - module._non_persistent_buffers_set:
                full = f"{path}.{name}" if path else name
                if not wanted or any(part in entry or part in full for part in wanted):
                    found.append((full, functools.partial(_buffer_of, weakref.ref(module), name)))
        return found

    def _targets(self) -> dict[str, Any]:
        values, modes = self._loss_targets.take(), self._modes.take()
        if modes is not None:
            values["in_eval"] = [self._number(number) for number in modes]
            values.update((name, self._number(value)) for name, value in self._modes.settings.items())
        calls = self._calls.take()
        values.update((name, [self._number(number) for number in numbers]) for name, numbers in calls.items())
        if "new_training" in calls:
            self._loss_targets.begin()
        hooks = self._modes.hooks()
        if hooks is not None:
            values["hooks"] = self._number(hooks)
        norms = self._modes.unlearned_norms()
        if norms:
            values["unlearned_norms"] = norms
        if len({one.device for one in self._rounded}) == 1:
            values["rounded_updates"] = list(torch.stack(self._rounded).sum(0))
        self._rounded = []
        return values

    def _named(self, model: Any, wanted: list[str]) -> dict[int, str]:
        names = parameter_names(model, wanted)
        # With sharded parameters, the graph holds other tensors than the parameters.
        are_whole = not wanted and not any(hasattr(parameter, "_local_tensor") for _, module in _modules_of(model)
                                           for parameter in _walk.own_parameters(module).values())
        self._loss_targets.known = names if are_whole else ()
        return names

    def _watch_optimizers(self) -> list[Callable[[], None]]:
        hooks = around_optimizer_steps(lambda optimizer, args, kwargs: self.before_optimizer(optimizer, *args[1:], *kwargs.values()),
                                       lambda optimizer, *_: self.after_optimizer(optimizer))
        return hooks or self._wrap_steps()

    def _wrap_steps(self) -> list[Callable[[], None]]:
        """Wraps step() of all optimizers for this step, because PyTorch below 2.0 has no hooks of optimizers."""
        undo = []
        for optimizer in gc.get_objects():
            if issubclass(type(optimizer), torch.optim.Optimizer) and hasattr(optimizer, "param_groups"):
                undo.append(self._wrap_step(optimizer))
        return undo

    def _wrap_step(self, optimizer: Any) -> Callable[[], None]:
        own, step = vars(optimizer).get("step"), optimizer.step

        @functools.wraps(step)
        def rankprobe_step(_: Any, *args: Any, **kwargs: Any) -> Any:
            self.before_optimizer(optimizer, *args, *kwargs.values())
            result = step(*args, **kwargs)
            self.after_optimizer(optimizer)
            return result

        # A bound method as before, because a scheduler that is created now reads its __self__.
        method = optimizer.step = types.MethodType(rankprobe_step, optimizer)

        def undo() -> None:
            if vars(optimizer).get("step") is not method:
                return  # A scheduler has wrapped it; outside of monitored steps the wrapper only calls step().
            if own is None:
                del optimizer.step
            else:
                optimizer.step = own

        return undo

    def _watch_losses(self, model: Any) -> Iterator[Callable[[], None]]:
        self._modes.begin(model)
        yield from self._calls.watch(self._guarded)

        def around_backward(backward: Callable[..., None]) -> Callable[..., None]:
            def rankprobe_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
                self._note_loss(tensors)
                backward(tensors, *args, **kwargs)

            return rankprobe_backward

        yield Around(_BACKWARD, around_backward).remove
        for scaler in classes_with("scale", getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler):
            yield Around(vars(scaler)["scale"], self._around_scale).remove

    def _around_scale(self, scale: Callable[..., Any]) -> Callable[..., Any]:
        def rankprobe_scale(own: Any, outputs: Any) -> Any:
            scaled = scale(own, outputs)
            factor = getattr(own, "_scale", None)
            if isinstance(scaled, torch.Tensor) and scaled is not outputs:
                self.note_scaled(lambda: factor.detach().clone() if isinstance(factor, torch.Tensor) else None, outputs, scaled)
            return scaled

        return rankprobe_scale

    def _note_loss(self, tensors: Any) -> None:
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self.note_loss(loss)
            self._calls.note_backward()
            self._guarded(lambda _: self._modes.note())
            self._guarded(lambda _: self._loss_targets.note(loss))

    def _rates_of(self, optimizer: Any) -> list[float]:
        rates = [group.get("lr") for group in optimizer.param_groups]
        return [float(rate) if rate is not None else math.nan for rate in rates]

    def _parts(self, optimizer: Any, arguments: tuple[Any, ...], spec: dict[str, Any]) -> Iterator[Part]:
        if spec["training"]:
            self._modes.hold(optimizer)
            self._calls.note_optimizer(optimizer)
            self._loss_targets.hold(optimizer)
        states = getattr(optimizer, "state", {})
        scale = getattr(optimizer, "grad_scale", None)
        # With a closure, gradients at the beginning are those of the previous step, since the closure computes new ones.
        has_closure = any(callable(argument) for argument in arguments)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                if name is None:
                    continue
                gradient, state = None, states.get(parameter) if spec["optimizer"] else None
                if spec["weight_gradients"] and not has_closure:
                    gradient = getattr(parameter, "main_grad", None)
                    gradient = parameter.grad if gradient is None else gradient
                    gradient = None if _is_part_of_sum(gradient) else gradient
                yield Part(name, parameter, None if gradient is None else _unscaled(gradient, scale),
                           {key: value for key, value in state.items() if _is_optimizer_state(value, parameter)}
                           if isinstance(state, dict) else {})

    def _plain(self, tensor: Any) -> Any:
        return tensor.detach()

    def _copied(self, parameter: Any) -> Any:
        return _local(parameter).detach().clone()

    def _added(self, parameter: Any, before: Any) -> Any:
        """Writes into the copy `before` if possible, since allocating memory costs more than the subtraction."""
        now = _local(parameter).detach()
        same = now.dtype == before.dtype and now.shape == before.shape and now.device == before.device and not now.is_sparse
        return torch.sub(now, before, out=before) if same else torch.sub(now, before)

    def _note_update(self, parameter: Any, update: Any) -> None:
        gradient = _local(parameter.grad) if update.dtype in (torch.bfloat16, torch.float16) else None
        # A subclass may have code of its own.
        if (type(gradient) is torch.Tensor and not gradient.is_sparse and gradient.shape == update.shape
                and gradient.device == update.device):
            has_gradient = gradient != 0
            self._rounded.append(torch.stack([(has_gradient & (update == 0)).sum(), has_gradient.sum()]).double())

    def _number(self, value: float) -> Any:
        return torch.tensor(value, dtype=torch.float64)

    @contextlib.contextmanager
    def _outside_of_graphs(self) -> Iterator[None]:
        with torch.no_grad(), unprofiled():
            yield

    _guarded = without_dispatch_modes(monitor.Monitor._guarded)


__all__ = ["Monitor", "parameter_names"]
