#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted faults that `rankprobe scan` finds: detection, steps until then, false alarms.

    scan_faults.py [--seeds N] [--steps N] [--clean N]

Two gloo ranks train a small transformer by hand-reduced gradients (AdamW, warm-up,
then a cosine), monitored in each step, with a shared collector. Each fault is
planted at a step of its seed between a half and three quarters of the run, or
in the whole run; then `rankprobe scan --json` says what it finds. Detected: a
finding whose first step is the fault's or later, at most ten steps, and in a
clean run of the same seed not there. Prints a table (Markdown). Needs PyTorch 2.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

BIN = pathlib.Path(os.environ["RANKPROBE_BUILD_DIR"]) / "bin"
FAULTS = ("bit flip in a weight of one rank", "learning rate x 10", "poisoned batch", "stuck rank", "bf16 overflow",
          "loss scale not taken back", "one layer not reduced", "optimizer state lost")


def worker(rank: int, cases: list) -> None:
    """Runs every case in turn: [run, fault or None, seed, step of the fault, steps]."""
    import torch
    import torch.distributed as dist
    import torch.nn as nn

    from rankprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
            self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x):
            h = self.norm1(x)
            x = x + self.attention(h, h, h, need_weights=False)[0]
            return x + self.down(torch.relu(self.up(self.norm2(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.head = nn.Linear(32, 50)

        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    for run, fault, seed, when, steps in cases:
        os.environ["RANKPROBE_RUN"] = run
        os.environ["RANK"] = str(rank)
        torch.manual_seed(seed)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda s: min(1.0, (s + 1) / 10) * 0.5 * (1 + __import__("math").cos(3.14159 * s / steps)))
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "config.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"task": "monitor", "dump_path": directory, "monitor": {"every": 1}}, file)
            debugger = PrecisionDebugger(config_path=path)
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        for step in range(steps):
            debugger.start(model=model, rank_id=rank)
            here = step == when
            since = step >= when
            if here and fault == FAULTS[0] and rank == 1:
                with torch.no_grad():
                    weight = model.blocks[0].up.weight
                    bits = weight.view(torch.int32)
                    bits[seed % 64, 3] ^= 1 << 27
            tokens = torch.randint(0, 50, (8, 12), generator=generator)
            target = (tokens * 3 + 1) % 50
            if here and fault == FAULTS[2]:
                target = torch.randint(0, 50, (8, 12), generator=generator)
            if here and fault == FAULTS[4]:
                model.head.weight.data *= 1e20
            optimizer.zero_grad()
            output = model(tokens)
            if here and fault == FAULTS[4]:
                output = (output.bfloat16() * 1e20).float()
            loss = nn.functional.cross_entropy(output.reshape(-1, 50), target.reshape(-1))
            (loss * 1024 if since and fault == FAULTS[5] else loss).backward()
            for name, parameter in model.named_parameters():
                if fault == FAULTS[6] and name == "blocks.1.up.weight":
                    continue
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
            if since and fault == FAULTS[1]:
                for group in optimizer.param_groups:
                    group["lr"] *= 10
            if here and fault == FAULTS[7]:
                optimizer.state.clear()
            if not (since and fault == FAULTS[3] and rank == 1):
                optimizer.step()
            schedule.step()
            debugger.stop()
            debugger.step()
        debugger.close()
        dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        with open(arguments.worker[1], encoding="utf-8") as file:
            worker(int(arguments.worker[0]), json.load(file))
        return 0
    steps = arguments.steps
    cases = [[f"clean-{seed}", None, seed, steps, steps] for seed in range(arguments.clean)]
    for number, fault in enumerate(FAULTS):
        for seed in range(arguments.seeds):
            when = 0 if fault == FAULTS[6] else steps // 2 + seed % (steps // 4)
            cases.append([f"fault{number}-{seed}", fault, seed, when, steps])
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
        place = pathlib.Path(directory)
        (place / "cases.json").write_text(json.dumps(cases))
        collector = subprocess.Popen([BIN / "rankprobed", "--listen", "127.0.0.1:0", "--port-file", place / "port",
                                      "--data-dir", place / "data"], stderr=subprocess.DEVNULL)
        try:
            while not (place / "port").exists() or not (place / "port").read_text().strip():
                if collector.poll() is not None:
                    raise SystemExit("the collector did not start")
            address = f"127.0.0.1:{(place / 'port').read_text().strip()}"
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = str(probe.getsockname()[1])
            ranks = [subprocess.Popen([sys.executable, __file__, "--worker", str(rank), str(place / "cases.json")],
                                      env=dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANKPROBE_COLLECTOR=address),
                                      stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for rank in (0, 1)]
            if any(rank.wait() for rank in ranks):
                raise SystemExit("a rank failed")
            found = {}
            for run, *_ in cases:
                done = subprocess.run([BIN / "rankprobe", "scan", "--collector", address, "--run", run, "--json"],
                                      capture_output=True, text=True, check=False)
                if done.returncode not in (0, 1):
                    raise SystemExit(done.stderr)
                found[run] = json.loads(done.stdout)["findings"]
        finally:
            collector.terminate()
            collector.wait()
    report(cases, found, arguments)
    return 0


def report(cases: list, found: dict, arguments: argparse.Namespace) -> None:
    alarms = {run: findings for run, findings in found.items() if run.startswith("clean-") and findings}
    print(f"2 ranks, {arguments.steps} steps, {arguments.seeds} seeds a fault, {arguments.clean} clean runs\n")
    print("| fault | found | steps until then (median, most) | first finding |\n| --- | --- | --- | --- |")
    for fault in FAULTS:
        delays, kinds = [], {}
        for run, named, _, when, _ in cases:
            if named != fault:
                continue
            late = [f for f in found[run] if when <= int(f["step"]) <= when + 10]
            if late:
                delays.append(int(late[0]["step"]) - when)
                kinds[late[0]["kind"]] = kinds.get(late[0]["kind"], 0) + 1
        said = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items(), key=lambda k: -k[1]))
        middle = f"{statistics.median(delays):g}, {max(delays)}" if delays else "-"
        print(f"| {fault} | {len(delays)} of {arguments.seeds} | {middle} | {said} |")
    print(f"\nFalse alarms: {len(alarms)} of {arguments.clean} clean runs have a finding"
          + "".join(f"\n  {run}: {f['step']} {f['kind']} {f['name']} {f['before']:g} -> {f['now']:g}" for run, fs in alarms.items() for f in fs))
    early = [(run, f) for run, named, _, when, _ in cases if named for f in found[run] if int(f["step"]) < when]
    print(f"Findings before the fault: {len(early)}" + "".join(f"\n  {run}: {f['step']} {f['kind']} {f['name']}" for run, f in early[:20]))


if __name__ == "__main__":
    sys.exit(main())
