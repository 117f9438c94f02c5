# SPDX-License-Identifier: Apache-2.0
"""-inf mask, a row fully masked (left padding): softmax gives NaN. Padding comes at step 9. Must: Torch.softmax, layer 0."""
from common import *
torch.manual_seed(SEED)
net = Lm()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step)
    mask = causal(T).repeat(4, 1, 1, 1)
    if step >= 9:                                         # sample 1 is padded on the left by 3
        mask[1, :, :, :3] = float("-inf") if BUG else torch.finfo(torch.float32).min
        y[1, :3] = -100
    loss = ce(net(x, mask), y)
    opt.zero_grad(); loss.backward(); opt.step()
done(loss.item())
