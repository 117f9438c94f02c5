# SPDX-License-Identifier: Apache-2.0
"""Checks of recurrent and convolution layers of a language model in the graph of its loss before the backward.

Reads attributes and tensors that the graph saves for the backward. Calls no code of the program; tensors stay on their device, and
nothing waits for them.
"""

from __future__ import annotations

from typing import Any

import torch

from rankprobe.pytorch._attention_graph import saved

# Nodes that give each position a function of that position alone. A slice, a selection or a split may drop what sees later positions
# (one direction of a recurrent layer, the end of a padded sequence), and a product or a mean may be over positions.
_OF_ONE_POSITION = frozenset(f"{name}Backward0" for name in (
    "NllLoss", "NllLossForward", "NllLoss2D", "NllLoss2DForward", "LogSoftmax", "View", "UnsafeView", "ReshapeAlias", "Alias", "Clone", "ToCopy", "Transpose",
    "Permute", "T", "Addmm", "Mm", "Add", "Sub", "Mul", "Relu", "Gelu", "Silu", "Tanh", "Sigmoid", "Elu", "LeakyRelu", "Glu", "NativeDropout",
    "NativeLayerNorm", "NativeBatchNorm", "Cat", "Unsqueeze"))
_RECURRENT = {"MkldnnRnnLayerBackward0": "_saved_reverse", "CudnnRnnBackward0": "_saved_bidirectional", "MiopenRnnBackward0": "_saved_bidirectional"}
_CONVOLUTION, _EMBEDDING = "ConvolutionBackward0", "EmbeddingBackward0"
_MOST_NODES, _LEAST_PLACES, _MOST = 20000, 4, 0.9


def layers_ahead(loss: Any, target: torch.Tensor, counts: torch.Tensor) -> list[Any]:
    """Returns, for the recurrent and convolution layers between the targets and the tokens before them, how many show a position what
    comes behind it, and the number of layers. Returns [] if there are none."""
    ahead: list[Any] = []
    are_next, seen, line = None, {loss}, [loss]
    for node in line:
        name = node.name()
        after = []
        if name in _RECURRENT:
            ahead.append(bool(getattr(node, _RECURRENT[name], False)))
        elif name == _CONVOLUTION:
            ahead.append(_sees_behind(node))
        elif name == _EMBEDDING and are_next is None:
            are_next = _are_next(saved(node, "indices"), target, counts)
        elif name in _OF_ONE_POSITION:
            after = node.next_functions
        # The first input of a layer is the data; others are weights and states.
        for one, _ in after or (node.next_functions[:1] if name in _RECURRENT or name == _CONVOLUTION else ()):
            if one is not None and one not in seen and len(line) < _MOST_NODES:
                seen.add(one)
                line.append(one)
    if are_next is None or not ahead:
        return []
    found = sum(torch.as_tensor(one, device=are_next.device).double() for one in ahead)
    return [found * are_next, torch.tensor(float(len(ahead)), dtype=torch.float64)]


def _sees_behind(node: Any) -> Any:
    """Whether a convolution of [batch, channels, places] gives each place what is behind it: as much padding at the end as at the
    beginning, and a weight for it that is not masked."""
    weight = saved(node, "weight")
    if type(weight) not in (torch.Tensor, torch.nn.Parameter) or weight.dim() != 3 or node._saved_transposed or node._saved_stride != (1,):
        return False
    size = weight.shape[-1]
    if size < 3 or 2 * node._saved_padding[0] != (size - 1) * node._saved_dilation[0]:
        return False
    return (weight.detach()[..., size // 2 + 1:] != 0).any()


def _are_next(tokens: Any, target: torch.Tensor, counts: torch.Tensor) -> Any:
    """Whether the targets are the tokens after those that go in; None if it cannot be judged."""
    if type(tokens) is not torch.Tensor or tokens.dim() != 2 or tokens.device != target.device:
        return None
    rows, length = tokens.shape
    long = next((n for n in (length, length - 1) if rows * n == target.numel()), 0)
    if long < _LEAST_PLACES:
        return None
    places = min(long, length - 1)
    counted = counts.reshape(rows, long)[:, :places]
    same = (target.reshape(rows, long)[:, :places] == tokens[:, 1:places + 1]) & counted
    return (same.sum() > _MOST * counted.sum()).double()


__all__ = ["layers_ahead"]
