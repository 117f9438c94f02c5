# SPDX-License-Identifier: Apache-2.0
"""Detection of misused losses in their graph before the backward.

Checks whether a loss gets probabilities instead of logits or logarithms, and whether the layer before it can reach the targets. Calls
no code of the program; tensors stay on their device, and nothing waits for them.
"""

from __future__ import annotations

from typing import Any, Iterable

import torch

from rankprobe.pytorch._attention_graph import saved, signed
from rankprobe.pytorch._shape_graph import REGRESSIONS, constant_of, shape_of

_OF_LOGITS, _OF_BINARY, _KL_DIV = "BinaryCrossEntropyWithLogitsBackward0", "BinaryCrossEntropyBackward0", "KlDivBackward0"
NLL = ("NllLossBackward0", "NllLoss2DBackward0")
_CTC = "CtcLossBackward0"
# kl_div may have no node of its own: its last node is the difference of a term of the targets alone and of targets times logarithms.
# Of a cross entropy with probabilities as targets, the last node is the division by the number of samples.
_OF_SHARES = "DivBackward1"
OF_PROBABILITIES = (*NLL, _CTC, _OF_LOGITS, _OF_BINARY, _KL_DIV, _OF_SHARES, "SubBackward0")
# Nodes that change shapes, dtypes or the selection of elements, but not values.
SHAPES = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0", "PermuteBackward0", "SqueezeBackward0",
           "SqueezeBackward1", "UnsqueezeBackward0", "CloneBackward0", "ToCopyBackward0", "SelectBackward0", "SliceBackward0", "IndexBackward0")
_MOST_SHAPES = 8
# Layers whose results have both signs and are unbounded.
_LINEAR = ("AddmmBackward0", "MmBackward0", "ConvolutionBackward0", "LinearBackward0")
OF_LOGARITHMS, OF_LOGITS, OF_OTHERS, CUT, NO_LOGARITHMS, ONE_CLASS, SEVERAL, OF_DIVERGENCE, DROPPED = 1, 2, 3, 4, 5, 6, 7, 8, 9
_DIFFERENCES = ("PowBackward0", "AbsBackward0")
# Range of an activation.
_REACHES = {"SigmoidBackward0": (0.0, 1.0), "SoftmaxBackward0": (0.0, 1.0), "TanhBackward0": (-1.0, 1.0), "ReluBackward0": (0.0, float("inf"))}
_GREATEST = ("MaxBackward0", "AmaxBackward0", "MinimumBackward0")
_MOST_TARGETS, _ROUNDING, _LEAST_MASK = 65536, 0.01, 32


def _made_by(node: Any) -> Any:
    """Returns the node that made the first argument of a node, skipping changes of shape; None if the argument has no graph."""
    for _ in range(_MOST_SHAPES):
        node = node.next_functions[0][0] if node.next_functions else None
        if node is None or node.name() not in SHAPES:
            return node
    return None


def _softmax_dim(node: Any, name: str) -> tuple[Any, int]:
    """Returns result and dimension of a softmax of that name; (None, 0) if the node is not one."""
    result = saved(node, "result") if node is not None and node.name() == name else None
    if result is None or result.dim() == 0:
        return None, 0
    return result, signed(node._saved_dim) % result.dim()


def _is_softmax(node: Any, classes: int) -> bool:
    """Returns whether the node is a softmax over as many elements as there are classes; one of an attention has another number."""
    result, dim = _softmax_dim(node, "SoftmaxBackward0")
    return result is not None and bool(result.shape[dim] == classes)


def _is_over_another(node: Any, classes: int) -> bool:
    """Returns whether a softmax is over another dimension than the last, which has the classes; for a square similarity matrix both are
    valid."""
    for name in ("SoftmaxBackward0", "LogSoftmaxBackward0"):
        result, dim = _softmax_dim(node, name)
        if result is not None and dim < result.dim() - 1:
            return bool(result.shape[-1] == classes != result.shape[dim])
    return False


def probabilities(node: Any) -> Any:
    """Returns whether a loss gets wrong values. OF_LOGARITHMS: probabilities instead of their logarithms; OF_LOGITS: probabilities instead
    of logits, to which it applies a second softmax or sigmoid; OF_OTHERS: they do not sum to 1 over the classes; CUT: logits that a ReLU
    has cut; NO_LOGARITHMS: the output of a layer instead of logarithms of probabilities; ONE_CLASS: a softmax over one class, which is
    always 1; SEVERAL: targets of several classes; OF_DIVERGENCE: kl_div of logits; DROPPED: logits some of which a dropout has set to 0;
    0: none of these."""
    if node.name() == _OF_SHARES:
        return _of_several(node)
    made = _made_by(node)
    if node.name() == "SubBackward0":
        return _divergence(node)
    if made is None:
        return 0
    if _is_of_one(made) and node.name() != _OF_LOGITS:
        return ONE_CLASS
    if node.name() == _OF_LOGITS:
        return {"SigmoidBackward0": OF_LOGITS, "ReluBackward0": CUT}.get(made.name(), _dropped(made))
    if node.name() in (_KL_DIV, _CTC):
        return OF_LOGARITHMS if made.name() == "SoftmaxBackward0" else NO_LOGARITHMS if made.name() in _LINEAR else 0
    return _likelihood(node, made) if node.name() in NLL else 0


def dropout_mask(node: Any) -> tuple[Any, Any]:
    """Returns the mask of a dropout, and a bool tensor: whether it is one. (None, None) for other nodes."""
    is_native = node.name() == "NativeDropoutBackward0"
    mask = saved(node, "result1") if is_native else constant_of(node)[1] if node.name() == "MulBackward0" else None
    if type(mask) is not torch.Tensor or mask.numel() < _LEAST_MASK or tuple(mask.shape) != shape_of(node) or (mask.dtype == torch.bool) != is_native:
        return None, None
    mask = mask.detach()
    largest, kept = mask.max(), (mask != 0).double().mean()
    is_mask = ((mask == 0) | (mask == largest)).all() & (kept < 1) & (kept > 0)
    if not is_native:  # A dropout multiplies what is left, so that the mean is kept.
        is_mask = is_mask & (largest > 1) & ((largest.double() * kept - 1).abs() < 0.25)
    return mask, is_mask


def _dropped(node: Any) -> Any:
    """Returns DROPPED if the node, whose output the loss takes, is a dropout; else 0."""
    is_mask = dropout_mask(node)[1] if node is not None else None
    return 0 if is_mask is None else DROPPED * is_mask


def _likelihood(node: Any, made: Any) -> Any:
    """Returns the result of probabilities() for a cross entropy."""
    logits = saved(node, "self")
    if logits is None or logits.dim() < 2:
        return 0
    classes = logits.shape[1]
    before = _made_by(made) if made.name() == "LogSoftmaxBackward0" else None
    if _is_over_another(made, classes) or _is_over_another(before, classes):
        return OF_OTHERS
    if made.name() != "LogSoftmaxBackward0":
        return OF_LOGARITHMS if _is_softmax(made, classes) else NO_LOGARITHMS if made.name() in _LINEAR else 0
    if _is_softmax(before, classes):
        return OF_LOGITS
    return CUT if before is not None and before.name() == "ReluBackward0" else _dropped(before)


def _is_of_one(node: Any) -> bool:
    for name in ("SoftmaxBackward0", "LogSoftmaxBackward0"):
        result, dim = _softmax_dim(node, name)
        if result is not None:
            return bool(result.shape[dim] == 1 < result.numel())
    return False


def _of_several(node: Any) -> Any:
    """Returns SEVERAL for a cross entropy whose targets are 1 for several classes of a sample, instead of probabilities."""
    for name in ("NegBackward0", "SumBackward0", "MulBackward0"):
        node = node.next_functions[0][0] if node.next_functions else None
        if node is None or node.name() != name:
            return 0
    result, dim = _softmax_dim(node.next_functions[0][0], "LogSoftmaxBackward0")
    target = saved(node, "other")
    if result is None or type(target) is not torch.Tensor or target.shape != result.shape:
        return 0
    target = target.detach()
    return SEVERAL * (((target == 0) | (target == 1)).all() & (target.sum(dim) > 1).any())


def _divergence(node: Any) -> Any:
    """Returns the result of probabilities() for kl_div, where a product of a distribution and a softmax, or the output of a layer, is
    subtracted."""
    constant, product = (after for after, _ in node.next_functions[:2])
    if constant is not None or product is None or product.name() != "MulBackward0":
        return 0
    at = next((number for number, (after, _) in enumerate(product.next_functions) if after is not None), 0)
    made = product.next_functions[at][0]
    result, dim = _softmax_dim(made, "SoftmaxBackward0")
    target = saved(product, "self" if at else "other")
    if type(target) is not torch.Tensor or target.dim() == 0:
        return 0
    target = target.detach()
    if made is not None and made.name() == "DivBackward0":  # A temperature.
        made = made.next_functions[0][0]
    if made is not None and made.name() in _LINEAR and target.shape[-1] > 1:
        # Choices, which are 0 and 1, may be subtracted on purpose.
        return OF_DIVERGENCE * (_are_distributions(target, -1) & (target > 0).all())
    if result is None or target.shape != result.shape or result.shape[dim] < 2:
        return 0
    return OF_LOGARITHMS * _are_distributions(target, dim)


def _are_distributions(target: torch.Tensor, dim: int) -> torch.Tensor:
    return ((target.sum(dim) - 1).abs() < _ROUNDING).all() & (target >= 0).all()


def unreachable_targets(nodes: Iterable[Any]) -> list[Any]:
    """For a regression whose prediction is bounded by an activation, returns the share of the targets beyond the bounds, and the bounds.
    Returns [] if there is none."""
    for node in nodes:
        target, made = _target_of(node)
        if target is None or target.numel() == 0:
            continue
        low, high = _REACHES[made.name()]
        target = target.detach().reshape(-1)[:_MOST_TARGETS].double()
        outside = (target < low - _ROUNDING) | (target > high + _ROUNDING)
        return [outside.double().mean(), *(torch.tensor(bound, dtype=torch.float64) for bound in (low, min(high, 1e300)))]
    return []


def moving_target(nodes: Iterable[Any]) -> list[Any]:
    """For a regression whose target has a graph, returns 1 if the target is a constant plus a maximum with a graph, as in Q-learning, else
    0. Returns 2 if log-probabilities are weighed by numbers less the output of a layer. Returns [] if neither is found."""
    found = []
    for node in nodes:
        if node.name() == "MulBackward0" and len(node.next_functions) == 2 and _is_weighed(*(after for after, _ in node.next_functions)):
            found.append(2.0)
        target = node.next_functions[1][0] if node.name() in REGRESSIONS and len(node.next_functions) > 1 else None
        if target is None:
            continue
        parts = [after for after, _ in target.next_functions]
        is_sum = target.name() in ("AddBackward0", "SubBackward0") and parts.count(None) == 1 and node.next_functions[0][0] is not None
        found.append(float(is_sum and _is_greatest(parts[0] or parts[1])))
    return [torch.tensor(max(found), dtype=torch.float64)] if found else []


def _behind_shapes(node: Any) -> Any:
    return node if node is None or node.name() not in SHAPES else _made_by(node)


def _is_weighed(one: Any, other: Any) -> bool:
    """Of a product: whether one factor is a log-probability of a choice and the other an advantage."""
    parts = [_behind_shapes(one), _behind_shapes(other)]
    return any(first is not None and first.name() == "GatherBackward0" and _is_advantage(second) for first, second in (parts, parts[::-1]))


def _is_advantage(node: Any) -> bool:
    """A number less what a layer makes, or the other way round."""
    if node is None or node.name() != "SubBackward0":
        return False
    parts = [after for after, _ in node.next_functions]
    made = _behind_shapes(parts[0] or parts[1])
    return parts.count(None) == 1 and made is not None and made.name() in _LINEAR


def _is_greatest(node: Any) -> bool:
    for _ in range(_MOST_SHAPES):
        if node is None or node.name() in _GREATEST:
            return node is not None
        if node.name() not in (*SHAPES, "MulBackward0"):
            return False
        node = next((after for after, _ in node.next_functions if after is not None), None)
    return False


def _target_of(node: Any) -> tuple[Any, Any]:
    """Returns target and activation of a regression loss, or of the square or absolute value of a difference; (None, None) if it is not
    one."""
    made = _made_by(node)
    if node.name() in REGRESSIONS:
        is_bounded = made is not None and made.name() in _REACHES
        return (saved(node, "target"), made) if is_bounded else (None, None)
    if node.name() not in _DIFFERENCES or made is None or made.name() != "SubBackward0":
        return None, None
    at = next((number for number, (after, _) in enumerate(made.next_functions) if after is not None), 0)
    activation, difference = made.next_functions[at][0], saved(node, "self")
    if activation is None or activation.name() not in _REACHES or made.next_functions[1 - at][0] is not None:
        return None, None
    prediction = saved(activation, "result")
    if type(prediction) is not torch.Tensor or difference is None or prediction.shape != difference.shape:
        return None, None
    return (prediction - difference if at == 0 else prediction + difference).detach(), activation


__all__ = ["NLL", "SHAPES", "OF_PROBABILITIES", "dropout_mask", "moving_target", "probabilities", "unreachable_targets"]
