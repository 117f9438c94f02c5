# SPDX-License-Identifier: Apache-2.0
"""Log probability and entropy of the tokens that a vLLM runner samples, for the flight recorder of requests."""

from __future__ import annotations

from typing import Any, Optional

import torch

from rankprobe.vllm._batch import Batch

class Numbers:
    """Log probabilities and entropies of logits, one row for each request. In float32; does not depend on the logits afterwards."""

    def __init__(self, logits: torch.Tensor) -> None:
        logits = logits.float()
        # One pass that writes and three that read: a vocabulary has some 100,000 tokens.
        self._shares = logits.softmax(dim=-1)
        log_total = logits.amax(dim=-1) - self._shares.amax(dim=-1).log()
        mean = torch.linalg.vecdot(self._shares, logits)
        if mean.isnan().any():  # A share of 0 of a logit of -inf counts as 0.
            mean = torch.linalg.vecdot(self._shares, logits.masked_fill(logits == -torch.inf, 0))
        self._entropy = log_total - mean

    def of(self, sampled: torch.Tensor) -> list[tuple[int, float, float]]:
        """Returns number, log probability and entropy of each token. sampled: one token for each row."""
        ids = sampled.reshape(-1).to(torch.int64)
        # Of logits with NaN a sampler may return what is no token.
        known = ids.clamp(0, self._shares.shape[-1] - 1).unsqueeze(-1)
        chosen = self._shares.gather(-1, known).squeeze(-1).log()
        return list(zip(ids.tolist(), chosen.tolist(), self._entropy.tolist()))


class TokenWatch:
    """Reports the tokens of each batch to the flight recorder while its triggers ask for them. Used only by the thread that runs
    the model. Raises what PyTorch raises; the caller guards it."""

    def __init__(self, runner: Any, debugger: Any) -> None:
        self._runner, self._capture = runner, debugger._capture

    def numbers(self, logits: Optional[torch.Tensor]) -> Optional[Numbers]:
        """Takes the logits before the sampler, which may change them. None: they are not requested, or another rank has the logits."""
        if logits is None or not self._capture.wants_tokens:
            return None
        self._capture.enter_quiet()  # Calls of rankprobe on tensors must not be recorded.
        try:
            return Numbers(logits)
        finally:
            self._capture.leave_quiet()

    def sampled(self, numbers: Numbers, output: Any, batch: Batch) -> None:
        """Reports what the sampler chose. A prompt of which a part is still to come has no token yet."""
        self._capture.enter_quiet()
        try:
            tokens = numbers.of(output.sampled_token_ids)
        finally:
            self._capture.leave_quiet()
        laid_out = self._runner.input_batch
        found = []
        for row, (request, token) in enumerate(zip(laid_out.req_ids, tokens)):
            if request in batch.tokens:
                index = batch.positions[request] + batch.tokens[request] - int(laid_out.num_prompt_tokens[row])
                if index >= 0:
                    found.append((request, index, *token))
        self._capture.report_tokens(found)


def why_not_watched(vllm_config: Any, runner: Any) -> str:
    """Returns why the runner's tokens cannot be watched, or ""."""
    if getattr(vllm_config, "speculative_config", None) is not None:
        return "with speculative decoding a step samples several tokens of a request"
    if not hasattr(runner, "_sample") or not hasattr(getattr(runner, "input_batch", None), "num_prompt_tokens"):
        return "this runner of vLLM samples in another way"
    return ""
