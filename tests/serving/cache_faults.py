# SPDX-License-Identifier: Apache-2.0
"""vLLM in one process, with a fault in its cache of keys and values: python cache_faults.py MODEL KEYWORDS-OF-LLM (JSON) FAULT REQUESTS

FAULT: none, or what goes wrong in one step for one request: value (a bit of a block flips), table (an entry of its block table
is that of another request), slot (its token is written into a block of another). REQUESTS: how many, with prompts that share
beginnings; each step has up to four, and the cache holds few more. Prints the id of the request and the number of the step.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any


class Fault:
    """In the first step in which two requests have a full block each, and the later one is no more than half done."""

    def __init__(self, runner: Any, kind: str) -> None:
        self.runner, self.kind, self.steps, self.told = runner, kind, 0, ""
        model_forward = runner._model_forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.steps += 1
            return model_forward(*args, **kwargs)

        runner._model_forward = forward
        prepare = runner._prepare_inputs

        def prepare_inputs(*args: Any, **kwargs: Any) -> Any:
            prepared = prepare(*args, **kwargs)
            if kind != "none" and not self.told:
                self._plant()
            return prepared

        runner._prepare_inputs = prepare_inputs

    def _plant(self) -> None:
        batch = self.runner.input_batch
        table = batch.block_table[0]
        # Decoding ones, each of whose rows of the batch is one token.
        if batch.num_reqs < 2 or int(self.runner.query_start_loc.np[batch.num_reqs]) != batch.num_reqs:
            return
        blocks = table.block_table.np
        if min(batch.num_computed_tokens_cpu[:2]) < table.block_size or blocks[0, 1] in (0, blocks[1, 1]):
            return
        if self.kind == "value":
            layer = list(self.runner.compilation_config.static_forward_context.values())[1]
            layer.kv_cache[blocks[0, 0]].view(-1)[5] += 1
        elif self.kind == "table":
            blocks[0, 0] = blocks[1, 1]
        else:
            table.slot_mapping.np[0] = blocks[1, 1] * table.block_size
        self.told = f"{batch.req_ids[0]} {self.steps}"


def main(model: str, keywords: str, kind: str, requests: str) -> None:
    import vllm

    llm = vllm.LLM(model, **{"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 64, "block_size": 32,
                             "num_gpu_blocks_override": 12, "seed": 0, **json.loads(keywords)})
    fault = Fault(llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner, kind)
    source = random.Random(3)
    shared = ["".join(source.choices("abcdefgh", k=70)) for _ in range(4)]
    prompts = [source.choice(shared)[:source.randrange(20, 71)] + f" {number}" for number in range(int(requests))]
    wanted = [vllm.SamplingParams(temperature=0, max_tokens=source.randrange(1, 24), ignore_eos=True) for _ in prompts]
    llm.generate(prompts, wanted, use_tqdm=False)
    print(fault.told)


if __name__ == "__main__":
    main(*sys.argv[1:])
