# SPDX-License-Identifier: Apache-2.0
"""accelerate #2665: the optimizer holds other tensors than the model (parameters replaced after it was made). Must: updates do not reach the model, step 0."""
import copy
from common import *
torch.manual_seed(SEED)
net = Lm()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
if BUG:                                                   # "move" the model: new parameters in the place of the old
    for m in net.modules():
        for n, p in list(m._parameters.items()):
            if p is not None:
                m._parameters[n] = nn.Parameter(p.detach().clone())
for step in range(STEPS):
    x, y = batch(step)
    loss = ce(net(x), y)
    net.zero_grad(); loss.backward(); opt.step()
done(loss.item())
