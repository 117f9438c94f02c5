# SPDX-License-Identifier: Apache-2.0
"""Runs the Google Benchmark programs and turns their counters into budgets."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess

from budgets import Table

# Summaries that DESIGN section 8 bounds by a plain read of the same bytes.
READ_LIMIT = 0.8
TORCH_LIMIT = 4.0


def run(binary: pathlib.Path, *flags: str) -> dict[str, dict[str, float]]:
    """Benchmark name -> counters; medians over the repetitions."""
    result = subprocess.run([binary, "--benchmark_format=json", *flags], capture_output=True, text=True,
                            timeout=120, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    collected: dict[str, list[dict]] = {}
    for entry in json.loads(result.stdout)["benchmarks"]:
        if entry.get("run_type") == "aggregate":
            continue
        if entry.get("error_occurred"):
            raise RuntimeError(f"{entry['name']}: {entry.get('error_message')}")
        collected.setdefault(entry["run_name"].replace("/manual_time", ""), []).append(entry)
    wanted = ("ratio", "gb_s", "base_gb_s", "items_per_second", "real_time")
    return {name: {key: statistics.median(r[key] for r in runs) for key in wanted if key in runs[0]}
            for name, runs in collected.items()}


def kernels(table: Table, bin_dir: pathlib.Path) -> float:
    """Returns the plain read bandwidth in bytes a second."""
    figures = run(bin_dir / "common_bench", "--benchmark_min_time=0.05", "--benchmark_repetitions=5",
                  "--benchmark_enable_random_interleaving=true")
    reads = []
    for name, f in figures.items():
        if name.endswith("/statistics"):
            reads.append(f["base_gb_s"])
            table.at_least(f"statistics_of_read_{name.split('/')[1]}", f["ratio"], READ_LIMIT)
    for name, f in figures.items():
        if "+" in name or name.endswith("/xor64"):
            against = "memcpy" if "memcpy" in name else "read"
            table.info(f"{name.replace('summary/', '').replace('/', '_')}_of_{against}", f["ratio"])
        elif name.startswith("pass/"):
            table.info(f"{name.replace('/', '_')}", f["gb_s"], "GB/s")
    table.info("plain_read", statistics.median(reads), "GB/s")
    if (bin_dir / "bench_torch").exists():
        for name, f in run(bin_dir / "bench_torch", "--benchmark_min_time=0.2",
                           "--benchmark_repetitions=3").items():
            table.at_least(f"statistics_over_torch_{name.split('/')[1]}", f["ratio"], TORCH_LIMIT, "x")
    return statistics.median(reads) * 1e9


def read_bandwidth(bin_dir: pathlib.Path) -> float:
    """Bytes a second of a plain read, without the rest of the kernels' figures."""
    figures = run(bin_dir / "common_bench", "--benchmark_filter=float32/statistics/", "--benchmark_min_time=0.3")
    return statistics.median(f["base_gb_s"] for f in figures.values()) * 1e9


def agent(table: Table, bin_dir: pathlib.Path) -> None:
    figures = run(bin_dir / "runtime_bench", "--benchmark_min_time=0.2", "--benchmark_repetitions=3")
    for name, f in figures.items():
        if name.startswith("RecordCall"):
            table.info(f"agent_record_tensors_{name.split(':')[1]}B", f["items_per_second"], "/s")
        elif name == "RecordFrames":
            table.info("agent_record_frames", f["items_per_second"], "/s")
        else:
            table.info("agent_payload_frames_of_memcpy", f["ratio"])


def store(table: Table, bin_dir: pathlib.Path) -> None:
    for name, f in run(bin_dir / "store_bench", "--benchmark_min_time=0.3").items():
        if name.startswith("Records"):
            level = "synced" if "synced:1" in name else "committed"
            table.at_least(f"store_records_{level}", f["items_per_second"], 100_000, "/s")
        else:
            table.at_least("store_payload_of_write", f["ratio"], 0.8)
