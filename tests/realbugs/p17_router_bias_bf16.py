# SPDX-License-Identifier: Apache-2.0
"""sglang #31213: router bias near 7 in bf16: values merge, other experts are chosen. 1 process. Must: the cast (Tensor.to/bfloat16) or top-k, layers.0.mlp."""
from common import *


class Moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, 16, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, 16, bias=False), nn.GELU(), nn.Linear(16, D, bias=False)) for _ in range(16))
        self.register_buffer("bias", 7 + 0.05 * torch.randn(16))

    def forward(self, x):
        s = torch.sigmoid(self.router(x))
        b = self.bias.to(torch.bfloat16) if BUG else self.bias
        i = torch.topk(s + b, 2, -1).indices
        w = torch.gather(s, -1, i)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, f in enumerate(self.experts):
            out = out + f(x) * (w * (i == e)).sum(-1, keepdim=True)
        return out


torch.manual_seed(SEED)
net = Lm(layers=2, mlp=Moe)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step)
    loss = ce(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
done(loss.item())
