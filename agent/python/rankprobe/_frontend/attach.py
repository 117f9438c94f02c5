# SPDX-License-Identifier: Apache-2.0
"""Parts of `rankprobe run` that all frameworks share."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from rankprobe._frontend.files import MAX_CONFIG_BYTES, read_regular
from rankprobe._say import say as _say

_DEFAULT = {"task": "statistics", "dump_path": "./dump_path", "rank": [], "step": []}


def say(text: str) -> None:
    """Prints one line for the user of the program."""
    _say(f"rankprobe: {text}")


def config_file(mode: str, level: str = "mix") -> str:
    """Writes a config.json for this process and returns its path; the caller removes it. The content is that of
    RANKPROBE_CONFIG, else task monitor every RANKPROBE_MONITOR steps, else statistics of `level`. dump_enable is
    false unless `mode` is "on". Raises OSError and ValueError for a bad RANKPROBE_CONFIG."""
    data: dict[str, Any] = {**_DEFAULT, "level": level}
    every = os.environ.get("RANKPROBE_MONITOR")
    if every:
        data.update(task="monitor", level="L0", monitor={"every": int(every)})
    if os.environ.get("RANKPROBE_CONFIG"):
        data = json.loads(read_regular(os.environ["RANKPROBE_CONFIG"], MAX_CONFIG_BYTES))
    data["dump_enable"] = mode == "on"
    handle, path = tempfile.mkstemp(prefix="rankprobe-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(data, file)
    return path


def make_debugger(front: Any, mode: str) -> Any:
    """Constructs the PrecisionDebugger `front` with a config_file(), which exists only for this call."""
    path = config_file(mode)
    try:
        debugger = front(config_path=path)
    finally:
        os.unlink(path)
    if not debugger._inert:
        debugger._switch.forget_file()
    return debugger
