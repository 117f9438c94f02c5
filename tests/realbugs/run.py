#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records programs with a published bug and their sound twins, and asks `rankprobe diagnose` without a reference.

run.py [--only p01,p12] [--out TABLE.md]: needs RANKPROBE_BUILD_DIR and the Python that has torch. Prints a table; exit code 1 where a
program of EXPECTED is not found at its place, or a twin has a finding.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("RANKPROBE_BUILD_DIR", HERE.parents[1] / "build" / "release"))
RANKS = {"p01": 2, "p02": 2, "p03": 2, "p04": 4, "p05": 4, "p08": 2, "p09": 2, "p19": 2, "p23": 2, "p32": 2, "hunt-flip": 8, "hunt-grad": 8}
# A part of the first finding's rule, module or value; what is not here has no rule that could find it without a reference.
EXPECTED = {
    "p01": "gradients-not-reduced", "p02": "ranks part", "p03": "norm.weight", "p04": "embed.weight", "p09": "out_norm.weight",
    "p11": "update-zero", "p12": "layers.0.attn", "p23": "gradients-not-reduced", "p29": "no more there", "p32": "gradients-not-reduced",
    "hunt-flip": "layers.1.mlp.up.weight", "hunt-grad": "layers.2.mlp.down.weight",
}


def launch(name: str, port: int) -> list[str]:
    program = "hunt.py" if name.startswith("hunt") else next(HERE.glob(f"{name}_*.py")).name
    ranks = RANKS.get(name, 1)
    if ranks == 1:
        return [sys.executable, str(HERE / program)]
    return [sys.executable, "-m", "torch.distributed.run", "--master_addr", "127.0.0.1", "--master_port", str(port), "--nproc_per_node", str(ranks),
            str(HERE / program)]


def record(name: str, bug: bool, port: int, environment: dict[str, str], work: Path) -> str:
    run = f"{name}-{int(bug)}"
    environment = {**environment, "BUG": str(int(bug))}
    if name.startswith("hunt"):
        environment |= {"FAULT": name.removeprefix("hunt-") if bug else "none"}
    command = [BUILD / "bin" / "rankprobe", "run", "--run", run, "--monitor", "--every", "1", "--", *launch(name, port)]
    done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{run}: {done.stdout[-1000:]} {done.stderr[-2000:]}")
    return run


def diagnose(run: str, environment: dict[str, str]) -> dict:
    done = subprocess.run([BUILD / "bin" / "rankprobe", "--json", "diagnose", f"run:{run}"], env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, 1):
        sys.exit(f"diagnose {run}: {done.stderr}")
    return json.loads(done.stdout)


def first_of(report: dict) -> str:
    findings = [one for one in report.get("findings", []) if one["sure"] == "exact"]
    if not findings:
        return "-"
    first = findings[0]
    rank = f" rank {first['rank']}" if "rank" in first else ""
    return f"step {first.get('step', 0)}{rank} {first['name']} ({first['by']})"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [name for name in EXPECTED if not name.startswith("hunt")]
    work = Path(tempfile.mkdtemp(prefix="realbugs"))
    port = 20000 + os.getpid() % 20000
    environment = {**os.environ, "RANKPROBE_COLLECTOR": f"127.0.0.1:{port}", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BUILD / "python"),
                   "RANKPROBE_PYTHON": sys.executable}
    collector = subprocess.Popen([BUILD / "bin" / "rankprobed", "--listen", f"127.0.0.1:{port}", "--data-dir", work / "archive"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows, wrong = ["| program | first answer, bug | findings of the twin | s |", "| --- | --- | --- | --- |"], 0
    try:
        for number, name in enumerate(names):
            begin = time.monotonic()
            bad = diagnose(record(name, True, port + 1 + 2 * number, environment, work), environment)
            good = diagnose(record(name, False, port + 2 + 2 * number, environment, work), environment)
            answer, false = first_of(bad), first_of(good)
            found = name not in EXPECTED or EXPECTED[name] in answer + json.dumps(bad.get("findings", [{}])[:1])
            wrong += (not found) + (false != "-")
            rows.append(f"| {name} | {answer}{'' if found else ' WRONG'} | {false} | {time.monotonic() - begin:.0f} |")
            print(rows[-1], flush=True)
    finally:
        collector.terminate()
        collector.wait()
    if options.out:
        options.out.write_text("\n".join(rows) + "\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
