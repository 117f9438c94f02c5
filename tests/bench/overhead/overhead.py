#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cost of recording in a training step: plain, msprobe, rankprobe.

    overhead.py [--models transformer,cnn] [--cases L0,L1,mix,L1+md5,L1+tensor]
                [--launches N] [--rounds N] [--steps N] [--tools msprobe,rankprobe]
                [--malloc steady|default] [--risk-level ALL|default]
    overhead.py --as-user

A case is a level of task statistics, with +md5 its checksums, with +tensor task
tensor. Needs a Python with PyTorch, rankprobe and (for its column) msprobe. One
worker process for each (tool, case) stays alive; the driver lets them run a few
steps each in turn, so that drift of the machine hits all alike. What a tool
left running at the end of a turn is waited for outside of the timing. Prints
`name value limit` lines, a table, and the floor: bytes of distinct tensors of
a step over the read bandwidth of this machine, measured in the same run.

`cpu` is the CPU time of the training thread alone, `all_cpu` user and system
time of the whole process and of rankprobe's private collector. One thread, CPU.
A step is timed with what the tool does in start, stop, step; `stop_ms` is the whole of stop(). fit.py takes the CPU
time of start, stop and step by themselves, too.

Memory: glibc gives memory of large tensors back to the system and faults it in
again, or does not, as the addresses of a process happen to lie: 0 to 3,000 page
faults a step of the CNN, which is up to 4 of its 12 ms, in plain steps too. By
default all workers alike keep their memory (MALLOC_TRIM_THRESHOLD_ and
MALLOC_MMAP_THRESHOLD_); faults of a step are printed. Where its tensors lie still
makes one process up to a fifth slower than the next one of the same program, so
all are started anew for each launch, and medians are over all launches.

--as-user is how somebody's script runs: malloc and risk_level as they come, fourteen steps after each other, all
recorded, in seven launches.

A model is `transformer`, `cnn`, or `transformer:layers=N,width=N,heads=N,batch=N,length=N`.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time

from launched import STEADY_MALLOC, Launched


def build(name: str):
    """(model, batch) of a benchmark model."""
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    if name == "cnn":
        layers, width = [], 3
        for out in (32, 64, 64):
            layers += [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
            width = out
        model = nn.Sequential(nn.Sequential(*layers), nn.Flatten(), nn.Linear(64 * 16, 10))
        return model, (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))

    shape = {"layers": 4, "width": 256, "heads": 4, "batch": 8, "length": 64}
    kind, _, given = name.partition(":")
    for part in given.split(",") if given else ():
        key, _, value = part.partition("=")
        if key not in shape or not value.isdigit():
            raise SystemExit(f"no shape {part}: one of {', '.join(shape)}, = and a number")
        shape[key] = int(value)
    if kind != "transformer":
        raise SystemExit(f"no model {name}")
    return transformer(**shape)


def transformer(layers: int, width: int, heads: int, batch: int, length: int):
    """(model, batch) of a decoder without a mask, of 1,000 words."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

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
            self.embed = nn.Embedding(1000, width)
            self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
            self.head = nn.Linear(width, 1000)

        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x).view(-1, 1000)

    tokens = torch.randint(0, 1000, (batch, length))
    return Transformer(), (tokens, tokens.view(-1))


def thread_seconds(pid: int) -> float:
    """CPU time of all threads of a process that are alive."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
            except OSError:
                pass
    except OSError:
        pass
    return total / 1e9


def worker(tool: str, level: str, kind: str, model_name: str, risk_level: str) -> None:
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
        task = "tensor" if kind == "tensor" else "statistics"
        section = {"scope": [], "list": [], "data_mode": ["all"]}
        if kind == "md5":
            section["summary_mode"] = "md5"
        config = {"task": task, "dump_path": directory + "/dump", "rank": [], "step": [], "level": level, task: section}
        if risk_level != "default":
            config["risk_level"] = risk_level
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
    collector = None

    def all_cpu() -> float:
        return time.process_time() + (thread_seconds(collector) if collector else 0)

    for line in sys.stdin:
        times = []
        begin_all = all_cpu()
        for _ in range(int(line)):
            faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            if debugger is not None:
                debugger.start(model=model)
            begun_cpu = time.thread_time()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            stopped, ended_cpu = 0.0, time.thread_time()
            if debugger is not None:
                stopping = time.perf_counter()
                debugger.stop()
                stopped = time.perf_counter() - stopping
                debugger.step()
            wall, over_cpu = time.perf_counter() - begin, time.thread_time()
            times.append([wall, over_cpu - begin_cpu, 0.0, resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults, stopped,
                          begun_cpu - begin_cpu + over_cpu - ended_cpu])
        if tool == "rankprobe":
            debugger.wait_exported()
        spent = (all_cpu() - begin_all) / len(times)
        for step in times:
            step[2] = spent
        for tree in glob.glob(directory + "/dump/**/step*", recursive=True):
            shutil.rmtree(tree, ignore_errors=True)
        if tool == "rankprobe" and collector is None:
            (lock,) = glob.glob(directory + "/dump/.rankprobe/collector-*/data/LOCK")
            with open(lock, encoding="ascii") as file:
                collector = int(file.read())
        print(json.dumps(times), file=out, flush=True)
    if tool == "rankprobe":
        debugger.close()
    shutil.rmtree(directory, ignore_errors=True)


def typical(rounds: list) -> tuple[float, float, float]:
    """(wall, CPU of the training thread, all CPU) seconds of a step: medians."""
    return tuple(statistics.median(t[i] for times in rounds for t in times) for i in (0, 1, 2))


def added_to(plain: list, rounds: list) -> tuple[float, float, float]:
    """The same of what was added: the median over the rounds of the difference
    to the plain steps beside it."""
    return tuple(statistics.median(typical([a])[i] - typical([b])[i] for a, b in zip(rounds, plain)) for i in (0, 1, 2))


def distinct_bytes(model_name: str, level: str = "mix") -> int:
    """Bytes of the distinct tensors that a level sees in a step; at L1 as many as at mix."""
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
    if level == "L0":
        for module in model.modules():
            if module is not model:
                module.register_forward_hook(lambda _module, inputs, output: add((*inputs, output)))
    with contextlib.nullcontext() if level == "L0" else Counter():
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


def times_less(theirs: float, ours: float) -> str:
    """A ratio of added times; none where ours is lost in the noise."""
    return f"{theirs / ours:.1f}" if ours > 0.01 * theirs else "-"


def models(names: str) -> list[str]:
    """Names with a comma between, which a shape has as well."""
    found: list[str] = []
    for part in names.split(","):
        if "=" in part and ":" not in part and found:
            found[-1] += "," + part
        else:
            found.append(part)
    return found


def cases(names: str) -> list[tuple[str, str]]:
    """[(level, statistics, md5 or tensor)]"""
    found = [tuple((name + "+statistics").split("+")[:2]) for name in names.split(",")]
    for level, kind in found:
        if level not in ("L0", "L1", "mix") or kind not in ("statistics", "md5", "tensor"):
            raise SystemExit(f"no case {level}+{kind}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="transformer,cnn")
    parser.add_argument("--cases", default="L0,L1,mix,L1+md5,L1+tensor")
    parser.add_argument("--tools", default="msprobe,rankprobe")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)  # the export of a step runs beside the next
    parser.add_argument("--malloc", choices=("steady", "default"), default="steady")
    parser.add_argument("--risk-level", choices=("ALL", "default"), default="ALL")
    parser.add_argument("--as-user", action="store_true")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(*arguments.worker)
        return 0
    if arguments.as_user:
        arguments.malloc = arguments.risk_level = "default"
        arguments.launches, arguments.rounds, arguments.steps = 7, 1, 14

    import torch

    print(f"conditions load {' '.join(f'{v:.2f}' for v in os.getloadavg())}, {os.cpu_count()} CPUs, PyTorch "
          f"{torch.__version__}, one thread, {arguments.malloc} malloc, risk_level {arguments.risk_level}, {arguments.launches} launches of "
          f"{arguments.rounds} x {arguments.steps} steps of each in turn, medians")
    bandwidth = read_bandwidth()
    print(f"read_bandwidth_gb_s {bandwidth / 1e9:.2f} -")
    environment = dict(os.environ, **(STEADY_MALLOC if arguments.malloc == "steady" else {}))
    failed = False
    found = cases(arguments.cases)
    for model in models(arguments.models):
        # What task tensor leaves to the disk is not to hold up the steps of the others.
        for group in ([c for c in found if c[1] != "tensor"], [c for c in found if c[1] == "tensor"]):
            if group:
                failed = measure(model, group, arguments, environment, bandwidth) or failed
    return 1 if failed else 0


# Above this other programs took the processor.
MAX_BUSY = 1.15
LIMITS = {("L0", "statistics"): "1.05", ("L1", "statistics"): "1.15", ("mix", "statistics"): "1.20",
          ("mix", "md5"): "1.25", ("mix", "tensor"): "3.00"}


def launch(model: str, names: list, arguments: argparse.Namespace, environment: dict, times: list) -> None:
    """Starts a process for each name and adds the steps of their turns to `times`."""
    tools = {name: ["--worker", *name, model, arguments.risk_level] for name in names}
    with Launched(__file__, tools, environment) as launched:
        for name in names:
            launched.ask(name, "3")  # warm
        for _ in range(arguments.rounds):
            for name, of_name in zip(names, times):
                of_name.append(launched.ask(name, str(arguments.steps)))


def measure(model: str, group: list, arguments: argparse.Namespace, environment: dict, bandwidth: float) -> bool:
    """Runs and prints cases of one model; whether a limit beside msprobe was missed."""
    names = [("plain", "-", "statistics")]
    if "rankprobe" in arguments.tools:
        names.append(("rankprobe-off", "mix", "statistics"))
    for level, kind in group:
        names += [(tool, level, kind) for tool in arguments.tools.split(",")]
    times: list[list] = [[] for _ in names]
    for _ in range(arguments.launches):
        launch(model, names, arguments, environment, times)
    plain = typical(times[0])
    count = distinct_bytes(model)
    floor = count / bandwidth
    print(f"load after {model} {os.getloadavg()[0]:.2f}")
    print(f"{model}_plain_ms {1e3 * plain[0]:.2f} -")
    busy = plain[0] / plain[1]
    print(f"{model}_plain_wall_over_cpu {busy:.2f} {MAX_BUSY}")
    if busy > MAX_BUSY:
        print("the machine is busy: wall times below say nothing, CPU times little")
    print(f"{model}_distinct_mb {count / 1e6:.1f} -")
    print(f"{model}_floor_added_ms {1e3 * floor:.2f} -")
    added, failed = {}, False
    for (tool, level, kind), rounds in zip(names, times):
        faults = statistics.median(step[3] for turn_ in rounds for step in turn_)
        if tool == "plain":
            print(f"{model}_plain_faults {faults:.0f} -")
            continue
        wall, cpu, whole = added[tool, level, kind] = added_to(times[0], rounds)
        limit = "1.01" if tool == "rankprobe-off" else LIMITS.get((level, kind), "-") if tool == "rankprobe" else "-"
        print(f"{model}_{tool}_{level}_{kind}_ratio {1 + wall / plain[0]:.3f} {limit} cpu {1 + cpu / plain[1]:.3f} "
              f"all_cpu {1 + whole / plain[2]:.3f} faults {faults:.0f}")
        stops = sorted(step[4] for turn_ in rounds for step in turn_)
        if tool == "rankprobe" and kind != "tensor":
            print(f"{model}_{level}_{kind}_stop_ms median {1e3 * statistics.median(stops):.3f} 0.100 p99 {1e3 * stops[len(stops) * 99 // 100]:.3f} 0.500 "
                  f"of {len(stops)}")
    for (tool, level, kind), (wall, cpu, whole) in added.items():
        other = added.get(("msprobe", level, kind))
        if tool != "rankprobe" or other is None:
            continue
        limit = 10 if level in ("L1", "mix") and kind == "statistics" else 0
        less = [times_less(theirs, ours) for theirs, ours in zip(other, (wall, cpu, whole))]
        failed = failed or busy > MAX_BUSY or (wall > 0 and other[0] < limit * wall)
        print(f"{model}_{level}_{kind}_added_ms msprobe {1e3 * other[0]:.2f} rankprobe {1e3 * wall:.2f} "
              f"times_less {less[0]} {limit or '-'} cpu {1e3 * other[1]:.2f} {1e3 * cpu:.2f} times_less "
              f"{less[1]} all_cpu {1e3 * other[2]:.2f} {1e3 * whole:.2f} times_less {less[2]}")
        if kind == "statistics":
            print(f"{model}_{level}_{kind}_added_over_floor {wall / floor:.2f} 1.50 cpu {cpu / floor:.2f}")
    table(model, plain, added)
    return failed


def table(model: str, plain: tuple, added: dict) -> None:
    """The same as a table: added milliseconds of wall time, of the training
    thread's CPU time and of all CPU time."""
    print(f"\n| {model}, {1e3 * plain[0]:.0f} ms plain | msprobe | rankprobe | times less | training thread's CPU: "
          "msprobe | rankprobe | times less | all CPU: msprobe | rankprobe | times less |\n|" + " --- |" * 10)
    for (tool, level, kind), ours in added.items():
        theirs = added.get(("msprobe", level, kind))
        if tool != "rankprobe" or theirs is None:
            continue
        cells = []
        for i in range(3):
            ratios = [f"{1e3 * v[i]:+.1f} ({1 + v[i] / plain[i]:.2f} x)" for v in (theirs, ours)]
            cells += [*ratios, times_less(theirs[i], ours[i])]
        print(f"| {level}{'' if kind == 'statistics' else ', ' + kind} | {' | '.join(cells)} |")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
