# SPDX-License-Identifier: Apache-2.0
"""Main gradient accumulated in bf16 over 64 micro batches: small terms are swallowed. 1 process. Must: the add into the bf16 buffer (Tensor.add_), gradients."""
from common import *
torch.manual_seed(SEED)
net = Lm(layers=1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(STEPS // 3):
    main = {n: torch.zeros_like(p, dtype=torch.bfloat16 if BUG else torch.float32) for n, p in net.named_parameters()}
    for m in range(64):
        x, y = batch(64 * step + m, n=1)
        loss = ce(net(x), y) / 64
        net.zero_grad()
        loss.backward()
        for n, p in net.named_parameters():
            main[n].add_(p.grad)
    for n, p in net.named_parameters():
        p.grad = main[n].float()
    opt.step()
done(loss.item())
