# SPDX-License-Identifier: Apache-2.0
"""Megatron #7452 f11: a replicated weight used by each rank's own features, its gradient never summed. TP 2. Must: mlp.out_norm.weight grad: a part; weights part one step later."""
from common import *
rank, world = setup()


class NormMlp(TpMlp):
    def __init__(self):
        super().__init__()
        self.out_norm = Rms(8)

    def forward(self, x):
        h = F.gelu(self.up(Copy.apply(x)))
        h = self.out_norm(h.unflatten(-1, (-1, 8))).flatten(-2)
        return Reduce.apply(self.down(h))


torch.manual_seed(SEED)
net = Lm(mlp=NormMlp)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step)
    loss = ce(net(x), y)
    opt.zero_grad(); loss.backward()
    if not BUG:
        for n, p in net.named_parameters():
            if "out_norm" in n:
                dist.all_reduce(p.grad)
    opt.step()
done(loss.item())
