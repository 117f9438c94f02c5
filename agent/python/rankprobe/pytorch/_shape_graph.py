# SPDX-License-Identifier: Apache-2.0
"""Detection of unintended but valid shapes in the graph of a loss before its backward.

Checks whether the loss compares each prediction with each target, because [N, 1] and [N] broadcast to [N, N], and whether an attention
or recurrent layer runs along another dimension than the sequence, because batch_first is missing. Calls no code of the program; tensors
stay on their device, and nothing waits for them.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Optional

import torch

from rankprobe.pytorch._attention_graph import saved, signed, softmax_before

REGRESSIONS = ("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0")
_WHOLE = ("MeanBackward0", "SumBackward0")
# Nodes that may be between a product or difference and the mean over it.
_CHAIN = ("PowBackward0", "AbsBackward0", "NegBackward0", "MulBackward0", "DivBackward0", "MinimumBackward0", "MaximumBackward0")
_MOST_CHAIN = 6
# A program that reshapes the prediction explicitly intends all pairs.
_EXPLICIT = ("UnsqueezeBackward0", "TransposeBackward0", "TBackward0", "PermuteBackward0", "ViewBackward0", "ReshapeAliasBackward0")
# Number of elements of a difference that are examined, along the first two dimensions and along others.
_ROWS, _PLACES = 16, 4
LOSS, DIFFERENCE, PRODUCT, SELECTED = 1, 2, 3, 4
# Nodes that select elements by an index.
_SELECTIONS = ("IndexBackward0", "IndexSelectBackward0")
# Products and quotients.
FACTORS = ("MulBackward0", "DivBackward0")
# Layers that do not move positions of a sequence.
_PLACEWISE = ("AddBackward0", "MulBackward0", "NativeLayerNormBackward0", "FusedRmsNormBackward0", "NativeDropoutBackward0", "ReluBackward0",
              "GeluBackward0", "SiluBackward0", "TanhBackward0", "LogSoftmaxBackward0", "ViewBackward0", "UnsafeViewBackward0",
              "ReshapeAliasBackward0", "CloneBackward0", "ToCopyBackward0", "AddmmBackward0", "MmBackward0")
RECURRENT = ("MkldnnRnnLayerBackward0", "CudnnRnnBackward0", "MiopenRnnBackward0")
_SOFTMAX = ("SoftmaxBackward0", "SafeSoftmaxBackward0")
_POOLS = ("MeanBackward1", "SumBackward1", "MaxBackward0", "AmaxBackward0")
_MOST_NODES, _MOST_POOLS, _NEAR = 2000, 8, 24
POOLED, TAKEN, NEXT_TOKEN = 1, 2, 3


def shape_of(node: Any) -> tuple[int, ...]:
    """Returns the shape of a node's result; () if it is not known."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if metadata and not getattr(metadata[0], "is_nested_tensor", False) else ()


def next_of(node: Any, number: int = 0) -> Any:
    return node.next_functions[number][0] if len(node.next_functions) > number else None


def constant_of(node: Any) -> tuple[Any, Any]:
    """Of a product or quotient with a value that has no graph: the other factor's node, and that value. (None, None) for others."""
    if node is None or node.name() not in FACTORS or len(node.next_functions) != 2:
        return None, None
    one, other = next_of(node), next_of(node, 1)
    if (one is None) == (other is None):
        return None, None
    return (one, saved(node, "other")) if one is not None else (other, saved(node, "self"))


def loss_broadcast(nodes: Iterable[Any]) -> list[Any]:
    """Returns how the loss compares all pairs (LOSS, DIFFERENCE, PRODUCT; SELECTED: each target with a selection from each sample; 0 if it
    does not), and the number of elements; of several losses one that does. Returns [] for other losses."""
    near = list(nodes)
    sound: list[Any] = []
    for node in near:
        if node.name() in REGRESSIONS and node._saved_reduction != 0:
            one, other = saved(node, "self"), saved(node, "target")
            if one is not None and other is not None:
                kind = LOSS if _crosses(one, other) else SELECTED if _selects_all(next_of(node), one, other) else 0
                told = _told(kind, one.shape[0] if one.dim() else 1)
                if kind:
                    return told
                sound = sound or told
    if sound:
        return sound
    # A distance of two sets of samples uses differences within one of them too, so all pairs are intended.
    has_pairs = any(node.name() == "SubBackward0" and _is_square(shape_of(node)) and None not in (next_of(node), next_of(node, 1)) for node in near)
    for node in near:
        if node.name() not in _WHOLE or has_pairs:
            continue
        maker = next_of(node)
        for _ in range(_MOST_CHAIN):
            if maker is None or maker.name() not in _CHAIN or not _is_square(shape_of(maker)):
                break
            if _is_outer_product(maker):
                return _told(PRODUCT, shape_of(maker)[0])
            before = next_of(maker) or next_of(maker, 1)
            if _is_weighted(maker):
                break
            if before is not None and before.name() == "SubBackward0":
                is_outer = _is_outer_difference(before, saved(maker, "self"))
                if is_outer is not None:
                    return _told(is_outer * DIFFERENCE, shape_of(before)[0])
            maker = before
    return []


def _told(kind: Any, number: int) -> list[Any]:
    return [torch.as_tensor(kind).double(), torch.tensor(float(number), dtype=torch.float64)]


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) >= 2 and shape[0] == shape[1] >= 2


def _crosses(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether one is broadcast only along the first dimension, and the other only along the second."""
    if not _is_square(tuple(one.shape)) or one.shape != other.shape:
        return False
    repeats = [[dim for dim in range(tensor.dim()) if tensor.stride(dim) == 0 and tensor.shape[dim] > 1] for tensor in (one, other)]
    return sorted(repeats) == [[0], [1]]


def _selects_all(maker: Any, one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether the prediction is a selection of N elements from each of N samples, and the target, of N elements, is broadcast."""
    is_one_for_all = (_is_square(tuple(other.shape)) and other.dim() == 2 and other.stride(0) == 0 != other.stride(1))
    return is_one_for_all and one.shape == other.shape and maker is not None and maker.name() in _SELECTIONS


def _is_weighted(node: Any) -> bool:
    """Returns whether the elements are multiplied by separate weights, as in intended pairs; a product with itself does not count."""
    if node.name() not in ("MulBackward0", "DivBackward0"):
        return False
    if None not in (next_of(node), next_of(node, 1)):
        return next_of(node) is not next_of(node, 1)
    factor = saved(node, "other" if next_of(node) is not None else "self")
    return factor is None or factor.dim() > 0


def _is_outer_product(node: Any) -> bool:
    """Returns whether it is a product of [N] and [N, 1], one of which has no graph; the mean of all products is never intended."""
    if node.name() != "MulBackward0" or len(shape_of(node)) != 2:
        return False
    at = 0 if next_of(node) is not None else 1
    maker, constant = next_of(node, at), saved(node, "self" if at else "other")
    if maker is None or maker.name() in _EXPLICIT or next_of(node, 1 - at) is not None or constant is None:
        return False
    number = shape_of(node)[0]
    return {shape_of(maker), tuple(constant.shape)} == {(number,), (number, 1)}


def _is_outer_difference(node: Any, difference: Any) -> Any:
    """Returns a bool tensor: whether it is the difference of a prediction [N, 1] and a target [N] without a graph, or vice versa. The
    shape of the target is derived from the values. Returns None if it cannot be one."""
    makers = [maker for maker in (next_of(node), next_of(node, 1)) if maker is not None]
    shape = shape_of(node)
    if len(makers) != 1 or not _is_square(shape) or type(difference) is not torch.Tensor or tuple(difference.shape) != shape:
        return None
    given = tuple(makers[0]._saved_self_sym_sizes) if makers[0].name() == "ExpandBackward0" else shape_of(makers[0])
    if makers[0].name() in _EXPLICIT or given not in ((shape[0], 1, *shape[2:]), shape[1:]):
        return None
    across = 1 if len(given) == len(shape) else 0
    difference = difference.detach()[tuple(slice(_ROWS if dim < 2 else _PLACES) for dim in range(len(shape)))].double()
    change = difference - difference.select(across, 0).unsqueeze(across)
    unlike = (change - change.select(1 - across, 0).unsqueeze(1 - across)).abs().max()
    rounding = 1e-5 * difference.abs().max()
    return (unlike <= rounding) & (change.abs().max() > 10 * rounding)


def sequence_dims(nodes: Iterable[Any]) -> list[Any]:
    """Returns the evidence that the second dimension is the sequence while attention and recurrent layers run along the first, and the
    sizes of both. POOLED: it is averaged or one position is selected; TAKEN: its last position, or a token added before it, is selected;
    NEXT_TOKEN: targets would be the next tokens along it. All are 0 if the layers do not run along the first. [] if there are no such
    layers."""
    all_nodes = list(nodes)
    if not any(_is_of_sequences(node) for node in all_nodes):
        return []
    found: list[tuple[int, int, int]] = [(0, 0, 0)]
    pools = (node for node in all_nodes if _is_pool(node))
    for node in itertools.islice(pools, _MOST_POOLS):
        pool = _pool_of(node, all_nodes)
        if pool is not None:
            found.append(pool)
    found += [one for one in (_tokens_of(node, all_nodes) for node in all_nodes) if one is not None]
    return [torch.tensor(float(number), dtype=torch.float64) for number in max(found)]


def _is_pool(node: Any) -> bool:
    """Returns whether it reduces or selects the second of three dimensions."""
    if node.name() not in (*_POOLS, "SelectBackward0"):
        return False
    shape, dim = _pooled_shape(node), node._saved_dim
    dims = dim if isinstance(dim, tuple) else (dim,)
    return len(shape) == 3 and min(shape[:2]) > 1 and None not in dims and [signed(one) % 3 for one in dims] == [1]


def _pooled_shape(node: Any) -> tuple[int, ...]:
    return tuple(getattr(node, "_saved_self_sym_sizes", ())) or shape_of(next_of(node))


def _pool_of(node: Any, nodes: list[Any]) -> Optional[tuple[int, int, int]]:
    shape = _pooled_shape(node)
    mixed, are_layers = _mixed(next_of(node), shape[0], shape[1])
    if mixed != {0}:
        return None
    if are_layers and node.name() == "SelectBackward0" and _is_end(node, shape, nodes):
        return TAKEN, shape[0], shape[1]
    return (POOLED, shape[0], shape[1]) if any(_has_places(one, shape[0], shape[1]) for one in nodes) else None


def _has_places(node: Any, rows: int, columns: int) -> bool:
    """Returns whether it shows that the second dimension is the sequence: an embedding of tokens, or a parameter for each position."""
    if node.name() == "EmbeddingBackward0":
        return shape_of(node)[:2] == (rows, columns)
    leaf = getattr(node, "variable", None)
    return leaf is not None and leaf.dim() == 3 and tuple(leaf.shape[:2]) == (1, columns)


def _is_end(node: Any, shape: tuple[int, ...], nodes: list[Any]) -> bool:
    """Returns whether it selects the last position, or a token before the first, and nothing selects another one. If several are
    selected, they may be nodes or agents."""
    taken = {signed(one._saved_index) % shape[1] for one in nodes
             if one.name() == "SelectBackward0" and next_of(one) is next_of(node) and _is_pool(one)}
    return taken == {shape[1] - 1} or (taken == {0} and any(shape_of(one) == shape and _prepends(one) for one in nodes))


def _prepends(node: Any) -> bool:
    """Returns whether it adds a learned token before a sequence."""
    if node.name() != "CatBackward0" or signed(node._saved_dim) % 3 != 1:
        return False
    token = next_of(node)
    return token is not None and token.name() in ("ExpandBackward0", "RepeatBackward0") and (next_of(token) is None or next_of(token).name().endswith("AccumulateGrad"))


def _tokens_of(node: Any, nodes: list[Any]) -> Optional[tuple[int, int, int]]:
    """Returns (NEXT_TOKEN, sizes) for the cross entropy of a language model whose layers run along the first dimension, else None."""
    if node.name() != "NllLossBackward0":
        return None
    target = saved(node, "target")
    for embedding in nodes:
        tokens = saved(embedding, "indices") if embedding.name() == "EmbeddingBackward0" else None
        if target is None or tokens is None or tokens.dim() != 2 or tokens.numel() != target.numel() or min(tokens.shape) < 2:
            continue
        mixed, is_layer = _mixed(next_of(node), *tokens.shape)
        if mixed == {0} and is_layer:
            return NEXT_TOKEN, tokens.shape[0], tokens.shape[1]
    return None


def _mixed(root: Any, rows: int, columns: int) -> tuple[set[int], bool]:
    """Returns along which of the first two dimensions the graph of [rows, columns, ...] mixes positions, and whether it does so only in
    known layers. Does not look behind other changes of shape."""
    found: set[int] = set()
    are_layers = True
    line, seen = [(root, False)], {root}
    for node, turned in line:
        if node is None or len(line) > _MOST_NODES:
            return set(), False
        first, second = (columns, rows) if turned else (rows, columns)
        name, shape = node.name(), shape_of(node)
        mixed = _mixed_by(node, shape, first, second)
        if mixed is not None:
            found.add(mixed ^ turned)
            are_layers = are_layers and name != "StackBackward0"
            continue
        if len(shape) == 3 and _turns(node):
            turned = not turned
        elif not (name in _PLACEWISE or _joins_features(node, shape)) or not _is_of(shape, first, second):
            continue
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                line.append((after, turned))
    return found, are_layers


def _is_of(shape: tuple[int, ...], first: int, second: int) -> bool:
    """Returns whether the shape has a row for each position, or heads combined with the second dimension."""
    if len(shape) == 2:
        return shape[0] == first * second
    return len(shape) > 2 and shape[0] == first and shape[1] % second == 0


def _joins_features(node: Any, shape: tuple[int, ...]) -> bool:
    """Returns whether it concatenates features, such as both directions of a recurrent layer."""
    return bool(node.name() == "CatBackward0" and len(shape) == 3 and signed(node._saved_dim) % 3 == 2)


def _turns(node: Any) -> bool:
    """Returns whether it exchanges the first two of three dimensions."""
    if node.name() == "PermuteBackward0":
        return [signed(one) % 3 for one in node._saved_dims] == [1, 0, 2]
    return bool(node.name() == "TransposeBackward0" and {signed(node._saved_dim0) % 3, signed(node._saved_dim1) % 3} == {0, 1})


def _mixed_by(node: Any, shape: tuple[int, ...], first: int, second: int) -> Optional[int]:
    """Returns the dimension along which the node itself mixes positions, or None."""
    name = node.name()
    if name in RECURRENT and shape[:2] == (first, second):
        # A layer of oneDNN is before the transposition of batch_first, those of devices include it.
        return int(name != "MkldnnRnnLayerBackward0" and bool(node._saved_batch_first))
    if name == "StackBackward0" and shape[:2] == (first, second):
        dim = signed(node._saved_dim) % max(len(shape), 1)
        return dim if dim < 2 and _is_chain(node) else None
    if name == "PermuteBackward0" and shape[:2] == (first, second) and [signed(one) % 4 for one in node._saved_dims] == [2, 0, 1, 3]:
        return 0 if attends(next_of(node), first) else None
    if name == "TransposeBackward0" and shape[:2] == (first, second) and {signed(node._saved_dim0) % 4, signed(node._saved_dim1) % 4} == {1, 2}:
        return 1 if len(shape) == 4 and attends(next_of(node), second) else None
    if name == "TransposeBackward0" and len(shape) == 3 and _turns(node) and shape[0] == first and shape[1] % second == 0:
        return 0 if attends(next_of(node), first) else None
    return None


def attends(node: Any, places: int) -> bool:
    """Returns whether it is the result of a self-attention over `places` positions."""
    if node is not None and node.name() in ("ViewBackward0", "UnsafeViewBackward0"):
        node = next_of(node)
    if node is None:
        return False
    if node.name().startswith("ScaledDotProduct"):
        query, key = saved(node, "query"), saved(node, "key")
        return query is not None and key is not None and query.shape[-2] == key.shape[-2] == places
    weights = saved(softmax_before(node), "result") if node.name() == "BmmBackward0" else None
    return weights is not None and tuple(weights.shape[-2:]) == (places, places)


def _is_chain(node: Any) -> bool:
    """Returns whether each of the first parts of a stack is computed from its neighbour."""
    parts = [part for part, _ in node.next_functions[:3]]
    if len(parts) < 2 or None in parts:
        return False
    return any(all(_comes_from(late, early) for early, late in zip(line, line[1:])) for line in (parts, parts[::-1]))


def _is_of_sequences(node: Any) -> bool:
    """Returns whether it is an attention or a recurrent layer, which may consist of several nodes."""
    if node.name() in _SOFTMAX:
        return len(shape_of(node)) > 2
    return node.name() in RECURRENT or node.name().startswith("ScaledDotProduct") or (node.name() == "StackBackward0" and _is_chain(node))


def _comes_from(late: Any, early: Any) -> bool:
    line, seen = [late], {late}
    for node in line:
        for after, _ in node.next_functions:
            if after is early:
                return True
            if after is not None and after not in seen and len(line) < _NEAR:
                seen.add(after)
                line.append(after)
    return False


__all__ = ["FACTORS", "RECURRENT", "REGRESSIONS", "attends", "constant_of", "loss_broadcast", "next_of", "sequence_dims", "shape_of"]
