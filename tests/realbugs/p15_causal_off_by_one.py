# SPDX-License-Identifier: Apache-2.0
"""Causal mask off by one: a token sees the next one. 1 process. Must: triu/the mask, or attention of layer 0."""
from common import *
torch.manual_seed(SEED)
net = Lm()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step)
    mask = torch.full((T, T), float("-inf")).triu(2 if BUG else 1)
    loss = ce(net(x, mask), y)
    opt.zero_grad(); loss.backward(); opt.step()
done(loss.item())
