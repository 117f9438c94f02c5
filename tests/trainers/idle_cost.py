# SPDX-License-Identifier: Apache-2.0
"""What RankprobeCallback costs a step of transformers.Trainer that records nothing: a program, no test.

    PYTHONPATH=build/release/python build/venv-trainers/bin/python tests/trainers/idle_cost.py [ROUNDS]

Trainings without and with the callback take turns in one process (ABBA); a callback of this file takes the time of each step.
Prints the ratio of the medians, for a callback that nothing switches on, and, with RANKPROBE_COLLECTOR set, for an idle one.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from rankprobe.integrations.transformers import RankprobeCallback

STEPS = 20


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._ended = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.perf_counter()
        if self._ended:
            self.seconds.append(now - self._ended)
        self._ended = now


def train(watched: bool, output: str) -> list[float]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4))
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 256, (4 * STEPS, 32))]
    arguments = TrainingArguments(output, max_steps=STEPS, per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True,
                                  save_strategy="no", logging_strategy="no")
    clock = Clock()
    Trainer(model, arguments, train_dataset=data, callbacks=[*([RankprobeCallback()] if watched else []), clock]).train()
    return clock.seconds[2:]


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    torch.set_num_threads(1)
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as output:
        train(False, output)
        for number in range(rounds):
            for watched in ((False, True, True, False) if number % 2 == 0 else (True, False, False, True)):
                times[watched] += train(watched, output)
    plain, with_callback = (statistics.median(times[watched]) for watched in (False, True))
    state = "idle, with a collector" if os.environ.get("RANKPROBE_COLLECTOR") else "off"
    print(f"{state}: {with_callback / plain:.4f} ({with_callback * 1e3:.3f} ms against {plain * 1e3:.3f} ms, {len(times[True])} steps each)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
