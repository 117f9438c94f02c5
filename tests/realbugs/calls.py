# SPDX-License-Identifier: Apache-2.0
"""Bugs that people published of recomputed blocks, evaluations, padding, and of what no rank or optimizer has: CASE names it, BUG=0 is the twin.
Also sound programs of unusual kinds. The first line of each names a source, or says what is sound."""
import copy

from common import *
from estimators import Classifier, fit, points
from parallel import begin
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint


class Recomputed(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, d)) for _ in range(2))
        self.head = nn.Linear(d, 5)

    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False, preserve_rng_state=not BUG)
        return self.head(x)


def recomputed_without_random_state():
    """Forum of PyTorch, Megatron-LM: the random state is not restored for the recomputation, which drops other elements."""
    net = Recomputed()
    fit(net, lambda step: F.cross_entropy(net(points(step)[0]), points(step)[1]))


def images(step, n=16):
    g = torch.Generator().manual_seed(977 * step + SEED)
    y = torch.randint(0, 4, (n,), generator=g)
    base = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(9))
    return ((base[y] + 0.8 * torch.randn(n, 3, 8, 8, generator=g)) * 40 + 128).clamp(0, 255) / 255, y


def evaluation_not_normalised():
    """mmsegmentation, timm: the pipeline of the evaluation lacks the normalization."""
    net = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 4))

    def evaluate(step):
        if step % 5 == 4:
            net.eval()
            with torch.no_grad():
                for place in (1000, 1001):
                    x, y = images(place)
                    F.cross_entropy(net(x if BUG else (x - 0.5) / 0.16), y)
            net.train()

    fit(net, lambda step: F.cross_entropy(net((images(step)[0] - 0.5) / 0.16), images(step)[1]), behind=evaluate)


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 6)), nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 8))
        self.codebook = nn.Embedding(12, 6)

    def forward(self, x):
        z = self.encoder(x)
        q = self.codebook(torch.cdist(z, self.codebook.weight).argmin(1))
        book = F.mse_loss(q.detach(), z) if BUG else F.mse_loss(q, z.detach())
        return F.mse_loss(self.decoder(z + (q - z).detach()), x) + book + 0.25 * F.mse_loss(z, q.detach())


def codebook_without_loss():
    """MishaLaskin/vqvae#20: detach() of the codebook's loss is on the wrong side."""
    net = Codes()
    fit(net, lambda step: net(points(step)[0]))


def inner_loop_detached():
    """learn2learn, higher: the weights of the inner loop are detached, and the outer loss does not reach those that it began with."""
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 5))

    def loss_of(step):
        (x, y), (xq, yq), fast = points(step), points(step + 500), dict(net.named_parameters())
        for _ in range(2):
            loss = F.cross_entropy(torch.func.functional_call(net, fast, (x,)), y)
            gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=not BUG)
            fast = {name: weight - 0.1 * g for (name, weight), g in zip(fast.items(), gradients)}
            if BUG:
                fast = {name: weight.detach().requires_grad_() for name, weight in fast.items()}
        return F.cross_entropy(torch.func.functional_call(net, fast, (xq,)), yq)

    fit(net, loss_of)


class Cosines(nn.Module):
    """The classes of a loss of cosines (ArcFace)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(5, 12))

    def forward(self, x, y):
        return F.cross_entropy(10 * (F.normalize(x) @ F.normalize(self.weight).t() - 0.1 * F.one_hot(y, 5)), y)


def classes_of_a_loss():
    """pytorch-metric-learning: the loss has weights, which the optimizer does not get. Its twin clips the model alone."""
    net, loss = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 12)), Cosines()
    opt = torch.optim.Adam([*net.parameters(), *([] if BUG else loss.parameters())], 2e-3)
    fit(net, lambda step: loss(net(points(step)[0]), points(step)[1]), opt, between=lambda step: nn.utils.clip_grad_norm_(net.parameters(), 0.5))


class Reader(nn.Module):
    def __init__(self, d=16, heads=2):
        super().__init__()
        self.tok, self.pos, self.qkv, self.out, self.head = nn.Embedding(40, d), nn.Embedding(12, d), nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4)
        self.heads = heads

    def forward(self, x, keep, is_added, is_mean):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        q, k, v = (z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in self.qkv(h).chunk(3, -1))
        mask = keep[:, None, None]
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask.float() if is_added else mask).transpose(1, 2).flatten(2))
        return self.head(h.mean(1) if is_mean else (h * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))


def texts(step, n=24, t=12):
    g = torch.Generator().manual_seed(31 * step + SEED)
    x, length = torch.randint(1, 40, (n, t), generator=g), torch.randint(4, t + 1, (n,), generator=g)
    keep = torch.arange(t) < length[:, None]
    return torch.where(keep, x, 0), keep, x[:, 0] % 4


def read(is_added, is_mean):
    net = Reader()

    def loss_of(step):
        x, keep, y = texts(step)
        return F.cross_entropy(net(x, keep, is_added, is_mean), y)

    fit(net, loss_of)


def mask_added_as_numbers():
    """Forum of PyTorch: a mask of 0.0 and 1.0 is added to the scores of scaled_dot_product_attention()."""
    read(BUG, False)


def padding_in_the_mean():
    """sentence-transformers: mean pooling includes the padding."""
    read(False, BUG)


def cosines_over_places():
    """Forum of PyTorch: cosine_similarity() of [batch, places, features] without dim=-1 compares along the places."""
    net, turn = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)), torch.randn(8, 8, generator=torch.Generator().manual_seed(4))

    def loss_of(step):
        x = torch.randn(16, 6, 8, generator=torch.Generator().manual_seed(100 * step + SEED))
        return (1 - F.cosine_similarity(net(x), torch.tanh(x @ turn), **({} if BUG else {"dim": -1}))).mean()

    fit(net, loss_of)


def on_ranks(net, loss_of):
    rank, world = begin()
    fit(net, lambda step: loss_of(*points(2 * step + rank)), between=lambda step: average_gradients(net, world))


class Observations(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.net = Classifier()

    def forward(self, x):
        mean = x.mean(0)
        if not BUG:
            dist.all_reduce(mean)
            mean = mean / dist.get_world_size()
        self.mean.lerp_(mean.detach(), 0.1)
        return self.net(x - self.mean)


def statistics_of_each_rank():
    """rsl_rl: the running statistics of observations are those of each rank."""
    net = Observations()
    on_ranks(net, lambda x, y: F.cross_entropy(net(x), y))


def labels_of_the_first_rank():
    """open_clip: the labels of a loss over the features of all ranks begin at 0 on each rank."""
    rank, world = begin()
    net = nn.ModuleDict({"image": nn.Linear(8, 16), "text": nn.Linear(6, 16)})
    turn = torch.randn(8, 6, generator=torch.Generator().manual_seed(4))

    def gathered(x):
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x.detach())
        parts[rank] = x
        return torch.cat(parts)

    def loss_of(step):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(100 * step + rank + SEED))
        a, b = F.normalize(net["image"](x), dim=-1), F.normalize(net["text"](x @ turn), dim=-1)
        y = torch.arange(16) + (0 if BUG else 16 * rank)
        return (F.cross_entropy(8 * a @ gathered(b).t(), y) + F.cross_entropy(8 * b @ gathered(a).t(), y)) / 2

    fit(net, loss_of, between=lambda step: average_gradients(net, world))


def sound_momentum_queue():
    """A queue of keys of an encoder that follows (MoCo), BUG=1: faster."""
    query = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 12))
    key, queue = copy.deepcopy(query).requires_grad_(False), F.normalize(torch.randn(96, 12), dim=1)

    def loss_of(step):
        nonlocal queue
        x = points(step)[0]
        with torch.no_grad():
            for a, b in zip(key.parameters(), query.parameters()):
                a.lerp_(b, 0.1 if BUG else 0.01)
            k = F.normalize(key(x + 0.2 * torch.randn_like(x)), dim=1)
        q = F.normalize(query(x), dim=1)
        loss = F.cross_entropy(torch.cat([(q * k).sum(1, keepdim=True), q @ queue.t()], 1) / 0.2, torch.zeros(len(x), dtype=torch.long))
        queue = torch.cat([queue[32:], k])
        return loss

    fit(query, loss_of, torch.optim.SGD(query.parameters(), 0.1, momentum=0.9))


def sound_physics():
    """A differential equation by double backward; BUG=1: with L-BFGS, whose closure calls backward several times."""
    net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    x = torch.linspace(0, 3, 48)[:, None]

    def loss_of(step):
        t = x.clone().requires_grad_()
        u = net(t)
        du = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
        ddu = torch.autograd.grad(du, t, torch.ones_like(du), create_graph=True)[0]
        return (ddu + u).pow(2).mean() + 5 * (net(x[:1]) - 1).pow(2).mean()

    if not BUG:
        return fit(net, loss_of)
    opt = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3)

    def closure():
        opt.zero_grad()
        loss = loss_of(0)
        loss.backward()
        return loss

    for _ in range(STEPS):
        opt.step(closure)


class Prompted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.prompt, self.label = base.requires_grad_(False), nn.Parameter(0.02 * torch.randn(4, D)), nn.Linear(D, 5)

    def forward(self, tokens):
        h = torch.cat([self.prompt.expand(len(tokens), -1, -1), self.base.embed(tokens)], 1)
        t = h.shape[1]
        for layer in self.base.layers:
            h = layer(h, causal(t), torch.arange(t))
        return self.label(self.base.norm(h)[:, -1])


def sound_prompts():
    """Prompt tuning of a frozen language model, BUG=1: that was trained before."""
    base = Lm(layers=2)
    if BUG:
        fit(base, lambda step: ce(base(batch(step)[0]), batch(step)[1]))
    net = Prompted(base)
    fit(net, lambda step: F.cross_entropy(net(batch(step)[0]), batch(step)[0][:, -1] % 5))


class Standardised(nn.Conv2d):
    def forward(self, x):
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, w / (w.std((1, 2, 3), keepdim=True) + 1e-5), self.bias)


def sound_mixup():
    """Mixup, label smoothing, warm restarts and an average of weights; BUG=1: with standardised weights."""
    conv = Standardised if BUG else nn.Conv2d
    net = nn.Sequential(conv(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 4))
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    schedule, mean = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 5, 2), AveragedModel(net)

    def loss_of(step):
        x, y = images(step)
        other, share = torch.randperm(len(x)), float(torch.distributions.Beta(0.4, 0.4).sample())
        made = net(share * x + (1 - share) * x[other])
        return share * F.cross_entropy(made, y, label_smoothing=0.1) + (1 - share) * F.cross_entropy(made, y[other], label_smoothing=0.1)

    def behind(step):
        schedule.step()
        if step > STEPS // 2:
            mean.update_parameters(net)

    fit(net, loss_of, opt, behind)
    update_bn([images(step)[0] for step in range(4)], mean)


# Ranks, and a part of the first answer; "": both are sound.
CASES = {
    "recomputed_without_random_state": (1, "recomputation-differs"), "evaluation_not_normalised": (1, "evaluation-input"),
    "codebook_without_loss": (1, "Parameter.codebook.weight"), "inner_loop_detached": (1, "update-zero"), "classes_of_a_loss": (1, "layers-untrained"),
    "mask_added_as_numbers": (1, "padding-attended"), "padding_in_the_mean": (1, "padding-pooled"), "statistics_of_each_rank": (2, "Buffer.mean"),
    "labels_of_the_first_rank": (2, "labels-of-one-rank"), "cosines_over_places": (1, "norm-over-places"),
    "sound_momentum_queue": (1, ""), "sound_physics": (1, ""), "sound_prompts": (1, ""), "sound_mixup": (1, ""),
}

if __name__ == "__main__":
    run_case(globals())
