# SPDX-License-Identifier: Apache-2.0
"""Megatron #7452 f3, transformers #34191: per-token loss divided by the local token count, uneven counts. 4 ranks. Must: the division (loss), factor per rank."""
from common import *
rank, world = setup()
torch.manual_seed(SEED)
net = Lm()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step, rank)
    y[:, : 2 * rank + step % 3] = -100                    # prompts of uneven length
    total = ce(net(x), y, "sum")
    count = (y != -100).sum().float()
    if not BUG:
        dist.all_reduce(count); count = count / world
    loss = total / count
    opt.zero_grad(); loss.backward()
    average_gradients(net, world)
    opt.step()
done(loss.item())
