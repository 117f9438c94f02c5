# SPDX-License-Identifier: Apache-2.0
"""Whose tokens the rows of a batch are."""

from __future__ import annotations

from typing import Any, NamedTuple


class Batch(NamedTuple):
    """Of each request, in the order of its rows: how many tokens, and where in the
    request the first of them is (what is before it was computed earlier, or is cached)."""

    tokens: dict[str, int]
    positions: dict[str, int]


def batch_of(scheduled: Any, laid_out: Any) -> Batch:
    """scheduled: vLLM's SchedulerOutput; its own order is not that of the rows.
    laid_out: the runner's InputBatch, of either runner, once it is prepared."""
    if not hasattr(laid_out, "req_ids"):
        return Batch({}, {})
    computed = getattr(laid_out, "num_computed_tokens_cpu", None)
    if computed is None:
        computed = getattr(laid_out, "num_computed_tokens_np", None)
    tokens, positions = {}, {}
    for row, request in enumerate(laid_out.req_ids):
        if request in scheduled.num_scheduled_tokens:
            tokens[request] = int(scheduled.num_scheduled_tokens[request])
            if computed is not None:
                positions[request] = int(computed[row])
    return Batch(tokens, positions)
