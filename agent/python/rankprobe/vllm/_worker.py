# SPDX-License-Identifier: Apache-2.0
"""Attachment to the workers that vLLM creates in this process."""

from __future__ import annotations

import functools
import os
import socket
from typing import Any

import torch

from rankprobe import _native, _say
from rankprobe._frontend.config import merged_text, parse
from rankprobe._inputs import switch_hint
from rankprobe.vllm._settings import ONLY_MODULES, Settings, graph_mode, settings, why_not_recorded


def say(text: str) -> None:
    _say.say(f"rankprobe: {text}")


def watch(wrapper_class: Any) -> None:
    """Wraps init_device() of the class to inspect each worker when its device is
    ready. vLLM loads plugins in init_worker(), which init_device() follows in every
    process."""
    init = wrapper_class.init_device

    @functools.wraps(init)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = init(self, *args, **kwargs)
        _look_at(self.worker, self.vllm_config)
        return result

    wrapper_class.init_device = init_device


def _look_at(worker: Any, vllm_config: Any) -> None:
    try:
        if os.environ.get("RANKPROBE_ATTACH"):
            from rankprobe.pytorch import _attach_hook

            _attach_hook.stand_back()
        wanted = settings(getattr(vllm_config, "additional_config", None), os.environ)
        if wanted is None:
            return
        compiled = graph_mode(vllm_config)
        if compiled:
            from rankprobe.pytorch._graph_calls import SUPPORTED

            why_not = why_not_recorded(vllm_config, SUPPORTED)
            if why_not:
                _when_ready(worker, functools.partial(_refuse, worker, vllm_config, wanted, why_not))
                return
        parallel = vllm_config.parallel_config
        if getattr(parallel, "data_parallel_index", 0) > 0 and torch.distributed.get_world_size() == parallel.world_size:
            raise RuntimeError("of several data-parallel engines only the first is recorded")
        _when_ready(worker, functools.partial(_attach, worker, vllm_config, wanted, compiled))
    except Exception as error:  # noqa: BLE001 - serving continues
        _say_why_not(worker, error)


def _when_ready(worker: Any, attach: Any) -> None:
    """Calls `attach` after the warm-up, whose forwards serve no request."""
    warm_up = worker.compile_or_warm_up_model

    @functools.wraps(warm_up)
    def compile_or_warm_up_model(*args: Any, **kwargs: Any) -> Any:
        result = warm_up(*args, **kwargs)
        del worker.compile_or_warm_up_model
        try:
            attach()
        except Exception as error:  # noqa: BLE001 - serving continues
            _say_why_not(worker, error)
        return result

    worker.compile_or_warm_up_model = compile_or_warm_up_model


def _say_why_not(worker: Any, error: Exception) -> None:
    if not _native.raise_later_if_programs(error) and getattr(worker, "rank", 0) == 0:
        say(f"not attached: {error}")


def _debugger(vllm_config: Any, wanted: Settings, level: str = "mix") -> Any:
    from rankprobe.pytorch import PrecisionDebugger

    # All workers of a server share one run. The instance id names it, because each is a child of another process.
    os.environ.setdefault("RANKPROBE_RUN", f"vllm-{socket.gethostname()}-{vllm_config.instance_id}")
    with wanted.config_file(level) as path:
        return PrecisionDebugger(config_path=path)


def _refuse(worker: Any, vllm_config: Any, wanted: Settings, why: str) -> None:
    """Connects to the collector without recording, so that `status`, `enable` and the page say why this server is not recorded."""
    _say_why_not(worker, RuntimeError(why))
    if not (os.environ.get("RANKPROBE_COLLECTOR") or os.environ.get("RANKPROBE_ATTACH")):
        return  # A private collector, which is not queried from outside.
    from rankprobe.pytorch import PrecisionDebugger

    if PrecisionDebugger._instance is not None:
        return  # A training in this process is recorded by it.
    debugger = _debugger(vllm_config, wanted)
    if not debugger._inert:
        debugger._started = True  # Suppresses the report that no step was begun.
        debugger._session.native.refuse_recording(why)


def _wants_apis(wanted: Settings) -> bool:
    """Returns whether the config requests API calls, which only eager mode can record, from the start."""
    with wanted.config_file("L0") as path:
        plan, _ = parse(merged_text(path, {}), path)
    return bool(plan.get("dump_enable", True) and plan["records_apis"])


def _attach(worker: Any, vllm_config: Any, wanted: Settings, compiled: bool) -> None:
    from rankprobe.vllm._steps import Steps

    if compiled and _wants_apis(wanted):
        return _refuse(worker, vllm_config, wanted, ONLY_MODULES)
    model, parts = worker.get_model(), None
    if compiled:
        from rankprobe.vllm._compiled import CompiledParts

        parts = CompiledParts(model)
        if not parts:
            parts = None  # vLLM compiles no module of this model, so it runs as with --enforce-eager.
    debugger = _debugger(vllm_config, wanted, "mix" if parts is None else "L0")
    if debugger._inert:  # It has reported why nothing is recorded.
        return
    # Suppresses the report that no step was begun, since a server without requests begins none.
    debugger._started = True
    if parts is not None:
        debugger._session.native.refuse_recording(ONLY_MODULES, only_apis=True)
        _compile_ahead(worker, vllm_config, debugger, model, parts)
    cache = _cache_of(worker, vllm_config, wanted, debugger)
    tokens = _tokens_of(worker, vllm_config, debugger)
    Steps(worker.model_runner, model, debugger, say, parts, cache, tokens).install()
    if worker.rank == 0:
        session, switch = debugger._session, debugger._switch
        state = f"recording into {switch.plan['dump_path']}" if switch.enabled else "idle"
        compiled_parts = "" if parts is None else ", compiled: its modules are recorded (level L0)"
        say(f"attached to {type(model).__name__}{compiled_parts}, {state}; a step is one batch; "
            f"{switch_hint(switch.enabled, session.address, session.run)}")


def _cache_of(worker: Any, vllm_config: Any, wanted: Settings, debugger: Any) -> Any:
    """Returns the witness of the worker's KV cache; None if it is not requested or not possible."""
    if not wanted.cache_every:
        return None
    from rankprobe.vllm._cache import RunnerCache, why_not_witnessed

    why_not = why_not_witnessed(vllm_config, worker.model_runner)
    cache = None if why_not else RunnerCache(worker.model_runner, vllm_config, wanted.cache_every, debugger, say)
    if cache is not None and not cache.layers:
        why_not, cache = "no layer keeps keys and values in blocks of tokens", None
    if worker.rank == 0:
        say(f"no witness of the KV cache: {why_not}" if cache is None else f"witness of the KV cache: {cache.layers} layers")
    return cache


def _tokens_of(worker: Any, vllm_config: Any, debugger: Any) -> Any:
    """Returns what keeps the worker's tokens for the flight recorder, once its triggers ask for them; None if it is not possible."""
    from rankprobe.vllm._tokens import TokenWatch, why_not_watched

    why_not = why_not_watched(vllm_config, worker.model_runner)
    if why_not:
        if worker.rank == 0:
            say(f"no flight recorder of tokens: {why_not}")
        return None
    return TokenWatch(worker.model_runner, debugger)


def _compile_ahead(worker: Any, vllm_config: Any, debugger: Any, model: Any, parts: Any) -> None:
    """Compiles the graphs that record by a dummy forward, as vLLM does, so that the first recorded batch does not wait for it.

    Skipped with several ranks, because those that record would wait in this forward for one that does not. They compile with
    the first recorded batch, which all ranks run.
    """
    parallel = vllm_config.parallel_config
    if parallel.world_size > 1 or getattr(parallel, "data_parallel_size", 1) > 1:
        return

    def warm_up() -> None:
        with torch.random.fork_rng(devices=[]):
            worker.model_runner._dummy_run(vllm_config.scheduler_config.max_num_batched_tokens)

    try:
        with parts.entered():
            debugger._instruments.compile_ahead(model, warm_up)
    except Exception as error:  # noqa: BLE001 - serving continues
        if not _native.raise_later_if_programs(error):
            say(f"the graphs that record are compiled with the first recorded batch: {error!r}")
