# SPDX-License-Identifier: Apache-2.0
"""Detection of mixed positions in the graph of a loss before its backward.

Checks whether a view() is used where dimensions had to be transposed, so that heads, positions or samples mix, and whether an attention
sees padding. Calls no code of the program; tensors stay on their device, and nothing waits for them.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, Iterable, Optional

import torch

from rankprobe.pytorch._attention_graph import saved, signed, softmax_before, without_masked
from rankprobe.pytorch._shape_graph import RECURRENT, attends, next_of, shape_of

_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")
# Nodes that may be between the view of a projection and the attention, and do not move positions.
_BETWEEN = ("CloneBackward0", "ToCopyBackward0", "ExpandBackward0", "NativeDropoutBackward0")
_MOST_BETWEEN = 6
# Nodes that may be between a norm and the quotient.
_OF_NORMS = ("CloneBackward0", "ClampMinBackward0", "ExpandBackward0", "AddBackward0")
HEADS_OF_RESULT, HEADS_OF_VALUES, HEADS_FOR_PLACES, STATES, CLASSES, ALL = 1, 2, 3, 4, 5, 6
_SDPA = "ScaledDotProduct"
_MOST_CALLS, _MOST_SEQUENCES, _MOST_PLACES = 16, 8, 512
# Rows of a table of tokens; one of segments has fewer.
_LEAST_TABLE = 16
# Layers and what they keep of what they take, with the most that are examined; positions and features of a sample.
_TAKEN = {"AddmmBackward0": "mat1", "MmBackward0": "self", "NativeLayerNormBackward0": "input", "FusedRmsNormBackward0": "input"}
_MOST_LAYERS, _PLACES, _FEATURES = 24, 128, 8


def mixed_views(nodes: Iterable[Any]) -> list[Any]:
    """Returns how a view mixes dimensions, and the number of such views; [] if there are none. HEADS_OF_RESULT: heads of an attention's
    result become positions; HEADS_OF_VALUES: positions become heads before an attention; HEADS_FOR_PLACES: the attention is over the
    heads; STATES: final states of a recurrent layer are mixed into rows of the batch; CLASSES: pixels become classes of a cross
    entropy; ALL: no dimension or group of neighbours is kept, as where parts of ranks that come first are viewed as features."""
    found: dict[int, int] = {}
    for node in nodes:
        kind = _kind_of(node)
        if kind:
            found[kind] = found.get(kind, 0) + 1
    if not found:
        return []
    first = min(found)
    return [torch.tensor(float(number), dtype=torch.float64) for number in (first, found[first])]


def _kind_of(node: Any) -> int:
    if node.name() == "NllLossBackward0":
        return _kind_of_logits(next_of(next_of(node)))
    if node.name() in _VIEWS:
        given = tuple(getattr(node, "_saved_self_sym_sizes", ())) or shape_of(next_of(node))
        return _kind_of_view(node, given, shape_of(node))
    if node.name().startswith(_SDPA):
        return _kind_of_heads(_view_behind(next_of(node, 2)), shape_of(node))
    if node.name() == "BmmBackward0" and len(shape_of(node)) == 3 and attends(node, shape_of(node)[1]):
        split = _view_behind(next_of(node, 1))
        if split is not None and len(shape_of(split)) == 3:  # Heads and batch share a dimension.
            split = _view_behind(next_of(split))
        return _kind_of_heads(split, shape_of(split) if split is not None else ())
    return 0


def _kind_of_view(node: Any, given: tuple[int, ...], made: tuple[int, ...]) -> int:
    before = next_of(node)
    if len(given) == 3 and made == (given[1], given[0] * given[2]):
        return STATES if given[0] != given[1] and min(given[:2]) > 1 and _stacks(before) else 0
    if len(given) != 4 or min(given[1:3]) < 2 or made not in ((given[0], given[2], given[1] * given[3]), (given[0] * given[2], given[1] * given[3])):
        return ALL if _keeps_nothing(given, made) else 0
    while before is not None and before.name() in ("CloneBackward0", "ToCopyBackward0"):
        before = next_of(before)
    return HEADS_OF_RESULT if before is not None and attends(before, given[2]) else 0


def _keeps_nothing(given: tuple[int, ...], made: tuple[int, ...]) -> bool:
    """Returns whether no border between two of three or more dimensions is one between two of those that they are viewed as."""
    before, after = (list(itertools.accumulate((size for size in sizes if size > 1), operator.mul))[:-1] for sizes in (given, made))
    return min(len(before), len(after)) > 1 and not set(before) & set(after)


def _kind_of_logits(view: Any) -> int:
    """Returns CLASSES for [batch, classes, places ..] that are viewed as [batch * places, classes]."""
    if view is None or view.name() not in _VIEWS:
        return 0
    given, made, before = tuple(getattr(view, "_saved_self_sym_sizes", ())), shape_of(view), next_of(view)
    if len(given) < 3 or len(made) != 2 or given[1] != made[1] or given[-1] == made[1] or made[1] < 2:
        return 0
    # Otherwise the last dimension may hold several samples on purpose.
    return CLASSES if given[-1] % made[1] or (before is not None and before.name() == "ConvolutionBackward0") else 0


def _stacks(node: Any) -> bool:
    """Returns whether the node stacks final states of recurrent layers, or is such a layer."""
    if node is None:
        return False
    return node.name() in RECURRENT or (node.name() == "StackBackward0" and signed(node._saved_dim) == 0)


def _view_behind(node: Any) -> Any:
    """Returns the view that made the value; None if another node did."""
    for _ in range(_MOST_BETWEEN):
        if node is None or node.name() not in _BETWEEN:
            break
        node = next_of(node)
    return node if node is not None and node.name() in _VIEWS else None


def _kind_of_heads(view: Any, made: tuple[int, ...]) -> int:
    """Returns the kind for the values of an attention, of shape [batch, heads, positions, features]; 0 if they are not mixed."""
    given = () if view is None else tuple(getattr(view, "_saved_self_sym_sizes", ()))
    if len(made) != 4 or len(given) not in (2, 3) or min(made[1:3]) < 2 or shape_of(view) != made:
        return 0
    # The projection may have been computed for all positions at once.
    rows, features = (given[0], given[1]) if len(given) == 2 else (given[0] * given[1], given[2])
    if len(given) == 3 and given[0] != made[0]:
        return 0
    if rows == made[0] * made[2] and features == made[1] * made[3] and made[1] != made[2]:
        return HEADS_OF_VALUES
    return HEADS_FOR_PLACES if rows == made[0] * made[1] and features == made[2] * made[3] and made[1] != made[2] else 0


def _padding_of(nodes: list[Any]) -> Optional[torch.Tensor]:
    """Returns which places of the input are padding: those of the embeddings' padding_idx, or what _seeming_ends() finds in the tokens of
    the largest table. Returns None if there is no table, or several inputs have a padding_idx."""
    padding: Optional[torch.Tensor] = None
    largest: tuple[int, Any] = (_LEAST_TABLE - 1, None)
    for node in nodes:
        tokens = saved(node, "indices") if node.name() == "EmbeddingBackward0" else None
        if tokens is None or tokens.dim() != 2:
            continue
        if not 0 <= node._saved_padding_idx < 1 << 63:
            largest = max(largest, (getattr(node, "_saved_weight_sym_argsize_0", 0), tokens), key=lambda one: one[0])
            continue
        ends = _ends(tokens == node._saved_padding_idx)
        if padding is not None and (padding.shape != ends.shape or padding.device != ends.device):
            return None  # It is not known to which of the inputs an attention belongs.
        padding = ends if padding is None else padding & ends
    return padding if padding is not None or largest[1] is None or min(largest[1].shape) < 2 else _seeming_ends(largest[1])


def _seeming_ends(tokens: torch.Tensor) -> torch.Tensor:
    """Returns the places of a token that occurs only in runs at the ends of rows, of different lengths, in at least half of them."""
    last = tokens[:, -1:]
    run = (tokens == last).flip(1).long().cumprod(1).flip(1) > 0
    token = last.index_select(0, run.sum(1).argmax(0, keepdim=True))
    run &= last == token
    lengths = run.sum(1)
    is_padded = lengths > 1
    seems = ((tokens != token) | run).all() & (is_padded.sum() * 2 >= len(tokens)) & (lengths.max() > lengths.min())
    return run & is_padded[:, None] & seems & (lengths < tokens.shape[1])[:, None]


def padding_pooled(nodes: Iterable[Any]) -> list[Any]:
    """Returns the share of padding among the places that a mean over the second dimension of [batch, places, features] includes, or [] if
    there is no padding or no such mean. A mean of embeddings themselves is not counted."""
    all_nodes = list(nodes)
    means = [node for node in all_nodes if node.name() == "MeanBackward1" and _is_over_places(node)]
    padding = _padding_of(all_nodes) if means else None
    if padding is None or not any(shape_of(next_of(node))[:2] == tuple(padding.shape) for node in means):
        return []
    return [padding.double().mean()]


def _is_over_second(reduction: Any, shape: tuple[int, ...]) -> bool:
    """Whether it reduces the second of three dimensions."""
    return len(shape) == 3 and [signed(dim) % 3 for dim in reduction._saved_dim or ()] == [1]


def _is_over_places(mean: Any) -> bool:
    """Whether it is a mean over the places of a layer's result that no mask has changed."""
    below = next_of(mean)
    return (below is not None and _is_over_second(mean, shape_of(below))
            and below.name() not in ("MulBackward0", "MaskedFillBackward0", "WhereBackward0", "EmbeddingBackward0"))


def norms_of_places(nodes: Iterable[Any]) -> list[Any]:
    """Returns how many results of layers, [batch, places, features], are divided by their norm over the places; [] if there are none."""
    number = 0
    for node in nodes:
        made, by = (next_of(node), next_of(node, 1)) if node.name() == "DivBackward0" else (None, None)
        for _ in range(_MOST_BETWEEN):
            by = next_of(by) if by is not None and by.name() in _OF_NORMS else by
        if by is None or by.name() != "LinalgVectorNormBackward0" or next_of(by) is not made or made is None:
            continue
        shape = shape_of(made)
        number += _is_over_second(by, shape) and _is_of_linear(made, shape)
    return [torch.tensor(float(number), dtype=torch.float64)] if number else []


def _is_of_linear(node: Any, shape: tuple[int, ...]) -> bool:
    """Whether a linear layer over the last dimension makes it."""
    node = next_of(node) if node.name() == "AddBackward0" else node
    product = next_of(node) if node is not None and node.name() in _VIEWS else None
    return product is not None and product.name() in ("AddmmBackward0", "MmBackward0") and shape_of(product) == (shape[0] * shape[1], shape[2])


def padding_attended(nodes: Iterable[Any]) -> list[Any]:
    """Returns the share of the attention of tokens that is on padding, the largest of all calls of self-attention, and the number of
    calls. Returns [] if there is no padding or no call can be judged."""
    all_nodes = list(nodes)
    padding = _padding_of(all_nodes)
    if padding is None:
        return []
    shares: list[torch.Tensor] = []
    for node in all_nodes:
        weights = _weights_of(node, *padding.shape) if len(shares) < _MOST_CALLS else None
        if weights is not None and weights.device == padding.device:
            shares.append(_share(weights, padding[:_MOST_SEQUENCES]))
    if not shares:
        return []
    return [torch.stack(shares).max(), torch.tensor(float(len(shares)), dtype=torch.float64)]


def positions_of_batch(nodes: Iterable[Any]) -> list[Any]:
    """Returns the differences between the first two samples of a batch in what the first layer takes of a token, for some features; 0 if
    a dropout hides one. Only if they are the same for several tokens at several positions, as of positions that are counted along the
    batch. Returns [] if they are not, or no layer takes tokens."""
    all_nodes = list(nodes)
    shown: list[torch.Tensor] = []
    for embedding in all_nodes:
        tokens = saved(embedding, "indices") if embedding.name() == "EmbeddingBackward0" else None
        if tokens is None or tokens.dim() != 2 or min(tokens.shape) < 2 or len(shown) >= _MOST_LAYERS:
            continue
        # The layers next to the embedding are the last.
        for node in all_nodes[::-1]:
            taken = saved(node, _TAKEN[node.name()]) if node.name() in _TAKEN and len(shown) < _MOST_LAYERS else None
            if type(taken) is torch.Tensor and taken.dim() > 1 and taken.device == tokens.device and taken.numel() == tokens.numel() * taken.shape[-1]:
                rows = taken.detach()[..., :_FEATURES].double()
                shown.append(_apart(tokens, rows.reshape(*tokens.shape, -1)))
                shown.append(_apart(tokens, rows.reshape(*tokens.shape[::-1], -1).transpose(0, 1)))
    if not shown:
        return []
    # Layers that are no first ones show nothing; several first ones take the same.
    return list(torch.stack(shown).abs().amax(0).unbind())


def _apart(tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns the differences of positions_of_batch() for rows of features [samples, positions, features], or zeros."""
    one, other = rows[0, :_PLACES, None], rows[1, None, :_PLACES]
    places = torch.arange(one.shape[0], device=tokens.device)
    is_pair = (tokens[0, :_PLACES, None] == tokens[1, None, :_PLACES]) & (places[:, None] != places)
    counted = is_pair[..., None] & (one != 0) & (other != 0)
    apart = (one - other) * counted
    number = counted.sum((0, 1))
    mean = apart.sum((0, 1)) / number.clamp(min=1)
    size = (one.abs() * counted).amax((0, 1)).max()
    is_same = ((apart - mean) * counted).abs().max() < 1e-5 * size
    is_apart = mean.abs().max() > 1e-2 * size
    return mean * (is_same & is_apart & (number.max() > 2))


def _ends(is_padding: torch.Tensor) -> torch.Tensor:
    """Returns the padding at the ends of rows that have other tokens. A single padding token is not counted, because it may end a text."""
    ends = is_padding.long().cumprod(1) + is_padding.flip(1).long().cumprod(1).flip(1) > 0
    return ends & (ends.sum(1, keepdim=True) > 1) & ~is_padding.all(1, keepdim=True)


def _weights_of(node: Any, rows: int, places: int) -> Any:
    """Returns the attention weights of one head of some sequences, [sequences, positions, positions]; None if it is not such a call."""
    if places > _MOST_PLACES:
        return None
    if node.name() == "BmmBackward0":
        softmax = softmax_before(node)
        weights = saved(softmax, "result") if softmax is not None else None
        if type(weights) is not torch.Tensor or tuple(weights.shape[-2:]) != (places, places) or weights.numel() % (rows * places * places):
            return None
        return without_masked(weights, saved(node, "self")).reshape(rows, -1, places, places)[:_MOST_SEQUENCES, 0].double()
    query, key = (saved(node, name) if node.name().startswith(_SDPA) else None for name in ("query", "key"))
    if query is None or key is None or not query.shape[-2] == key.shape[-2] == places or query.shape[0] != rows:
        return None
    mask = saved(node, "attn_mask")
    mask = saved(node, "attn_bias") if mask is None else mask
    if mask is None:
        seen = torch.ones(places, places, dtype=torch.bool, device=query.device)
        seen = seen.tril() if getattr(node, "_saved_is_causal", False) else seen
    else:
        seen = mask.detach() if mask.dtype == torch.bool else mask.detach() > -1e4
    while seen.dim() > 3:
        seen = seen.select(1, 0)
    return seen.expand(rows, places, places)[:_MOST_SEQUENCES].double()


def _share(weights: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """Returns the share of the weights on padding, for tokens of sequences that have padding."""
    tokens = (~padding & padding.any(1, keepdim=True)).double()[:, :, None]
    weights = weights.nan_to_num(0.0) * tokens
    return (weights * padding[:, None]).sum() / weights.sum().clamp(min=1e-30)


__all__ = ["mixed_views", "norms_of_places", "padding_attended", "padding_pooled", "positions_of_batch"]
