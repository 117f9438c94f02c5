# SPDX-License-Identifier: Apache-2.0
"""A training that knows nothing of rankprobe: plain_train.py STEPS [FILE [BAD]]

Once FILE is given it goes on past STEPS until FILE is there, a step each 50 ms at
most. In step BAD a sample is divided by zero. Each step is a line: its loss and all parameters, bit for bit.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")
ms.set_seed(0)
np.random.seed(0)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Dense(8, 16), nn.Dense(16, 3)

    def construct(self, x):
        return self.fc2(ops.relu(self.fc1(x)))


steps = int(sys.argv[1])
last = sys.argv[2] if len(sys.argv) > 2 else ""
bad = int(sys.argv[3]) if len(sys.argv) > 3 else -1
net = Net()
optimizer = nn.Adam(net.trainable_params(), 1e-3)
loss_of = nn.CrossEntropyLoss()
gradient_of = ms.value_and_grad(lambda x, y: loss_of(net(x), y), None, optimizer.parameters)
x, y = Tensor(np.random.randn(4, 8).astype(np.float32)), Tensor(np.array([0, 1, 2, 1], np.int32))
step = 0
while step < steps or (last and not os.path.exists(last) and step < 4000):
    scale = Tensor(0.0 if step == bad else 1.0, ms.float32)
    loss, gradients = gradient_of(ops.div(x, scale), y)
    optimizer(gradients)
    digest = hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest()
    print("STEP", step, float(loss.asnumpy()).hex(), digest, flush=True)
    step += 1
    if last:
        time.sleep(0.05)
    if step == steps:
        print("LOSS", float(loss.asnumpy()).hex(), flush=True)
