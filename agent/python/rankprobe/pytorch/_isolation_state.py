# SPDX-License-Identifier: Apache-2.0
"""A model for one step with the parameters that a reference recorded; afterwards everything is as it was."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Sequence

import torch

from rankprobe.pytorch import _isolation_numbers as numbers
from rankprobe._isolation_reference import Reference, Unreadable, is_tensor


class SavedState:
    """Gradients, buffers and random state, from now on. put_back() restores them, and the parameters that exchange() took."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._parameters = [p for model in models for p in model.parameters()]
        self._gradients = [p.grad for p in self._parameters]
        self._buffers = [(module._buffers, name, buffer, buffer.detach().clone()) for model in models for module in model.modules()
                         for name, buffer in module._buffers.items() if buffer is not None]
        self._exchanged: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
        self._random = torch.get_rng_state()
        for parameter in self._parameters:
            parameter.grad = None

    def random(self) -> tuple[torch.Tensor, ...]:
        """What moves when a random number is drawn."""
        return (torch.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in range(len(self._cuda))))

    def exchange(self, parameter: torch.Tensor, recorded: torch.Tensor) -> float:
        """Gives it the recorded value; how far its own was, 0 if it had that value."""
        value = numbers.put_into(recorded, parameter.dtype, parameter.device)
        if torch.equal(value, parameter.detach()):
            return 0.0
        found = numbers.difference(parameter, value)
        apart = found.absolute / (found.size or float(parameter.detach().double().norm()) or 1.0)
        self._exchanged.append((parameter, parameter.data))
        parameter.data = value
        return apart

    def put_back(self) -> None:
        for parameter, value in reversed(self._exchanged):
            parameter.data = value
        for parameter, gradient in zip(self._parameters, self._gradients):
            parameter.grad = gradient
        with torch.no_grad():
            for buffers, name, buffer, value in self._buffers:
                if not torch.equal(buffer, value) if not buffer.is_floating_point() else not _same_bits(buffer, value):
                    buffer.copy_(value)
                if buffers.get(name) is not buffer:
                    buffers[name] = buffer
        torch.set_rng_state(self._random)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        torch.clear_autocast_cache()


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def give_parameters(state: SavedState, reference: Reference, modules: Sequence[tuple[str, str, torch.nn.Module]]) -> tuple[
        list[str], dict[str, str]]:
    """Gives modules (name, path in the reference, module) their recorded parameters. Notes for the reader, and by name of a
    module why its parameters are not those of the reference."""
    moved: list[tuple[float, str]] = []
    without: dict[str, str] = {}
    done: set[int] = set()
    for name, path, module in modules:
        calls = reference.calls.get(path)
        own = {key: p for key, p in module._parameters.items() if p is not None}
        if not calls or not own:
            continue
        recorded: dict[str, Any] = next((calls[number].forward["parameters"] for number in sorted(calls) if calls[number].forward.get("parameters")), {})
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
    return [f"{len(moved)} parameters had other values than in the reference and were given those for this step; the largest relative "
            f"difference is {largest[0]:.3g}, of {largest[1]}"], without


@contextlib.contextmanager
def eager(models: Sequence[torch.nn.Module]) -> Any:
    """Compiled modules run as they are written, for hooks; nothing is imported where nothing is compiled."""
    compiled = any(hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
                   for model in models for module in model.modules())
    stance: Callable[[str], Any] | None = getattr(torch.compiler, "set_stance", None) if compiled else None
    with stance("force_eager") if stance is not None else contextlib.nullcontext():
        yield


__all__ = ["SavedState", "eager", "give_parameters"]
