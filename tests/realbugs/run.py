#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records programs with a bug and their sound twins, and asks `rankprobe diagnose`, without a reference and with the twin as one.

run.py [--only p01,p12] [--seed N] [--reference] [--archive DIR] [--doc tests/realbugs/results.md]: needs RANKPROBE_BUILD_DIR and the Python that has torch. Prints a
table; exit code 1 where a program is not found at its place, or a twin has a finding that is said to be sure.
"""
import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("RANKPROBE_BUILD_DIR", HERE.parents[1] / "build" / "release"))
RANKS = {"p01": 2, "p02": 2, "p03": 2, "p04": 4, "p05": 4, "p08": 2, "p09": 2, "p19": 2, "p23": 2, "p32": 2, "hunt-flip": 8, "hunt-grad": 8}
# Parts of the first finding without a reference: its rule, module or value. "": no rule finds it. Both twins of what begins with
# "sound" are sound.
EXPECTED = {
    "p01": "gradients-not-reduced", "p02": "clip-uneven", "p03": "norm.weight", "p04": "embed.weight", "p05": "tokens-weigh-unequally",
    "p06": "tokens-weigh-unequally", "p08": "", "p09": "out_norm.weight", "p11": "update-zero", "p12": "layers.0.attn",
    "p14": "positions-merge", "p15": "attention-sees-future",
    "p17": "", "p19": "mlp.bias", "p20": "", "p23": "gradients-not-reduced", "p25": "gradient-rounded", "p26": "", "p28": "label-shift",
    "p29": "disappeared", "p32": "gradients-not-reduced", "hunt-flip": "layers.1.mlp.up.weight", "hunt-grad": "layers.2.mlp.down.weight",
}
MIX = {"task": "statistics", "dump_path": "./dump", "step": [0, 1, 12], "level": "mix",
       "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}}
# Of 300 steps; only --doc asks for them.
LONG = ("hunt-flip", "hunt-grad")


def cases_of(file: str) -> dict[str, tuple[int, str]]:
    """Its CASES: it only runs with a CASE."""
    text = (HERE / file).read_text()
    begin = text.index("\nCASES = {")
    cases: dict[str, tuple[int, str]] = ast.literal_eval(text[begin + 9:text.index("\n}\n", begin) + 2])
    return cases


FILES = ("mechanisms.py", "models.py", "ranks.py", "sound.py", "mistakes.py", "objectives.py", "parallel.py", "published.py", "estimators.py", "copies.py",
         "benchmarks.py", "trainings.py", "calls.py")
PROGRAMS = {name: file for file in FILES for name in cases_of(file)}
MECHANISMS = {name: case for file in dict.fromkeys(PROGRAMS.values()) for name, case in cases_of(file).items()}
EXPECTED |= {name: expected for name, (_, expected) in MECHANISMS.items()}
RANKS |= {name: ranks for name, (ranks, _) in MECHANISMS.items()}


class Answer(NamedTuple):
    """The first finding of diagnose, or "-"."""

    text: str
    sure: bool
    found: bool  # at its place


class Setup(NamedTuple):
    environment: dict[str, str]
    work: Path
    known: list[str]  # runs that are in the archive


def program_of(name: str) -> Path:
    if name in MECHANISMS:
        return HERE / PROGRAMS[name]
    return HERE / "hunt.py" if name.startswith("hunt") else next(HERE.glob(f"{name}_*.py"))


def record(name: str, bug: bool, config: list[str], setup: Setup, kind: str) -> str:
    run, ranks = f"{name}-{kind}{int(bug)}", RANKS.get(name, 1)
    if name == "hunt-grad" and not bug:
        run = f"hunt-flip-{kind}0"  # the same twin
    if run in setup.known:
        return run
    environment = {**setup.environment, "BUG": str(int(bug)), "CASE": name}
    if name.startswith("hunt"):
        environment["FAULT"] = name.removeprefix("hunt-") if bug else "none"
    if kind == "x":
        environment["STEPS"] = "14"
    launch = [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    command = [BUILD / "bin" / "rankprobe", "run", "--run", run, *config, "--", *launch, program_of(name)]
    done = subprocess.run(command, env=environment, cwd=setup.work, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{run}: {done.stdout[-1000:]} {done.stderr[-2000:]}")
    setup.known.append(run)
    return run


def diagnose(setup: Setup, expected: str, *arguments: str) -> Answer:
    done = subprocess.run([BUILD / "bin" / "rankprobe", "--json", "diagnose", *arguments], env=setup.environment, capture_output=True,
                          text=True, timeout=300)
    if done.returncode not in (0, 1):
        sys.exit(f"diagnose {arguments}: {done.stderr}")
    findings = json.loads(done.stdout).get("findings", [])
    if not findings:
        return Answer("-", False, False)
    first = findings[0]
    rank = f" rank {first['rank']}" if first.get("rank") is not None else ""
    place = re.sub(r"^\S*/", "", first.get("code_line") or first["name"])  # without directories
    text = f"step {first.get('step', 0)}{rank} `{place}` ({first['by']})"
    return Answer(text, first["sure"] == "exact", bool(expected) and expected in json.dumps(first))


def known_runs(environment: dict[str, str]) -> list[str]:
    """Once the collector answers."""
    for _ in range(100):
        done = subprocess.run([BUILD / "bin" / "rankprobe", "--json", "runs"], env=environment, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            return re.findall(r'"(?:run|name)":\s*"([^"]+)"', done.stdout)
        time.sleep(0.1)
    sys.exit(f"the collector does not answer: {done.stderr}")


def ask_both(name: str, setup: Setup, with_reference: bool) -> tuple[Answer, Answer, str]:
    """Without a reference of the bug and of the twin, and of the bug with the twin as reference."""
    monitor = ["--monitor", "--every", "1"]
    bad = diagnose(setup, EXPECTED[name], f"run:{record(name, True, monitor, setup, 'm')}")
    good = diagnose(setup, "", f"run:{record(name, False, monitor, setup, 'm')}")
    if not with_reference or name in LONG or name in MECHANISMS:
        return bad, good, ""
    (setup.work / "mix.json").write_text(json.dumps(MIX))
    mix = ["--config", "mix.json", "--on"]
    bug, twin = (record(name, one, mix, setup, "x") for one in (True, False))
    beside = "-"
    for step in (0, 1, 12):
        beside = diagnose(setup, "", f"run:{bug}@{step}", "--reference", f"run:{twin}@{step}").text
        if beside != "-":
            break
    return bad, good, beside


def document(rows: list[tuple[str, Answer, Answer, str]]) -> str:
    bugs = [row for row in rows if not row[0].startswith("sound")]
    published = [row for row in bugs if row[0] not in MECHANISMS and row[0] not in LONG]
    own = [row for row in bugs if row not in published]
    twins = [good for _, _, good, _ in rows] + [bad for name, bad, _, _ in rows if name.startswith("sound")]

    def found(of: list[tuple[str, Answer, Answer, str]]) -> str:
        return f"{sum(row[1].found for row in of)} of {len(of)}, {sum(row[1].found and row[1].sure for row in of)} of them surely"

    def answer(of: Answer) -> str:
        return of.text + ("" if of.sure or of.text == "-" else ", worth a look")

    lines = ["# Bugs that were published, and what diagnose says", "",
             "Made by `tests/realbugs/run.py --reference --doc tests/realbugs/results.md`; the programs, each with its sound twin, are in `tests/realbugs`.", "",
             "* One command each: `rankprobe diagnose run:NAME`, and with the twin as reference `diagnose run:NAME@STEP --reference run:TWIN@STEP`.",
             f"* Published bugs (p01 to p32) whose kind or place is in the first answer, without a reference: {found(published)}. Of p01, p23 and p32 it is the",
             "  kind alone: gradients that differ on ranks, by a parameter that they have in common.",
             f"* Faults of this project's own, for which rules were written: {found(own)}.",
             f"* Findings in {len(twins)} sound programs: {sum(twin.sure for twin in twins)} that are said to be sure, "
             f"{sum(twin.text != '-' and not twin.sure for twin in twins)} that are worth a look.",
             "* No rule finds the others: they need a reference.", ""]
    for title, part in (("Published", published), ("Own", own)):
        columns = ["program", "without a reference", *(["with the twin as reference"] if part is published else []), "its twin alone"]
        lines += [f"## {title}", "", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
        for name, bad, good, beside in sorted(part, key=lambda row: row[1].found):
            # Of a line of code its file and number. A call without one keeps its name.
            line = [re.sub(r"`([^`]*?) in [^`:]*: [^`]*`", r"`\1`", beside)] if part is published else []
            lines.append(f"| {' | '.join([name, ('' if bad.found else '**not found** ') + answer(bad), *line, answer(good)])} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--reference", action="store_true", help="lay each published one beside its twin, too")
    parser.add_argument("--archive", type=Path, help="keep the recordings there, and use those that are there")
    parser.add_argument("--doc", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [name for name in EXPECTED if options.doc or name not in LONG]
    port = 20000 + os.getpid() % 20000
    environment = {**os.environ, "RANKPROBE_COLLECTOR": f"127.0.0.1:{port}", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BUILD / "python"),
                   "SEED": str(options.seed), "RANKPROBE_PYTHON": sys.executable}
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory(prefix="realbugs") as directory:
        work = Path(directory)
        archive = options.archive or work / "archive"
        collector = subprocess.Popen([BUILD / "bin" / "rankprobed", "--listen", f"127.0.0.1:{port}", "--data-dir", archive],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            known = known_runs(environment)
            for name in names:
                begin = time.monotonic()
                bad, good, beside = ask_both(name, Setup(environment, work, known), options.reference)
                if name.startswith("sound"):
                    wrong += bad.sure
                else:
                    wrong += bool(EXPECTED[name]) and not bad.found
                wrong += good.sure
                rows.append((name, bad, good, beside))
                print(f"| {name} | {bad.text} {'' if bad.sure else '(worth a look)'} | {'found' if bad.found else 'NOT FOUND' if EXPECTED[name] else ''} "
                      f"| {beside} | {good.text} | {time.monotonic() - begin:.0f} s |", flush=True)
        finally:
            collector.terminate()
            collector.wait()
    if options.doc:
        options.doc.write_text(document(rows))
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
