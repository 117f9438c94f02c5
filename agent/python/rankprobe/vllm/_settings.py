# SPDX-License-Identifier: Apache-2.0
"""Settings for rankprobe in a vLLM configuration. Depends on neither PyTorch nor vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from typing import Any, Iterator, Mapping, NamedTuple, Optional

_KNOWN = ("dump_config_path", "dump_config", "dump_kv_cache")
GRAPH_MODE = ("Please enforce eager mode: restart vLLM and add the --enforce-eager flag. "
              "This server runs compiled graphs, in which no call of the model is seen")
ONLY_MODULES = ("this server runs compiled graphs, in which only modules are recorded: give \"level\": \"L0\" in config.json, "
                "or restart vLLM and add the --enforce-eager flag")
# Numbers of vLLM's CompilationMode in which PyTorch's own compiler compiles the model.
_STOCK, _TRACED_ONCE = 1, 2


class Settings(NamedTuple):
    """What to record: a config.json by path or by content, or neither in a process under
    `rankprobe run`. cache_every: interval in steps at which the witness of the KV cache
    checks all of it; 0 (default) means no witness."""

    path: Optional[str] = None
    content: Optional[dict[str, Any]] = None
    cache_every: int = 0

    @contextlib.contextmanager
    def config_file(self, level: str = "mix") -> Iterator[str]:
        """Yields the path of a config.json for a PrecisionDebugger. level: the level if neither path nor content is given."""
        if self.path is not None:
            yield self.path
            return
        if self.content is None:
            from rankprobe._frontend.attach import config_file

            path = config_file(os.environ.get("RANKPROBE_ATTACH", "idle"), level)
        else:
            handle, path = tempfile.mkstemp(prefix="rankprobe-", suffix=".json")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self.content, file)
        try:
            yield path
        finally:
            os.unlink(path)


def settings(additional_config: Any, environment: Mapping[str, str]) -> Optional[Settings]:
    """Reads `--additional-config` and the environment. Returns None if they do not request recording.

    Ignores keys that do not begin with dump_. Raises ValueError for an unknown key or an invalid value.
    """
    given = additional_config if isinstance(additional_config, dict) else {}
    unknown = sorted(key for key in given if isinstance(key, str) and key.startswith("dump_") and key not in _KNOWN)
    if unknown:
        raise ValueError(f"additional_config: unknown {', '.join(unknown)}; known are {', '.join(_KNOWN)}")
    path, content = given.get("dump_config_path"), given.get("dump_config")
    if path is not None and content is not None:
        raise ValueError("additional_config: give only one of dump_config_path and dump_config")
    if path is not None and not (isinstance(path, str) and path):
        raise ValueError(f"additional_config: dump_config_path must be the path of a config.json, not {path!r}")
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"additional_config: dump_config must be the contents of a config.json, not {content!r}")
    every = given.get("dump_kv_cache", 0)
    if not isinstance(every, int) or every < 0:
        raise ValueError(f"additional_config: dump_kv_cache must be true, false or a number of steps, not {every!r}")
    if path is None and content is None and not environment.get("RANKPROBE_ATTACH"):
        if every:
            raise ValueError("additional_config: dump_kv_cache needs dump_config, dump_config_path or `rankprobe run`")
        return None
    return Settings(path, content, int(every))


def _number(value: Any) -> int:
    """Converts an enumerator, a number or None to a number. In both modes None means 0, the mode "none"."""
    value = getattr(value, "value", value)
    return value if isinstance(value, int) else 0 if value is None else 1


def _modes(vllm_config: Any) -> tuple[int, int]:
    """Returns the numbers of the compilation mode and of the CUDA graph mode."""
    compilation = vllm_config.compilation_config
    mode = getattr(compilation, "mode", getattr(compilation, "level", 1))
    return _number(mode), _number(getattr(compilation, "cudagraph_mode", None))


def graph_mode(vllm_config: Any) -> bool:
    """Returns whether the model runs compiled or as a captured graph, in which its hooks are not called."""
    return not getattr(vllm_config.model_config, "enforce_eager", False) and any(_modes(vllm_config))


def why_not_recorded(vllm_config: Any, supported: bool) -> str:
    """Returns why a server in graph mode cannot be recorded; "" if level L0 can be. supported: whether this PyTorch can record from
    within a graph."""
    mode, captured = _modes(vllm_config)
    if captured:
        return f"{GRAPH_MODE} (they are captured and replayed)"
    if mode not in (_STOCK, _TRACED_ONCE):
        return f"{GRAPH_MODE} (vLLM's own backend compiles them in pieces)"
    return "" if supported else f"{GRAPH_MODE} (from within them with PyTorch 2.13 or later)"
