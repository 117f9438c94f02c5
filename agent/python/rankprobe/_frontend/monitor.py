# SPDX-License-Identifier: Apache-2.0
"""Task monitor: records of parameters, optimizers and the complete step.

Activations and gradients of modules are recorded by the hooks of level L0. The rest
is recorded here, one record each, with the names of docs/monitor.md:

    Parameter.{name}: grad, param, and the optimizer's state (exp_avg ..), as the
                      optimizer's step finds them
    Update.{name}:    param after the step, update (what it added), ratio of their norms
    Buffer.{name}:    buffer, when the first optimizer's step of a step begins
    Training:         loss, the front end's values about targets, lr, grad_norm,
                      loss_scale, step_seconds

With a loss scaler, loss and grad are recorded without its factor.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from time import perf_counter
from typing import Any, Callable, ContextManager, Iterable, Iterator, NamedTuple, Optional

from rankprobe._frontend.process import report_fault

_MAX_LOSSES = 64
_OF_OPTIMIZERS = ("weight_gradients", "parameters", "optimizer", "updates", "training")


class Part(NamedTuple):
    """A parameter of an optimizer whose step begins, with its gradient (None if it has none) and its state by name."""

    name: str
    parameter: Any
    gradient: Optional[Any]
    state: dict[str, Any]


def matching_names(owners: Iterable[tuple[str, str, Iterable[tuple[str, Any]]]], wanted: list[str]) -> dict[int, str]:
    """Returns id of each parameter -> its name in the first owner.

    owners: (entry, path, own parameters by name) of modules or cells. wanted:
    substrings of entries or of parameter names; empty selects all.
    """
    names: dict[int, str] = {}
    for entry, path, parameters in owners:
        for own, parameter in parameters:
            name = f"{path}.{own}" if path else own
            if not wanted or any(part in entry or part in name for part in wanted):
                names.setdefault(id(parameter), name)
    return names


def replaced(owner: Any, name: str, stand_in: Any) -> Callable[[], None]:
    """Replaces an attribute of `owner` itself by `stand_in`. Returns a function that restores it,
    unless other code has replaced it since."""
    original = getattr(owner, name)
    setattr(owner, name, stand_in)

    def undo() -> None:
        if getattr(owner, name) is stand_in:
            setattr(owner, name, original)

    return undo


def classes_with(method: str, base: type) -> Iterator[type]:
    """Yields `base` and its existing subclasses that define the method themselves."""
    classes = [base]
    while classes:
        one = classes.pop()
        if method in vars(one):
            yield one
        classes += one.__subclasses__()


class Monitor:
    """Records parameters, optimizers and training values in steps of task monitor. Called
    only by PrecisionDebugger, and by hooks that are installed in such steps. A front end
    overrides the methods that raise NotImplementedError.

    Faults of rankprobe are counted by the Capture and never reach the training.
    """

    def __init__(self, capture: Any) -> None:
        self._capture = capture
        self._spec: Optional[dict[str, Any]] = None
        self._models: list[weakref.ref[Any]] = []
        # By id of a parameter of these models.
        self._names: dict[int, str] = {}
        self._undo: list[Callable[[], None]] = []
        # Optimizers whose step is in progress, with the ids of their parameters, and (name, parameter, copy of its value).
        self._before: list[tuple[Any, set[int], list[tuple[str, Any, Optional[Any]]]]] = []
        self._buffers: list[tuple[str, Callable[[], Any]]] = []
        self._losses: list[Any] = []
        # Pairs of a scaled loss and the loss before scaling.
        self._scaled: list[tuple[weakref.ref[Any], Any]] = []
        self._scale: Optional[Any] = None
        self._squares: Optional[float] = None
        self._rates: list[float] = []
        self._last_end: Optional[float] = None

    # --- overridden by a front end

    def _named(self, model: Any, wanted: list[str]) -> dict[int, str]:
        """Returns matching_names() of the model(s)."""
        raise NotImplementedError

    def _watch_optimizers(self) -> list[Callable[[], None]]:
        """Installs calls of before_optimizer() and after_optimizer() around each step of an optimizer. Returns functions that undo it."""
        raise NotImplementedError

    def _watch_losses(self, model: Any) -> Iterator[Callable[[], None]]:
        """Installs calls of note_loss() and note_scaled(). Yields functions that undo it."""
        raise NotImplementedError

    def _rates_of(self, optimizer: Any) -> list[float]:
        """Returns the learning rate of each parameter group; NaN if it is not known."""
        raise NotImplementedError

    def _parts(self, optimizer: Any, arguments: tuple[Any, ...], spec: dict[str, Any]) -> Iterator[Part]:
        """Yields the monitored parameters of the optimizer, with gradients and states if `spec` has them. arguments: those of its step."""
        raise NotImplementedError

    def _buffers_of(self, model: Any, wanted: list[str]) -> list[tuple[str, Callable[[], Any]]]:
        """Returns the buffers of the model's state: name, and a function that returns the current tensor, or None if it disappeared."""
        return []

    def _targets(self) -> dict[str, Any]:
        """Returns further values about the losses of this step and their models, for the record Training."""
        return {}

    def _plain(self, tensor: Any) -> Any:
        """Returns the same values outside of any graph."""
        return tensor

    def _copied(self, parameter: Any) -> Any:
        """Returns a copy of the value, for _added()."""
        raise NotImplementedError

    def _added(self, parameter: Any, before: Any) -> Any:
        """Returns the difference to `before` as a tensor; may overwrite `before`."""
        raise NotImplementedError

    def _note_update(self, parameter: Any, update: Any) -> None:
        """Called for each update in steps that record training values, for _targets()."""

    def _number(self, value: float) -> Any:
        """Returns a tensor of one float64."""
        raise NotImplementedError

    def _outside_of_graphs(self) -> ContextManager[Any]:
        """Returns a context in which computations do not become part of a graph."""
        return contextlib.nullcontext()

    # --- in a step

    def begin_step(self, plan: dict[str, Any], model: Any) -> None:
        """Begins or continues a step of `plan`. Models that a program makes in the middle of a step are watched from there on."""
        spec = plan.get("monitor")
        if spec is None:
            return self.end_step()
        models = [] if model is None else list(model) if isinstance(model, (list, tuple)) else [model]
        if self._spec is None:
            self._squares, self._losses, self._rates = None, [], []
            self._scaled, self._scale = [], None
        elif not models or (len(models) == len(self._models) and all(known() is one for known, one in zip(self._models, models))):
            return
        self._spec = spec
        self._unwatch()
        try:
            self._models = [weakref.ref(one) for one in models]
            self._names = self._named(model, plan["list"]) if model is not None else {}
            self._buffers = self._buffers_of(model, plan["list"]) if model is not None and spec["parameters"] else []
            if any(spec[word] for word in _OF_OPTIMIZERS):
                self._undo += self._watch_optimizers()
            if spec["training"]:
                for undo in self._watch_losses(model):
                    self._undo.append(undo)
        except Exception as error:  # noqa: BLE001 - the training must not notice
            report_fault(self._capture, "monitor", error)

    def note_scaled(self, factor: Callable[[], Any], loss: Any, scaled: Any) -> None:
        """Notes that a scaler made `scaled` from `loss`. factor: returns a copy of the scale, which changes in place at a step's end."""
        self._guarded(lambda _: self._keep_scaled(factor, loss, scaled))

    def note_loss(self, loss: Any) -> None:
        """Notes that a backward begins at this tensor of one element."""
        self._guarded(lambda _: self._keep_loss(loss))

    def before_optimizer(self, optimizer: Any, *arguments: Any) -> None:
        """Call when the optimizer's step begins: gradients are complete, parameters not changed yet."""
        self._guarded(lambda spec: self._record_before(optimizer, arguments, spec))

    def after_optimizer(self, optimizer: Any) -> None:
        """Call when the optimizer's step has ended."""
        self._guarded(lambda spec: self._record_after(optimizer, spec))

    def end_recording(self) -> None:
        """Records the values of the complete step at its end."""
        self._guarded(self._record_training)

    def end_step(self) -> None:
        """Ends the step and removes all hooks."""
        self._last_end = perf_counter()
        if self._spec is None:
            return
        self._spec = None
        self._unwatch()
        self._losses, self._scaled, self._scale = [], [], None

    def _unwatch(self) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._before.clear()
        self._models, self._names, self._buffers = [], {}, []

    def _guarded(self, record: Callable[[dict[str, Any]], None]) -> None:
        if self._spec is None:
            return
        self._capture.enter_quiet()
        try:
            with self._outside_of_graphs():
                record(self._spec)
        except Exception as error:  # noqa: BLE001 - the training must not notice
            report_fault(self._capture, "monitor", error)
        finally:
            self._capture.leave_quiet()

    def _keep_scaled(self, factor: Callable[[], Any], loss: Any, scaled: Any) -> None:
        if self._scale is None:
            self._scale = factor()
        if len(self._scaled) < _MAX_LOSSES:
            self._scaled.append((weakref.ref(scaled), self._plain(loss)))

    def _keep_loss(self, loss: Any) -> None:
        if len(self._losses) < _MAX_LOSSES:
            own = next((unscaled for scaled, unscaled in self._scaled if scaled() is loss), None)
            self._losses.append(self._plain(loss) if own is None else own)

    def _record_before(self, optimizer: Any, arguments: tuple[Any, ...], spec: dict[str, Any]) -> None:
        if any(one is optimizer for one, *_ in self._before):
            return  # step() of a class calls that of its base.
        # Parameters of optimizers that call this one, so that each counts only once in grad_norm and lr.
        outer = {one for _, ids, _ in self._before for one in ids}
        own: set[int] = set()
        before: list[tuple[str, Any, Optional[Any]]] = []
        self._before.append((optimizer, own, before))
        self._record_buffers()
        rates = self._rates_of(optimizer)
        for part in self._parts(optimizer, arguments, spec):
            own.add(id(part.parameter))
            values: dict[str, Any] = {}
            if part.gradient is not None:
                values["grad"] = part.gradient
            if spec["parameters"]:
                values["param"] = self._plain(part.parameter)
            values.update(part.state)
            # Copied even without a gradient, which a closure may compute.
            copied = spec["updates"] and part.parameter.requires_grad
            if copied or spec["parameters"]:
                before.append((part.name, part.parameter, self._copied(part.parameter) if copied else None))
            if not values:
                continue
            norm = self._capture.save_monitored(f"Parameter.{part.name}", values)
            if norm is not None and id(part.parameter) not in outer:
                self._squares = (self._squares or 0.0) + norm * norm
        self._rates += rates if not own & outer else []

    def _record_buffers(self) -> None:
        buffers, self._buffers = self._buffers, []
        for name, find in buffers:
            buffer = find()
            if buffer is not None:
                self._capture.save_monitored(f"Buffer.{name}", {"buffer": buffer})

    def _record_after(self, optimizer: Any, spec: dict[str, Any]) -> None:
        while self._before:
            one, _, before = self._before.pop()
            if one is not optimizer:
                continue  # Its step ended with an exception.
            for name, parameter, old in before:
                values: dict[str, Any] = {}
                if old is not None:
                    values["update"] = self._added(parameter, old)
                    if spec["training"]:
                        self._note_update(parameter, values["update"])
                if spec["parameters"]:
                    values["param"] = self._plain(parameter)
                self._capture.save_monitored(f"Update.{name}", values)
            return

    def _record_training(self, spec: dict[str, Any]) -> None:
        if not spec["training"]:
            return
        values: dict[str, Any] = {}
        if self._losses:
            values["loss"] = self._losses[0] if len(self._losses) == 1 else list(self._losses)
        values.update(self._targets())
        if self._rates:
            rates = [self._number(rate) for rate in self._rates]
            values["lr"] = rates[0] if len(rates) == 1 else rates
        if self._scale is not None:
            values["loss_scale"] = self._scale
        if self._squares is not None:
            values["grad_norm"] = self._number(math.sqrt(self._squares))
        if self._last_end is not None:
            values["step_seconds"] = self._number(perf_counter() - self._last_end)
        self._losses, self._rates, self._squares = [], [], None
        self._scaled, self._scale = [], None
        if values:
            self._capture.save_monitored("Training", values)
