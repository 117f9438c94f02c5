# SPDX-License-Identifier: Apache-2.0
"""Signs of the terms of a loss, in its graph before the backward.

A loss is expanded into terms along sums, differences, means and products with constants. Reported are terms whose sign is wrong: a
likelihood that is minimised, a divergence that is maximised, an entropy that a policy minimises. Calls no code of the program; tensors
stay on their device, and nothing waits for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from rankprobe.pytorch._attention_graph import saved
from rankprobe.pytorch._loss_graph import NLL, SHAPES
from rankprobe.pytorch._objective_graph import behind
from rankprobe.pytorch._shape_graph import constant_of, next_of

_WHOLE = ("MeanBackward0", "SumBackward0", "MeanBackward1", "SumBackward1", "DivBackward1", "ExpandBackward0", *SHAPES)
_MOST_TERMS = 64
_ROUNDING = 0.01
DIVERGENCE, ENTROPY = 1, 2


class _Term(NamedTuple):
    node: Any
    number: int  # of the node's result
    sign: torch.Tensor
    # Whether the sign is that of all elements, and the same in each step.
    is_known: torch.Tensor


def _inner(term: _Term) -> list[_Term]:
    """Returns the terms that this one is a sum or multiple of; [] if it is neither."""
    node, _, sign, is_known = term
    name, after = node.name(), node.next_functions
    if name in _WHOLE:
        return [_Term(after[0][0], after[0][1], sign, is_known)]
    if name in ("NegBackward0", "RsubBackward1"):
        return [_Term(after[0][0], after[0][1], -sign, is_known)]
    if name in ("AddBackward0", "SubBackward0"):
        signs = (sign, sign if name == "AddBackward0" else -sign)
        return [_Term(one, number, of, is_known) for (one, number), of in zip(after, signs)]
    part, factor = constant_of(node)
    if part is None or not isinstance(factor, torch.Tensor):
        return []
    number = next(of for one, of in after if one is part)
    if factor.dim() > 0:
        return [_Term(part, number, sign, torch.zeros_like(is_known))]
    # The sign of a number in the program's text is fixed; that of a tensor, as a reward, may change.
    if factor.dtype in (torch.float64, torch.int64):
        return [_Term(part, number, sign * factor.detach().sign(), is_known)]
    return [_Term(part, number, sign, is_known & (factor.detach() > 0))]


def terms_of(root: Any) -> list[_Term]:
    """Returns the terms of a loss. Products of a constant and log-probabilities are terms of their own."""
    line = [_Term(root, 0, torch.tensor(1.0, dtype=torch.float64), torch.tensor(True))]
    terms = []
    for term in line:
        if term.node is None:
            continue
        inner = [] if _weighed(term.node) is not None else _inner(term)
        if not inner:
            terms.append(term)
        elif len(line) < _MOST_TERMS:
            line += inner
    return terms


def _logarithm(node: Any) -> str:
    """Returns the name of the node that makes log-probabilities, skipping changes of shape; "" if it is another one."""
    made = behind(node, SHAPES)
    return made.name() if made is not None and made.name() in ("GatherBackward0", "LogSoftmaxBackward0") else ""


def _weighed(node: Any) -> Any:
    """Of a product of log-probabilities and a constant of several elements, returns the constant; None for others."""
    part, factor = constant_of(node)
    is_weight = type(factor) is torch.Tensor and factor.dim() > 0 and bool(_logarithm(part))
    return factor if is_weight and node.name() == "MulBackward0" else None


def minimised_likelihood(terms: list[_Term]) -> list[Any]:
    """Returns 1 if the loss is a likelihood whose sign is wrong, 0 if it is right. Returns [] if the loss is not one mean likelihood."""
    if len(terms) != 1 or _weighed(terms[0].node) is not None:
        return []
    node, _, sign, is_known = terms[0]
    if node.name() in NLL and saved(node, "target") is not None:
        return [((sign < 0) & is_known).double()]
    if node.name() == "GatherBackward0" and _logarithm(next_of(node)) == "LogSoftmaxBackward0":
        return [((sign > 0) & is_known).double()]
    return []


def inverted_term(terms: list[_Term]) -> list[Any]:
    """Returns DIVERGENCE if the loss falls while a divergence grows: that of two distributions (kl_div), or of a normal distribution from
    the standard one, whose exponential (or variance) and logarithm have the wrong signs. Returns ENTROPY if a policy gradient is
    together with an entropy that is minimised. Returns 0 if the signs are right, and [] if the loss has no such term."""
    by_result = {(term.node, term.number): term for term in terms}
    found: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    is_policy = False
    for node, _, sign, is_known in terms:
        wrong = None
        if node.name() == "KlDivBackward0":
            wrong = sign < 0
        elif node.name() in ("ExpBackward0", "LogBackward0"):
            of, direction = _base(*node.next_functions[0])
            other = by_result.get(of)
            if other is not None and other.node is not node:
                # The larger one of an exponential and its exponent, or of a number and its logarithm.
                larger = sign if node.name() == "ExpBackward0" else other.sign
                wrong = (sign * other.sign * direction < 0) & (larger < 0) & other.is_known
        weights = _weighed(node)
        if weights is not None:
            weights = weights.detach()
            is_policy = is_policy or _logarithm(constant_of(node)[0]) == "GatherBackward0"
            if _logarithm(constant_of(node)[0]) == "LogSoftmaxBackward0":
                wrong = (sign > 0) & ((weights.sum(-1) - 1).abs() < _ROUNDING).all() & (weights > 0).all()
        is_policy = is_policy or node.name() == "MinimumBackward0"
        if _is_entropy(node):
            entropies.append((sign < 0) & is_known)
        if wrong is not None:
            found.append(DIVERGENCE * (wrong & is_known).double())
    found += [ENTROPY * one.double() for one in entropies if is_policy]
    return [torch.stack([one.to(found[0].device) for one in found]).max()] if found else []


def _base(node: Any, number: int) -> tuple[tuple[Any, int], Any]:
    """Returns what a value is a multiple of, as node and number of its result, and the sign of the multiple."""
    term = _Term(node, number, torch.tensor(1.0, dtype=torch.float64), torch.tensor(True))
    for _ in range(_MOST_TERMS):
        inner = [one for one in _inner(term) if one.node is not None]
        if len(inner) != 1:
            break
        term = inner[0]
    return (term.node, term.number), term.sign


def _is_entropy(node: Any) -> bool:
    """Returns whether the node is the product of probabilities and their logarithms, both with a graph."""
    if node.name() != "MulBackward0" or len(node.next_functions) != 2:
        return False
    parts = [behind(next_of(node, place), (*SHAPES, "ClampBackward1", "ClampMinBackward0")) for place in (0, 1)]
    for logarithm, probability in (parts, parts[::-1]):
        if logarithm is None or probability is None or probability.name() not in ("SoftmaxBackward0", "ExpBackward0"):
            continue
        source, of = next_of(probability), next_of(logarithm)
        if source is logarithm or (logarithm.name() == "LogSoftmaxBackward0" and source is of) or (
                logarithm.name() == "LogBackward0" and behind(of, SHAPES) is probability):
            return True
    return False


__all__ = ["inverted_term", "minimised_likelihood", "terms_of"]
