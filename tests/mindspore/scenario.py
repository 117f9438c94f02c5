# SPDX-License-Identifier: Apache-2.0
"""One scenario in a process of its own: scenario.py NAME TOOL DIRECTORY

TOOL: rankprobe, msprobe or none. Trees go to DIRECTORY/dump; DIRECTORY/result.json
says the losses and every parameter, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any, Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")


def replace_missing_kernel() -> None:
    """mint.norm, which msprobe computes Norm with, has no kernel on the CPU."""
    def norm(tensor: Any, *_: Any, **__: Any) -> Any:
        if tensor.dtype in (ms.float16, ms.float32, ms.float64):
            return ops.sqrt(ops.square(tensor).sum())
        # Nor have Square and ReduceSum one for every type.
        return Tensor(np.float32(np.linalg.norm(np.abs(tensor.asnumpy().astype(np.complex64)))))

    mint.norm = norm


class Cnn(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, pad_mode="valid")
        self.fc1 = nn.Dense(4 * 6 * 6, 16)
        self.norm = nn.LayerNorm((16,))
        self.fc2 = nn.Dense(16, 3)

    def construct(self, x):
        x = ops.relu(self.conv(x))
        x = x.reshape(x.shape[0], -1)
        return self.fc2(self.norm(ops.gelu(self.fc1(x))))


class Attention(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Dense(width, width) for _ in range(4))

    def construct(self, x, scale=1.0):
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = ops.softmax(ops.matmul(q, k.swapaxes(1, 2)) * scale, -1)
        return self.out(ops.matmul(weights, v)), weights


class Block(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.attention = Attention(width)
        self.mlp = nn.SequentialCell(nn.Dense(width, 2 * width), nn.GELU(), nn.Dense(2 * width, width))

    def construct(self, x):
        attended, _ = self.attention(self.norm1(x), scale=0.25)
        x = x + attended
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Cell):
    def __init__(self, words: int = 11, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.CellList([Block(width), Block(width)])
        self.norm = nn.LayerNorm((width,))
        self.head = nn.Dense(width, words)

    def construct(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).reshape(-1, 11)


class Shared(nn.Cell):
    """One cell called twice, one that returns a tuple, one that is given a keyword and a list."""

    class Parts(nn.Cell):
        def construct(self, x, sizes=None, offset=None):
            a, b = x[:, :4], x[:, 4:]
            return a * 2 + offset, b.sum(), None

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(8, 8)
        self.parts = Shared.Parts()
        self.last = nn.Dense(4, 3)

    def construct(self, x):
        a, b, _ = self.parts(self.fc(ops.tanh(self.fc(x))), sizes=[1, "two"], offset=Tensor(0.5, ms.float32))
        return self.last(a) + b


def images() -> tuple[Tensor, Tensor]:
    return (Tensor(np.random.RandomState(1).randn(4, 1, 8, 8).astype(np.float32)), Tensor(np.array([0, 1, 2, 1], np.int32)))


def words() -> tuple[Tensor, Tensor]:
    ids = np.random.RandomState(2).randint(0, 11, (2, 5))
    return Tensor(ids.astype(np.int32)), Tensor(((ids + 3) % 11).reshape(-1).astype(np.int32))


def rows() -> tuple[Tensor, Tensor]:
    return Tensor(np.random.RandomState(3).randn(4, 8).astype(np.float32)), Tensor(np.array([0, 1, 2, 1], np.int32))


class Run:
    """The tool and the bookkeeping of a scenario."""

    def __init__(self, tool: str, directory: str, config: dict) -> None:
        self.tool, self.directory = tool, directory
        self.losses: list[str] = []
        self.dump = os.path.join(directory, "dump")
        self.debugger: Any = None
        if tool == "none":
            return
        task = config.get("task", "statistics")
        text = {"task": task, "dump_path": self.dump, "rank": [], "step": [], "level": "mix", **config}
        text.setdefault(task, {})
        path = os.path.join(directory, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(text, file)
        if tool == "msprobe":
            replace_missing_kernel()
            os.makedirs(self.dump, exist_ok=True)
            from msprobe.mindspore import PrecisionDebugger
        else:
            from rankprobe.mindspore import PrecisionDebugger
        self.debugger = PrecisionDebugger(config_path=path)

    def step(self, model: Any, body: Callable[[], Any], **start: Any) -> Any:
        if self.debugger is not None:
            self.debugger.start(model, **start)
        loss = body()
        if self.debugger is not None:
            self.debugger.stop()
            self.debugger.step()
        if loss is not None:
            self.losses.append(np.asarray(loss.asnumpy()).tobytes().hex())
        return loss

    def train(self, net: nn.Cell, x: Tensor, y: Tensor, steps: int = 2, model: Any = None, **start: Any) -> None:
        optimizer = nn.Adam(net.trainable_params(), 1e-3)
        loss_of = nn.CrossEntropyLoss()
        gradient_of = ms.value_and_grad(lambda x, y: loss_of(net(x), y), None, optimizer.parameters)

        def body() -> Tensor:
            loss, gradients = gradient_of(x, y)
            optimizer(gradients)
            return loss

        for _ in range(steps):
            self.step(net if model is None else model, body, **start)
        self.net = net

    def finish(self) -> None:
        if self.tool == "rankprobe":
            if os.environ.get("SCENARIO_FAULTS"):
                print("FAULTS", self.debugger._capture.faults, flush=True)
            self.debugger.close()
        net = getattr(self, "net", None)
        digest = hashlib.sha256()
        for parameter in net.get_parameters() if net is not None else ():
            digest.update(parameter.asnumpy().tobytes())
        with open(os.path.join(self.directory, "result.json"), "w", encoding="utf-8") as file:
            json.dump({"losses": self.losses, "parameters": digest.hexdigest()}, file)


def cnn(run: Run) -> None:
    run.train(Cnn(), *images())


def transformer(run: Run) -> None:
    run.train(Transformer(), *words())


def shared(run: Run) -> None:
    run.train(Shared(), *rows())


def steps(run: Run) -> None:
    run.train(Cnn(), *images(), steps=4)


def two_models(run: Run) -> None:
    net = Cnn()
    run.train(net, *images(), steps=1, model=[net, Shared()])


def mint_functions(run: Run) -> None:
    w = ms.Parameter(Tensor(np.random.RandomState(4).randn(8, 8).astype(np.float32)), name="w")
    x, _ = rows()

    def forward(x: Tensor) -> Tensor:
        h = mint.matmul(x, w)
        h = mint.nn.functional.relu(h) + mint.sigmoid(h)
        h = mint.cat((h, x), dim=1)
        return mint.mean(mint.sum(mint.mul(h, h), dim=1))

    gradient_of = ms.value_and_grad(forward, None, [w])
    for _ in range(2):
        run.step(None, lambda: gradient_of(x)[0])


def tensor_methods(run: Run) -> None:
    w = ms.Parameter(Tensor(np.random.RandomState(5).randn(8).astype(np.float32)), name="w")
    x, _ = rows()

    def forward(x: Tensor) -> Tensor:
        h = (x * w - 0.5) / 2
        h = h.abs().clamp(0.1, 1.5).transpose(1, 0)
        mask = h > 0.3
        h = h.masked_fill(mask, 0.2).reshape((4, 8))
        return (h ** 2).mean() + h[1:3, ::2].max() + h.astype(ms.float32).sum(axis=1)[0]

    gradient_of = ms.value_and_grad(forward, None, [w])
    for _ in range(2):
        run.step(None, lambda: gradient_of(x)[0])


def dtypes(run: Run) -> None:
    values = np.random.RandomState(6).randn(3, 4)

    def body() -> None:
        for kind in (ms.float16, ms.float32, ms.float64, ms.int8, ms.uint8, ms.int16, ms.int32, ms.int64, ms.bool_):
            ops.stop_gradient(Tensor(values * 3, ms.float32).astype(kind).reshape((4, 3)))
        ops.abs(Tensor(np.array([-3], np.int32)))
        ops.abs(Tensor(-2.5, ms.float32))
        ops.abs(Tensor(np.array(-7), ms.int64))
        ops.abs(Tensor(np.array([np.nan, 1, np.inf], np.float32)))
        ops.abs(Tensor(np.array([1 + 2j, 3 - 4j], np.complex64)))
        ops.zeros_like(Tensor(np.zeros((0, 3), np.float32)))
        ops.transpose(Tensor(values, ms.float32), (1, 0)).expand_dims(0)

    run.step(None, body)


def bfloat16(run: Run) -> None:
    x = Tensor(np.array([1, -2, 3, 0.5], np.float32))
    run.step(None, lambda: ops.stop_gradient(x.astype(ms.bfloat16).reshape((2, 2))).astype(ms.float32).sum())


def inference(run: Run) -> None:
    net = Transformer()
    net.set_train(False)
    x, _ = words()
    for _ in range(2):
        run.step(net, lambda: net(x).sum())
    run.net = net


def saved(run: Run) -> None:
    net = Shared()
    x, y = rows()
    loss_of = nn.CrossEntropyLoss()

    def forward(x: Tensor, y: Tensor) -> Tensor:
        h = net.fc(x)
        if run.debugger is not None:
            run.debugger.save(h, "h")
            run.debugger.save({"a": h, "list": [1, "text", 2.5], "y": y}, "both")
            run.debugger.save(3, "number", save_backward=False)
        return loss_of(h[:, :3], y)

    gradient_of = ms.value_and_grad(forward, None, net.trainable_params())
    for _ in range(2):
        run.losses.append(gradient_of(x, y)[0].asnumpy().tobytes().hex())
        if run.debugger is not None:
            run.debugger.step()


def ranked(run: Run) -> None:
    if run.debugger is not None:
        run.debugger.set_init_step(7)
    run.train(Cnn(), *images(), steps=2, rank_id=3)


def tokens(run: Run) -> None:
    net = Shared()
    net.set_train(False)
    x, _ = rows()
    run.step(net, lambda: [net(x) for _ in range(5)][-1].sum(), token_range=[1, 2])
    run.net = net


def stages(run: Run) -> None:
    """start and stop twice in a step."""
    net = Shared()
    x, _ = rows()
    for _ in range(2):
        if run.debugger is not None:
            run.debugger.start(net)
        net(x)
        if run.debugger is not None:
            run.debugger.stop()
        net(x * 2)
        run.step(net, lambda: net(x + 1).sum())
    run.net = net


SCENARIOS: dict[str, tuple[Callable[[Run], None], dict]] = {
    "cnn_L0": (cnn, {"level": "L0"}),
    "cnn_L1": (cnn, {"level": "L1"}),
    "cnn_mix": (cnn, {}),
    "cnn_tensor": (cnn, {"task": "tensor"}),
    "cnn_md5": (cnn, {"statistics": {"summary_mode": "md5"}}),
    "cnn_forward_inputs": (cnn, {"statistics": {"data_mode": ["forward", "input"]}}),
    "cnn_backward": (cnn, {"statistics": {"data_mode": ["backward"]}}),
    "cnn_list": (cnn, {"statistics": {"list": ["relu", "fc1"]}}),
    "cnn_scope": (cnn, {"level": "L0", "statistics": {"scope": ["Cell.fc1.Dense.forward.0", "Cell.norm.LayerNorm.forward.0"]}}),
    "cnn_tensor_list": (cnn, {"statistics": {"tensor_list": ["relu"]}}),
    "cnn_high": (cnn, {"precision": "high"}),
    "transformer_L0": (transformer, {"level": "L0"}),
    "transformer_mix": (transformer, {}),
    "transformer_tensor": (transformer, {"task": "tensor", "level": "L0"}),
    "shared_mix": (shared, {}),
    "steps": (steps, {"level": "L0", "step": [1, 3]}),
    "two_models": (two_models, {"level": "L0"}),
    "mint_L1": (mint_functions, {"level": "L1"}),
    "tensor_methods_L1": (tensor_methods, {"level": "L1"}),
    "dtypes_L1": (dtypes, {"level": "L1"}),
    "bfloat16_L1": (bfloat16, {"level": "L1"}),
    "inference_mix": (inference, {}),
    "debug": (saved, {"level": "debug"}),
    "ranked": (ranked, {"level": "L0"}),
    "tokens": (tokens, {}),
    "stages": (stages, {"level": "L0"}),
}


def main() -> None:
    name, tool, directory = sys.argv[1:4]
    os.makedirs(directory, exist_ok=True)
    ms.set_seed(0)
    np.random.seed(0)
    function, config = SCENARIOS[name]
    run = Run(tool, directory, config)
    function(run)
    run.finish()


if __name__ == "__main__":
    main()
