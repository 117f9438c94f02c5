#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A long training with the monitor on: does memory stay flat, does the archive grow evenly, is nothing missing?

    soak.py [--steps 50000] [--ranks 2] [--every 50] [--samples 50] [--index-cache-bytes N] [--out FILE.json]

Real gloo ranks (DDP, a small MLP, AdamW) under one collector. At each of `samples` points all ranks and the collector are
asked for their memory (RSS) and the archive for its size. The first fifth is left out, for caches fill there. Prints a
table and what of it holds: each process' memory within 5 % (median of the last fifth over that of the second), archive
growth of both halves equal within 5 %, a ledger with exactly the steps that were to be recorded, whole. Exit status 1 if
something does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness


def rank_main(directory: str, steps: int, samples: int) -> None:
    import torch
    import torch.distributed as dist
    from rankprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(rank)
    debugger = PrecisionDebugger(config_path=f"{directory}/config.json")
    for step in range(steps):
        debugger.start(model=model)
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=generator)).square().mean().backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
        if (step + 1) % (steps // samples) == 0:
            # Told and waited for: what is measured is a state, not a moment.
            print(json.dumps([step + 1, rss(os.getpid())]), flush=True)
            sys.stdin.readline()
    debugger.close()
    dist.destroy_process_group()


def rss(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no VmRSS")


def archive_bytes(directory: pathlib.Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # LevelDB has just replaced it
            pass
    return total


def soak(arguments: argparse.Namespace, directory: pathlib.Path) -> dict:
    collector = harness.Collector(directory, "--index-cache-bytes", str(arguments.index_cache_bytes)).start()
    (directory / "config.json").write_text(json.dumps(
        {"task": "monitor", "dump_path": str(directory / "dump"), "monitor": {"every": arguments.every}}))
    ranks = [subprocess.Popen(
        [sys.executable, __file__, "--rank-of", str(directory), "--steps", str(arguments.steps), "--samples", str(arguments.samples)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(arguments.ranks), "RANKPROBE_COLLECTOR": collector.address,
             "RANKPROBE_RUN": "soak", "GLOO_SOCKET_IFNAME": "lo"}) for rank in range(arguments.ranks)]
    samples = []
    try:
        for _ in range(arguments.samples):
            told = [read_sample(rank) for rank in ranks]
            samples.append({"step": told[0][0], "ranks": [memory for _, memory in told],
                            "collector": rss(collector.process.pid), "archive": archive_bytes(collector.data_dir)})
            for rank in ranks:
                rank.stdin.write("\n")
                rank.stdin.flush()
        assert [rank.wait(timeout=300) for rank in ranks] == [0] * len(ranks)
    finally:
        for rank in ranks:
            rank.kill()
    ledger = [json.loads(line) for line in collector.cli("ledger", "--run", "soak", "--json", check=False, timeout=600).stdout.splitlines()]
    verify = collector.cli("verify", check=False, timeout=600)
    assert collector.stop(60) == 0
    return {"samples": samples, "ledger": ledger, "verify": verify.returncode}


def read_sample(rank: subprocess.Popen) -> list[int]:
    for line in rank.stdout:
        if line.startswith("["):
            return json.loads(line)
    raise SystemExit("a rank has ended early")


def judge(arguments: argparse.Namespace, result: dict) -> list[str]:
    """What does not hold."""
    samples = result["samples"]
    fifth = len(samples) // 5
    wrong = []
    for name, series in [("collector", [s["collector"] for s in samples]),
                         *((f"rank {i}", [s["ranks"][i] for s in samples]) for i in range(arguments.ranks))]:
        before, after = statistics.median(series[fifth:2 * fifth]), statistics.median(series[-fifth:])
        print(f"{name}: {before / 2**20:.1f} MiB in the second fifth, {after / 2**20:.1f} MiB in the last ({after / before - 1:+.1%})")
        if after > before * 1.05:
            wrong.append(f"memory of {name}")
    sizes = [s["archive"] for s in samples]
    middle = (fifth + len(samples) - 1) // 2
    first, second = sizes[middle] - sizes[fifth], sizes[-1] - sizes[middle]
    first, second = first / (middle - fifth), second / (len(samples) - 1 - middle)
    print(f"archive: {sizes[-1] / 2**20:.1f} MiB; {first / 2**10:.1f} KiB a sample in the first half, {second / 2**10:.1f} KiB in the second "
          f"({second / first - 1:+.1%})")
    if abs(second / first - 1) > 0.05:
        wrong.append("growth of the archive")
    expected = {(step, rank) for step in range(0, arguments.steps, arguments.every) for rank in range(arguments.ranks)}
    whole = {(int(entry.get("step", 0)), int(entry.get("rank", 0))) for entry in result["ledger"]
             if entry["state"] == "STATE_WHOLE" and entry["expected_records"] == entry["stored_records"] and not entry.get("gaps")}
    print(f"ledger: {len(result['ledger'])} rank-steps, {len(whole)} whole, {len(expected)} expected; verify: {result['verify']}")
    if whole != expected or len(result["ledger"]) != len(expected) or result["verify"] != 0:
        wrong.append("ledger")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--index-cache-bytes", type=int, default=8 << 20, help="small, for it is full soon then and grows no more")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        rank_main(arguments.rank_of, arguments.steps, arguments.samples)
        return 0
    if arguments.samples < 10 or arguments.steps % arguments.samples:
        parser.error("--samples: at least 10, and --steps a multiple of it")
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        result = soak(arguments, pathlib.Path(directory))
    if arguments.out:
        arguments.out.write_text(json.dumps(result["samples"]))
    wrong = judge(arguments, result)
    print("holds" if not wrong else f"does not hold: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
