# SPDX-License-Identifier: Apache-2.0
"""Padding token: loss over it is not ignored, and the embedding's row of padding gets gradient (no padding_idx, no ignore_index). 1 process. Must: embed / cross_entropy."""
from common import *
torch.manual_seed(SEED)
net = Lm()
net.embed = nn.Embedding(V, D) if BUG else nn.Embedding(V, D, padding_idx=0)
with torch.no_grad():
    net.embed.weight[0] = 0
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step)
    for i in range(4):
        x[i, T - 2 * i:] = 0
        y[i, T - 2 * i:] = -100
    loss = ce(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
done(loss.item())
