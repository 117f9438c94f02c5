# SPDX-License-Identifier: Apache-2.0
"""Detection of targets for which a loss is not defined, in the graph of the loss before its backward. Calls no code of the program; tensors
stay on their device, and nothing waits for them."""

from __future__ import annotations

from typing import Any, Iterable

import torch

from rankprobe.pytorch._attention_graph import saved
from rankprobe.pytorch._shape_graph import constant_of, next_of

BINARY, SIGNS, BLANK = 1, 2, 3
_LEAST = 8
# Labels of a discriminator may be a little beyond 0 and 1 on purpose.
_TOLERANCE = 0.5


def undefined_targets(nodes: Iterable[Any]) -> list[Any]:
    """Returns BINARY if targets of a binary cross entropy are far from [0, 1], SIGNS if those of a loss that expects -1 and 1 are 0, BLANK if
    those of ctc_loss contain the blank, else 0; the largest of several losses. Returns [] if there is no such loss."""
    kinds: list[torch.Tensor] = []
    for node in nodes:
        name = node.name()
        if name == "BinaryCrossEntropyWithLogitsBackward0":
            # The program may leave out some targets itself.
            is_masked = node._saved_reduction == 0 or saved(node, "weight") is not None
            found = None if is_masked else _far_from_binary(saved(node, "target"))
        elif name == "SoftMarginLossBackward0":
            found = None if node._saved_reduction == 0 else _as_signs(saved(node, "target"))
        elif name == "CtcLossBackward0":
            found = _with_blank(node)
        else:
            found = _ranked(node) if name == "ClampMinBackward0" else _chosen(node) if name == "AddBackward0" else None
        if found is not None:
            kinds.append(found.double())
    return [torch.stack([one.to(kinds[0].device) for one in kinds]).max()] if kinds else []


def _far_from_binary(target: Any) -> Any:
    if target is None or target.numel() == 0:
        return None
    target = target.detach()
    return BINARY * ((target < -_TOLERANCE) | (target > 1 + _TOLERANCE)).any()


def _as_signs(target: Any) -> Any:
    return None if target is None else SIGNS * (target.detach() == 0).any()


def _with_blank(node: Any) -> Any:
    targets = saved(node, "targets")
    if targets is None or targets.dim() != 2:
        return None
    lengths = torch.tensor(node._saved_target_lengths).to(targets.device, non_blocking=True)
    if lengths.dim() != 1 or len(lengths) != len(targets):
        return None
    is_counted = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
    return BLANK * ((targets == node._saved_blank) & is_counted).any()


def _ranked(node: Any) -> Any:
    """margin_ranking_loss: a product of minus the target and a difference, to which a margin is added."""
    added = next_of(node)
    product = next_of(added) if added is not None and added.name() in ("AddBackward0", "AddBackward1") else None
    difference, target = constant_of(product)
    if difference is None or difference.name() != "SubBackward0" or type(target) is not torch.Tensor or target.numel() < _LEAST:
        return None
    target = target.detach()
    return SIGNS * (((target == 0) | (target == -1)).all() & (target == 0).any() & (target == -1).any())


def _chosen(node: Any) -> Any:
    """cosine_embedding_loss and hinge_embedding_loss: of each pair one of two terms counts, by the sign of the target."""
    parts = [next_of(node), next_of(node, 1)]
    if any(part is None or part.name() != "WhereBackward0" for part in parts):
        return None
    if not any(after is not None and after.name() == "ClampMinBackward0" for part in parts for after, _ in part.next_functions):
        return None
    one, other = (saved(part, "condition") for part in parts)
    if one is None or other is None or one.shape != other.shape or one.numel() < _LEAST:
        return None
    return SIGNS * (one == other).any()


__all__ = ["undefined_targets"]
