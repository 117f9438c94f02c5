# SPDX-License-Identifier: Apache-2.0
"""Megatron #7452 f10: in-place all_reduce of token counts, then read as the local count: the auxiliary term doubled. 2 ranks. Must: all_reduce / the product behind it; router gradient x 2."""
from common import *
rank, world = setup()


class Moe(nn.Module):
    aux = 0.0

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, 4, bias=False)
        self.up, self.down = nn.Linear(D, 64, bias=False), nn.Linear(64, D, bias=False)

    def forward(self, x):
        p = torch.softmax(self.router(x), -1)
        w, i = p.max(-1)
        local = F.one_hot(i, 4).float().sum((0, 1))
        if BUG:
            total = local
            dist.all_reduce(total)
        else:
            total = local.clone()
            dist.all_reduce(total)
        share = total / total.sum()
        Moe.aux = Moe.aux + 0.1 * 4 * (p.mean((0, 1)) * share * local.sum() / (x.shape[0] * x.shape[1])).sum()
        return self.down(F.gelu(self.up(x))) * w[..., None]


torch.manual_seed(SEED)
net = Lm(layers=2, mlp=Moe)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step, rank)
    Moe.aux = 0.0
    loss = ce(net(x), y) + Moe.aux
    opt.zero_grad(); loss.backward()
    average_gradients(net, world)
    opt.step()
done(loss.item())
