# SPDX-License-Identifier: Apache-2.0
"""config.json merged with the arguments of the constructor, and checks of both."""

from __future__ import annotations

import os
from json import dumps, loads
from typing import Any, NamedTuple, Optional

from rankprobe import _native
from rankprobe._frontend.errors import InvalidParameterError
from rankprobe._frontend.files import MAX_CONFIG_BYTES, read_regular
from rankprobe._frontend.framework import Framework
from rankprobe._frontend.process import warn

_DEFAULT = {"task": "statistics", "dump_path": "./dump_path", "rank": [], "step": [], "level": "L1"}


def check_arguments(config_path: Any, task: Any, dump_path: Any, level: Any, step: Any,
                    auto_export: Any = None, on_collector_missing: Any = None) -> None:
    """Checks the types of the constructor's arguments; most values are checked with the config. Raises InvalidParameterError."""
    for name, value in (("config_path", config_path), ("task", task), ("dump_path", dump_path), ("level", level)):
        if value is not None and not isinstance(value, str):
            raise InvalidParameterError(f"{name} must be a str or None, not {type(value).__name__}")
    if step is not None and not isinstance(step, (list, tuple)):
        raise InvalidParameterError(f"step must be a list of int or str, or None, not {type(step).__name__}")
    if auto_export is not None and not isinstance(auto_export, bool):
        raise InvalidParameterError(f"auto_export must be a bool or None, not {type(auto_export).__name__}")
    if on_collector_missing not in (None, "fail", "spool", "ignore"):
        raise InvalidParameterError(f"on_collector_missing must be fail, spool or ignore, or None, not {on_collector_missing!r}")


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_start(framework: Framework, model: Any, token_range: Any, rank_id: Any, plan: Optional[dict[str, Any]]) -> None:
    """Checks the arguments of start(). plan: the plan in force, or None. Raises InvalidParameterError."""
    models = framework.models(model)
    if model is not None:
        for one in models:
            if not isinstance(one, framework.model_type):
                raise InvalidParameterError(
                    f"model must be a {framework.model_word} or a list or tuple of them, not {type(one).__name__}")
        if not models:
            raise InvalidParameterError("model must not be an empty list")
    elif plan is not None and plan["records_modules"]:
        raise InvalidParameterError(f"start() needs the model at level {plan['level']}")
    if token_range is not None:
        if model is None:
            raise InvalidParameterError("token_range needs the model")
        if (not isinstance(token_range, (list, tuple)) or len(token_range) != 2
                or not all(is_int(t) for t in token_range) or not 0 <= token_range[0] <= token_range[1]):
            raise InvalidParameterError(f"token_range must be [a, b] with ints 0 <= a <= b, not {token_range!r}")
        if len(models) > 1:
            warn("token_range counts forwards of the first model")
    if rank_id is not None and (not is_int(rank_id) or rank_id < 0):
        raise InvalidParameterError(f"rank_id must be an int >= 0, not {rank_id!r}")


def merged_text(config_path: Optional[str], overrides: dict[str, Any]) -> str:
    """Returns the text of `config_path` (None: the default config), overridden by arguments.

    Raises InvalidParameterError, which names the file, if its name does not end in
    .json, or if it cannot be read or is not JSON. JSON that is not an object is
    returned unchanged; the parser reports what is wrong.
    """
    if config_path is None:
        data: Any = dict(_DEFAULT)
    else:
        if not config_path.endswith(".json"):
            raise InvalidParameterError(f"config_path {config_path} is not a .json file")
        if os.path.isdir(config_path):
            raise InvalidParameterError(f"config_path {config_path} is a directory")
        try:
            text = read_regular(config_path, MAX_CONFIG_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:
            raise InvalidParameterError(f"config_path {config_path}: {error}") from error
        try:
            data = loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidParameterError(f"config_path {config_path} is not valid JSON: {error}") from error
        if not isinstance(data, dict):
            return text
    return _put(data, overrides)


def _merge(text: str, overrides: dict[str, Any]) -> str:
    try:
        data = loads(text)
    except (ValueError, RecursionError):
        return text
    return _put(data, overrides) if isinstance(data, dict) else text


def _put(data: dict[str, Any], overrides: dict[str, Any]) -> str:
    for key, value in overrides.items():
        if value is not None:
            data[key] = list(value) if isinstance(value, tuple) else value
    try:
        return dumps(data)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"step: {error}") from error


class Edit(NamedTuple):
    """The current text of config.json, overridden by the constructor's arguments, or why it cannot be read."""

    text: str
    fault: str


class ConfigFile:
    """config.json, overridden by the constructor's arguments. As a switch
    (dump_enable) it is checked for edits in each start().

    text: the merged text when the process began.
    """

    def __init__(self, path: Optional[str], overrides: dict[str, Any]) -> None:
        self.path, self._overrides = path, overrides
        # Created before the file is read, so that no edit in between is missed.
        self._file = None if path is None else _native.ConfigFile(os.path.abspath(path))
        self.text = merged_text(path, overrides)
        self._last = Edit(self.text, "")

    def edited(self) -> Optional[Edit]:
        """Returns the content if it changed since the last call, else None."""
        found = None if self._file is None else self._file.look()
        if found is None:
            return None
        data, fault = found
        edit = Edit("", fault)
        if not fault:
            try:
                edit = Edit(_merge(data.decode("utf-8"), self._overrides), "")
            except (UnicodeDecodeError, InvalidParameterError) as error:
                edit = Edit("", str(error))
        if edit == self._last:
            return None
        self._last = edit
        return edit


def parse(text: str, path: Optional[str] = None) -> tuple[dict[str, Any], list[str]]:
    """Parses a config and returns (plan, warnings). Raises InvalidParameterError, which lists every fault after the file's name."""
    try:
        parsed = _native.parse_config(text)
    except ValueError as error:
        raise InvalidParameterError(f"config_path {path}: {error}" if path else str(error)) from None
    return parsed["plan"], parsed["warnings"]


class ConfigView:
    """Read-only view of the config in force: level, task, dump_path, rank, step, list, dump_enable and so on.

    dump_enable: whether dumping is on; None if config.json has no such switch.
    """

    __slots__ = ("_fields",)

    def __init__(self, plan: dict[str, Any], enabled: bool, framework: str) -> None:
        fields = {key: list(value) if isinstance(value, list) else value for key, value in plan.items()}
        for name in ("rank", "step"):  # In the form of config.json.
            fields[name] = [first if first == last else f"{first}-{last}" for first, last in fields.pop(name + "s")]
        fields["dump_enable"] = enabled if "dump_enable" in plan else None
        fields["framework"] = framework
        object.__setattr__(self, "_fields", fields)

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_fields")[name]
        except KeyError:
            raise AttributeError(f"the config has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("the config of a PrecisionDebugger is read-only: edit config.json, or rankprobe enable --config")

    def __dir__(self) -> list[str]:
        return sorted(self._fields)

    def __repr__(self) -> str:
        return f"ConfigView({', '.join(f'{key}={value!r}' for key, value in self._fields.items())})"
