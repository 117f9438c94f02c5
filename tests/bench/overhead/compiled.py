#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cost of rankprobe, attached and off, in a step of a compiled model (wanted: at most 1.01 times the step).

    compiled.py [--launches N] [--turns N] [--steps N] [--how whole,blocks]

A launch has one process without rankprobe and one with it, which stay alive; each runs `steps` steps in its
turn, so that drift of the machine hits both alike, and who begins changes from launch to launch. Where a process' memory
lies makes it up to a fifth slower than the next, so there are several launches. The transformer of overhead.py with
AdamW, torch.compile with inductor of the whole model or of each of its blocks, one thread, CPU. Wants a
Python with PyTorch and rankprobe, and a C++ compiler.

Prints, for each way of compiling, the medians over the turns of wall and of the training thread's own CPU time
a step, and the median of the ratios of neighbouring turns with `met` or `missed`; exit code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

from monitor import launch
from overhead import build

LIMIT = 1.01


def worker(tool: str) -> None:
    """tool: "plain" or "off", and how to compile. Reads a number of steps from stdin, runs them, prints [wall, cpu]
    seconds of a step."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    attached, how = tool.split(",")
    model, (x, y) = build("transformer")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    directory = tempfile.mkdtemp(prefix="compiled-")
    debugger = None
    if attached == "off":
        from rankprobe.pytorch import PrecisionDebugger

        path = directory + "/config.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"task": "statistics", "level": "L0", "dump_path": directory + "/dump", "dump_enable": False}, file)
        debugger = PrecisionDebugger(config_path=path)
    if how == "whole":
        run = torch.compile(model)
    else:
        run = model
        blocks = [child for child in model.modules() if type(child).__name__ == "Block"]
        assert blocks, "the transformer has blocks"
        for block in blocks:
            block.compile()
    for line in sys.stdin:
        steps = int(line)
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            if debugger is not None:
                debugger.start(model=model)
            optimizer.zero_grad()
            F.cross_entropy(run(x), y).backward()
            optimizer.step()
            if debugger is not None:
                debugger.stop()
                debugger.step()
        print(json.dumps([(time.perf_counter() - begin) / steps, (time.thread_time() - begin_cpu) / steps]), file=out, flush=True)
    if debugger is not None:
        debugger.close()
    shutil.rmtree(directory, ignore_errors=True)


def measure(how: str, arguments: argparse.Namespace) -> bool:
    """Prints the line of one way of compiling; whether the limit is met."""
    ratios: list[list[float]] = [[], []]
    all_times: dict[str, list] = {"plain": [], "off": []}
    for number in range(arguments.launches):
        tools = [f"plain,{how}", f"off,{how}"]
        if number % 2:
            tools.reverse()
        times: dict[str, list] = {tool: [] for tool in tools}
        launch(tools, arguments.turns, arguments.steps, times, script=__file__)
        for plain, off in zip(times[f"plain,{how}"], times[f"off,{how}"]):
            for i in (0, 1):
                ratios[i].append(off[i] / plain[i])
        for tool, turns in times.items():
            all_times[tool.split(",")[0]] += turns
    wall, cpu = (statistics.median(of) for of in ratios)
    plain, off = (statistics.median(turn[0] for turn in all_times[tool]) for tool in ("plain", "off"))
    low, _, high = statistics.quantiles(ratios[0], n=4)
    met = wall <= LIMIT
    print(f"compiled_{how}_off {wall:.4f} {LIMIT} {'met' if met else 'missed'}  "
          f"(wall {1e3 * plain:.2f} ms plain, {1e3 * off:.2f} ms off; quartiles of the ratio {low:.4f} to {high:.4f}; "
          f"thread's CPU {cpu:.4f})", flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--how", default="whole,blocks")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return 0
    print(f"conditions load {' '.join(f'{v:.2f}' for v in os.getloadavg())}, {os.cpu_count()} CPUs, one thread, "
          f"{arguments.launches} launches of {arguments.turns} turns of {arguments.steps} steps of each in turn, medians")
    results = [measure(how, arguments) for how in arguments.how.split(",")]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
