# SPDX-License-Identifier: Apache-2.0
"""Expert load wrong: bias of the router is moved by each rank's own load, not the summed one (aux-loss-free balancing). 2 ranks. Must: layers.*.mlp.bias (buffer) parts over ranks; sum missing."""
from common import *
rank, world = setup()


class Moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, 8, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, 16, bias=False), nn.GELU(), nn.Linear(16, D, bias=False)) for _ in range(8))
        self.register_buffer("bias", torch.zeros(8))

    def forward(self, x):
        s = torch.sigmoid(self.router(x))
        i = torch.topk(s + self.bias, 2, -1).indices
        self.load = F.one_hot(i, 8).float().sum((0, 1, 2))
        w = torch.gather(s, -1, i)
        w = w / w.sum(-1, keepdim=True)
        return sum(f(x) * (w * (i == e)).sum(-1, keepdim=True) for e, f in enumerate(self.experts))


torch.manual_seed(SEED)
net = Lm(layers=2, mlp=Moe)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step, rank)
    loss = ce(net(x), y)
    opt.zero_grad(); loss.backward()
    average_gradients(net, world)
    opt.step()
    with torch.no_grad():
        for layer in net.layers:
            load = layer.mlp.load
            if not BUG:
                dist.all_reduce(load)
            layer.mlp.bias += 0.01 * torch.sign(load.mean() - load)
done(loss.item())
