# SPDX-License-Identifier: Apache-2.0
"""Steps of a server, one for each scheduled batch."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

from rankprobe import _native
from rankprobe.vllm._batch import Batch, batch_of


class Steps:
    """Makes a step of each batch that `runner` executes. A step begins with the model's
    forward in execute_model(), when the batch is prepared. It ends with the sampled
    tokens or the pooled states, or with the forward if neither follows. Warm-up and other
    forwards that serve no request are not steps. Used only by the thread that runs `runner`.

    A fault of rankprobe ends recording with one line to `say`; the server continues.
    parts: the CompiledParts of the model, or None. cache: the witness of the KV cache, or None. tokens: the TokenWatch, or None.
    """

    def __init__(self, runner: Any, model: Any, debugger: Any, say: Callable[[str], None], parts: Any = None, cache: Any = None,
                 tokens: Any = None) -> None:
        self._runner, self._model, self._debugger, self._say, self._parts = runner, model, debugger, say, parts
        # What watches a batch and ends by itself if it fails: the recording continues.
        self._watches: dict[str, Any] = {"the witness of the KV cache": cache, "the watch of tokens": tokens}
        self._batch = Batch({}, {})
        # Argument of execute_model() until the model's forward begins.
        self._scheduled: Optional[Any] = None
        # Last result of prepare_inputs() of the newer runner (v1/worker/gpu).
        self._prepared: Any = None
        self._open = False
        self._broken = False

    def install(self) -> None:
        self._model.register_forward_pre_hook(lambda _, args, kwargs: self._guarded(functools.partial(self._begin, args, kwargs)), with_kwargs=True)
        execute = self._runner.execute_model

        @functools.wraps(execute)
        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            dummy = kwargs.get("dummy_run", False) or not scheduler_output.total_num_scheduled_tokens
            self._scheduled = None if dummy else scheduler_output
            result: Any = True
            try:
                result = execute(scheduler_output, *args, **kwargs)
                return result
            finally:
                self._scheduled = None
                # If the result is None, sample_tokens() or pool() follows and ends the step.
                if result is not None:
                    self._guarded(self._end)

        self._runner.execute_model = execute_model
        if hasattr(self._runner, "prepare_inputs"):
            self._runner.prepare_inputs = self._keeping(self._runner.prepare_inputs)
        for name in ("sample_tokens", "pool"):
            if hasattr(self._runner, name):
                setattr(self._runner, name, self._ending(getattr(self._runner, name)))
        if self._watches["the watch of tokens"] is not None:
            self._runner._sample = self._sampling(self._runner._sample)

    def _ending(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def last_of_step(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                self._guarded(self._end)

        return last_of_step

    def _sampling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def sample(logits: Any, *args: Any, **kwargs: Any) -> Any:
            name = "the watch of tokens"
            # The sampler may change the logits.
            numbers = self._watch(name, lambda tokens: tokens.numbers(logits)) if self._open else None
            output = function(logits, *args, **kwargs)
            if numbers is not None:
                self._watch(name, lambda tokens: tokens.sampled(numbers, output, self._batch))
            return output

        return sample

    def _keeping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def prepare_inputs(*args: Any, **kwargs: Any) -> Any:
            self._prepared = function(*args, **kwargs)
            return self._prepared

        return prepare_inputs

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._scheduled is None:
            return
        scheduled, self._scheduled = self._scheduled, None
        prepared, self._prepared = self._prepared, None
        # Ends a previous step that neither sample_tokens() nor pool() has ended.
        self._end()
        batch = self._batch = batch_of(scheduled, prepared if prepared is not None else getattr(self._runner, "input_batch", None))
        self._open = True
        self._debugger.start(model=self._model, scheduled_tokens=batch.tokens, first_positions=batch.positions)
        input_ids = kwargs.get("input_ids", args[0] if args else None)
        self._watch("the witness of the KV cache", lambda cache: cache.before(self._debugger._steps.current, scheduled, batch, input_ids))
        if self._parts is not None and self._debugger._steps.running:
            self._parts.enter()

    def _end(self) -> None:
        if self._parts is not None:
            self._parts.leave()
        if self._open:
            self._open = False
            self._watch("the witness of the KV cache", lambda cache: cache.after())
            self._debugger.stop()
            self._debugger.step()

    def _watch(self, name: str, function: Callable[[Any], Any]) -> Any:
        """Returns function(watch), or None if there is none. A fault ends only that watch; recording continues."""
        watch = self._watches[name]
        try:
            return None if watch is None or self._broken else function(watch)
        except Exception as error:  # noqa: BLE001 - serving continues
            if not _native.raise_later_if_programs(error):
                self._watches[name] = None
                self._say(f"{name} ended: {error!r}; recording continues")
        return None

    def _guarded(self, function: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            function()
        except Exception as error:  # noqa: BLE001 - serving continues
            if _native.raise_later_if_programs(error):
                return
            self._broken = True
            self._say(f"recording ended: {error!r}; the server continues")
            try:
                self._debugger.close()
            except Exception as closing:  # noqa: BLE001
                if not _native.raise_later_if_programs(closing):
                    self._say(f"closing: {closing!r}")
