# SPDX-License-Identifier: Apache-2.0
"""Judges each module of a program's model on recorded inputs: rankprobe isolate --reference DIR [options] -- COMMAND [ARGUMENT..]

    rankprobe isolate --reference reference/step0 -- python train.py

The program runs until its step N. In that step each module gets the inputs that the reference recorded, its outputs and gradients
are compared with the recorded ones, and the program ends. So errors of several modules do not add up. The reference is a dump of
task tensor, level L0 or mix; of several ranks each process takes its own. Exit status: 0 no module differs, 1 some do, 2 nothing
could be judged, or bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any, Sequence

from rankprobe.run import Parser, hooked_path


def _parser() -> Parser:
    parser = Parser(prog="rankprobe isolate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", metavar="DIR", help="a dump, one of its steps, or one of their ranks")
    parser.add_argument("--step", type=int, metavar="N", help="step of the program, and of a reference with several; default that "
                        "of the reference")
    parser.add_argument("--rank", type=int, metavar="R", help="rank of the reference; default that of the process")
    parser.add_argument("--tolerance", default="auto", metavar="auto|NUMBER", help="relative; default from dtype and length of sums")
    parser.add_argument("-lm", "--layer_mapping", metavar="FILE", help="mapping of layer names, as in compare")
    parser.add_argument("-cm", "--cell_mapping", metavar="FILE", help="mapping of module names, as in compare")
    parser.add_argument("--force", action="store_true", help="read files that the permission rule refuses, with a warning")
    parser.add_argument("--json", action="store_true", help="one line of JSON on standard output; the program's output is on standard error")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND [ARGUMENT..]")
    return parser


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings for the processes of the program. Raises ValueError with a message of one line."""
    from rankprobe._isolation_reference import Reference, find_rank

    tolerance = None
    if arguments.tolerance != "auto":
        try:
            tolerance = float(arguments.tolerance)
        except ValueError:
            raise ValueError(f"--tolerance {arguments.tolerance}: expected auto or a number") from None
    if arguments.step is not None and arguments.step < 0:
        raise ValueError("--step counts from 0")
    reference = os.path.abspath(arguments.reference) if not arguments.reference.startswith("run:") else arguments.reference
    for mapping in (arguments.layer_mapping, arguments.cell_mapping):
        if mapping is not None and not os.path.isfile(mapping):
            raise ValueError(f"{mapping}: there is no such file")
    # Checks the reference here, so that faults are reported before the program starts.
    directory = find_rank(reference, arguments.step, arguments.rank)
    Reference(directory, arguments.force)
    number = re.match(r"^step(\d+)$", pathlib.Path(directory).parent.name)
    step = arguments.step if arguments.step is not None else int(number[1]) if number else 0
    options = {"step": arguments.step, "rank": arguments.rank, "tolerance": tolerance, "force": arguments.force,
               **{name: os.path.abspath(value) for name in ("layer_mapping", "cell_mapping")
                  if (value := getattr(arguments, name)) is not None}}
    return {"reference": reference, "step": step, "options": options}


def _run(command: list[str], environment: dict[str, str], output: Any) -> int:
    """Runs the program and returns its exit status. Passes SIGTERM and SIGINT to it."""
    process = subprocess.Popen(command, env=environment, stdout=output)
    before = {number: signal.signal(number, lambda got, _: process.send_signal(got)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _said(out: pathlib.Path, step: int, status: int, as_json: bool) -> int:
    """Prints the reports of the processes and returns the exit status."""
    from rankprobe._isolation_report import Report

    codes, ranks = [], {}
    for path in sorted(out.glob("*.json"), key=lambda one: (len(one.name), one.name)):
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
        if "fault" in data:
            print(f"rankprobe isolate: {data['fault']}", file=sys.stderr)
            codes.append(2)
            continue
        report = Report.from_json(text)
        codes.append(report.exit_code)
        ranks[path.stem] = data
        if not as_json:
            print(f"{path.stem}: {report}")
    if not codes:
        print(f"rankprobe isolate: nothing was judged: the program ended (exit status {status}) before a forward of step {step}",
              file=sys.stderr)
    code = 1 if 1 in codes else 2 if 2 in codes or not codes else 0
    if as_json:
        print(json.dumps({"exit_code": code, "step": step, "ranks": ranks}))
    sys.stdout.flush()
    return code


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not arguments.reference:
        parser.error("--reference DIR is needed: a dump of task tensor, level L0 or mix")
    if not command:
        parser.error("no command given after --")
    if command[0].endswith(".py") and shutil.which(command[0]) is None and os.path.isfile(command[0]):
        command = [sys.executable, *command]
    if shutil.which(command[0]) is None:
        parser.error(f"{command[0]}: no such program")
    try:
        settings = _settings(arguments)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory(prefix="rankprobe-isolate-") as out:
        environment = hooked_path(dict(os.environ))
        environment["RANKPROBE_ISOLATE"] = json.dumps({**settings, "out": out})
        status = _run(command, environment, sys.stderr.fileno() if arguments.json else None)
        return _said(pathlib.Path(out), settings["step"], status, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
