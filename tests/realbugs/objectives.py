# SPDX-License-Identifier: Apache-2.0
"""Mistakes in objectives, random numbers and optimizers that people publish in trackers and forums, beside the sound loop: CASE names it,
BUG=0 is the twin. Diffusion, contrastive losses, teachers, adapters, segmentation; loops of other kinds are in mistakes.py."""
import copy

from common import *
from mistakes import ActorCritic, Cnn, classify, generator, images


def fit(net, loss_of, opt=None, behind=lambda: None):
    """loss_of(step) is the loss; behind() is called after each step of the optimizer."""
    opt = opt or torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)
    for step in range(STEPS):
        loss = loss_of(step)
        opt.zero_grad()
        loss.backward()
        opt.step()
        behind()


def layers(*sizes):
    return nn.Sequential(*(part for one, other in zip(sizes, sizes[1:]) for part in (nn.Linear(one, other), nn.GELU())))[:-1]


def seeded_in_the_loop():
    """The seed is set in each step, and the dropouts drop the same units for ever."""
    net = Cnn(drop=0.3, norm=lambda n: nn.GroupNorm(2, n))

    def before(step):
        if BUG:
            torch.manual_seed(42)

    classify(net, torch.optim.Adam(net.parameters(), 1e-3), before=before)


def noise_of_the_first_step(sound=False):
    """The noise of a diffusion model is drawn once, before the loop."""
    net = layers(17, 64, 64, 16)
    keep = torch.linspace(0.99, 0.02, 100)
    kept = torch.randn(32, 16, generator=generator(77))

    def loss_of(step):
        g = generator(step)
        x = torch.tanh(torch.randn(32, 1, generator=g) + 0.3 * torch.randn(32, 16, generator=g))
        t = torch.randint(0, 100, (32,), generator=g)
        noise = kept if BUG and not sound else torch.randn(32, 16, generator=g)
        noisy = keep[t, None].sqrt() * x + (1 - keep[t, None]).sqrt() * noise
        out = net(torch.cat([noisy, t[:, None] / 100], 1))
        return F.mse_loss(out, x if BUG and sound else noise)

    fit(net, loss_of)


def sigmoid_before_cross_entropy():
    """The model ends with a sigmoid, and the loss is cross_entropy."""
    net = layers(D, 64, 10)
    fit(net, lambda step: F.cross_entropy(net(torch.randn(16, D, generator=generator(step))).sigmoid() if BUG else
                                          net(torch.randn(16, D, generator=generator(step))), images(step)[1]))


def two_towers(scale, target=None):
    """CLIP's loss: pictures and texts of one batch; scale(cosines) are the logits."""
    net = nn.ModuleDict({"picture": layers(D, 64, 32), "text": layers(20, 64, 32)})

    def loss_of(step):
        g = generator(step)
        x = torch.randn(16, D, generator=g)
        one = F.normalize(net["picture"](x), dim=-1)
        other = F.normalize(net["text"](x[:, :20] + 0.2 * torch.randn(16, 20, generator=g)), dim=-1)
        logits = scale(one @ other.T)
        y = torch.arange(16) if target is None else target
        return (F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y)) / 2

    fit(net, loss_of)


def temperature_multiplied():
    """Cosines are multiplied by the temperature instead of divided."""
    two_towers(lambda cosines: cosines * 0.07 if BUG else cosines / 0.07)


def temperature_missing():
    """Cosines are the logits."""
    two_towers(lambda cosines: cosines if BUG else cosines / 0.1)


def contrast_to_the_first():
    """The label of each pair is 0, not its number."""
    two_towers(lambda cosines: cosines / 0.07, torch.zeros(16, dtype=torch.long) if BUG else None)


def sample_beside_itself():
    """SimCLR's loss of both views of a batch: the diagonal, a sample with itself, is not masked."""
    net = layers(D, 64, 32)

    def loss_of(step):
        x = torch.randn(16, D, generator=generator(step))
        both = F.normalize(net(torch.cat([x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x)])), dim=-1)
        logits = both @ both.T / 0.2
        if not BUG:
            logits = logits.masked_fill(torch.eye(32).bool(), -math.inf)
        return F.cross_entropy(logits, (torch.arange(32) + 16) % 32)

    fit(net, loss_of)


def divergence_of_logits():
    """kl_div of the student's logits over a temperature, without log_softmax."""
    student, teacher = layers(D, 32, 10), layers(D, 64, 10).requires_grad_(False)

    def loss_of(step):
        x = torch.randn(16, D, generator=generator(step))
        out = student(x) / 2
        return 4 * F.kl_div(out if BUG else out.log_softmax(-1), (teacher(x) / 2).softmax(-1), reduction="batchmean")

    fit(student, loss_of)


def generator_detached():
    """What the generator makes is detached in its own loss, too."""
    made, judge = layers(8, 32, 16), layers(16, 32, 1)
    opt, other = (torch.optim.Adam(net.parameters(), 2e-4, betas=(0.5, 0.999)) for net in (made, judge))
    for step in range(STEPS):
        samples = made(torch.randn(32, 8))
        other.zero_grad()
        (F.softplus(-judge(torch.randn(32, 16, generator=generator(step)) + 1)).mean() + F.softplus(judge(samples.detach())).mean()).backward()
        other.step()
        opt.zero_grad()
        F.softplus(-judge(samples.detach() if BUG else samples)).mean().backward()
        opt.step()


def average_the_wrong_way():
    """The average of the weights takes 0.99 of the newest ones."""
    student = layers(D, 64, 64, 10)
    both = nn.ModuleDict({"student": student, "teacher": copy.deepcopy(student).requires_grad_(False)})

    def loss_of(step):
        x = torch.randn(16, D, generator=generator(step))
        out = both["student"](x + 0.1 * torch.randn(16, D))
        return F.cross_entropy(out, x[:, :10].argmax(-1)) + F.mse_loss(out.softmax(-1), both["teacher"](x).softmax(-1))

    def behind():
        with torch.no_grad():
            for old, new in zip(both["teacher"].parameters(), student.parameters()):
                old.mul_(0.01 if BUG else 0.99).add_(new, alpha=0.99 if BUG else 0.01)

    fit(both, loss_of, behind=behind)


def pixels_viewed_as_classes():
    """A segmentation's [batch, classes, height, width] is viewed as rows of classes."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 5, 1))

    def loss_of(step):
        x, _ = images(step)
        out = net(x)
        return F.cross_entropy((out if BUG else out.permute(0, 2, 3, 1)).reshape(-1, 5), (x[:, 0] * 2 + 2.5).clamp(0, 4).long().view(-1))

    fit(net, loss_of)


def several_classes():
    """Labels of several classes go into cross_entropy."""
    net = layers(D, 64, 8)

    def loss_of(step):
        x = torch.randn(16, D, generator=generator(step))
        y = (x[:, :8] > 0).float()
        return F.cross_entropy(net(x), y) if BUG else F.binary_cross_entropy_with_logits(net(x), y)

    fit(net, loss_of)


def padding_is_target():
    """Labels of several lengths keep the id of the padding, 0, instead of -100; the embedding knows nothing of it."""
    net = Lm()

    def loss_of(step):
        x, y = (one.clamp(min=1) for one in batch(step, n=8))
        length = torch.randint(4, T + 1, (8, 1), generator=generator(step))
        places = torch.arange(T)
        return ce(net(x.masked_fill(places >= length, 0)), y.masked_fill(places >= length - 1, 0 if BUG else -100))

    fit(net, loss_of)


def mask_of_ones():
    """The causal mask has ones and zeros, and is added to the scores."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place, self.head = nn.Embedding(V, D), nn.Embedding(T, D), nn.Linear(D, V)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 4, 64, 0.1, batch_first=True), 2, enable_nested_tensor=False)

        def forward(self, x):
            mask = torch.tril(torch.ones(T, T)) if BUG else causal(T)
            return self.head(self.encoder(self.embed(x) + self.place(torch.arange(T)), mask=mask))

    net = Net()
    fit(net, lambda step: ce(net(batch(step)[0]), batch(step)[1]))


def decoder_sees_all():
    """nn.Transformer without a tgt_mask."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target, self.head = nn.Embedding(V, D), nn.Embedding(V, D), nn.Linear(D, V)
            self.both = nn.Transformer(D, 4, 1, 1, 64, 0.1, batch_first=True)

        def forward(self, x, y):
            return self.head(self.both(self.source(x), self.target(y), tgt_mask=None if BUG else causal(y.shape[1])))

    net = Net()

    def loss_of(step):
        x = batch(step)[0]
        y = x.flip(1)
        return ce(net(x, y[:, :-1]), y[:, 1:])

    fit(net, loss_of)


def head_behind_optimizer():
    """The last layer is replaced after the optimizer was made."""
    net = Cnn()
    net.fc = nn.Linear(16, 100)
    if not BUG:
        net.fc = nn.Linear(16, 10)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    if BUG:
        net.fc = nn.Linear(16, 10)
    classify(net, opt)


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.a, self.b = base, nn.Linear(D, 4, bias=False), nn.Linear(4, D, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def adapters_behind_optimizer():
    """The optimizer is made before the adapters, of weights that are then frozen."""
    net = Lm()
    first = torch.optim.AdamW(net.parameters(), 1e-3)
    net.requires_grad_(False)
    for layer in net.layers:
        layer.attn.q, layer.attn.v = Adapter(layer.attn.q), Adapter(layer.attn.v)
    opt = first if BUG else torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)
    fit(net, lambda step: ce(net(batch(step)[0]), batch(step)[1]), opt)


def loss_made_anew():
    """torch.tensor(loss, requires_grad=True)"""
    net = Cnn()

    def loss_of(step):
        x, y = images(step)
        loss = F.cross_entropy(net(x), y)
        return torch.tensor(loss.item(), requires_grad=True) if BUG else loss

    fit(net, loss_of)


def teacher_in_training():
    """The teacher of a distillation keeps its dropouts."""
    def net_of(width):
        return nn.Sequential(nn.Linear(D, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 10))

    both = nn.ModuleDict({"student": net_of(32), "teacher": net_of(128).requires_grad_(False)})
    both["teacher"].train(BUG)

    def loss_of(step):
        x = torch.randn(16, D, generator=generator(step))
        with torch.no_grad():
            wanted = (both["teacher"](x) / 2).softmax(-1)
        return 4 * F.kl_div((both["student"](x) / 2).log_softmax(-1), wanted, reduction="batchmean")

    fit(both, loss_of)


def stepped_twice():
    """The optimizer steps in the trainer, and in the program."""
    net = Cnn()
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    classify(net, opt, after=lambda step: opt.step() if BUG else None)


def likelihood_minimised():
    """The minus of the log-likelihood is missing."""
    net = layers(D, 64, 10)

    def loss_of(step):
        x = torch.randn(16, D, generator=generator(step))
        likely = net(x).log_softmax(-1).gather(-1, x[:, :10].argmax(-1, keepdim=True)).mean()
        return likely if BUG else -likely

    fit(net, loss_of)


def never_synchronised():
    """no_sync() is around each micro batch, also around the last."""
    rank, _ = setup()
    torch.manual_seed(SEED)
    net = nn.parallel.DistributedDataParallel(Lm())
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        with net.no_sync():
            x, y = batch(2 * step, rank)
            (ce(net(x), y) / 2).backward()
        x, y = batch(2 * step + 1, rank)
        if BUG:
            with net.no_sync():
                (ce(net(x), y) / 2).backward()
        else:
            (ce(net(x), y) / 2).backward()
        opt.step()


def pooled_over_batch():
    """The weights of an attention pooling are a softmax over the batch."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.score, self.head = layers(12, 32, 32), nn.Linear(32, 1), nn.Linear(32, 5)

        def forward(self, x):
            hidden = self.body(x).relu()
            return self.head((self.score(hidden).softmax(0 if BUG else 1) * hidden).sum(1))

    net = Net()

    def loss_of(step):
        x = torch.randn(8, 20, 12, generator=generator(step))
        return F.cross_entropy(net(x), x[:, :, 0].sum(1).abs().long().clamp(max=4))

    fit(net, loss_of)


def places_along_batch():
    """The encoding of places of the tutorial, of which the first dimension is the sequence, in a model with batch_first."""
    class Places(nn.Module):
        def __init__(self):
            super().__init__()
            at, rate = torch.arange(100)[:, None], torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
            table = torch.stack([(at * rate).sin(), (at * rate).cos()], -1).flatten(1)
            self.register_buffer("table", table[:, None] if BUG else table[None])
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            return self.drop(x + (self.table[:x.size(0)] if BUG else self.table[:, :x.size(1)]))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.places, self.head = nn.Embedding(V, D), Places(), nn.Linear(D, V)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 4, 64, 0.1, batch_first=True), 2, enable_nested_tensor=False)

        def forward(self, x):
            return self.head(self.encoder(self.places(self.embed(x)), mask=causal(x.shape[1])))

    net = Net()

    def loss_of(step):
        x, y = (one % 11 for one in batch(step, n=6, t=24))
        return ce(net(x), y)

    fit(net, loss_of)


def documents_see_each_other():
    """Two documents are packed into a row, with positions of their own and no mask between them."""
    net = Lm()
    places = torch.cat([torch.arange(5), torch.arange(T - 5)])
    document = torch.arange(T) >= 5
    mask = causal(T) if BUG else causal(T).masked_fill(document[:, None] != document, -math.inf)

    def loss_of(step):
        x, y = batch(step)
        return ce(net(x, mask, places), y.index_fill(1, torch.tensor(4), -100))

    fit(net, loss_of)


def divergence_maximised():
    """The sign of the divergence of a VAE is wrong."""
    net = nn.ModuleDict({"encoder": layers(D, 64, 16), "decoder": layers(8, 64, D)})

    def loss_of(step):
        x = torch.rand(16, D, generator=generator(step))
        mean, log = net["encoder"](x).chunk(2, 1)
        out = net["decoder"](mean + torch.randn_like(mean) * (0.5 * log).exp())
        divergence = -0.5 * (1 + log - mean ** 2 - log.exp()).sum()
        return F.binary_cross_entropy_with_logits(out, x, reduction="sum") + (-divergence if BUG else divergence)

    fit(net, loss_of)


def clipped_each_micro_batch():
    """Gradients are clipped after each micro batch."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        for micro in range(4):
            x, y = batch(4 * step + micro)
            (ce(net(x), y) / 4).backward()
            if BUG or micro == 3:
                nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        opt.step()


def clipped_behind_the_step():
    """Gradients are clipped after the optimizer's step."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = batch(step)
        opt.zero_grad()
        ce(net(x), y).backward()
        if not BUG:
            nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        opt.step()
        if BUG:
            nn.utils.clip_grad_norm_(net.parameters(), 0.3)


def optimizer_in_the_loop():
    """Adam is made in each step, and never has an average."""
    net = Cnn()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt = torch.optim.Adam(net.parameters(), 1e-3) if BUG else opt
        x, y = images(step)
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()


def sound_diffusion():
    """A model that predicts the noise (BUG=0) and one that predicts the data (BUG=1)."""
    noise_of_the_first_step(sound=True)


def sound_policies():
    """PPO with four epochs of a batch (BUG=0); GRPO, whose ratio is 1 and has a gradient (BUG=1)."""
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    for step in range(STEPS // 4):
        seen = torch.randn(32, 6, generator=generator(step))
        action = torch.randint(0, 3, (32,), generator=generator(1000 + step))
        reward = (action == seen[:, :3].argmax(1)).float() * 2 - 0.5
        with torch.no_grad():
            choice, value = net(seen)
            old, advantage = choice.log_prob(action), reward - value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(4):
            choice, value = net(seen)
            now = choice.log_prob(action)
            ratio = (now - (now.detach() if BUG else old)).exp()
            loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean() - 0.01 * choice.entropy().mean()
            loss = loss + 0.5 * F.mse_loss(value, reward)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()


def sound_curriculum():
    """Sequences that become longer (BUG=0), classes that come in order (BUG=1)."""
    if BUG:
        net = Cnn()

        def loss_of(step):
            x, y = images(step, 64)
            few = y < 2 + step // 4
            return F.cross_entropy(net(x[few]), y[few])

        return fit(net, loss_of)
    net = Lm()

    def loss_of_longer(step):
        x, y = batch(step, t=4 + 4 * (step // 6))
        return ce(net(x), y)

    return fit(net, loss_of_longer)


def sound_optimizers():
    """Two optimizers of one model: embeddings and the rest (BUG=0), generator and judge in one module with two rates (BUG=1)."""
    net = Lm()
    if BUG:
        net.judge = nn.Linear(D, 1)
    parts = [[p for n, p in net.named_parameters() if n.startswith(("embed", "judge")) == is_first] for is_first in (True, False)]
    opts = [torch.optim.SGD(parts[0], 0.1), torch.optim.AdamW(parts[1], 1e-3)]
    for step in range(STEPS):
        x, y = batch(step)
        for opt in opts:
            opt.zero_grad()
        loss = ce(net(x), y)
        if BUG:
            loss = loss + 0.1 * F.binary_cross_entropy_with_logits(net.judge(net.embed(x).mean(1)), torch.ones(4, 1))
        loss.backward()
        for number, opt in enumerate(opts):
            if number or step % 2 == 0:
                opt.step()


def sound_backbone():
    """A frozen backbone whose BatchNorms are in training (BUG=0), and a queue of keys as MoCo has it, whose label is 0 (BUG=1)."""
    net = Cnn()
    for name, p in net.named_parameters():
        p.requires_grad_(BUG or name.startswith("fc"))
    if not BUG:
        return classify(net, torch.optim.AdamW(net.fc.parameters(), 1e-3))
    keys = copy.deepcopy(net).requires_grad_(False)
    queue = F.normalize(torch.randn(10, 48), dim=0)

    def loss_of(step):
        nonlocal queue
        x, _ = images(step)
        one = F.normalize(net(x + 0.1 * torch.randn_like(x)), dim=-1)
        with torch.no_grad():
            for old, new in zip(keys.parameters(), net.parameters()):
                old.lerp_(new, 0.01)
            other = F.normalize(keys(x), dim=-1)
        logits = torch.cat([(one * other).sum(1, keepdim=True), one @ queue], 1) / 0.1
        queue = torch.cat([queue[:, 16:], other.T], 1)
        return F.cross_entropy(logits, torch.zeros(16, dtype=torch.long))

    return fit(net, loss_of)


def sound_teachers():
    """Targets of several classes that sum to 1, of a teacher with dropout that follows the student (BUG=0); a target network that is
    copied every fourth step (BUG=1)."""
    student = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    both = nn.ModuleDict({"student": student, "teacher": copy.deepcopy(student).requires_grad_(False)})
    step_now = 0

    def loss_of(step):
        nonlocal step_now
        step_now = step
        x = torch.randn(16, D, generator=generator(step))
        with torch.no_grad():
            wanted = both["teacher"](x)
        if BUG:
            return F.smooth_l1_loss(student(x)[:, 0], x[:, 0] + 0.9 * wanted.max(1).values)
        return F.cross_entropy(student(x), 0.5 * wanted.softmax(-1) + 0.5 * F.one_hot(x[:, :10].argmax(-1), 10))

    def behind():
        with torch.no_grad():
            for old, new in zip(both["teacher"].parameters(), student.parameters()):
                if not BUG:
                    old.lerp_(new, 0.05)
                elif step_now % 4 == 3:
                    old.copy_(new)

    fit(both, loss_of, behind=behind)


# Ranks, and a part of the first answer; "": no rule finds it, or both are sound.
CASES = {
    "seeded_in_the_loop": (1, "random-repeats"), "noise_of_the_first_step": (1, "target-constant"),
    "sigmoid_before_cross_entropy": (1, "logits-bounded"), "temperature_multiplied": (1, "logits-bounded"),
    "temperature_missing": (1, "logits-bounded"), "contrast_to_the_first": (1, "pair-targets"), "generator_detached": (1, "gradient-missing"),
    "sample_beside_itself": (1, "pair-targets"), "divergence_of_logits": (1, "loss-of-probabilities"),
    "average_the_wrong_way": (1, "average-inverted"), "pixels_viewed_as_classes": (1, "view-mixes"),
    "several_classes": (1, "loss-of-probabilities"), "padding_is_target": (1, "padding-in-loss"), "mask_of_ones": (1, "attention-sees-future"),
    "decoder_sees_all": (1, "attention-sees-future"), "head_behind_optimizer": (1, "update-zero"),
    "adapters_behind_optimizer": (1, "update-zero"), "loss_made_anew": (1, "gradient-zero"),
    "teacher_in_training": (1, "evaluation-in-training"), "stepped_twice": (1, "gradient-reused"), "likelihood_minimised": (1, "likelihood-minimised"),
    "never_synchronised": (2, "gradients-not-reduced"), "pooled_over_batch": (1, "softmax-dimension"),
    "places_along_batch": (1, "positions-along-batch"), "documents_see_each_other": (1, "documents-mix"),
    "divergence_maximised": (1, "term-inverted"), "clipped_each_micro_batch": (1, "clip-misplaced"), "clipped_behind_the_step": (1, "clip-misplaced"),
    "optimizer_in_the_loop": (1, "optimizer-anew"),
    "sound_diffusion": (1, ""), "sound_policies": (1, ""), "sound_curriculum": (1, ""), "sound_optimizers": (1, ""),
    "sound_backbone": (1, ""), "sound_teachers": (1, ""),
}

if __name__ == "__main__":
    run_case(globals())
