# SPDX-License-Identifier: Apache-2.0
"""Task monitor's reading of shapes in the graph of a loss: each fault, and what sound programs do that looks like it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rankprobe.pytorch._loss_targets import LossTargets, _nodes
from rankprobe.pytorch._shape_graph import loss_broadcast, sequence_dims

pytestmark = pytest.mark.skipif(not hasattr(torch.ones(1, requires_grad=True).exp().grad_fn, "_input_metadata"),
                                reason="nodes of older versions do not say their shapes")
# torch warns of a target of another size: that is what the tests are about.
_quiet = pytest.mark.filterwarnings("ignore:Using a target size")
N, ROWS, PLACES, WIDTH = 8, 6, 3, 8
LOSSES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)


def _broadcast(loss: torch.Tensor) -> list[float]:
    found = [one.item() for one in loss_broadcast(_nodes(loss.grad_fn, 64))]
    return found if found[:1] != [0] else []


def _dims(loss: torch.Tensor) -> list[float]:
    found = [one.item() for one in sequence_dims(_nodes(loss.grad_fn, 20000))]
    return found if found != [0, 0, 0] else []


def _prediction_and_target() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 1)(torch.randn(N, 4)), torch.randn(N)


@_quiet
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_function_of_all_pairs(loss):
    x, y = _prediction_and_target()
    kind = 2 if loss is F.l1_loss else 1  # it is a difference
    assert _broadcast(loss(x, y)) == [kind, N]
    assert _broadcast(0.5 * loss(x.squeeze(1), y[:, None]) + x.mean()) == [kind, N]
    assert _broadcast(loss(x, y[:, None])) == _broadcast(loss(x[:, 0], y)) == _broadcast(loss(x[:1], y[:1])) == []


@_quiet
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_all_indices_of_each_sample(loss):
    x, index, y = nn.Linear(4, 5)(torch.randn(N, 4)), torch.randint(0, 5, (N,)), torch.randn(N)
    assert _broadcast(loss(x[:, index], y)) == _broadcast(loss(x.index_select(1, index), y)) == [4, N]
    assert _broadcast(loss(x.gather(1, index[:, None])[:, 0], y)) == _broadcast(loss(x[torch.arange(N), index], y)) == []
    # One target of N features for all samples.
    assert _broadcast(loss(nn.Linear(4, N)(torch.randn(N, 4)), y)) == []


@pytest.mark.parametrize("loss", [lambda x, y: ((x - y) ** 2).mean(), lambda x, y: (y - x).abs().sum() / N, lambda x, y: (x - y).square().mean() * 2])
def test_a_difference_of_all_pairs(loss):
    x, y = _prediction_and_target()
    assert _broadcast(loss(x, y)) == [2, N]
    assert _broadcast(loss(x[:, 0], y[:, None])) == [2, N]
    # A matrix of targets has numbers of its own; a pair is written out.
    assert _broadcast(loss(x, torch.randn(N, N))) == []
    assert _broadcast(loss(x, y[:, None])) == _broadcast(loss(x[:, 0, None], y)) == _broadcast(loss(x[:, 0], y)) == []


@_quiet
def test_images_without_their_channel():
    image, target = nn.Conv2d(3, 1, 3, padding=1)(torch.randn(N, 3, 5, 5)), torch.randn(N, 5, 5)
    assert _broadcast(F.mse_loss(image, target)) == [1, N]
    assert _broadcast(F.l1_loss(image, target)) == [2, N]
    assert _broadcast(F.mse_loss(image[:, 0], target)) == []


def test_a_product_of_all_pairs():
    x, y = _prediction_and_target()
    log = x[:, 0]
    assert _broadcast(-(log * y[:, None]).mean()) == [3, N]
    ratio = log.exp()
    assert _broadcast(-torch.min(ratio * y[:, None], ratio.clamp(0.8, 1.2) * y[:, None]).mean()) == [3, N]
    assert _broadcast((F.cross_entropy(nn.Linear(4, 3)(torch.randn(N, 4)), torch.zeros(N).long(), reduction="none") * y[:, None]).mean()) == [3, N]
    assert _broadcast(-(log * y).mean()) == []


def test_pairs_on_purpose():
    x, y = _prediction_and_target()
    plan = torch.rand(N, N)
    scores = x - x.T
    assert _broadcast((scores - (y[:, None] - y)).square().mean()) == []  # ranking
    assert _broadcast(2 * (x - y[:, None].T).abs().mean() - scores.abs().mean()) == []  # energy distance
    assert _broadcast((plan * (x - y) ** 2).mean()) == []  # transport
    assert _broadcast((torch.outer(x[:, 0].softmax(0), y) * plan).sum()) == _broadcast(torch.outer(x[:, 0], y).mean()) == []
    assert _broadcast((F.normalize(x @ x.T) - torch.eye(N)).square().mean()) == []  # likenesses
    assert _broadcast(((x[:, :, None] - y.reshape(N, 1, 1)) ** 2).mean()) == []


def _sequences() -> torch.Tensor:
    torch.manual_seed(0)
    return nn.Embedding(9, WIDTH)(torch.randint(0, 9, (ROWS, PLACES)))


def _with_token() -> torch.Tensor:
    return torch.cat([nn.Parameter(torch.randn(1, 1, WIDTH)).expand(ROWS, -1, -1), _sequences()], 1)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_transformer_over_the_batch(batch_first, dropout):
    x = _sequences()
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout, batch_first=batch_first), 2, enable_nested_tensor=False)
    attention = nn.MultiheadAttention(WIDTH, 2, dropout, batch_first=batch_first)
    found = [_dims(layers(x)[:, -1].sum()), _dims(layers(_with_token())[:, 0].sum()), _dims((x + attention(x, x, x)[0]).mean(1).sum()),
             _dims(layers(x)[:, 0].sum())]
    # A place that is none of a sequence's ends may be a node's.
    assert found == ([[]] * 4 if batch_first else [[2, ROWS, PLACES], [2, ROWS, PLACES + 1], [1, ROWS, PLACES], [1, ROWS, PLACES]])
    assert _dims(layers(x)[0].sum()) == []


def test_a_transformer_that_gets_the_sequence_first():
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.1), 2, enable_nested_tensor=False)
    for turned in (lambda x: x.transpose(0, 1), lambda x: x.permute(1, 0, 2)):
        assert _dims(turned(layers(turned(_with_token())))[:, 0].sum()) == []
        assert _dims(layers(turned(_with_token()))[0].sum()) == []


@pytest.mark.parametrize("by_hand", [False, True])
def test_attention_along_both_dimensions(by_hand):
    class ByHand(nn.Module):
        def forward(self, x):
            heads = x.view(ROWS, -1, 2, WIDTH // 2).transpose(1, 2)
            return x + (torch.softmax(heads @ heads.transpose(-1, -2), -1) @ heads).transpose(1, 2).reshape(x.shape)

    across = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.1)
    along = ByHand() if by_hand else nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.1, batch_first=True)
    assert _dims(along(across(_with_token()))[:, 0].sum()) == []


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_over_the_batch(layer, bidirectional):
    x = _sequences()
    wrong, right = (layer(WIDTH, 5, 2, batch_first=batch_first, bidirectional=bidirectional) for batch_first in (False, True))
    assert _dims(wrong(x)[0][:, -1].sum()) == [2 if layer is nn.LSTM else 1, ROWS, PLACES]
    assert _dims(wrong(x)[0].mean(1).sum()) == [1, ROWS, PLACES]
    assert _dims(right(x)[0][:, -1].sum()) == _dims(wrong(x)[0][-1].sum()) == _dims(wrong(x.transpose(0, 1))[0].transpose(0, 1)[:, -1].sum()) == []


def test_places_that_are_taken_one_by_one_may_be_agents():
    hidden = nn.LSTM(WIDTH, 5)(_sequences())[0]
    assert _dims(sum(hidden[:, i].sum() for i in range(PLACES))) == [1, ROWS, PLACES]


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_the_second_dimension_may_be_nodes(layer):
    x = torch.randn(ROWS, PLACES, WIDTH)
    assert _dims(layer(WIDTH, 5)(x)[0].mean(1).sum()) == []
    assert _dims(layer(WIDTH, 5)(x + nn.Parameter(torch.zeros(1, PLACES, WIDTH)))[0].mean(1).sum()) == [1, ROWS, PLACES]


def test_a_stack_of_samples_is_no_sequence():
    layer = nn.Linear(WIDTH, WIDTH)
    assert _dims(torch.stack([layer(sample) for sample in _sequences()])[:, -1].sum()) == []


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_language_model_over_the_batch(batch_first):
    tokens = torch.randint(0, 9, (ROWS, PLACES))
    hidden = nn.LSTM(WIDTH, 5, batch_first=batch_first)(nn.Embedding(9, WIDTH)(tokens))[0]
    logits = nn.Linear(5, 9)(hidden)
    assert _dims(F.cross_entropy(logits.reshape(-1, 9), tokens.reshape(-1))) == ([] if batch_first else [3, ROWS, PLACES])


@_quiet
def test_three_steps_of_a_training_have_them():
    targets = LossTargets()
    taken = []
    for _ in range(4):
        x, y = _prediction_and_target()
        loss = F.mse_loss(x, y)
        targets.note(loss)
        loss.backward()
        taken.append(targets.take())
    assert [[one.item() for one in step.get("loss_broadcast", [])] for step in taken] == [[1, N]] * 3 + [[]]


@pytest.mark.parametrize("ignored, padding, share", [(0, 0, 0), (-100, 0, 4 / 18), (-100, None, 5 / 18)])
def test_padding_in_a_loss(ignored, padding, share):
    tokens = torch.randint(1, 9, (3, 6))
    tokens[0, 2:] = 0
    tokens[1, 5] = 0  # one may end a text
    target = F.pad(tokens[:, 1:], (0, 1))
    logits = nn.Linear(WIDTH, 9)(nn.Embedding(9, WIDTH, padding_idx=padding)(tokens))
    targets = LossTargets()
    loss = F.cross_entropy(logits.reshape(-1, 9), target.reshape(-1), ignore_index=ignored)
    targets.note(loss)
    loss.backward()
    found = targets.take().get("loss_padding")
    assert (None if found is None else [one.item() for one in found]) == [pytest.approx(share)]


def test_padding_on_the_left_predicts_the_first_token():
    tokens = torch.randint(1, 9, (3, 6))
    tokens[0, :3] = 0
    target = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
    logits = nn.Linear(WIDTH, 9)(nn.Embedding(9, WIDTH, padding_idx=0)(tokens))[:, :-1]
    targets = LossTargets()
    loss = F.cross_entropy(logits.reshape(-1, 9), target.reshape(-1))
    targets.note(loss)
    loss.backward()
    assert [one.item() for one in targets.take()["loss_padding"]] == [0]


@_quiet
def test_a_sound_loss_beside_one_of_all_pairs():
    x, y = _prediction_and_target()
    for one, other in ((x, x[:, 0]), (x[:, 0], x)):
        assert _broadcast(F.mse_loss(one, y) + F.mse_loss(other, y)) == [1, N]
        targets = LossTargets()
        for loss in (F.mse_loss(one, y), F.mse_loss(other, y)):
            targets.note(loss)
        assert [number.item() for number in targets.take()["loss_broadcast"]] == [1, N]
