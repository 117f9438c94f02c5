# SPDX-License-Identifier: Apache-2.0
"""Calls of the native program `rankprobe`, with its answers as JSON."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Sequence

from .embedded import find_binary

DONE, PARTLY, BAD_USAGE, UNREACHABLE, NOT_FOUND, REFUSED = range(6)
_SECONDS = 900


class CommandFailed(Exception):
    """The command failed. `code` is its exit status: 2 bad usage, 3 no collector, 4 not found, 5 refused."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def text_of(words: Sequence[str], *, collector: str | None = None, token_file: str | None = None) -> tuple[str, str]:
    """Runs the command; returns its standard output and standard error. Raises CommandFailed for an exit status above 1, if the
    program is missing, and if it takes longer than _SECONDS."""
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
    except OSError as error:  # Includes FileNotFoundError of find_binary().
        raise CommandFailed(REFUSED, str(error)) from None
    said = "\n".join(line.removeprefix("rankprobe: ") for line in done.stderr.strip().splitlines())
    if done.returncode not in (DONE, PARTLY):
        raise CommandFailed(done.returncode, said or f"rankprobe ended with {done.returncode}")
    return done.stdout, said


def ask(words: Sequence[str], *, collector: str | None = None, token_file: str | None = None) -> tuple[list[Any], str]:
    """Runs the command with --json; returns its parsed lines of JSON and its standard error. Raises CommandFailed as text_of()."""
    out, said = text_of(["--json", *words], collector=collector, token_file=token_file)
    return [json.loads(line) for line in out.splitlines()], said


def to_input(name: str) -> str:
    """Converts a name to an input of a command: a dump's directory stays as it is, another name becomes run:NAME."""
    return name if name.startswith("run:") or os.path.isdir(name) else f"run:{name}"
