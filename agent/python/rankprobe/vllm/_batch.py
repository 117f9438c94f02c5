# SPDX-License-Identifier: Apache-2.0
"""Assignment of the rows of a batch to requests."""

from __future__ import annotations

from typing import Any, NamedTuple


class Batch(NamedTuple):
    """The requests of a batch, in the order of their rows: the number of tokens, and the
    position of the first of them in the request (tokens before it are computed or cached)."""

    tokens: dict[str, int]
    positions: dict[str, int]


def batch_of(scheduled: Any, laid_out: Any) -> Batch:
    """Returns the requests of a batch. scheduled: vLLM's SchedulerOutput, whose order is not
    that of the rows. laid_out: the prepared InputBatch of either runner."""
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
