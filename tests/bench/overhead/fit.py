#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cost of a gigabyte of tensors, a call, a module and a step, whatever the BLAS below the plain step.

    fit.py [--shapes SHAPE ...] [--launches N] [--rounds N] [--steps N] [--malloc steady|default]

overhead.py's transformer in several sizes (a SHAPE is `layers=N,width=N,heads=N,batch=N,length=N`, what is left out as
there). At L1 a step adds GB of distinct tensors x a + calls x b + c, at L0 GB x a + modules x b + c. c is the processor
time of start, stop and step, measured in these steps: the median of the sizes. In a loop of nothing else it would be several
times smaller, since a training step evicts their code and data from the processor's caches. a and b of each level are the
least squares over the sizes of what c leaves, an equation weighing as 1 / its plain step, since noise grows with that. Calls
and modules are counted in the dump of a step. Prints a line for each size and `name value limit` lines: a in times of the
plain read of this machine, measured in the same run; and how far the worst size lies from the fit, of its plain step. One
thread, CPU, task statistics, risk_level ALL. Exit code 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import numpy as np
from launched import STEADY_MALLOC
from overhead import added_to, build, distinct_bytes, launch, read_bandwidth, typical

# Calls and bytes, modules and bytes, each in many proportions.
SHAPES = ["layers=2,width=64,batch=2,length=32", "layers=8,width=64,batch=2,length=32", "layers=16,width=64,batch=2,length=32",
          "layers=2,width=256,batch=8,length=64", "layers=4,width=256,batch=8,length=64", "layers=2,width=256,batch=16,length=128",
          "layers=1,width=512,heads=8,batch=8,length=128"]
READ_LIMIT, CALL_US_LIMIT, MODULE_US_LIMIT, STEP_MS_LIMIT = 1.3, 2.0, 25.0, 0.1


def counted(model_name: str, level: str) -> int:
    """Calls (L1; those of the optimizer too) or modules (L0) whose forward a step of overhead.py records."""
    import torch
    from rankprobe.pytorch import PrecisionDebugger

    model, (x, y) = build(model_name)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with tempfile.TemporaryDirectory(prefix="fit-") as directory:
        config = pathlib.Path(directory, "config.json")
        config.write_text(json.dumps({"task": "statistics", "level": level, "dump_path": directory + "/dump", "risk_level": "ALL"}))
        debugger = PrecisionDebugger(config_path=str(config))
        debugger.start(model=model)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
        debugger.wait_exported()
        debugger.close()
        (dump,) = pathlib.Path(directory, "dump").glob("step*/**/dump.json")
        return sum(".forward" in name for name in json.loads(dump.read_text())["data"])


def fitted(gigabytes: list[float], counts: list[float], added_s: list[float], plain_s: list[float]) -> tuple[np.ndarray, float]:
    """(seconds of a gigabyte, of one counted thing), and the largest distance of a size from them, of its plain step."""
    matrix = np.array([gigabytes, counts]).T / np.array(plain_s)[:, None]
    wanted = np.array(added_s) / np.array(plain_s)
    found = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    return found, float(np.abs(matrix @ found - wanted).max())


def tell(name: str, value: float, limit: float, unit: str) -> bool:
    met = value <= limit
    print(f"{name} {value:.3f} {limit} {'met' if met else 'missed'} {unit}".rstrip(), flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="SHAPE")
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--malloc", choices=("steady", "default"), default="steady")
    arguments = parser.parse_args()
    if len(set(arguments.shapes)) < 4:
        parser.error("a fit wants at least four sizes")
    arguments.risk_level = "ALL"
    import torch

    print(f"conditions load {' '.join(f'{v:.2f}' for v in os.getloadavg())}, {os.cpu_count()} CPUs, PyTorch {torch.__version__}, one "
          f"thread, {arguments.malloc} malloc, {arguments.launches} launches of {arguments.rounds} x {arguments.steps} steps of each in "
          "turn, medians")
    bandwidth = read_bandwidth()
    print(f"read_bandwidth_gb_s {bandwidth / 1e9:.2f} -")
    environment = dict(os.environ, **(STEADY_MALLOC if arguments.malloc == "steady" else {}))
    names = [("plain", "-", "statistics"), ("rankprobe", "L0", "statistics"), ("rankprobe", "L1", "statistics")]
    columns: dict[str, list] = {"plain": []}
    for level in ("L0", "L1"):
        columns |= {f"{level} GB": [], f"{level} count": [], f"{level} wall": [], f"{level} cpu": [], f"{level} ends": []}
    for shape in arguments.shapes:
        model = "transformer:" + shape
        times: list[list] = [[] for _ in names]
        for _ in range(arguments.launches):
            launch(model, names, arguments, environment, times)
        plain = typical(times[0])
        columns["plain"].append(plain[0])
        line = f"{shape}: plain {1e3 * plain[0]:.2f} ms (CPU {1e3 * plain[1]:.2f})"
        for (_, level, _), rounds in list(zip(names, times))[1:]:
            wall, cpu, _ = added_to(times[0], rounds)
            row = {"GB": distinct_bytes(model, level) / 1e9, "count": counted(model, level), "wall": wall, "cpu": cpu,
                   "ends": statistics.median(step[5] for turn in rounds for step in turn)}
            for key, value in row.items():
                columns[f"{level} {key}"].append(value)
            line += (f"; {level} {1e3 * row['GB']:.2f} MB, {row['count']} {'calls' if level == 'L1' else 'modules'}, "
                     f"added {1e3 * wall:.3f} ms (CPU {1e3 * cpu:.3f}, of it start, stop and step {1e3 * row['ends']:.3f})")
        print(line, flush=True)
    met = []
    for level, thing, limit in (("L1", "call", CALL_US_LIMIT), ("L0", "module", MODULE_US_LIMIT)):
        for clock in ("wall", "cpu"):
            ends = columns[f"{level} ends"]
            within = [added - end for added, end in zip(columns[f"{level} {clock}"], ends)]
            found, worst = fitted(columns[f"{level} GB"], columns[f"{level} count"], within, columns["plain"])
            name = f"fit_{level}" + ("_cpu" if clock == "cpu" else "")
            results = [tell(f"{name}_gigabyte_over_read", found[0] * bandwidth / 1e9, READ_LIMIT, ""),
                       tell(f"{name}_{thing}_us", 1e6 * found[1], limit, ""), tell(f"{name}_step_ms", 1e3 * statistics.median(ends), STEP_MS_LIMIT, "")]
            print(f"{name}_worst_size {worst:.4f} - of its plain step")
            if clock == "wall":
                met += results
    print(f"load after {os.getloadavg()[0]:.2f}; median plain step {1e3 * statistics.median(columns['plain']):.2f} ms")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
