# SPDX-License-Identifier: Apache-2.0
"""Adapter from the KV cache of a vLLM runner to its witness: layers, block tables, slot mappings, tokens."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from rankprobe.vllm._batch import Batch
from rankprobe.vllm._cache_witness import CacheWitness, Fault, Row, layers_of

# Specs in which a position's block is entry position / block size of the block table, and its row the remainder.
_PLAIN = ("FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec")
# Limits for the faults kept for the next recorded step, and for those logged by a process.
_MOST_WAITING = 64
_MOST_LOGGED = 1000


def why_not_witnessed(vllm_config: Any, runner: Any) -> str:
    """Returns why the runner's cache cannot be witnessed, or ""."""
    if getattr(vllm_config, "speculative_config", None) is not None:
        return "with speculative decoding tokens are written that are taken back"
    parallel = vllm_config.parallel_config
    if any(getattr(parallel, f"{kind}_context_parallel_size", 1) > 1 for kind in ("decode", "prefill")):
        return "context parallel ranks hold parts of a request's blocks"
    if getattr(runner, "kv_cache_config", None) is None or not hasattr(getattr(runner, "input_batch", None), "token_ids_cpu_tensor"):
        return "this runner of vLLM has no cache, or keeps it in another way"
    return ""


class RunnerCache:
    """Witnesses for all groups of layers with a block table. Used only by the thread that runs the model.

    A fault is reported at once, as one line to `say` and one event of the run. It is also a fact of the step, or of the next
    recorded step if that step is not recorded. every: as for CacheWitness.
    """

    def __init__(self, runner: Any, vllm_config: Any, every: int, debugger: Any, say: Callable[[str], None]) -> None:
        self._runner, self._say = runner, say
        self._session, self._capture = debugger._session.native, debugger._capture
        self._groups: list[tuple[int, CacheWitness]] = []
        self._waiting: list[Fault] = []
        self._checked = self._logged = 0
        config = runner.kv_cache_config
        forward = vllm_config.compilation_config.static_forward_context
        adopts = getattr(vllm_config, "kv_transfer_config", None) is not None
        for number, group in enumerate(config.kv_cache_groups):
            layers = layers_of([(name, getattr(forward.get(name), "kv_cache", None)) for name in group.layer_names], config.num_blocks)
            if layers and type(group.kv_cache_spec).__name__ in _PLAIN:
                table = runner.input_batch.block_table[number]
                self._groups.append((number, CacheWitness(layers, table.block_size, every, adopts)))
        self.layers = sum(len(witness.names) for _, witness in self._groups)

    def before(self, step: int, scheduled: Any, batch: Batch, input_ids: Optional[torch.Tensor]) -> None:
        """Checks the batch that the model is about to run. The caller has begun the step. `input_ids`: 1-D, or None if unknown."""
        laid_out = self._runner.input_batch
        total = sum(batch.tokens.values())
        places = [(laid_out.req_id_to_index[request], request) for request in batch.tokens]
        tokens = laid_out.token_ids_cpu_tensor
        if input_ids is None:
            input_ids = torch.cat([tokens[index, batch.positions[request]:][:batch.tokens[request]] for index, request in places])
        ids = input_ids[:total].to("cpu", torch.int64)
        found: list[Fault] = []
        for number, witness in self._groups:
            witness.ended(list(scheduled.finished_req_ids))
            table = laid_out.block_table[number]
            blocks, size = table.get_cpu_tensor(), table.block_size
            rows = [Row(request, batch.positions[request], batch.tokens[request], _tokens_of(tokens, index),
                        blocks[index, :-(-(batch.positions[request] + batch.tokens[request]) // size)].tolist()) for index, request in places]
            found += witness.before(step, rows, ids, table.slot_mapping.gpu[:total].to("cpu", torch.int64))
        self._report(step, found)

    def after(self) -> None:
        for _, witness in self._groups:
            witness.after()

    def _report(self, step: int, found: list[Fault]) -> None:
        for fault in found[:_MOST_LOGGED - self._logged]:
            self._logged += 1
            self._say(f"kv cache, step {step}: {fault.text}")
            self._session.report_error(f"kv cache: {fault.text}")
        self._waiting = (self._waiting + found)[:_MOST_WAITING]
        if self._capture.wants_facts:
            checked = sum(witness.blocks_checked for _, witness in self._groups)
            self._capture.record_facts([("kv cache", f"step {fault.step} fault {index}", fault.text) for index, fault in enumerate(self._waiting)]
                                       + [("kv cache", "blocks checked", str(checked - self._checked))])
            self._checked, self._waiting = checked, []


def _tokens_of(tokens: torch.Tensor, index: int) -> Callable[[int, int], torch.Tensor]:
    return lambda begin, end: tokens[index, begin:end].to(torch.int64)
