"""config.json and the constructor's arguments: one checked text."""

from __future__ import annotations

import json
import os
from typing import Any, Optional

from rankprobe import _native
from rankprobe.pytorch._errors import InvalidParameterError

_DEFAULT = {"task": "statistics", "dump_path": "./dump_path", "rank": [], "step": [], "level": "L1"}


def check_arguments(config_path: Any, task: Any, dump_path: Any, level: Any, step: Any,
                    auto_export: Any = None) -> None:
    """Types of the constructor's arguments; their values are checked as config."""
    for name, value in (("config_path", config_path), ("task", task), ("dump_path", dump_path), ("level", level)):
        if value is not None and not isinstance(value, str):
            raise InvalidParameterError(f"{name} must be a str or None, not {type(value).__name__}")
    if step is not None and not isinstance(step, (list, tuple)):
        raise InvalidParameterError(f"step must be a list of int or str, or None, not {type(step).__name__}")
    if auto_export is not None and not isinstance(auto_export, bool):
        raise InvalidParameterError(f"auto_export must be a bool or None, not {type(auto_export).__name__}")


def merged_text(config_path: Optional[str], overrides: dict[str, Any]) -> str:
    """The text of `config_path` (None: the default) with arguments on top.

    Raises InvalidParameterError for a file that cannot be read. A text that is
    no JSON object comes back as it is: the parser tells what is wrong.
    """
    if config_path is None:
        data: Any = dict(_DEFAULT)
    else:
        if os.path.isdir(config_path):
            raise InvalidParameterError(f"config_path {config_path} is a directory")
        try:
            with open(config_path, encoding="utf-8") as file:
                text = file.read(1 << 21)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidParameterError(f"config_path {config_path}: {error}") from error
        try:
            data = json.loads(text)
        except ValueError:
            return text
        if not isinstance(data, dict):
            return text
    for key, value in overrides.items():
        if value is not None:
            data[key] = list(value) if isinstance(value, tuple) else value
    try:
        return json.dumps(data)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"step: {error}") from error


def parse(text: str) -> tuple[dict, list[str]]:
    """(plan, warnings). InvalidParameterError lists every fault."""
    try:
        parsed = _native.parse_config(text)
    except ValueError as error:
        raise InvalidParameterError(str(error)) from None
    return parsed["plan"], parsed["warnings"]
