# SPDX-License-Identifier: Apache-2.0
"""Task monitor's reading of a language model's attention in the graph of its loss: without a collector."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from rankprobe.pytorch._attention_graph import attention_sees, masks_behind, merged_positions, repeated_masks, sequence_means, softmax_dims
from rankprobe.pytorch._loss_targets import LossTargets, _nodes

pytestmark = pytest.mark.skipif(not hasattr(getattr(torch.autograd.graph, "Node", None), "register_prehook"), reason="PyTorch below 2 has no hooks of nodes")
ROWS, HEADS, PLACES, WIDTH = 2, 3, 6, 8


def _nodes_of(output: torch.Tensor) -> list:
    return list(_nodes(output.sum().grad_fn, 1000))


def _heads() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(ROWS, HEADS, PLACES, WIDTH, requires_grad=True) for _ in range(3)]


def _by_hand(mask: torch.Tensor) -> list[float]:
    query, key, value = _heads()
    return [one.item() for one in attention_sees(_nodes_of(torch.softmax(query @ key.transpose(-1, -2) + mask, -1) @ value))]


def _causal(shift: int, fill: float = -math.inf) -> torch.Tensor:
    return torch.full((PLACES, PLACES), fill).triu(shift)


@pytest.mark.parametrize("fill", [-math.inf, -1e4, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("shift, sees", [(1, [0, 0, 1]), (2, [1, 0, 1]), (3, [0, 1, 1])])
def test_a_mask_by_hand(shift, sees, fill):
    assert _by_hand(_causal(shift, fill)) == sees


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("between, sees, number", [
    (lambda p: p, [0, 1, 1], 0), (lambda p: p.tril(), [0, 0, 1], 1), (lambda p: p.tril() / p.tril().sum(-1, keepdim=True), [0, 0, 1], 0),
    (lambda p: p * (_causal(1) == 0), [0, 0, 1], 1), (lambda p: p * torch.ones(PLACES, PLACES).tril(1), [1, 0, 1], 0)])
def test_a_mask_behind_the_softmax(between, sees, number, dropout):
    query, key, value = _heads()
    weights = F.dropout(between(torch.softmax(query @ key.transpose(-1, -2), -1)), dropout)
    nodes = _nodes_of(weights @ value)
    if dropout == 0 or sees[0] == 0:
        assert [one.item() for one in attention_sees(nodes)] == sees
    assert [one.item() for one in masks_behind(nodes)] == [number, 1]


@pytest.mark.parametrize("mask, number", [
    # Of the second of three parts: its own, that of each part, a window, none.
    (lambda whole: whole[PLACES:2 * PLACES], 0), (lambda whole: whole[:PLACES, :PLACES].repeat(1, 3), 1),
    (lambda whole: (whole + torch.full_like(whole, -math.inf).tril(-4))[PLACES:2 * PLACES], 0), (lambda whole: torch.zeros(PLACES, 3 * PLACES), 0)])
def test_a_mask_of_one_part_for_all_parts(mask, number):
    query, key, value = _heads()
    key, value = (torch.cat([one] * 3, 2) for one in (key, value))
    scores = query @ key.transpose(-1, -2) + mask(torch.full((3 * PLACES, 3 * PLACES), -math.inf).triu(1))
    assert [one.item() for one in repeated_masks(_nodes_of(torch.softmax(scores, -1) @ value))] == [number, 1]
    assert repeated_masks(_nodes_of(torch.softmax(query @ query.transpose(-1, -2), -1))) == []


def test_a_mask_before_the_softmax_is_in_its_place():
    query, key, value = _heads()
    weights = torch.softmax(query @ key.transpose(-1, -2) + _causal(1), -1)
    assert [one.item() for one in masks_behind(_nodes_of(F.dropout(weights, 0.2) @ value))] == [0, 1]


def test_tokens_of_a_prefix_may_see_each_other():
    mask = _causal(1)
    mask[:PLACES // 3, :PLACES // 3] = 0
    assert _by_hand(mask) == [0, 0, 1]


@pytest.mark.parametrize("dim, causal, dims", [(-1, True, [0, 0, 1]), (3, False, [0, 0, 1]), (-2, True, [1, 1, 1]), (-2, False, [1, 0, 1]),
                                               (1, False, [1, 0, 1])])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_dimension_of_a_softmax(dim, causal, dims, dropout):
    query, key, value = _heads()
    scores = query @ key.transpose(-1, -2) + (_causal(1) if causal else 0)
    assert [one.item() for one in softmax_dims(_nodes_of(F.dropout(torch.softmax(scores, dim), dropout) @ value))] == dims


def test_weights_that_are_turned_are_not_judged():
    query, key, value = _heads()
    weights = torch.softmax(query @ key.transpose(-1, -2), -2)
    assert softmax_dims(_nodes_of(weights.transpose(-1, -2) @ value)) == []
    assert softmax_dims(_nodes_of(value.transpose(-1, -2) @ weights)) == []
    assert softmax_dims(_nodes_of(torch.softmax(query, -2) @ value.transpose(-1, -2))) == []


def test_a_window_to_both_sides_is_no_shifted_mask():
    window = torch.where((torch.arange(PLACES)[:, None] - torch.arange(PLACES)).abs() <= 1, 0.0, -math.inf)
    assert _by_hand(window) == [0, 0, 1]


@pytest.mark.parametrize("empty", ["everything", "nothing"])
def test_rows_of_padding_do_not_stand_for_the_batch(empty):
    """An empty row attends to everything, or is NaN; the second sequence has none."""
    mask = _causal(1)[None, None].repeat(ROWS, 1, 1, 1)
    mask[0, 0, :3] = 0.0 if empty == "everything" else -math.inf
    assert _by_hand(mask) == [0, 0, 1]


@pytest.mark.parametrize("arguments, sees", [
    ({"is_causal": True}, [0, 0, 1]), ({"is_causal": True, "dropout_p": 0.1}, [0, 0, 1]), ({}, [0, 1, 1]), ({"dropout_p": 0.1}, [0, 1, 1]),
    ({"attn_mask": _causal(1)}, [0, 0, 1]), ({"attn_mask": _causal(2)}, [1, 0, 1]),
    ({"attn_mask": torch.ones(PLACES, PLACES, dtype=torch.bool).tril()}, [0, 0, 1]),
    ({"attn_mask": torch.ones(PLACES, PLACES, dtype=torch.bool).tril(1)}, [1, 0, 1])])
def test_pytorchs_own_attention(arguments, sees):
    output = F.scaled_dot_product_attention(*_heads(), **arguments)
    assert [one.item() for one in attention_sees(_nodes_of(output))] == sees


def test_layers_are_counted_and_other_softmaxes_are_not():
    query, key, value = _heads()
    output = value
    for shift in (1, 1, 2, 1):
        output = torch.softmax(query @ key.transpose(-1, -2) + _causal(shift), -1) @ output
    router = torch.softmax(torch.randn(PLACES, PLACES, requires_grad=True), -1)
    cross = torch.softmax(query @ key[:, :, :4].transpose(-1, -2), -1)
    over_queries = torch.softmax(query @ key.transpose(-1, -2), -2)
    total = output.sum() + router.sum() + cross.sum() + over_queries.sum()
    assert [one.item() for one in attention_sees(_nodes(total.grad_fn, 1000))] == [0.25, 0, 4]
    assert attention_sees(_nodes(router.sum().grad_fn, 1000)) == []


def _rotated(angle: torch.Tensor, kind: str) -> torch.Tensor:
    value = torch.randn(1, 1, angle.shape[0], 2 * angle.shape[1], requires_grad=True)
    if kind == "complex":
        return torch.view_as_real(torch.view_as_complex(value.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angle), angle))
    if kind == "halves":
        cosine, sine = (torch.cat((one, one), -1)[None, None] for one in (angle.cos(), angle.sin()))
        first, second = value.chunk(2, -1)
        return value * cosine + torch.cat((-second, first), -1) * sine
    first, second = value[..., 0::2], value[..., 1::2]
    return torch.stack((first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()), -1)


def _angle(positions: torch.Tensor) -> torch.Tensor:
    return positions[:, None].float() / 10000 ** (torch.arange(0, 8, 2) / 8)


@pytest.mark.parametrize("kind", ["complex", "halves", "pairs"])
def test_positions_that_are_one_after_rounding(kind):
    exact = torch.arange(400)
    rounded = exact.to(torch.bfloat16)
    merged = (rounded[1:] == rounded[:-1]).sum().item()
    assert merged > 50
    assert [one.item() for one in merged_positions(_nodes_of(_rotated(_angle(rounded), kind)))] == [merged, 400]
    assert [one.item() for one in merged_positions(_nodes_of(_rotated(_angle(exact), kind)))] == [0, 400]


@pytest.mark.parametrize("positions", [torch.arange(400).clamp(max=300), (torch.arange(400) - 90).clamp(min=0), torch.arange(400) // 20,
                                       torch.arange(400) % 200], ids=["right padding", "left padding", "rows of an image", "packed"])
def test_positions_that_are_equal_for_another_reason(positions):
    assert merged_positions(_nodes_of(_rotated(_angle(positions), "pairs")))[0].item() == 0


def test_cosines_in_16_bits_of_exact_positions_are_sound():
    angle = _angle(torch.arange(400))
    value = torch.randn(1, 400, 4, dtype=torch.bfloat16, requires_grad=True)
    output = value * angle.cos().bfloat16() + value * angle.sin().bfloat16()
    assert merged_positions(_nodes_of(output))[0].item() == 0


def test_products_that_are_no_rotation_say_nothing():
    value = torch.randn(400, 8, requires_grad=True)
    constant = value * torch.ones(400, 8) + value * torch.zeros(400, 8)
    assert merged_positions(_nodes_of(constant))[0].item() == 0
    assert merged_positions(_nodes_of(F.dropout(value, 0.5))) == []
    assert merged_positions(_nodes_of(value * 2)) == []


def test_tensors_that_the_program_packs_or_has_changed_are_left_alone():
    query, key, value = _heads()
    unpacked = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: (unpacked.append(1), tensor)[1]):
        output = torch.softmax(query @ key.transpose(-1, -2), -1) @ value
    assert attention_sees(_nodes_of(output)) == [] and not unpacked
    weights = torch.softmax(query @ key.transpose(-1, -2), -1)
    nodes = _nodes_of(weights)
    with torch.no_grad():
        weights.zero_()
    assert attention_sees(nodes) == []


def test_they_are_read_in_three_steps_and_gradients_stay():
    def step(targets: "LossTargets | None") -> "tuple[torch.Tensor, dict]":
        torch.manual_seed(1)
        embedding = torch.nn.Embedding(20, WIDTH)
        hidden = embedding(torch.randint(0, 20, (ROWS, PLACES)))
        hidden = torch.softmax(hidden @ hidden.transpose(-1, -2) + _causal(1), -1) @ hidden
        loss = F.cross_entropy(hidden.reshape(-1, WIDTH), torch.randint(0, WIDTH, (ROWS * PLACES,)))
        if targets is not None:
            targets.note(loss)
        loss.backward()
        return embedding.weight.grad, targets.take() if targets is not None else {}

    targets = LossTargets()
    taken = [step(targets) for _ in range(5)]
    assert ["attention_sees" in values for _, values in taken] == [True] * 3 + [False] * 2
    assert [one.item() for one in taken[0][1]["attention_sees"]] == [0, 0, 1]
    assert all(torch.equal(gradient, step(None)[0]) for gradient, _ in taken)


@pytest.mark.parametrize("norm, number", [
    (lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6), [1]), (lambda x: (x - x.mean(-2, keepdim=True)) / (x.std(-2, keepdim=True) + 1e-6), [2]),
    (lambda x: torch.nn.functional.normalize(x, dim=1), [1]), (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), []),
    (lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), []), (lambda x: x.mean(1), []), (lambda x: x.softmax(1).mean(1, keepdim=True) * 0.1, []),
])
def test_means_over_the_places(norm, number):
    x = torch.randn(2, 6, 3, requires_grad=True)
    assert [one.item() for one in sequence_means(_nodes(norm(x).sum().grad_fn, 1000))] == number
