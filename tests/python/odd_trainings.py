# SPDX-License-Identifier: Apache-2.0
"""Trainings that are not like the others: odd_trainings.py CASE [config.json]; prints the parameters after six steps.

With a config they are recorded by a PrecisionDebugger.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, Callable

import torch
from torch import nn

STEPS = 6
Training = tuple[Any, Callable[[int], None]]
generator = torch.Generator().manual_seed(3)


def _batch(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, **kwargs)


def closure() -> Training:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def step(_: int) -> None:
        x = _batch(16, 4)

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = (model(x) - 1).square().mean()
            value.backward()
            return value

        optimizer.step(loss)

    return model, step


def sparse() -> Training:
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True))
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(torch.randint(0, 20, (5,), generator=generator)).square().sum().backward()
        optimizer.step()

    return model, step


def two_optimizers() -> Training:
    maker, judge = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 1))
    of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters(), lr=0.01)

    def step(_: int) -> None:
        x = _batch(8, 4)
        of_judge.zero_grad()
        judge(maker(x).detach()).mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        (-judge(maker(x)).mean()).backward()
        of_maker.step()

    return [maker, judge], step


def complex_numbers() -> Training:
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64))
    optimizer = torch.optim.Adam(model.parameters())

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(_batch(3, 4, dtype=torch.complex64)).abs().sum().backward()
        optimizer.step()

    return model, step


def tied_and_frozen() -> Training:
    model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 6), nn.Linear(6, 10, bias=False))
    model[2].weight = model[0].weight
    model[1].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(torch.randint(0, 10, (7,), generator=generator)).square().mean().backward()
        optimizer.step()

    return model, step


def replaced() -> Training:
    """A parameter and the optimizer are made anew on the way, and the model is evaluated in between."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizers: list[Any] = [torch.optim.SGD(model.parameters(), lr=0.1)]

    def step(number: int) -> None:
        if number == 3:
            model[0].weight = nn.Parameter(model[0].weight.detach() * 2)
            optimizers[0] = torch.optim.Adam(model.parameters())
        optimizers[0].zero_grad(set_to_none=number % 2 == 0)
        model(_batch(8, 4)).mean().backward()
        optimizers[0].step()
        model.eval()
        model(torch.ones(1, 4))
        model.train()

    return model, step


def optimizer_raises() -> Training:
    class Raises(torch.optim.SGD):
        def step(self, *arguments: Any, **named: Any) -> None:
            super().step(*arguments, **named)
            raise KeyError("the user's")

    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = Raises(model.parameters(), lr=0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(_batch(2, 4)).sum().backward()
        try:
            optimizer.step()
        except KeyError:
            pass

    return model, step


def other_thread() -> Training:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(_batch(2, 4)).sum().backward()
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()

    return model, step


def many_backwards() -> Training:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(_: int) -> None:
        optimizer.zero_grad()
        y = model(_batch(2, 4))
        torch.autograd.backward([y.sum(), y.square().sum()], retain_graph=True)
        y.backward(torch.ones_like(y))
        for _ in range(100):
            model(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    return model, step


CASES = {case.__name__: case for case in (closure, sparse, two_optimizers, complex_numbers, tied_and_frozen, replaced,
                                          optimizer_raises, other_thread, many_backwards)}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, step = CASES[sys.argv[1]]()
    debugger: Any = None
    if len(sys.argv) > 2:
        from rankprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(config_path=sys.argv[2])
    for number in range(STEPS):
        if debugger:
            debugger.start(model=model)
        step(number)
        if debugger:
            debugger.stop()
            debugger.step()
    if debugger:
        debugger.close()
    models = model if isinstance(model, list) else [model]
    print(json.dumps([str(torch.view_as_real(p.detach()).tolist() if p.is_complex() else p.detach().tolist())
                      for one in models for p in one.parameters()]))


if __name__ == "__main__":
    main()
