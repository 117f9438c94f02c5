# SPDX-License-Identifier: Apache-2.0
"""Zero-code attach: python -m rankprobe.run [options] -- COMMAND [ARGUMENT..]

    python -m rankprobe.run --collector 10.0.0.1:7411 -- torchrun --nproc_per_node 8 train.py

Every Python process of COMMAND that imports PyTorch is attached: the model is
found when its optimizer is made, a step ends with optimizer.step(), and the
process registers with the collector and stays idle until it is switched on
from outside (`rankprobe enable`), unless --on says otherwise. The script is not
changed. With --as-msprobe a program that is written for msprobe (vllm-ascend,
SGLang, MindSpeed) runs with rankprobe in its place. Exit status: that of COMMAND; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import difflib
import os
import pathlib
import shutil
import socket
import sys
import time
from typing import NoReturn, Sequence

from rankprobe import _native
from rankprobe._frontend.files import MAX_CONFIG_BYTES, read_regular
from rankprobe._say import name_of_stderr

_EVERY = 50  # must agree with common/config/monitor_section.cc
_HOOK_DIRECTORY = pathlib.Path(__file__).resolve().parent / "attach"


def hooked_path(base: dict[str, str]) -> dict[str, str]:
    """Returns the environment for a child whose Python processes import rankprobe's sitecustomize, without the variables of an
    enclosing run."""
    out = dict(base)
    package = str(pathlib.Path(__file__).resolve().parent.parent)
    paths = [str(_HOOK_DIRECTORY), package] + [p for p in base.get("PYTHONPATH", "").split(os.pathsep) if p]
    out["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    for name in ("RANKPROBE_ATTACH", "RANKPROBE_AS_MSPROBE", "RANKPROBE_ISOLATE", "RANKPROBE_MONITOR", "RANKPROBE_STDERR",
                 "RANKPROBE_TEMPORARY_DUMP"):
        out.pop(name, None)
    return out


def environment(arguments: argparse.Namespace, base: dict[str, str]) -> dict[str, str]:
    """Returns the environment with which the processes of the command attach themselves."""
    out = hooked_path(base)
    if arguments.monitor:  # --monitor sets its own config.
        out.pop("RANKPROBE_CONFIG", None)
    if arguments.as_msprobe:
        out["RANKPROBE_AS_MSPROBE"] = "yes"
    else:
        out["RANKPROBE_ATTACH"] = "on" if arguments.on or arguments.monitor else "idle"
    if arguments.monitor:
        out["RANKPROBE_MONITOR"] = str(arguments.every or _EVERY)
    # Identifies all processes of this start. An enclosing run's value is kept.
    out.setdefault("RANKPROBE_JOB", f"{socket.gethostname()[:200]}-{os.getpid()}-{time.time_ns()}")
    out["RANKPROBE_STDERR"] = name_of_stderr()
    for name in ("collector", "run", "config", "on_collector_missing"):
        if getattr(arguments, name):
            out[f"RANKPROBE_{name.upper()}"] = getattr(arguments, name)
    return out


def check_config(path: str, where: str) -> None:
    """Checks a config.json and prints warnings. `where`: the option or variable that names it. Raises ValueError if it cannot be read
    or has faults, with one line for each fault and its place."""
    try:
        text = read_regular(path, MAX_CONFIG_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"{where} {path}: {getattr(error, 'strerror', None) or error}") from None
    for warning in _native.check_config_file(path, text):
        print(f"rankprobe run: warning: {warning}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints the error in one line, as every other command, and exits with status 2."""
        if message.endswith("expected one argument"):
            option = message.split()[1].rstrip(":")
            message += f"; one that begins with - is written {option}=VALUE"
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            flag = unknown.split()[0].partition("=")[0]
            near = difflib.get_close_matches(flag, list(self._option_string_actions), 1)
            message = f"there is no flag {flag}" + (f"; did you mean {near[0]}?" if near else "")
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="rankprobe run", description=__doc__,
                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collector", help="host:port or unix:PATH; default RANKPROBE_COLLECTOR, else a private collector")
    parser.add_argument("--run", help="name of the run; default RANKPROBE_RUN, else torchrun's")
    parser.add_argument("--config", help="config.json; default statistics of level mix into ./dump_path")
    parser.add_argument("--on-collector-missing", choices=("fail", "spool", "ignore"),
                        help="no collector answers: end the program, keep what is recorded in RANKPROBE_SPOOL, or record "
                        "nothing; default RANKPROBE_ON_COLLECTOR_MISSING, else ignore")
    parser.add_argument("--on", action="store_true", help="record from the first step on")
    parser.add_argument("--monitor", action="store_true", help="record with task monitor from the first step on: "
                        "activations, gradients, parameters, optimizer, loss")
    parser.add_argument("--every", type=int, metavar="STEPS", help=f"with --monitor: interval in steps; default {_EVERY}")
    parser.add_argument("--as-msprobe", action="store_true", help="the program makes msprobe's PrecisionDebugger itself: "
                        "its `import msprobe` gives rankprobe's, installed or not; nothing else is attached")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND [ARGUMENT..]")
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("no command given after --")
    if arguments.as_msprobe and (arguments.on or arguments.config or arguments.monitor):
        parser.error("--as-msprobe: the program's own PrecisionDebugger decides what is recorded, not --on, --monitor or --config")
    if arguments.monitor and arguments.config:
        parser.error("--monitor sets its own config: with --config, set task monitor in the file")
    if arguments.every is not None and (not arguments.monitor or not 1 <= arguments.every <= 1_000_000):
        parser.error("--every is a number of steps, 1 to 1000000, and requires --monitor")
    config = arguments.config or os.environ.get("RANKPROBE_CONFIG", "")
    if config and not arguments.as_msprobe and not arguments.monitor:
        try:  # Checked before the job starts; in a rank, a fault would only be a line in a log, with nothing recorded.
            check_config(config, "--config" if arguments.config else "RANKPROBE_CONFIG")
        except ValueError as error:
            print("\n".join(f"rankprobe run: {line}" for line in str(error).splitlines()), file=sys.stderr)
            return 2
    if arguments.config:
        arguments.config = os.path.abspath(arguments.config)
    program = shutil.which(command[0])
    if program is None and command[0].endswith(".py") and os.path.isfile(command[0]):
        program, command = sys.executable, [sys.executable, *command]
    if program is None:
        print(f"rankprobe run: {command[0]}: no such program", file=sys.stderr)
        return 127
    os.execvpe(program, command, environment(arguments, dict(os.environ)))


if __name__ == "__main__":
    sys.exit(main())
