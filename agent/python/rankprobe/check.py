# SPDX-License-Identifier: Apache-2.0
"""rankprobe check: one step of a program against stored statistics.

    rankprobe check golden.json -- python train.py
    rankprobe check --update golden.json -- python train.py

The program is started as by `rankprobe run --on`, and is not changed; one step of it is recorded, of rank 0, and compared
with the file call by call (docs/numerics-in-ci.md). With --json the answer is one line of JSON on standard output, and the
output of the program is on standard error. Exit status: 0 the numbers are those of the file, 1 they are not, 2 bad
usage, 4 there is no such file or no such step in it; of a program that fails, its own.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Optional, Sequence, TextIO

from rankprobe import golden
from rankprobe._inputs import Refused, show
from rankprobe.run import Parser, environment


def _record(command: Sequence[str], step: int, directory: pathlib.Path, output: Optional[TextIO]) -> Optional[int]:
    """Runs the command with one step recorded. Returns its exit status if it failed, else None. output: the command's standard
    output; None inherits that of this process."""
    config = directory / "config.json"
    config.write_text(json.dumps({"task": "statistics", "dump_path": str(directory / "dump"), "rank": [], "step": [step],
                                  "level": "mix", "statistics": {"data_mode": ["all"], "summary_mode": "statistics"}}))
    asked = argparse.Namespace(monitor=False, as_msprobe=False, on=True, every=None, collector=None, run=None, config=str(config),
                               on_collector_missing="fail")
    variables = environment(asked, {k: v for k, v in os.environ.items() if k not in golden.ELSEWHERE}) | {"RANKPROBE_TEMPORARY_DUMP": "yes"}
    done = subprocess.run(command, env=variables, check=False, stdout=output)
    return None if done.returncode == 0 else done.returncode if done.returncode > 0 else 128 - done.returncode


class _NoSuchStep(Refused):
    """The file holds a different step than the requested one."""


def _step(path: pathlib.Path, stored: Optional[golden.Golden], asked: Optional[int]) -> int:
    """Returns the step to record: the requested one, else that of the file, else 0. Raises _NoSuchStep if both are given and differ."""
    there = None if stored is None else stored.step
    if asked is not None and there is not None and asked != there:
        raise _NoSuchStep(f"{path} holds step {there} and no step {asked}: leave out --step to compare step {there}, "
                          f"or make the file of another step with --update --step {asked}")
    return asked if asked is not None else there or 0


def _check(path: pathlib.Path, arguments: argparse.Namespace, command: Sequence[str], directory: pathlib.Path) -> int:
    # Runs the command, compares or writes the golden file and prints the answer. Returns the exit status. Raises Refused.
    stored = None if arguments.update else golden.read(path)  # Fails before the program starts, which may run long.
    step = _step(path, stored, arguments.step)
    failed = _record(command, step, directory, sys.stderr if arguments.json else None)
    if failed is not None:
        return failed
    found = sorted((directory / "dump").glob(f"step{step}/*/dump.json"), key=lambda one: (one.parent.name != "rank0", one.parent.name))
    if not found:
        raise Refused(f"the program ended without a step {step} of an optimizer or a model")
    now = golden.condense(found[0].parent)._replace(step=step)
    if stored is None:
        golden.write(path, now)
    result = golden.compare(stored or now, now)
    text = "" if stored is None else golden.report(result, stored, now, str(path))
    if arguments.json:
        print(json.dumps({"golden": str(path), "step": step, "exit_code": 1 if text else 0, "updated": stored is None,
                          **golden.as_json(result, stored or now, now)}))
    elif stored is None:
        print(f"{show(path)}: {result.compared} calls of step {step}, {path.stat().st_size} bytes")
    else:
        print(text or f"{show(path)}: {result.compared} calls have the stored numbers")
    return 1 if text else 0


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = Parser(prog="rankprobe check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the file instead of comparing")
    parser.add_argument("--step", type=int, metavar="N", help="which step; default that of the file, with --update 0")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON, and the output of the program to standard error")
    parser.add_argument("golden", help="the file")
    parser.add_argument("command", nargs="*", help="-- COMMAND [ARGUMENT..]")
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:end])  # Options may follow the file name.
    command = [*arguments.command, *words[end + 1:]]
    if not command:
        parser.error("no command given after --")
    if arguments.step is not None and arguments.step < 0:
        parser.error("--step is a number of a step, 0 or more")
    try:
        with tempfile.TemporaryDirectory(prefix="rankprobe-check-", ignore_cleanup_errors=True) as directory:
            return _check(pathlib.Path(arguments.golden), arguments, command, pathlib.Path(directory))
    except FileNotFoundError as error:
        print(f"rankprobe check: {show(error.filename)}: there is no such file"
              + ("" if error.filename == command[0] else "; --update makes it"), file=sys.stderr)
        return 4
    except OSError as error:  # A directory, or a file that cannot be read, executed or written.
        print(f"rankprobe check: {show(error.filename)}: {error.strerror}", file=sys.stderr)
        return 2
    except Refused as error:
        print(f"rankprobe check: {show(error)}", file=sys.stderr)
        return 4 if isinstance(error, _NoSuchStep) else 2


if __name__ == "__main__":
    sys.exit(main())
