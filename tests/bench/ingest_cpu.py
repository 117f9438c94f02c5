#!/usr/bin/python3
"""CPU that ingest costs, of several builds in turns: for a machine on which others work too, where wall time says little.

    tests/bench/ingest_cpu.py --build before=/tree1/build/release --build after=/tree2/build/release [--rounds 9]

Each round starts each build's rankprobed in random order and has the same build's bench_ingest send records and
payloads until they are SYNCED. Prints, for each build, medians of user + system time, of collector and client apart
(of the collector user time alone too: the rest is the kernel's copying), and the median over the rounds of its ratio to
the first build of that round. Needs targets rankprobed, bench_ingest.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import tempfile
import time

RECORDS = 300  # thousands
PAYLOAD_MIB = 512


def cpu_of(pid: int) -> tuple[float, float]:
    """User, and user + system."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    user, system = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13])
    return user, user + system


def children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def measure(build: pathlib.Path, directory: pathlib.Path) -> dict[str, float]:
    port_file = directory / "port"
    daemon = subprocess.Popen([build / "bin/rankprobed", "--listen", "127.0.0.1:0", "--data-dir", directory / "data",
                               "--port-file", port_file, "--sync-interval-ms", "100"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().strip()):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{build}: no rankprobed")
            time.sleep(0.05)
        address = f"127.0.0.1:{port_file.read_text().strip()}"
        out = {}
        for mode, warm, amount in (("records", 30, RECORDS), ("payload", 64, PAYLOAD_MIB)):
            for run, size in ((f"warm-{mode}", warm), (mode, amount)):
                before, before_client = cpu_of(daemon.pid), children()
                result = subprocess.run([build / "bin/bench_ingest", mode, address, run, str(size)],
                                        capture_output=True, text=True, timeout=300)
                if result.returncode != 0:
                    raise RuntimeError(f"bench_ingest {mode}: {result.stderr}")
                user, whole = cpu_of(daemon.pid)
                out[f"{mode}, collector"] = whole - before[1]
                out[f"{mode}, its user"] = user - before[0]
                out[f"{mode}, client"] = children() - before_client
                out[f"{mode}, wall"] = json.loads(result.stdout)["seconds"]
        return out
    finally:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args()
    builds = {name: pathlib.Path(path) for name, path in (pair.split("=", 1) for pair in flags.build)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in builds}
    for _ in range(flags.rounds):
        for name in random.sample(list(builds), len(builds)):
            with tempfile.TemporaryDirectory() as directory:
                found[name].append(measure(builds[name], pathlib.Path(directory)))
    first = found[next(iter(builds))]
    print(f"{flags.rounds} rounds, seconds; load average {os.getloadavg()[0]:.1f}")
    for figure in first[0]:
        for name, rounds in found.items():
            values = [r[figure] for r in rounds]
            ratio = statistics.median(r[figure] / f[figure] for r, f in zip(rounds, first))
            print(f"{figure:20} {name:12} median {statistics.median(values):.3f}  "
                  f"least {min(values):.3f}  ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
