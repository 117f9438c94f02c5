# SPDX-License-Identifier: Apache-2.0
"""Megatron #844/#656: tied embedding on first and last of 2 stages x 2 replicas; replicas reduced into the main gradient before the sum over stages.
4 ranks. Must: embed.weight grad / parameter, stages part."""
from common import *
rank, world = setup()
torch.manual_seed(SEED)
stage, replica = rank // 2, rank % 2
full = Lm(layers=2)
groups = {("dp", s): dist.new_group([2 * s, 2 * s + 1]) for s in (0, 1)}
groups.update({("em", r): dist.new_group([r, 2 + r]) for r in (0, 1)})


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = full.embed
        self.layer = full.layers[stage]
        if stage:
            self.norm = full.norm

    def forward(self, x):
        m, pos = causal(T), torch.arange(T)
        if stage == 0:
            return self.layer(self.embed(x), m, pos)
        return F.linear(self.norm(self.layer(x, m, pos)), self.embed.weight)


net = Stage()
opt = torch.optim.SGD(net.parameters(), 0.05)
for step in range(STEPS):
    x, y = batch(step, replica)
    opt.zero_grad()
    if stage == 0:
        h = net(x)
        dist.send(h.detach(), 2 + replica)
        g = torch.empty_like(h); dist.recv(g, 2 + replica)
        torch.autograd.backward(h, g)
        loss = None
    else:
        h = torch.empty(4, T, D); dist.recv(h, replica)
        h.requires_grad_()
        loss = ce(net(h), y); loss.backward()
        dist.send(h.grad, replica)
    dp, em = groups["dp", stage], groups["em", replica]
    main = {n: p.grad.clone() for n, p in net.named_parameters()}
    if BUG:                                       # data parallel first, the embedding's sum comes to a buffer nobody reads
        for n, p in net.named_parameters():
            dist.all_reduce(main[n], group=dp); main[n] /= 2
        dist.all_reduce(net.embed.weight.grad, group=em)
    else:
        dist.all_reduce(main["embed.weight"], group=em)
        for n, p in net.named_parameters():
            dist.all_reduce(main[n], group=dp); main[n] /= 2
    for n, p in net.named_parameters():
        p.grad = main[n]
    opt.step()
done(loss.item() if loss is not None else None)
