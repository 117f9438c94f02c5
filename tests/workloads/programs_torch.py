# SPDX-License-Identifier: Apache-2.0
"""Programs of PyTorch alone, in one process."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from workload import STEPS, Block, Watch, classify, images, program, tokens, train



class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                                  nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                  nn.Dropout(0.1), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@program()
def torch_cnn(watch: Watch) -> None:
    train(watch, Cnn(), images(), classify)


@program()
def torch_cnn_sgd_bf16_autocast(watch: Watch) -> None:
    model = Cnn()

    def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return classify(model, batch)

    train(watch, model, images(), loss_of, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


@program()
def torch_lstm(watch: Watch) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(64, 16), nn.LSTM(16, 16, 2, batch_first=True), nn.Linear(16, 64)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(self.embed(ids))[0])

    train(watch, Tagger(), tokens(), lambda model, ids: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


@program()
def torch_encoder(watch: Watch) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    train(watch, model, lambda: torch.randn(2, 6, 16), lambda model, x: model(x).square().mean())


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.blocks, self.use_reentrant = nn.Linear(16, 16), nn.ModuleList(Block() for _ in range(3)), use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


@program()
def torch_checkpoint_reentrant(watch: Watch) -> None:
    train(watch, Checkpointed(True), lambda: torch.randn(2, 4, 16), lambda model, x: model(x).square().mean())


@program()
def torch_checkpoint(watch: Watch) -> None:
    train(watch, Checkpointed(False), lambda: torch.randn(2, 4, 16), lambda model, x: model(x).square().mean())


@program()
def torch_accumulate(watch: Watch) -> None:
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        with watch.step(model):
            for _ in range(2):
                loss = model(torch.randn(2, 4, 16)).square().mean() / 2
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.loss(loss)
    watch.finish(model, optimizer)


@program()
def torch_gan(watch: Watch) -> None:
    """Two optimizers, one step."""
    make, judge = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)), nn.Sequential(Block(), nn.Linear(16, 1))
    both = nn.ModuleDict({"make": make, "judge": judge})
    first, second = torch.optim.Adam(make.parameters(), 1e-3), torch.optim.Adam(judge.parameters(), 1e-3)
    for _ in range(STEPS):
        real, noise = torch.randn(4, 16), torch.randn(4, 8)
        with watch.step(both):
            loss = F.softplus(judge(make(noise).detach())).mean() + F.softplus(-judge(real)).mean()
            loss.backward()
            second.step()
            wrong = F.softplus(-judge(make(noise))).mean()
            wrong.backward()
        first.step()
        first.zero_grad()
        second.zero_grad()
        watch.loss(loss + wrong)
    watch.finish(both, first)


@program()
def torch_stochastic_depth(watch: Watch) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = x.new_empty((x.shape[0], 1, 1)).bernoulli_(0.5)
            return x + (self.block(x) - x) * mask

    train(watch, nn.Sequential(Dropped(), Dropped()), lambda: torch.randn(4, 3, 16), lambda model, x: model(x).square().mean())
