# SPDX-License-Identifier: Apache-2.0
"""Task monitor: what of a step belongs to parameters, optimizers and the step as a whole.

Activations and gradients of modules are recorded by the hooks of level L0; here
are the rest, as one record each, named as docs/monitor.md says:

    Parameter.{name}: grad, param, and the optimizer's state (exp_avg ..), as the
                      optimizer's step finds them
    Update.{name}:    param after the step, update (what it added), ratio of their norms
    Buffer.{name}:    buffer, where the first optimizer's step of a step begins
    Training:         loss, what a front end knows of its targets, lr, grad_norm,
                      loss_scale, step_seconds

With a loss scaler loss and grad are told without its factor, whoever takes it out.
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
    """A parameter of an optimizer whose step begins: its gradient, None: it has none, and its state by name."""

    name: str
    parameter: Any
    gradient: Optional[Any]
    state: dict[str, Any]


def matching_names(owners: Iterable[tuple[str, str, Iterable[tuple[str, Any]]]], wanted: list[str]) -> dict[int, str]:
    """id of each parameter -> its name, of the first who owns it.

    owners: (entry, path, own parameters by name) of modules or cells. wanted:
    parts of these entries, or of names of parameters; empty: all.
    """
    names: dict[int, str] = {}
    for entry, path, parameters in owners:
        for own, parameter in parameters:
            name = f"{path}.{own}" if path else own
            if not wanted or any(part in entry or part in name for part in wanted):
                names.setdefault(id(parameter), name)
    return names


def replaced(owner: Any, name: str, stand_in: Any) -> Callable[[], None]:
    """Puts `stand_in` in the place of an attribute that is the owner's own; returns what undoes it,
    unless somebody has put another in its place."""
    original = getattr(owner, name)
    setattr(owner, name, stand_in)

    def undo() -> None:
        if getattr(owner, name) is stand_in:
            setattr(owner, name, original)

    return undo


def classes_with(method: str, base: type) -> Iterator[type]:
    """`base` and the classes made of it that are there, each with such a method of its own."""
    classes = [base]
    while classes:
        one = classes.pop()
        if method in vars(one):
            yield one
        classes += one.__subclasses__()


class Monitor:
    """Records, in the steps of task monitor, what modules do not know. Called by
    PrecisionDebugger alone, and by hooks that are in place in such steps only. A front
    end says what its optimizers and tensors are: the methods that raise NotImplementedError.

    Faults of ours are counted by the Capture and never reach the training.
    """

    def __init__(self, capture: Any) -> None:
        self._capture = capture
        self._spec: Optional[dict[str, Any]] = None
        self._names: dict[int, str] = {}
        self._undo: list[Callable[[], None]] = []
        # Of the optimizers whose step is under way: the ids of their parameters, and what these were.
        self._before: list[tuple[Any, set[int], list[tuple[str, Any, Optional[Any]]]]] = []
        self._buffers: list[tuple[str, Callable[[], Any]]] = []
        self._losses: list[Any] = []
        # A loss that a scaler made, and what it made it of.
        self._scaled: list[tuple[weakref.ref[Any], Any]] = []
        self._scale: Optional[Any] = None
        self._squares: Optional[float] = None
        self._rates: list[float] = []
        self._last_end: Optional[float] = None

    # --- what a front end says

    def _named(self, model: Any, wanted: list[str]) -> dict[int, str]:
        """matching_names() of the model(s)."""
        raise NotImplementedError

    def _watch_optimizers(self) -> list[Callable[[], None]]:
        """Has before_optimizer() and after_optimizer() called around each step of an optimizer; what undoes it."""
        raise NotImplementedError

    def _watch_losses(self, model: Any) -> Iterator[Callable[[], None]]:
        """Has note_loss() and note_scaled() called; what undoes it."""
        raise NotImplementedError

    def _rates_of(self, optimizer: Any) -> list[float]:
        """The learning rate of each group of its parameters; NaN: not known."""
        raise NotImplementedError

    def _parts(self, optimizer: Any, arguments: tuple[Any, ...], spec: dict[str, Any]) -> Iterator[Part]:
        """What of its parameters is watched. arguments: those of its step. Gradients and states where `spec` wants them."""
        raise NotImplementedError

    def _buffers_of(self, model: Any, wanted: list[str]) -> list[tuple[str, Callable[[], Any]]]:
        """Buffers that belong to the state of the model, by name, and what gives each as it is then; None: it disappeared."""
        return []

    def _targets(self) -> dict[str, Any]:
        """What else is known of the losses of this step and the models that they train, for Training."""
        return {}

    def _plain(self, tensor: Any) -> Any:
        """The same numbers outside of any graph."""
        return tensor

    def _copied(self, parameter: Any) -> Any:
        """What _added() takes as what it was."""
        raise NotImplementedError

    def _added(self, parameter: Any, before: Any) -> Any:
        """A tensor: what was added to it since; `before` may be used up."""
        raise NotImplementedError

    def _number(self, value: float) -> Any:
        """A tensor of one float64."""
        raise NotImplementedError

    def _outside_of_graphs(self) -> ContextManager[Any]:
        """Nothing that is computed in it becomes part of a graph."""
        return contextlib.nullcontext()

    # --- in a step

    def begin_step(self, plan: dict[str, Any], model: Any) -> None:
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
        """A scaler made `scaled` of `loss`. factor: a copy of what it is now, for it changes in place at the end of a step."""
        self._guarded(lambda _: self._keep_scaled(factor, loss, scaled))

    def note_loss(self, loss: Any) -> None:
        """A backward begins at this tensor of one element."""
        self._guarded(lambda _: self._keep_loss(loss))

    def before_optimizer(self, optimizer: Any, *arguments: Any) -> None:
        """Its step begins: the gradients are whole, nothing is changed yet."""
        self._guarded(lambda spec: self._record_before(optimizer, arguments, spec))

    def after_optimizer(self, optimizer: Any) -> None:
        """Its step has ended."""
        self._guarded(lambda spec: self._record_after(optimizer, spec))

    def end_recording(self) -> None:
        """The step ends: what belongs to it as a whole."""
        self._guarded(self._record_training)

    def end_step(self) -> None:
        """Nothing of ours is left in place."""
        self._last_end = perf_counter()
        if self._spec is None:
            return
        self._spec = None
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._before.clear()
        self._names, self._buffers = {}, []
        self._losses, self._scaled, self._scale = [], [], None

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
            return  # its class calls the step of its base
        # Those of an optimizer that calls this one: each counts once in what the step has as a whole.
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
            # Without a gradient, too: a closure may make it.
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
                continue  # left by an exception
            for name, parameter, old in before:
                values: dict[str, Any] = {} if old is None else {"update": self._added(parameter, old)}
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
