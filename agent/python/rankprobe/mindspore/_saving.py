# SPDX-License-Identifier: Apache-2.0
"""The values of save(), as rankprobe._frontend.saving takes them, with MindSpore's tensors."""

from __future__ import annotations

from typing import Any, Optional

from mindspore._c_expression import TensorPy

from rankprobe._frontend import saving


def check_saved(variable: Any, name: Any, save_backward: Any) -> Optional[str]:
    """What is wrong with the arguments of save(), or None."""
    return saving.check_saved(variable, name, save_backward, TensorPy)


def save_variable(capture: Any, variable: Any, name: str, save_backward: bool) -> bool:
    """Records a checked variable, and its gradients when they come. Whether the plan wanted it."""
    return saving.save_variable(capture, variable, name, save_backward, TensorPy,
                                lambda tensor: bool(getattr(tensor, "_requires_grad", False)))
