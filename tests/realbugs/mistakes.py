# SPDX-License-Identifier: Apache-2.0
"""Mistakes of training loops that people publish in trackers and forums, beside the sound loop: CASE names it, BUG=0 is the twin. Image models,
games of two networks, policies; the mechanisms of language models are in mechanisms.py."""
import copy

from common import *


class Cnn(nn.Module):
    def __init__(self, classes=10, norm=nn.BatchNorm2d, drop=0.0):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm1, self.norm2 = norm(8), norm(16)
        self.drop, self.fc = nn.Dropout(drop), nn.Linear(16, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        return self.fc(self.drop(F.relu(self.norm2(self.conv2(x))).mean((2, 3))))


def generator(step):
    return torch.Generator().manual_seed(9173 * step + 7 * SEED + 1)


def images(step, n=16):
    g = generator(step)
    y = torch.randint(0, 10, (n,), generator=g)
    x = 0.7 * torch.randn(n, 3, 8, 8, generator=g)
    x[:, 0] += (y / 5 - 1)[:, None, None]
    x[:, 1] += (y % 3 - 1.0)[:, None, None]
    return x, y


def classify(net, opt, before=lambda step: None, after=lambda step: None):
    for step in range(STEPS):
        before(step)
        x, y = images(step)
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        after(step)


def loss_without_graph():
    """The forward runs under no_grad(), and requires_grad_() makes the error go away."""
    net = Cnn()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = images(step)
        opt.zero_grad()
        with torch.set_grad_enabled(not BUG):
            loss = F.cross_entropy(net(x), y)
        (loss.requires_grad_() if BUG else loss).backward()
        opt.step()


def reference_is_policy():
    """DPO whose reference is the policy itself and no copy: the loss stays log 2."""
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layer, self.head = nn.Embedding(40, D), nn.GRU(D, D, batch_first=True), nn.Linear(D, 40)

        def forward(self, tokens):
            logits = self.head(self.layer(self.embed(tokens[:, :-1]))[0])
            return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0].sum(1)

    policy = Policy()
    reference = policy if BUG else copy.deepcopy(policy).requires_grad_(False)
    opt = torch.optim.AdamW(policy.parameters(), 5e-4)
    for step in range(STEPS):
        good, bad = (torch.randint(low, low + 25, (8, 10), generator=generator(step)) for low in (0, 15))
        with torch.no_grad():
            margin = reference(good) - reference(bad)
        loss = -F.logsigmoid(0.1 * (policy(good) - policy(bad) - margin)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.policy, self.value = nn.Sequential(nn.Linear(6, 32), nn.Tanh()), nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, x):
        hidden = self.body(x)
        return torch.distributions.Categorical(logits=self.policy(hidden)), self.value(hidden).squeeze(-1)


def advantage_not_detached():
    """The advantage of an actor-critic has the graph of the value."""
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    for step in range(STEPS):
        seen = torch.randn(32, 6, generator=generator(step))
        choice, value = net(seen)
        action = torch.randint(0, 3, (32,), generator=generator(1000 + step))
        reward = (action == seen[:, :3].argmax(1)).float() * 2 - 0.5
        advantage = reward - (value if BUG else value.detach())
        loss = -(choice.log_prob(action) * advantage).mean() + 0.5 * F.mse_loss(value, reward) - 0.01 * choice.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def ctc_of_logits():
    """ctc_loss without log_softmax."""
    net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 9))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(STEPS):
        g = generator(step)
        out = net(torch.randn(20, 4, 12, generator=g))
        loss = F.ctc_loss(out if BUG else out.log_softmax(-1), torch.randint(1, 9, (4, 6), generator=g), torch.full((4,), 20), torch.full((4,), 6))
        opt.zero_grad()
        loss.backward()
        opt.step()


def validation_in_training():
    """model.eval() is not called before the validation: dropout is on, and BatchNorm learns from it."""
    net = Cnn(drop=0.3)

    def validate(step):
        if step % 6 == 5:
            net.train(BUG)
            with torch.no_grad():
                for number in range(3):
                    net(images(5000 + number)[0])
            net.train()

    classify(net, torch.optim.Adam(net.parameters(), 1e-3), after=validate)


def one_image_for_all():
    """A cache of the data set gives its first batch of images for all labels."""
    net, cache = Cnn(), {}
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = images(step)
        opt.zero_grad()
        F.cross_entropy(net(cache.setdefault("x", x) if BUG else x), y).backward()
        opt.step()


def unfrozen_without_group():
    """Layers are unfrozen after some steps, and the optimizer was made of the others."""
    net = Cnn()
    body = [p for n, p in net.named_parameters() if not n.startswith("fc")]
    for p in body:
        p.requires_grad_(False)
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)

    def unfreeze(step):
        if step == 8:
            for p in body:
                p.requires_grad_(True)
            if not BUG:
                opt.add_param_group({"params": body, "lr": 1e-4})

    classify(net, opt, before=unfreeze)


def frozen_goes_on():
    """A layer is frozen in the middle, and keeps a gradient of 0: averages and decay go on."""
    net = Cnn(norm=lambda n: nn.GroupNorm(2, n))
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        if step == 8:
            for p in net.conv1.parameters():
                p.requires_grad_(False)
                p.grad = p.grad if BUG else None
        x, y = images(step)
        opt.zero_grad(set_to_none=False)
        F.cross_entropy(net(x), y).backward()
        opt.step()


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = Cnn(16), nn.Linear(16, 10), nn.Linear(16, 4)

    def forward(self, x):
        hidden = F.relu(self.body(x))
        return self.first(hidden), self.second(hidden)


def heads(losses):
    """Two losses of one batch, each with a backward; losses(loss, scaler) is what goes backward of the second."""
    net = Heads()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        x, y = images(step)
        one, other = net(x)
        opt.zero_grad()
        scaler.scale(F.cross_entropy(one, y)).backward(retain_graph=True)
        losses(F.cross_entropy(other, y % 4), scaler).backward()
        scaler.step(opt)
        scaler.update()


def one_loss_not_scaled():
    """The second loss does not go through the GradScaler."""
    heads(lambda loss, scaler: loss if BUG else scaler.scale(loss))


def sound_heads():
    """Two losses with a backward of their own, of one weight (BUG=0) and of two (BUG=1)."""
    heads(lambda loss, scaler: scaler.scale(loss / 2 if BUG else loss))


def adversaries(zero, wasserstein=False):
    """A discriminator whose optimizer is made first, and which learns of data and of samples in a backward each; zero: whether its
    gradients are set to zero."""
    made = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh())
    judge = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    other, opt = (torch.optim.Adam(net.parameters(), 2e-4, betas=(0.5, 0.999)) for net in (judge, made))

    def of(out, is_data):
        if wasserstein:
            return -out.mean() if is_data else out.mean()
        return F.binary_cross_entropy_with_logits(out, torch.full_like(out, float(is_data)))

    for step in range(STEPS):
        if zero:
            other.zero_grad()
        of(judge(torch.tanh(torch.randn(32, 16, generator=generator(step)) + 0.5)), True).backward()
        samples = made(torch.randn(32, 8))
        of(judge(samples.detach()), False).backward()
        other.step()
        if wasserstein and step % 5 != 4:
            continue
        opt.zero_grad()
        of(judge(samples), True).backward()
        opt.step()


def discriminator_not_zeroed():
    """The discriminator's zero_grad() is missing: what the generator's backward left there counts, too."""
    adversaries(not BUG)


def sound_discriminators():
    """One with a backward for data and one for samples (BUG=0), a critic of which five steps make one of the generator (BUG=1)."""
    adversaries(True, wasserstein=BUG)


def sound_evaluations():
    """An evaluation in evaluation mode (BUG=0), a generator with dropout that is called without a graph in each step (BUG=1)."""
    if not BUG:
        return validation_in_training()
    made = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16))
    judge = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    opt, other = (torch.optim.Adam(net.parameters(), 1e-3) for net in (made, judge))
    for step in range(STEPS):
        with torch.no_grad():
            samples = made(torch.randn(16, 8))
        other.zero_grad()
        (F.softplus(-judge(torch.randn(16, 16, generator=generator(step)) + 1)).mean() + F.softplus(judge(samples)).mean()).backward()
        other.step()
        opt.zero_grad()
        F.softplus(-judge(made(torch.randn(16, 8)))).mean().backward()
        opt.step()
    return None


def sound_weighed():
    """A focal loss (BUG=0), a loss that is divided by what it is and one that a network weighs (BUG=1)."""
    net, judge = Cnn(), nn.Linear(192, 1)
    opt = torch.optim.Adam([*net.parameters(), *judge.parameters()], 1e-3)
    for step in range(STEPS):
        x, y = images(step)
        likely = net(x).log_softmax(-1).gather(-1, y[:, None])[:, 0]
        if BUG:
            doubt = judge(x.flatten(1))[:, 0]
            loss = ((-doubt).exp() * -likely).mean() + doubt.mean()
            loss = loss / loss.detach()
        else:
            loss = -((1 - likely.exp()) ** 2 * likely).mean() + 0 * judge(x.flatten(1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


# Ranks, and a part of the first answer; "": both are sound.
CASES = {
    "loss_without_graph": (1, "gradient-zero"), "reference_is_policy": (1, "loss-constant"), "advantage_not_detached": (1, "target-moves"),
    "ctc_of_logits": (1, "loss-of-probabilities"), "validation_in_training": (1, "evaluation-in-training"),
    "one_image_for_all": (1, "input-constant"), "unfrozen_without_group": (1, "update-zero"), "frozen_goes_on": (1, "frozen-moves"),
    "one_loss_not_scaled": (1, "micro-batch-weights"), "discriminator_not_zeroed": (1, "gradients-not-zeroed"),
    "sound_heads": (1, ""), "sound_discriminators": (1, ""), "sound_evaluations": (1, ""), "sound_weighed": (1, ""),
}

if __name__ == "__main__":
    run_case(globals())
