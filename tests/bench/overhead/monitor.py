#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cost of task monitor in a training: plain, attached and off, monitored.

    monitor.py [--launches N] [--turns N] [--steps N] [--tools plain,off,every50,every1,msprobe1,ours1]

A launch has one process for each tool, which stays alive; each runs `steps` steps in its turn, so
that drift of the machine hits all alike. Where a process' memory lies makes it up
to a fifth slower than the next, so there are several launches. The transformer of overhead.py with
AdamW, one thread, CPU. A turn's number is its time over its steps: with every50
one step in fifty is recorded. msprobe1, ours1 (msprobe's TrainerMon and ours on
one config.json, all distributions in each step) need the msprobe package.

Prints, of each tool, the median over the turns of wall and of the training
thread's own CPU time a step, and the medians of the ratios to the plain turn beside it.
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

from launched import STEADY_MALLOC, Launched
from overhead import build

TRAINER_MON = {"targets": {}, "xy_distribution": True, "wg_distribution": True, "mv_distribution": True,
               "param_distribution": True, "ops": ["norm", "max", "min", "mean"]}


def worker(tool: str) -> None:
    """Reads a number of steps from stdin, runs them, prints [wall, cpu] seconds of a step."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    model, (x, y) = build("transformer")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    directory = tempfile.mkdtemp(prefix="monitor-")
    os.environ["MONITOR_OUTPUT_DIR"] = directory + "/monitor"
    path = directory + "/config.json"
    debugger = None
    trainer_mon = tool.endswith("1") and not tool.startswith("every")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(TRAINER_MON if trainer_mon else {
            "task": "monitor", "dump_path": directory + "/dump", "dump_enable": tool != "off",
            "monitor": {"every": int(tool[5:]) if tool.startswith("every") else 50}}, file)
    if trainer_mon:
        if tool == "msprobe1":
            from msprobe.pytorch import TrainerMon
        else:
            from rankprobe.pytorch import TrainerMon
        TrainerMon(path, params_have_main_grad=False).set_monitor(model, optimizer)
    elif tool != "plain":
        from rankprobe.pytorch import PrecisionDebugger
        debugger = PrecisionDebugger(config_path=path)
    for line in sys.stdin:
        steps = int(line)
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            if debugger is not None:
                debugger.start(model=model)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if debugger is not None:
                debugger.stop()
                debugger.step()
        print(json.dumps([(time.perf_counter() - begin) / steps, (time.thread_time() - begin_cpu) / steps]), file=out, flush=True)
    if debugger is not None:
        debugger.close()
    shutil.rmtree(directory, ignore_errors=True)


def launch(tools: list[str], turns: int, steps: int, times: dict[str, list], script: str = __file__) -> None:
    """Starts a process of `script` for each tool and adds the turns of each to `times`."""
    with Launched(script, {tool: ["--worker", tool] for tool in tools}, dict(os.environ, **STEADY_MALLOC)) as launched:
        for tool in tools:
            launched.ask(tool, "3")  # warm
        for _ in range(turns):
            for tool in tools:
                times[tool].append(launched.ask(tool, str(steps)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tools", default="plain,off,every50,every1")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return 0
    tools = arguments.tools.split(",")
    times: dict[str, list] = {tool: [] for tool in tools}
    for _ in range(arguments.launches):
        launch(tools, arguments.turns, arguments.steps, times)
    print(f"conditions load {' '.join(f'{v:.2f}' for v in os.getloadavg())}, {os.cpu_count()} CPUs, one thread, "
          f"{arguments.launches} launches of {arguments.turns} turns of {arguments.steps} steps of each in turn, medians")
    for tool in tools:
        wall, cpu = (statistics.median(t[i] for t in times[tool]) for i in (0, 1))
        ratios = [statistics.median(a[i] / b[i] for a, b in zip(times[tool], times["plain"])) for i in (0, 1)]
        print(f"{tool:10} wall {1e3 * wall:8.2f} ms {ratios[0]:6.3f}   thread's CPU {1e3 * cpu:8.2f} ms {ratios[1]:6.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
