# SPDX-License-Identifier: Apache-2.0
"""Runs public programs four ways and says how they compare: python runner.py OUT [NAME..]

Each program runs with nobody watching, dumped by rankprobe, dumped by msprobe (forks of one warm process), and attached:
`rankprobe run`, with no line of it changed, off at first, recording steps 1 and 2, off again, under a trigger for NaN.
Those of EVERY_WAY also at each of WAYS: do they train the same, bit for bit, and are the steps recorded that were asked for.
With RANKPROBE_WORKLOADS=all each is also recorded with the monitor, and diagnosed.
Writes OUT/results.json, a row a program, and leaves OUT/{name}/{mode} with dumps and logs.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import time
import traceback
from typing import Any

import torch

import programs

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))

import harness  # noqa: E402

# The first steps are compared with msprobe's; in those after them both are off.
COMPARED_STEPS = [0, 1, 2, 3]
CONFIG = {"task": "statistics", "level": "mix", "rank": [], "step": COMPARED_STEPS, "risk_level": "ALL"}
ATTACHED_STEPS = [1, 2]
_ALL: list[int] = list(range(programs.STEPS))
_SWITCHED = [3, 4, 5]
# Attached and off; every level in every step; the other tasks, switched on in mid-run and off again.
WAYS: dict[str, dict[str, Any]] = {
    "off": {"dump_enable": False, "step": []},
    "L0": {"level": "L0", "step": _ALL},
    "L1": {"level": "L1", "step": _ALL},
    "mix": {"step": _ALL},
    "tensor": {"task": "tensor", "step": _SWITCHED},
    "md5": {"statistics": {"summary_mode": "md5"}, "step": _SWITCHED},
}
# What is sharded, and one of each family.
EVERY_WAY = {"ddp", "fsdp2", "tensor_parallel", "pipelining", "hf_llama", "hf_mixtral", "hf_vit", "hf_trainer", "lightning_fit", "pyg_gcn",
             "torch_cnn", "torch_encoder", "torch_checkpoint", "torch_gan"}
TRIGGERS = {"flight": {"steps": 1}, "rules": [{"name": "nan", "non_finite": {"nan_only": True}}]}


def missing(program: programs.Program) -> list[str]:
    return [name for name in program.needs if importlib.util.find_spec(name) is None]


def result_of(directory: pathlib.Path, ranks: int) -> list[dict[str, Any]]:
    out = []
    for rank in range(ranks):
        path = directory / f"result{rank}.json"
        out.append(json.loads(path.read_text()) if path.exists() else {"fault": log_end(directory, rank)})
    return out


def log_end(directory: pathlib.Path, rank: int) -> str:
    lines = (directory / f"log{rank}").read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no word"


def environment(directory: pathlib.Path, name: str, rank: int, ranks: int) -> dict[str, str]:
    # One process does not say that it is rank 0 of a job: its dump is of a process without a rank, for both tools.
    several = {"RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
    return {"WORKLOAD_STORE": str(directory / "store"), "RANKPROBE_RUN": name, "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **several}


def child(program: programs.Program, mode: str, directory: pathlib.Path, rank: int) -> None:
    log = os.open(directory / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(directory)
    os.environ.update(environment(directory, program.name, rank, program.ranks))
    status = 1
    try:
        debugger = None
        if mode == "rankprobe" or mode in WAYS:
            from rankprobe.pytorch import PrecisionDebugger

            debugger = PrecisionDebugger(config_path=str(directory / "config.json"))
        elif mode == "msprobe":
            from msprobe.pytorch import PrecisionDebugger

            debugger = PrecisionDebugger(config_path=str(directory / "config.json"))
        programs.seed()
        watch = programs.Watch(debugger)
        program.run(watch)
        (directory / f"result{rank}.json").write_text(json.dumps({"losses": watch.losses, "digest": watch.digest}))
        status = 0
    except BaseException:  # noqa: BLE001 - told in the log
        traceback.print_exc()
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


def run_forked(program: programs.Program, mode: str, out: pathlib.Path) -> list[dict[str, Any]]:
    directory = out / program.name / mode
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **WAYS.get(mode, {}), "dump_path": str(directory / "dump")}))
    children = []
    for rank in range(program.ranks):
        pid = os.fork()
        if pid == 0:
            child(program, mode, directory, rank)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return result_of(directory, program.ranks)


def attach(program: programs.Program, directory: pathlib.Path, collector: harness.Collector, run: str, *flags: str) -> None:
    """Runs the ranks under `rankprobe run`; each leaves its result and log in the directory."""
    running = []
    for rank in range(program.ranks):
        log = (directory / f"log{rank}").open("w")
        running.append(subprocess.Popen(
            [str(harness.BIN / "rankprobe"), "run", "--collector", collector.address, "--run", run, *flags, "--", sys.executable,
             str(HERE / "programs.py"), program.name, str(directory / f"result{rank}.json")], cwd=directory, stdout=log, stderr=log,
            env={**os.environ, "RANKPROBE_PYTHON": sys.executable, **environment(directory, program.name, rank, program.ranks)}))
    for process in running:
        try:
            process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()


def run_attached(program: programs.Program, out: pathlib.Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the ranks computed, and what the collector has of them."""
    directory = out / program.name / "attached"
    directory.mkdir(parents=True)
    config = directory / "config.json"
    config.write_text(json.dumps({**CONFIG, "step": ATTACHED_STEPS, "dump_path": str(directory / "dump")}))
    (directory / "triggers.json").write_text(json.dumps(TRIGGERS))
    collector = harness.Collector(directory, "--triggers", str(directory / "triggers.json")).start()
    try:
        attach(program, directory, collector, program.name, "--on", "--config", str(config))
        ledger = collector.cli("ledger", "--run", program.name, "--json", check=False)
        steps = [json.loads(line) for line in ledger.stdout.splitlines()]
        events = collector.cli("events", "--run", program.name, "--json", check=False)
        fired = [event for line in events.stdout.splitlines() for event in json.loads(line).get("events", [json.loads(line)])
                 if "TRIGGER_FIRED" in str(event.get("kind", ""))]
    finally:
        collector.stop()
    recorded = [entry for entry in steps if entry.get("state") == "STATE_WHOLE"]
    return result_of(directory, program.ranks), {
        "rank_steps": len(recorded), "not_whole": len(steps) - len(recorded),
        "records": sum(int(entry["stored_records"]) for entry in recorded),
        "triggers": [json.dumps(event)[:500] for event in fired]}


def diagnose(program: programs.Program, out: pathlib.Path) -> list[str]:
    """Records every step with the monitor, and returns the findings of `rankprobe diagnose` as "rule: name"."""
    directory = out / program.name / "diagnosed"
    directory.mkdir(parents=True)
    collector = harness.Collector(directory).start()
    try:
        attach(program, directory, collector, program.name, "--monitor", "--every", "1")
        answer = collector.cli("diagnose", f"run:{program.name}", "--json", check=False)
    finally:
        collector.stop()
    found = json.loads(answer.stdout).get("findings", []) if answer.returncode in (0, 1) else [{"by": "fault", "name": answer.stderr}]
    return [f"{finding['by']}: {finding['name']}" for finding in found]


def run_ways(program: programs.Program, plain: list[dict[str, Any]], out: pathlib.Path) -> dict[str, Any]:
    """Way -> its faults, whether the bits are those of `plain`, and the steps that every rank recorded."""
    found = {}
    for mode in WAYS if program.name in EVERY_WAY else ():
        results = run_forked(program, mode, out)
        trees = [place_of(path).split("/")[0] for path in (out / program.name / mode).glob("dump/step*/*/dump.json")]
        found[mode] = {"faults": [r["fault"] for r in results if "fault" in r], "same_bits": results == plain,
                       "steps": sorted(int(step[4:]) for step in set(trees) if trees.count(step) == program.ranks)}
        if results == plain:
            # The private collector may be leaving still, and take its files away too.
            shutil.rmtree(out / program.name / mode, ignore_errors=True)
    return found


def place_of(path: pathlib.Path) -> str:
    """Step and rank; the name of a process without a rank holds its number."""
    step, rank = path.parts[-3:-1]
    return f"{step}/{'proc' if rank.startswith('proc') else rank}"


def dumps(directory: pathlib.Path, file: str) -> dict[str, dict[str, Any]]:
    return {place_of(path): json.loads(path.read_text()) for path in sorted(directory.glob(f"dump/step*/*/{file}"))}


def far_apart(theirs: Any, ours: Any) -> bool:
    """Whether statistics differ by more than what another order of the additions makes, or values otherwise."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return any(far_apart(theirs[key], ours[key]) for key in theirs if key in ours)
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(theirs) != len(ours) or any(map(far_apart, theirs, ours))
    if isinstance(theirs, float) and isinstance(ours, float):
        return not (math.isclose(theirs, ours, rel_tol=1e-3, abs_tol=1e-5) or math.isnan(theirs) and math.isnan(ours))
    # The text of a device: "cpu:None" in msprobe.
    if isinstance(theirs, str) and isinstance(ours, str):
        return theirs.removesuffix(":None") != ours
    return theirs != ours


def compare(theirs: pathlib.Path, ours: pathlib.Path) -> dict[str, Any]:
    """Of all steps and ranks: entries that only one has, whether those of both are in one order, what differs in them."""
    a, b = dumps(theirs, "dump.json"), dumps(ours, "dump.json")
    out: dict[str, Any] = {"entries": sum(len(d["data"]) for d in b.values()), "msprobe_entries": sum(len(d["data"]) for d in a.values()),
                           "only_rankprobe": [], "only_msprobe": [], "values_apart": [], "gradients_of_calls_apart": [],
                           "same_steps": set(a) == set(b)}
    for place in sorted(set(a) & set(b)):
        x, y = a[place]["data"], b[place]["data"]
        out["only_rankprobe"] += [f"{place}/{name}" for name in y if name not in x]
        out["only_msprobe"] += [f"{place}/{name}" for name in x if name not in y]
        for name in x:
            if name in y and far_apart(x[name], y[name]):
                of_call = not name.startswith("Module.") and ".backward" in name
                out["gradients_of_calls_apart" if of_call else "values_apart"].append(f"{place}/{name}")
    return out


def run(program: programs.Program, out: pathlib.Path) -> dict[str, Any]:
    began = time.monotonic()
    plain, ours, theirs = (run_forked(program, mode, out) for mode in ("plain", "rankprobe", "msprobe"))
    attached, seen = run_attached(program, out)
    ways = run_ways(program, plain, out)
    findings = diagnose(program, out) if os.environ.get("RANKPROBE_WORKLOADS") == "all" else []
    directory = out / program.name
    row: dict[str, Any] = {"name": program.name, "ranks": program.ranks,
                           "faults": {mode: [r["fault"] for r in results if "fault" in r] for mode, results in
                                      (("plain", plain), ("rankprobe", ours), ("msprobe", theirs), ("attached", attached))},
                           "rankprobe_same_bits": ours == plain, "attached_same_bits": attached == plain,
                           "msprobe_same_bits": theirs == plain, "attached": seen, "ways": ways, "findings": findings,
                           **compare(directory / "msprobe", directory / "rankprobe")}
    row["seconds"] = round(time.monotonic() - began, 1)
    return row


def main(out: pathlib.Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    chosen = [programs.PROGRAMS[name] for name in names or programs.PROGRAMS]
    for package in sorted({need for program in chosen for need in program.needs}):
        if importlib.util.find_spec(package) is not None:
            importlib.import_module(package)
    rows = []
    for program in chosen:
        if lacking := missing(program):
            rows.append({"name": program.name, "skipped": "no " + ", ".join(lacking)})
        else:
            rows.append(run(program, out))
        short = {key: value[:3] if isinstance(value, list) else value for key, value in rows[-1].items()}
        print(json.dumps(short), flush=True)
    (out / "results.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
