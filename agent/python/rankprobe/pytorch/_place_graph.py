# SPDX-License-Identifier: Apache-2.0
"""Start of rotary positions, and the positions that the attention sees, in the graph of a loss before its backward.

Positions that begin again within a row say that another document begins there, and positions that begin at 0 on a rank whose first token sees
earlier ones say that its part of a sequence was counted by itself. Read from tensors that the graph saves for the backward. Calls no code of the
program; tensors stay on their device, and nothing waits for them.
"""

from __future__ import annotations

from typing import Any, Iterable

import torch

from rankprobe.pytorch._attention_graph import saved

_PRODUCT = "MulBackward0"
_SOFTMAX = ("SoftmaxBackward0", "SafeSoftmaxBackward0")
_SDPA = "ScaledDotProduct"
# Rows of fewer places may be something else; longer rows and more tables are not read.
_LEAST_PLACES, _MOST_PLACES, _MOST_TABLES = 4, 1024, 16
_ROUNDING = 1e-4


def rotary_places(nodes: Iterable[Any]) -> list[Any]:
    """Returns, for the first row of the attention nearest to the loss: whether its first position is 0, how many tokens its first token sees
    before itself, how often positions begin at 0 behind the first, and the share of the tokens behind the last such place that see a token
    before it. Returns [] without rotary positions or a causal attention."""
    all_nodes = list(nodes)
    sees = next((seen for seen in map(_sees, all_nodes) if seen is not None), None)
    if sees is None:
        return []
    begins = _begins(all_nodes, sees.shape[0])
    if begins is None or begins.device != sees.device:
        return []
    rows, keys = sees.shape
    counts = sees.sum(1)
    # The tokens of a prefix see each other; of other attention nothing is said.
    is_causal = (counts[-1] - counts[0] <= rows - 1) & (counts[0] <= keys - rows + 1)
    before = (counts[0] - 1).clamp(min=0) * is_causal
    again = begins.clone()
    again[0] = False
    places = torch.arange(rows, device=sees.device)
    last = (places * again).amax()
    behind = places >= last
    earlier = (sees[:, :rows] & (torch.arange(min(rows, keys), device=sees.device) < last)).any(1)
    # Keys that other ranks have are not the row's own.
    is_whole = is_causal & (last > 0) & (keys == rows)
    return [begins[0].double(), before.double(), again.sum().double() * is_whole, (earlier & behind).sum() / behind.sum().double() * is_whole]


def _sees(node: Any) -> Any:
    """Returns which keys the queries of the first row and head see, [queries, keys]; None if it is no attention of many places."""
    name = node.name()
    if name in _SOFTMAX:
        weights = saved(node, "result")
        if type(weights) is not torch.Tensor or weights.dim() < 3 or node._saved_dim not in (weights.dim() - 1, (1 << 64) - 1):
            return None
        seen = _first(weights) > 0
    elif name.startswith(_SDPA):
        query, key, mask = saved(node, "query"), saved(node, "key"), saved(node, "attn_mask")
        mask = saved(node, "attn_bias") if mask is None else mask
        if type(query) is not torch.Tensor or key is None or (mask is None and not bool(getattr(node, "_saved_is_causal", False))):
            return None
        if mask is None:
            rows, keys = min(query.shape[-2], _MOST_PLACES), min(key.shape[-2], _MOST_PLACES)
            seen = torch.ones(rows, keys, dtype=torch.bool, device=query.device).tril()
        else:
            seen = _first(mask if mask.dtype == torch.bool else mask > -1e4)
    else:
        return None
    return seen if _LEAST_PLACES <= seen.shape[0] <= seen.shape[1] < _MOST_PLACES else None


def _first(weights: Any) -> Any:
    weights = weights.detach()
    while weights.dim() > 2:
        weights = weights[0]
    return weights[:_MOST_PLACES, :_MOST_PLACES]


def _begins(nodes: list[Any], rows: int) -> Any:
    """Returns which rows of a rotary embedding of `rows` positions are not turned: they are positions 0. None if there is none."""
    tables: dict[tuple[int, ...], Any] = {}
    for node in nodes:
        for name in ("other", "self") if node.name() == _PRODUCT else ():
            table = _table(saved(node, name), rows)
            if table is not None:
                tables.setdefault((table.data_ptr(), *table.stride()), table)
        if len(tables) >= _MOST_TABLES:
            break
    found = list(tables.values())
    for one in found:
        if one.is_complex():
            return _is_still(one.real, one.imag)
    # Cosine and sine are neighbours in the graph, in either order.
    for one, other in zip(found, found[1:]):
        if (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device):
            return _is_still(one, other) | _is_still(other, one)
    return None


def _table(tensor: Any, rows: int) -> Any:
    if type(tensor) is not torch.Tensor or tensor.requires_grad or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    tensor = tensor.squeeze()
    while tensor.dim() > 2:
        tensor = tensor[0]
    return tensor if tensor.dim() == 2 and tensor.shape[0] == rows and tensor.shape[1] > 1 else None


def _is_still(cosine: Any, sine: Any) -> Any:
    is_rotation = ((cosine.float().square() + sine.float().square() - 1).abs() < 0.02).all()
    return is_rotation & ((cosine - 1).abs().amax(1) < _ROUNDING) & (sine.abs().amax(1) < _ROUNDING)


__all__ = ["rotary_places"]
