# SPDX-License-Identifier: Apache-2.0
"""A tiny decoder-only LM and the loop that the programs share. BUG=0|1 picks the twin."""
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
BUG = os.environ.get("BUG", "0") == "1"
STEPS = int(os.environ.get("STEPS", "24"))
SEED = int(os.environ.get("SEED", "0"))
V, D, H, T = 50, 32, 4, 12


def setup():
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def rope(x, pos):
    d = x.shape[-1]
    inv = 1.0 / (10000 ** (torch.arange(0, d, 2) / d))
    angle = pos[:, None].float() * inv
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


class Rms(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, d=D, h=H):
        super().__init__()
        self.h, self.scale = h, 1 / math.sqrt(d // h)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x, mask, pos):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.h, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = rope(q, pos), rope(k, pos)
        p = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * self.scale + mask, -1)
        return self.o(torch.matmul(p, v).transpose(1, 2).reshape(b, t, d))


class Mlp(nn.Module):
    def __init__(self, d=D, f=64):
        super().__init__()
        self.up, self.down = nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, mlp=Mlp, attn=Attention, norm=Rms):
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = norm(D), attn(), norm(D), mlp()

    def forward(self, x, mask, pos):
        x = x + self.attn(self.norm1(x), mask, pos)
        return x + self.mlp(self.norm2(x))


def causal(t):
    return torch.full((t, t), float("-inf")).triu(1)


class Lm(nn.Module):
    def __init__(self, layers=3, **kw):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Block(**kw) for _ in range(layers))
        self.norm = Rms(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, tokens, mask=None, pos=None):
        t = tokens.shape[1]
        mask = causal(t) if mask is None else mask
        pos = torch.arange(t) if pos is None else pos
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask, pos)
        return self.head(self.norm(x))


def batch(step, rank=0, n=4, t=T):
    g = torch.Generator().manual_seed(10007 * step + rank + 7 * SEED)
    start = torch.randint(0, V, (n, 1), generator=g)
    stride = torch.randint(1, 4, (n, 1), generator=g)
    seq = (start + stride * torch.arange(t + 1)) % V
    noise = torch.randint(0, V, seq.shape, generator=g)
    seq = torch.where(torch.rand(seq.shape, generator=g) < 0.1, noise, seq)
    return seq[:, :-1].contiguous(), seq[:, 1:].contiguous()


def ce(logits, target, reduction="mean", ignore=-100):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1), reduction=reduction, ignore_index=ignore)


def average_gradients(model, world, group=None):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad /= world


class Copy(torch.autograd.Function):            # into a tensor-parallel region: identity, sum of gradients
    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class Reduce(torch.autograd.Function):          # out of it: sum, identity
    @staticmethod
    def forward(ctx, x, group=None):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, None


def first_and_last(whole):
    """The stages of a pipeline of the two layers of an Lm."""
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layer = whole.embed, whole.layers[0]

        def forward(self, x):
            return self.layer(self.embed(x), causal(T), torch.arange(T))

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm, self.head = whole.layers[1], whole.norm, whole.head

        def forward(self, x):
            return self.head(self.norm(self.layer(x, causal(T), torch.arange(T))))

    return First, Last


class TpMlp(nn.Module):                          # up by columns, down by rows
    def __init__(self, d=D, f=64):
        super().__init__()
        w, r = dist.get_world_size(), dist.get_rank()
        up, down = nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)      # the whole, then this rank's part
        skip = nn.utils.skip_init                # draws no random number, so that one rank has the same weights
        self.up, self.down = skip(nn.Linear, d, f // w, bias=False), skip(nn.Linear, f // w, d, bias=False)
        with torch.no_grad():
            self.up.weight.copy_(up.weight.chunk(w, 0)[r])
            self.down.weight.copy_(down.weight.chunk(w, 1)[r])

    def forward(self, x):
        return Reduce.apply(self.down(F.gelu(self.up(Copy.apply(x)))))


def sharded(name):
    return ".mlp." in name


def done(loss):
    print("loss", loss, flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def run_case(programs):
    """Runs the program that CASE names, with SEED on each rank; `programs`: the globals() of its file."""
    torch.manual_seed(SEED)
    programs[os.environ["CASE"]]()
    done(0)
