# SPDX-License-Identifier: Apache-2.0
"""vLLM in one process, with a fault at one token of one request: python token_faults.py MODEL KEYWORDS-OF-LLM (JSON) FAULT TOKEN

Sixteen requests at a time, with prompts of different lengths. FAULT: none, nan (the row of the fifth request in the output of a
layer becomes NaN in the step that computes token TOKEN of its answer) or sharp (from that step on the row that the head of the
model reads is 50 times as large). Prints the tokens of all answers and the id of that request.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_VICTIM = 5


class Fault:
    def __init__(self, runner: Any, kind: str, token: int) -> None:
        self.runner, self.kind, self.token, self.told = runner, kind, token, ""
        layer = runner.model.model.layers[1].mlp.down_proj if kind == "nan" else runner.model.model.norm
        if kind != "none":
            layer.register_forward_hook(self._plant)

    def _plant(self, module: Any, args: tuple, output: Any) -> None:
        batch = self.runner.input_batch
        name = next((name for name in batch.req_ids if name.split("-")[0] == str(_VICTIM)), None)
        if name is None:
            return
        row = batch.req_id_to_index[name]
        starts = self.runner.query_start_loc.np
        last = int(starts[row + 1]) - 1
        at = int(batch.num_computed_tokens_cpu[row]) + last + 1 - int(starts[row]) - int(batch.num_prompt_tokens[row])
        if at == self.token or (at > self.token and self.kind == "sharp"):
            values = output[0] if isinstance(output, tuple) else output
            values[last] *= float("nan") if self.kind == "nan" else 50
            self.told = name


def main(model: str, keywords: str, kind: str, token: str) -> None:
    import vllm

    llm = vllm.LLM(model, **{"dtype": "float32", "max_model_len": 128, "max_num_seqs": 16, "max_num_batched_tokens": 512,
                             "enable_prefix_caching": False, "seed": 0, **json.loads(keywords)})
    fault = Fault(llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner, kind, int(token))
    prompts = [f"request {'x' * number}" for number in range(16)]
    wanted = vllm.SamplingParams(temperature=0.7, seed=3, max_tokens=48, ignore_eos=True)
    answers = llm.generate(prompts, wanted, use_tqdm=False)
    print(json.dumps({"answers": [list(answer.outputs[0].token_ids) for answer in answers], "request": fault.told}))


if __name__ == "__main__":
    main(*sys.argv[1:])
