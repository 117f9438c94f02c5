#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cost of recording in a training step on a GPU: time, bytes over PCIe and waits for the device.

    gpu.py [--modes eager,compiled,compiled_graphs,captured] [--cases off,L0,L1,mix,msprobe_L0,..]
           [--launches N] [--turns N] [--steps N] [--layers N] [--width N] [--heads N] [--batch N] [--length N]
           [--device cuda|cpu] [--dtype bfloat16|float32]

The transformer of overhead.py, by default 24 layers 1,024 wide in bfloat16, with AdamW; task statistics. How it runs:
`eager`; `compiled`, torch.compile with inductor; `compiled_graphs`, the same with CUDA graphs (mode="reduce-overhead");
`captured`, forward, backward and optimizer in one CUDA graph of the program's own, whose replays rankprobe does not see.
`msprobe_L0` and so on are the same
with msprobe in place of rankprobe, if this Python has it.
A launch has one process for each case, `plain`, which has no rankprobe, and `again`, another such one, whose ratio is what chance does; they stay alive and run `steps` steps each in
turn, so that drift hits all alike, and who begins changes from launch to launch. A turn is timed from an idle device to
an idle device. With --device cpu the program is tried where there is no GPU: its times say nothing of one.

A line says of each case whether its loss and parameters after the same number of steps are those of `plain`, bit by bit. Where processes
without rankprobe differ from each other (kernels that add in any order) there is nothing to compare, which is said. Compiled steps may differ:
the compiler joins other operations where a hook comes between them.

Prints `name value limit` lines and a table for each mode: milliseconds a step, the ratio to the plain turn beside it
(median and quartiles), CPU of the training thread, and, of three profiled steps after the timing, megabytes from the device and to
it, and calls that wait for the device, each a step. Exit code 1 if a limit was missed
or numbers were changed.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "overhead"))
from launched import STEADY_MALLOC, Launched
from overhead import transformer

MODES = ("eager", "compiled", "compiled_graphs", "captured")
MSPROBE = ("msprobe_L0", "msprobe_L1", "msprobe_mix")
CASES = ("off", "L0", "L1", "mix")
PLAIN = ("plain", "again")
# As for a CPU (docs/performance.md): of the plain step. A compiled step has no limit at L1 and mix, which run it eager.
LIMITS = {"off": 1.005, "L0": 1.03, "L1": 1.12, "mix": 1.15}
PROFILED_STEPS = 3
WAITS = frozenset(("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy",
                   "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"))


@dataclasses.dataclass
class Traffic:
    """Of a step."""

    from_device_bytes: float = 0
    to_device_bytes: float = 0
    waits: float = 0


def traffic(trace: dict | list, steps: int) -> Traffic:
    """Of a trace that torch.profiler exported of `steps` steps; a list of events if it saw the host alone."""
    found = Traffic()
    for event in trace if isinstance(trace, list) else trace["traceEvents"]:
        kind, name = event.get("cat", ""), event.get("name", "")
        if kind == "gpu_memcpy":
            if name.startswith("Memcpy DtoH"):
                found.from_device_bytes += event["args"]["bytes"] / steps
            elif name.startswith("Memcpy HtoD"):
                found.to_device_bytes += event["args"]["bytes"] / steps
        elif kind in ("cuda_runtime", "cuda_driver") and name in WAITS:
            found.waits += 1 / steps
    return found


class Training:
    """A model that trains in one of MODES, recorded or not."""

    def __init__(self, case: str, mode: str, shape: argparse.Namespace, directory: str) -> None:
        import torch

        torch.manual_seed(0)
        self._torch, self._cuda = torch, shape.device == "cuda"
        self._model, (x, y) = transformer(shape.layers, shape.width, shape.heads, shape.batch, shape.length)
        self._model.to(shape.device, getattr(torch, shape.dtype))
        self._batch = x.to(shape.device), y.to(shape.device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), 1e-5, capturable=mode == "captured")
        self.debugger = None
        if case not in PLAIN:
            if case in MSPROBE:
                from msprobe.pytorch import PrecisionDebugger
            else:
                from rankprobe.pytorch import PrecisionDebugger
            level = "L0" if case == "off" else case.removeprefix("msprobe_")
            path = directory + "/config.json"
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"task": "statistics", "level": level, "dump_path": directory + "/dump", "dump_enable": case != "off",
                           "rank": [], "step": [], "risk_level": "ALL"}, file)
            self.debugger = PrecisionDebugger(config_path=path)
        self._run = self._model
        if mode.startswith("compiled"):
            # Where there is no CUDA device the second is the first.
            self._run = torch.compile(self._model, mode="reduce-overhead" if mode == "compiled_graphs" else None)
        self._graph = self._captured() if mode == "captured" else None

    def step(self) -> None:
        if self.debugger is not None:
            self.debugger.start(model=self._model)
        if self._graph is not None:
            self._graph.replay()
        else:
            self._train()
        if self.debugger is not None:
            self.debugger.stop()
            self.debugger.step()

    def settle(self) -> None:
        if self._cuda:
            self._torch.cuda.synchronize()

    def trained(self) -> str:
        """A digest of the last loss and of all parameters, bit by bit."""
        self.settle()
        digest = hashlib.sha256()
        for tensor in (self._loss, *self._model.parameters()):
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(self._torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def profiled(self, directory: str) -> Traffic:
        from torch.profiler import ProfilerActivity, profile

        path = directory + "/trace.json"
        self.settle()
        with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self._cuda) as profiler:
            for _ in range(PROFILED_STEPS):
                self.step()
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            return traffic(json.load(file), PROFILED_STEPS)

    def _train(self) -> None:
        x, y = self._batch
        self._optimizer.zero_grad()
        loss = self._torch.nn.functional.cross_entropy(self._run(x), y)
        loss.backward()
        self._optimizer.step()
        self._loss = loss.detach()

    def _captured(self):
        cuda = self._torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(3):  # what libraries allocate at first use is not to be captured
                self._train()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self._train()
        return graph


def worker(tool: str, shape: argparse.Namespace) -> None:
    """tool: a case or "plain", and a mode. Reads a number of steps from stdin, runs them, prints [wall, cpu] seconds of a
    step; of `profile`, prints the traffic of a step; of `trained`, a digest of what it has trained."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    case, mode = tool.split(",")
    directory = tempfile.mkdtemp(prefix="gpu-")
    try:
        training = Training(case, mode, shape, directory)
        for line in sys.stdin:
            if line.strip() == "profile":
                answer = dataclasses.asdict(training.profiled(directory))
            elif line.strip() == "trained":
                answer = training.trained()
            else:
                steps = int(line)
                training.settle()
                begin, begin_cpu = time.perf_counter(), time.thread_time()
                for _ in range(steps):
                    training.step()
                cpu = time.thread_time() - begin_cpu
                training.settle()
                answer = [(time.perf_counter() - begin) / steps, cpu / steps]
                if case in CASES and case != "off":
                    training.debugger.wait_exported()
            print(json.dumps(answer), file=out, flush=True)
        if case in CASES:
            training.debugger.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(mode: str, arguments: argparse.Namespace) -> bool:
    """Prints lines and table of a mode; whether all limits are met."""
    cases = [*PLAIN, *arguments.cases.split(",")]
    times: dict[str, list] = {case: [] for case in cases}
    crossed: dict[str, Traffic] = {}
    trained: dict[str, list[str]] = {case: [] for case in cases}
    shape = [f"--{name}={getattr(arguments, name)}" for name in ("device", "dtype", "layers", "width", "heads", "batch", "length")]
    for number in range(arguments.launches):
        order = cases if number % 2 == 0 else cases[::-1]
        tools = {f"{case},{mode}": ["--worker", f"{case},{mode}", *shape] for case in order}
        with Launched(__file__, tools, dict(os.environ, **STEADY_MALLOC)) as launched:
            for case in order:
                launched.ask(f"{case},{mode}", "3")  # compiles, and warms
            for _ in range(arguments.turns):
                for case in order:
                    times[case].append(launched.ask(f"{case},{mode}", str(arguments.steps)))
            for case in order:
                trained[case].append(launched.ask(f"{case},{mode}", "trained"))
            if number == 0:
                for case in order:
                    crossed[case] = Traffic(**launched.ask(f"{case},{mode}", "profile"))
        said = ", ".join(f"{case} {1e3 * statistics.median(turn[0] for turn in times[case]):.1f}" for case in cases)
        print(f"{mode}, launch {number + 1} of {arguments.launches}, so far ms a step: {said}", file=sys.stderr, flush=True)
    all_met, rows = True, []
    for case in cases:
        wall, cpu = (1e3 * statistics.median(turn[i] for turn in times[case]) for i in (0, 1))
        ratios = [turn[0] / plain[0] for turn, plain in zip(times[case], times["plain"])]
        ratio = statistics.median(ratios)
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        limit = None if mode.startswith("compiled") and case in ("L1", "mix") else LIMITS.get(case)
        verdict = "-" if limit is None else "met" if ratio <= limit else "missed"
        all_met = all_met and verdict != "missed"
        bytes_out, bytes_in = (value / 1e6 for value in (crossed[case].from_device_bytes, crossed[case].to_device_bytes))
        print(f"gpu_{mode}_{case} {ratio:.4f} {limit or '-'} {verdict}  (wall {wall:.3f} ms, quartiles {low:.4f} "
              f"to {high:.4f}, thread's CPU {cpu:.3f} ms, from the device {bytes_out:.3f} MB, to it {bytes_in:.3f} MB, "
              f"waits {crossed[case].waits:.1f})", flush=True)
        rows.append(f"| {case} | {wall:.2f} | {ratio:.3f} ({low:.3f} to {high:.3f}) | {limit or '-'} | {cpu:.2f} | {bytes_out:.2f} | "
                    f"{bytes_in:.2f} | {crossed[case].waits:.1f} |")
    all_met = same_numbers(mode, trained) and all_met
    print(f"\n| {mode} | ms a step | of plain | limit | thread's CPU, ms | MB from the device | MB to it | waits |\n|" + " --- |" * 8)
    print("\n".join(rows) + "\n", flush=True)
    return all_met


def same_numbers(mode: str, trained: dict[str, list[str]]) -> bool:
    """Prints, of the digests of each launch of each case, who trained what `plain` did; False if numbers were changed."""
    if len({digest for case in PLAIN for digest in trained[case]}) > 1:
        print(f"gpu_{mode}_numbers - - -  (processes without rankprobe differ from each other)", flush=True)
        return True
    changed = [case for case, digests in trained.items() if digests != trained["plain"]]
    judged = not mode.startswith("compiled")
    verdict = "met" if not changed else "missed" if judged else "-"
    print(f"gpu_{mode}_numbers {len(changed)} {0 if judged else '-'} {verdict}  (cases whose loss and parameters are not plain's bit by bit"
          f"{': ' + ', '.join(changed) if changed else ''}; {len(trained['plain'])} launches)", flush=True)
    return verdict != "missed"


def chosen(names: str, known: tuple[str, ...]) -> str:
    for name in names.split(","):
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", type=lambda names: chosen(names, MODES), default=None)
    parser.add_argument("--cases", type=lambda names: chosen(names, CASES + MSPROBE), default=",".join(CASES))
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments)
        return 0
    import torch

    cuda = arguments.device == "cuda"
    if cuda and not torch.cuda.is_available():
        print("there is no GPU that this PyTorch sees", file=sys.stderr)
        return 77
    if arguments.modes is None:
        arguments.modes = ",".join(MODES if cuda else MODES[:1])
    elif not cuda and "captured" in arguments.modes.split(","):
        parser.error("a CPU captures no CUDA graph")
    print(f"conditions {torch.cuda.get_device_name() if cuda else 'CPU, which says nothing of a GPU'}, PyTorch {torch.__version__}, "
          f"{arguments.layers} layers, width {arguments.width}, {arguments.heads} heads, batch {arguments.batch} x {arguments.length}, "
          f"{arguments.dtype}, load {os.getloadavg()[0]:.2f}, {os.cpu_count()} CPUs, {arguments.launches} launches of "
          f"{arguments.turns} turns of {arguments.steps} steps of each in turn, medians")
    results = [measure(mode, arguments) for mode in arguments.modes.split(",")]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
