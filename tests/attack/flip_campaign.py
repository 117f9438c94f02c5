# SPDX-License-Identifier: Apache-2.0
"""Flips bits between a training and its collector, both ways, until there were so many, and holds what is exported
against an export of the same training without flips (docs/security.md, "A wire without TLS"):

    PYTHONPATH=build/release/python python3 tests/attack/flip_campaign.py --flips 10000

Exit code 1: a value is wrong, or is missing and no account names it. The time of each recorded step is split into
processor time, time in which the thread could have run and had no processor, and the rest: what it waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

STEPS = 150
# Up and down, a flip in so many bytes: beyond it most of what is sent comes damaged, and steps are given up.
FLIP_BYTES = {"statistics": (40_000, 2_000), "tensor": (100_000, 4_000)}


def train(config: str, times: str) -> None:
    import threading
    import torch
    from rankprobe.pytorch import PrecisionDebugger

    def now() -> tuple[float, float, float]:
        running, ready = open(f"/proc/self/task/{threading.get_native_id()}/schedstat").read().split()[:2]
        return time.monotonic(), int(running) / 1e9, int(ready) / 1e9

    torch.manual_seed(5)
    torch.set_num_threads(1)
    debugger = PrecisionDebugger(config_path=config)
    net = torch.nn.Sequential(*(layer for _ in range(6) for layer in (torch.nn.Linear(16, 16), torch.nn.ReLU())))
    steps = []
    for _ in range(STEPS):
        before = now()
        debugger.start(model=net)
        net(torch.randn(8, 16)).square().sum().backward()
        debugger.stop()
        debugger.step()
        net.zero_grad()
        steps.append([b - a for a, b in zip(before, now())])
    pathlib.Path(times).write_text(json.dumps(steps))


def wait(step: list[float]) -> float:
    """What of a step was neither computed nor without a processor, in seconds."""
    return step[0] - step[1] - step[2]


def trained(collector: str, directory: pathlib.Path, task: str, run: str) -> list[list[float]]:
    """Wall time, processor time and time without a processor of each step, in seconds."""
    config = directory / f"{run}.json"
    config.write_text(json.dumps({"task": task, "level": "mix", "dump_path": str(directory / "none")}))
    times = directory / f"{run}.times"
    job = subprocess.run([sys.executable, __file__, "--train", config, times], stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True, timeout=1800,
                         env={**os.environ, "RANKPROBE_COLLECTOR": collector, "RANKPROBE_RUN": run, "RANK": "0",
                              "RANKPROBE_LANE": "off", "PYTHONPATH": os.environ["RANKPROBE_AGENT_PATH"]})
    assert job.returncode == 0, job.stderr[-4000:]
    return json.loads(times.read_text())


def differences(clean, other, place: str, wrong: list[str], missing: list[str]) -> None:
    if isinstance(clean, dict) and isinstance(other, dict):
        for key in clean.keys() | other.keys():
            if key not in other:
                missing.append(f"{place}/{key}")
            elif key not in clean:
                wrong.append(f"{place}/{key}: not recorded")
            elif key in ("task", "level", "framework") and other[key] == "":
                missing.append(f"{place}/{key}")  # what begins the step was given up with its frame
            elif key != "dump_data_dir":
                differences(clean[key], other[key], f"{place}/{key}", wrong, missing)
    elif isinstance(clean, list) and isinstance(other, list) and len(clean) == len(other):
        for i, (a, b) in enumerate(zip(clean, other)):
            differences(a, b, f"{place}/{i}", wrong, missing)
    elif clean != other:
        wrong.append(f"{place}: {clean!r} is {other!r}")


def compare(clean: pathlib.Path, other: pathlib.Path) -> tuple[list[str], int, list[str]]:
    """What is wrong, how much is missing, and what of it no gap of its step or of no step names."""
    gaps = json.loads((other / "manifest.json").read_text()).get("gaps", [])
    # A refused frame of no step has gaps of its steps as well.
    named = {gap["step"] for gap in gaps if gap["step"] >= 0 or gap["reason"] != "COLLECTOR_REFUSED"}
    wrong: list[str] = []
    missing: list[tuple[int, str]] = []
    for step in range(STEPS):
        lost: list[str] = []
        trees = [tree / f"step{step}" / "rank0" for tree in (clean, other)]
        if (trees[1] / "dump.json").exists():
            differences(*(json.loads((tree / "dump.json").read_text()) for tree in trees), f"step{step}", wrong, lost)
        else:
            lost.append(f"step{step}/dump.json")
        for path in sorted((trees[0] / "dump_tensor_data").glob("*.pt")):
            there = trees[1] / "dump_tensor_data" / path.name
            if not there.exists():
                lost.append(f"step{step}/{path.name}")
            elif path.read_bytes() != there.read_bytes():
                wrong.append(f"step{step}/{path.name}: other bytes")
        missing += [(step, text) for text in lost]
    return wrong, len(missing), [text for step, text in missing if not {step, -1} & named]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--train", nargs=2)
    arguments = parser.parse_args()
    if arguments.train:
        train(*arguments.train)
        return 0
    # The harness has stubs of its own, of the name that the agent's package has.
    os.environ["RANKPROBE_AGENT_PATH"] = os.environ.pop("PYTHONPATH", "")
    sys.path = [path for path in sys.path if path not in os.environ["RANKPROBE_AGENT_PATH"].split(":")]
    import harness
    from bad_wire import BadWire

    flips, rounds, steps, lost, bad, unnamed = [0, 0], 0, 0, 0, 0, 0
    slowest = longest_wait = [0.0, 0.0, 0.0]
    over = 0
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="flips") as name:
        directory = pathlib.Path(name)
        daemon = harness.Daemon(directory / "collector")
        daemon.start()
        clean = {}
        for task in ("statistics", "tensor"):
            trained(daemon.address, directory, task, f"clean-{task}")
            clean[task] = harness.export(daemon, f"clean-{task}", directory / f"clean-{task}")
        while sum(flips) < arguments.flips and time.monotonic() < end:
            task = ("statistics", "tensor")[rounds % 2]
            run = f"flips-{rounds}"
            wire = BadWire(daemon.address, arguments.seed + rounds, FLIP_BYTES[task])
            times = trained(wire.address, directory, task, run)
            wire.end()
            flips = [a + b for a, b in zip(flips, wire.flips)]
            tree = directory / run
            done = daemon.cli("export", "--run", run, "-o", tree)
            if done.returncode == 3:  # on a machine with much else to do the connection is given up
                done = daemon.cli("export", "--run", run, "-o", tree, "--resume")
            assert done.returncode in (0, 1), done
            ledger = daemon.cli("ledger", "--run", run)
            agree = ledger.returncode == done.returncode
            wrong, missing, silent = compare(clean[task], tree)
            bad, lost, unnamed = bad + len(wrong), lost + missing, unnamed + len(silent)
            for text in [*wrong[:20], *(f"{text}: missing, not named" for text in silent[:20])]:
                print(f"WRONG {run}: {text}", flush=True)
            if not agree:
                bad += 1
                print(f"WRONG {run}: ledger {ledger.returncode}, export {done.returncode}", flush=True)
            steps += len(times)
            slowest = max(slowest, *times)
            waited = max(times, key=wait)
            longest_wait = max(longest_wait, waited, key=wait)
            over += sum(wall > 1 for wall, _, _ in times)
            rounds += 1
            print(f"{run} {task}: {wire.flips} flips, {wire.connections} connections, longest step {max(times)[0]:.3f} s, "
                  f"longest wait {wait(waited):.3f} s, {missing} values or files missing, all in all {sum(flips)}", flush=True)
            subprocess.run(["rm", "-rf", str(tree)], check=True)
            daemon.cli("delete", "--run", run, "--yes")
        daemon.stop()
    print(f"{rounds} trainings, {steps} recorded steps, {flips[0]} flips up and {flips[1]} down: {bad} wrong, {unnamed} missing and "
          f"not named, {lost} missing and named\n"
          f"longest step {slowest[0]:.3f} s (processor {slowest[1]:.3f} s, no processor {slowest[2]:.3f} s); longest wait "
          f"{wait(longest_wait):.3f} s; {over} steps over 1 s")
    return 1 if bad or unnamed else 0


if __name__ == "__main__":
    sys.exit(main())
