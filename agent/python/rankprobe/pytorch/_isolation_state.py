# SPDX-License-Identifier: Apache-2.0
"""Exchange of a model's parameters with those of a reference for one step, and restoration of all state afterwards."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Callable, Sequence

import torch

from rankprobe.pytorch import _isolation_numbers as numbers
from rankprobe._isolation_reference import Reference, Unreadable, is_tensor


class SavedState:
    """Saves gradients, buffers and random state at construction. put_back() restores them, the parameters that exchange() replaced,
    and those that keep() copied."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._parameters = [p for model in models for p in model.parameters()]
        self._gradients = [p.grad for p in self._parameters]
        modules = [module for model in models for module in model.modules()]
        self._registered = [(module, dict(module._buffers), set(module._non_persistent_buffers_set)) for module in modules]
        self._values = [(buffer, buffer.detach().clone()) for module in modules for buffer in module._buffers.values() if buffer is not None]
        self._exchanged: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
        self._random = torch.get_rng_state()
        self._python_random = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy_random = None if numpy is None else (numpy.random, numpy.random.get_state())
        for parameter in self._parameters:
            parameter.grad = None

    def keep(self) -> None:
        """Copies the parameters that were not exchanged to host memory, because the program's forward may write to them."""
        exchanged = {id(parameter) for parameter, _ in self._exchanged}
        self._values += [(p, p.detach().cpu().clone()) for p in self._parameters
                         if id(p) not in exchanged and type(p.data) is torch.Tensor and p.device.type != "meta"]

    def random(self) -> tuple[torch.Tensor, ...]:
        """Returns the random states, which change when a random number is drawn."""
        return (torch.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in range(len(self._cuda))))

    def exchange(self, parameter: torch.Tensor, recorded: torch.Tensor) -> float:
        """Sets a parameter to the recorded value. Returns the relative difference of its own value; 0 if it is equal."""
        value = numbers.put_into(recorded, parameter.dtype, parameter.device)
        if torch.equal(value, parameter.detach()):
            return 0.0
        found = numbers.difference(parameter, value)
        apart = found.absolute / (found.size or float(parameter.detach().double().norm()) or 1.0)
        self._exchanged.append((parameter, parameter.data))
        parameter.data = value
        return apart

    def put_back(self) -> None:
        with contextlib.ExitStack() as all_of_it:  # Runs the other callbacks even if one raises.
            all_of_it.callback(self._put_random_back)
            for tensor, value in self._values:
                all_of_it.callback(_write_back, tensor, value)
            for module, buffers, non_persistent in self._registered:
                all_of_it.callback(_register_again, module, buffers, non_persistent)
            for parameter, gradient in zip(self._parameters, self._gradients):
                parameter.grad = gradient
            for tensor, value in reversed(self._exchanged):
                tensor.data = value

    def _put_random_back(self) -> None:
        random.setstate(self._python_random)
        if self._numpy_random is not None:
            generator, state = self._numpy_random
            generator.set_state(state)
        torch.set_rng_state(self._random)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        torch.clear_autocast_cache()


def _register_again(module: torch.nn.Module, buffers: dict[str, Any], non_persistent: set[str]) -> None:
    """Restores the registered buffers in their order, since a forward may register, replace and remove some."""
    if list(module._buffers) != list(buffers) or any(module._buffers[name] is not buffers[name] for name in buffers):
        module._buffers.clear()
        module._buffers.update(buffers)
    if module._non_persistent_buffers_set != non_persistent:
        module._non_persistent_buffers_set.clear()
        module._non_persistent_buffers_set.update(non_persistent)


def _write_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    now = tensor.detach()
    if now.shape != value.shape or now.dtype != value.dtype:
        tensor.data = value.to(now.device)
    elif not _same_bits(now.to(value.device), value):
        with torch.no_grad():
            now.copy_(value)


def _bits(value: torch.Tensor) -> torch.Tensor:
    plain = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return plain.resolve_neg().reshape(-1).view(torch.uint8)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compares bits: zeros of different signs differ, NaNs with equal bits do not."""
    if type(a) is torch.Tensor and a.layout is torch.strided and not a.is_quantized:
        return torch.equal(_bits(a), _bits(b))
    return False  # Unknown, so the value is written again.


def give_parameters(state: SavedState, reference: Reference, modules: Sequence[tuple[str, str, torch.nn.Module]]) -> tuple[
        list[str], dict[str, str]]:
    """Sets the parameters of modules (name, path in the reference, module) to the recorded ones. Returns notes for the reader, and by
    module name the reason why its parameters are not those of the reference."""
    moved: list[tuple[float, str]] = []
    without: dict[str, str] = {}
    done: set[int] = set()
    for name, path, module in modules:
        calls = reference.calls.get(path)
        own = {key: p for key, p in module._parameters.items() if p is not None}
        if not calls or not own:
            continue
        sections = (calls[number].forward.get("parameters") for number in sorted(calls))
        recorded: dict[str, Any] = next((section for section in sections if section and isinstance(section, dict)), {})
        for key, parameter in own.items():
            record: Any = recorded.get(key)
            record = record[0] if isinstance(record, list) and len(record) == 1 else record
            if id(parameter) in done:
                continue
            if not is_tensor(record):
                without.setdefault(name, f"its parameter {key} was not recorded")
            elif type(parameter.data) is not torch.Tensor or list(parameter.shape) != record["shape"]:
                without.setdefault(name, f"its parameter {key} has shape {list(parameter.shape)}, the reference's {record['shape']}")
            else:
                try:
                    apart = state.exchange(parameter, reference.load(record))
                except Unreadable as reason:
                    without.setdefault(name, f"its parameter {key} was not recorded: {reason}")
                    continue
                done.add(id(parameter))
                if apart:
                    moved.append((apart, f"{name}.{key}"))
    if not moved:
        return [], without
    largest = max(moved)
    return [f"{len(moved)} parameters had other values than in the reference and received those for this step; the largest relative "
            f"difference is {largest[0]:.3g}, of {largest[1]}"], without


@contextlib.contextmanager
def eager(models: Sequence[torch.nn.Module]) -> Any:
    """Context manager in which compiled modules run eagerly, as hooks require. Does not import the compiler if nothing is compiled."""
    compiled = any(hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
                   for model in models for module in model.modules())
    stance: Callable[[str], Any] | None = getattr(torch.compiler, "set_stance", None) if compiled else None
    with stance("force_eager") if stance is not None else contextlib.nullcontext():
        yield


__all__ = ["SavedState", "eager", "give_parameters"]
