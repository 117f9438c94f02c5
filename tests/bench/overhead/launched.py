# SPDX-License-Identifier: Apache-2.0
"""Processes that are asked in turn for some of what they do, and stay alive."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Mapping
from typing import Any

# As overhead.py says.
STEADY_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_THRESHOLD_": "33554432",
                 "MALLOC_TOP_PAD_": "16777216"}


class Launched:
    """A process of `script` for each tool, with its arguments. A context manager: its end ends them. Raises SystemExit with
    what a process said, if one ends before it was asked to."""

    def __init__(self, script: str, tools: Mapping[Hashable, list[str]], environment: Mapping[str, str]) -> None:
        self._said = {tool: tempfile.TemporaryFile("w+") for tool in tools}
        self._running = {tool: subprocess.Popen([sys.executable, script, *arguments], env=environment, stdin=subprocess.PIPE,
                                                stdout=subprocess.PIPE, stderr=self._said[tool], text=True)
                         for tool, arguments in tools.items()}

    def __enter__(self) -> "Launched":
        return self

    def ask(self, tool: Hashable, what: str) -> Any:
        """What it answers to a line, a line of JSON."""
        process = self._running[tool]
        try:
            process.stdin.write(what + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: what it said says why
        line = process.stdout.readline()
        if not line:
            process.wait(timeout=120)
            self._said[tool].seek(0)
            raise SystemExit(f"the process of {tool} ended with {process.returncode}:\n{self._said[tool].read()[-4000:]}")
        return json.loads(line)

    def __exit__(self, kind, *_rest) -> None:
        for tool, process in self._running.items():
            if kind is not None:
                process.kill()
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
            process.wait(timeout=120)
            process.stdout.close()
            self._said[tool].close()
