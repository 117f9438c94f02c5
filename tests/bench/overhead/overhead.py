#!/usr/bin/env python3
"""What recording adds to a training step: plain, msprobe, rankprobe.

    overhead.py [--models transformer,cnn] [--levels L0,L1,mix] [--rounds N]
                [--steps N] [--tasks statistics,md5,tensor] [--tools msprobe,rankprobe]

Needs a Python with PyTorch, rankprobe and (for its column) msprobe. One worker process for each (tool, level) stays alive; the driver lets them run
a few steps each in turn, so that drift of the machine hits all alike. Prints
`name value limit` lines, a table, and the floor: bytes of distinct tensors of
a step over the read bandwidth of this machine, measured in the same run.
`cpu` is the CPU time of the training thread alone. One thread, CPU. A step is timed with what the tool does in start, stop, step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def build(name: str):
    """(model, batch) of a benchmark model."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.manual_seed(0)
    if name == "cnn":
        layers, width = [], 3
        for out in (32, 64, 64):
            layers += [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
            width = out
        model = nn.Sequential(nn.Sequential(*layers), nn.Flatten(), nn.Linear(64 * 16, 10))
        return model, (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
            q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
            weights = F.softmax(q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5, dim=-1)
            x = x + self.proj((weights @ v).transpose(1, 2).contiguous().view(b, t, c))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(1000, 256)
            self.blocks = nn.ModuleList([Block(256, 4) for _ in range(4)])
            self.head = nn.Linear(256, 1000)

        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x).view(-1, 1000)

    tokens = torch.randint(0, 1000, (8, 64))
    return Transformer(), (tokens, tokens.view(-1))


def worker(tool: str, level: str, task: str, model_name: str, extra: dict) -> None:
    """Reads a number of steps from stdin, runs them, prints their seconds."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # msprobe logs to stdout
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    model, (x, y) = build(model_name)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    debugger = None
    directory = tempfile.mkdtemp(prefix="overhead-")
    if tool != "plain":
        section = {"scope": [], "list": [], "data_mode": ["all"], **extra}
        config = {"task": task, "dump_path": directory + "/dump", "rank": [], "step": [], "level": level,
                  "risk_level": "ALL", task: section}
        if tool.endswith("off"):
            config["dump_enable"] = False
        path = directory + "/config.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        if tool == "msprobe":
            from msprobe.pytorch import PrecisionDebugger
        else:
            from rankprobe.pytorch import PrecisionDebugger
        debugger = PrecisionDebugger(config_path=path)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            if debugger is not None:
                debugger.start(model=model)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if debugger is not None:
                debugger.stop()
                debugger.step()
            times.append((time.perf_counter() - begin, time.thread_time() - begin_cpu))
        print(json.dumps(times), file=out, flush=True)
    if tool == "rankprobe":
        debugger.close()
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def typical(rounds: list) -> tuple[float, float]:
    """(wall, CPU of the training thread) seconds of a step: medians."""
    return tuple(statistics.median(t[i] for times in rounds for t in times) for i in (0, 1))


def added_to(plain: list, rounds: list) -> tuple[float, float]:
    """The same of what was added: the median over the rounds of the difference
    to the plain steps beside it."""
    return tuple(statistics.median(typical([a])[i] - typical([b])[i] for a, b in zip(rounds, plain)) for i in (0, 1))


def distinct_bytes(model_name: str) -> int:
    """Bytes of the distinct tensors that level mix sees in a step."""
    import torch
    from torch.overrides import TorchFunctionMode

    seen: dict = {}
    keep = []

    def add(value) -> None:
        if isinstance(value, torch.Tensor):
            key = (value.data_ptr(), value._version, tuple(value.shape), tuple(value.stride()))
            if key not in seen:
                seen[key] = value.numel() * value.element_size()
                keep.append(value.detach())
            if value.requires_grad and value.grad_fn is not None:
                value.register_hook(lambda g: add(g))
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)

    class Counter(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            with torch._C.DisableTorchFunction():
                add(args)
                add(result)
            return result

    model, (x, y) = build(model_name)
    with Counter():
        loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    for parameter in model.parameters():
        add(parameter.grad)
    return sum(seen.values())


def read_bandwidth() -> float:
    """Bytes a second that one thread reads from memory beyond the caches."""
    import torch

    torch.set_num_threads(1)
    data = torch.ones(1 << 26)
    best = 0.0
    for _ in range(5):
        begin = time.perf_counter()
        data.max()
        best = max(best, data.numel() * 4 / (time.perf_counter() - begin))
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="transformer,cnn")
    parser.add_argument("--levels", default="L0,L1,mix")
    parser.add_argument("--tasks", default="statistics")
    parser.add_argument("--tools", default="msprobe,rankprobe")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        tool, level, task, model, extra = arguments.worker
        worker(tool, level, task, model, json.loads(extra))
        return 0

    import torch

    print(f"conditions load {' '.join(f'{v:.2f}' for v in os.getloadavg())}, {os.cpu_count()} CPUs, PyTorch "
          f"{torch.__version__}, one thread, {arguments.rounds} x {arguments.steps} steps of each in turn, medians")
    bandwidth = read_bandwidth()
    print(f"read_bandwidth_gb_s {bandwidth / 1e9:.2f} -")
    failed = False
    limits = {"L0": 1.05, "L1": 1.15, "mix": 1.20}
    for model in arguments.models.split(","):
        names = [("plain", "-", "statistics", {})]
        if "rankprobe" in arguments.tools:
            names.append(("rankprobe-off", "mix", "statistics", {}))
        for task in arguments.tasks.split(","):
            extra = {"summary_mode": "md5"} if task == "md5" else {}
            for level in arguments.levels.split(","):
                names += [(tool, level, "statistics" if task == "md5" else task, extra)
                          for tool in arguments.tools.split(",")]
        processes, times = [], {}
        for tool, level, task, extra in names:
            processes.append(subprocess.Popen(
                [sys.executable, __file__, "--worker", tool, level, task, model, json.dumps(extra)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))

        def turn(process: subprocess.Popen, steps: int) -> list:
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        for process in processes:
            turn(process, 2)  # warm
        for _ in range(arguments.rounds):
            for index, process in enumerate(processes):
                times.setdefault(index, []).append(turn(process, arguments.steps))
        for process in processes:
            process.stdin.close()
            process.wait(timeout=120)
        plain, plain_cpu = typical(times[0])
        count = distinct_bytes(model)
        floor = count / bandwidth
        print(f"load after {model} {os.getloadavg()[0]:.2f}")
        print(f"{model}_plain_ms {1e3 * plain:.2f} -")
        print(f"{model}_distinct_mb {count / 1e6:.1f} -")
        print(f"{model}_floor_added_ms {1e3 * floor:.2f} -")
        added = {}
        for index, (tool, level, task, extra) in enumerate(names[1:], 1):
            wall, cpu = added_to(times[0], times[index])
            kind = extra.get("summary_mode", task)
            added[tool, level, kind] = (wall, cpu)
            limit = "-"
            if tool == "rankprobe" and kind == "statistics":
                limit = f"{limits[level]:.2f}"
            elif tool == "rankprobe-off":
                limit = "1.01"
            print(f"{model}_{tool}_{level}_{kind}_ratio {1 + wall / plain:.3f} {limit} "
                  f"cpu {1 + cpu / plain_cpu:.3f}")
        for (tool, level, kind), (wall, cpu) in added.items():
            other = added.get(("msprobe", level, kind))
            if tool != "rankprobe" or other is None:
                continue
            limit = 10 if level in ("L1", "mix") else 0
            times_less = other[0] / max(wall, 1e-6)
            failed = failed or times_less < limit
            print(f"{model}_{level}_{kind}_added_ms msprobe {1e3 * other[0]:.2f} rankprobe {1e3 * wall:.2f} "
                  f"times_less {times_less:.1f} {limit or '-'} cpu {1e3 * other[1]:.2f} {1e3 * cpu:.2f} "
                  f"times_less {other[1] / max(cpu, 1e-6):.1f}")
            print(f"{model}_{level}_{kind}_added_over_floor {wall / floor:.2f} 1.50 cpu {cpu / floor:.2f}")
        table(model, plain, plain_cpu, added)
    return 1 if failed else 0


def table(model: str, plain: float, plain_cpu: float, added: dict) -> None:
    """The same as a table: ratio to plain and added milliseconds, of wall time
    and of the training thread's CPU time."""
    tools = [t for t in ("msprobe", "rankprobe") if any(key[0] == t for key in added)]
    print(f"\n| {model}, {1e3 * plain:.0f} ms plain | " + " | ".join(f"{t} | {t}, CPU" for t in tools)
          + " |\n| --- |" + " --- |" * 2 * len(tools))
    for level, kind in dict.fromkeys(key[1:] for key in added if key[0] in tools):
        cells = []
        for tool in tools:
            wall, cpu = added[tool, level, kind]
            cells += [f"{1 + wall / plain:.2f} x ({1e3 * wall:+.1f})", f"{1 + cpu / plain_cpu:.2f} x ({1e3 * cpu:+.1f})"]
        print(f"| {kind}, {level} | {' | '.join(cells)} |")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
