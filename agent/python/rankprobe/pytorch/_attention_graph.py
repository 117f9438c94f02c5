# SPDX-License-Identifier: Apache-2.0
"""Checks of the attention of a language model in the graph of its loss before the backward.

In the first steps: whether a token attends to later tokens, whether the weights sum to 1 over the dimension that is summed, and whether
positions share a rotary embedding. All are read from tensors that the graph saves for the backward: probabilities or masks of the
attention, factors of a rotation. Calls no code of the program; tensors stay on their device, and nothing waits for them.
"""

from __future__ import annotations

from typing import Any, Iterable

import torch

_PRODUCT = "MulBackward0"
_SOFTMAX = ("SoftmaxBackward0", "SafeSoftmaxBackward0")
_SDPA = "ScaledDotProduct"
# Nodes that may be between a softmax and its product with the values: changes of shape or dtype, dropout, masks.
_BETWEEN = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "ExpandBackward0", "CloneBackward0", "ToCopyBackward0",
            "NativeDropoutBackward0", "MulBackward0", "DivBackward0", "TrilBackward0", "MaskedFillBackward0")
_MOST_BETWEEN = 8
# Limits for the calls that are examined in a graph, and for sequences and positions of one call: enough for a mask, and cheap.
_MOST_CALLS, _MOST_SEQUENCES, _MOST_PLACES = 64, 8, 128
# Nodes that combine tensors element by element, those that reduce a dimension, and those that may be between them.
_ELEMENTWISE = ("MulBackward0", "DivBackward0", "AddBackward0", "SubBackward0")
_MEANS = ("MeanBackward1", "VarBackward0", "StdBackward0", "LinalgVectorNormBackward0")
_OF_MEANS = ("AddBackward0", "SqrtBackward0", "RsqrtBackward0", "ReciprocalBackward0", "ExpandBackward0", "ClampMinBackward0", "ToCopyBackward0")
# A pattern of fewer places may be chance.
_LEAST_PLACES = 4
# A mask with a finite number may leave smaller shares of the attention's weight.
_NOTHING = 1e-6
# bfloat16 is exact for integers up to 256, so equal rows before have another reason than rounding. Limits of tables and their sizes.
_EXACT_POSITIONS, _MOST_TABLES, _MOST_POSITIONS, _MOST_COLUMNS = 256, 16, 4096, 512


def signed(number: int) -> int:
    """Converts a dimension or index saved by a node, which PyTorch returns as unsigned 64-bit number, to a signed one."""
    return number - (1 << 64) if number >= 1 << 63 else number


def saved(node: Any, name: str) -> Any:
    """Returns a tensor saved by a node; None if it has none of this name, if it was changed since, or if hooks of the program have
    packed it, because these hooks must not be called."""
    try:
        raw = getattr(node, f"_raw_saved_{name}", None)
        if raw is None or getattr(raw, "unpack_hook", raw) is not None:
            return None
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:  # Changed in place or freed; the program's backward reports it.
        return None


def attention_sees(nodes: Iterable[Any]) -> list[Any]:
    """Returns, for the calls of self-attention, the share that sees exactly one token ahead, the share that sees later tokens, and the
    number of calls. Returns [] if none can be judged."""
    all_nodes = list(nodes)
    taken, seen = _taken(all_nodes), []
    for node in all_nodes:
        one = _seen_by(node, taken.get(node))
        if one is not None:
            seen.append(one)
            if len(seen) == _MOST_CALLS:
                break
    if not seen:
        return []
    # Layers may be on several devices.
    shares = torch.stack([one.to(seen[0].device) for one in seen]).float().mean(0)
    return [shares[0], shares[1], torch.tensor(float(len(seen)), dtype=torch.float64)]


def _taken(nodes: list[Any]) -> dict[Any, Any]:
    """Returns, by the node of a softmax, the attention weights that its product with the values takes."""
    products = ((softmax_before(node), node) for node in nodes if node.name() == "BmmBackward0")
    return {softmax: saved(product, "self") for softmax, product in products if softmax is not None}


def without_masked(weights: torch.Tensor, taken: Any) -> torch.Tensor:
    """Returns the result of a softmax without the weights that are set to 0 before a product takes it."""
    weights = weights.detach()
    if type(taken) is not torch.Tensor or taken.numel() != weights.numel():
        return weights
    return weights * (taken.detach().reshape(weights.shape) != 0)


def masks_behind(nodes: Iterable[Any]) -> list[Any]:
    """Returns the number of calls of self-attention whose causal mask multiplies the result of a softmax over all tokens without a new
    normalization, and the number of calls. Returns [] if none can be judged."""
    found: list[torch.Tensor] = []
    for softmax, taken in list(_taken(list(nodes)).items())[:_MOST_CALLS]:
        weights = saved(softmax, "result")
        if (type(weights) is not torch.Tensor or type(taken) is not torch.Tensor or taken.numel() != weights.numel() or weights.dim() < 3
                or not weights.shape[-1] == weights.shape[-2] >= _LEAST_PLACES):
            continue
        used = _one_head(taken.reshape(weights.shape)).float()
        each = _one_head(weights).float()
        # A dropout multiplies what is left by one factor, and a division by the sum by one for each token.
        factors = torch.where(used != 0, used / each, torch.nan).nan_to_num(0.0).amax(-1)
        is_causal = (used.triu(1) == 0).all() & (each.triu(1).sum() > _NOTHING * each.sum())
        found.append(is_causal & (factors[:, 2:].amax() - factors[:, 2:].amin() < 1e-3 * factors.amax()))
    return _counted(found)


def repeated_masks(nodes: Iterable[Any]) -> list[Any]:
    """Returns the number of attention calls of one part of a sequence with the keys of all parts whose mask is causal within two parts or
    more, as if each were the call's own, and the number of such calls. Returns [] if there are none."""
    found: list[torch.Tensor] = []
    for node in nodes:
        weights = saved(node, "result") if node.name() in _SOFTMAX else None
        if type(weights) is not torch.Tensor or weights.dim() < 3 or len(found) == _MOST_CALLS or weights.numel() == 0:
            continue
        own, all_places = weights.shape[-2:]
        if not _LEAST_PLACES <= own < all_places <= 4 * _MOST_PLACES or all_places % own:
            continue
        one = weights.detach().reshape(-1, own, all_places)[0]
        sees = (one.reshape(own, all_places // own, own) > _NOTHING).transpose(0, 1)
        is_causal = (sees == torch.ones(own, own, dtype=torch.bool, device=sees.device).tril()).flatten(1).all(1)
        found.append(is_causal.sum() > 1)
    return _counted(found)


def _counted(found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns how many of the bool tensors are true, and their number. Returns [] if there are none."""
    if not found:
        return []
    # Layers may be on several devices.
    return [torch.stack([one.to(found[0].device) for one in found]).double().sum(), torch.tensor(float(len(found)), dtype=torch.float64)]


def _seen_by(node: Any, taken: Any = None) -> Any:
    """Returns whether one call sees exactly one token ahead, and whether it sees later ones, as a bool tensor of shape [2]; None if it
    cannot be judged. `taken`: the attention weights that the product with the values takes; None if they are not known."""
    name = node.name()
    if name in _SOFTMAX:
        weights = saved(node, "result")
        if type(weights) is not torch.Tensor or weights.dim() < 3 or node._saved_dim not in (weights.dim() - 1, (1 << 64) - 1):
            return None
        return _looks_ahead(without_masked(weights, taken))
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
    """As _seen_by(), for weights of queries (next to last dimension) on keys (last dimension)."""
    length = weights.shape[-1]
    if weights.shape[-2] != length or length < _LEAST_PLACES or weights.numel() == 0:
        return None
    each = _one_head(weights).float().nan_to_num(0.0)
    total = each.sum((1, 2))
    # Judges the second half only, because the tokens of a prefix may see each other.
    half = min(each.shape[1] // 2, each.shape[1] - 3)
    ahead = each.diagonal(1, 1, 2)[:, half:].sum(1) / total > _NOTHING
    further = each.triu(2).sum((1, 2)) / total > _NOTHING
    later = each[:, half:].triu(half + 2).sum((1, 2)) / total > _NOTHING
    before = each.tril(-2).sum((1, 2)) / total > _NOTHING
    # Rows of padding see everything, so later tokens count only if all sequences see them.
    return torch.stack([(ahead & ~further & before).any(), later.all()])


def _one_head(weights: Any) -> Any:
    """Returns the weights of the first head for some sequences and the first positions, [sequences, positions, positions]."""
    weights = weights.detach()
    while weights.dim() > 3:
        weights = weights.select(1, 0)
    if weights.dim() == 2:
        weights = weights[None]
    return weights[:_MOST_SEQUENCES, :_MOST_PLACES, :_MOST_PLACES]


def softmax_dims(nodes: Iterable[Any]) -> list[Any]:
    """Returns, for the products of square attention weights with values, how many sum over another dimension than the softmax, how many
    of these see no later position, and the number of products. Returns [] if none can be judged."""
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
    """Returns the softmax that makes the first factor of a product; None if there is none, or a node after it may move its last two
    dimensions."""
    node = product.next_functions[0][0]
    for _ in range(_MOST_BETWEEN):
        if node is None or node.name() in _SOFTMAX:
            return node
        if node.name() not in _BETWEEN:
            return None
        node = node.next_functions[0][0]
    return None


def merged_positions(nodes: Iterable[Any]) -> list[Any]:
    """Returns, for the rotary embeddings in a graph, how many positions have the same factors as the previous one, and the number of
    positions. Returns [] if none can be judged."""
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
    # A rotation multiplies by cosine and sine in sequence, so they are neighbours in the graph.
    real = [table for table in tables.values() if not table.is_complex()]
    found += [_merged(one, other) for one, other in zip(real, real[1:])
              if (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)]
    if not found:
        return []
    return [torch.stack([one.to(found[0].device) for one in found]).max(),
            torch.tensor(float(next(iter(tables.values())).shape[0]), dtype=torch.float64)]


def _table(tensor: Any) -> Any:
    """Returns a constant factor with one row for each position; None if it is not one or is too short to be judged."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    tensor = tensor.squeeze()
    while tensor.dim() > 2:
        tensor = tensor[0]
    if tensor.dim() != 2 or tensor.shape[0] <= _EXACT_POSITIONS or tensor.shape[1] > _MOST_COLUMNS:
        return None
    return tensor[:_MOST_POSITIONS]


def _merged(cosine: Any, sine: Any) -> Any:
    """Returns the number of rows that equal the previous one; 0 if the two are not a rotation, or positions are equal for another
    reason than rounding."""
    is_rotation = ((cosine.float().square() + sine.float().square() - 1).abs() < 0.02).all()
    equal = ((cosine[1:] == cosine[:-1]) & (sine[1:] == sine[:-1])).all(-1)
    early, late = equal[:_EXACT_POSITIONS - 1], equal[_EXACT_POSITIONS - 1:]
    # Padding makes a single run of equal rows, rounding several.
    steps_after_first = (~late & (late.cumsum(0) > 0)).sum()
    return late.sum().float() * (is_rotation & ~early.any() & (steps_after_first > 0))


def sequence_means(nodes: Iterable[Any]) -> list[Any]:
    """Returns the number of means, deviations or norms over the second dimension of [batch, places, features] that each of these places is
    scaled with or shifted by. Returns [] if there are none."""
    number = 0
    for node in nodes:
        shape = _shape_of(node) if node.name() in _ELEMENTWISE else ()
        if len(shape) == 3 and shape[1] >= _LEAST_PLACES:
            number += sum(_is_mean_of_places(after, shape) for after, _ in node.next_functions)
    return [torch.tensor(float(number), dtype=torch.float64)] if number else []


def _shape_of(node: Any) -> tuple[int, ...]:
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if metadata else ()


def _is_mean_of_places(node: Any, shape: tuple[int, ...]) -> bool:
    for _ in range(_MOST_BETWEEN):
        if node is None or _shape_of(node)[:2] not in ((shape[0], 1), shape[:2]):
            return False
        if node.name() in _MEANS:
            dims = [signed(dim) % 3 for dim in node._saved_dim or ()]
            return dims == [1] and bool(node._saved_keepdim) and len(_shape_of(node)) == 3
        if node.name() not in _OF_MEANS:
            return False
        node = node.next_functions[0][0]
    return False


__all__ = ["attention_sees", "masks_behind", "merged_positions", "repeated_masks", "saved", "sequence_means", "signed", "softmax_before",
           "softmax_dims", "without_masked"]
