# SPDX-License-Identifier: Apache-2.0
"""What a vLLM configuration asks of rankprobe. Knows neither PyTorch nor vLLM."""

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
# vLLM's numbers of CompilationMode in which PyTorch's own compiler compiles the model.
_STOCK, _TRACED_ONCE = 1, 2


class Settings(NamedTuple):
    """What is to be recorded: a config.json by path or by content, or, of a
    process under `rankprobe run`, neither; and whether the cache of keys and values has
    a witness, which looks at all of it in every so many steps (0: none)."""

    path: Optional[str] = None
    content: Optional[dict[str, Any]] = None
    cache_every: int = 0

    @contextlib.contextmanager
    def config_file(self, level: str = "mix") -> Iterator[str]:
        """A config.json to construct a PrecisionDebugger from. level: where nobody has said one."""
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
    """Of `--additional-config` and the environment; None: nothing is asked for.

    Keys of others are left alone. ValueError for ours that cannot be meant.
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
    """Of an enumerator, a number or None, which both modes have for their 0, "none"."""
    value = getattr(value, "value", value)
    return value if isinstance(value, int) else 0 if value is None else 1


def _modes(vllm_config: Any) -> tuple[int, int]:
    """How the model is compiled, and which of it is captured as graphs."""
    compilation = vllm_config.compilation_config
    mode = getattr(compilation, "mode", getattr(compilation, "level", 1))
    return _number(mode), _number(getattr(compilation, "cudagraph_mode", None))


def graph_mode(vllm_config: Any) -> bool:
    """Whether the model runs compiled or as a captured graph, where no hook of it is called."""
    return not getattr(vllm_config.model_config, "enforce_eager", False) and any(_modes(vllm_config))


def why_not_recorded(vllm_config: Any, supported: bool) -> str:
    """Of a server in graph mode; "": its level L0 can be recorded. supported: PyTorch can record from within a graph."""
    mode, captured = _modes(vllm_config)
    if captured:
        return f"{GRAPH_MODE} (they are captured and replayed)"
    if mode not in (_STOCK, _TRACED_ONCE):
        return f"{GRAPH_MODE} (vLLM's own backend compiles them in pieces)"
    return "" if supported else f"{GRAPH_MODE} (from within them with PyTorch 2.13 or later)"
