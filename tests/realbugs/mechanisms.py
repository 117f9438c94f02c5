# SPDX-License-Identifier: Apache-2.0
"""Faults that many published bugs are made of, each in the sound program beside it: CASE names it, BUG=0 is the twin. What has `ranks` in
CASES needs so many."""
import copy

from common import *

CASE = os.environ["CASE"]


def train(net, opt, step_of, steps=STEPS):
    for step in range(steps):
        step_of(step, net, opt)


def plain(step, net, opt, rank=0):
    x, y = batch(step, rank)
    loss = ce(net(x), y)
    opt.zero_grad()
    loss.backward()
    return loss


def lost_micro_batches():
    """zero_grad() stands inside the loop over micro batches."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        opt.zero_grad()
        for micro in range(4):
            if BUG:
                opt.zero_grad()
            x, y = batch(4 * step + micro)
            (ce(net(x), y) / 4).backward()
        opt.step()

    train(net, opt, step_of)


def never_zeroed():
    """zero_grad() is never called."""
    net = Lm()
    opt = torch.optim.SGD(net.parameters(), 0.01)

    def step_of(step, net, opt):
        x, y = batch(step)
        if not BUG:
            opt.zero_grad()
        ce(net(x), y).backward()
        opt.step()

    train(net, opt, step_of)


def tie_broken():
    """The output layer is the embedding's weight, until a deep copy of the state makes two of one."""
    net = Lm()
    with torch.no_grad():
        net.embed.weight.mul_(0.05)
    net.head.weight = nn.Parameter(net.embed.weight.detach().clone()) if BUG else net.embed.weight
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def restored_behind_forward():
    """A hook of a checkpoint writes an old weight back between forward and optimizer, at step 10."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    old = copy.deepcopy(net.layers[1].state_dict())

    def step_of(step, net, opt):
        plain(step, net, opt)
        if BUG and step == 10:
            net.layers[1].load_state_dict(old)
        opt.step()

    train(net, opt, step_of)


def labels_not_shifted():
    """The labels are the tokens that went in."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        x, y = batch(step)
        loss = ce(net(x), x if BUG else y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    train(net, opt, step_of)


def clip_norm_of_copies():
    """Tensor parallel: the norm for clipping counts replicated weights once for each rank."""
    rank, _ = setup()
    torch.manual_seed(SEED)
    net = Lm(mlp=TpMlp)
    opt = torch.optim.SGD(net.parameters(), 0.05)

    def step_of(step, net, opt):
        plain(step, net, opt)
        square = sum((p.grad ** 2).sum() for n, p in net.named_parameters() if BUG or sharded(n) or rank == 0)
        dist.all_reduce(square)
        coef = min(1.0, 0.5 / (square.sqrt().item() + 1e-6))
        for p in net.parameters():
            p.grad *= coef
        opt.step()

    train(net, opt, step_of)


def seeds_of_ranks():
    """Each rank makes the model with a seed of its own, and nothing is broadcast."""
    rank, world = setup()
    torch.manual_seed(rank if BUG else SEED)
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt, rank)
        average_gradients(net, world)
        opt.step()

    train(net, opt, step_of)


def divided_twice():
    """DistributedDataParallel has divided by the number of ranks, and so does the program."""
    rank, world = setup()
    torch.manual_seed(SEED)
    net = Lm()
    ddp = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), 0.1)

    def step_of(step, net, opt):
        x, y = batch(step, rank)
        loss = ce(ddp(x), y)
        opt.zero_grad()
        (loss / world if BUG else loss).backward()
        opt.step()

    train(net, opt, step_of)


def result_lost_on_a_rank():
    """The result of an all_reduce does not arrive on rank 2 from step 5 on."""
    rank, world = setup()
    torch.manual_seed(SEED)
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    whole = dist.ProcessGroup.allreduce

    def lost(self, tensors, *args, **kwargs):
        kept = [t.clone() for t in tensors]
        work = whole(self, tensors, *args, **kwargs)
        work.wait()
        for tensor, before in zip(tensors, kept):
            tensor.copy_(before)
        return work

    def step_of(step, net, opt):
        plain(step, net, opt, rank)
        if BUG and rank == 2 and step == 5:
            dist.ProcessGroup.allreduce = lost
        average_gradients(net, world)
        opt.step()

    train(net, opt, step_of, 16)


def elements_zeroed():
    """1 % of what rank 1 sends is 0 when rank 2 receives it, in one step."""
    rank, world = setup()
    torch.manual_seed(SEED)
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    whole = dist.ProcessGroup.allgather
    at = 0

    def zeroed(self, outputs, inputs, *args, **kwargs):
        work = whole(self, outputs, inputs, *args, **kwargs)
        work.wait()
        if at == 9:
            taken = outputs[0][1].view(-1)
            taken[:max(1, taken.numel() // 100)] = 0
        return work

    if BUG and rank == 2:
        dist.ProcessGroup.allgather = zeroed

    def step_of(step, net, opt):
        nonlocal at
        at = step
        plain(step, net, opt, rank)
        for p in net.parameters():
            parts = [torch.empty_like(p.grad) for _ in range(world)]
            dist.all_gather(parts, p.grad)
            p.grad = sum(parts) / world
        opt.step()

    train(net, opt, step_of, 16)


class SdpaAttention(Attention):
    """PyTorch's own attention; the mask is its flag."""

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(rope(q, pos), rope(k, pos), v, is_causal=self.is_causal)
        return self.o(out.transpose(1, 2).reshape(b, t, d))


def mask_missing():
    """is_causal is not passed on."""
    SdpaAttention.is_causal = not BUG
    net = Lm(attn=SdpaAttention)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


class QueryAttention(Attention):
    """The softmax is over the queries."""

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        p = torch.softmax(torch.matmul(rope(q, pos), rope(k, pos).transpose(-1, -2)) * self.scale + mask, -2 if BUG else -1)
        return self.o(torch.matmul(F.dropout(p, 0.1), v).transpose(1, 2).reshape(b, t, d))


def softmax_over_queries():
    """softmax(dim=-2)"""
    net = Lm(attn=QueryAttention)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def replicas(step_of):
    """Trains a model that DistributedDataParallel makes replicas of; step_of(step, net, opt, rank)."""
    rank, _ = setup()
    torch.manual_seed(SEED)
    net = nn.parallel.DistributedDataParallel(Lm())
    train(net, torch.optim.AdamW(net.parameters(), 1e-3), lambda step, net, opt: step_of(step, net, opt, rank))


def one_batch_on_all_ranks():
    """No DistributedSampler: each rank has the same batch."""
    def step_of(step, net, opt, rank):
        plain(step, net, opt, 0 if BUG else rank)
        opt.step()

    replicas(step_of)


def step_left_out():
    """Rank 1 judges its batch 9 bad and goes on without a step of the optimizer."""
    def step_of(step, net, opt, rank):
        plain(step, net, opt, rank)
        if not (BUG and rank == 1 and step == 9):
            opt.step()

    replicas(step_of)


def batch_repeated():
    """The loader gives its batch once more after each eighth step."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step - 1 if BUG and step % 8 == 7 else step, net, opt)
        opt.step()

    train(net, opt, step_of)


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


class DropBlock(Block):
    def __init__(self, **kw):
        super().__init__(**kw)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, mask, pos):
        x = x + self.drop(self.attn(self.norm1(x), mask, pos))
        return x + self.drop(self.mlp(self.norm2(x)))


def with_dropout():
    net = Lm()
    net.layers = nn.ModuleList(DropBlock() for _ in range(3))
    return net


def evaluation_not_undone():
    """An evaluation each six steps calls model.eval(), and nobody calls model.train() behind it before the epoch's end."""
    net = with_dropout()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        if step % 6 == 5:
            net.eval()
            with torch.no_grad():
                ce(net(batch(900 + step)[0]), batch(900 + step)[1])
            if not BUG:
                net.train()
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def never_in_training():
    """A pretrained model comes in evaluation, and model.train() is not called."""
    net = with_dropout()
    net.train(not BUG)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


class Detached(Block):
    """Which part of a block's residuals is detached."""
    where = ""

    def forward(self, x, mask, pos):
        a = self.attn(self.norm1(x), mask, pos)
        x = (x.detach() if self.where == "first" else x) + a
        m = self.mlp(self.norm2(x))
        return (x.detach() if self.where == "second" else x) + (m.detach() if self.where == "branch" else m)


def detached(where, layers):
    net = Lm()
    net.layers = nn.ModuleList(Detached() for _ in range(3))
    for layer in layers if BUG else ():
        net.layers[layer].where = where
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def residual_detached():
    """x.detach() + attention in each block."""
    detached("first", (0, 1, 2))


def residual_detached_behind():
    """x.detach() + mlp in one block."""
    detached("second", (1,))


def branch_detached():
    """x + mlp.detach() in one block."""
    detached("branch", (1,))


def branches_detached():
    """x + mlp.detach() in each block."""
    detached("branch", (0, 1, 2))


def block_frozen():
    """The second of four blocks requires no gradient."""
    net = Lm(layers=4)
    net.layers[1].requires_grad_(not BUG)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def block_not_in_optimizer():
    """The optimizer's list leaves the last block out."""
    net = Lm(layers=4)
    opt = torch.optim.AdamW([p for n, p in net.named_parameters() if not BUG or not n.startswith("layers.3.")], 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def accumulate(weights, clip):
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        opt.zero_grad()
        for micro, weight in enumerate(weights):
            x, y = batch(4 * step + micro)
            (ce(net(x), y) * weight).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()

    train(net, opt, step_of)


def micro_batches_summed():
    """The loss is not divided by the number of micro batches; clipping in each step hides it."""
    accumulate([1] * 4 if BUG else [1 / 4] * 4, 0.05)


def micro_batches_summed_clipped_at_times():
    """The same, with a clipping that works in some steps."""
    accumulate([1] * 4 if BUG else [1 / 4] * 4, 2.0)


def micro_batches_running_mean():
    """The loss is divided by the number of micro batches so far."""
    accumulate([1 / (i + 1) for i in range(4)] if BUG else [1 / 4] * 4, 0)


def clipped_before_unscaling():
    """Gradients are clipped while they have the GradScaler's factor."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

    def step_of(step, net, opt):
        x, y = batch(step)
        loss = ce(net(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        if not BUG:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    train(net, opt, step_of)


def never_unscaled():
    """optimizer.step() instead of scaler.step(optimizer); Adam's division hides it."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

    def step_of(step, net, opt):
        x, y = batch(step)
        opt.zero_grad()
        scaler.scale(ce(net(x), y)).backward()
        if BUG:
            opt.step()
        else:
            scaler.step(opt)
            scaler.update()

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


def stepping(change, lr=1e-3, **kwargs):
    """One rank; change(step, net, opt) between backward and optimizer."""
    net = Lm(**kwargs)
    opt = torch.optim.AdamW(net.parameters(), lr)

    def step_of(step, net, opt):
        plain(step, net, opt)
        if BUG:
            change(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def averages_from_old_checkpoint():
    """At step 12 the optimizer of the last block continues with averages of step 4."""
    kept = {}

    def change(step, net, opt):
        block = net.layers[2].parameters()
        if step == 4:
            kept.update({p: opt.state[p]["exp_avg"].clone() for p in block})
        if step == 12:
            for p in block:
                opt.state[p]["exp_avg"].copy_(kept[p])

    stepping(change)


def gradients_of_last_step():
    """Two buffers take turns, and the optimizer reads the one that is not written."""
    before = {}

    def change(step, net, opt):
        for p in net.parameters():
            now = p.grad.clone()
            if p in before:
                p.grad.copy_(before[p])
            before[p] = now

    stepping(change)


def gradients_exchanged():
    """A flat buffer has two parameters of one size in another order than the list that reads it."""
    def change(step, net, opt):
        one, other = net.layers[0].attn.q.weight, net.layers[1].attn.k.weight
        one.grad, other.grad = other.grad, one.grad

    stepping(change)


def gradients_zeroed_before_step():
    """zero_grad(set_to_none=False) stands between backward and step; decay alone changes the weights."""
    stepping(lambda step, net, opt: opt.zero_grad(set_to_none=False))


def gradients_gone_before_step():
    """zero_grad() stands between backward and step."""
    stepping(lambda step, net, opt: opt.zero_grad())


def reduced_twice():
    """One block's gradients are summed over the ranks once more."""
    rank, world = setup()
    torch.manual_seed(SEED)
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt, rank)
        average_gradients(net, world)
        if BUG:
            for p in net.layers[1].parameters():
                dist.all_reduce(p.grad)
        opt.step()

    train(net, opt, step_of)


def broadcast_for_all_reduce():
    """Gradients of rank 0 are sent to all ranks, and those of the others are lost."""
    rank, world = setup()
    torch.manual_seed(SEED)
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt, rank)
        if BUG:
            for p in net.parameters():
                dist.broadcast(p.grad, 0)
        else:
            average_gradients(net, world)
        opt.step()

    train(net, opt, step_of)


def rate_of_a_rank():
    """The scheduler of rank 1 steps twice."""
    def step_of(step, net, opt, rank):
        plain(step, net, opt, rank)
        for group in opt.param_groups:
            group["lr"] = 1e-3 * 0.98 ** (2 * step if BUG and rank == 1 else step)
        opt.step()

    replicas(step_of)


def schedule_not_restored():
    """The scheduler begins again at step 12, the optimizer goes on."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        at = step - 12 if BUG and step >= 12 else step
        for group in opt.param_groups:
            group["lr"] = 1e-3 * min(1, (at + 1) / 4) * 0.97 ** at
        opt.step()

    train(net, opt, step_of)


def epochs_in_one_order():
    """Epochs of 8 batches; set_epoch() is not called."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(2 if BUG else 2 + step // 8))
        plain(int(order[step % 8]), net, opt)
        opt.step()

    train(net, opt, step_of)


def softmax_before_loss():
    """The model's softmax goes into cross_entropy."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        x, y = batch(step)
        out = net(x)
        loss = ce(out.softmax(-1) if BUG else out.log_softmax(-1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    train(net, opt, step_of)


class Received:
    """What gloo waited for cannot be waited for again, or is then written once more."""

    def wait(self):
        return True


def pipeline_message_zeroed():
    """In step 9 every hundredth element that stage 0 sends is 0 when stage 1 has it."""
    rank, _ = setup()
    torch.manual_seed(SEED)
    net = Lm(layers=1)
    opt = torch.optim.AdamW([p for n, p in net.named_parameters() if n.startswith(("norm", "head")) == (rank == 1)], 1e-3)
    whole, at = dist.ProcessGroup.recv, 0

    def zeroed(self, tensors, *args, **kwargs):
        whole(self, tensors, *args, **kwargs).wait()
        if at == 9:
            tensors[0].view(-1)[::100] = 0
        return Received()

    if BUG and rank == 1:
        dist.ProcessGroup.recv = zeroed

    def step_of(step, net, opt):
        nonlocal at
        at = step
        x, y = batch(step)
        opt.zero_grad()
        if rank == 0:
            hidden = net.layers[0](net.embed(x), causal(T), torch.arange(T))
            dist.send(hidden.detach(), 1)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
        else:
            hidden = torch.empty(4, T, D)
            dist.recv(hidden, 0)
            hidden.requires_grad_()
            ce(net.head(net.norm(hidden)), y).backward()
            dist.send(hidden.grad, 0)
        opt.step()

    train(net, opt, step_of, 16)


def sharded_gradients(lost, op, where):
    """Gradients by reduce_scatter and all_gather, as sharded optimizers have them; `lost` writes to the result of `op` in step 9."""
    rank, world = setup()
    torch.manual_seed(SEED)
    net = Lm(layers=1)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    # Its older name.
    op = op if hasattr(dist.ProcessGroup, op) else {"all_gather_single": "_allgather_base", "reduce_scatter_single": "_reduce_scatter_base"}[op]
    whole, at = getattr(dist.ProcessGroup, op), 0

    def written(self, output, *args, **kwargs):
        whole(self, output, *args, **kwargs).wait()
        if at == 9:
            lost(output)
        return Received()

    if BUG and rank == where:
        setattr(dist.ProcessGroup, op, written)

    def step_of(step, net, opt):
        nonlocal at
        at = step
        plain(step, net, opt, rank)
        params = list(net.parameters())
        flat = torch.cat([p.grad.flatten() for p in params]) / world
        flat = F.pad(flat, (0, -len(flat) % world))
        part = torch.empty(len(flat) // world)
        dist.reduce_scatter_tensor(part, flat)
        dist.all_gather_into_tensor(flat, part)
        for p, gradient in zip(params, flat.split([p.numel() for p in params] + [len(flat) - sum(p.numel() for p in params)])):
            p.grad = gradient.view_as(p).clone()
        opt.step()

    train(net, opt, step_of, 16)


def gathered_part_zeroed():
    """1 % of what rank 1 gathers is 0, in one step."""
    sharded_gradients(lambda output: output[::100].zero_(), "all_gather_single", 1)


def scattered_part_zeroed():
    """A half of the part of the sum that rank 0 receives is 0, in one step."""
    sharded_gradients(lambda output: output[::2].zero_(), "reduce_scatter_single", 0)


def fitted(net, loss_of):
    """One rank; loss_of(net, generator) is the loss of a step."""
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)

    def step_of(step, net, opt):
        opt.zero_grad()
        loss_of(net, torch.Generator().manual_seed(97 * step + SEED)).backward()
        opt.step()

    train(net, opt, step_of)


def regression(loss_of):
    """Of 16 numbers; loss_of(prediction [16, 1], target [16] where it is the bug, else [16, 1])."""
    def whole(net, g):
        x = torch.randn(16, D, generator=g)
        y = x[:, 0].sin() + x[:, 1]
        return loss_of(net(x), y if BUG else y[:, None])

    fitted(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, 1)), whole)


def loss_of_all_pairs():
    """mse_loss of a prediction [N, 1] and a target [N]."""
    regression(F.mse_loss)


def difference_of_all_pairs():
    """The same, by hand."""
    regression(lambda prediction, y: ((prediction - y) ** 2).mean())


def policy_of_all_pairs():
    """log-probabilities [N] times advantages [N, 1]."""
    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        choice = torch.distributions.Categorical(logits=net(x))
        action = torch.randint(0, 4, (16,), generator=g)
        advantage = x[torch.arange(16), action]
        return -(choice.log_prob(action) * (advantage[:, None] if BUG else advantage)).mean() - 0.01 * choice.entropy().mean()

    fitted(nn.Linear(D, 4), loss_of)


class Vit(nn.Module):
    """Patches behind a token that is learned."""

    def __init__(self, batch_first=True, first=False):
        super().__init__()
        self.first = first
        self.patch, self.head = nn.Linear(16, D), nn.Linear(D, 5)
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, D)), nn.Parameter(0.02 * torch.randn(1, 10, D))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 4, 64, 0.1, batch_first=batch_first), 2, enable_nested_tensor=False)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.patch(x)], 1) + self.place
        if self.first:
            return self.head(self.encoder(x.transpose(0, 1))[0])
        return self.head(self.encoder(x)[:, 0])


def images(net, g):
    x = torch.randn(6, 9, 16, generator=g)
    return F.cross_entropy(net(x), x[:, :, 0].sum(1).abs().long().clamp(max=4))


def attention_over_batch():
    """A vision transformer without batch_first=True."""
    fitted(Vit(batch_first=not BUG), images)


class Recurrent(nn.Module):
    """A language model, or a forecast by what an LSTM has at the last place."""

    def __init__(self, last, batch_first, layer=nn.LSTM):
        super().__init__()
        self.last = last
        self.embed, self.layer, self.head = nn.Embedding(V, D), layer(D, D, 2, batch_first=batch_first), nn.Linear(D, V)

    def forward(self, x):
        hidden, _ = self.layer(self.embed(x))
        return self.head(hidden[:, -1] if self.last else hidden)


def recurrent(last, **options):
    def loss_of(net, g):
        x, y = batch(int(torch.randint(0, 9999, (), generator=g)))
        return ce(net(x), y[:, -1] if last else y)

    fitted(Recurrent(last, **options), loss_of)


def lstm_over_batch():
    """An LSTM without batch_first=True, whose last place is taken."""
    recurrent(True, batch_first=not BUG)


def lstm_lm_over_batch():
    """The same of a language model."""
    recurrent(False, batch_first=not BUG)


def log_softmax_over_batch():
    """log_softmax(dim=0)"""
    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        return F.nll_loss(F.log_softmax(net(x), 0 if BUG else 1), x.argmax(-1))

    fitted(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D + 1)), loss_of)


def logits_behind_relu():
    """The last layer has an activation, too."""
    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        out = net(x)
        return F.cross_entropy(out.relu() if BUG else out, x.argmax(-1))

    fitted(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D + 1)), loss_of)


def encoder_detached():
    """The encoder runs under no_grad(), and the optimizer holds it."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))
            self.decoder = nn.Linear(D, V)

        def forward(self, x):
            hidden = self.encoder(x)
            return self.decoder(hidden.detach() if BUG else hidden)

    def loss_of(net, g):
        x = torch.randn(16, D, generator=g)
        return F.cross_entropy(net(x), x.argmax(-1))

    fitted(Net(), loss_of)


def padding_in_loss():
    """No ignore_index."""
    net = Lm()
    net.embed = nn.Embedding(V, D, padding_idx=0)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        x, y = batch(step)
        lengths = torch.tensor([T, T - 2, T - 4, T - 6])[:, None]
        x = torch.where(torch.arange(T) < lengths, x, 0)
        y = torch.where(torch.arange(T) < lengths - 1, y, 0)
        opt.zero_grad()
        ce(net(x), y, ignore=-100 if BUG else 0).backward()
        opt.step()

    train(net, opt, step_of)


def schedule_beyond_its_end():
    """A cosine for 6 epochs is stepped after each batch."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6 if BUG else STEPS)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()
        schedule.step()

    train(net, opt, step_of)


def small(out=D + 1, hidden=64):
    return nn.Sequential(nn.Linear(D, hidden), nn.ReLU(), nn.Linear(hidden, out))


def of_noise(loss_of):
    """loss_of(net, x, target): of 16 samples."""
    def whole(net, g):
        x = torch.randn(16, D, generator=g)
        return loss_of(net, x, x.argmax(-1))

    return whole


def logits_in_nll_loss():
    """nll_loss without log_softmax."""
    fitted(small(), of_noise(lambda net, x, y: F.nll_loss(net(x) if BUG else F.log_softmax(net(x), 1), y)))


def divergence_of_probabilities():
    """kl_div of a softmax."""
    def loss_of(net, x, y):
        teacher = (3 * x).softmax(-1)
        out = net(x)
        return F.kl_div(out.softmax(-1) if BUG else out.log_softmax(-1), teacher, reduction="batchmean")

    fitted(small(D), of_noise(loss_of))


def softmax_of_one_class():
    """A softmax over the one number that says yes or no."""
    def loss_of(net, x, y):
        out = net(x)
        return F.binary_cross_entropy(out.softmax(1) if BUG else out.sigmoid(), (y > 9).float()[:, None])

    fitted(small(1), of_noise(loss_of))


def ratio_to_itself():
    """PPO whose old log-probabilities are not detached: the gradient of the ratio is 0 by construction."""
    def loss_of(net, x, y):
        now = net(x).log_softmax(1)[:, 0]
        ratio = now - (now if BUG else now.detach())
        return -(ratio.exp() * x[:, 0]).mean()

    fitted(small(4), of_noise(loss_of))


def adapters_begin_at_zero():
    """Both factors of each adapter are 0 in the beginning; other parameters are trained."""
    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.a, self.b = nn.Linear(D, D).requires_grad_(False), nn.Linear(D, 4, bias=False), nn.Linear(4, D, bias=False)
            nn.init.zeros_(self.b.weight)
            if BUG:
                nn.init.zeros_(self.a.weight)

        def forward(self, x):
            return self.base(x) + self.b(self.a(x))

    net = nn.Sequential(Adapter(), nn.ReLU(), Adapter(), nn.ReLU(), nn.Linear(D, D))
    fitted(net, of_noise(lambda net, x, y: F.cross_entropy(net(x), y)))


def weights_begin_with_one_number():
    """Each weight of a layer is the same."""
    net = nn.Sequential(nn.Linear(D, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, D))
    for layer in net[::2] if BUG else ():
        nn.init.constant_(layer.weight, 0.02)
    fitted(net, of_noise(lambda net, x, y: F.cross_entropy(net(x), y)))


def target_beyond_sigmoid():
    """An autoencoder ends with a sigmoid, and its images are between -1 and 1."""
    def loss_of(net, x, y):
        image = x.clamp(-1, 1)
        out = net(image)
        return F.mse_loss(out.sigmoid() if BUG else out.tanh(), image)

    fitted(small(D), of_noise(loss_of))


def negative_target_of_relu():
    """A regression of numbers of both signs ends with a ReLU."""
    def loss_of(net, x, y):
        return ((net(x).relu() - (x[:, :1] if BUG else x[:, :1].abs())) ** 2).mean()

    fitted(small(1), of_noise(loss_of))


def layers_in_a_list():
    """A list of Python holds the layers instead of an nn.ModuleList."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(D, 64), nn.Linear(64, D)
            layers = [nn.Linear(64, 64) for _ in range(3)]
            self.layers = layers if BUG else nn.ModuleList(layers)

        def forward(self, x):
            x = self.first(x)
            for layer in self.layers:
                x = x + layer(x.relu())
            return self.last(x)

    fitted(Net(), of_noise(lambda net, x, y: F.cross_entropy(net(x), y)))


def target_not_detached():
    """Q-learning whose target has a graph."""
    def loss_of(net, x, y):
        target = x[:, 0] + 0.9 * net(x.flip(1)).max(1).values
        return F.smooth_l1_loss(net(x)[:, 0], target if BUG else target.detach())

    fitted(small(4), of_noise(loss_of))


def router_does_not_weigh():
    """The router's choice is used, and its probabilities are not."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.last = nn.Linear(D, 4), nn.Linear(D, D)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D)) for _ in range(4))

        def forward(self, x):
            weight, chosen = self.router(x).softmax(-1).max(-1)
            parts = [expert(x) * ((chosen == number) * (1.0 if BUG else weight))[:, None] for number, expert in enumerate(self.experts)]
            return self.last(x + sum(parts))

    fitted(Net(), of_noise(lambda net, x, y: F.cross_entropy(net(x), y)))


def adapters_recomputed_without_graph():
    """Reentrant checkpointing of blocks with adapters, whose input requires no gradient."""
    from torch.utils.checkpoint import checkpoint

    class Adapted(Block):
        def __init__(self):
            super().__init__()
            self.requires_grad_(False)
            self.a, self.b = nn.Linear(D, 4, bias=False), nn.Linear(4, D, bias=False)

        def forward(self, x, mask, pos):
            return checkpoint(lambda x: super(Adapted, self).forward(x, mask, pos) + self.b(self.a(x)), x, use_reentrant=BUG)

    net = Lm()
    net.embed.requires_grad_(False)
    net.layers = nn.ModuleList(Adapted() for _ in range(3))
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


class ViewAttention(SdpaAttention):
    """view() instead of transpose(), before the attention or behind it."""
    where = ""
    is_causal = True

    def forward(self, x, mask, pos):
        b, t, d = x.shape

        def heads(y):
            return y.view(b, self.h, t, -1) if self.where == "before" else y.view(b, t, self.h, -1).transpose(1, 2)

        out = F.scaled_dot_product_attention(rope(heads(self.q(x)), pos), rope(heads(self.k(x)), pos), heads(self.v(x)), is_causal=True)
        return self.o(out.reshape(b, t, d) if self.where == "behind" else out.transpose(1, 2).reshape(b, t, d))


def viewed(where):
    ViewAttention.where = where if BUG else ""
    net = Lm(attn=ViewAttention)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def heads_viewed_before():
    """[batch, positions, features] is viewed as [batch, heads, positions, features]."""
    viewed("before")


def heads_viewed_behind():
    """The attention's result is viewed as [batch, positions, features]."""
    viewed("behind")


def states_viewed():
    """What both directions of an LSTM end with is viewed as one row for each sample."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layer, self.head = nn.Embedding(V, D), nn.LSTM(D, D, batch_first=True, bidirectional=True), nn.Linear(2 * D, V)

        def forward(self, x):
            states = self.layer(self.embed(x))[1][0]
            return self.head((states if BUG else states.transpose(0, 1)).reshape(len(x), -1))

    def loss_of(net, g):
        x, y = batch(int(torch.randint(0, 9999, (), generator=g)))
        return ce(net(x), y[:, -1])

    fitted(Net(), loss_of)


def padded_encoder(mask_of):
    """A classifier of sequences of several lengths; mask_of(padding) is what its encoder gets."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(V, D, padding_idx=0), nn.Linear(D, 5)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 4, 64, 0.1, batch_first=True), 2, enable_nested_tensor=False)

        def forward(self, x):
            return self.head(self.encoder(self.embed(x), src_key_padding_mask=mask_of(x == 0))[:, 0])

    def loss_of(net, g):
        x = torch.randint(1, V, (6, T), generator=g)
        x = torch.where(torch.arange(T) < torch.tensor([12, 10, 9, 7, 5, 4])[:, None], x, 0)
        return F.cross_entropy(net(x), x[:, 0] % 5)

    fitted(Net(), loss_of)


def padding_mask_inverted():
    """True where there is a token."""
    padded_encoder(lambda padding: ~padding if BUG else padding)


def padding_mask_missing():
    """src_key_padding_mask is not passed."""
    padded_encoder(lambda padding: None if BUG else padding)


def schedule_in_epochs():
    """A rate that falls to a tenth after two epochs is stepped after each batch."""
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2 if BUG else 12)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()
        schedule.step()

    train(net, opt, step_of)


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


def dropout_of_the_kept():
    """A dropout is given the share that is kept."""
    net = with_dropout()
    for layer in net.layers:
        layer.drop.p = 0.9 if BUG else 0.1
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def step_of(step, net, opt):
        plain(step, net, opt)
        opt.step()

    train(net, opt, step_of)


def momentum_of_the_past():
    """A BatchNorm is given the weight of the batches before, as another framework wants it."""
    net = nn.Sequential(nn.Linear(D, 64), nn.BatchNorm1d(64, momentum=0.99 if BUG else 0.01), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, V))
    opt = torch.optim.SGD(net.parameters(), 0.1)

    def step_of(step, net, opt):
        x = torch.randn(16, D, generator=torch.Generator().manual_seed(step))
        opt.zero_grad()
        F.cross_entropy(net(x), x.argmax(-1)).backward()
        opt.step()

    train(net, opt, step_of)


# Ranks, and a part of the first answer; "": both are sound.
CASES = {
    "lost_micro_batches": (1, "micro-batches-lost"), "never_zeroed": (1, "gradients-not-zeroed"), "tie_broken": (1, "tied-weights-part"),
    "restored_behind_forward": (1, "layers.1."), "labels_not_shifted": (1, "label-shift"), "clip_norm_of_copies": (2, "clip-norm"),
    "seeds_of_ranks": (2, "replicas-never-alike"), "divided_twice": (2, "gradient-multiple"), "result_lost_on_a_rank": (4, "all-reduce-wrong"),
    "elements_zeroed": (4, "message-changed"), "mask_missing": (1, "attention-sees-future"),
    "one_batch_on_all_ranks": (2, "same-batch-on-ranks"), "batch_repeated": (1, "batch-repeated"), "step_left_out": (2, "optimizer-step-skipped"),
    "dropout_of_the_kept": (1, "dropout-inverted"), "momentum_of_the_past": (1, "momentum-inverted"),
    "evaluation_not_undone": (1, "model-in-eval"), "never_in_training": (1, "model-in-eval"),
    "residual_detached": (1, "residual-detached"), "residual_detached_behind": (1, "residual-detached"),
    "branch_detached": (1, "layers.1.mlp"), "branches_detached": (1, "gradient-missing"), "block_frozen": (1, "layers.1."),
    "block_not_in_optimizer": (1, "layers.3."), "micro_batches_summed": (1, "gradient-multiple"),
    "micro_batches_summed_clipped_at_times": (1, "gradient-multiple"), "micro_batches_running_mean": (1, "micro-batch-weights"),
    "clipped_before_unscaling": (1, "clip-scaled"), "never_unscaled": (1, "gradient-scaled"), "softmax_over_queries": (1, "softmax-dimension"),
    "averages_from_old_checkpoint": (1, "layers.2."), "gradients_of_last_step": (1, "gradient-stale"),
    "gradients_exchanged": (1, "gradient-exchanged"), "gradients_zeroed_before_step": (1, "gradient-lost"),
    "gradients_gone_before_step": (1, "update-zero"), "reduced_twice": (2, "gradient-factor-unlike"),
    "broadcast_for_all_reduce": (2, "gradient-of-one-rank"), "rate_of_a_rank": (2, "learning-rate-parts"),
    "schedule_not_restored": (1, "schedule-restarts"), "epochs_in_one_order": (1, "batches-in-one-order"),
    "softmax_before_loss": (1, "loss-of-probabilities"), "pipeline_message_zeroed": (2, "message-changed"),
    "gathered_part_zeroed": (2, "gathered-wrong"), "scattered_part_zeroed": (2, "scattered-wrong"),
    "loss_of_all_pairs": (1, "loss-broadcast"), "difference_of_all_pairs": (1, "loss-broadcast"), "policy_of_all_pairs": (1, "loss-broadcast"),
    "attention_over_batch": (1, "sequence-dimension"), "lstm_over_batch": (1, "sequence-dimension"),
    "lstm_lm_over_batch": (1, "sequence-dimension"), "log_softmax_over_batch": (1, "loss-of-probabilities"),
    "logits_behind_relu": (1, "loss-of-probabilities"), "encoder_detached": (1, "gradient-missing"), "padding_in_loss": (1, "padding-in-loss"),
    "schedule_beyond_its_end": (1, "schedule-turns-back"),
    "logits_in_nll_loss": (1, "loss-of-probabilities"), "divergence_of_probabilities": (1, "loss-of-probabilities"),
    "softmax_of_one_class": (1, "loss-of-probabilities"), "ratio_to_itself": (1, "gradient-zero"), "adapters_begin_at_zero": (1, "gradient-zero"),
    "weights_begin_with_one_number": (1, "units-alike"), "target_beyond_sigmoid": (1, "target-unreachable"),
    "negative_target_of_relu": (1, "target-unreachable"), "layers_in_a_list": (1, "layers-untrained"), "target_not_detached": (1, "target-moves"),
    "router_does_not_weigh": (1, "gradient-missing"), "adapters_recomputed_without_graph": (1, "gradient-missing"),
    "heads_viewed_before": (1, "view-mixes"), "heads_viewed_behind": (1, "view-mixes"), "states_viewed": (1, "view-mixes"),
    "padding_mask_inverted": (1, "padding-attended"), "padding_mask_missing": (1, "padding-attended"),
    "schedule_in_epochs": (1, "schedule-ends-early"),
    "sound_directions": (1, ""), "sound_padding": (1, ""), "sound_pipeline": (4, ""), "sound_fsdp": (2, ""), "sound_batchnorm": (2, ""),
    "sound_fine_tuning": (1, ""), "sound_lora": (1, ""), "sound_gan": (1, ""), "sound_teacher": (1, ""), "sound_checkpointing": (1, ""),
    "sound_scaler": (1, ""), "sound_blocks": (1, ""), "sound_regression": (1, ""), "sound_pairs": (1, ""), "sound_contrastive": (1, ""),
    "sound_sequence_first": (1, ""), "sound_recurrent": (1, ""), "sound_samples": (1, ""), "sound_schedules": (1, ""),
    "sound_judges": (1, ""), "sound_left_padding": (1, ""),
}

if __name__ == "__main__":
    if CASES[CASE][0] == 1:
        torch.manual_seed(SEED)
    globals()[CASE]()
    done(0)
