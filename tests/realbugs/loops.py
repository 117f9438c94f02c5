# SPDX-License-Identifier: Apache-2.0
"""Loops and models that several files of programs share."""
from common import *


def train(net, opt, step_of, steps=STEPS):
    for step in range(steps):
        step_of(step, net, opt)


def plain(step, net, opt, rank=0):
    x, y = batch(step, rank)
    loss = ce(net(x), y)
    opt.zero_grad()
    loss.backward()
    return loss


class DropBlock(Block):
    def __init__(self, **kw):
        super().__init__(**kw)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, mask, pos):
        x = x + self.drop(self.attn(self.norm1(x), mask, pos))
        return x + self.drop(self.mlp(self.norm2(x)))


def with_dropout():
    net = Lm()
    net.layers = nn.ModuleList(DropBlock() for _ in range(3))
    return net


def fitted(net, loss_of):
    """One rank; loss_of(net, generator) is the loss of a step."""
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)

    def step_of(step, net, opt):
        opt.zero_grad()
        loss_of(net, torch.Generator().manual_seed(97 * step + SEED)).backward()
        opt.step()

    train(net, opt, step_of)


class Vit(nn.Module):
    """Patches behind a token that is learned."""

    def __init__(self, batch_first=True, first=False):
        super().__init__()
        self.first = first
        self.patch, self.head = nn.Linear(16, D), nn.Linear(D, 5)
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, D)), nn.Parameter(0.02 * torch.randn(1, 10, D))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 4, 64, 0.1, batch_first=batch_first), 2, enable_nested_tensor=False)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.patch(x)], 1) + self.place
        if self.first:
            return self.head(self.encoder(x.transpose(0, 1))[0])
        return self.head(self.encoder(x)[:, 0])


def images(net, g):
    x = torch.randn(6, 9, 16, generator=g)
    return F.cross_entropy(net(x), x[:, :, 0].sum(1).abs().long().clamp(max=4))


class Recurrent(nn.Module):
    """A language model, or a forecast by what an LSTM has at the last place."""

    def __init__(self, last, batch_first, layer=nn.LSTM):
        super().__init__()
        self.last = last
        self.embed, self.layer, self.head = nn.Embedding(V, D), layer(D, D, 2, batch_first=batch_first), nn.Linear(D, V)

    def forward(self, x):
        hidden, _ = self.layer(self.embed(x))
        return self.head(hidden[:, -1] if self.last else hidden)


def recurrent(last, **options):
    def loss_of(net, g):
        x, y = batch(int(torch.randint(0, 9999, (), generator=g)))
        return ce(net(x), y[:, -1] if last else y)

    fitted(Recurrent(last, **options), loss_of)


def small(out=D + 1, hidden=64):
    return nn.Sequential(nn.Linear(D, hidden), nn.ReLU(), nn.Linear(hidden, out))


def of_noise(loss_of):
    """loss_of(net, x, target): of 16 samples."""
    def whole(net, g):
        x = torch.randn(16, D, generator=g)
        return loss_of(net, x, x.argmax(-1))

    return whole
