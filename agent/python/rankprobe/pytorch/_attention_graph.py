# SPDX-License-Identifier: Apache-2.0
"""What the attention of a language model sees, read out of the graph of its loss before the backward.

Questions of the first steps: does a token attend to tokens after it, do its weights sum to 1 over what they weigh, and do positions
share one rotary embedding. All are read from tensors that the graph keeps for the backward: probabilities or masks of the attention, factors of a rotation. Nothing of
the program is called; tensors stay on their device and are not waited for.
"""

from __future__ import annotations

from typing import Any, Iterable

import torch

_PRODUCT = "MulBackward0"
_SOFTMAX = ("SoftmaxBackward0", "SafeSoftmaxBackward0")
_SDPA = "ScaledDotProduct"
# What may lie between a softmax and its product with the values: shapes, dtypes, dropout.
_BETWEEN = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "ExpandBackward0", "CloneBackward0", "ToCopyBackward0",
            "NativeDropoutBackward0", "MulBackward0")
_MOST_BETWEEN = 8
# Calls that are looked at in a graph, and sequences and places of one call: enough for a mask, little for the device.
_MOST_CALLS, _MOST_SEQUENCES, _MOST_PLACES = 64, 8, 128
# A pattern of fewer places may be chance.
_LEAST_PLACES = 4
# Smaller shares of the attention's weight are left by a mask of a finite number.
_NOTHING = 1e-6
# bfloat16 holds each integer up to 256: rows that are equal before have another reason. Tables of positions, and their sizes.
_EXACT_POSITIONS, _MOST_TABLES, _MOST_POSITIONS, _MOST_COLUMNS = 256, 16, 4096, 512


def signed(number: int) -> int:
    """A dimension or an index that a node has kept: PyTorch gives negative ones without their sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


def saved(node: Any, name: str) -> Any:
    """A tensor that a node keeps. None: it has none of this name, it was changed since, or hooks of the program packed it,
    which are not called for us."""
    try:
        raw = getattr(node, f"_raw_saved_{name}", None)
        if raw is None or getattr(raw, "unpack_hook", raw) is not None:
            return None
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:  # changed in place, or freed: the backward of the program says so
        return None


def attention_sees(nodes: Iterable[Any]) -> list[Any]:
    """Of the calls of self-attention: the share that sees one token ahead and no further, the share that sees later tokens, and
    their number. Empty: there is none that can be judged."""
    seen = []
    for node in nodes:
        one = _seen_by(node)
        if one is not None:
            seen.append(one)
            if len(seen) == _MOST_CALLS:
                break
    if not seen:
        return []
    # Layers may lie on several devices.
    shares = torch.stack([one.to(seen[0].device) for one in seen]).float().mean(0)
    return [shares[0], shares[1], torch.tensor(float(len(seen)), dtype=torch.float64)]


def _seen_by(node: Any) -> Any:
    """Of one call: whether it sees one token ahead and no further, and whether it sees later ones. None: it cannot be judged."""
    name = node.name()
    if name in _SOFTMAX:
        weights = saved(node, "result")
        if type(weights) is not torch.Tensor or weights.dim() < 3 or node._saved_dim not in (weights.dim() - 1, (1 << 64) - 1):
            return None
        return _looks_ahead(weights)
    if not name.startswith(_SDPA):
        return None
    query, key = saved(node, "query"), saved(node, "key")
    if type(query) is not torch.Tensor or key is None or query.shape[-2] != key.shape[-2] or query.shape[-2] < _LEAST_PLACES:
        return None
    mask = saved(node, "attn_mask")
    mask = saved(node, "attn_bias") if mask is None else mask
    is_causal = bool(getattr(node, "_saved_is_causal", False))
    if mask is None:
        return torch.tensor([False, not is_causal], device=query.device)
    return None if is_causal or mask.dim() < 2 else _looks_ahead(mask if mask.dtype == torch.bool else mask > -1e4)


def _looks_ahead(weights: Any) -> Any:
    """weights: of a query (next to last dimension) on a key (last)."""
    length = weights.shape[-1]
    if weights.shape[-2] != length or length < _LEAST_PLACES or weights.numel() == 0:
        return None
    each = _one_head(weights).float().nan_to_num(0.0)
    total = each.sum((1, 2))
    # In the second half: the tokens of a prefix may see each other.
    half = min(each.shape[1] // 2, each.shape[1] - 3)
    ahead = each.diagonal(1, 1, 2)[:, half:].sum(1) / total > _NOTHING
    further = each.triu(2).sum((1, 2)) / total > _NOTHING
    later = each[:, half:].triu(half + 2).sum((1, 2)) / total > _NOTHING
    before = each.tril(-2).sum((1, 2)) / total > _NOTHING
    # Rows of padding see everything: the sequence with the fewest stands for all.
    return torch.stack([(ahead & ~further & before).any(), later.all()])


def _one_head(weights: Any) -> Any:
    """The first places of the first head, of some sequences."""
    weights = weights.detach()
    while weights.dim() > 3:
        weights = weights.select(1, 0)
    if weights.dim() == 2:
        weights = weights[None]
    return weights[:_MOST_SEQUENCES, :_MOST_PLACES, :_MOST_PLACES]


def softmax_dims(nodes: Iterable[Any]) -> list[Any]:
    """Of the products of square attention weights with values: how many sum over another dimension than the softmax did, how many of
    these look at no later place, and how many products there are. Empty: there is none that can be judged."""
    wrong, causal, calls = 0, [], 0
    for node in nodes:
        if node.name() != "BmmBackward0" or calls == _MOST_CALLS:
            continue
        softmax = softmax_before(node)
        weights, taken = saved(softmax, "result"), saved(node, "self")
        if (type(weights) is not torch.Tensor or taken is None or weights.dim() < 3 or weights.numel() == 0
                or not weights.shape[-2] == weights.shape[-1] >= _LEAST_PLACES or taken.shape[-2:] != weights.shape[-2:]):
            continue
        calls += 1
        if signed(softmax._saved_dim) % weights.dim() != weights.dim() - 1:
            wrong += 1
            causal.append((_one_head(weights).triu(1) == 0).all())
    if calls == 0:
        return []
    later = sum(one.to(causal[0].device).double() for one in causal) if causal else torch.tensor(0.0, dtype=torch.float64)
    return [torch.tensor(float(wrong), dtype=torch.float64), later, torch.tensor(float(calls), dtype=torch.float64)]


def softmax_before(product: Any) -> Any:
    """The softmax that makes the first factor of a product, with nothing behind it that moves its last two dimensions."""
    node = product.next_functions[0][0]
    for _ in range(_MOST_BETWEEN):
        if node is None or node.name() in _SOFTMAX:
            return node
        if node.name() not in _BETWEEN:
            return None
        node = node.next_functions[0][0]
    return None


def merged_positions(nodes: Iterable[Any]) -> list[Any]:
    """Of the rotary embeddings in a graph: how many positions have the same factors as the one before, and how many there are.
    Empty: there are none that can be judged."""
    tables: dict[tuple[int, ...], Any] = {}
    for node in nodes:
        if node.name() != _PRODUCT:
            continue
        for name in ("other", "self"):
            table = _table(saved(node, name))
            if table is not None:
                tables.setdefault((table.data_ptr(), *table.stride()), table)
        if len(tables) >= _MOST_TABLES:
            break
    found = [_merged(table.real, table.imag) for table in tables.values() if table.is_complex()]
    # A rotation multiplies by cosine and sine in turn, which are neighbours in the graph.
    real = [table for table in tables.values() if not table.is_complex()]
    found += [_merged(one, other) for one, other in zip(real, real[1:])
              if (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)]
    if not found:
        return []
    return [torch.stack([one.to(found[0].device) for one in found]).max(),
            torch.tensor(float(next(iter(tables.values())).shape[0]), dtype=torch.float64)]


def _table(tensor: Any) -> Any:
    """A constant factor with a row for each position. None: it is none, or is too short to be judged."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    tensor = tensor.squeeze()
    while tensor.dim() > 2:
        tensor = tensor[0]
    if tensor.dim() != 2 or tensor.shape[0] <= _EXACT_POSITIONS or tensor.shape[1] > _MOST_COLUMNS:
        return None
    return tensor[:_MOST_POSITIONS]


def _merged(cosine: Any, sine: Any) -> Any:
    """How many rows equal the one before. 0: the two are no rotation, or positions are equal for another reason than rounding."""
    is_rotation = ((cosine.float().square() + sine.float().square() - 1).abs() < 0.02).all()
    equal = ((cosine[1:] == cosine[:-1]) & (sine[1:] == sine[:-1])).all(-1)
    early, late = equal[:_EXACT_POSITIONS - 1], equal[_EXACT_POSITIONS - 1:]
    # Padding is one run of equal rows; rounding makes steps.
    steps_after_first = (~late & (late.cumsum(0) > 0)).sum()
    return late.sum().float() * (is_rotation & ~early.any() & (steps_after_first > 0))


__all__ = ["attention_sees", "merged_positions", "saved", "signed", "softmax_before", "softmax_dims"]
