# SPDX-License-Identifier: Apache-2.0
"""Task monitor's reading of objectives that cannot be learned in the graph of a loss: each fault, and what sound programs do that
looks like it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rankprobe.pytorch._layout_graph import mixed_views, positions_of_batch
from rankprobe.pytorch._loss_graph import probabilities
from rankprobe.pytorch._loss_targets import LossTargets, _checksum, _nodes
from rankprobe.pytorch._objective_graph import dropout_masks, logits_range, pair_targets, pooled_over_batch, regression_targets
from rankprobe.pytorch._term_graph import minimised_likelihood, terms_of

pytestmark = pytest.mark.skipif(not hasattr(getattr(torch.autograd.graph, "Node", None), "register_prehook"), reason="PyTorch below 2 has no hooks of nodes")
N, D = 16, 8


def _read(reader, loss: torch.Tensor) -> list[float]:
    return [one.item() for one in reader(list(_nodes(loss.grad_fn, 20000)))]


def _towers() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    one, other = (F.normalize(nn.Linear(D, D)(torch.randn(N, D)), dim=-1) for _ in range(2))
    return one, other


@pytest.mark.parametrize("logits, span", [
    (lambda a, b: a @ b.T, 2), (lambda a, b: a @ b.T * 0.07, 0.14), (lambda a, b: a @ b.T / 0.1, 20), (lambda a, b: (a @ b.T / 2).T, 1),
    (lambda a, b: torch.einsum("nd,md->nm", a, b) / 0.5, 4), (lambda a, b: (a @ b.T).sigmoid(), 1), (lambda a, b: (a @ b.T).tanh(), 2),
    (lambda a, b: 30 * (a @ b.T / 30).tanh(), 0), (lambda a, b: (3 * a) @ b.T, 0),
    (lambda a, b: torch.cat([(a * b).sum(1, keepdim=True), a @ torch.randn(D, N - 1)], 1), 0),
])
def test_how_far_logits_can_be_apart(logits, span):
    assert _read(logits_range, F.cross_entropy(logits(*_towers()), torch.arange(N))) == pytest.approx([span, N])


def test_a_temperature_that_is_learned():
    one, other = _towers()
    scale = nn.Parameter(torch.tensor(2.0))
    assert _read(logits_range, F.cross_entropy(one @ other.T * scale.exp(), torch.arange(N))) == pytest.approx([2 * 7.389056, N])
    assert _read(logits_range, F.mse_loss(one, other.detach())) == []


def test_labels_of_pairs():
    one, other = _towers()
    zeros = torch.zeros(N, dtype=torch.long)
    assert _read(pair_targets, F.cross_entropy(one @ other.T / 0.1, zeros)) == [1]
    assert _read(pair_targets, F.cross_entropy(one @ other.T / 0.1, torch.arange(N))) == [0]
    # Each sample with itself, which is masked or not.
    own, partner = one @ one.T / 0.1, (torch.arange(N) + N // 2) % N
    assert _read(pair_targets, F.cross_entropy(own, partner)) == [2]
    assert _read(pair_targets, F.cross_entropy(own, torch.arange(N))) == [0]
    assert _read(pair_targets, F.cross_entropy(own.masked_fill(torch.eye(N).bool(), -torch.inf), partner)) == []
    one, other = (nn.Linear(D, D + 1)(torch.randn(N, D)) for _ in range(2))
    for dim, told in ((0, 3), (1, 0)):
        assert _read(pair_targets, F.cross_entropy(F.normalize(one, dim=dim) @ F.normalize(other, dim=dim).t() / 0.1, torch.arange(N))) == [told]
    one, other = _towers()
    # A queue whose first column has the partners, and a layer of as many classes as there are samples.
    queue = torch.cat([(one * other).sum(1, keepdim=True), one @ torch.randn(D, N - 1)], 1)
    assert _read(pair_targets, F.cross_entropy(queue / 0.1, zeros)) == []
    assert _read(pair_targets, F.cross_entropy(nn.Linear(D, N, bias=False)(one), zeros)) == []


@pytest.mark.parametrize("scale", [lambda x: x / 0.1, lambda x: x * 10.0, lambda x: x])
def test_a_partner_that_is_in_the_queue(scale):
    one, other = _towers()
    zeros, keys = torch.zeros(N, dtype=torch.long), torch.randn(D, 4 * N)
    own = (one * other).sum(1, keepdim=True)
    for queue, told in ((keys, 0), (torch.cat([keys, other.detach().T], 1), 4)):
        assert _read(pair_targets, F.cross_entropy(scale(torch.cat([own, one @ queue], 1)), zeros)) == [told]
    # A layer that begins at 0.
    assert _read(pair_targets, F.cross_entropy(torch.cat([own * 0, one @ keys * 0], 1), zeros)) == [0]


@pytest.mark.parametrize("loss, told", [
    (lambda x, y: x.log_softmax(-1).gather(-1, y[:, None]).mean(), [1]), (lambda x, y: -x.log_softmax(-1).gather(-1, y[:, None]).mean(), [0]),
    (lambda x, y: -F.cross_entropy(x, y), [1]), (lambda x, y: F.cross_entropy(x, y) * 0.5, [0]), (lambda x, y: F.cross_entropy(x, y) * -1, [1]),
    (lambda x, y: F.nll_loss(-x.log_softmax(-1), y), [0]), (lambda x, y: -x.log_softmax(-1).gather(-1, y[:, None]).sum() / N, [0]),
    # A reward may be negative.
    (lambda x, y: -x.log_softmax(-1).gather(-1, y[:, None]).mean() * torch.tensor(-0.7), [0]),
    (lambda x, y: -(x.log_softmax(-1).gather(-1, y[:, None])[:, 0] * torch.randn(N)).mean(), []),
    (lambda x, y: F.cross_entropy(x, y) - F.cross_entropy(x + 1, y), []), (lambda x, y: x.square().mean(), []),
])
def test_the_sign_of_a_likelihood(loss, told):
    x = nn.Linear(D, D)(torch.randn(N, D))
    assert [one.item() for one in minimised_likelihood(terms_of(loss(x, torch.arange(N) % D).grad_fn))] == told


def test_a_softmax_over_the_batch():
    x, score, head = torch.randn(N, 20, D), nn.Linear(D, 1), nn.Linear(D, 3)

    def loss(dim, x):
        return F.cross_entropy(head((score(x).softmax(dim) * x).sum(1)), torch.arange(len(x)) % 3)

    assert _read(pooled_over_batch, loss(0, x)) == [1, N]
    assert _read(pooled_over_batch, loss(1, x)) == [0, N]
    # A sequence as long as the batch may be the first dimension.
    assert _read(pooled_over_batch, loss(0, x[:, :N])) == [0, N]
    assert _read(pooled_over_batch, F.cross_entropy(head(x[:, 0]), torch.arange(N) % 3)) == []


def test_masks_of_dropouts():
    layer, x = nn.Linear(D, D), torch.randn(N, D)

    def masks(seed, drop):
        torch.manual_seed(seed)
        found = dropout_masks(list(_nodes(drop(layer(x)).sum().grad_fn, 100)), _checksum)
        return None if found is None else found.item()

    for drop in (lambda y: F.dropout(y, 0.3), lambda y: torch.native_dropout(y, 0.3, True)[0], nn.Dropout(0.1)):
        assert masks(1, drop) == masks(1, drop) != masks(2, drop) != 0
    # A mask that leaves numbers as they are, weights, and no product.
    assert masks(1, lambda y: y * (torch.rand(N, D) < 0.5).float()) == masks(1, lambda y: y * torch.rand(N, D)) == 0
    assert masks(1, lambda y: y * (torch.rand(N, D) < 0.5)) is masks(1, lambda y: y.relu()) is None


def test_targets_of_a_regression():
    out = nn.Linear(D, D)(torch.randn(N, D))

    def told(loss):
        found = regression_targets(list(_nodes(loss.grad_fn, 100)), _checksum)
        return None if found is None else found.item()

    noise = torch.randn(N, D)
    assert told(F.mse_loss(out, noise)) == told(F.smooth_l1_loss(out, noise.clone())) != told(F.mse_loss(out, noise + 1))
    # Labels of a discriminator.
    assert told(F.mse_loss(out, torch.ones(N, D))) == told(F.mse_loss(out, (noise > 0).float())) == 0
    assert told(F.cross_entropy(out, torch.arange(N) % D)) is None


@pytest.mark.parametrize("target, told", [
    (lambda y: (y > 0).float(), 7), (lambda y: y.softmax(-1), 0), (lambda y: F.one_hot(y.argmax(-1), D).float(), 0),
    (lambda y: 0.9 * F.one_hot(y.argmax(-1), D) + 0.1 / D, 0),
])
def test_targets_of_several_classes(target, told):
    out = nn.Linear(D, D)(torch.randn(N, D))
    torch.manual_seed(0)
    node = F.cross_entropy(out, target(torch.randn(N, D))).grad_fn
    assert int(probabilities(node)) == told
    # Positives of a contrastive loss, which are divided by their number.
    mask = (torch.randn(N, D) > 0).float()
    loss = -(mask * out.log_softmax(-1)).sum() / mask.sum()
    assert all(int(probabilities(one)) == 0 for one in _nodes(loss.grad_fn, 10) if one.name() in ("DivBackward0", "DivBackward1"))


def test_logits_in_a_divergence():
    x, wanted = nn.Linear(D, D)(torch.randn(N, D)), torch.randn(N, D).softmax(-1)
    choice = F.one_hot(torch.arange(N) % D, D).float()

    def told(loss):
        return max(int(probabilities(one)) for one in _nodes(loss.grad_fn, 10) if one.name() in ("KlDivBackward0", "SubBackward0"))

    assert told(F.kl_div(x, wanted, reduction="batchmean")) == told(F.kl_div(x / 2, wanted, reduction="sum")) == 8
    assert told(F.kl_div(x.log_softmax(-1), wanted, reduction="batchmean")) == told(((torch.randn(N, 1) - choice * x) ** 2).mean()) == 0


def test_pixels_that_become_classes():
    net = nn.Conv2d(3, 5, 1)
    for width, told in ((8, [5, 1]), (10, [5, 1])):
        out = net(torch.randn(2, 3, 4, width))
        y = torch.zeros(8 * width, dtype=torch.long)
        assert _read(mixed_views, F.cross_entropy(out.reshape(-1, 5), y)) == told
        assert _read(mixed_views, F.cross_entropy(out.permute(0, 2, 3, 1).reshape(-1, 5), y)) == []
    # Two samples of five numbers in a row.
    rows = nn.Linear(D, 10)(torch.randn(3, 5, D))
    assert _read(mixed_views, F.cross_entropy(rows.reshape(-1, 5), torch.zeros(30, dtype=torch.long))) == []


def _padding(x: torch.Tensor, y: torch.Tensor) -> float:
    net = nn.Sequential(nn.Embedding(60, D), nn.Linear(D, 60))
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    targets = LossTargets()
    targets.note(loss)
    loss.backward()
    return targets.take()["loss_padding"][0].item()


def test_targets_that_are_padding():
    torch.manual_seed(0)
    tokens, places = torch.randint(1, 50, (6, 13)), torch.arange(13)
    lengths = torch.tensor([13, 11, 9, 8, 6, 5])[:, None]
    for padding in (0, 55):  # The padding, or the token that ends a text as well.
        text = tokens.masked_fill(places >= lengths, padding)
        x, y = text[:, :-1], text[:, 1:]
        assert _padding(x, y) == pytest.approx((2 + 4 + 5 + 7 + 8 - 5) / 72)
        assert _padding(x, y.masked_fill(places[1:] >= lengths, -100)) == 0
        # One end of each text counts, or the token occurs in the text.
        assert _padding(x, y.masked_fill(places[1:] > lengths, -100)) == 0
        x, y = x.clone(), y.clone()
        x[:, 2] = y[:, 1] = padding
        assert _padding(x, y) == 0
    # Texts of one length end with one token, and images with as many of one colour.
    text = tokens.masked_fill(places >= 11, 0)
    assert _padding(text[:, :-1], text[:, 1:]) == _padding(tokens[:, :-1], tokens[:, 1:]) == 0


@pytest.mark.parametrize("layer", [nn.Linear(D, 3), nn.TransformerEncoderLayer(D, 2, 16, 0.1, batch_first=True),
                                   nn.TransformerEncoderLayer(D, 2, 16, 0.1, batch_first=True, norm_first=True)])
def test_positions_along_the_batch(layer):
    torch.manual_seed(0)
    tokens, embed, table = torch.randint(0, 5, (4, 12)), nn.Embedding(5, D), torch.randn(12, D)

    def apart(added):
        return _read(positions_of_batch, layer(embed(tokens) + added).sum())

    assert apart(table[:4, None]) == pytest.approx((table[0] - table[1]).abs().tolist(), abs=1e-5)
    # Along the sequence, and none.
    assert set(apart(table)) == set(apart(0.0)) == {0.0}
    assert _read(positions_of_batch, layer(torch.randn(4, 12, D)).sum()) == []
