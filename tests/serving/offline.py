# SPDX-License-Identifier: Apache-2.0
"""vLLM in one process, without a server: python offline.py MODEL KEYWORDS-OF-LLM (JSON) [PROMPT..]

Prints the tokens of each prompt, or of a pooling model its states; and on stderr
what of rankprobe it holds that costs anything.
"""

from __future__ import annotations

import json
import sys


def main(model: str, keywords: str, *prompts: str) -> None:
    import vllm

    llm = vllm.LLM(model, **{"dtype": "float32", "max_model_len": 128, "seed": 0, **json.loads(keywords)})
    print("MODULES", [name for name in sys.modules if name.startswith("rankprobe.pytorch")], file=sys.stderr)
    if llm.model_config.runner_type == "pooling":
        print(json.dumps([output.outputs.data.tolist() for output in llm.encode(list(prompts), pooling_task="embed")]))
        return
    wanted = [vllm.SamplingParams(temperature=0, max_tokens=4 + i, ignore_eos=True) for i in range(len(prompts))]
    print(json.dumps([list(output.outputs[0].token_ids) for output in llm.generate(list(prompts), wanted)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
