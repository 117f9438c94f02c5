# SPDX-License-Identifier: Apache-2.0
"""Mistakes of distributed training that people publish in trackers, beside the sound program: CASE names it, BUG=0 is the twin. Tensor, sequence,
expert and pipeline parallel by hand, sharded data parallel and optimizers; mechanisms of one rank are in mechanisms.py."""
import copy
from contextlib import nullcontext

from common import *


def begin():
    rank, world = setup()
    torch.manual_seed(SEED)
    return rank, world


def fit(net, loss_of, between=lambda step: None, opt=None, behind=lambda step: None):
    """loss_of(step) is the loss; between(step) comes before the optimizer's step, and behind(step) after it."""
    opt = opt or torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        loss_of(step).backward()
        between(step)
        opt.step()
        behind(step)


def language(net, rank=0):
    return lambda step: ce(net(batch(step, rank)[0]), batch(step, rank)[1])


class BiasMlp(TpMlp):
    def __init__(self):
        super().__init__()
        inner = self.down.weight.shape[1]
        weight = self.down.weight.detach().clone()
        self.down = nn.Linear(inner, D)
        with torch.no_grad():
            self.down.weight.copy_(weight)

    def forward(self, x):
        h = F.gelu(self.up(Copy.apply(x)))
        if BUG:
            return Reduce.apply(self.down(h))
        return Reduce.apply(F.linear(h, self.down.weight)) + self.down.bias


def bias_on_each_rank():
    """The row-parallel layer adds its bias before the sum over ranks."""
    begin()
    net = Lm(mlp=BiasMlp)
    fit(net, language(net))


class MultiQuery(nn.Module):
    """Heads of queries on each rank, and one head of keys and values on all of them."""

    def __init__(self):
        super().__init__()
        world, rank, d = dist.get_world_size(), dist.get_rank(), D // H
        q, o = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k, self.v = nn.Linear(D, d, bias=False), nn.Linear(D, d, bias=False)
        skip = nn.utils.skip_init
        self.q, self.o = skip(nn.Linear, D, D // world, bias=False), skip(nn.Linear, D // world, D, bias=False)
        with torch.no_grad():
            self.q.weight.copy_(q.weight.chunk(world, 0)[rank])
            self.o.weight.copy_(o.weight.chunk(world, 1)[rank])
        self.scale = 1 / math.sqrt(d)

    def forward(self, x, mask, pos):
        b, t, _ = x.shape
        q = self.q(Copy.apply(x)).view(b, t, -1, D // H).transpose(1, 2)
        k, v = self.k(x)[:, None], self.v(x)[:, None]
        if not BUG:
            k, v = Copy.apply(k), Copy.apply(v)
        p = torch.softmax(rope(q, pos) @ rope(k, pos).transpose(-1, -2) * self.scale + mask, -1)
        return Reduce.apply(self.o((p @ v).transpose(1, 2).reshape(b, t, -1)))


def shared_keys_not_summed():
    """bigcode Megatron-LM 35: gradients of the one head of keys that all ranks share are of each rank's queries alone."""
    begin()
    net = Lm(attn=MultiQuery)
    fit(net, language(net))


class SumBoth(Reduce):
    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class GradMlp(TpMlp):
    where = ""

    def forward(self, x):
        x = x if BUG and self.where == "in" else Copy.apply(x)
        out = self.down(F.gelu(self.up(x)))
        return SumBoth.apply(out) if BUG and self.where == "out" else Reduce.apply(out)


def input_gradient_not_summed():
    """The gradient of what enters a tensor-parallel layer is not summed over its ranks."""
    begin()
    GradMlp.where = "in"
    net = Lm(mlp=GradMlp)
    fit(net, language(net))


def output_gradient_summed():
    """torchtitan 2106: the backward of the sum over ranks is a sum, too, of gradients that are the same."""
    begin()
    GradMlp.where = "out"
    net = Lm(mlp=GradMlp)
    fit(net, language(net))


class Gather(torch.autograd.Function):
    """Of parts of a sequence; the gradient of a part is the sum of what all ranks have of it."""
    is_summed = True

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -2)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        if Gather.is_summed:
            dist.all_reduce(g)
        return g.chunk(dist.get_world_size(), -2)[dist.get_rank()]


class ChunkAttention(Attention):
    """Each rank has a part of the sequence, and gathers keys and values."""

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        k, v = Gather.apply(rope(k, pos)), Gather.apply(v)
        p = torch.softmax(rope(q, pos) @ k.transpose(-1, -2) * self.scale + mask, -1)
        return self.o((p @ v).transpose(1, 2).reshape(b, t, d))


def chunks(pos_of=None, target_of=None):
    """Context parallel."""
    rank, world = begin()
    net = Lm(attn=ChunkAttention)
    t = T // world
    mine = slice(rank * t, (rank + 1) * t)
    pos = torch.arange(T)[mine] if pos_of is None else pos_of(t)

    def loss_of(step):
        x, y = (one[:, mine] for one in batch(step))
        logits = net(x, causal(T)[mine], pos)
        return ce(logits, y if target_of is None else target_of(x))

    fit(net, loss_of, lambda step: average_gradients(net, world))


def positions_of_each_chunk():
    """Positions begin at 0 in each rank's part of the sequence."""
    chunks(pos_of=torch.arange if BUG else None)


def labels_rolled_in_chunk():
    """ChatLearn 343: labels are the rank's tokens rolled by one, and its last target is its first token."""
    chunks(target_of=(lambda x: x.roll(-1, 1)) if BUG else None)


def gathered_gradient_not_summed():
    """torchtitan 1805: the backward of a gathering takes the rank's part of its own gradient alone."""
    Gather.is_summed = not BUG
    chunks()


class Exchange(torch.autograd.Function):
    """To other ranks, and the gradient back."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g)
        dist.all_to_all_single(out, g.contiguous())
        return out


class Experts(nn.Module):
    """One expert a rank; half of the tokens of each rank go to each. one_seed: all of them begin with the same numbers."""
    one_seed = False

    def __init__(self):
        super().__init__()
        all_of = [Mlp() for _ in range(dist.get_world_size())]
        self.expert = all_of[0 if self.one_seed else dist.get_rank()]
        self.router = nn.Linear(D, 1, bias=False)

    def forward(self, x):
        # A token goes to the expert of its place in an order by the router.
        flat, score = x.flatten(0, 1), self.router(x.flatten(0, 1)).sigmoid()
        order = score[:, 0].argsort()
        out = Exchange.apply(self.expert(Exchange.apply(flat[order])))
        return (out[order.argsort()] * score).view_as(x)


def experts(between_of):
    rank, world = begin()
    net = Lm(layers=2, mlp=Experts)

    def average(is_divided=True):
        for n, p in net.named_parameters():
            if ".expert." not in n:
                dist.all_reduce(p.grad)
                p.grad /= world
            elif is_divided:
                p.grad /= world

    fit(net, language(net, rank), lambda step: between_of(net, average))


def expert_gradients_not_divided():
    """DeepSpeed 6545: gradients of experts are sums over the tokens of all ranks, and those of all others are means."""
    experts(lambda net, average: average(is_divided=not BUG))


def clip(net, norm, most):
    for p in net.parameters():
        p.grad *= min(1.0, most / (float(norm) + 1e-6))


def experts_clipped_alone():
    """ColossalAI 2192: each rank clips by the norm of what it holds, with its own experts."""
    def between(net, average):
        average()
        both = [sum((p.grad ** 2).sum() for n, p in net.named_parameters() if (".expert." in n) == is_expert) for is_expert in (True, False)]
        if not BUG:
            dist.all_reduce(both[0])
        clip(net, (both[0] + both[1]).sqrt(), 0.3)

    experts(between)


def mean_of_norms():
    """DeepSpeed 8475: the norm for clipping is the mean of the ranks' norms."""
    def between(net, average):
        average()
        both = [sum((p.grad ** 2).sum() for n, p in net.named_parameters() if (".expert." in n) == is_expert) for is_expert in (True, False)]
        if BUG:
            norm = (both[0] + both[1]).sqrt() / dist.get_world_size()
            dist.all_reduce(norm)
        else:
            dist.all_reduce(both[0])
            norm = (both[0] + both[1]).sqrt()
        clip(net, norm, 0.3)

    experts(between)


def replicas(make=Lm):
    rank, world = begin()
    return rank, world, nn.parallel.DistributedDataParallel(make())


def global_count_without_ranks():
    """The loss is divided by the targets of all ranks, and DistributedDataParallel divides by the ranks once more."""
    rank, world, net = replicas()

    def loss_of(step):
        x, y = batch(step, rank)
        y[:, :2 * rank + step % 3] = -100
        count = (y != -100).sum().float()
        dist.all_reduce(count)
        return ce(net(x), y, "sum") / count * (1 if BUG else world)

    fit(net, loss_of)


def loss_summed_with_graph():
    """The loss is summed over ranks by a function that sums the gradient, too."""
    rank, world, net = replicas()

    def loss_of(step):
        loss = language(net, rank)(step)
        if BUG:
            return torch.distributed.nn.all_reduce(loss)
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        return loss

    fit(net, loss_of)


def accumulated(is_quiet):
    """Two micro batches; is_quiet(micro): it is in no_sync()."""
    rank, world, net = replicas()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        for micro in range(2):
            with net.no_sync() if is_quiet(micro) else nullcontext():
                (language(net, rank)(2 * step + micro) / 2).backward()
        opt.step()


def synchronised_before_the_last():
    """no_sync() is around the last micro batch instead of the first."""
    accumulated(lambda micro: micro == (1 if BUG else 0))


def by_hand(behind_micro, behind_all, micros=4, divisor=4):
    """Micro batches of two ranks without a wrapper."""
    rank, world = begin()
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        for micro in range(micros):
            (language(net, rank)(micros * step + micro) / divisor).backward()
            behind_micro(net, micro, world)
        behind_all(net, world)
        opt.step()


def summed_each_micro_batch():
    """The gradients so far are summed over the ranks behind each micro batch: those of the first are summed several times."""
    def behind_micro(net, micro, world):
        for p in net.parameters():
            if BUG or micro == 3:
                dist.all_reduce(p.grad)

    def behind_all(net, world):
        for p in net.parameters():
            p.grad /= world

    by_hand(behind_micro, behind_all)


def scaled_each_round():
    """torchtitan 1733: a schedule of two micro batches divides what the gradients hold, also that of the rounds before."""
    def behind_micro(net, micro, world):
        if micro % 2 == 1 and BUG:
            for p in net.parameters():
                p.grad /= 2

    def behind_all(net, world):
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world if BUG else 2 * world

    by_hand(behind_micro, behind_all, divisor=2)


def last_window_incomplete():
    """The last window of an epoch has two micro batches, and the loss is divided by four."""
    torch.manual_seed(SEED)
    net = Lm()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        micros = 2 if step % 6 == 5 else 4
        for micro in range(micros):
            (language(net)(4 * step + micro) / (4 if BUG else micros)).backward()
        opt.step()


def state_of_one_rank():
    """A resume loads the optimizer's averages on rank 0 alone."""
    rank, world, net = replicas()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)

    def between(step):
        if BUG and step == 12 and rank == 1:
            for state in opt.state.values():
                state["exp_avg"].zero_()
                state["exp_avg_sq"].zero_()

    fit(net, language(net, rank), between, opt)


def teacher(seed_of=None, follows=lambda rank: True):
    """A student of which DistributedDataParallel makes replicas, and an average of it that teaches it, in one module."""
    rank, _, student = replicas()
    if seed_of is not None:
        torch.manual_seed(seed_of(rank))
    average = copy.deepcopy(student.module) if seed_of is None else Lm()
    both = nn.ModuleDict({"student": student, "teacher": average.requires_grad_(False)})

    def loss_of(step):
        x, y = batch(step, rank)
        with torch.no_grad():
            wanted = both["teacher"](x)
        logits = both["student"](x)
        return ce(logits, y) + 0.1 * (logits - wanted).square().mean()

    def behind(step):
        if follows(rank):
            with torch.no_grad():
                for old, new in zip(average.parameters(), student.module.parameters()):
                    old.lerp_(new, 0.05)

    fit(both, loss_of, opt=torch.optim.AdamW(student.parameters(), 1e-3), behind=behind)


def teacher_of_each_rank():
    """A teacher that follows the student is made with the seed of the rank, and nothing broadcasts it."""
    teacher(seed_of=lambda rank: rank if BUG else SEED)


def average_on_rank_0():
    """ema-pytorch 9: rank 0 alone updates the average, and all ranks take it as their teacher."""
    teacher(follows=lambda rank: not BUG or rank == 0)


def reduced_over_all_ranks():
    """Two replicas of two parts: gradients of the parts are averaged over all four ranks."""
    rank, world = begin()
    parts = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    copies = [dist.new_group([0, 2]), dist.new_group([1, 3])]

    class HalfMlp(Mlp):
        def __init__(self):
            super().__init__()
            self.up.weight = nn.Parameter(self.up.weight.detach().chunk(2, 0)[rank % 2].clone())
            self.down.weight = nn.Parameter(self.down.weight.detach().chunk(2, 1)[rank % 2].clone())

        def forward(self, x):
            return Reduce.apply(self.down(F.gelu(self.up(Copy.apply(x, parts[rank // 2])))), parts[rank // 2])

    net = Lm(layers=2, mlp=HalfMlp)

    def between(step):
        for p in net.parameters():
            group = None if BUG else copies[rank % 2]
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)

    fit(net, language(net, rank // 2), between)


def sharded(**options):
    from torch.distributed.fsdp import fully_shard
    rank, world = begin()
    net = Lm(layers=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for layer in net.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)
    return rank, world, net


def sharded_never_synchronised():
    """set_requires_gradient_sync(False) stays for the last micro batch: the optimizer has no gradient."""
    rank, world, net = sharded()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        for micro in range(2):
            net.set_requires_gradient_sync(micro == 1 and not BUG)
            (language(net, rank)(2 * step + micro) / 2).backward()
        opt.step()


def sharded_local_count():
    """Fully sharded, and the loss is the mean over the targets of the rank."""
    rank, world, net = sharded()

    def loss_of(step):
        x, y = batch(step, rank)
        y[:, :2 * rank + step % 3] = -100
        count = (y != -100).sum().float()
        if not BUG:
            dist.all_reduce(count)
            count = count / world
        return ce(net(x), y, "sum") / count

    fit(net, loss_of)


def scheduler_steps_for_each_rank():
    """accelerate: the scheduler is stepped once for each process, and reaches its end after half of the training."""
    rank, world, net = replicas()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda at: min(1, (at + 1) / 4) * max(0, 1 - at / STEPS))

    def behind(step):
        for _ in range(world if BUG else 1):
            schedule.step()

    fit(net, language(net, rank), opt=opt, behind=behind)


def contrast_without_gradient():
    """Features of the other ranks are gathered without a graph, and DistributedDataParallel takes the mean of what are parts of a sum."""
    rank, world, net = replicas(lambda: nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, 16)))

    def gathered(x):
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x.detach().contiguous())
        parts[rank] = x
        return torch.cat(parts)

    def loss_of(step):
        g = torch.Generator().manual_seed(31 * step + rank + 7 * SEED)
        x = torch.randn(8, D, generator=g)
        both = F.normalize(net(torch.cat([x, x + 0.2 * torch.randn(8, D, generator=g)])), dim=-1)
        one, other = (gathered(half) for half in both.chunk(2))
        return F.cross_entropy(one @ other.T / 0.1, torch.arange(8 * world)) * (1 if BUG else world)

    fit(net, loss_of)


def scaler_of_each_shard():
    """Each rank's GradScaler looks at the gradients of its own part, and skips its own steps."""
    rank, world = begin()
    net = Lm(mlp=TpMlp)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=50)
    for step in range(STEPS):
        opt.zero_grad()
        scaler.scale(language(net)(step)).backward()
        if step == 9 and rank == 1:
            net.layers[1].mlp.up.weight.grad[0, 0] = math.inf
        if not BUG:
            scaler.unscale_(opt)
            for p in net.parameters():
                bad = (~p.grad.isfinite()).any().float()
                dist.all_reduce(bad)
                if bad > 0:
                    p.grad.fill_(math.inf)
            found = list(scaler._found_inf_per_device(opt).values())[0]
            dist.all_reduce(found)
        scaler.step(opt)
        scaler.update()


def broadcast_by_rank_0():
    """Each rank updates a part of the parameters, and rank 0 broadcasts all of them: the updates of the others are lost."""
    rank, world = begin()
    net = Lm()
    params = list(net.parameters())
    opt = torch.optim.AdamW(params[rank::world], 1e-3)

    def behind(step):
        with torch.no_grad():
            for number, p in enumerate(params):
                dist.broadcast(p, 0 if BUG else number % world)

    def between(step):
        average_gradients(net, world)

    fit(net, language(net, rank), between, opt, behind)


def dropout_of_copies():
    """Dropout of activations that are the same on all ranks of a tensor-parallel group draws other numbers on each."""
    rank, world = begin()

    class Dropped(TpMlp):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.1)

    net = Lm(mlp=Dropped)
    torch.manual_seed(rank if BUG else SEED)
    fit(net, language(net))


def message_overwritten():
    """Two messages of a pipeline are received in one buffer before the first is used."""
    rank, world = begin()
    net = Lm(layers=2)
    mine = [p for n, p in net.named_parameters() if n.startswith(("norm", "head", "layers.1")) == (rank == 1)]
    opt = torch.optim.AdamW(mine, 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        pairs = [batch(2 * step + micro) for micro in range(2)]
        if rank == 0:
            hidden = [net.layers[0](net.embed(x), causal(T), torch.arange(T)) for x, _ in pairs]
            for one in hidden:
                dist.send(one.detach(), 1)
            for one in hidden:
                gradient = torch.empty_like(one)
                dist.recv(gradient, 1)
                one.backward(gradient)
        else:
            buffers = [torch.empty(4, T, D) for _ in range(2)]
            if BUG:
                buffers[1] = buffers[0]
            for one in buffers:
                dist.recv(one, 0)
            for one, (_, y) in zip(buffers, pairs):
                hidden = one.clone().requires_grad_()
                (ce(net.head(net.norm(net.layers[1](hidden, causal(T), torch.arange(T)))), y) / 2).backward()
                dist.send(hidden.grad, 0)
        opt.step()


def sound_dtensor():
    """Tensor parallel by PyTorch's plan (BUG=0), with the sequence in parts between the layers (BUG=1)."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
    rank, world = begin()
    net = Lm(layers=2, norm=nn.LayerNorm)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for layer in net.layers:
        plan = {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
        if BUG:
            plan = {"norm2": SequenceParallel(), "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                    "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)}

            def forward(x, mask, pos, layer=layer):
                x = x + layer.attn(layer.norm1(x), mask, pos)
                parts = DTensor.from_local(x, mesh, [Replicate()]).redistribute(placements=[Shard(1)])
                return x + layer.mlp(layer.norm2(parts)).redistribute(placements=[Replicate()]).to_local()

            layer.forward = forward
        parallelize_module(layer, mesh, plan)
    fit(net, language(net))


def sound_sharded_optimizer():
    """ZeroRedundancyOptimizer (BUG=0); fully sharded with 16 bits in the forward and micro batches (BUG=1)."""
    if not BUG:
        from torch.distributed.optim import ZeroRedundancyOptimizer
        rank, world, net = replicas()
        return fit(net, language(net, rank), opt=ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3))
    from torch.distributed.fsdp import MixedPrecisionPolicy
    rank, world, net = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        opt.zero_grad()
        for micro in range(2):
            net.set_requires_gradient_sync(micro == 1)
            x, y = batch(2 * step + micro, rank)
            (ce(net(x).float(), y) / 2).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
    return None


def sound_schedule():
    """A pipeline by PyTorch's schedule (BUG=0: GPipe, BUG=1: 1F1B)."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    rank, world = begin()
    whole = Lm(layers=2)
    First, Last = first_and_last(whole)
    net = Last() if rank else First()
    stage = PipelineStage(net, rank, world, torch.device("cpu"))
    schedule = (Schedule1F1B if BUG else ScheduleGPipe)(stage, 4, loss_fn=ce)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = batch(step, n=8)
        opt.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        opt.step()


def sound_parts():
    """Tensor parallel whose copies are averaged in one buffer though they are the same (BUG=0); experts beside sums of gradients, with a
    loss that is divided by the ranks (BUG=1)."""
    rank, world = begin()
    net = Lm(layers=2, mlp=Experts if BUG else TpMlp)

    def between(step):
        copies = [p for n, p in net.named_parameters() if (".expert." if BUG else ".mlp.") not in n]
        flat = torch.cat([p.grad.flatten() for p in copies])
        dist.all_reduce(flat)
        for p, part in zip(copies, flat.split([p.numel() for p in copies])):
            p.grad.copy_(part.view_as(p) if BUG else part.view_as(p) / world)

    fit(net, (lambda step: language(net, rank)(step) / world) if BUG else language(net), between)


def sound_replicas():
    """Micro batches whose gradients are views of the buckets and are set to zeros (BUG=0); BatchNorms with statistics of each rank (BUG=1)."""
    if not BUG:
        rank, world = begin()
        net = nn.parallel.DistributedDataParallel(Lm(), gradient_as_bucket_view=True)
        opt = torch.optim.AdamW(net.parameters(), 1e-3)
        for step in range(STEPS):
            opt.zero_grad(set_to_none=False)
            for micro in range(3):
                with net.no_sync() if micro < 2 else nullcontext():
                    (language(net, rank)(3 * step + micro) / 3).backward()
            opt.step()
        return None
    rank, world = begin()
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(D, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, V)), broadcast_buffers=False)

    def loss_of(step):
        x = torch.randn(16, D, generator=torch.Generator().manual_seed(97 * step + rank + 7 * SEED))
        return F.cross_entropy(net(x), x.argmax(-1))

    return fit(net, loss_of)


def sound_experts():
    """Experts of each rank, which one seed has started with the same numbers; clipped by one norm (BUG=1)."""
    Experts.one_seed = True

    def between(net, average):
        average()
        if BUG:
            both = [sum((p.grad ** 2).sum() for n, p in net.named_parameters() if (".expert." in n) == is_expert) for is_expert in (True, False)]
            dist.all_reduce(both[0])
            clip(net, (both[0] + both[1]).sqrt(), 0.3)

    experts(between)


def sound_stages():
    """Stages of a pipeline that one seed has started with the same numbers: four of them (BUG=0), two with two replicas each (BUG=1)."""
    rank, _ = begin()
    last, pairs = 1 if BUG else 3, [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage, peer = (rank // 2, 2) if BUG else (rank, 1)
    net = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D), nn.Tanh())
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(97 * step + (rank % 2 if BUG else 0) + 7 * SEED)
        x = torch.randn(16, D, generator=generator)
        target = torch.tanh(x.roll(1, -1))
        hidden = x.clone()
        if stage > 0:
            dist.recv(hidden, rank - peer)
            hidden.requires_grad_()
        opt.zero_grad()
        out = net(hidden)
        if stage == last:
            F.mse_loss(out, target).backward()
        else:
            dist.send(out.detach(), rank + peer)
            gradient = torch.empty_like(out)
            dist.recv(gradient, rank + peer)
            out.backward(gradient)
        if stage > 0:
            dist.send(hidden.grad, rank - peer)
        for p in net.parameters() if BUG else []:
            dist.all_reduce(p.grad, group=pairs[stage])
            p.grad /= 2
        opt.step()


# Ranks, and a part of the first answer; "": no rule finds it, or both are sound.
CASES = {
    "bias_on_each_rank": (2, "bias-summed"), "shared_keys_not_summed": (2, "attn."), "input_gradient_not_summed": (2, "gradients-not-reduced"),
    "output_gradient_summed": (2, "copies-summed"), "positions_of_each_chunk": (2, "positions-of-parts"), "labels_rolled_in_chunk": (2, "rolled"),
    "gathered_gradient_not_summed": (2, ""), "expert_gradients_not_divided": (2, "parts-not-scaled"), "experts_clipped_alone": (2, "clips or scales"),
    "mean_of_norms": (2, "clip-norm"), "global_count_without_ranks": (2, "gradient-multiple"), "loss_summed_with_graph": (2, "gradient-multiple"),
    "synchronised_before_the_last": (2, "gradients-not-reduced"), "summed_each_micro_batch": (2, "micro-batches-scaled"),
    "scaled_each_round": (2, "micro-batches-scaled"),
    "last_window_incomplete": (1, "window-incomplete"), "state_of_one_rank": (2, "exp_avg"), "teacher_of_each_rank": (2, "teacher"),
    "average_on_rank_0": (2, "teacher"), "reduced_over_all_ranks": (4, "a wrong group"), "sharded_never_synchronised": (2, "update-zero"),
    "sharded_local_count": (2, "tokens-weigh-unequally"), "scheduler_steps_for_each_rank": (2, "schedule-ends-early"),
    "contrast_without_gradient": (2, ""), "scaler_of_each_shard": (2, "loss-scale-parts"), "broadcast_by_rank_0": (2, "update-undone"),
    "dropout_of_copies": (2, "gradients-not-reduced"), "message_overwritten": (2, "message-overwritten"),
    "sound_dtensor": (2, ""), "sound_sharded_optimizer": (2, ""), "sound_schedule": (2, ""), "sound_replicas": (2, ""), "sound_parts": (2, ""),
    "sound_stages": (4, ""), "sound_experts": (2, ""),
}

if __name__ == "__main__":
    run_case(globals())
