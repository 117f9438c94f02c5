#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processor time behind the training thread in a recorded step: the agent's other threads, and the collector.

    step_cpu.py BUILD_DIR [--case cnn_L1] [--steps N]

Cases: cnn_L0, cnn_L1, cnn_mix (the CNN of overhead.py in Python, private collector, trees exported) and cpp_L0, cpp_L1,
cpp_mix (the C++ transformer of the budgets, a collector of its own, rolled up). All steps follow each other and all are
recorded. Milliseconds of CPU a step, by the kernel's clocks of the processes and of the training thread; a thread that
has ended counts. compare_builds.py --only cpu does this for several builds in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CASES = ("cnn_L1", "cnn_mix", "cpp_L1", "cpp_mix")
PYTHON_WARM_UP, PYTHON_STEPS = 20, 150
CPP_WARM_UP, CPP_STEPS = 5, 30
MODEL = ("--batch=4", "--length=96", "--width=192", "--heads=4", "--blocks=4", "--threads=1")


def cpu_seconds(pid: int) -> float:
    """Of all threads that the process has had."""
    return time.clock_gettime(~pid << 3 | 2)  # the kernel's number of that clock


def first_thread_seconds(pid: int) -> float:
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def settings(level: str) -> dict:
    return {"task": "statistics", "rank": [], "step": [], "level": level, "risk_level": "ALL", "dump_enable": True,
            "statistics": {"scope": [], "list": [], "data_mode": ["all"]}}


def worker(level: str, steps: int) -> None:
    """In a process of its own; prints one line of JSON."""
    sys.path.insert(0, str(HERE / "overhead"))
    import overhead
    import torch
    import torch.nn.functional as F
    from rankprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(1)
    model, (x, y) = overhead.build("cnn")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    directory = tempfile.mkdtemp(prefix="step-cpu-")
    try:
        config = pathlib.Path(directory, "config.json")
        config.write_text(json.dumps({**settings(level), "dump_path": directory + "/dump"}))
        debugger = PrecisionDebugger(config_path=str(config))

        def run(count: int) -> None:
            for _ in range(count):
                debugger.start(model=model)
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                debugger.stop()
                debugger.step()

        run(PYTHON_WARM_UP)
        debugger.wait_exported()
        (lock,) = glob.glob(directory + "/dump/.rankprobe/collector-*/data/LOCK")
        collector = int(pathlib.Path(lock).read_text())

        def clocks() -> tuple:
            return time.perf_counter(), time.thread_time(), time.process_time(), cpu_seconds(collector)

        before = clocks()
        run(steps)
        wall = time.perf_counter()
        debugger.wait_exported()
        after = clocks()
        debugger.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    thread, process, taken = (b - a for a, b in zip(before[1:], after[1:]))
    print(json.dumps({"wall": (wall - before[0]) * 1e3 / steps, "training thread": thread * 1e3 / steps,
                      "agent": (process - thread) * 1e3 / steps, "collector": taken * 1e3 / steps}))


def python_case(build: pathlib.Path, level: str, steps: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(build / "python"), "RANKPROBE_BIN_DIR": str(build / "bin"),
                   "OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
    done = subprocess.run([sys.executable, __file__, "--worker", level, "--steps", str(steps)], env=environment,
                          capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"step_cpu: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def cpp_case(build: pathlib.Path, level: str, steps: int, address: str, collector: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        config, log = pathlib.Path(scratch, "config.json"), pathlib.Path(scratch, "steps")
        config.write_text(json.dumps({**settings(level), "dump_path": scratch + "/dump"}))
        job = subprocess.Popen([build / "bin/train_transformer", *MODEL, f"--steps={CPP_WARM_UP + steps + 2}",
                                f"--step-log={log}", f"--collector={address}", f"--run={level}", f"--config={config}"],
                               stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            def at_step(step: int) -> tuple:
                deadline = time.monotonic() + 120
                while True:
                    lines = log.read_text().count("\n") if log.exists() else 0
                    if lines >= step:
                        return lines, time.perf_counter(), first_thread_seconds(job.pid), cpu_seconds(job.pid), \
                            cpu_seconds(collector)
                    if job.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError("train_transformer did not come so far")
                    time.sleep(0.002)

            before, after = at_step(CPP_WARM_UP), at_step(CPP_WARM_UP + steps)
        finally:
            job.kill()
            job.wait()
        count, wall, thread, process, taken = (b - a for a, b in zip(before, after))
        return {"wall": wall * 1e3 / count, "training thread": thread * 1e3 / count,
                "agent": (process - thread) * 1e3 / count, "collector": taken * 1e3 / count}


@contextlib.contextmanager
def shared_collector(build: pathlib.Path):
    import compare_builds

    with tempfile.TemporaryDirectory() as directory, compare_builds.collector(build, pathlib.Path(directory)) as running:
        yield running


def measure(build: pathlib.Path, case: str, steps: int = 0) -> dict[str, float]:
    kind, level = case.split("_", 1)
    if kind == "cnn":
        return python_case(build, level, steps or PYTHON_STEPS)
    with shared_collector(build) as (address, collector):
        return cpp_case(build, level, steps or CPP_STEPS, address, collector)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path)
    parser.add_argument("--case", default="")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--worker", default="")
    flags = parser.parse_args()
    if flags.worker:
        return worker(flags.worker, flags.steps)
    for case in flags.case.split(",") if flags.case else CASES:
        for name, value in measure(flags.build.resolve(), case, flags.steps).items():
            print(f"{case}, {name:16} {value:8.3f} ms a step", flush=True)


if __name__ == "__main__":
    main()
