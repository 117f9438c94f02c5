#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One figure of several builds in turns, for before and after: what ingest costs, what recording adds to a step.

    tests/bench/compare_builds.py --build before=/tree1/build/release --build after=/tree2/build/release
                                  [--only ingest,steps,cpu] [--rounds 9]

Each round runs each build in random order, with that build's own programs, and prints for each figure and build the
median, the least, and the median over the rounds of its ratio to the first build of that round.

ingest: rankprobed takes records and payloads of bench_ingest until they are SYNCED. User + system time of collector and
client apart (of the collector user time alone too: the rest is the kernel's copying), for machines on which others work
too, where wall time says little. Targets rankprobed, bench_ingest.
steps: bench_steps, step time over the plain step of the same process, wall and CPU time of the training thread, and the
wait in stop() in seconds; `plain, wall over CPU` above 1.15: too busy for wall times. Targets rankprobed, bench_steps.
cpu: CPU of a recorded step by who takes it (step_cpu.py), milliseconds. Targets rankprobed, rankprobe, rankprobe_native,
train_transformer. Not part of the default.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import tempfile
import time
from typing import Iterator

import end_to_end
import step_cpu

RECORDS = 300  # thousands
PAYLOAD_MIB = 512
LIGHT = ("off", "statistics_L0", "statistics_L1", "statistics_mix", "md5_mix")
LIGHT_STEPS, HEAVY_STEPS = 16, 5


def cpu_of(pid: int) -> tuple[float, float]:
    """User, and user + system."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    user, system = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13])
    return user, user + system


def children() -> float:
    times = os.times()
    return times.children_user + times.children_system


@contextlib.contextmanager
def collector(build: pathlib.Path, directory: pathlib.Path, *flags: str) -> Iterator[tuple[str, int]]:
    """Address and process id of a rankprobed of that build, which is killed in the end."""
    port_file = directory / "port"
    daemon = subprocess.Popen([build / "bin/rankprobed", "--listen", "127.0.0.1:0", "--data-dir", directory / "data",
                               "--port-file", port_file, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().strip()):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{build}: no rankprobed")
            time.sleep(0.05)
        yield f"127.0.0.1:{port_file.read_text().strip()}", daemon.pid
    finally:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()


def output_of(command: list, timeout: float, **more) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)
    if result.returncode != 0:
        raise RuntimeError(f"{command}: {result.stderr}")
    return result.stdout


def ingest(build: pathlib.Path, directory: pathlib.Path) -> dict[str, float]:
    out = {}
    with collector(build, directory, "--sync-interval-ms", "100") as (address, pid):
        for mode, warm, amount in (("records", 30, RECORDS), ("payload", 64, PAYLOAD_MIB)):
            for run, size in ((f"warm-{mode}", warm), (mode, amount)):
                before, before_client = cpu_of(pid), children()
                printed = output_of([build / "bin/bench_ingest", mode, address, run, str(size)], 300)
                user, whole = cpu_of(pid)
                out[f"{mode}, collector"] = whole - before[1]
                out[f"{mode}, its user"] = user - before[0]
                out[f"{mode}, client"] = children() - before_client
                out[f"{mode}, wall"] = json.loads(printed)["seconds"]
    return out


def steps(build: pathlib.Path, directory: pathlib.Path) -> dict[str, float]:
    out: dict[str, float] = {}
    configs = {name: config for name, config in end_to_end.modes().items() if config is not None}
    for name, config in configs.items():
        (directory / f"{name}.json").write_text(json.dumps(config))
    with collector(build, directory) as (address, _):
        for names, count in ((LIGHT, LIGHT_STEPS), (("tensor_mix",), HEAVY_STEPS)):
            arguments = [f"{name}={directory / name}.json" for name in names]
            printed = output_of([build / "bin/bench_steps", address, str(count), "plain", *arguments], 200,
                                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
            times = {entry["mode"]: entry for entry in map(json.loads, printed.splitlines())}
            plain = times["plain"]
            if names is LIGHT:
                out["plain, seconds"] = statistics.median(plain["seconds"])
                out["plain, wall over CPU"] = out["plain, seconds"] / statistics.median(plain["thread_seconds"])
            for name in names:
                out[f"{name}, x"] = end_to_end.paired(times, name, "seconds", lambda a, b: a / b)
                out[f"{name}, CPU x"] = end_to_end.paired(times, name, "thread_seconds", lambda a, b: a / b)
                out[f"{name}, stop"] = statistics.median(times[name]["stop_seconds"])
    return out


def cpu(build: pathlib.Path, directory: pathlib.Path) -> dict[str, float]:
    return {f"{case}, {name}": value for case in step_cpu.CASES for name, value in step_cpu.measure(build, case).items()}


PARTS = {"ingest": ingest, "steps": steps, "cpu": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--only", default="ingest,steps")
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args()
    builds = {name: pathlib.Path(path) for name, path in (pair.split("=", 1) for pair in flags.build)}
    for part in flags.only.split(","):
        compare(part, builds, flags.rounds)


def compare(part: str, builds: dict[str, pathlib.Path], count: int) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in builds}
    for _ in range(count):
        for name in random.sample(list(builds), len(builds)):
            with tempfile.TemporaryDirectory() as directory:
                found[name].append(PARTS[part](builds[name], pathlib.Path(directory)))
    first = found[next(iter(builds))]
    print(f"{part}: {count} rounds; load average {os.getloadavg()[0]:.1f}")
    for figure in first[0]:
        for name, rounds in found.items():
            values = [r[figure] for r in rounds]
            ratio = statistics.median(r[figure] / f[figure] for r, f in zip(rounds, first))
            print(f"{figure:22} {name:12} median {statistics.median(values):.3f}  "
                  f"least {min(values):.3f}  ratio {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
