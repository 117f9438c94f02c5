# SPDX-License-Identifier: Apache-2.0
"""Async all_reduce read before its wait. 2 ranks; rank 1 is late, so rank 0 reads its own part. Must: the all_reduce / what reads it (layers.1's reduction), rank 0."""
import time
from common import *
rank, world = setup()


class LateReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        if rank == 1:
            time.sleep(0.02)
        work = dist.all_reduce(y, async_op=True)
        if not BUG:
            work.wait()
        z = y * 1.0
        work.wait()
        return z

    @staticmethod
    def backward(ctx, g):
        return g


class LateMlp(TpMlp):
    def forward(self, x):
        return LateReduce.apply(self.down(F.gelu(self.up(Copy.apply(x)))))


torch.manual_seed(SEED)
net = Lm(mlp=TpMlp)
torch.manual_seed(SEED)
net.layers[1].mlp = LateMlp()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(STEPS):
    x, y = batch(step)
    loss = ce(net(x), y)
    opt.zero_grad(); loss.backward()
    opt.step()
done(loss.item())
