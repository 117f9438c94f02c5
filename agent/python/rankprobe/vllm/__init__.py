# SPDX-License-Identifier: Apache-2.0
"""Integration of vLLM: an entry point of vLLM's plugins (vllm.general_plugins).

    vllm serve MODEL --enforce-eager --additional-config '{"dump_config_path": "config.json"}'
    vllm serve MODEL --enforce-eager --additional-config '{"dump_config": {"task": "statistics", ...}}'
    rankprobe run -- vllm serve MODEL --enforce-eager

vLLM calls register() in each of its processes. Without one of the three options it
only reads the configuration of a worker once. Nothing here raises into the server: a
fault is one line on stderr, and serving continues.
"""

from __future__ import annotations

__all__ = ["register"]

_registered = False


def register() -> None:
    """Attaches to workers that are created in this process. Repeated calls have no effect."""
    global _registered
    if _registered:
        return
    _registered = True
    try:
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        from rankprobe.vllm import _worker

        _worker.watch(WorkerWrapperBase)
    except Exception as error:
        from rankprobe._program_error import came_from_signal
        from rankprobe._say import say

        if came_from_signal(error.__traceback__):
            _registered = False
            raise
        say(f"rankprobe: not attached to vLLM: {error!r}")
