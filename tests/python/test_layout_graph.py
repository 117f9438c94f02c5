# SPDX-License-Identifier: Apache-2.0
"""Task monitor's reading of mixed places, targets and layers in the graph of a loss: each fault, and what sound programs do
that looks like it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rankprobe.pytorch._layout_graph import mixed_views, norms_of_places, padding_attended, padding_pooled
from rankprobe.pytorch._leaf_graph import between_trained
from rankprobe.pytorch._loss_graph import moving_target, unreachable_targets
from rankprobe.pytorch._loss_targets import _nodes
from rankprobe.pytorch._target_graph import BINARY, BLANK, SIGNS, undefined_targets

pytestmark = pytest.mark.skipif(not hasattr(torch.ones(1, requires_grad=True).exp().grad_fn, "_input_metadata"),
                                reason="nodes of older versions do not say their shapes")
B, H, T, D = 3, 2, 6, 8


def _read(reader, loss: torch.Tensor) -> list[float]:
    return [one.item() for one in reader(list(_nodes(loss.grad_fn, 20000)))]


def _by_hand(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def _attended(attention, before: str, behind: str) -> torch.Tensor:
    torch.manual_seed(0)
    out, parts = nn.Linear(D, D), [nn.Linear(D, D) for _ in range(3)]
    x = torch.randn(B, T, D)
    split = {"turned": lambda y: y.view(B, T, H, -1).transpose(1, 2), "viewed": lambda y: y.view(B, H, T, -1), "heads": lambda y: y.view(B, T, H, -1),
             "einsum": lambda y: torch.einsum("bthd->bhtd", y.view(B, T, H, -1))}[before]
    y = attention(*(split(part(x)) for part in parts))
    if before == "heads":
        return out(y.reshape(B, T, D)).sum()
    return out(y.transpose(1, 2).reshape(B, T, D) if behind == "turned" else y.contiguous().view(B, T, D)).sum()


@pytest.mark.parametrize("attention", [F.scaled_dot_product_attention, _by_hand])
def test_heads_and_places(attention):
    assert _read(mixed_views, _attended(attention, "turned", "turned")) == _read(mixed_views, _attended(attention, "einsum", "turned")) == []
    assert _read(mixed_views, _attended(attention, "turned", "viewed")) == [1, 1]
    assert _read(mixed_views, _attended(attention, "viewed", "turned")) == [2, 1]
    assert _read(mixed_views, _attended(attention, "heads", "")) == [3, 1]


@pytest.mark.parametrize("batch_first", [False, True])
def test_pytorchs_own_attention(batch_first):
    x = torch.randn(B, T, D, requires_grad=True)
    attention = nn.MultiheadAttention(D, H, 0.1, batch_first=batch_first)
    for need_weights in (False, True):
        assert _read(mixed_views, attention(x, x, x, need_weights=need_weights)[0].sum()) == []
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, 16, batch_first=batch_first), 2, enable_nested_tensor=False)
    assert _read(mixed_views, layers(x).reshape(B, -1).sum()) == []


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_states_of_a_recurrent_layer(layer):
    hidden = layer(D, 5, batch_first=True, bidirectional=True)(torch.randn(B, T, D))[1]
    hidden = hidden[0] if layer is nn.LSTM else hidden
    assert _read(mixed_views, hidden.view(B, -1).sum()) == [4, 1]
    assert _read(mixed_views, hidden.transpose(0, 1).reshape(B, -1).sum()) == _read(mixed_views, hidden.reshape(2, -1).sum()) == []


def _padded(is_left: bool) -> torch.Tensor:
    tokens = torch.arange(1, 1 + B * T).reshape(B, T)
    padding = torch.arange(T) >= torch.tensor([T, T - 2, T - 3])[:, None]
    tokens = tokens.masked_fill(padding, 0)
    return tokens.flip(1) if is_left else tokens


@pytest.mark.parametrize("attention", [F.scaled_dot_product_attention, "by hand"])
def test_attention_to_padding(attention):
    embedding = nn.Embedding(50, D, padding_idx=0)

    def share(tokens, seen):
        q = 0.1 * embedding(tokens)[:, None]
        if attention == "by hand":
            weights = torch.softmax((q @ q.transpose(-1, -2)).masked_fill(~seen, -1e9), -1)
            return _read(padding_attended, (weights @ q).sum())
        return _read(padding_attended, attention(q, q, q, attn_mask=seen).sum())

    causal, all_places = torch.ones(T, T, dtype=torch.bool).tril(), torch.ones(T, T, dtype=torch.bool)
    for is_left in (False, True):
        tokens = _padded(is_left)
        padding = (tokens == 0)[:, None, None]
        assert share(tokens, ~padding & all_places) == [0, 1]
        assert share(tokens, all_places)[0] > 0.1
        assert share(tokens, padding | (tokens != 0).all(1)[:, None, None, None] & all_places)[0] == 1
        assert (share(tokens, causal[None, None])[0] > 0.1) == is_left
    # One at the end ends the text; there is none.
    tokens = torch.arange(1, 1 + B * T).reshape(B, T)
    tokens[1, -1] = 0
    assert share(tokens, all_places)[0] == 0
    # No padding_idx: one token that only fills the ends of rows; it is elsewhere, too; a table of segments.
    embedding = nn.Embedding(50, D)
    tokens = _padded(False)
    assert share(tokens, all_places)[0] > 0.1
    assert share(tokens, (tokens != 0)[:, None, None] & all_places)[0] == 0
    tokens[0, 2] = 0
    assert share(tokens, all_places)[0] == 0
    embedding = nn.Embedding(15, D)
    assert share(_padded(False).clamp(max=14), all_places) == []


@pytest.mark.parametrize("bias", [True, False])
def test_norms_over_places(bias):
    made, other = nn.Linear(D, D, bias=bias)(torch.randn(B, T, D)), torch.randn(B, T, D)
    assert _read(norms_of_places, F.normalize(made).sum()) == _read(norms_of_places, F.cosine_similarity(made, other).sum()) == [1]
    for loss in (F.normalize(made, dim=-1), F.cosine_similarity(made, other, dim=-1), F.normalize(made[:, 0]), F.normalize(made.transpose(1, 2)),
                 made * made.norm(dim=1, keepdim=True), nn.Conv1d(T, T, 1)(other).norm(dim=1)):
        assert _read(norms_of_places, loss.sum()) == []


def test_means_over_padding():
    embedding, layer = nn.Embedding(50, D), nn.Linear(D, D)
    tokens = _padded(False)
    made, keep = layer(embedding(tokens)), (tokens != 0)[..., None].float()
    padding = (tokens == 0).double().mean().item()
    assert _read(padding_pooled, made.mean(1).sum()) == [padding] != [0]
    # Masked; of embeddings; over features; no padding.
    assert _read(padding_pooled, ((made * keep).sum(1) / keep.sum(1)).sum()) == _read(padding_pooled, (made * keep).mean(1).sum()) == []
    assert _read(padding_pooled, embedding(tokens).mean(1).sum()) == _read(padding_pooled, made.mean(2).sum()) == []
    assert _read(padding_pooled, layer(embedding(torch.arange(1, 1 + B * T).reshape(B, T))).mean(1).sum()) == [0]


def test_targets_beyond_an_activation():
    torch.manual_seed(0)
    x, target = nn.Linear(4, 1)(torch.randn(16, 4)), torch.tensor([-0.5, 0.5, 1.5, 0.25]).repeat(4)[:, None]
    for loss in (F.mse_loss, F.smooth_l1_loss, F.l1_loss, lambda a, b: ((a - b) ** 2).mean(), lambda a, b: (b - a).abs().sum()):
        assert _read(unreachable_targets, loss(x.sigmoid(), target)) == [0.5, 0, 1]
        assert _read(unreachable_targets, loss(x.tanh(), target)) == [0.25, -1, 1]
        assert _read(unreachable_targets, loss(x.relu(), target))[:2] == [0.25, 0]
        assert _read(unreachable_targets, loss(x.sigmoid(), target.clamp(0, 1))) == [0, 0, 1]
        assert _read(unreachable_targets, loss(x, target)) == []
    assert _read(unreachable_targets, (x.sigmoid() - x.tanh()).square().mean()) == []


def test_targets_that_a_loss_does_not_know():
    torch.manual_seed(0)
    a, b = (nn.Linear(4, 3)(torch.randn(16, 4)) for _ in range(2))
    label, x, y = torch.tensor([0.0, 1.0]).repeat(8), a[:, 0], b[:, 0]
    for loss in (lambda t: F.cosine_embedding_loss(a, b, t, margin=0.1), lambda t: F.margin_ranking_loss(x, y, t), lambda t: F.hinge_embedding_loss(x, t),
                 lambda t: F.soft_margin_loss(x, t), lambda t: F.margin_ranking_loss(x, y, t, margin=0.5, reduction="sum")):
        assert _read(undefined_targets, loss(label)) == [SIGNS]
        assert _read(undefined_targets, loss(2 * label - 1)) == [0]
    binary = F.binary_cross_entropy_with_logits
    assert _read(undefined_targets, binary(x, 2 * label - 1)) == _read(undefined_targets, binary(x, label + 1)) == [BINARY]
    # Labels that are smoothed, or shifted at random.
    # Of several losses, each is judged.
    for one, other in ((label, 2 * label - 1), (2 * label - 1, label)):
        assert _read(undefined_targets, binary(x, one) + binary(y, other)) == [BINARY]
    assert _read(undefined_targets, binary(x, 0.8 * label + 0.1)) == _read(undefined_targets, binary(x, 1.4 * label - 0.2)) == [0]
    # -1 stands for no label, which the program leaves out.
    assert _read(undefined_targets, (binary(x, label - 1, reduction="none") * label).mean()) == _read(undefined_targets, binary(x, label - 1, label)) == []
    logs, lengths = torch.randn(10, 2, 5, requires_grad=True).log_softmax(-1), (torch.tensor([10, 10]), torch.tensor([3, 2]))
    for targets, blank, kind in (([[1, 2, 3], [4, 1, 0]], 0, 0), ([[1, 0, 3], [4, 1, 0]], 0, BLANK), ([[1, 0, 3], [3, 1, 0]], 4, 0)):
        assert _read(undefined_targets, F.ctc_loss(logs, torch.tensor(targets), *lengths, blank=blank)) == [kind]
    # One sign alone; masks; no such loss.
    assert _read(undefined_targets, F.margin_ranking_loss(x, y, -torch.ones(16))) == [0]
    assert _read(undefined_targets, (label * (x - y) + 1).clamp_min(0).mean()) == [0]
    assert _read(undefined_targets, F.mse_loss(x, y)) == []


def test_a_target_that_has_a_graph():
    net = nn.Linear(4, 3)
    x, reward = torch.randn(8, 4), torch.randn(8)
    following = reward + 0.9 * net(x + 1).max(1).values
    assert _read(moving_target, F.mse_loss(net(x)[:, 0], following)) == [1]
    assert _read(moving_target, F.mse_loss(net(x)[:, 0], following.detach())) == []
    assert _read(moving_target, F.mse_loss(net(x), net(x + 1))) == _read(moving_target, F.mse_loss(net(x), 1 + 2 * net(x + 1))) == [0]


def test_an_advantage_that_has_a_graph():
    policy, value = nn.Linear(4, 3), nn.Linear(4, 1)
    x, reward, action = torch.randn(8, 4), torch.randn(8), torch.randint(0, 3, (8,))
    chosen = policy(x).log_softmax(-1).gather(-1, action[:, None])[:, 0]
    of_categorical = torch.distributions.Categorical(logits=policy(x)).log_prob(action)
    for advantage in (reward - value(x).squeeze(-1), value(x)[:, 0] - reward):
        assert _read(moving_target, -(chosen * advantage).mean()) == _read(moving_target, (advantage * of_categorical).mean()) == [2]
        assert _read(moving_target, -(chosen * advantage.detach()).mean()) == []
    # A focal loss, a weight that is learned, a square.
    assert _read(moving_target, -((1 - chosen.exp()) ** 2 * chosen).mean()) == []
    assert _read(moving_target, -(chosen * value(x)[:, 0].sigmoid()).mean()) == []
    assert _read(moving_target, ((reward - value(x)[:, 0]) * (reward - value(x)[:, 0])).mean()) == []


def test_layers_that_nobody_trains():
    first, middle, last = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def untrained(loss, trained):
        ids = {id(parameter) for module in trained for parameter in module.parameters()}
        return len(between_trained(list(_nodes(loss.grad_fn, 20000)), lambda one: id(one) in ids))

    x = torch.randn(3, 4)
    loss = last(middle(first(x).relu()).relu() + 1).sum()
    assert untrained(loss, [first, last]) == 2
    # All of them, before what is trained, behind it; an input that has a gradient.
    assert untrained(loss, [first, middle, last]) == untrained(loss, [middle, last]) == untrained(loss, [first, middle]) == 0
    assert untrained(last(middle(first(x.requires_grad_()))).sum(), [first, middle, last]) == 0
    # The weights of a loss: classes, or a number for each of its terms.
    classes, numbers = nn.Parameter(torch.randn(3, 2)), [nn.Parameter(torch.zeros(())) for _ in range(2)]
    made = last(middle(first(x)))
    assert untrained((made @ nn.functional.normalize(classes).t()).logsumexp(1).sum(), [first, middle, last]) == 1
    assert untrained(sum(made.sum() * number.exp() for number in numbers), [first, middle, last]) == 2
    assert untrained((made @ classes.t()).sum() * numbers[0], [first, middle, last]) == 0, "a model of its own"
    assert between_trained(list(_nodes((made.sum() * numbers[0]).grad_fn, 200)), lambda one: one is not numbers[0], with_lone=False) == []
    # One weight before what is trained.
    table = nn.Embedding(6, 4)
    assert untrained(last(middle(first(table(torch.tensor([1, 2]))).relu())).sum(), [first, middle, last]) == 0


@pytest.mark.parametrize("given, made, kind", [
    ((2, 8, 6, 4), (8, 6, 8), [6, 1]), ((2, 8, 1, 6, 4), (8, 6, 1, 8), [6, 1]),
    # Neighbours that are joined or split, one dimension that stays, too few.
    ((2, 8, 6, 4), (16, 6, 4), []), ((12, 5, 7), (3, 4, 5, 7), []), ((5, 7, 6), (7, 5, 6), []), ((4, 6), (3, 2, 4), []), ((4, 6, 5), (10, 12), []),
])
def test_a_view_that_keeps_no_dimension(given, made, kind):
    taken = torch.ones(given, requires_grad=True)
    assert _read(mixed_views, (taken * 2).view(made).pow(2).sum()) == kind
