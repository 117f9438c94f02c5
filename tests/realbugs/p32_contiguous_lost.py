# SPDX-License-Identifier: Apache-2.0
"""SkyRL PR #1886: `all_reduce(x.contiguous()); return x` with x transposed: the sum goes to a copy. TP 2. Must: the all_reduce's output is used by nobody; what follows is a part."""
from common import *
rank, world = setup()


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        if BUG:
            dist.all_reduce(g.contiguous())
            return g
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class T_Mlp(TpMlp):
    def forward(self, x):
        x = Sum.apply(x.transpose(0, 1)).transpose(0, 1)
        return Reduce.apply(self.down(F.gelu(self.up(x))))


torch.manual_seed(SEED)
net = Lm(mlp=T_Mlp)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step)
    loss = ce(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
done(loss.item())
