# SPDX-License-Identifier: Apache-2.0
"""watch() in a loop of Accelerate."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from conftest import bits

accelerate = pytest.importorskip("accelerate")


def train(config: Any = None, watched: bool = True, step: int = 0) -> tuple[list[float], str]:
    from rankprobe.integrations.accelerate import watch

    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    generator = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(torch.randn(16, 8, generator=generator), batch_size=2)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if watched:
        watch(accelerator, model, optimizer, step=step, config_path=config)
    losses = []
    for index, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if index in (2, 5):  # also in the middle of an accumulation
            model.eval()
            with torch.no_grad():
                model(batch)
            model.train()
    pickle.dumps(optimizer)
    return losses, bits(accelerator.unwrap_model(model))


def test_a_step_is_an_optimizer_step_without_its_evaluation(config: str, calls: Any) -> None:
    plain = train(watched=False)
    assert train() == plain
    assert train(config) == plain
    assert calls("0") == {step: [f"Module.0.Linear.forward.{i}" for i in (0, 1)] for step in range(4)}


def test_a_resumed_loop_gives_its_number(config: str, calls: Any) -> None:
    train(config, step=7)
    assert list(calls("0")) == [7, 8, 9, 10]
