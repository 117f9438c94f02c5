# SPDX-License-Identifier: Apache-2.0
"""Bugs of copies and parts of a model on ranks that people published, and sound programs that look like them: CASE names it, BUG=0 is the twin."""
from common import *
from parallel import begin, fit, language


class Gather(torch.autograd.Function):          # along the sequence; the gradient is summed and cut
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 2)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g.chunk(dist.get_world_size(), 2)[dist.get_rank()]


class Chunks(Attention):
    """Context parallel: keys and values of all chunks of the sequence are gathered."""
    is_of_own = False

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        rank, world = dist.get_rank(), dist.get_world_size()
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        pos = torch.arange(t) + rank * t
        k, v = Gather.apply(rope(k, pos)), Gather.apply(v)
        scores = torch.matmul(rope(q, pos), k.transpose(-1, -2)) * self.scale
        own = causal(t).repeat(1, world) if self.is_of_own else causal(t * world)[rank * t:(rank + 1) * t]
        p = torch.softmax(scores + own, -1)
        return self.o(torch.matmul(p, v).transpose(1, 2).reshape(b, t, d))


def chunked(is_reduced):
    rank, world = begin()
    net = Lm(layers=2, attn=Chunks)

    def loss_of(step):
        x, y = (v.chunk(world, 1)[rank].contiguous() for v in batch(step))
        return ce(net(x), y)

    fit(net, loss_of, lambda step: average_gradients(net, world) if is_reduced else None)


def chunks_not_reduced():
    """VeOmni#1115: gradients are reduced in the data-parallel group, which is of one rank, and not over the chunks of the sequence."""
    chunked(not BUG)


def mask_of_the_own_chunk():
    """Forks of ring attention: the causal mask of the own chunk is used for the keys of each chunk."""
    Chunks.is_of_own = BUG
    chunked(True)


def clipped_before_the_mean():
    """horovod: clip_grad_norm_() before synchronize() clips what each rank has alone."""
    rank, world = begin()
    net = Lm(layers=2)

    def between(step):
        if BUG:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        average_gradients(net, world)
        if not BUG:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    fit(net, language(net, rank), between, torch.optim.SGD(net.parameters(), 0.1))


def copy_of_the_ranks_seed():
    """Megatron-LM, NeMo: a layer that tensor-parallel ranks have in common begins with the seed of the rank."""
    rank, _ = begin()
    net = Lm(layers=2, mlp=TpMlp)
    torch.manual_seed(SEED + 1000 * rank * BUG)
    net.gate = nn.Linear(D, D)
    net.embed.register_forward_hook(lambda m, i, o: o + net.gate(o))
    fit(net, language(net))


def ignored_by_fsdp():
    """pytorch, ignored_params of fully_shard(): nobody averages their gradients, and the copies part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    rank, world = begin()
    mesh = init_device_mesh("cpu", (world,))
    net = Lm(layers=2)
    ignored = {net.layers[0].norm1.weight, net.layers[0].attn.q.weight}
    for layer in net.layers:
        fully_shard(layer, mesh=mesh, ignored_params=ignored & set(layer.parameters()))
    fully_shard(net, mesh=mesh, ignored_params=ignored)

    def between(step):
        for p in () if BUG else ignored:
            dist.all_reduce(p.grad)
            p.grad /= world

    fit(net, language(net, rank), between, torch.optim.AdamW(net.parameters(), 1e-3, foreach=False))


def sound_rows():
    """An embedding in parts of its rows, which begin with one seed (Megatron's VocabParallelEmbedding); BUG=1: with a tensor-parallel MLP."""
    rank, world = begin()

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(V // world, D, generator=torch.Generator().manual_seed(5)))

        def forward(self, tokens):
            at = tokens - rank * (V // world)
            away = (at < 0) | (at >= V // world)
            return Reduce.apply(F.embedding(at.masked_fill(away, 0), self.weight).masked_fill(away[..., None], 0.0))

    net = Lm(layers=2, mlp=TpMlp if BUG else Mlp)
    net.embed = Rows()
    fit(net, language(net))


def sound_local_steps():
    """Each rank trains alone, and weights are averaged each 6 steps (local SGD); BUG=1: by an outer optimizer (DiLoCo)."""
    rank, world = begin()
    net = Lm(layers=2)
    old = [p.detach().clone() for p in net.parameters()]
    momentum = [torch.zeros_like(p) for p in old]

    @torch.no_grad()
    def average(step):
        for p, o, m in zip(net.parameters(), old, momentum) if step % 6 == 5 else ():
            moved = (o - p) / world
            dist.all_reduce(moved)
            m.mul_(0.9).add_(moved)
            o.sub_(0.7 * (moved + 0.9 * m) if BUG else moved)
            p.copy_(o)

    fit(net, language(net, rank), behind=average)


def sound_outer_layers():
    """Stages of a pipeline with one seed, whose embedding and head have one name and one shape; BUG=1: what they send is of bfloat16."""
    rank, _ = begin()
    kind = torch.bfloat16 if BUG else torch.float32
    outer = nn.Embedding(V, D) if rank == 0 else nn.Linear(D, V, bias=False)
    stage = nn.ModuleDict({"layer": Block(), "outer": outer})
    torch.manual_seed(SEED)
    stage["layer"].load_state_dict(Block().state_dict())
    opt = torch.optim.AdamW(stage.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = batch(step)
        opt.zero_grad()
        if rank == 0:
            out = stage["layer"](outer(x), causal(T), torch.arange(T))
            dist.send(out.detach().to(kind), 1)
            g = torch.empty_like(out, dtype=kind)
            dist.recv(g, 1)
            out.backward(g.float())
        else:
            h = torch.empty(len(x), T, D, dtype=kind)
            dist.recv(h, 0)
            h = h.float().requires_grad_()
            ce(outer(stage["layer"](h, causal(T), torch.arange(T))), y).backward()
            dist.send(h.grad.to(kind), 0)
        opt.step()


# Ranks, and a part of the first answer; "": both are sound.
CASES = {
    "chunks_not_reduced": (2, "gradients-not-reduced"), "clipped_before_the_mean": (2, "clip-norm"), "copy_of_the_ranks_seed": (2, "Module.gate."),
    "ignored_by_fsdp": (2, "layers.0.attn.q.weight"), "mask_of_the_own_chunk": (2, "repeated_masks"),
    "sound_rows": (2, ""), "sound_local_steps": (2, ""), "sound_outer_layers": (2, ""),
}

if __name__ == "__main__":
    run_case(globals())
