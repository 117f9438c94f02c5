# SPDX-License-Identifier: Apache-2.0
"""transformers #34191 / #37197: gradient accumulation takes the mean of means (num_items_in_batch not used). 1 process. Must: loss reduction (cross_entropy/division)."""
from common import *
torch.manual_seed(SEED)
net = Lm()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    micro = []
    for m in range(4):
        x, y = batch(4 * step + m)
        y[:, : 3 * m] = -100
        micro.append((x, y))
    items = sum((y != -100).sum() for _, y in micro)
    opt.zero_grad()
    for x, y in micro:
        loss = ce(net(x), y) / 4 if BUG else ce(net(x), y, "sum") / items
        loss.backward()
    opt.step()
done(loss.item())
