# SPDX-License-Identifier: Apache-2.0
"""Processor time of a batch of vLLM with a flight recorder: python recorder_cost.py [ROUNDS] [--only=off,idle,tokens] [--graphs]

One process, in which the thread that runs the model (one thread) is measured: other work on the machine changes its processor
time little. The model of tokens_per_second.py, eight requests at a time. Rounds of all kinds take turns, switched by triggers: idle
(attached, nothing asked), tokens (a flight recorder of tokens, and a rule of each kind about them) and L0 (statistics of modules,
too). off: without the wrappers that rankprobe has put around the runner and the model. Prints the medians.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from conftest import ENVIRONMENT, harness
from tokens_per_second import RULES, make_model

_TOKENS = 48


def _measure(model: str, address: str, rounds: int, kinds: list[str], graphs: bool) -> None:
    import vllm
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from rankprobe.pytorch import PrecisionDebugger
    from rankprobe.vllm import _worker

    _worker.watch(WorkerWrapperBase)
    llm = vllm.LLM(model, dtype="float32", max_model_len=128, max_num_seqs=8, seed=0, enforce_eager=not graphs, enable_prefix_caching=False)
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    wrapped = {name: vars(runner)[name] for name in ("execute_model", "sample_tokens", "_sample")}
    capture = PrecisionDebugger._instance._capture
    prompts = [f"request {number}" for number in range(8)]
    wanted = vllm.SamplingParams(temperature=0, max_tokens=_TOKENS, ignore_eos=True)

    def switch(kind: str) -> None:
        level = {"tokens": "tokens", "L0": "L0"}.get(kind)
        triggers = pathlib.Path("triggers.json")
        triggers.write_text(json.dumps({"flight": {"steps": 64, "level": level}, "rules": RULES} if level else {}))
        subprocess.run([str(harness.BIN / "rankprobe"), "--collector", address, "triggers", "set", "--run", "cost", str(triggers)], check=True,
                       stdout=subprocess.DEVNULL)
        while capture.wants_tokens != bool(level):
            time.sleep(0.01)

    def cost(kind: str) -> float:
        switch(kind)
        for name, function in wrapped.items():
            setattr(runner, name, function.__wrapped__ if kind == "off" else function)
        llm.generate(prompts, wanted, use_tqdm=False)
        began = time.thread_time()
        llm.generate(prompts, wanted, use_tqdm=False)
        return (time.thread_time() - began) / _TOKENS

    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, costs in found.items():
            costs.append(cost(kind))
    off = statistics.median(found["off"])
    for kind, costs in found.items():
        ratios = sorted(one / plain - 1 for one, plain in zip(costs, found["off"]))
        print(f"{kind}: {statistics.median(costs) * 1e3:.2f} ms a batch, {statistics.median(costs) / off - 1:+.1%} (rounds {ratios[len(ratios) // 4]:+.1%} to "
              f"{ratios[3 * len(ratios) // 4]:+.1%}), least {min(costs) * 1e3:.2f} ms, {min(costs) / min(found['off']) - 1:+.1%}")


def main(words: list[str]) -> None:
    rounds = next((word for word in words if not word.startswith("--")), "10")
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        (directory / "collector").mkdir()
        collector = harness.Collector(directory / "collector").start()
        try:
            subprocess.run([sys.executable, __file__, "--measure", str(make_model(directory)), collector.address, rounds, *words[1:]], check=True, cwd=directory, env={
                **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CACHE_ROOT": str(directory / "cache"), "RANKPROBE_ATTACH": "idle",
                "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "cost"})
        finally:
            collector.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        kinds = next((word[7:].split(",") for word in sys.argv if word.startswith("--only=")), ["off", "idle", "tokens", "L0"])
        _measure(sys.argv[2], sys.argv[3], int(sys.argv[4]), kinds, "--graphs" in sys.argv)
    else:
        main(sys.argv[1:])
