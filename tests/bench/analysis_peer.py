#!/usr/bin/env python3
"""Graph build, graph compare and table compare of one dump, ours against msprobe's.

    analysis_peer.py --rankprobe BIN --msprobe BIN [--ranks 8] [--calls 5000] [--tensor-mib 0]

Prints `name value limit`: how many times faster, and peak memory in MiB. Both run on the same files, one after the
other; ratios count, not seconds. With --tensor-mib a compare of real data of that size runs as well (needs torch).
"""
import argparse
import json
import os
import random
import resource
import shutil
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
    os.makedirs(os.path.join(directory, "dump_tensor_data"))
    count = max(1, mib // 32)
    data = {}
    for i in range(count):
        name = f"Torch.mul.{i}.forward"
        value = torch.randn(8, 1024, 1024)
        if noise:
            value = value * (1 + 1e-4 * torch.rand(1024))
        torch.save(value, os.path.join(directory, "dump_tensor_data", f"{name}.output.0.pt"))
        leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 1024, 1024], "Max": value.max().item(),
                "Min": value.min().item(), "Mean": value.mean().item(), "Norm": value.norm().item(),
                "requires_grad": False, "data_name": f"{name}.output.0.pt"}
        data[name] = {"input_args": [], "input_kwargs": {}, "output": [leaf]}
    with open(os.path.join(directory, "dump.json"), "w") as file:
        json.dump({"task": "tensor", "level": "L1", "framework": "pytorch",
                   "dump_data_dir": os.path.join(directory, "dump_tensor_data"), "data": data}, file, indent=1)


def run(command):
    before = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"failed: {' '.join(command)}")
    return time.monotonic() - before, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rankprobe", required=True)
    parser.add_argument("--msprobe", required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--tensor-mib", type=int, default=0)
    args = parser.parse_args()
    root = tempfile.mkdtemp(prefix="rankprobe_analysis_bench_")
    try:
        for side in ("n", "b"):
            for rank in range(args.ranks):
                write_rank(f"{root}/{side}/rank{rank}", args.calls, rank, side == "n")
        jobs = [("graph_build", ["graph_visualize", "-tp", f"{root}/n"]),
                ("graph_compare", ["graph_visualize", "-tp", f"{root}/n", "-gp", f"{root}/b"]),
                ("table_compare", ["compare", "-tp", f"{root}/n", "-gp", f"{root}/b"])]
        if args.tensor_mib:
            for side in ("n", "b"):
                write_tensors(f"{root}/t{side}", args.tensor_mib, side == "n")
            jobs.append(("tensor_compare", ["compare", "-tp", f"{root}/tn/dump.json", "-gp", f"{root}/tb/dump.json"]))
        for name, arguments in jobs:
            ours, memory = run([args.rankprobe, *arguments, "-o", f"{root}/ours"])
            peer, peer_memory = run([args.msprobe, *arguments, "-o", f"{root}/peer"])
            print(f"analysis_{name}_speedup {peer / ours:.1f} >=20")
            print(f"analysis_{name}_peak_mib {memory:.0f} <=1024")
            print(f"# {name}: {ours:.2f} s against {peer:.2f} s; peer peak {peer_memory:.0f} MiB in one process",
                  flush=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
