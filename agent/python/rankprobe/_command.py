# SPDX-License-Identifier: Apache-2.0
"""The native program `rankprobe`, asked for its answer as JSON."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Sequence

from .embedded import find_binary

DONE, PARTLY, BAD_USAGE, UNREACHABLE, NOT_FOUND, REFUSED = range(6)
_SECONDS = 900


class CommandFailed(Exception):
    """`code` is the exit status: 2 bad usage, 3 no collector, 4 not found, 5 refused."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def text_of(words: Sequence[str], *, collector: str | None = None, token_file: str | None = None) -> tuple[str, str]:
    """What the command prints on standard output, and on standard error. CommandFailed for an exit status above 1."""
    environment = dict(os.environ)
    if collector:
        environment["RANKPROBE_COLLECTOR"] = collector
    if token_file:
        environment["RANKPROBE_TOKEN_FILE"] = token_file
    try:
        done = subprocess.run([find_binary("rankprobe"), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              env=environment, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CommandFailed(REFUSED, f"rankprobe {next((word for word in words if word != '--json'), '')} took longer than {_SECONDS} s and was ended") from None
    except OSError as error:  # FileNotFoundError of find_binary among them
        raise CommandFailed(REFUSED, str(error)) from None
    said = "\n".join(line.removeprefix("rankprobe: ") for line in done.stderr.strip().splitlines())
    if done.returncode not in (DONE, PARTLY):
        raise CommandFailed(done.returncode, said or f"rankprobe ended with {done.returncode}")
    return done.stdout, said


def ask(words: Sequence[str], *, collector: str | None = None, token_file: str | None = None) -> tuple[list[Any], str]:
    """The lines of JSON that the command prints with --json, and its notes on standard error."""
    out, said = text_of(["--json", *words], collector=collector, token_file=token_file)
    return [json.loads(line) for line in out.splitlines()], said


def to_input(name: str) -> str:
    """What a command reads: a dump's directory as it is, else run:NAME."""
    return name if name.startswith("run:") or os.path.isdir(name) else f"run:{name}"
