# SPDX-License-Identifier: Apache-2.0
"""Nested values of save(): their check, and the places of their gradients."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

_MAX_DEPTH = 350


def check_saved(variable: Any, name: Any, save_backward: Any, tensor_type: type) -> Optional[str]:
    """Returns what is wrong with the arguments of save(), or None."""
    if not isinstance(name, str) or not name:
        return f"name must be a non-empty str, not {name!r}"
    if not isinstance(save_backward, bool):
        return f"save_backward must be a bool, not {type(save_backward).__name__}"
    return _check(variable, tensor_type, 0)


def _check(value: Any, tensor_type: type, depth: int) -> Optional[str]:
    if depth > _MAX_DEPTH:
        return f"variable is nested deeper than {_MAX_DEPTH}"
    if isinstance(value, (tensor_type, int, float, str)):
        return None
    if isinstance(value, (list, tuple)):
        items = list(value)
    elif isinstance(value, dict):
        bad = next((k for k in value if not isinstance(k, str)), None)
        if bad is not None:
            return f"keys of a dict must be str, not {type(bad).__name__}"
        items = list(value.values())
    else:
        return f"variable must be a Tensor, int, float, str or a list, tuple or dict of them, not {type(value).__name__}"
    return next((fault for fault in (_check(item, tensor_type, depth + 1) for item in items) if fault), None)


def gradient_leaves(value: Any, tensor_type: type, wants: Callable[[Any], bool], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (positions joined by '.', tensor) of every tensor that will get a gradient."""
    if isinstance(value, tensor_type):
        if wants(value):
            yield path, value
        return
    if isinstance(value, dict):
        items: Any = value.values()
    elif isinstance(value, (list, tuple)):
        items = value
    else:
        return
    for position, item in enumerate(items):
        yield from gradient_leaves(item, tensor_type, wants, f"{path}.{position}" if path else str(position))


def skeleton(value: Any) -> Any:
    """Returns the same containers with None for every leaf."""
    if isinstance(value, dict):
        return {key: skeleton(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [skeleton(item) for item in value]
    return None


def save_variable(capture: Any, variable: Any, name: str, save_backward: bool, tensor_type: type,
                  wants: Callable[[Any], bool]) -> bool:
    """Records a checked variable, and its gradients when they are computed. Returns whether the plan records it.
    wants: returns whether a tensor gets a gradient."""
    leaves = list(gradient_leaves(variable, tensor_type, wants)) if save_backward else []
    saved = capture.save(name, variable, skeleton(variable) if save_backward else ...)
    if saved is None:
        return False
    for path, tensor in leaves:
        tensor.register_hook(_gradient_saver(capture, saved, path))
    return True


def _gradient_saver(capture: Any, saved: Any, path: str) -> Callable[[Any], None]:
    def rankprobe_saver(gradient: Any) -> None:
        capture.save_gradient(saved, path, gradient)

    return rankprobe_saver
