# SPDX-License-Identifier: Apache-2.0
"""Small programs that make NaN and infinities, and sound ones that only look so.

nan_cases.py DUMP_PATH: each case is one step of one dump; prints the step of each
case and the call that must be named ("" where nothing is wrong) as JSON.
"""
import json
import sys
from typing import Callable

import torch
import torch.nn.functional as F

NEGATIVE, INF = -float("inf"), float("inf")
CASES: list[tuple[Callable[..., None], str]] = []


def case(origin: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`origin`: beginning of the entry that makes the fault; none of a sound program."""
    def add(run: Callable[..., None]) -> Callable[..., None]:
        CASES.append((run, origin))
        return run
    return add


def causal(size: int = 4) -> torch.Tensor:
    return torch.ones(size, size, dtype=torch.bool).triu(1)


# Sound programs.
@case()
def masked_fill_before_softmax(x):
    (torch.softmax(x.masked_fill(causal(), NEGATIVE), -1) @ x).sum().backward()


@case()
def additive_mask_of_full(x):
    torch.softmax(x + torch.full((4, 4), NEGATIVE).triu(1), -1).sum().backward()


@case()
def where_with_a_constant(x):
    torch.softmax(torch.where(causal(), torch.tensor(NEGATIVE), x), -1).sum().backward()


@case()
def two_masks_of_the_lowest_number(x):
    low = torch.finfo(x.dtype).min
    mask = torch.zeros(4, 4).masked_fill(causal(), low)
    padding = torch.zeros(4, 4)
    padding[:, 3] = low
    torch.softmax(x + (mask + padding), -1).sum().backward()


@case()
def logarithm_of_a_mask(x):
    torch.softmax(x + torch.log((~causal()).float()), -1).sum().backward()


@case()
def top_k_filter(x):
    least = torch.topk(x, 2).values[:, -1:]
    torch.multinomial(torch.softmax(torch.where(x < least, torch.tensor(NEGATIVE), x), -1), 1)


@case()
def top_p_filter(x):
    order, index = torch.sort(x, descending=True)
    remove = torch.cumsum(torch.softmax(order, -1), -1) > 0.8
    remove[:, 0] = False
    x = x.masked_fill(remove.scatter(1, index, remove), NEGATIVE)
    torch.softmax(x, -1).argmax(-1)


@case()
def attention_with_a_mask(x):
    attention = getattr(F, "scaled_dot_product_attention", None)
    if attention is not None:
        attention(x[None], x[None], x[None], attn_mask=torch.full((4, 4), NEGATIVE).triu(1)).sum().backward()


@case()
def padding_of_keys(x):
    padded = torch.tensor([False, False, True, True])
    torch.softmax(x.masked_fill(padded[None, :], NEGATIVE), -1).sum().backward()


@case()
def packed_documents(x):
    document = torch.tensor([0, 0, 1, 1])
    mask = (document[:, None] != document[None, :]) | causal()
    torch.softmax(x.masked_fill(mask, NEGATIVE), -1).sum().backward()


@case()
def sliding_window(x):
    place = torch.arange(4)
    far = (place[:, None] - place[None, :]).abs() > 1
    torch.softmax(x + torch.zeros(4, 4).masked_fill(far, NEGATIVE), -1).sum().backward()


@case()
def largest_of_what_is_not_masked(x):
    x.masked_fill(causal(), NEGATIVE).max(-1).values.sum().backward()


@case()
def smallest_distance(x):
    (torch.cdist(x, x) + torch.full((4,), INF).diag().nan_to_num(nan=0.0, posinf=INF)).min(-1).values.sum().backward()


@case()
def smallest_of_a_start_value(x):
    torch.minimum(torch.full((4, 4), INF), x).sum().backward()


@case()
def scores_of_beams(x):
    scores = torch.full((4,), NEGATIVE)
    scores[0] = 0
    (scores[:, None] + torch.log_softmax(x, -1)).flatten().topk(2)


@case()
def loss_of_masked_classes(x):
    masked = x.masked_fill(torch.tensor([False, False, False, True]), NEGATIVE)
    F.cross_entropy(masked, torch.tensor([0, 1, 2, 0])).backward()


@case()
def cast_of_a_mask(x):
    (x.detach() + (causal().float() * -1e9).to(torch.float16)).softmax(-1) if hasattr(torch, "compile") else None


@case()
def padding_with_infinity(x):
    F.max_pool1d(F.pad(x[None], (1, 1), value=NEGATIVE), 2).sum().backward()


@case()
def fill_by_index(x):
    torch.softmax(x.index_fill(1, torch.tensor([3]), NEGATIVE), -1).sum().backward()


@case()
def logsumexp_of_masked_rows(x):
    torch.logsumexp(x.masked_fill(causal(), NEGATIVE), -1).sum().backward()


@case()
def logsumexp_of_nothing(x):
    torch.logsumexp(x.detach()[:, :0], -1)


@case()
def router_of_experts(x):
    chosen = torch.zeros_like(x, dtype=torch.bool).scatter(1, torch.topk(x, 2).indices, True)
    torch.softmax(x.masked_fill(~chosen, NEGATIVE), -1).sum().backward()


@case()
def exponential_that_where_leaves_out(x):
    with torch.no_grad():
        big = x * 1e4
        torch.where(big > 20, big, torch.log1p(torch.exp(big))).sum()


@case()
def rows_of_padding_without_gradient(x):
    with torch.no_grad():
        mask = torch.zeros(4, 4, dtype=torch.bool)
        mask[3] = True
        torch.nan_to_num(torch.softmax(x.masked_fill(mask, NEGATIVE), -1)).sum()


@case()
def clamp_without_a_bound(x):
    torch.clamp(x, min=NEGATIVE, max=1.0).sum().backward()


@case()
def multi_head_attention(x):
    torch.nn.MultiheadAttention(4, 2, batch_first=True)(x[None], x[None], x[None], attn_mask=torch.full((4, 4), NEGATIVE).triu(1))[0].sum().backward()


@case()
def transformer_layer(x):
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    layer(x[None], src_mask=torch.full((4, 4), NEGATIVE).triu(1)).sum().backward()


# Faulty ones.
@case("Torch.sqrt.0.forward")
def root_of_a_negative_number(x):
    torch.sqrt(torch.sqrt(torch.tanh(x) - 2)).sum().backward()


@case("Torch.sqrt.0.backward")
def backward_of_the_branch_left_out(x):
    x = x * 0
    torch.where(x > 0, torch.sqrt(x), torch.zeros(())).sum().backward()


@case("Tensor.__truediv__.0.forward")
def zero_by_zero_behind_a_mask(x):
    weights = torch.softmax(x.masked_fill(causal(), NEGATIVE), -1) * 0
    (weights / weights.sum(-1, keepdim=True)).sum().backward()


@case("Torch.softmax.0.forward")
def softmax_of_a_masked_row(x):
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[2] = True
    torch.softmax(x.masked_fill(mask, NEGATIVE), -1).sum().backward()


@case("Torch.log.0.forward")
def logarithm_of_a_saturated_sigmoid(x):
    p = torch.sigmoid(x * 1e6)
    (-(p * torch.log(p)).mean()).backward()


@case("Torch.exp.0.forward")
def exponential_that_overflows(x):
    (torch.exp(x.abs() * 1e4) - torch.exp(x.abs() * 1e4)).sum().backward()


@case("Torch.std.0.forward")
def deviation_of_one_element(x):
    ((x[:, :1] - 1) / torch.std(x[:, :1], dim=-1, keepdim=True)).sum().backward()


@case("Tensor.__mul__.1.forward")
def zero_times_a_mask(x):
    (torch.full((4, 4), NEGATIVE) * (x * 0).detach()).sum()


@case("Torch.div.0.forward")
def mean_over_no_token(x):
    torch.div(x.sum(), (x.detach() > 1e9).sum()).backward()


def main() -> None:
    from rankprobe.pytorch import PrecisionDebugger

    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 4)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
    steps = {}
    for step, (run, origin) in enumerate(CASES):
        debugger.start(linear)
        run(linear(torch.randn(4, 4)))
        debugger.stop()
        debugger.step()
        steps[run.__name__] = (step, origin)
    PrecisionDebugger.wait_exported()
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
