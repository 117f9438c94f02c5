# SPDX-License-Identifier: Apache-2.0
"""Labels shifted twice (the collator and the model). 1 process. Must: the loss's target (cross_entropy input)."""
from common import *
torch.manual_seed(SEED)
net = Lm()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step)
    logits = net(x)
    loss = ce(logits[:, :-1], y[:, 1:]) if BUG else ce(logits, y)
    opt.zero_grad(); loss.backward(); opt.step()
done(loss.item())
