# SPDX-License-Identifier: Apache-2.0
"""Task monitor in MindSpore: access to optimizers, losses and scalers for rankprobe._frontend.monitor, which records them."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable, ContextManager, Iterator

import mindspore
import numpy
from mindspore import ParameterTuple, Tensor, amp, nn
from mindspore.common.api import _no_grad

from rankprobe._frontend import monitor
from rankprobe._frontend.monitor import Part, classes_with, matching_names, replaced
from rankprobe.mindspore._bindings import array_of, is_tensor, wait
from rankprobe.mindspore._cells import is_compiled, named_cells, own_parameters
from rankprobe.mindspore._optimizers import OPTIMIZERS, calls

# The module in which every gradient function runs its forward.
_GRADIENTS = importlib.import_module("mindspore.ops.composite.base")


def _is_number(value: Any) -> bool:
    return is_tensor(value) and value.size == 1


def _gradients(arguments: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Returns the gradients among the arguments of an optimizer's call, one for each of `count` parameters; () if there are none."""
    lists = (given for given in (*arguments, arguments) if isinstance(given, (tuple, list)))
    return tuple(next((given for given in lists if len(given) == count), ()))


def _unscaled(gradient: Any, scale: float) -> Any:
    """Returns the gradient without the loss scale that the optimizer removes."""
    if scale == 1.0:
        return gradient
    array = array_of(gradient)
    # asarray(), because the product of a 0-D array is a NumPy scalar.
    return gradient if array is None else Tensor.from_numpy(numpy.asarray(array * array.dtype.type(1.0 / scale)))


def _states(optimizer: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name, parameters, their states) for each list of states that the optimizer keeps, with its attribute name."""
    rates = getattr(optimizer, "learning_rate", None)
    holders = [(vars(optimizer), optimizer.parameters)]
    holders += [(group, group["params"]) for group in getattr(optimizer, "param_groups", ())]
    for holder, parameters in holders:
        own = {id(parameter) for parameter in optimizer.parameters}
        for name, value in holder.items():
            if isinstance(value, ParameterTuple) and value is not rates and len(value) == len(parameters) and not any(
                    id(one) in own for one in value):
                yield name, parameters, value


def _is_askable(schedule: Any, optimizer: Any) -> bool:
    """Returns whether a schedule can be evaluated without changing the training. MindSpore's own can. One of the program's may count
    its calls, so it can only if it is compiled and has no parameters to count in."""
    if type(schedule).__module__.startswith("mindspore."):
        return True
    return is_compiled(type(optimizer).construct) and not list(schedule.get_parameters())


def _array(value: Any) -> numpy.ndarray[Any, Any]:
    array = array_of(value)
    if array is None:
        raise TypeError(f"NumPy has no type for {value.dtype}")
    return array


class Monitor(monitor.Monitor):
    def _named(self, model: Any, wanted: list[str]) -> dict[int, str]:
        cells = ((path.rstrip("."), cell) for path, cell, _ in named_cells(model, compiled=True) if not isinstance(cell, OPTIMIZERS))
        return matching_names(((f"Cell.{path}.{type(cell).__name__}", path, own_parameters(cell).items()) for path, cell in cells),
                              wanted)

    def _watch_optimizers(self) -> list[Callable[[], None]]:
        return [calls.watch(lambda optimizer, arguments: self.before_optimizer(optimizer, *arguments), self.after_optimizer)]

    def _watch_losses(self, model: Any) -> Iterator[Callable[[], None]]:
        run = _GRADIENTS._pynative_forward_run

        @functools.wraps(run)
        def rankprobe_run(*args: Any, **kwargs: Any) -> Any:
            result = run(*args, **kwargs)
            loss = result[1]
            # With has_aux or several outputs, the first is the loss.
            loss = loss[0] if isinstance(loss, (tuple, list)) and loss else loss
            if _is_number(loss):
                self.note_loss(loss)
            return result

        yield replaced(_GRADIENTS, "_pynative_forward_run", rankprobe_run)
        for scaler in classes_with("scale", amp.LossScaler):
            yield self._watch_scaler(scaler)

    def _watch_scaler(self, scaler: type) -> Callable[[], None]:
        scale = scaler.scale  # type: ignore[attr-defined]

        @functools.wraps(scale)
        def rankprobe_scale(own: Any, inputs: Any) -> Any:
            scaled = scale(own, inputs)
            if _is_number(inputs) and _is_number(scaled) and scaled is not inputs:
                self.note_scaled(lambda: self._number(float(own.scale_value)), inputs, scaled)
            return scaled

        return replaced(scaler, "scale", rankprobe_scale)

    def _rates_of(self, optimizer: Any) -> list[float]:
        groups = getattr(optimizer, "param_groups", None)
        if groups is not None:
            return [float(_array(group["lr"]).item()) for group in groups]
        rates = getattr(optimizer, "learning_rate", ())
        rates = rates if isinstance(rates, (tuple, list, nn.CellList)) else (rates,)
        # There is one rate for each parameter, and parameters of a group share the object.
        rates = list({id(rate): rate for rate in rates}.values())
        if not all(_is_askable(rate, optimizer) for rate in rates if isinstance(rate, nn.Cell)):
            return []
        asked = [rate(optimizer.global_step) if isinstance(rate, nn.Cell) else rate for rate in rates]
        return [float(_array(rate).item()) for rate in asked]

    def _parts(self, optimizer: Any, arguments: tuple[Any, ...], spec: dict[str, Any]) -> Iterator[Part]:
        parameters = optimizer.parameters
        gradients = _gradients(arguments, len(parameters)) if spec["weight_gradients"] else ()
        scale = float(getattr(optimizer, "loss_scale", 1.0))
        if scale != 1.0 and self._scale is None:
            self._scale = self._number(scale)
        states: dict[int, dict[str, Any]] = {}
        for name, owners, values in _states(optimizer) if spec["optimizer"] else ():
            for parameter, value in zip(owners, values):
                if value.size == parameter.size:
                    states.setdefault(id(parameter), {})[name] = value
        for index, parameter in enumerate(parameters):
            listed = self._names.get(id(parameter))
            if listed is not None:
                gradient = gradients[index] if gradients and is_tensor(gradients[index]) else None
                yield Part(listed, parameter, None if gradient is None else _unscaled(gradient, scale), states.get(id(parameter), {}))

    def _copied(self, parameter: Any) -> Any:
        return _array(parameter).copy()

    def _added(self, parameter: Any, before: Any) -> Any:
        """Writes the difference into the copy `before`, if type and shape are the same."""
        now = _array(parameter)
        same = now.dtype == before.dtype and now.shape == before.shape
        with numpy.errstate(all="ignore"):
            return Tensor.from_numpy(numpy.asarray(numpy.subtract(now, before, out=before if same else None)))

    def _number(self, value: float) -> Any:
        return Tensor(value, mindspore.float64)

    def _outside_of_graphs(self) -> ContextManager[Any]:
        wait()
        outside: ContextManager[Any] = _no_grad()
        return outside


__all__ = ["Monitor"]
