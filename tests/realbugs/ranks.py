# SPDX-License-Identifier: Apache-2.0
"""Faults of data-parallel training and of collectives. CASE names one, BUG=0 is the sound twin; CASES says how many ranks it needs."""
from loops import *


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


# Ranks, and a part of the first answer; "": no rule finds it.
CASES = {
    "clip_norm_of_copies": (2, "clip-norm"), "seeds_of_ranks": (2, "replicas-never-alike"), "divided_twice": (2, "gradient-multiple"),
    "result_lost_on_a_rank": (4, "all-reduce-wrong"), "elements_zeroed": (4, "message-changed"),
    "one_batch_on_all_ranks": (2, "same-batch-on-ranks"), "step_left_out": (2, "optimizer-step-skipped"),
    "reduced_twice": (2, "gradient-factor-unlike"), "broadcast_for_all_reduce": (2, "gradient-of-one-rank"),
    "rate_of_a_rank": (2, "learning-rate-parts"), "pipeline_message_zeroed": (2, "message-changed"),
    "gathered_part_zeroed": (2, "gathered-wrong"), "scattered_part_zeroed": (2, "scattered-wrong"),
}

if __name__ == "__main__":
    run_case(globals())
