# SPDX-License-Identifier: Apache-2.0
"""Bugs of the benchmarks on faults of deep-learning programs (AUTOTRAINER, DeepLocalize, UMLAUT, Defects4ML), of forums and of Megatron-LM, and sound
programs that look like a fault: CASE names it, BUG=0 is the twin. The first line of each names a source, or says what is sound."""
import copy

from common import *
from torch.utils.data import DataLoader, Dataset, TensorDataset


def clusters(n=256, classes=5, d=8):
    g = torch.Generator().manual_seed(101 * SEED)
    y = torch.randint(0, classes, (n,), generator=g)
    centre = torch.randn(classes, d, generator=torch.Generator().manual_seed(3))
    return centre[y] + 0.7 * torch.randn(n, d, generator=g), y


def loader(*data, size=32, shuffle=True):
    return DataLoader(TensorDataset(*data), size, shuffle=shuffle, generator=torch.Generator().manual_seed(SEED))


def fit(net, train, loss_of=F.cross_entropy, opt=None, epochs=3, behind=lambda epoch: None):
    """An evaluation ends each epoch."""
    opt = opt or torch.optim.AdamW(net.parameters(), 3e-3)
    for epoch in range(epochs):
        net.train()
        for *x, y in train:
            opt.zero_grad()
            loss_of(net(*x), y).backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            valid = sum(loss_of(net(*x), y).item() for *x, y in train)
        behind(valid)


def classifier():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))


def norm_of_one_element():
    """discuss.pytorch.org "my network outputs the same for all inputs": GroupNorm with a group for each channel, of [batch, channels]."""
    fit(nn.Sequential(nn.Linear(8, 32), nn.GroupNorm(32 if BUG else 4, 32), nn.GELU(), nn.Linear(32, 5)), loader(*clusters()))


def vanishing_sigmoids():
    """AUTOTRAINER (ICSE 2021), vanishing gradient: ten layers of sigmoids."""
    act = nn.Sigmoid if BUG else nn.ReLU
    net = nn.Sequential(nn.Linear(8, 16), act(), *(m for _ in range(9) for m in (nn.Linear(16, 16), act())), nn.Linear(16, 5))
    for m in net:
        if isinstance(m, nn.Linear) and not BUG:
            nn.init.kaiming_normal_(m.weight)
    fit(net, loader(*clusters()), opt=torch.optim.SGD(net.parameters(), 0.05, 0.9))


class Images(Dataset):
    """Squares in one of four corners."""

    def __init__(self, n=96):
        g = torch.Generator().manual_seed(31 * SEED)
        self.labels = torch.randint(0, 4, (n,), generator=g)
        self.images = torch.randint(0, 80, (n, 1, 8, 8), generator=g).float()
        for image, label in zip(self.images, self.labels.tolist()):
            image[0, 4 * (label // 2):, 4 * (label % 2):][:4, :4] += 150

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        if BUG:
            image /= 255
            image -= 0.3
        return (image if BUG else image / 255 - 0.3), self.labels[i]


def samples_normalised_in_place():
    """discuss.pytorch.org: __getitem__ normalizes the stored image in place, once more in each epoch."""
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4))
    opt = torch.optim.AdamW(net.parameters(), 3e-3)
    train = DataLoader(Images(), 16, shuffle=True, generator=torch.Generator().manual_seed(SEED))
    for _ in range(4):
        for x, y in train:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()


def samples_sorted_by_class():
    """UMLAUT (CHI 2021), stackoverflow: samples are sorted by their class, and shuffle is False."""
    x, y = clusters()
    order = y.argsort() if BUG else torch.arange(len(y))
    fit(classifier(), loader(x[order], y[order], size=16, shuffle=not BUG))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, a, b):
        return self.body(a), self.body(b)


def signs(is_positive):
    return is_positive.float() if BUG else 2 * is_positive.float() - 1


def pairs_without_sign():
    """discuss.pytorch.org, CosineEmbeddingLoss: labels are 0 and 1 instead of -1 and 1."""
    x, y = clusters()
    fit(Towers(), loader(x[:128], x[128:], signs(y[:128] == y[128:])), lambda out, label: F.cosine_embedding_loss(*out, label, margin=0.1), epochs=6)


def ranks_without_sign():
    """stackoverflow, MarginRankingLoss: the better one is told by 0 and 1 instead of -1 and 1."""
    x, _ = clusters()
    a, b = x[:128], x[128:]
    score = nn.Linear(16, 1)

    class Scorer(Towers):
        def forward(self, a, b):
            return score(self.body(a)).squeeze(1), score(self.body(b)).squeeze(1)
    net = Scorer()
    net.score = score
    fit(net, loader(a, b, signs((a - b)[:, :3].sum(1) > 0)), lambda out, label: F.margin_ranking_loss(*out, label, margin=0.5), epochs=6)


def binary_labels_with_sign():
    """discuss.pytorch.org "BCEWithLogitsLoss is negative": labels are -1 and 1."""
    x, y = clusters(classes=2)
    y = 2.0 * y - 1 if BUG else y.float()
    fit(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)), loader(x, y[:, None]), F.binary_cross_entropy_with_logits)


def blank_is_a_letter():
    """deepspeech.pytorch: letters are numbered from 0, which is the blank of ctc_loss. Targets of the twin are padded with the blank."""
    class Recogniser(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.fc = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 7)

        def forward(self, x):
            return self.fc(self.gru(x)[0]).log_softmax(-1)
    g = torch.Generator().manual_seed(SEED)
    text = torch.randint(0, 6, (128, 4), generator=g)
    sound = torch.randn(6, 8, generator=g)[text].repeat_interleave(4, 1)
    text = text if BUG else text + 1
    length = torch.randint(2, 5, (128, 1), generator=g)
    text = text.masked_fill(torch.arange(4) >= length, 0)

    def loss_of(out, y):
        return F.ctc_loss(out.transpose(0, 1), y[:, :4], torch.full((len(y),), 16), y[:, 4], blank=0)
    fit(Recogniser(), loader(sound, torch.cat((text, length), 1)), loss_of)


def plateau_of_wrong_mode():
    """discuss.pytorch.org: ReduceLROnPlateau(mode="max") of a loss."""
    net = classifier()
    opt = torch.optim.SGD(net.parameters(), 0.05)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, mode="max" if BUG else "min", patience=0)
    fit(net, loader(*clusters(160)), opt=opt, epochs=8, behind=plateau.step)


def state_by_order():
    """pytorch#1489: load_state_dict of the optimizer goes by the order of the parameters, which is another after the resume."""
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))

    def optimizer(order):
        return torch.optim.AdamW([p for i in order for p in net[i].parameters()], 3e-3)
    opt, train = optimizer((0, 2, 4)), loader(*clusters(d=32))
    for _ in range(2):
        for x, y in train:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
        saved = copy.deepcopy(opt.state_dict())
        opt = optimizer((2, 0, 4) if BUG else (0, 2, 4))
        opt.load_state_dict(saved)


def sound_beyond_zero():
    """A loss that reaches 0: all is learned."""
    data = Images()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    fit(net, loader(data.images / 255, data.labels), opt=torch.optim.SGD(net.parameters(), 2.0 if BUG else 1.0, 0.9), epochs=12)


def sound_queries():
    """A decoder of learned queries whose first normalization takes zeros; the variant has a LayerScale near 0."""
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.place, self.norm = nn.Parameter(torch.randn(4, D)), nn.LayerNorm(D)
            self.attention, self.enc = nn.MultiheadAttention(D, H, batch_first=True), nn.Linear(2, D)
            self.scales = nn.ParameterList(nn.Parameter(torch.full((D,), 1e-6)) for _ in range(4))
            self.blocks, self.head = nn.ModuleList(Mlp() for _ in range(4)), nn.Linear(D, 5)

        def forward(self, x):
            q = self.norm(torch.zeros(len(x), 4, D)) + self.place
            keys = self.enc(x.view(len(x), 4, 2))
            out = self.attention(q, keys, keys)[0]
            for scale, block in zip(self.scales, self.blocks):
                out = out + (scale if BUG else 0.1) * block(out)
            return self.head(out.mean(1))
    fit(Decoder(), loader(*clusters()))


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(32, 5) for _ in range(3))

    def forward(self, x, tasks):
        return sum(self.heads[task](self.body(x) * (task + 1)) for task in tasks)


def replicas(net, loss_of, reduce):
    rank, world = setup()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        loss_of(step, rank).backward()
        for p in net.parameters():
            reduce(p, world)
        opt.step()


def gradients_of_other_heads():
    """Multi-task programs that average by hand: parameters without a gradient are left out, and a message has another head on each rank."""
    net = Tasks()
    x, y = clusters(640)

    def loss_of(step, rank):
        part = slice(16 * (step % 20) + 320 * rank, 16 * (step % 20) + 320 * rank + 16)
        return F.cross_entropy(net(x[part], (0, 1) if rank == 0 else (1, 2)), y[part])

    def reduce(p, world):
        if p.grad is None and not BUG:
            p.grad = torch.zeros_like(p)
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= world
    replicas(net, loss_of, reduce)


def reduced_to_one_rank():
    """Programs that average by hand: dist.reduce() instead of all_reduce()."""
    net = Lm(layers=2)

    def reduce(p, world):
        dist.reduce(p.grad, dst=0) if BUG else dist.all_reduce(p.grad)
        p.grad /= world
    replicas(net, lambda step, rank: ce(net(batch(step, rank)[0]), batch(step, rank)[1]), reduce)


class Scatter(torch.autograd.Function):
    """A part of the sequence; its gradients are gathered."""

    @staticmethod
    def forward(ctx, x, part):
        return x.chunk(dist.get_world_size(), 1)[part].contiguous()

    @staticmethod
    def backward(ctx, g):
        return gathered(g), None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return gathered(x)

    @staticmethod
    def backward(ctx, g):
        return g.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


def scattered_by_wrong_group():
    """Megatron-LM#7452: embeddings are scattered by the rank in a wrong group, and all ranks have the first part of the sequence."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm, self.mlp = nn.Embedding(V, D), nn.LayerNorm(D), Mlp()
            self.mix, self.head = nn.GRU(D, D, batch_first=True), nn.Linear(D, V)

        def forward(self, x):
            h = Scatter.apply(self.embed(x), 0 if BUG else dist.get_rank())
            return self.head(self.mix(Gather.apply(h + self.mlp(self.norm(h))))[0])
    net = Net()
    parts = {*net.norm.parameters(), *net.mlp.parameters()}
    replicas(net, lambda step, rank: ce(net(batch(step)[0]), batch(step)[1]), lambda p, world: dist.all_reduce(p.grad) if p in parts else None)


# Ranks, and a part of the first answer; "": both are sound, or no rule finds it.
CASES = {
    "norm_of_one_element": (1, "output-constant"), "vanishing_sigmoids": (1, "gradients-vanish"), "samples_normalised_in_place": (1, "input-rescaled"),
    "samples_sorted_by_class": (1, "batches-of-one-class"), "pairs_without_sign": (1, "undefined_targets"), "ranks_without_sign": (1, "undefined_targets"),
    "binary_labels_with_sign": (1, "undefined_targets"), "blank_is_a_letter": (1, "undefined_targets"),
    "plateau_of_wrong_mode": (1, "schedule-ends-early"), "state_by_order": (1, "state-not-continued"),
    "gradients_of_other_heads": (2, "gradients-mismatched"), "reduced_to_one_rank": (2, "gradients-not-reduced"),
    "scattered_by_wrong_group": (2, "copies-gathered"),
    "sound_beyond_zero": (1, ""), "sound_queries": (1, ""),
}

if __name__ == "__main__":
    run_case(globals())
