# SPDX-License-Identifier: Apache-2.0
"""The command line of the real msprobe, imported once: each run is a fork.

`run("compare", "-tp", ..)` gives (exit status, output). Run as a script this
file is the server: a line of JSON, [directory, word..], for each run.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback


@functools.lru_cache(maxsize=None)
def _server() -> subprocess.Popen:
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(*words: object, directory: pathlib.Path) -> tuple[int, str]:
    server = _server()
    server.stdin.write(json.dumps([str(directory), *map(str, words)]) + "\n")
    server.stdin.flush()
    line = server.stdout.readline()
    assert line, "the server of msprobe has ended"
    status, path = json.loads(line)
    text = pathlib.Path(path).read_text(errors="replace")
    os.unlink(path)
    return status, text


def _one(main, directory: str, words: list[str], log: int) -> None:
    status = 1
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(directory)
        sys.argv = ["msprobe", *words]
        status = main() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - told in the log
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()  # closes databases
    os._exit(status)


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from msprobe import msprobe

    for line in sys.stdin:
        directory, *words = json.loads(line)
        log, path = tempfile.mkstemp(prefix="msprobe-")
        pid = os.fork()
        if pid == 0:
            _one(msprobe.main, directory, words, log)
        os.close(log)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([status, path]), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
