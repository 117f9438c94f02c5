# SPDX-License-Identifier: Apache-2.0
"""Bugs of attention, adapters, estimators and warm-ups that people published, and sound programs that look like a fault: CASE names it, BUG=0 is the
twin. The first line of each names a source, or says what is sound."""
import copy

from common import *


def drawn(step):
    return torch.Generator().manual_seed(7919 * step + 13 * SEED + 5)


def points(step, n=32, d=8, classes=5):
    g = drawn(step)
    y = torch.randint(0, classes, (n,), generator=g)
    centre = torch.randn(classes, d, generator=torch.Generator().manual_seed(3))
    return centre[y] + 0.5 * torch.randn(n, d, generator=g), y


def fit(net, loss_of, opt=None, behind=lambda step: None, between=lambda step: None):
    opt = opt or torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2)
    for step in range(STEPS):
        opt.zero_grad()
        loss_of(step).backward()
        between(step)
        opt.step()
        behind(step)


def classified(net):
    return lambda step: F.cross_entropy(net(points(step)[0]), points(step)[1])


def language(net):
    return lambda step: ce(net(batch(step)[0]), batch(step)[1])


class Classifier(nn.Module):
    def __init__(self, d=8, hidden=32, classes=5):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.enc(x))


class MaskedBehind(Attention):
    """The causal mask multiplies the result of the softmax, which is divided by its new sum where is_divided."""
    is_behind, is_divided, drop = True, False, 0.0

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        p = torch.softmax(scores, -1) * (mask == 0) if self.is_behind else torch.softmax(scores + mask, -1)
        if self.is_divided:
            p = p / (p.sum(-1, keepdim=True) + 1e-9)
        p = F.dropout(p, self.drop)
        return self.o(torch.matmul(p, v).transpose(1, 2).reshape(b, t, d))


def mask_behind_softmax():
    """stackoverflow, forks of minGPT: the causal mask multiplies the probabilities, whose rows then sum to less than one."""
    MaskedBehind.is_behind = BUG
    net = Lm(layers=2, attn=MaskedBehind)
    fit(net, language(net))


def sound_masked_and_divided():
    """What is masked is divided by its new sum (AllenNLP's masked_softmax), BUG=1: with a dropout behind it."""
    MaskedBehind.is_divided, MaskedBehind.drop = True, 0.1 * BUG
    net = Lm(layers=2, attn=MaskedBehind)
    fit(net, language(net))


class Lora(nn.Module):
    def __init__(self, i, o, r=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / i ** 0.5, requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(r, i) / i ** 0.5), nn.Parameter(torch.zeros(o, r))

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.a), self.b)

    @torch.no_grad()
    def merge(self, sign=1):
        self.weight += sign * self.b @ self.a

    @torch.no_grad()
    def reset(self):
        nn.init.normal_(self.a, std=0.3)
        self.b.zero_()


def adapted(behind_merge):
    """Adapters that are merged each 6 steps."""
    net = nn.Sequential(Lora(8, 32), nn.ReLU(), Lora(32, 5))

    def behind(step):
        for layer in (net[0], net[2]) if step % 6 == 5 else ():
            layer.merge()
            behind_merge(layer)

    fit(net, classified(net), behind=behind)


def adapter_stays_merged():
    """microsoft/LoRA: eval() merges the adapters into the weights, and train() does not take them out again."""
    adapted(lambda layer: None if BUG else layer.merge(-1))


def sound_merges():
    """Adapters are merged and reset (ReLoRA), BUG=1: merged for an evaluation and taken out again."""
    adapted(lambda layer: layer.merge(-1) if BUG else layer.reset())


def dropout_of_the_logits():
    """discuss.pytorch.org: a dropout behind the last layer sets logits to zero."""
    drop = nn.Dropout(0.2)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5), drop) if BUG else nn.Sequential(nn.Linear(8, 32), nn.ReLU(), drop, nn.Linear(32, 5))
    fit(net, classified(net))


def warm_up_of_integers():
    """discuss.pytorch.org, LambdaLR with step // warmup: the rate is zero up to the end of the warm-up."""
    net = Classifier()
    opt = torch.optim.AdamW(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) // 12 if BUG else (s + 1) / 12))
    fit(net, classified(net), opt, lambda step: schedule.step())


def clamped_outside():
    """stable-baselines3 and forks of SAC: log_std is clamped to bounds that it does not begin in, and has no gradient."""
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    net.log_std = nn.Parameter(torch.zeros(2))

    def loss_of(step):
        x, _ = points(step)
        want = x[:, :2] * 0.7 + 0.2 * torch.randn(len(x), 2, generator=drawn(step + 999))
        return -torch.distributions.Normal(net(x), net.log_std.clamp(-5, -1 if BUG else 2).exp()).log_prob(want).mean()

    fit(net, loss_of)


def estimator_not_detached():
    """Forks of VQ-VAE: x + (q - x) without detach() gives the encoder no gradient."""
    net = nn.ModuleDict({"enc": nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), "dec": nn.Linear(4, 8)})
    net.codes = nn.Parameter(torch.randn(16, 4))

    def loss_of(step):
        x, _ = points(step)
        z = net["enc"](x)
        q = net.codes[torch.cdist(z.detach(), net.codes.detach()).argmin(-1)]
        out = net["dec"](z + (q - z) if BUG else z + (q - z).detach())
        return F.mse_loss(out, x) + F.mse_loss(q, z.detach()) + (0 if BUG else 0.25 * F.mse_loss(z, q.detach()))

    fit(net, loss_of)


def all_indices_of_each_sample():
    """stackoverflow: q[:, actions] in place of gather() are N values of each of N samples."""
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))

    def loss_of(step):
        x, action = points(step)
        q = net(x)
        return F.smooth_l1_loss(q[:, action] if BUG else q.gather(1, action[:, None])[:, 0], (x[:, 0] > 0).float() + 0.1 * action)

    fit(net, loss_of)


class Moco(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(128, 16), dim=1))

    def forward(self, a, b):
        with torch.no_grad():
            for p, m in zip(self.q.parameters(), self.k.parameters()):
                m.lerp_(p, 0.05)
            k = F.normalize(self.k(b), dim=1)
        q, pushed = F.normalize(self.q(a), dim=1), torch.cat([self.queue[len(k):], k])
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ (pushed if BUG else self.queue).T], 1) / 0.1
        self.queue = pushed
        return F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))


def partner_in_the_queue():
    """Forks of MoCo: the keys are in the queue before the loss, and the partner of a sample is another's, too."""
    net = Moco()

    def loss_of(step):
        x, g = points(step)[0], drawn(step + 1000)
        return net(x + 0.1 * torch.randn(x.shape, generator=g), x + 0.1 * torch.randn(x.shape, generator=g))

    fit(net, loss_of)


def frozen_by_zeros():
    """discuss.pytorch.org: the gradients of the encoder are set to zero to freeze it, and decay shrinks it on."""
    net = Classifier()
    opt = torch.optim.AdamW(net.parameters(), 1e-2, weight_decay=0.1)
    net.enc.requires_grad_(BUG)

    def between(step):
        for p in net.enc.parameters() if BUG else ():
            p.grad.zero_()

    fit(net, classified(net), opt, between=between)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(0.9).add_(p.grad)
                u = (p.grad + 0.9 * m)
                u = u / (u.norm() + 1e-7)
                for _ in range(4):
                    a = u @ u.T
                    u = 1.5 * u - 0.5 * a @ u
                p.add_(u, alpha=-group["lr"])


def sound_critic():
    """A critic with a gradient penalty, whose last bias has a gradient of zero; BUG=1: three steps of it for one of the generator."""
    g = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
    d = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    net = nn.ModuleDict({"g": g, "d": d})
    og, od = torch.optim.Adam(net["g"].parameters(), 1e-3, betas=(0.0, 0.9)), torch.optim.Adam(net["d"].parameters(), 4e-3, betas=(0.0, 0.9))
    for step in range(STEPS):
        x, _ = points(step)
        for number in range(3 if BUG else 1):
            z = torch.randn(len(x), 4, generator=drawn(100 * step + number))
            fake = g(z).detach()
            mid = torch.lerp(fake, x, torch.rand(len(x), 1, generator=drawn(step))).requires_grad_()
            slope, = torch.autograd.grad(d(mid).sum(), mid, create_graph=True)
            od.zero_grad()
            (d(fake).mean() - d(x).mean() + 10 * (slope.norm(dim=1) - 1).pow(2).mean()).backward()
            od.step()
        og.zero_grad()
        (-d(g(z)).mean()).backward()
        og.step()


def sound_two_optimizers():
    """Momentum of orthogonal matrices for the hidden layers (Muon) beside AdamW for a tied embedding, BUG=1: not tied."""
    net = Lm(layers=2)
    hidden = [p for n, p in net.named_parameters() if p.dim() == 2 and "layers" in n]
    if not BUG:
        net.head.weight = net.embed.weight
        nn.init.normal_(net.embed.weight, std=0.02)
    opts = [Muon(hidden, 0.01), torch.optim.AdamW([p for p in net.parameters() if all(p is not q for q in hidden)], 3e-3)]
    for step in range(STEPS):
        net.zero_grad()
        language(net)(step).backward()
        for opt in opts:
            opt.step()


def sound_ratios():
    """PPO, whose loss has both signs; BUG=1: with warm restarts of the rate."""
    net = nn.ModuleDict({"body": nn.Sequential(nn.Linear(8, 32), nn.Tanh()), "pi": nn.Linear(32, 5), "v": nn.Linear(32, 1)})
    opt = torch.optim.Adam(net.parameters(), 3e-3, eps=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 8)
    for step in range(0, STEPS, 4):
        x, y = points(step, 64)

        def policy(at=slice(None)):
            h = net["body"](x[at])
            return torch.distributions.Categorical(logits=net["pi"](h)), net["v"](h)[:, 0]

        with torch.no_grad():
            of, value = policy()
            a = of.sample()
            old, gain = of.log_prob(a), (a == y).float()
            advantage = (gain - value - (gain - value).mean()) / ((gain - value).std() + 1e-8)
        for at in [*torch.randperm(64).chunk(2), *torch.randperm(64).chunk(2)]:
            of, value = policy(at)
            ratio = (of.log_prob(a[at]) - old[at]).exp()
            loss = -torch.min(ratio * advantage[at], ratio.clamp(0.8, 1.2) * advantage[at]).mean()
            opt.zero_grad()
            (loss + 0.5 * F.mse_loss(value, gain[at]) - 0.01 * of.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
            if BUG:
                schedule.step()


# Ranks, and a part of the first answer; "": both are sound.
CASES = {
    "mask_behind_softmax": (1, "masks_behind"), "adapter_stays_merged": (1, "frozen-moves"), "dropout_of_the_logits": (1, "loss-of-probabilities"),
    "warm_up_of_integers": (1, "learning-rate-zero"), "clamped_outside": (1, "log_std"), "estimator_not_detached": (1, "Parameter.enc."),
    "all_indices_of_each_sample": (1, "loss-broadcast"), "partner_in_the_queue": (1, "pair-targets"), "frozen_by_zeros": (1, "gradient-lost"),
    "sound_masked_and_divided": (1, ""), "sound_merges": (1, ""), "sound_critic": (1, ""), "sound_two_optimizers": (1, ""), "sound_ratios": (1, ""),
}

if __name__ == "__main__":
    run_case(globals())
