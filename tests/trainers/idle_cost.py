# SPDX-License-Identifier: Apache-2.0
"""Cost of RankprobeCallback in a step of transformers.Trainer that records nothing: a program, no test.

    PYTHONPATH=build/release/python build/venv-trainers/bin/python tests/trainers/idle_cost.py [STEPS]

One training, in which steps with the callback and without it take turns (ABBA); the processor time of the training's thread is
taken, which a busy machine disturbs less than the time of a clock. Prints the ratio of the medians of the steps, and what the
callback adds to a median step, which a busy machine disturbs least: the medians of the time in the trainer's calls of callbacks
differ by it, since they hold the cost of the measurement both times. For a callback that nothing switches on, and, with
RANKPROBE_COLLECTOR set, for an idle one.
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


class Turns(TrainerCallback):
    """Calls the callback in every other pair of steps."""

    def __init__(self, callback: TrainerCallback) -> None:
        self.seconds: dict[bool, list[float]] = {False: [], True: []}
        # Time in the two calls of a step.
        self.inside: dict[bool, list[float]] = {False: [], True: []}
        self._callback, self._active, self._ended, self._within = callback, True, 0.0, 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._callback.on_train_begin(*args, **kwargs)

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        began = time.thread_time()
        if self._active:
            self._callback.on_step_begin(*args, **kwargs)
        self._within = time.thread_time() - began

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        began = time.thread_time()
        if self._active:
            self._callback.on_step_end(args, state, control, **kwargs)
        now = time.thread_time()
        if state.global_step > 10:
            self.inside[self._active].append(self._within + now - began)
            self.seconds[self._active].append(now - self._ended)
        self._active = state.global_step % 4 in (1, 2)
        self._ended = time.thread_time()


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4))
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 256, (256, 32))]
    turns = Turns(RankprobeCallback())
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(output, max_steps=steps, per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True,
                                      save_strategy="no", logging_strategy="no")
        Trainer(model, arguments, train_dataset=data, callbacks=[turns]).train()
    plain, watched = (statistics.median(turns.seconds[with_callback]) for with_callback in (False, True))
    added = statistics.median(turns.inside[True]) - statistics.median(turns.inside[False])
    state = "idle, with a collector" if os.environ.get("RANKPROBE_COLLECTOR") else "off"
    print(f"{state}: {watched / plain:.4f} ({watched * 1e3:.3f} ms against {plain * 1e3:.3f} ms, {len(turns.seconds[True])} steps "
          f"each); the callback adds {added * 1e6:.0f} us, {1 + added / plain:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
