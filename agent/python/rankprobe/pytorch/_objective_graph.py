# SPDX-License-Identifier: Apache-2.0
"""Detection of objectives that cannot be learned, in the graph of a loss before its backward.

Logits that a sigmoid or missing temperature bounds, pairs of a contrastive loss that have one label, random masks and targets that are
the same in each step. The signs of the terms of a loss are in _term_graph.py. Calls no code of the program; tensors stay on their device, and nothing waits
for them.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional

import torch

from rankprobe.pytorch._attention_graph import saved, signed
from rankprobe.pytorch._loss_graph import NLL, SHAPES, dropout_mask
from rankprobe.pytorch._shape_graph import FACTORS, REGRESSIONS, constant_of, next_of, shape_of

_RANGES = {"SigmoidBackward0": 1.0, "TanhBackward0": 2.0}
_PRODUCTS = {"MmBackward0", "BmmBackward0"}
_NORMS = ("LinalgVectorNormBackward0", "NormBackward1")
_MOST_BETWEEN, _MOST_MASKS, _LEAST_TARGET = 16, 4, 32
_ROUNDING = 1e-3


def behind(node: Any, names: Iterable[str]) -> Any:
    """Returns the first node that is none of `names`, following the first inputs."""
    for _ in range(_MOST_BETWEEN):
        if node is None or node.name() not in names:
            return node
        node = next_of(node)
    return None


def _logits_of(node: Any) -> Any:
    """Returns the node that makes the logits of a cross entropy."""
    made = behind(next_of(node), SHAPES)
    return behind(next_of(made), SHAPES) if made is not None and made.name() == "LogSoftmaxBackward0" else None


def _pairs_of(node: Any) -> tuple[Any, Any]:
    """Returns the product of two parts of a batch, neither of which is a parameter, that makes the logits, and its factor (None: none).
    (None, None) for other logits."""
    made, factor = node, None
    if made is not None and made.name() in FACTORS:
        # The temperature is a number, or one that is learned.
        part, factor = constant_of(made)
        factor = saved(made, "other") if part is None else factor
        if not isinstance(factor, torch.Tensor) or factor.numel() != 1:
            return None, None
        factor = factor.detach().reciprocal() if made.name() == "DivBackward0" else factor.detach()
        made = behind(part or next_of(made), SHAPES)
    if made is None or made.name() not in _PRODUCTS:
        return None, None
    parts = [behind(next_of(made, place), (*SHAPES, "TBackward0")) for place in (0, 1)]
    if any(part is None or hasattr(part, "variable") for part in parts):
        return None, None
    return made, factor


def logits_range(nodes: Iterable[Any]) -> list[Any]:
    """Returns how far the logits of a cross entropy can be apart, because they end with a sigmoid or tanh, or are cosines, and the number
    of classes. A range of 0 is not bounded. Returns [] if there is no such loss."""
    for node in nodes:
        logits = saved(node, "self") if node.name() in NLL else None
        if logits is None or logits.dim() != 2:
            continue
        made = _logits_of(node)
        span: Any = _RANGES.get(made.name(), 0.0) if made is not None else 0.0
        product, factor = _pairs_of(made)
        one, other = (saved(product, name) for name in ("self", "mat2")) if product is not None else (None, None)
        if type(one) is torch.Tensor and type(other) is torch.Tensor:
            lengths = torch.cat([one.detach().double().norm(dim=-1).flatten(), other.detach().double().norm(dim=-2).flatten()])
            are_cosines = ((lengths - 1).abs() < _ROUNDING).all()
            span = 2 * are_cosines * (1.0 if factor is None else factor.double().abs().reshape(()))
        return [torch.as_tensor(span).double(), torch.tensor(float(logits.shape[1]), dtype=torch.float64)]
    return []


def _is_over_samples(node: Any, rows: int) -> bool:
    """Returns whether the node divides a matrix with a row for each sample by the norm of its columns, as F.normalize(dim=0) does."""
    shape = shape_of(node) if node is not None and node.name() == "DivBackward0" else ()
    norm = behind(next_of(node, 1), ("ExpandBackward0", "ClampMinBackward0", "AddBackward0", *SHAPES)) if len(shape) == 2 else None
    if norm is None or norm.name() not in _NORMS or shape[0] != rows or shape[0] == shape[1]:
        return False
    dims = getattr(norm, "_saved_dim", None)
    return isinstance(dims, (tuple, list)) and [signed(dim) % 2 for dim in dims] == [0]


def _has_queue(made: Any, logits: torch.Tensor) -> bool:
    """Returns whether the logits are one column and others beside it."""
    made = behind(constant_of(made)[0] or made, SHAPES)
    return (made is not None and made.name() == "CatBackward0" and logits.dim() == 2 and logits.shape[0] >= 4
            and logits.shape[1] > logits.shape[0] and signed(made._saved_dim) % 2 == 1 and len(made.next_functions) == 2
            and shape_of(next_of(made)) in ((logits.shape[0], 1), ()))


def pair_targets(nodes: Iterable[Any]) -> list[Any]:
    """Returns, if the logits are all pairs of two parts of a batch, [N, N]: 1, all targets are one; 2, the parts are one, so that each
    sample is compared with itself, and its target is another; 3, a part is divided by its norm over the samples; 0, none of these. Of
    logits whose first column is the partner of each sample, beside a queue: 4, the partner is in the queue, too. Returns [] if the logits
    are no such pairs."""
    for node in nodes:
        logits, target = (saved(node, name) if node.name() in NLL else None for name in ("self", "target"))
        if logits is not None and target is not None and _has_queue(_logits_of(node), logits):
            own = logits.detach().float()
            same = ((own - own[:, :1]).abs() <= 1e-5 * (1 + own[:, :1].abs())).sum(1) > 1
            return [4 * ((target == 0).all() & same.all() & (own.std(1) > 0.01).all()).double()]
        if logits is None or target is None or logits.dim() != 2 or logits.shape[0] != logits.shape[1] or logits.shape[0] < 4:
            continue
        product = _pairs_of(_logits_of(node))[0]
        if product is None:
            continue
        is_one = (target == target[0]).all().double()
        one, other = (behind(next_of(product, place), (*SHAPES, "TBackward0")) for place in (0, 1))
        if _is_over_samples(one, len(target)) or _is_over_samples(other, len(target)):
            return [torch.tensor(3.0, dtype=torch.float64)]
        if one is not other:
            return [is_one]
        is_another = (target != torch.arange(len(target), device=target.device)).all().double()
        return [torch.maximum(is_one, 2 * is_another)]
    return []


def pooled_over_batch(nodes: Iterable[Any]) -> list[Any]:
    """Returns the number of softmaxes over the first of several dimensions, which is as long as the batch of the loss while no other is,
    and that length. Returns [] if there is no softmax or the loss has no batch."""
    rows, number, seen = 0, 0, False
    for node in nodes:
        if not rows and node.name() in (*NLL, *REGRESSIONS):
            prediction = saved(node, "self")
            rows = prediction.shape[0] if prediction is not None and prediction.dim() > 1 else 0
        if node.name() == "SoftmaxBackward0":
            seen, shape = True, shape_of(node)
            number += (len(shape) > 1 and shape[0] == rows > 1 and shape[1] not in (1, rows)
                       and signed(node._saved_dim) % len(shape) == 0)
    return [torch.tensor(float(one), dtype=torch.float64) for one in (number, rows)] if seen and rows else []


def dropout_masks(nodes: Iterable[Any], checksum: Callable[[torch.Tensor], torch.Tensor]) -> Optional[torch.Tensor]:
    """Returns a checksum of the masks of the dropouts that are nearest to the loss; None if there are none."""
    found: list[torch.Tensor] = []
    for node in nodes:
        mask, is_mask = dropout_mask(node)
        if mask is None:
            continue
        found.append(checksum(mask != 0) * is_mask)
        if len(found) == _MOST_MASKS:
            break
    return torch.stack([one.to(found[0].device) for one in found]).sum() if found else None


def regression_targets(nodes: Iterable[Any], checksum: Callable[[torch.Tensor], torch.Tensor]) -> Optional[torch.Tensor]:
    """Returns a checksum of the target of a regression without a graph, or 0 if it has fewer than three values, as labels of a
    discriminator have. Returns None if there is none."""
    for node in nodes:
        target = saved(node, "target") if node.name() in REGRESSIONS else None
        if type(target) is not torch.Tensor or target.numel() < _LEAST_TARGET or next_of(node, 1) is not None:
            continue
        target = target.detach()
        return checksum(target) * ((target != target.min()) & (target != target.max())).any()
    return None


__all__ = ["behind", "dropout_masks", "logits_range", "pair_targets", "pooled_over_batch", "regression_targets"]
