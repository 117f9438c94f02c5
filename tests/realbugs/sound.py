# SPDX-License-Identifier: Apache-2.0
"""Sound programs that look like one with a fault; both twins of each are sound. CASES says how many ranks one needs."""
import copy

from loops import *


def sound_directions():
    """Attention in both directions: a masked language model (BUG=0), an encoder beside a decoder of the same length (BUG=1)."""
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder, self.cross = Lm(), Lm(), Attention()

        def forward(self, x, y):
            pos = torch.arange(T)
            seen = self.encoder.embed(x)
            for layer in self.encoder.layers:
                seen = layer(seen, torch.zeros(T, T), pos)
            if not BUG:
                return self.encoder.head(self.encoder.norm(seen))
            hidden = self.decoder.embed(y)
            for layer in self.decoder.layers:
                hidden = layer(hidden, causal(T), pos)
                hidden = hidden + self.cross(hidden + seen, torch.zeros(T, T), pos)
            return self.decoder.head(self.decoder.norm(hidden))

    net = Both()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        x, y = batch(step)
        other, after = batch(1000 + step)
        masked = torch.rand(x.shape, generator=torch.Generator().manual_seed(step)) < 0.3
        target = after if BUG else torch.where(masked, x, -100)
        loss = ce(net(x if BUG else torch.where(masked, V - 1, x), other), target)
        opt.zero_grad()
        loss.backward()
        opt.step()

    train(net, opt, step_of)


def sound_padding():
    """Sequences that are padded on the left, whose empty rows attend to everything (BUG=0), and long ones whose last positions are one
    (BUG=1)."""
    net = Lm(layers=2)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        t = 400 if BUG else T
        x, y = batch(step, n=1 if BUG else 4, t=t)
        mask = causal(t)
        if not BUG:
            empty = 2 * torch.arange(4)[:, None] > torch.arange(t)
            mask = (mask + torch.where(empty[:, None, None], -math.inf, 0.0)).masked_fill(empty[:, None, :, None], 0.0)
            y = y.masked_fill(empty, -100)
        loss = ce(net(x, mask, torch.arange(t).clamp(max=390)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    train(net, opt, step_of, 8)


def sound_pipeline():
    """Two stages by hand, send and recv; each its own optimizer and data-parallel pair. No fault in either twin."""
    rank, world = setup()
    torch.manual_seed(SEED)
    whole = Lm(layers=2)
    stage, replica = rank // 2, rank % 2
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    First, Last = first_and_last(whole)
    net = Last() if stage else First()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        x, y = batch(step, replica)
        opt.zero_grad()
        if stage == 0:
            hidden = net(x)
            dist.send(hidden.detach(), 2 + replica)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, 2 + replica)
            hidden.backward(gradient)
        else:
            hidden = torch.empty(4, T, D)
            dist.recv(hidden, replica)
            hidden.requires_grad_()
            ce(net(hidden), y).backward()
            dist.send(hidden.grad, replica)
        for p in net.parameters():
            dist.all_reduce(p.grad, group=pairs[stage])
            p.grad /= 2
        opt.step()

    train(net, opt, step_of)


def sound_fsdp():
    """FSDP of PyTorch over 2 ranks. No fault in either twin."""
    from torch.distributed.fsdp import fully_shard
    rank, _ = setup()
    torch.manual_seed(SEED)
    net = Lm(layers=2)
    for layer in net.layers:
        fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    fully_shard(net, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt, rank)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()

    train(net, opt, step_of)


def sound_batchnorm():
    """Data parallel with BatchNorm, dropout, label smoothing and uneven padding of images' labels. No fault in either twin."""
    rank, _ = setup()
    torch.manual_seed(SEED)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(
        nn.Linear(D, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, V)))
    opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def step_of(step, net, opt):
        generator = torch.Generator().manual_seed(97 * step + rank)
        x = torch.randn(16, D, generator=generator)
        loss = F.cross_entropy(net(x), x.argmax(-1), label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()

    train(net, opt, step_of)


def sound_fine_tuning():
    """A frozen backbone with BatchNorm in evaluation (BUG=0), an optimizer of the head alone (BUG=1)."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.ReLU(), nn.Dropout(0.1)) for _ in range(4))
            self.head = nn.Linear(D, V)

        def forward(self, x):
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    net = Net()
    if not BUG:
        net.blocks[:3].requires_grad_(False)
        net.blocks[:3].eval()
    opt = torch.optim.AdamW(net.head.parameters() if BUG else [p for p in net.parameters() if p.requires_grad], 1e-3)

    def step_of(step, net, opt):
        x = torch.randn(16, D, generator=torch.Generator().manual_seed(step))
        opt.zero_grad()
        F.cross_entropy(net(x), x.argmax(-1)).backward()
        opt.step()

    train(net, opt, step_of)


def sound_lora():
    """Adapters on the attention of two of three blocks (BUG=1: of all)."""
    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.a, self.b = base.requires_grad_(False), nn.Linear(D, 4, bias=False), nn.Linear(4, D, bias=False)
            nn.init.zeros_(self.b.weight)
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            return self.base(x) + self.b(self.a(self.drop(x)))

    net = Lm().requires_grad_(False)
    for layer in net.layers if BUG else net.layers[1:]:
        layer.attn.q = Adapter(layer.attn.q)
        layer.attn.v = Adapter(layer.attn.v)
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()

    train(net, opt, step_of)


def sound_gan():
    """A generator that is in evaluation and detached while the discriminator learns (BUG=0); both in training (BUG=1)."""
    def net_of(n, out):
        return nn.Sequential(*(nn.Sequential(nn.Linear(n if i == 0 else D, D), nn.BatchNorm1d(D), nn.LeakyReLU(0.2), nn.Dropout(0.1))
                               for i in range(3)), nn.Linear(D, out))

    made, judge = net_of(8, D), net_of(D, 1)
    opt, other = (torch.optim.Adam(one.parameters(), 1e-3) for one in (made, judge))

    def step_of(step, net, opt):
        real = torch.randn(16, D, generator=torch.Generator().manual_seed(step)) + 1
        made.train(BUG)
        fake = made(torch.randn(16, 8)).detach()
        other.zero_grad()
        (F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean()).backward()
        other.step()
        made.train()
        opt.zero_grad()
        F.softplus(-judge(made(torch.randn(16, 8)))).mean().backward()
        opt.step()

    train(made, opt, step_of)


def sound_teacher():
    """A student and an EMA of it that runs in evaluation without a graph; BUG=1: both are parts of one module."""
    student = with_dropout()
    teacher = copy.deepcopy(student).eval()
    both = nn.ModuleDict({"student": student, "teacher": teacher})
    opt = torch.optim.AdamW(student.parameters(), 1e-3)
    if BUG:
        both.teacher.requires_grad_(False)

    def step_of(step, net, opt):
        x, y = batch(step)
        with torch.no_grad():
            wanted = teacher(x)
        logits = student(x)
        loss = ce(logits, y) + 0.1 * (logits - wanted).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters()):
                old.lerp_(new, 0.1)

    train(student, opt, step_of)


def sound_checkpointing():
    """Blocks that are recomputed, the second and third of four (BUG=0: reentrant, BUG=1: not), with an evaluation in the middle and
    accumulation."""
    from torch.utils.checkpoint import checkpoint

    class Recomputed(DropBlock):
        def forward(self, x, mask, pos):
            return checkpoint(super().forward, x, mask, pos, use_reentrant=not BUG)

    net = Lm()
    net.layers = nn.ModuleList([DropBlock(), Recomputed(), Recomputed(), DropBlock()])
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        if step % 4 == 3:
            net.eval()
            with torch.no_grad():
                net(batch(900 + step)[0])
            net.train()
        opt.zero_grad()
        for micro in range(2):
            x, y = batch(2 * step + micro)
            (ce(net(x), y) / 2).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()

    train(net, opt, step_of)


def sound_scaler():
    """Mixed precision with a GradScaler, whose gradients are unscaled and then clipped: in each step (BUG=0), seldom (BUG=1)."""
    net = with_dropout()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=5)

    def step_of(step, net, opt):
        x, y = batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = ce(net(x).float(), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 3.0 if BUG else 0.1)
        scaler.step(opt)
        scaler.update()

    train(net, opt, step_of)


def sound_blocks():
    """Parts of blocks that have no gradient for a reason: experts that are seldom used and the last block's second stream (BUG=0), post
    norm with a scaled residual (BUG=1)."""
    class Streams(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.norm = nn.Linear(D, D), nn.Linear(D, D), nn.LayerNorm(D)
            self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(4))

        def forward(self, x, other):
            if BUG:
                return self.norm(0.5 * x + self.one(x)), other
            chosen = self.one(x).argmax(-1) % 4
            out = x + self.two(other)
            for number, expert in enumerate(self.experts):
                out = out + expert(x) * (chosen == number)[..., None]
            return out, other + self.one(x)

    net = nn.ModuleDict({"blocks": nn.ModuleList(Streams() for _ in range(3)), "head": nn.Linear(D, V)})
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, other):
            for block in self.net["blocks"]:
                x, other = block(x, other)
            return self.net["head"](x)

    model = Model()

    def step_of(step, net, opt):
        x = torch.randn(16, D, generator=torch.Generator().manual_seed(step))
        opt.zero_grad()
        F.cross_entropy(model(x, x * 2), x.argmax(-1)).backward()
        opt.step()

    train(model, opt, step_of)


def sound_judges():
    """A fixed network behind what is trained (BUG=0) and one before it (BUG=1), neither of which any optimizer holds; both factors of
    a loss trained."""
    fixed = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D))

    def loss_of(net, x, y):
        if BUG:
            return F.cross_entropy(net(fixed(x)), y)
        out = net(x)
        return F.mse_loss(fixed(out), fixed(x)) + F.mse_loss(out.sigmoid(), x.sigmoid()) + 0.1 * F.mse_loss(out[:8], out[8:])

    fitted(small(D), of_noise(loss_of))


def sound_left_padding():
    """A language model with padding on the left and its mask (BUG=0), and on the right with a causal mask alone (BUG=1)."""
    net = Lm(layers=2)
    net.embed = nn.Embedding(V, D, padding_idx=0)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        x, y = batch(step)
        x, y = x.clamp(min=1), y.clamp(min=1)
        places = torch.arange(T)
        padding = places >= torch.tensor([12, 9, 8, 6])[:, None] if BUG else places < torch.tensor([0, 3, 4, 6])[:, None]
        mask = causal(T)
        if not BUG:
            mask = torch.where(padding[:, None, None] & ~torch.eye(T).bool(), -math.inf, 0.0) + mask
        # The last place of padding on the left predicts the first token, as labels of PyTorch's models do.
        is_last = F.pad(padding[:, :-1] & ~padding[:, 1:], (0, 1)) if not BUG else torch.zeros_like(padding)
        loss = ce(net(x.masked_fill(padding, 0), mask), y.masked_fill(padding & ~is_last, -100))
        opt.zero_grad()
        loss.backward()
        opt.step()

    train(net, opt, step_of)


def sound_regression():
    """Predictions of several tasks [N, 1] and [N] with targets of their shapes (BUG=0), quantiles that are compared with each other
    (BUG=1)."""
    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        y = x[:, :1].sin() + x[:, 1:2]
        out = net(x)
        if not BUG:
            return F.mse_loss(out[:, :1], y) + F.l1_loss(out[:, 1], y[:, 0]) + 0.1 * ((out[:, 2:] - y) ** 2).mean() + ((out[:, 3] - y[:, 0]) ** 2).sum() / 16
        difference = (y + torch.arange(16) / 16)[:, None] - out[..., None]
        share = (torch.arange(16)[:, None] + 0.5) / 16
        return ((share - (difference < 0).float()).abs() * F.smooth_l1_loss(difference, torch.zeros(()), reduction="none")).mean()

    fitted(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, 16)), loss_of)


def sound_pairs():
    """Pairs on purpose: a ranking loss (BUG=0), the energy distance of what a generator makes to its data (BUG=1)."""
    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        out, y = net(x), x[:, 0].sin()
        if not BUG:
            wanted = (y[:, None] - y[None]).sign()
            return F.relu(0.1 - wanted * (out - out.T)).mean() + 0.1 * ((out - out.T) - (y[:, None] - y[None])).square().mean()
        return 2 * (out - y[:, None].T).abs().mean() - (out - out.T).abs().mean()

    fitted(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, 1)), loss_of)


def sound_contrastive():
    """Two views through one encoder (BUG=0), with a matrix of their agreement that is to be one (BUG=1)."""
    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        one, other = (F.normalize(net(x + 0.1 * torch.randn(16, D, generator=g)), dim=-1) for _ in range(2))
        likeness = one @ other.T
        if BUG:
            return ((likeness - torch.eye(16)) ** 2).mean()
        return F.cross_entropy(likeness / 0.1, torch.arange(16)) + F.cross_entropy(likeness.T / 0.1, torch.arange(16))

    fitted(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, 16)), loss_of)


def sound_sequence_first():
    """Layers without batch_first that get the sequence first: a vision transformer (BUG=0), an LSTM of the language model (BUG=1)."""
    if not BUG:
        return fitted(Vit(batch_first=False, first=True), images)
    net = Recurrent(False, batch_first=False)

    def loss_of(net, g):
        x, y = batch(int(torch.randint(0, 9999, (), generator=g)))
        return ce(net(x.T), y.T)

    return fitted(net, loss_of)


def sound_recurrent():
    """A GRU whose last place is taken (BUG=0), an LSTM over times whose second dimension are nodes that are averaged (BUG=1)."""
    if not BUG:
        return recurrent(True, batch_first=True, layer=nn.GRU)

    def loss_of(net, g):
        x = torch.randn(6, 4, D, generator=g)
        return F.mse_loss(net["head"](net["layer"](x)[0].mean(1)), x.mean(1)[:, :1])

    return fitted(nn.ModuleDict({"layer": nn.LSTM(D, D), "head": nn.Linear(D, 1)}), loss_of)


def sound_samples():
    """A transformer whose layers attend along the sequence and the batch in turn (BUG=1), and along the sequence alone with a pooler that
    nobody uses (BUG=0)."""
    net = Vit()
    net.across = nn.TransformerEncoderLayer(D, 4, 64, 0.1)
    net.pooler = nn.Linear(D, D)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = net

        def forward(self, x):
            x = torch.cat([net.token.expand(len(x), -1, -1), net.patch(x)], 1) + net.place
            x = net.encoder(net.across(x) if BUG else x)
            net.pooler(x[:, 0])
            return net.head(x[:, 0])

    fitted(Whole(), images)


def sound_schedules():
    """A cosine with a warm-up down to its end (BUG=0), triangles that begin at their lowest rate (BUG=1); a VAE's sums over the batch."""
    net = nn.ModuleDict({"encoder": nn.Linear(D, 16), "decoder": nn.Linear(8, D)})
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = (torch.optim.lr_scheduler.CyclicLR(opt, 1e-5, 1e-3, 5, cycle_momentum=False) if BUG else
                torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=STEPS + 1))

    def step_of(step, net, opt):
        x = torch.rand(16, D, generator=torch.Generator().manual_seed(step))
        mean, log = net["encoder"](x).chunk(2, 1)
        out = net["decoder"](mean + torch.randn_like(mean) * (0.5 * log).exp())
        opt.zero_grad()
        (F.binary_cross_entropy_with_logits(out, x, reduction="sum") - 0.5 * (1 + log - mean ** 2 - log.exp()).sum()).backward()
        opt.step()
        schedule.step()

    train(net, opt, step_of)


# Ranks, and a part of the first answer; "": both twins are sound.
CASES = {
    "sound_directions": (1, ""), "sound_padding": (1, ""), "sound_pipeline": (4, ""), "sound_fsdp": (2, ""), "sound_batchnorm": (2, ""),
    "sound_fine_tuning": (1, ""), "sound_lora": (1, ""), "sound_gan": (1, ""), "sound_teacher": (1, ""), "sound_checkpointing": (1, ""),
    "sound_scaler": (1, ""), "sound_blocks": (1, ""), "sound_regression": (1, ""), "sound_pairs": (1, ""), "sound_contrastive": (1, ""),
    "sound_sequence_first": (1, ""), "sound_recurrent": (1, ""), "sound_samples": (1, ""), "sound_schedules": (1, ""),
    "sound_judges": (1, ""), "sound_left_padding": (1, ""),
}

if __name__ == "__main__":
    run_case(globals())
