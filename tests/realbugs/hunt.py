# SPDX-License-Identifier: Apache-2.0
"""8 gloo ranks, TP 2 x DP 4 (rank = 2 * dp + tp), 300 steps. FAULT=none | flip (step 137, rank 5: bit 20 of layers.1.mlp.up.weight[3, 7])
| grad (from step 100 on rank 5's gradient of layers.2.mlp.down.weight is 1.01 times too large, before the reduction)
| gradafter (the same behind the reduction)."""
import common
from common import *
FAULT = os.environ.get("FAULT", "none")
rank, world = setup()
tp, dp = rank % 2, rank // 2
tps = [dist.new_group([2 * i, 2 * i + 1]) for i in range(4)]
dps = [dist.new_group([i, 2 + i, 4 + i, 6 + i]) for i in range(2)]
TP, DP = tps[dp], dps[tp]


class TpMlp(nn.Module):
    def __init__(self, d=D, f=64):
        super().__init__()
        up, down = nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)
        self.up, self.down = nn.Linear(d, f // 2, bias=False), nn.Linear(f // 2, d, bias=False)
        with torch.no_grad():
            self.up.weight.copy_(up.weight.chunk(2, 0)[tp])
            self.down.weight.copy_(down.weight.chunk(2, 1)[tp])

    def forward(self, x):
        return Reduce.apply(self.down(F.gelu(self.up(Copy.apply(x, TP)))), TP)


torch.manual_seed(SEED)
net = Lm(mlp=TpMlp)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
params = [p for p in net.parameters()]
for step in range(int(os.environ.get("STEPS", "300"))):
    if FAULT == "flip" and step == 137 and rank == 5:
        with torch.no_grad():
            net.layers[1].mlp.up.weight.view(torch.int32)[3, 7] ^= 1 << 20
    x, y = batch(step, dp)
    loss = ce(net(x, torch.full((T, T), -1e9).triu(1)), y)
    opt.zero_grad(); loss.backward()
    if FAULT == "grad" and step >= 100 and rank == 5:
        net.layers[2].mlp.down.weight.grad *= 1.01
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat, group=DP)
    flat /= 4
    at = 0
    for p in params:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p)); at += p.numel()
    if FAULT == "gradafter" and step >= 100 and rank == 5:
        net.layers[2].mlp.down.weight.grad *= 1.01
    opt.step()
done(loss.item())
