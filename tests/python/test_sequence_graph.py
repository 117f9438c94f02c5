# SPDX-License-Identifier: Apache-2.0
"""Tests of recurrent and convolution layers that show a position of a language model what comes behind it."""
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from rankprobe.pytorch._sequence_graph import layers_ahead

_TOKENS = torch.randint(0, 40, (6, 13), generator=torch.Generator().manual_seed(0))


class Convolutions(nn.Module):
    def __init__(self, padding, mask=None, dilation=1, shift=0):
        super().__init__()
        self.embed, self.head, self.shift = nn.Embedding(40, 16), nn.Linear(16, 40), shift
        self.convs = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=padding, dilation=dilation) for _ in range(2))
        with torch.no_grad():
            for conv in self.convs:
                conv.weight.mul_(torch.tensor([1.0, 1.0, 0.0]) if mask else 1.0)

    def forward(self, x):
        h = self.embed(x).transpose(1, 2)
        h = F.pad(h, (self.shift, 0))[..., :h.shape[-1]] if self.shift else h
        for conv in self.convs:
            h = F.gelu(conv(h)[..., :x.shape[1]]) + h
        return self.head(h.transpose(1, 2))


class Recurrent(nn.Module):
    def __init__(self, both, half=False, pooled=False):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(40, 16), nn.LSTM(16, 16, num_layers=1 if half else 2, batch_first=True, bidirectional=both)
        self.head, self.half, self.pooled = nn.Linear(16 if half or not both else 32, 40), half, pooled

    def forward(self, x):
        h = self.rnn(self.embed(x))[0]
        h = h[..., :16] if self.half else h
        return self.head(h.mean(1, keepdim=True).expand_as(h) if self.pooled else h)


def _found(model, targets=_TOKENS[:, 1:]):
    loss = F.cross_entropy(model(_TOKENS[:, :-1]).flatten(0, 1), targets.flatten())
    return [float(one) for one in layers_ahead(loss.grad_fn, targets.flatten(), targets.flatten() >= 0)]


@pytest.mark.parametrize("model", [Convolutions(1), Convolutions(2, dilation=2), Recurrent(both=True)])
def test_a_layer_shows_the_next_token(model):
    ahead, layers = _found(model)
    assert 0 < ahead <= layers


@pytest.mark.parametrize("model", [Convolutions(2), Convolutions(4, dilation=2), Convolutions(1, mask=True), Recurrent(both=False)])
def test_a_layer_shows_earlier_tokens_alone(model):
    assert _found(model)[:1] in ([0], [])


@pytest.mark.parametrize("model", [
    Convolutions(1, shift=1),
    # What sees later tokens is dropped, or is no function of one position.
    Recurrent(both=True, half=True), Recurrent(both=True, pooled=True),
])
def test_what_is_not_judged(model):
    assert _found(model) == []


def test_targets_that_are_not_the_next_tokens():
    assert _found(Recurrent(both=True), _TOKENS[:, :-1])[0] == 0
