#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Graph build, graph compare and table compare of one dump, ours against msprobe's.

    analysis_peer.py --rankprobe BIN --msprobe BIN [--ranks 8] [--calls 5000] [--tensor-mib 0] [--rounds 1] [--only JOB,..]

Prints `name value limit met|missed`: how many times faster, and peak memory. run.sh --only analysis does the same. Both run on the same files, read just before, one
after the other in each round; medians and ratios count, not seconds. With --tensor-mib a compare of real data of that size runs as well (needs torch).
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def tensor(rng, scale=1.0):
    high = rng.random() * scale
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 128, 512], "Max": high, "Min": -high,
            "Mean": high / 3 - 0.1, "Norm": high * 700, "requires_grad": True}


def write_rank(directory, calls, seed, noise):
    rng = random.Random(seed)
    other = random.Random(seed + 1)
    data, construct, stack = {}, {}, {}
    for i in range(calls // 5):
        layer = f"Module.model.layers.{i}.Block.forward.0"
        for j, op in enumerate(("linear", "gelu", "linear", "layer_norm")):
            name = f"Functional.{op}.{4 * i + j}.forward"
            out = tensor(rng)
            if noise and other.random() < 0.3:
                out["Max"] *= 1 + 1e-4 * other.random()
                out["Norm"] *= 1 + 1e-4 * other.random()
            data[name] = {"input_args": [tensor(rng), tensor(rng), {"type": "int", "value": 512}],
                          "input_kwargs": {"inplace": {"type": "bool", "value": False}}, "output": [out]}
            construct[name] = layer
            stack.setdefault(j, []).append(name)
        data[layer] = {"input_args": [tensor(rng)], "input_kwargs": {}, "output": [tensor(rng)],
                       "parameters": {"weight": tensor(rng), "bias": tensor(rng)}}
        construct[layer] = None
        stack.setdefault(9, []).append(layer)
    frames = [f"File /train/model.py, line {k}, in forward, \n x = self.layer_{k}(x)" for k in range(12)]
    os.makedirs(directory)
    for name, value in (("dump", {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None,
                                  "data": data}),
                        ("construct", construct),
                        ("stack", {str(k): [names, frames] for k, names in stack.items()})):
        with open(os.path.join(directory, name + ".json"), "w") as file:
            json.dump(value, file, indent=1)


def write_tensors(directory, mib, noise):
    import torch

    torch.manual_seed(7)
    other = torch.Generator().manual_seed(8)
    os.makedirs(os.path.join(directory, "dump_tensor_data"))
    count = max(1, mib // 32)
    data = {}
    for i in range(count):
        name = f"Torch.mul.{i}.forward"
        value = torch.randn(8, 1024, 1024)
        if noise:
            value = value * (1 + 1e-4 * torch.rand(1024, generator=other))
        torch.save(value, os.path.join(directory, "dump_tensor_data", f"{name}.output.0.pt"))
        leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 1024, 1024], "Max": value.max().item(),
                "Min": value.min().item(), "Mean": value.mean().item(), "Norm": value.norm().item(),
                "requires_grad": False, "data_name": f"{name}.output.0.pt"}
        data[name] = {"input_args": [], "input_kwargs": {}, "output": [leaf]}
    with open(os.path.join(directory, "dump.json"), "w") as file:
        json.dump({"task": "tensor", "level": "L1", "framework": "pytorch",
                   "dump_data_dir": os.path.join(directory, "dump_tensor_data"), "data": data}, file, indent=1)


def read_all(paths):
    """Both tools find their input in the page cache, just read (a virtual machine's host takes idle pages away)."""
    block = bytearray(1 << 20)
    for path in paths:
        for directory, _, names in os.walk(path):
            for name in names:
                with open(os.path.join(directory, name), "rb", buffering=0) as file:
                    while file.readinto(block):
                        pass


def run(command):
    """Seconds, seconds of CPU of all its processes, and peak MiB of the largest."""
    before = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status != 0:
        raise RuntimeError(f"failed: {' '.join(map(str, command))}")
    return time.monotonic() - before, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def median(runs):
    """Of seconds, of CPU seconds; and the highest peak."""
    return statistics.median(r[0] for r in runs), statistics.median(r[1] for r in runs), max(r[2] for r in runs)


def measure(table, rankprobe, msprobe, root, ranks=8, calls=5000, tensor_mib=0, python=None, rounds=1, only=None):
    """Adds the figures to a budgets.Table. `msprobe` None: ours alone, without ratios."""
    for side in ("n", "b"):
        for rank in range(ranks):
            write_rank(f"{root}/{side}/rank{rank}", calls, rank, side == "n")
    jobs = [("graph_build", ["graph_visualize", "-tp", f"{root}/n"]),
            ("graph_compare", ["graph_visualize", "-tp", f"{root}/n", "-gp", f"{root}/b"]),
            ("table_compare", ["compare", "-tp", f"{root}/n", "-gp", f"{root}/b"])]
    if tensor_mib:
        for side in ("n", "b"):
            subprocess.run([python or sys.executable, os.path.abspath(__file__), "--write-tensors", f"{root}/t{side}",
                            "--tensor-mib", str(tensor_mib), *(["--noise"] if side == "n" else [])], check=True)
        jobs.append(("tensor_compare", ["compare", "-tp", f"{root}/tn/dump.json", "-gp", f"{root}/tb/dump.json"]))
    for name, arguments in jobs:
        if only and name not in only:
            continue
        ours_runs, peer_runs = [], []
        for _ in range(rounds):
            for side, program, runs in (("ours", rankprobe, ours_runs), ("peer", msprobe, peer_runs)):
                shutil.rmtree(f"{root}/{side}", ignore_errors=True)
                if program is not None:
                    read_all(os.path.dirname(a) if a.endswith(".json") else a for a in arguments if a.startswith(root))
                    runs.append(run([program, *arguments, "-o", f"{root}/{side}"]))
        ours, cpu, memory = median(ours_runs)
        table.info(f"analysis_{name}", ours, "s")
        table.info(f"analysis_{name}_cpu", cpu, "s")
        table.at_most(f"analysis_{name}_peak", memory, 1024, "MiB")
        if msprobe is None:
            table.failed(f"analysis_{name}_speedup", "no msprobe: set RANKPROBE_MSPROBE or run the interop stage first")
            continue
        peer, peer_cpu, peer_memory = median(peer_runs)
        table.at_least(f"analysis_{name}_speedup", peer / ours, 20, "x")
        table.info(f"analysis_{name}_cpu_speedup", peer_cpu / cpu, "x")
        table.info(f"analysis_{name}_peer", peer, "s")
        table.info(f"analysis_{name}_peer_cpu", peer_cpu, "s")
        table.info(f"analysis_{name}_peer_peak", peer_memory, "MiB")


def main():
    from budgets import Table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rankprobe")
    parser.add_argument("--msprobe")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--tensor-mib", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", type=lambda names: names.split(","), help="graph_build, graph_compare, ..")
    parser.add_argument("--write-tensors", help="only make a dump of real data there")
    parser.add_argument("--noise", action="store_true")
    args = parser.parse_args()
    if args.write_tensors:
        write_tensors(args.write_tensors, args.tensor_mib, args.noise)
        return
    root = tempfile.mkdtemp(prefix="rankprobe_analysis_bench_")
    try:
        measure(Table(), args.rankprobe, args.msprobe, root, args.ranks, args.calls, args.tensor_mib, rounds=args.rounds,
                only=args.only)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
