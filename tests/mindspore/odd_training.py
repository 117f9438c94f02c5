# SPDX-License-Identifier: Apache-2.0
"""Trainings that are not like the others: odd_training.py CASE [config.json]; prints every parameter after four steps,
bit for bit, and what of rankprobe is left in MindSpore. With a config a PrecisionDebugger records them."""

from __future__ import annotations

import hashlib
import sys
from typing import Any, Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.experimental.optim.optimizer import Optimizer as Experimental
from mindspore.ops.composite import base

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")
ms.set_seed(0)
np.random.seed(0)

STEPS = 4
# The network(s), one step, and what else has to keep its bits.
Training = tuple[Any, Callable[[int], None], list]


def batch(*shape: int) -> Tensor:
    return Tensor(np.random.randn(*shape).astype(np.float32))


def two_optimizers() -> Training:
    maker, judge = nn.SequentialCell(nn.Dense(4, 4)), nn.SequentialCell(nn.Dense(4, 1))
    of_maker, of_judge = nn.Adam(maker.trainable_params()), mint.optim.Adam(judge.trainable_params(), lr=0.01)
    judged = ms.value_and_grad(lambda x: judge(ops.stop_gradient(maker(x))).mean(), None, of_judge.parameters)
    made = ms.value_and_grad(lambda x: -judge(maker(x)).mean(), None, of_maker.parameters)

    def step(_: int) -> None:
        x = batch(8, 4)
        of_judge(judged(x)[1])
        of_maker(made(x)[1])

    return [maker, judge], step, []


def optimizer_raises() -> Training:
    class Raises(nn.SGD):
        def construct(self, gradients):
            super().construct(gradients)
            raise KeyError("the user's")

    net = nn.SequentialCell(nn.Dense(4, 4))
    optimizer = Raises(net.trainable_params(), 0.1)
    gradient_of = ms.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)

    def step(_: int) -> None:
        try:
            optimizer(gradient_of(batch(2, 4))[1])
        except KeyError:
            return
        raise AssertionError("the program's exception is lost")

    return net, step, []


def compiled_cell() -> Training:
    """Nothing below it runs in Python; its parameters are watched all the same."""
    class Compiled(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(4, 4)

        @ms.jit
        def construct(self, x):
            return self.fc(x)

    net = nn.SequentialCell(nn.Dense(4, 4), Compiled())
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    gradient_of = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, optimizer.parameters)
    return net, lambda _: optimizer(gradient_of(batch(2, 4))[1]), []


def compiled_step() -> Training:
    """The whole step is one program: of it there is nothing to see but what is outside."""
    net = nn.SequentialCell(nn.Dense(4, 4))
    optimizer = nn.Adam(net.trainable_params(), 0.01)

    def loss_of(x):
        return ops.square(net(x)).mean()

    @ms.jit
    def train(x):
        loss, gradients = ms.value_and_grad(loss_of, None, optimizer.parameters)(x)
        optimizer(gradients)
        return loss

    return net, lambda _: train(batch(2, 4)), []


def own_optimizer() -> Training:
    """A cell that is not an optimizer of MindSpore's, and one of its that calls another of its."""
    class Own(nn.Cell):
        def __init__(self, parameters: list) -> None:
            super().__init__(auto_prefix=False)
            self.parameters = ms.ParameterTuple(parameters)

        def construct(self, gradients):
            for parameter, gradient in zip(self.parameters, gradients):
                ops.assign(parameter, parameter - 0.1 * gradient)

    class Around(nn.Optimizer):
        def __init__(self, parameters: list) -> None:
            super().__init__(0.1, parameters)
            self.inner = nn.SGD(parameters, 0.1)

        def construct(self, gradients):
            return self.inner(gradients)

    net = nn.SequentialCell(nn.Dense(4, 4))
    optimizers = [Own(net.trainable_params()), Around(net.trainable_params())]
    gradient_of = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, ms.ParameterTuple(net.trainable_params()))
    return net, lambda number: optimizers[number % 2](gradient_of(batch(2, 4))[1]), []


def replaced() -> Training:
    """The optimizer is made anew on the way, a parameter is frozen, and the network is evaluated in between."""
    net = nn.SequentialCell(nn.Dense(4, 4), nn.Dropout(p=0.5), nn.Dense(4, 1))
    current: list[Any] = [nn.SGD(net.trainable_params(), 0.1)]

    def step(number: int) -> None:
        if number == 2:
            net[0].weight.requires_grad = False
            current[0] = nn.Adam(net.trainable_params())
        net.set_train()
        current[0](ms.grad(lambda x: net(x).mean(), None, current[0].parameters)(batch(8, 4)))
        net.set_train(False)
        net(batch(1, 4))

    return net, step, []


def tied() -> Training:
    class Tied(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)
            self.second.weight = self.first.weight

        def construct(self, x):
            return self.second(self.first(x))

    net = Tied()
    optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.01)
    gradient_of = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, optimizer.parameters)
    return net, lambda _: optimizer(gradient_of(batch(2, 4))[1]), []


def odd_arguments() -> Training:
    """Gradients by name, one short, and something that is not a tensor among them."""
    class Own(nn.Optimizer):
        def construct(self, gradients, weight=1.0):
            for parameter, gradient in zip(self.parameters, gradients):
                if gradient is not None:
                    ops.assign(parameter, parameter - 0.1 * gradient)

    net = nn.SequentialCell(nn.Dense(4, 4))
    optimizer = Own(0.1, net.trainable_params())
    gradient_of = ms.grad(lambda x: ops.square(net(x)).mean(), None, optimizer.parameters)

    def step(number: int) -> None:
        gradients = gradient_of(batch(2, 4))
        if number == 0:
            optimizer(gradients=gradients)
        elif number == 1:
            optimizer(gradients[:1])
        elif number == 2:
            optimizer((gradients[0], None))
        else:
            optimizer(list(gradients), weight=2.0)

    return net, step, []


CASES = {name: case for name, case in list(globals().items()) if isinstance(case, type(batch)) and name not in ("batch", "main")}


def left_over() -> list[str]:
    """Stand-ins of ours that are still in place."""
    found = [kind.__name__ for kind in (nn.Optimizer, Experimental) if "__call__" in vars(kind)]
    found += [base._pynative_forward_run.__name__] if base._pynative_forward_run.__name__.startswith("rankprobe") else []
    return found + [kind.__name__ for kind in ms.amp.LossScaler.__subclasses__() if kind.scale.__name__.startswith("rankprobe")]


def main() -> None:
    net, step, more = CASES[sys.argv[1]]()
    debugger = None
    if len(sys.argv) > 2:
        from rankprobe.mindspore import PrecisionDebugger
        debugger = PrecisionDebugger(config_path=sys.argv[2])
    for number in range(STEPS):
        if debugger is not None:
            debugger.start(net)
        step(number)
        if debugger is not None:
            debugger.stop()
            debugger.step()
    print("LEFT", left_over())
    if debugger is not None:
        debugger.close()
    for one in net if isinstance(net, list) else [net]:
        for parameter in [*one.get_parameters(), *more]:
            print(parameter.name, hashlib.sha256(parameter.asnumpy().tobytes()).hexdigest())


if __name__ == "__main__":
    main()
