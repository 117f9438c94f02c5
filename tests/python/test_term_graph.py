# SPDX-License-Identifier: Apache-2.0
"""Task monitor's reading of the signs of a loss's terms, and of the casts, images and hooks of its layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rankprobe.pytorch._leaf_graph import image_range, stale_casts
from rankprobe.pytorch._loss_targets import _nodes
from rankprobe.pytorch._modes import Modes
from rankprobe.pytorch._term_graph import DIVERGENCE, ENTROPY, inverted_term, terms_of

pytestmark = pytest.mark.skipif(not hasattr(getattr(torch.autograd.graph, "Node", None), "register_prehook"), reason="PyTorch below 2 has no hooks of nodes")
N, D = 16, 8


def _read(reader, loss: torch.Tensor) -> list[float]:
    return [one.item() for one in reader(list(_nodes(loss.grad_fn, 20000)))]


def _told(loss: torch.Tensor) -> list[float]:
    return [one.item() for one in inverted_term(terms_of(loss.grad_fn))]


def _normal(mean: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
    return -0.5 * (1 + log - mean ** 2 - log.exp()).sum(1).mean()


def _of_variance(mean: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
    variance = F.softplus(log) + 1e-4
    return 0.5 * torch.sum(mean.pow(2) + variance - variance.log() - 1)


def _of_deviation(mean: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.mean(mean ** 2 + torch.exp(2 * log) - 2 * log - 1)


def _teacher(mean: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
    return F.kl_div(mean.log_softmax(-1), torch.randn(N, D).softmax(-1), reduction="batchmean") * 4 + log.square().mean()


@pytest.mark.parametrize("divergence", [_normal, _of_variance, _of_deviation, _teacher])
def test_the_sign_of_a_divergence(divergence):
    mean, log = nn.Linear(D, 2 * D)(torch.randn(N, D)).chunk(2, 1)
    other = mean.square().mean()
    assert _told(other + 0.1 * divergence(mean, log)) == [0]
    assert _told(other - 0.1 * divergence(mean, log)) == [DIVERGENCE]
    # A weight that is learned, or of a sample, may be negative.
    assert _told(other + torch.tensor(-0.1) * divergence(mean, log)) == [0]


def test_losses_without_a_divergence():
    x = nn.Linear(D, D)(torch.randn(N, D))
    assert _told((x.exp() - torch.randn(N, D) * x).mean()) == [0], "counts"
    assert _told(F.mse_loss(x, torch.randn(N, D))) == []
    # Soft labels, rewards of chosen actions, and labels that are 0 and 1.
    assert _told(-(torch.randn(N, D).softmax(-1) * x.log_softmax(-1)).sum(-1).mean()) == [0]
    assert _told((torch.eye(D).repeat(2, 1) * x.log_softmax(-1)).sum(-1).mean()) == [0]


@pytest.mark.parametrize("entropy", [
    lambda x: torch.distributions.Categorical(logits=x).entropy().mean(), lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean(),
    lambda x: (lambda p: -(p * p.log()).sum(-1).mean())(x.softmax(-1)),
])
def test_the_sign_of_an_entropy(entropy):
    x = nn.Linear(D, D)(torch.randn(N, D))
    gained = torch.distributions.Categorical(logits=x).log_prob(torch.arange(N) % D) * torch.randn(N)
    assert _told(-gained.mean() - 0.01 * entropy(x)) == [0]
    assert _told(-gained.mean() + 0.01 * entropy(x)) == [ENTROPY]
    ratio = (torch.distributions.Categorical(logits=x).log_prob(torch.arange(N) % D) - 2.0).exp()
    clipped = torch.min(ratio * torch.randn(N), ratio.clamp(0.8, 1.2) * torch.randn(N))
    assert _told(-clipped.mean() + 0.01 * entropy(x)) == [ENTROPY]
    # Without a policy it may be minimised on purpose.
    assert _told(F.cross_entropy(x, torch.arange(N) % D) + 0.01 * entropy(x)) == []


def test_casts_of_weights():
    net, x = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D, bias=False)), torch.randn(N, D, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert _read(stale_casts, net(x).sum()) == [0, 2]
        with torch.no_grad():
            net[0].weight += 1
        assert _read(stale_casts, net(x).sum()) == [1, 2]
    with torch.autocast("cpu", torch.bfloat16):
        assert _read(stale_casts, net(x).sum()) == [0, 2]
    assert _read(stale_casts, net(x).sum()) == []


def test_the_range_of_images():
    conv = nn.Conv2d(3, 4, 3)
    pixels = torch.randint(0, 256, (2, 3, 8, 8)).float()
    pixels[0, 0, 0, :2] = torch.tensor([0.0, 255.0])
    assert _read(image_range, conv(pixels).sum()) == [0, 255, 1]
    assert _read(image_range, conv(pixels / 255).sum()) == [0, 1, 0]
    assert _read(image_range, nn.Linear(D, D)(torch.ones(N, D)).sum()) == []


def test_hooks_and_statistics_of_a_model():
    net, modes = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), Modes()
    modes.begin(net)
    assert modes.hooks() == 0
    handles = [net[0].weight.register_hook(lambda g: g) for _ in range(3)] + [net[1].register_forward_hook(lambda *_: None)]
    assert modes.hooks() == 3
    handles[0].remove()
    assert modes.hooks() == 2
    assert modes.unlearned_norms() == []
    net.eval()
    assert [one.item() for one in modes.unlearned_norms()] == [1, 1]
    net.train()
    net(torch.randn(2, 3, 8, 8))
    net.eval()
    assert [one.item() for one in modes.unlearned_norms()] == [0, 1]
