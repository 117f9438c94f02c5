# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed PR 1801: list of gradients for clipping leaves replicated norms out on rank 1. TP 2. Must: norm weights (grad/Update), ranks 0, 1."""
from common import *
rank, world = setup()
torch.manual_seed(SEED)
net = Lm(mlp=TpMlp)
opt = torch.optim.SGD(net.parameters(), 0.05)
for step in range(STEPS):
    x, y = batch(step)
    loss = ce(net(x), y)
    opt.zero_grad(); loss.backward()
    mine = [(n, p) for n, p in net.named_parameters()]
    square = sum((p.grad ** 2).sum() for n, p in mine if sharded(n) or rank == 0)
    dist.all_reduce(square)
    coef = min(1.0, 1.0 / (square.sqrt().item() + 1e-6))
    for n, p in mine:
        if BUG and rank == 1 and "norm" in n:
            continue
        p.grad *= coef
    opt.step()
done(loss.item())
