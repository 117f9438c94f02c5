# SPDX-License-Identifier: Apache-2.0
"""Bugs of optimizers, precision, hooks and averages that people published, beside the sound loop: CASE names it, BUG=0 is the twin. The first
line of each names a source."""
import contextlib
import copy

from common import *
from mistakes import Cnn, classify, generator, images


def clip_of_used_up_generator():
    """pytorch#148259, torchtitan#1258: the generator of parameters is used up before clip_grad_norm_."""
    net = Cnn()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(STEPS):
        x, y = images(step)
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        parameters = net.parameters() if BUG else list(net.parameters())
        sum(p.grad.isnan().sum() for p in parameters)
        nn.utils.clip_grad_norm_(parameters, 0.1)
        opt.step()


def hook_each_step():
    """discuss.pytorch.org: register_hook() in the loop scales the gradient once more in each step."""
    net = Cnn()

    def before(step):
        if step == 0 or BUG:
            net.fc.weight.register_hook(lambda g: g * 0.8)

    classify(net, torch.optim.Adam(net.parameters(), 1e-3), before)


def updates_rounded_away():
    """pytorch/ao#1124, apex#1728: weights of bfloat16 without a copy of 32 bits, whose updates are smaller than half of the last place."""
    net = Lm(layers=2)
    if BUG:
        net.bfloat16()
    opt = torch.optim.AdamW(net.parameters(), 2e-5, weight_decay=0)
    for step in range(STEPS):
        x, y = batch(step)
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=not BUG):
            logits = net(x, mask=causal(T).to(net.head.weight.dtype))
        ce(logits.float(), y).backward()
        opt.step()


def pixels_divided_twice():
    """discuss.pytorch.org: ToTensor() divides pixels by 255, and the loop does it once more."""
    net = Cnn()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = images(step)
        x = (x * 40 + 128).clamp(0, 255).round() / 255
        opt.zero_grad()
        F.cross_entropy(net(x / 255 if BUG else x), y).backward()
        opt.step()


def average_without_buffers():
    """ignite#2590, pytorch-image-models#245: a moving average follows the parameters and not the statistics of BatchNorm."""
    both = nn.ModuleDict({"net": Cnn()})
    both["average"] = copy.deepcopy(both["net"]).requires_grad_(False).eval()

    def after(step):
        with torch.no_grad():
            for a, p in zip(both["average"].parameters(), both["net"].parameters()):
                a.lerp_(p, 0.1)
            for a, b in zip(both["average"].buffers(), both["net"].buffers()):
                if not BUG:
                    a.copy_(b)
            if step % 8 == 7:
                both["average"](images(900 + step)[0])

    classify(both["net"], torch.optim.Adam(both["net"].parameters(), 1e-3), after=after)


def perturbation_not_restored():
    """Adversarial training of embeddings (FGM): the perturbation of the weight is not taken back."""
    net = Lm(layers=2)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = batch(step)
        opt.zero_grad()
        ce(net(x), y).backward()
        weight = net.embed.weight
        kept = weight.data.clone()
        weight.data.add_(0.3 * weight.grad / weight.grad.norm())
        ce(net(x), y).backward()
        if not BUG:
            weight.data.copy_(kept)
        opt.step()


def normalised_over_batch():
    """SoundCLR#4, gabeur/mmt#1: F.normalize(dim=0) divides by the norm over the samples."""
    net = nn.ModuleList([nn.Linear(12, 16), nn.Linear(20, 16)])
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    mix = torch.randn(8, 32, generator=generator(99999))
    for step in range(STEPS):
        seen = torch.randn(24, 8, generator=generator(step)) @ mix
        a, b = (F.normalize(tower(part), dim=0 if BUG else 1) for tower, part in zip(net, seen.split((12, 20), 1)))
        opt.zero_grad()
        F.cross_entropy(a @ b.t() / 0.1, torch.arange(24)).backward()
        opt.step()


def autocast_around_all():
    """Flow-Factory#186, pytorch#120376: one autocast around the loop keeps the casts of the first weights."""
    net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 5))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    # An outer context that is not enabled would keep the casts, too.
    with torch.autocast("cpu", torch.bfloat16) if BUG else contextlib.nullcontext():
        for step in range(STEPS):
            x = torch.randn(16, 12, generator=generator(step))
            opt.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(net(x).float(), x[:, :5].argmax(1))
            loss.backward()
            opt.step()


def entropy_minimised():
    """A policy gradient whose entropy is added to the loss and not taken from it."""
    policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
    opt = torch.optim.Adam(policy.parameters(), 3e-3)
    for step in range(STEPS):
        seen = torch.randn(64, 6, generator=generator(step))
        of = torch.distributions.Categorical(logits=policy(seen))
        action = torch.randint(0, 4, (64,), generator=generator(1000 + step))
        reward = (action == seen[:, :4].argmax(1)).float() - 0.25
        loss = -(of.log_prob(action) * reward).mean() + (0.1 if BUG else -0.1) * of.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def part_not_broadcast():
    """ZeRO by hand: each rank's optimizer has a part of the parameters, and one part is not sent to the others."""
    rank, world = setup()
    net = Lm(layers=2)
    parameters = list(net.parameters())
    opt = torch.optim.AdamW(parameters[rank::world], 1e-3)
    for step in range(STEPS):
        x, y = batch(step, rank)
        net.zero_grad()
        ce(net(x), y).backward()
        average_gradients(net, world)
        opt.step()
        for number, p in enumerate(parameters):
            if not BUG or p is not net.head.weight:
                dist.broadcast(p.data, number % world)


def penalty_without_graph():
    """AiDotNet#1844: autograd.grad() without create_graph=True, and the penalty of the gradient trains nothing."""
    judge = nn.Sequential(nn.Linear(6, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    opt = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.9))
    for step in range(STEPS):
        g = generator(step)
        real, fake = torch.randn(16, 6, generator=g) + 1, torch.randn(16, 6, generator=g)
        mixed = (real + torch.rand(16, 1, generator=g) * (fake - real)).requires_grad_()
        slope = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=not BUG)[0]
        loss = judge(fake).mean() - judge(real).mean() + 10 * (slope.norm(2, 1) - 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def norm_over_sequence():
    """discuss.pytorch.org: a norm by hand whose mean is over the tokens (dim=1) and not over the features."""
    class Norm(Rms):
        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(1 if BUG else -1, keepdim=True) + self.eps) * self.weight

    net = Lm(layers=2, norm=Norm)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = batch(step)
        opt.zero_grad()
        ce(net(x), y).backward()
        opt.step()


def sound_phases():
    """A new optimizer of other parameters: the head alone behind all (BUG=0), all behind the head alone (BUG=1)."""
    net = Cnn()

    def phase(number, head_alone):
        for name, p in net.named_parameters():
            p.requires_grad_(not head_alone or name.startswith("fc"))
        opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-3)
        for step in range(STEPS):
            x, y = images(1000 * number + step)
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()

    phase(0, BUG)
    phase(1, not BUG)


def sound_signs():
    """The divergence of a student from its teacher, whose target has the graph (BUG=0); a policy of the least entropy without a reward, and a
    normal distribution's likelihood (BUG=1)."""
    teacher, net = Cnn(norm=lambda n: nn.GroupNorm(2, n)).requires_grad_(False), Cnn(norm=lambda n: nn.GroupNorm(2, n))
    spread = nn.Linear(10, 10)
    opt = torch.optim.Adam([*net.parameters(), *spread.parameters()], 1e-3)
    for step in range(STEPS):
        x, y = images(step)
        out = net(x)
        if BUG:
            log = spread(out)
            loss = F.cross_entropy(out, y) + 0.1 * torch.distributions.Categorical(logits=out).entropy().mean()
            loss = loss + 0.5 * (log + (F.one_hot(y, 10) - out.detach()) ** 2 / log.exp()).mean()
        else:
            loss = F.kl_div(teacher(x).log_softmax(1), spread(out).softmax(1), reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()


def sound_sharpness():
    """The gradient at a perturbed place, for the weights before it (SAM, BUG=0); images that are perturbed (BUG=1)."""
    net = Cnn(norm=lambda n: nn.GroupNorm(2, n))
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for step in range(STEPS):
        x, y = images(step, 64)
        opt.zero_grad()
        if BUG:
            x.requires_grad_()
            F.cross_entropy(net(x), y).backward()
            F.cross_entropy(net((x + 0.1 * x.grad.sign()).detach()), y).backward()
        else:
            F.cross_entropy(net(x), y).backward()
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            kept = [p.detach().clone() for p in net.parameters()]
            with torch.no_grad():
                for p in net.parameters():
                    p.add_(0.05 * p.grad / norm)
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            with torch.no_grad():
                for p, old in zip(net.parameters(), kept):
                    p.copy_(old)
        opt.step()


# Ranks, and a part of the first answer; "": both are sound, or no rule finds it.
CASES = {
    "clip_of_used_up_generator": (1, "clip-misplaced"), "hook_each_step": (1, "hooks-grow"), "updates_rounded_away": (1, "updates-rounded"),
    "pixels_divided_twice": (1, "input-scale"), "average_without_buffers": (1, "statistics-left"),
    "perturbation_not_restored": (1, "perturbation-kept"), "normalised_over_batch": (1, "pair-targets"), "autocast_around_all": (1, "cast-stale"),
    "entropy_minimised": (1, "term-inverted"), "part_not_broadcast": (2, "part-not-sent"), "penalty_without_graph": (1, ""),
    "norm_over_sequence": (1, "attention-sees-future"),
    "sound_phases": (1, ""), "sound_signs": (1, ""), "sound_sharpness": (1, ""),
}

if __name__ == "__main__":
    run_case(globals())
