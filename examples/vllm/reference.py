# SPDX-License-Identifier: Apache-2.0
"""Reference of a dump of vLLM: transformers computes the tokens that a server had.

    python reference.py MODEL DIRECTORY TOKEN..

One forward over all of them, prompt and answer, recorded with the tensors of every module (L0), into
DIRECTORY/step0/rank0. `rankprobe align` takes from it the rows of the tokens that each batch of the server had.
Float32 on the CPU, whatever the server computes in. The dump is written here even where RANKPROBE_COLLECTOR
names a collector, as it does in the server's shell.
"""

from __future__ import annotations

import os
import sys

import torch
import transformers
from rankprobe.pytorch import PrecisionDebugger


def main(path: str, directory: str, *tokens: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    os.environ.pop("RANKPROBE_COLLECTOR", None)
    debugger = PrecisionDebugger(dump_path=directory, task="tensor", level="L0")
    with torch.no_grad():
        debugger.start(model=model)
        model(torch.tensor([[int(token) for token in tokens]]), use_cache=False)
        debugger.stop()
        debugger.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
