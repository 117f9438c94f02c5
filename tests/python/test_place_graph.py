# SPDX-License-Identifier: Apache-2.0
"""Task monitor's reading of rotary positions beside an attention: without a collector."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from rankprobe.pytorch._loss_targets import _nodes
from rankprobe.pytorch._place_graph import rotary_places

pytestmark = pytest.mark.skipif(not hasattr(getattr(torch.autograd.graph, "Node", None), "register_prehook"), reason="PyTorch below 2 has no hooks of nodes")
WIDTH = 8


def _turned(x: torch.Tensor, places: torch.Tensor, is_complex: bool) -> torch.Tensor:
    angle = places[:, None] / 10 ** torch.arange(WIDTH // 2)
    if is_complex:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(-2)


def _read(places: list[int], mask: torch.Tensor, is_complex: bool = False, is_fused: bool = False, before: int = 0) -> list[float]:
    """before: keys of other ranks."""
    torch.manual_seed(0)
    rows = len(places)
    query, key = (_turned(torch.randn(2, 3, rows, WIDTH, requires_grad=True), torch.tensor(places).float(), is_complex) for _ in range(2))
    key = torch.cat([torch.randn(2, 3, before, WIDTH), key], 2)
    value = torch.randn(2, 3, rows + before, WIDTH, requires_grad=True)
    if is_fused:
        out = F.scaled_dot_product_attention(query, key, value, mask)
    else:
        out = torch.softmax(query @ key.transpose(-1, -2) + mask, -1) @ value
    return [one.item() for one in rotary_places(_nodes(out.sum().grad_fn, 1000))]


def _causal(rows: int, before: int = 0) -> torch.Tensor:
    return torch.full((rows, rows + before), -math.inf).triu(1 + before)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("is_fused", [False, True])
def test_documents_in_a_row(is_complex, is_fused):
    packed = [0, 1, 2, 0, 1, 2, 3, 4]
    document = torch.arange(8) >= 3
    apart = _causal(8).masked_fill(document[:, None] != document, -math.inf)
    assert _read(list(range(8)), _causal(8), is_complex, is_fused) == [1, 0, 0, 0]
    assert _read(packed, _causal(8), is_complex, is_fused) == [1, 0, 1, 1]
    assert _read(packed, apart, is_complex, is_fused) == [1, 0, 1, 0]


def test_padding_on_the_left_is_no_document():
    # Positions of padding are 0, and the tokens do not see it.
    mask = _causal(8).masked_fill((torch.arange(8) < 3) & ~torch.eye(8, dtype=torch.bool), -math.inf)
    assert _read([0, 0, 0, 0, 1, 2, 3, 4], mask)[3] == 0


def test_a_later_part_of_a_sequence():
    assert _read([6, 7, 8, 9, 10, 11], _causal(6, 6), before=6) == [0, 6, 0, 0]
    assert _read([0, 1, 2, 3, 4, 5], _causal(6, 6), before=6) == [1, 6, 0, 0]


def test_nothing_is_said_of_other_attention():
    assert _read([0, 1, 2, 0, 1, 2], torch.zeros(6, 6))[1:] == [0, 0, 0]
    # Without rotary positions.
    query = torch.randn(2, 6, WIDTH, requires_grad=True)
    assert rotary_places(_nodes((torch.softmax(query @ query.transpose(1, 2) + _causal(6), -1) @ query).sum().grad_fn, 1000)) == []
