# SPDX-License-Identifier: Apache-2.0
"""Console scripts: `rankprobe` and `rankprobed`, the programs of this package.

`rankprobe run -- COMMAND` is rankprobe.run, `rankprobe isolate` rankprobe.isolating, `rankprobe check` rankprobe.check,
`rankprobe doctor` rankprobe.doctor; all else is the native program.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from rankprobe.embedded import find_binary


def _become(name: str) -> NoReturn:
    try:
        path = find_binary(name)
    except FileNotFoundError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(127)
    os.environ.setdefault("RANKPROBE_PYTHON", sys.executable)  # that runs acc_check
    os.execv(path, [name, *sys.argv[1:]])


def rankprobe() -> NoReturn:
    if sys.argv[1:2] == ["run"]:
        from rankprobe.run import main

        sys.exit(main(sys.argv[2:]))
    if sys.argv[1:2] == ["isolate"]:
        from rankprobe.isolating import main as isolate

        sys.exit(isolate(sys.argv[2:]))
    if sys.argv[1:2] == ["check"]:
        from rankprobe.check import main as check

        sys.exit(check(sys.argv[2:]))
    if sys.argv[1:2] == ["doctor"]:
        from rankprobe.doctor import main as doctor

        sys.exit(doctor(sys.argv[2:]))
    _become("rankprobe")


def rankprobed() -> NoReturn:
    _become("rankprobed")
