# SPDX-License-Identifier: Apache-2.0
"""Megatron #1446: sequence split over 2 ranks, gradients are parts; all summed but those of the final norm. Must: final `norm.weight` grad, not alike."""
from common import *
rank, world = setup()
torch.manual_seed(SEED)
net = Lm()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step)
    half = T // world
    t = slice(rank * half, (rank + 1) * half)
    keep = torch.full_like(y, -100)
    keep[:, t] = y[:, t]
    loss = ce(net(x), keep, "sum") / y.numel()
    opt.zero_grad(); loss.backward()
    for n, p in net.named_parameters():
        if BUG and n == "norm.weight":
            continue
        dist.all_reduce(p.grad)
    opt.step()
done(loss.item())
