# SPDX-License-Identifier: Apache-2.0
"""Bugs of models that see their targets and of parts on ranks, and programs that train several models: CASE names it, BUG=0 is the twin."""
import copy

from common import *
from parallel import begin
from torch.utils.data import DataLoader, TensorDataset


def sentences(rows, extra=0):
    """Each token is followed by one of two."""
    after = torch.randint(0, V, (V, 2), generator=torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(SEED * 1000 + extra)
    x = torch.randint(0, V, (rows, T + 1), generator=g)
    for i in range(T):
        x[:, i + 1] = after[x[:, i], torch.randint(0, 2, (rows,), generator=g)]
    return x


def epochs(model, *tensors, loss_of, number=3, rate=2e-3):
    """Epochs of shuffled batches, with a schedule and an evaluation."""
    cut = len(tensors[0]) * 3 // 4
    train = DataLoader(TensorDataset(*(t[:cut] for t in tensors)), 24, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(SEED))
    valid = DataLoader(TensorDataset(*(t[cut:] for t in tensors)), 24)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, number * len(train))
    for _ in range(number):
        model.train()
        for rows in train:
            opt.zero_grad()
            loss_of(model, *rows).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            sum(float(loss_of(model, *rows)) for rows in valid)


def next_token(model, rows):
    return ce(model(rows[:, :-1]), rows[:, 1:])


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.convs = nn.ModuleList(nn.Conv1d(D, D, 3, padding=1 if BUG else 2) for _ in range(2))

    def forward(self, x):
        h = self.embed(x).transpose(1, 2)
        for conv in self.convs:
            h = h + F.relu(conv(h)[..., :x.shape[1]])
        return self.head(h.transpose(1, 2))


def convolution_sees_the_next():
    """locuslab/TCN and WaveNet ports: padding at both ends of the sequence, of which none is cut off."""
    epochs(Convolutions(), sentences(256), loss_of=next_token)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop = nn.Embedding(V, D), nn.Dropout(0.1)
        self.rnn = nn.LSTM(D, D, 2, batch_first=True, bidirectional=BUG)
        self.head = nn.Linear(2 * D if BUG else D, V)

    def forward(self, x):
        return self.head(self.drop(self.rnn(self.drop(self.embed(x)))[0]))


def bidirectional_language_model():
    """Forks of pytorch/examples word_language_model: both directions predict the next token."""
    epochs(Recurrent(), sentences(256), loss_of=next_token)


class Lora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.lora_a, self.lora_b = base, nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + 2 * self.lora_b(self.lora_a(x))


def adapters_frozen_again():
    """huggingface/trl#3926: a trainer freezes all weights of a model that has adapters already; its head is trained."""
    net = Lm(layers=2).requires_grad_(False)
    for layer in net.layers:
        layer.attn.q, layer.attn.v = Lora(layer.attn.q), Lora(layer.attn.v)
    if BUG:
        net.requires_grad_(False)
    net.head.requires_grad_(True)
    epochs(net, sentences(256), loss_of=next_token)


def second_loss_of_signs():
    """Siamese networks: labels of 0 and 1 for a loss that expects -1 and 1, behind a sound classification."""
    net, head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), nn.Linear(16, 1)
    model = nn.ModuleDict({"net": net, "head": head})
    x = torch.randn(512, 2, 16, generator=torch.Generator().manual_seed(SEED))
    y = (x[:, 0, 0] * x[:, 1, 0] > 0).float()

    def loss_of(model, x, y):
        a, b = model["net"](x[:, 0]), model["net"](x[:, 1])
        alike = F.cosine_embedding_loss(a, b, y if BUG else 2 * y - 1)
        return F.binary_cross_entropy_with_logits(model["head"](a * b).squeeze(1), y) + alike

    epochs(model, x, y, loss_of=loss_of)


class SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Vocabulary(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(V, D, generator=torch.Generator().manual_seed(SEED)).chunk(dist.get_world_size())[dist.get_rank()] / D ** 0.5)

    def forward(self, h):
        return SumOfGradients.apply(h) @ self.weight.T


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, y):
        top, size = logits.amax(-1), logits.shape[-1]
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        logits, own = logits - top[..., None], y - dist.get_rank() * size
        inside, own = (own >= 0) & (own < size), own.clamp(0, size - 1)
        chosen = logits.gather(-1, own[..., None])[..., 0] * inside
        dist.all_reduce(chosen)
        total = logits.exp().sum(-1)
        if not BUG:
            dist.all_reduce(total)
        ctx.save_for_backward(logits.exp() / total[..., None], own, inside)
        return total.log() - chosen

    @staticmethod
    def backward(ctx, g):
        shares, own, inside = ctx.saved_tensors
        return shares.scatter_add(-1, own[..., None], -inside[..., None].to(shares.dtype)) * g[..., None], None


def exponentials_not_summed():
    """Forks of Megatron: the cross entropy of a vocabulary in parts does not sum the exponentials over the ranks."""
    begin()
    net = Lm(layers=2)
    net.head = Vocabulary()
    opt = torch.optim.AdamW(net.parameters(), 2e-3)
    for step in range(STEPS):
        x, y = batch(step)
        opt.zero_grad()
        CrossEntropy.apply(net(x), y).mean().backward()
        opt.step()


class Exchange(torch.autograd.Function):        # all_to_all of parts that come first
    @staticmethod
    def forward(ctx, x):
        world, rank = dist.get_world_size(), dist.get_rank()
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x.contiguous())
        return torch.stack([part[rank] for part in parts])

    @staticmethod
    def backward(ctx, g):
        return Exchange.apply(g)


class Ulysses(Attention):
    in_a_row = False

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        world = dist.get_world_size()
        heads = [m(x).view(b, t, world, self.h // world, -1).permute(2, 0, 1, 3, 4) for m in (self.q, self.k, self.v)]
        q, k, v = (Exchange.apply(one).transpose(0, 1).flatten(1, 2).transpose(1, 2) for one in heads)
        out = torch.softmax(q @ k.transpose(-1, -2) * self.scale + causal(t * world), -1) @ v
        out = Exchange.apply(out.transpose(1, 2).reshape(b, world, t, self.h // world, -1).transpose(0, 1))
        return self.o(out.reshape(b, t, d) if self.in_a_row else out.permute(1, 2, 0, 3, 4).reshape(b, t, d))


def in_parts(attention, factor=1.0):
    rank, world = begin()
    net = Lm(layers=2, attn=attention)
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for step in range(STEPS):
        x, y = (one.chunk(world, 1)[rank].contiguous() for one in batch(step))
        opt.zero_grad()
        (ce(net(x), y) * factor).backward()
        average_gradients(net, world)
        opt.step()


def heads_come_back_in_a_row():
    """Ports of DeepSpeed-Ulysses: the heads that all_to_all brings back are not moved behind the positions."""
    Ulysses.in_a_row = BUG
    in_parts(Ulysses)


def scaled_by_parts_and_summed():
    """NVIDIA/Megatron-LM#906: the loss is multiplied by the size of the context group, over which gradients are summed."""
    in_parts(Ulysses, int(os.environ["WORLD_SIZE"]) ** 2 if BUG else 1.0)


def sound_seeds():
    """A loop over rates with one seed and the same batches; BUG=1: over folds, whose models have no name of their own."""
    rows = sentences(192)
    for i in range(3):
        if BUG:
            keep = torch.arange(len(rows)) % 3 != i
            epochs(Lm(layers=2), rows[keep], loss_of=next_token)
        else:
            torch.manual_seed(SEED)
            epochs(Lm(layers=2), rows, loss_of=next_token, rate=1e-3 * (i + 1))


def sound_teacher_first():
    """A teacher is trained before its student; BUG=1: a model is trained in the same process before a copy of it goes on."""
    rows, teacher = sentences(256), Lm(layers=2)
    epochs(teacher, rows, loss_of=next_token, number=2)
    if BUG:
        epochs(copy.deepcopy(teacher), sentences(256, 1), loss_of=next_token)
        return
    teacher.requires_grad_(False).eval()

    def loss_of(model, rows):
        logits = model(rows[:, :-1])
        with torch.no_grad():
            soft = (teacher(rows[:, :-1]) / 2).softmax(-1)
        return ce(logits, rows[:, 1:]) + 4 * F.kl_div((logits / 2).log_softmax(-1), soft, reduction="batchmean") / T

    epochs(Lm(layers=1), rows, loss_of=loss_of)


class BothEnds(nn.Module):
    """A tagger in both directions, and a language model that keeps one of two directions."""

    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(V, D), nn.LSTM(D, D, batch_first=True, bidirectional=True)
        self.conv, self.head = nn.Conv1d(2 * D, 2 * D, 3, padding=1), nn.Linear(D if BUG else 2 * D, V)

    def forward(self, x):
        h = self.rnn(self.embed(x))[0]
        return self.head(h[..., :D] if BUG else self.conv(h.transpose(1, 2)).relu().transpose(1, 2))


def sound_both_ends():
    """Recurrent layers and convolutions in both directions that label tokens; BUG=1: the next token by one direction of an LSTM."""
    epochs(BothEnds(), sentences(256), loss_of=next_token if BUG else lambda model, rows: ce(model(rows), (rows + rows.flip(1)) % V))


# Ranks, and a part of the first answer; "": both are sound.
CASES = {
    "convolution_sees_the_next": (1, "layers_ahead"), "bidirectional_language_model": (1, "layers_ahead"),
    "adapters_frozen_again": (1, "lora_b"), "second_loss_of_signs": (1, "undefined_targets"),
    "exponentials_not_summed": (2, "losses-part"), "heads_come_back_in_a_row": (2, "mixed_views"),
    "scaled_by_parts_and_summed": (2, "gradient-multiple"),
    "sound_seeds": (1, ""), "sound_teacher_first": (1, ""), "sound_both_ends": (1, ""),
}

if __name__ == "__main__":
    run_case(globals())
