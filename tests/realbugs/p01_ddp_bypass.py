# SPDX-License-Identifier: Apache-2.0
"""pytorch #104336: DDP is made, the raw module is called. Ranks 2. Must be named: no reduction took place, step 0 (ranks part at step 1)."""
from common import *
rank, world = setup()
torch.manual_seed(SEED)
net = Lm()
ddp = nn.parallel.DistributedDataParallel(net)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step, rank)
    loss = ce((net if BUG else ddp)(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
done(loss.item())
