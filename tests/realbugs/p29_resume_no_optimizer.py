# SPDX-License-Identifier: Apache-2.0
"""Restart at step 12: weights come back, the optimizer's state does not. 1 process. Must: exp_avg/exp_avg_sq gone at step 12."""
from common import *
torch.manual_seed(SEED)
net = Lm()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    if step == 12:
        state = opt.state_dict()
        opt = torch.optim.AdamW(net.parameters(), 1e-3)
        if not BUG:
            opt.load_state_dict(state)
    x, y = batch(step)
    loss = ce(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
done(loss.item())
