# SPDX-License-Identifier: Apache-2.0
"""Detection of parameters and data that a loss depends on and that are not trained, in the graph before its backward. Also of layers
that use a cast of a parameter's earlier value.

Layers in a Python list belong to no module, so an optimizer that takes model.parameters() lacks them. Only parameters between trained
layers are reported, because a separate model before or after them is often frozen on purpose. A single parameter, or single numbers, are
no model and are reported after them, too: the classes of a loss, or the weights of its terms.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from rankprobe.pytorch._attention_graph import saved

# Of layers: the place of what they take among the arguments, and the name of what they keep of it.
_TAKES = {"ConvolutionBackward0": (0, "input"), "AddmmBackward0": (1, "mat1"), "MmBackward0": (0, "self"), "EmbeddingBackward0": (0, "indices")}
# Of layers: the place of the weight among the arguments, and the name of what they keep of it.
_WEIGHTS = {"ConvolutionBackward0": (1, "weight"), "AddmmBackward0": (2, "mat2"), "MmBackward0": (1, "mat2")}
_MOST_INPUTS, _MOST_CASTS = 16, 8
_MOST_UPPER, _MOST_NODES, _MOST_LEAVES, _MOST_CLIMBED = 8, 20000, 64, 12


def _behind(root: Any) -> set[Any]:
    seen, line = {root}, [root]
    for node in line:
        for after, _ in node.next_functions:
            if after is not None and after not in seen and len(line) < _MOST_NODES:
                seen.add(after)
                line.append(after)
    return seen


def _users(nodes: list[Any]) -> dict[Any, Any]:
    """Returns the node that uses each leaf, skipping nodes that only change its shape."""
    users: dict[Any, Any] = {}
    for node in nodes:
        inputs = [after for after, _ in node.next_functions if after is not None]
        for after in inputs:
            # A node with a single input, such as a transposition of a weight, is skipped. A table of an embedding is a layer of its own.
            users.setdefault(after, users.get(node, node) if len(inputs) == 1 and node.name() != "EmbeddingBackward0" else node)
    return users


def _weighs_trained(nodes: list[Any], leaf: Any, trained: set[Any]) -> bool:
    """Returns whether the first operator that joins a leaf with trained ones joins it with several of them. With a single one it is a part
    of a layer, such as its weight."""
    parents: dict[Any, list[Any]] = {}
    for node in nodes:
        for after, _ in node.next_functions:
            parents.setdefault(after, []).append(node)
    line = [leaf]
    for node in line:
        for parent in parents.get(node, ()) if len(line) < _MOST_CLIMBED else ():
            others = [_behind(after) for after, _ in parent.next_functions if after is not None and after is not node]
            met = [len(trained & behind) for behind in others if leaf not in behind]
            if any(number > 1 for number in met):
                return True
            if not any(met) and parent not in line:
                line.append(parent)
    return False


def between_trained(nodes: list[Any], is_trained: Callable[[torch.Tensor], bool], with_lone: bool = True) -> list[torch.Tensor]:
    """Returns the parameters that are not trained and have trained ones both between them and the loss and behind them. With `with_lone`,
    also a single one, or single numbers, of which _weighs_trained() is true. At most _MOST_LEAVES are examined."""
    leaves = [node for node in nodes if isinstance(getattr(node, "variable", None), torch.nn.Parameter)]
    others = [leaf for leaf in leaves if not is_trained(leaf.variable)][:_MOST_LEAVES]
    if not others:
        return []
    users, trained = _users(nodes), {leaf for leaf in leaves if is_trained(leaf.variable)}
    # Leaves nearest to the loss come first.
    upper = [users[leaf] for leaf in leaves if leaf in trained and leaf in users][:_MOST_UPPER]
    below = [_behind(one) - {one} for one in upper]
    is_model = not with_lone or len(others) > 1 and any(leaf.variable.numel() > 1 for leaf in others)
    return [leaf.variable for leaf in others
            if not is_model and _weighs_trained(nodes, leaf, trained)
            or leaf in users and any(users[leaf] in one for one in below) and not trained.isdisjoint(_behind(users[leaf]))]


def data_of(nodes: list[Any]) -> list[torch.Tensor]:
    """What the first layers take: it has no graph. Of an embedding the graph is that of its weight."""
    found = []
    for node in nodes:
        if node.name() not in _TAKES:
            continue
        place, name = _TAKES[node.name()]
        if name != "indices" and (len(node.next_functions) <= place or node.next_functions[place][0] is not None):
            continue
        data = saved(node, name)
        if type(data) is torch.Tensor and data.numel() > 0:
            found.append(data.detach())
    return found[:_MOST_INPUTS]


def image_range(nodes: list[Any]) -> list[Any]:
    """Returns the smallest and the largest number that the first convolution over images takes, and 1 if all are integers, else 0. Returns
    [] if there is none."""
    for data in data_of(nodes):
        if data.dim() == 4 and data.is_floating_point():
            return [data.min().double(), data.max().double(), (data == data.round()).all().double()]
    return []


def stale_casts(nodes: list[Any]) -> list[Any]:
    """Returns the number of layers whose weight is a cast of a parameter and is not the cast of what the parameter is now, as if
    autocast keeps the casts of an earlier step, and the number of layers. At most _MOST_CASTS are compared, and no layer whose input has no
    graph. Returns [] without casts."""
    stale = []
    for node in nodes:
        place, name = _WEIGHTS.get(node.name(), (0, ""))
        after = node.next_functions[place][0] if name and len(node.next_functions) > place else None
        is_turned = False
        if after is not None and after.name() == "TBackward0":
            is_turned, after = True, after.next_functions[0][0]
        if after is None or after.name() != "ToCopyBackward0":
            continue
        parameter, weight = getattr(after.next_functions[0][0], "variable", None), saved(node, name)
        if type(parameter) is not torch.nn.Parameter or type(weight) is not torch.Tensor:
            continue
        now = parameter.detach().to(weight.dtype)
        now = now.t() if is_turned else now
        if now.shape == weight.shape and now.device == weight.device:
            stale.append((now != weight).any().double())
        if len(stale) == _MOST_CASTS:
            break
    if not stale or len({one.device for one in stale}) > 1:
        return []
    return [torch.stack(stale).sum(), torch.tensor(float(len(stale)), dtype=torch.float64)]


__all__ = ["between_trained", "data_of", "image_range", "stale_casts"]
