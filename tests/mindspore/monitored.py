# SPDX-License-Identifier: Apache-2.0
"""Trainings that say themselves what task monitor should see: monitored.py CASE OUT [config.json]

With a config a PrecisionDebugger records it. OUT gets {"truth": of each step, "state": every parameter and
every state of the optimizer, bit for bit}. Norms are NumPy's, of the script's own tensors; rates are computed
here and not asked of the optimizer. CASE all: every case, by name, each below a directory of its own in dump_path.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any, Callable

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, amp, mint, nn, ops
from mindspore.experimental import optim

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")

STEPS, RATE = int(os.environ.get("STEPS", "4")), 0.05


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm((6,)), nn.Dense(6, 6)

    def construct(self, x):
        return x + self.fc(self.norm(x))


class Net(nn.Cell):
    """`idle` has a weight of 0 and a gradient of 0; `cut` has none; `frozen` wants none; `scale` is the
    network's own, of no dimensions."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.SequentialCell(Block(), Block())
        self.idle = nn.Dense(6, 6, weight_init="zeros", has_bias=False)
        self.cut, self.frozen, self.head = nn.Dense(6, 6), nn.Dense(6, 6), nn.Dense(6, 3)
        self.scale = Parameter(Tensor(1.0, ms.float32), name="scale")
        for parameter in self.frozen.get_parameters():
            parameter.requires_grad = False

    def construct(self, x):
        x = self.frozen(self.blocks(x))
        return self.head(x + self.idle(x) * 0 + ops.stop_gradient(self.cut(x))) * self.scale


class Halved(nn.learning_rate_schedule.LearningRateSchedule):
    """The program's own schedule."""

    def construct(self, global_step):
        return ops.pow(Tensor(0.5, ms.float32), ops.cast(global_step, ms.float32)) * RATE


class Counted(nn.learning_rate_schedule.LearningRateSchedule):
    """One that another question would change."""

    def __init__(self):
        super().__init__()
        self.asked = Parameter(Tensor(0.0, ms.float32), name="asked", requires_grad=False)

    def construct(self, global_step):
        return ops.assign_add(self.asked, Tensor(1.0, ms.float32)) * RATE


def split(parameters: list) -> list[dict]:
    return [{"params": [p for p in parameters if "blocks" in p.name], "lr": RATE},
            {"params": [p for p in parameters if "blocks" not in p.name], "lr": RATE / 10}]


OPTIMIZERS: dict[str, Callable[[list], Any]] = {
    "sgd": lambda p: nn.SGD(p, RATE),
    "sgd_momentum": lambda p: nn.SGD(p, RATE, momentum=0.9),
    "momentum": lambda p: nn.Momentum(p, RATE, 0.9),
    "adam": lambda p: nn.Adam(p, RATE),
    "adam_weight_decay": lambda p: nn.AdamWeightDecay(p, RATE, weight_decay=0.01),
    "rmsprop": lambda p: nn.RMSProp(p, RATE),
    "adagrad": lambda p: nn.Adagrad(p, learning_rate=RATE),
    "mint_adam": lambda p: mint.optim.Adam(p, lr=RATE),
    "mint_adamw": lambda p: mint.optim.AdamW(p, lr=RATE),
    "mint_sgd": lambda p: mint.optim.SGD(p, lr=RATE, momentum=0.9),
    "experimental_adamw": lambda p: optim.AdamW(p, lr=RATE),
    "groups": lambda p: nn.Adam(split(p), RATE),
    "experimental_groups": lambda p: optim.SGD(split(p), lr=RATE),
    "decaying": lambda p: nn.Momentum(p, nn.ExponentialDecayLR(RATE, 0.5, 1), 0.9),
    "listed": lambda p: nn.SGD(p, [RATE * 0.5 ** i for i in range(STEPS + 1)]),
    "groups_decaying": lambda p: nn.Adam([{**split(p)[0], "lr": nn.ExponentialDecayLR(RATE, 0.5, 1)}, split(p)[1]], RATE),
    "own_schedule": lambda p: nn.Adam(p, Halved()),
    "counted_schedule": lambda p: nn.Adam(p, Counted()),
}
RATES: dict[str, Callable[[int], list[float]]] = {
    "groups": lambda step: [RATE, RATE / 10], "experimental_groups": lambda step: [RATE, RATE / 10],
    "groups_decaying": lambda step: [RATE * 0.5 ** step, RATE / 10],
    **dict.fromkeys(["decaying", "listed", "own_schedule"], lambda step: [RATE * 0.5 ** step]), "counted_schedule": lambda step: [],
}
# What else a training may be: its loss scaled by a scaler or for the optimizer, of several batches a step, with more
# results than a loss, without value_and_grad, of float16, under train.Model.
WAYS = ["scaled", "scaled_by_optimizer", "micro", "aux", "grad_operation", "half", "model"]


def norm(value: Any) -> float:
    return float(np.linalg.norm(np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value, np.float64)))


def states(optimizer: Any) -> dict[str, Any]:
    """Its lists beside its parameters, one tensor for each of these."""
    own = {id(p) for p in optimizer.parameters}
    return {name: value for name, value in vars(optimizer).items() if isinstance(value, ParameterTuple)
            and not own & {id(one) for one in value} and len(value) == len(optimizer.parameters) and name != "learning_rate"}


def digest(tensors: Any) -> list[str]:
    return [hashlib.sha256(tensor.asnumpy().tobytes()).hexdigest() for tensor in tensors]


class Training:
    """Steps of one case. debugger: None, or what records them."""

    def __init__(self, case: str, debugger: Any) -> None:
        ms.set_seed(0)
        np.random.seed(0)
        self.case, self.debugger, self.net = case, debugger, Net()
        if case == "half":
            for parameter in self.net.get_parameters():
                parameter.set_dtype(ms.float16)
        of_way = {"scaled_by_optimizer": lambda p: nn.SGD(p, RATE, loss_scale=8.0), "half": lambda p: nn.SGD(p, RATE)}
        make = OPTIMIZERS.get(case) or of_way.get(case) or OPTIMIZERS["adam"]
        self.optimizer = make(list(self.net.get_parameters()) if case == "adam" else self.net.trainable_params())
        self.names = [p.name for p in self.optimizer.parameters]
        self.scaler = amp.DynamicLossScaler(2.0 ** 10, 2, 2)
        self.gradient_of = ms.value_and_grad(self._loss, None, self.optimizer.parameters, has_aux=case == "aux")
        self.operation = ops.GradOperation(get_by_list=True)(self._loss, self.optimizer.parameters)
        self.truth: list[dict] = []

    def _loss(self, x):
        loss = ops.square(self.net(x).astype(ms.float32)).mean()
        if self.case == "scaled":
            return self.scaler.scale(loss)
        return (loss, x) if self.case == "aux" else loss * 8 if self.case == "scaled_by_optimizer" else loss

    def _gradients(self) -> tuple[Any, Any]:
        x = Tensor(np.random.randn(4, 6).astype(np.float16 if self.case == "half" else np.float32))
        if self.case == "grad_operation":
            return self._loss(x), self.operation(x)
        loss, gradients = self.gradient_of(x)
        return loss[0] if self.case == "aux" else loss, gradients

    def step(self, number: int) -> None:
        losses, whole = [], None
        for _ in range(2 if self.case == "micro" else 1):
            loss, gradients = self._gradients()
            losses.append(loss)
            whole = gradients if whole is None else tuple(a + b for a, b in zip(whole, gradients))
        seen: dict[str, Any] = {"factor": 1.0}
        if self.case == "scaled":
            whole, losses = self.scaler.unscale(whole), [self.scaler.unscale(loss) for loss in losses]
            seen["factor"] = float(self.scaler.scale_value)
        elif self.case == "scaled_by_optimizer":
            seen["factor"] = 8.0
        divisor = 8.0 if self.case == "scaled_by_optimizer" else 1.0  # of a backward that begins at it, the loss has the factor
        seen |= {"loss": [float(loss.asnumpy()) for loss in losses], "lr": RATES.get(self.case, lambda _: [RATE])(number),
                 "grad": {n: norm(g) / divisor for n, g in zip(self.names, whole)}, "param": self._norms(),
                 "state": {key: {n: norm(s) for n, s in zip(self.names, value)} for key, value in states(self.optimizer).items()}}
        before = [p.asnumpy().copy() for p in self.optimizer.parameters]
        self.optimizer(whole)
        seen["update"] = {n: norm(p.asnumpy().astype(np.float64) - b) for n, p, b in zip(self.names, self.optimizer.parameters, before)
                          if p.requires_grad}
        seen["after"] = self._norms()
        self.truth.append(seen)
        if self.case == "scaled":
            self.scaler.adjust(Tensor(True))

    def _norms(self) -> dict[str, float]:
        return {n: norm(p) for n, p in zip(self.names, self.optimizer.parameters)}

    def run(self) -> None:
        if self.case == "model":
            return self._run_model()
        for number in range(STEPS):
            if self.debugger is not None:
                self.debugger.start(self.net)
            self.step(number)
            if self.debugger is not None:
                self.debugger.stop()
                self.debugger.step()

    def _run_model(self) -> None:
        class Data:
            def __getitem__(self, index):
                return np.random.randn(6).astype(np.float32), np.zeros(3, np.float32)

            def __len__(self):
                return 4 * STEPS

        from mindspore.dataset import GeneratorDataset

        data = GeneratorDataset(Data(), ["x", "y"], shuffle=False, num_parallel_workers=1).batch(4)
        model = ms.train.Model(self.net, nn.MSELoss(), self.optimizer)
        losses: list[float] = []
        callbacks: list[Any] = [ms.train.LambdaCallback(on_train_step_end=lambda run: losses.append(float(run.original_args().net_outputs.asnumpy())))]
        if self.debugger is not None:
            from rankprobe.mindspore import MsprobeStep
            callbacks.append(MsprobeStep(self.debugger))
        model.train(1, data, callbacks=callbacks, dataset_sink_mode=False)
        self.truth = [{"loss": [loss]} for loss in losses]

    def everything(self) -> list[str]:
        """Every parameter, of a schedule too, and every state of the optimizer, bit for bit."""
        return digest([*self.net.get_parameters(), *self.optimizer.get_parameters()])


def run_all(config: dict) -> dict[str, dict]:
    """Every case; with a config each is recorded, below a directory of its own."""
    said = {}
    for case in [*OPTIMIZERS, *WAYS]:
        debugger = None
        if config:
            path = f"{config['dump_path']}-{case}.json"
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**config, "dump_path": f"{config['dump_path']}/{case}/dump"}, file)
            debugger = recorder(path)
        said[case] = run_case(case, debugger)
        if debugger is not None:
            debugger.close()
    return said


def recorder(path: str) -> Any:
    from rankprobe.mindspore import PrecisionDebugger

    return PrecisionDebugger(config_path=path)


def run_case(case: str, debugger: Any) -> dict:
    training = Training(case, debugger)
    try:
        training.run()
    except RuntimeError as error:
        if "unregistered" not in str(error):
            raise
        return {"missing": str(error).splitlines()[0], "state": []}
    return {"truth": training.truth, "state": training.everything()}


def main() -> None:
    case, out, *config = sys.argv[1:4]
    if case == "all":
        said = run_all(json.loads(open(config[0], encoding="utf-8").read()) if config else {})
    else:
        debugger = recorder(config[0]) if config else None
        said = run_case(case, debugger)
        if debugger is not None:
            debugger.close()
    with open(out, "w", encoding="utf-8") as file:
        json.dump(said, file)


if __name__ == "__main__":
    main()
