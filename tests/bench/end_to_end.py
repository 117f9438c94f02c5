#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures rankprobe against the budgets of docs/design.md with real processes.

Prints `name value limit met|missed` a line. Everything that is compared is run
in turn, and medians of the ratios are taken, because machines are shared.

  end_to_end.py [--only kernels,agent,store,ingest,steps,dedup,export,export_small,ranks] [--rounds N]

Binaries come from RANKPROBE_BUILD_DIR/bin; files go under RANKPROBE_BENCH_DIR
(default: the build directory), which should be on the disk to be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable, Iterator

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]

import analysis_peer  # noqa: E402
import long_run  # noqa: E402
import micro  # noqa: E402
import scale  # noqa: E402
from budgets import Table  # noqa: E402
from harness import BIN, BUILD, Collector, Job, config, wait_for  # noqa: E402

# The transformer that msprobe was measured with: 4 blocks, width 192, 4 x 96.
MODEL = ("--batch=4", "--length=96", "--width=192", "--heads=4", "--blocks=4", "--threads=1")
WARM_UP_STEPS = 3
# Wall time over CPU time of a plain step on one thread; 1 on an idle machine.
MAX_BUSY = 1.15

Scratch = pathlib.Path


@contextlib.contextmanager
def collector(scratch: Scratch, *flags: str) -> Iterator[Collector]:
    directory = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    running = Collector(directory, *flags).start()
    try:
        yield running
    finally:
        running.stop()
        shutil.rmtree(directory, ignore_errors=True)


def load(mode: str, target: str, run: str, amount: int) -> dict:
    result = subprocess.run([BIN / "bench_ingest", mode, target, run, str(amount)], capture_output=True,
                            text=True, timeout=180)
    if result.returncode != 0:
        raise RuntimeError(f"bench_ingest {mode}: {result.stderr}")
    return json.loads(result.stdout)


def ingest(table: Table, scratch: Scratch, rounds: int) -> None:
    mib = 512
    port_file = scratch / "null-port"
    null_sink = subprocess.Popen([BIN / "bench_null_sink", port_file])
    try:
        wait_for(lambda: port_file.exists() and port_file.read_text().strip(), 20, "bench_null_sink")
        null_address = f"127.0.0.1:{port_file.read_text().strip()}"
        with collector(scratch, "--sync-interval-ms=100") as daemon:
            load("payload", daemon.address, "warm-up", 64)
            rates: dict[str, list[float]] = {}
            for i in range(rounds):
                done = {"null": load("null", null_address, "-", mib), "write": load("write", str(scratch), f"plain{i}", mib)}
                # By shared memory, and over the connection.
                for mode in ("payload", "wire"):
                    done[mode] = load(mode, daemon.address, f"{mode}{i}", mib)
                for mode, result in done.items():
                    rates.setdefault(mode, []).append(result["bytes"] / result["seconds"])
                records = load("records", daemon.address, f"records{i}", 300)
                rates.setdefault("records", []).append(records["records"] / records["seconds"])
    finally:
        null_sink.terminate()
        null_sink.wait()
        for plain in scratch.glob("plain*"):
            plain.unlink()
    for name, mode in (("null_sink_stream", "null"), ("write_fdatasync", "write"), ("ingest_same_host", "payload"), ("ingest_connection", "wire")):
        table.info(name, statistics.median(rates[mode]) / 1e6, "MB/s")
    for name, mode in (("durable_ingest_same_host_of_min", "payload"), ("durable_ingest_connection_of_min", "wire")):
        table.at_least(name, statistics.median(ours / min(null, write) for ours, null, write in zip(rates[mode], rates["null"], rates["write"])), 0.9)
    table.at_least("durable_records", statistics.median(rates["records"]), 100_000, "/s")


def modes() -> dict[str, dict | None]:
    """Mode of the training job -> config.json; None: without the agent."""
    on = {"dump_enable": True}
    md5 = {"summary_mode": "md5"}
    return {
        "plain": None,
        "off": config(level="mix"),
        "statistics_L0": config(level="L0", **on),
        "statistics_L1": config(level="L1", **on),
        "statistics_mix": config(level="mix", **on),
        "md5_mix": config(level="mix", section=md5, **on),
        "tensor_mix": config(task="tensor", level="mix", **on),
    }


def train(scratch: Scratch, address: str, mode: str, cfg: dict | None, run: str, steps: int) -> list[float]:
    """Seconds of each step after the warm-up."""
    log = scratch / f"{run}.jsonl"
    command = [BIN / "train_transformer", *MODEL, f"--steps={steps + WARM_UP_STEPS}", f"--step-log={log}"]
    if cfg is None:
        command += ["--no-agent"]
    else:
        config_file = scratch / f"{mode}.json"
        config_file.write_text(json.dumps(cfg))
        command += [f"--collector={address}", f"--run={run}", f"--config={config_file}"]
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL,
                   env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    if cfg is not None and any(line["dumping"] != cfg["dump_enable"] for line in lines):
        raise RuntimeError(f"{mode}: dumping was not {cfg['dump_enable']} in every step")
    return [line["seconds"] for line in lines[WARM_UP_STEPS:]]


STEP_LIMITS = {"off": 1.01, "statistics_L0": 1.05, "statistics_L1": 1.15, "statistics_mix": 1.20,
               "md5_mix": 1.25, "tensor_mix": 3.0}


def step_times(scratch: Scratch, address: str, names: list[str], rounds: int, burst: int = 1) -> dict[str, dict[str, list[float]]]:
    """Mode -> its step times; the modes take turns step by step in one process, or `burst` steps by as many."""
    arguments = []
    for name in names:
        cfg = modes()[name]
        if cfg is None:
            arguments.append(name)
            continue
        config_file = scratch / f"{name}.json"
        config_file.write_text(json.dumps(cfg))
        arguments.append(f"{name}={config_file}")
    result = subprocess.run([BIN / "bench_steps", address, f"{rounds}x{burst}", *arguments], capture_output=True, text=True,
                            timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    if result.returncode != 0:
        raise RuntimeError(f"bench_steps: {result.stderr}")
    return {entry["mode"]: entry for entry in map(json.loads, result.stdout.splitlines())}


def paired(times: dict, mode: str, key: str, compare: Callable[[float, float], float]) -> float:
    return statistics.median(compare(a, b) for a, b in zip(times[mode][key], times["plain"][key]))


def steps(table: Table, scratch: Scratch, rounds: int, read_bandwidth: float) -> None:
    light = [name for name in modes() if name != "tensor_mix"]
    with collector(scratch) as daemon:
        times = step_times(scratch, daemon.address, light, 10 * rounds)
        heavy = step_times(scratch, daemon.address, ["plain", "tensor_mix"], 3 * rounds)
        runs = {r["run"]: r for r in daemon.json("runs")["runs"]}
    # Of its own, that is behind nothing.
    with collector(scratch) as daemon:
        bursts = step_times(scratch, daemon.address, ["plain", "tensor_mix"], rounds, burst=3)
    tensor_steps = 3 * rounds + WARM_UP_STEPS
    distinct = int(runs["tensor_mix"]["stored_payload_bytes"]) / tensor_steps
    table.info("step_plain", statistics.median(times["plain"]["seconds"]) * 1e3, "ms")
    table.info("step_plain_cpu", statistics.median(times["plain"]["thread_seconds"]) * 1e3, "ms")
    table.info("distinct_bytes_a_step", distinct / 1e6, "MB")
    busy = paired(times, "plain", "seconds", lambda a, b: a) / paired(times, "plain", "thread_seconds", lambda a, b: a)
    table.info("step_plain_wall_over_cpu", busy, "x")
    if busy > MAX_BUSY:
        # Other programs took the processor: ratios of wall times say nothing then, whatever they are.
        table.failed("steps", f"the machine is busy: a plain step takes {busy:.2f} times its CPU time")
        return
    ratio, difference = (lambda a, b: a / b), (lambda a, b: a - b)
    for mode, limit in STEP_LIMITS.items():
        measured = heavy if mode == "tensor_mix" else times
        table.at_most(f"step_{mode}", paired(measured, mode, "seconds", ratio), limit, "x")
        # The training thread's CPU time: without what the machine's other work takes from it.
        table.info(f"step_{mode}_cpu", paired(measured, mode, "thread_seconds", ratio), "x")
        table.info(f"step_{mode}_stop", statistics.median(measured[mode]["stop_seconds"]) * 1e3, "ms")
    table.at_most("burst_of_3_tensor_mix", paired(bursts, "tensor_mix", "seconds", ratio), 2.0, "x")
    table.info("burst_of_3_tensor_mix_cpu", paired(bursts, "tensor_mix", "thread_seconds", ratio), "x")
    table.info("burst_of_3_tensor_mix_stop", statistics.median(bursts["tensor_mix"]["stop_seconds"]) * 1e3, "ms")
    floor = distinct / read_bandwidth
    table.at_most("step_statistics_mix_added_over_read",
                  paired(times, "statistics_mix", "seconds", difference) / floor, 1.5, "x")
    table.info("step_statistics_mix_added_over_read_cpu",
               paired(times, "statistics_mix", "thread_seconds", difference) / floor, "x")


def dedup(table: Table, scratch: Scratch, rounds: int, ranks: int = 2) -> None:
    """Data-parallel training, task tensor at level mix in every step, with and without sending equal bytes once."""
    seconds: dict[str, list[float]] = {"once": [], "again": []}
    with collector(scratch) as daemon:
        for i in range(rounds):
            for way in seconds:
                run = f"{way}{i}"
                directory = scratch / run
                directory.mkdir()
                if way == "again":
                    os.environ["RANKPROBE_RESEND"] = "1"
                job = Job(directory, daemon.address, run, modes()["tensor_mix"], world_size=ranks,
                          steps=WARM_UP_STEPS + 4, extra=MODEL)
                os.environ.pop("RANKPROBE_RESEND", None)
                for rank in job.ranks:
                    rank.process.wait(timeout=180)
                seconds[way].append(statistics.median(s["seconds"] for s in job.ranks[0].steps()[WARM_UP_STEPS:]))
        runs = {r["run"]: r for r in daemon.json("runs")["runs"]}
    stored, offered = (statistics.median(int(runs[f"once{i}"][f"{what}_payload_bytes"]) for i in range(rounds))
                       for what in ("stored", "offered"))
    table.info("tensor_mix_2_ranks_offered_a_step", offered / (WARM_UP_STEPS + 4) / 1e6, "MB")
    table.info("tensor_mix_2_ranks_stored_of_offered", stored / offered)
    table.info("tensor_mix_2_ranks_step_of_sending_all", statistics.median(
        once / again for once, again in zip(seconds["once"], seconds["again"])), "x")


def tree_size(tree: pathlib.Path) -> tuple[int, int]:
    files = [path for path in tree.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def timed(command: list) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=180)
    return time.monotonic() - began


def export_beside_cp(scratch: Scratch, address: str, run: str, rounds: int,
                     options: list[str]) -> tuple[dict[str, float], int, int]:
    """How fast each way of export is, of `cp -r` of the same tree right after it; files and bytes of that tree."""
    # Nothing is deleted in between: ext4 searches long for an inode after many were freed.
    trees = scratch / f"trees-{run}"
    trees.mkdir()
    base = [BIN / "rankprobe", "export", "--collector", address, "--run", run, *options]
    rates: dict[str, list[float]] = {"server": [], "stream": []}
    for i in range(rounds):
        for way, flag in (("server", "--server-dir"), ("stream", "-o")):
            out = trees / f"{way}{i}"
            seconds = timed([*base, flag, str(out)])
            rates[way].append(timed(["cp", "-r", out, trees / f"{way}{i}-copy"]) / seconds)
    files, size = tree_size(out)
    shutil.rmtree(trees)
    return {way: statistics.median(of_cp) for way, of_cp in rates.items()}, files, size


def export_figures(table: Table, name: str, figures: tuple[dict[str, float], int, int]) -> None:
    of_cp, files, size = figures
    table.info(f"{name}_files", files)
    table.info(f"{name}_bytes", size / 1e6, "MB")
    table.at_least(f"{name}_server_side_of_cp", of_cp["server"], 0.7)
    table.info(f"{name}_streamed_of_cp", of_cp["stream"])


def export(table: Table, scratch: Scratch, rounds: int) -> None:
    with collector(scratch, f"--export-root={scratch}") as daemon:
        train(scratch, daemon.address, "tensor_mix", modes()["tensor_mix"], "export", 0)
        export_figures(table, "export", export_beside_cp(scratch, daemon.address, "export", rounds, ["--steps", "1"]))


def export_small(table: Table, scratch: Scratch, rounds: int) -> None:
    """One step of 100,000 tensors of 1 KiB."""
    with collector(scratch, f"--export-root={scratch}") as daemon:
        load("tensors", daemon.address, "small", 100)
        export_figures(table, "export_small", export_beside_cp(scratch, daemon.address, "small", min(rounds, 2), []))


def resident_kib(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"no VmRSS of {pid}")


def ranks(table: Table, scratch: Scratch, count: int = 1024, step_ms: int = 100) -> None:
    with collector(scratch) as daemon:
        before = resident_kib(daemon.process.pid)
        simulated = subprocess.Popen([BIN / "bench_ranks", daemon.address, "many", str(count), str(step_ms)],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            line = simulated.stdout.readline()
            if not line.startswith("connected"):
                raise RuntimeError(f"bench_ranks said {line!r}")
            time.sleep(3)  # idle: nothing but metrics
            idle = resident_kib(daemon.process.pid) - before
            simulated.stdin.write("step\n")
            simulated.stdin.flush()
            wait_for(lambda: all(int(a.get("step", 0)) > 3 for a in daemon.json("status", "--run", "many")["agents"]),
                     30, "steps of all ranks")
            times = []
            for verb in ("enable", "disable", "enable", "disable"):
                began = time.monotonic()
                daemon.cli(verb, "--run", "many")
                times.append(time.monotonic() - began)
            stepping = resident_kib(daemon.process.pid) - before
        finally:
            simulated.stdin.close()
            simulated.wait(timeout=60)
    table.info("ranks_connect_1024", float(line.split()[1]), "s")
    table.at_most("ranks_1024_idle_memory_each", idle / count, 256, "KiB")
    table.info("ranks_1024_stepping_memory_each", stepping / count, "KiB")
    table.at_most("ranks_1024_switch", statistics.median(times), 1.0, "s")


def analysis(table: Table, scratch: Scratch) -> None:
    """Beside msprobe where there is one; several minutes, nearly all of them msprobe's."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    installed = sorted(cache.glob("rankprobe/venv-*/bin/msprobe"), key=lambda path: path.stat().st_mtime)  # tests/lib/venv.sh
    peer = pathlib.Path(os.environ.get("RANKPROBE_MSPROBE", installed[-1] if installed else "msprobe"))
    directory = scratch / "analysis"
    directory.mkdir()
    try:
        analysis_peer.measure(table, BIN / "rankprobe", peer if peer.exists() else None, directory,
                              tensor_mib=2048 if peer.exists() else 0, python=peer.with_name("python"))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def fill_page_cache(scratch: Scratch) -> None:
    """With a file of nothing that is as large as what is free, and stays until the end."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with open(scratch / "nothing", "w+b", buffering=0) as file:
        file.truncate(max(0, free - (1 << 30)))
        while file.read(1 << 24):
            pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = "kernels,agent,store,ingest,steps,dedup,export,export_small,ranks"
    parser.add_argument("--only", default=parts, help="parts to measure; also analysis, which needs msprobe, archive and scale")
    parser.add_argument("--archive", default="1024,10000,5000", help="ranks, steps and calls of part archive")
    parser.add_argument("--rounds", type=int, default=3, help="of what is measured in turn")
    parser.add_argument("--scale", default="ingest,two,export,switch,memory,control,sessions", help="of part scale")
    parser.add_argument("--small", action="store_true", help="part scale at a size that says nothing but that it runs")
    parser.add_argument("--touched-memory", action="store_true",
                        help="first fill the page cache, as on a machine that has been in use: the first touch of a page of a virtual machine is its host's work")
    flags = parser.parse_args()
    wanted = flags.only.split(",")
    unknown = set(wanted) - {*parts.split(","), "analysis", "archive", "scale"}
    if unknown:
        parser.error(f"no part named {', '.join(sorted(unknown))}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    root = pathlib.Path(os.environ.get("RANKPROBE_BENCH_DIR", BUILD))
    root.mkdir(parents=True, exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="rankprobe-bench-", dir=root))
    os.environ["RANKPROBE_BENCH_DIR"] = str(scratch)
    table = Table()
    read_bandwidth = 0.0
    if flags.touched_memory:
        fill_page_cache(scratch)

    def measure_kernels() -> None:
        nonlocal read_bandwidth
        read_bandwidth = micro.kernels(table, BIN)

    def measure_steps() -> None:
        if not (BIN / "train_transformer").exists():
            raise RuntimeError("built without LibTorch")
        bandwidth = read_bandwidth or micro.read_bandwidth(BIN)
        steps(table, scratch, flags.rounds, bandwidth)

    measures = {
        "kernels": measure_kernels,
        "agent": lambda: micro.agent(table, BIN),
        "store": lambda: micro.store(table, BIN),
        "ingest": lambda: ingest(table, scratch, flags.rounds),
        "steps": measure_steps,
        "dedup": lambda: dedup(table, scratch, flags.rounds),
        "export": lambda: export(table, scratch, flags.rounds),
        "export_small": lambda: export_small(table, scratch, flags.rounds),
        "ranks": lambda: ranks(table, scratch),
        "analysis": lambda: analysis(table, scratch),
        "scale": lambda: scale.measure(table, scratch, flags.rounds, flags.small, flags.scale.split(",")),
        "archive": lambda: long_run.archive(table, scratch, tuple(map(int, flags.archive.split(",")))),
    }
    try:
        for part in wanted:
            began = time.monotonic()
            try:
                measures[part]()
            except Exception as error:  # noqa: BLE001 - one part's failure is not the others'
                table.failed(part, error)
            print(f"  {part}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(table.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
