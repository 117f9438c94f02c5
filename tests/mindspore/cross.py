# SPDX-License-Identifier: Apache-2.0
"""The same network with the same weights in one of two frameworks:
cross.py FRAMEWORK NETWORK DIRECTORY TASK LEVEL [LAYER]

FRAMEWORK: pytorch or mindspore. Weights and inputs are drawn by NumPy alone, in
the order of WEIGHTS. LAYER: every other weight of this layer is wrong by a hundredth.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

# Network -> (name in PyTorch, name in MindSpore, shape), dense and convolution weights as both frameworks hold them.
WEIGHTS = {
    "lenet": [("conv1.weight", "conv1.weight", (6, 1, 5, 5)), ("conv2.weight", "conv2.weight", (16, 6, 5, 5)),
              ("fc1.weight", "fc1.weight", (120, 400)), ("fc1.bias", "fc1.bias", (120,)),
              ("fc2.weight", "fc2.weight", (84, 120)), ("fc2.bias", "fc2.bias", (84,)),
              ("fc3.weight", "fc3.weight", (10, 84)), ("fc3.bias", "fc3.bias", (10,))],
    "transformer": [("embed.weight", "embedding.embedding_table", (11, 8))] + [
        (f"layers.{i}.{pytorch}", f"blocks.{i}.{mindspore}", shape) for i in range(2) for pytorch, mindspore, shape in (
            ("norm1.weight", "norm1.gamma", (8,)), ("norm1.bias", "norm1.beta", (8,)),
            ("self_attn.q.weight", "attention.q.weight", (8, 8)), ("self_attn.q.bias", "attention.q.bias", (8,)),
            ("self_attn.k.weight", "attention.k.weight", (8, 8)), ("self_attn.k.bias", "attention.k.bias", (8,)),
            ("self_attn.v.weight", "attention.v.weight", (8, 8)), ("self_attn.v.bias", "attention.v.bias", (8,)),
            ("self_attn.out.weight", "attention.out.weight", (8, 8)), ("self_attn.out.bias", "attention.out.bias", (8,)),
            ("norm2.weight", "norm2.gamma", (8,)), ("norm2.bias", "norm2.beta", (8,)),
            ("mlp.up.weight", "mlp.up.weight", (16, 8)), ("mlp.up.bias", "mlp.up.bias", (16,)),
            ("mlp.down.weight", "mlp.down.weight", (8, 16)), ("mlp.down.bias", "mlp.down.bias", (8,)))] + [
        ("norm.weight", "norm.gamma", (8,)), ("norm.bias", "norm.beta", (8,)),
        ("lm_head.weight", "head.weight", (11, 8)), ("lm_head.bias", "head.bias", (11,))],
}
# Of the transformer; the target is MindSpore's run.
LAYERS = """TopLayer:
  embedding: embed
  blocks: layers
  head: lm_head
Block:
  attention: self_attn
"""


def weights(network: str, framework: str, planted: str) -> dict[str, np.ndarray]:
    random = np.random.RandomState(7)
    out = {}
    for pytorch, mindspore, shape in WEIGHTS[network]:
        value = (random.randn(*shape) * 0.2 + ("norm" in pytorch and pytorch.endswith("weight"))).astype(np.float32)
        name = pytorch if framework == "pytorch" else mindspore
        if planted and name.startswith(planted + "."):
            value.reshape(-1)[::2] *= np.float32(1.01)
            planted = ""
        out[name] = value
    return out


def batch(network: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(8)
    if network == "lenet":
        return random.randn(4, 1, 32, 32).astype(np.float32), random.randint(0, 10, 4).astype(np.int32)
    ids = random.randint(0, 11, (2, 5)).astype(np.int32)
    return ids, ((ids + 3) % 11).reshape(-1).astype(np.int32)


def in_pytorch(network: str, values: dict[str, np.ndarray], config: str) -> float:
    import torch
    from torch import nn
    from torch.nn import functional as F

    from rankprobe.pytorch import PrecisionDebugger

    class LeNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, bias=False), nn.Conv2d(6, 16, 5, bias=False)
            self.pool1, self.pool2 = nn.MaxPool2d(2, 2), nn.MaxPool2d(2, 2)
            self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

        def forward(self, x):
            x = self.pool1(F.relu(self.conv1(x)))
            x = self.pool2(F.relu(self.conv2(x)))
            x = x.reshape(x.shape[0], -1)
            return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            scores = torch.softmax(torch.matmul(self.q(x), self.k(x).swapaxes(1, 2)) * 0.25, -1)
            return self.out(torch.matmul(scores, self.v(x)))

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.down(F.relu(self.up(x)))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.self_attn, self.mlp = Attention(), Mlp()

        def forward(self, x):
            x = x + self.self_attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.layers = nn.ModuleList([Block(), Block()])
            self.norm, self.lm_head = nn.LayerNorm(8), nn.Linear(8, 11)

        def forward(self, ids):
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.norm(x)).reshape(-1, 11)

    debugger = PrecisionDebugger(config_path=config)
    model = LeNet() if network == "lenet" else Transformer()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})
    x, y = (torch.from_numpy(array) for array in batch(network))
    debugger.start(model)
    loss = F.cross_entropy(model(x), y.long())
    loss.backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    return loss.item()


def in_mindspore(network: str, values: dict[str, np.ndarray], config: str) -> float:
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    from rankprobe.mindspore import PrecisionDebugger

    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")

    class LeNet(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = (nn.Conv2d(a, b, 5, pad_mode="valid", has_bias=False) for a, b in ((1, 6), (6, 16)))
            self.pool1, self.pool2 = nn.MaxPool2d(2, 2), nn.MaxPool2d(2, 2)
            self.fc1, self.fc2, self.fc3 = nn.Dense(400, 120), nn.Dense(120, 84), nn.Dense(84, 10)

        def construct(self, x):
            x = self.pool1(ops.relu(self.conv1(x)))
            x = self.pool2(ops.relu(self.conv2(x)))
            x = x.reshape(x.shape[0], -1)
            return self.fc3(ops.relu(self.fc2(ops.relu(self.fc1(x)))))

    class Attention(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Dense(8, 8) for _ in range(4))

        def construct(self, x):
            scores = ops.softmax(ops.matmul(self.q(x), self.k(x).swapaxes(1, 2)) * 0.25, -1)
            return self.out(ops.matmul(scores, self.v(x)))

    class Mlp(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Dense(8, 16), nn.Dense(16, 8)

        def construct(self, x):
            return self.down(ops.relu(self.up(x)))

    class Block(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm((8,), epsilon=1e-5), nn.LayerNorm((8,), epsilon=1e-5)
            self.attention, self.mlp = Attention(), Mlp()

        def construct(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class Transformer(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 8)
            self.blocks = nn.CellList([Block(), Block()])
            self.norm, self.head = nn.LayerNorm((8,), epsilon=1e-5), nn.Dense(8, 11)

        def construct(self, ids):
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).reshape(-1, 11)

    debugger = PrecisionDebugger(config_path=config)
    net = LeNet() if network == "lenet" else Transformer()
    for parameter in net.get_parameters():
        parameter.set_data(Tensor(values[parameter.name]))
    x, y = (Tensor(array) for array in batch(network))
    gradient_of = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, net.trainable_params())
    debugger.start(net)
    loss, _ = gradient_of(x, y)
    debugger.stop()
    debugger.step()
    debugger.close()
    return float(loss.asnumpy())


def main() -> None:
    framework, network, directory, task, level = sys.argv[1:6]
    planted = sys.argv[6] if len(sys.argv) > 6 else ""
    os.makedirs(directory, exist_ok=True)
    config: dict[str, Any] = {"task": task, "dump_path": os.path.join(directory, "dump"), "rank": [], "step": [], "level": level,
                              task: {}}
    if level == "L1":
        # A function of PyTorch that is several nodes has the gradient of its last: no partner of MindSpore's.
        config[task] = {"data_mode": ["forward"]}
    path = os.path.join(directory, "config.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    values = weights(network, framework, planted)
    loss = (in_pytorch if framework == "pytorch" else in_mindspore)(network, values, path)
    with open(os.path.join(directory, "loss.json"), "w", encoding="utf-8") as file:
        json.dump(loss, file)


if __name__ == "__main__":
    main()
