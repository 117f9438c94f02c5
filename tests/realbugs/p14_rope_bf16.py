# SPDX-License-Identifier: Apache-2.0
"""transformers #29285: positions in bf16, those beyond 256 merge. 1 process, 400 tokens. Must: rope's cast/cos in layer 0."""
import common
from common import *


def rope_low(x, pos):
    d = x.shape[-1]
    inv = 1.0 / (10000 ** (torch.arange(0, d, 2) / d))
    p = pos.to(torch.bfloat16).float() if BUG else pos.float()
    angle = p[:, None] * inv
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


common.rope = rope_low
torch.manual_seed(SEED)
net = Lm(layers=2)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS // 2):
    x, y = batch(step, n=1, t=400)
    loss = ce(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
done(loss.item())
