# SPDX-License-Identifier: Apache-2.0
"""Console scripts: `rankprobe` and `rankprobed`, the programs of this package.

Some commands of `rankprobe` are modules of this package and run in this process; all else is the native program.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

from rankprobe.embedded import find_binary

# Subcommand to module; must agree with cli/commands/attach.cc.
_MODULES = {"run": "run", "isolate": "isolating", "check": "check", "merge_result": "merge_result",
            "doctor": "doctor", "sink": "sink", "mcp": "mcp"}


def _become(name: str) -> NoReturn:
    # Replaces this process with the native program `name`; exits with status 127 if the program is not found.
    try:
        path = find_binary(name)
    except FileNotFoundError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(127)
    os.environ.setdefault("RANKPROBE_PYTHON", sys.executable)  # the interpreter that runs acc_check
    os.execv(path, [name, *sys.argv[1:]])


def rankprobe() -> NoReturn:
    module = _MODULES.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if module is not None:
        sys.exit(importlib.import_module(f"rankprobe.{module}").main(sys.argv[2:]))
    _become("rankprobe")


def rankprobed() -> NoReturn:
    _become("rankprobed")
