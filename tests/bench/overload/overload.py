# SPDX-License-Identifier: Apache-2.0
"""The overload chart: what happens when ranks record more than the collector takes.

    RANKPROBE_BUILD_DIR=build/release python3 tests/bench/overload/overload.py [--ranks 4] [--rates 5,20,80,320]
        [--seconds 5] [--png overload.png]

For each rate (MB/s of each rank): bytes offered and lost, the collector's CPU and peak memory, and what the
agent added to a step of 20 ms. Prints a table, and draws it where matplotlib is installed (python3-matplotlib).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release")).resolve() / "bin"
TICKS = os.sysconf("SC_CLK_TCK")


def start_collector(directory: pathlib.Path) -> tuple[subprocess.Popen, str]:
    port_file = directory / "port"
    process = subprocess.Popen(
        [BIN / "rankprobed", "--listen", "127.0.0.1:0", "--data-dir", directory / "data", "--port-file", port_file,
         "--log-level", "error"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (port_file.exists() and port_file.read_text().strip()):
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError("rankprobed does not start")
        time.sleep(0.05)
    return process, f"127.0.0.1:{port_file.read_text().strip()}"


def cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_bytes(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(ranks: int, rate: float, seconds: float) -> dict:
    with tempfile.TemporaryDirectory() as name:
        collector, address = start_collector(pathlib.Path(name))
        peak = [0]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                peak[0] = max(peak[0], resident_bytes(collector.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            before, began = cpu_seconds(collector.pid), time.monotonic()
            out = subprocess.run([BIN / "overload_ranks", address, "overload", str(ranks), str(rate), str(seconds)],
                                 capture_output=True, text=True, timeout=seconds + 120)
            if out.returncode != 0:
                raise RuntimeError(out.stderr)
            took = time.monotonic() - began
            cpu = (cpu_seconds(collector.pid) - before) / took
        finally:
            done.set()
            watcher.join()
            collector.terminate()
            collector.wait(timeout=60)
    row = json.loads(out.stdout)
    row.update(rate=rate, offered_mb_s=row["offered_bytes"] / seconds / 1e6, cpu=cpu, collector_peak_bytes=peak[0],
               loss=row["lost_payloads"] * row["payload_bytes"] / max(row["offered_bytes"], 1))
    return row


def draw(rows: list[dict], ranks: int, path: str) -> bool:
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x = [row["offered_mb_s"] for row in rows]
    figure, axes = plt.subplots(3, 1, sharex=True, figsize=(7, 8))
    axes[0].plot(x, [100 * row["loss"] for row in rows], "o-")
    axes[0].set_ylabel("payloads lost, %")
    axes[1].plot(x, [row["added_ms_mean"] for row in rows], "o-", label="mean")
    axes[1].plot(x, [row["added_ms_p99"] for row in rows], "o--", label="p99")
    axes[1].set_ylabel("added to a 20 ms step, ms")
    axes[1].legend()
    axes[2].plot(x, [row["collector_peak_bytes"] / 2**20 for row in rows], "o-", label="peak memory, MiB")
    axes[2].plot(x, [100 * row["cpu"] for row in rows], "o--", label="CPU, % of a core")
    axes[2].set_ylabel("collector")
    axes[2].legend()
    axes[2].set_xlabel(f"offered by {ranks} ranks, MB/s")
    axes[2].set_xscale("log")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rates", default="5,20,80,320", help="MB/s of each rank")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--png", default="overload.png")
    flags = parser.parse_args()
    rows = []
    print(f"{'offered MB/s':>12} {'lost %':>8} {'added ms':>9} {'p99 ms':>8} {'agent MiB':>9} {'CPU %':>7} {'peak MiB':>9}")
    for rate in (float(text) for text in flags.rates.split(",")):
        row = measure(flags.ranks, rate, flags.seconds)
        rows.append(row)
        print(f"{row['offered_mb_s']:12.1f} {100 * row['loss']:8.2f} {row['added_ms_mean']:9.3f} "
              f"{row['added_ms_p99']:8.3f} {row['queue_peak_bytes'] / 2**20:9.1f} {100 * row['cpu']:7.1f} "
              f"{row['collector_peak_bytes'] / 2**20:9.1f}", flush=True)
    if draw(rows, flags.ranks, flags.png):
        print(f"chart: {flags.png}")
    else:
        print("no chart: python3-matplotlib is not installed")


if __name__ == "__main__":
    main()
