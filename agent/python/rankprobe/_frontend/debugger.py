# SPDX-License-Identifier: Apache-2.0
"""Base of PrecisionDebugger in every framework: msprobe's interface to rankprobe's recorder.

It consists of four parts, which do not depend on this file: Switch (what to record),
RankSession (where records go), StepState (position of the training loop) and
Instruments (hooks that are installed in the framework).
"""

from __future__ import annotations

import atexit
import os
import pathlib
import threading
from os import getpid
from typing import Any, Callable, ClassVar, Optional, Sequence, Union

from rankprobe._frontend import config as _config
from rankprobe._frontend.errors import CollectorMissingError, InterfaceUsageError, InvalidParameterError, RankprobeError
from rankprobe._frontend.framework import Framework
from rankprobe._frontend.notices import Notices
from rankprobe._frontend.process import InstanceOfProcess, report_fault, warn
from rankprobe._frontend.requests import Requests, read_requests
from rankprobe._frontend.saving import check_saved, save_variable
from rankprobe._frontend.session import CannotRecordError, RankSession
from rankprobe._frontend.steps import StepState, check_first
from rankprobe._frontend.switch import Switch
from rankprobe._say import say

PACKAGE = str(pathlib.Path(__file__).resolve().parent.parent)


class Debugger:
    """Base class; a subclass is the PrecisionDebugger of a framework. It defines start() and the class attributes and
    methods below "of the framework", and creates these parts in _make_parts():

    _capture: the native Capture. _monitor: rankprobe._frontend.monitor.Monitor.
    _instruments: apis, applied, apply, take_off, set_aside, put_back, watch, begin_step, end_recording, end_step and
    remove, as in rankprobe.pytorch._instruments.Instruments.
    """

    # The direct subclass of Debugger, which also holds the instance of its own subclasses.
    _front: ClassVar[Any]
    _instance: ClassVar[Any] = None
    _lock: ClassVar[Any] = threading.RLock()
    # The instance of this process, None before construction; read-only.
    instance = InstanceOfProcess()

    # Set by `rankprobe run`, which begins and ends the steps instead of the program.
    _attached = False

    # --- of the framework

    _framework: ClassVar[Framework]
    _tensor_type: ClassVar[type]
    _capture: Any = None  # None if nothing can be recorded
    _instruments: Any
    _monitor: Any

    def _check_process(self, starts: bool) -> None:
        """Raises InterfaceUsageError if the framework is in a mode that cannot be recorded. starts: called in start()."""

    def _make_switch(self, config_path: Optional[str], arguments: dict[str, Any]) -> Switch:
        return Switch(_config.ConfigFile(config_path, arguments), self._framework.name)

    def _make_parts(self) -> None:
        raise NotImplementedError

    def _apply_at_once(self) -> None:
        """Installs the instruments, if recording is on at the construction."""
        self._instruments.apply(self._switch.plan)

    def _begin_of_step(self, plan: dict[str, Any], model: Any) -> None:
        """Begins or continues a recorded step in parts of a framework other than the instruments."""

    def _end_of_recording(self) -> None:
        """Ends recording in parts of a framework other than the instruments."""

    def _end_of_step(self) -> None:
        """Ends a step, recorded or not, in parts of a framework other than the instruments."""

    def _remove_parts(self) -> None:
        """Removes permanently the parts of a framework other than the instruments."""

    def _reader_of(self, loss: Any) -> Optional[Callable[[], float]]:
        """Returns a function that reads a number or a tensor of one element, possibly waiting for its device; None if it is neither."""
        raise NotImplementedError

    def _gets_gradient(self, tensor: Any) -> bool:
        raise NotImplementedError

    # --- the single instance of the process

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Debugger in cls.__bases__:
            cls._front, cls._instance, cls._lock = cls, None, threading.RLock()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        with cls._lock:
            return cls._front._instance if cls._front._instance is not None else super().__new__(cls)

    def __init__(self, config_path: Optional[str] = None, task: Optional[str] = None,
                 dump_path: Optional[str] = None, level: Optional[str] = None,
                 step: Optional[Sequence[Union[int, str]]] = None, auto_export: Optional[bool] = None,
                 on_collector_missing: Optional[str] = None) -> None:
        with self._lock:
            if self._front._instance is not None:
                self._front._instance._constructed_again()
                return
            self._check_process(starts=False)
            _config.check_arguments(config_path, task, dump_path, level, step, auto_export, on_collector_missing)
            self._switch = self._make_switch(config_path, {
                "task": task, "dump_path": dump_path, "level": level, "step": step, "auto_export": auto_export})
            for note in self._switch.notes:
                warn(note)
            self._pid = getpid()
            self._closed = self._inert = self._started = False
            # start() found recording off and nothing installed by the step before, so the rest of the step is only counted.
            self._idle = False
            self._steps = StepState()
            self._notices = Notices(self._framework)
            missing = on_collector_missing or os.environ.get("RANKPROBE_ON_COLLECTOR_MISSING", "")
            try:
                self._session = RankSession(self._framework, self._switch.plan, self._switch.config_json, self._switch.config_path,
                                            on_collector_missing or "")
            except CannotRecordError as error:
                if missing == "fail":
                    raise CollectorMissingError(str(error)) from None
                say(f"rankprobe: {error}; nothing is recorded, and the training continues")
                self._inert = self._closed = True
                self._front._instance = self
                return
            self._make_parts()
            self._front._instance = self
            if self._switch.enabled:
                self._apply_at_once()
            atexit.register(self.close)

    def _constructed_again(self) -> None:
        pass

    @classmethod
    def _get(cls, what: str) -> Any:
        instance = cls._front._instance
        if instance is None:
            raise InterfaceUsageError(f"PrecisionDebugger instance is not created: construct it before {what}()")
        return instance

    @classmethod
    def _do(cls, what: str, *args: Any) -> None:
        """Runs a method that the program's loop calls. A fault of rankprobe is reported, and the training continues."""
        self = cls._front._instance or cls._get(what)
        if self._attached:
            return
        try:
            getattr(self, f"_{what}")(*args)
        except RankprobeError:
            raise
        except Exception as error:  # noqa: BLE001 - the training must not notice
            report_fault(self._capture, f"{what}()", error)

    def _forget(self) -> None:
        with self._lock:
            if self._front._instance is self:
                self._front._instance = None

    # --- the public interface

    @property
    def config(self) -> _config.ConfigView:
        """Read-only view of the config in force: level, task, dump_path, dump_enable and so on."""
        return self._switch.view

    @classmethod
    def stop(cls) -> None:
        """Stops recording. What was recorded is safe with the collector when it returns.

        Gradients of recorded forwards are still recorded until step().
        Raises InterfaceUsageError before construction."""
        cls._do("stop")

    @classmethod
    def step(cls) -> None:
        """Ends the step, whose records are complete then, and increments the step counter.

        Raises InterfaceUsageError before construction."""
        cls._do("step")

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Sets the number of the first step, 0 (default) to 2**52. Call before the loop.

        Raises InvalidParameterError for another value, InterfaceUsageError before construction."""
        self = cls._get("set_init_step")
        check_first(step)
        if not self._inert:
            self._session.native.set_init_step(step)
        self._steps.set_first(step)

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """At level debug: records `variable` as {name}.{N}.debug and, with
        save_backward, gradients of its tensors as {name}_grad.{N}.debug.

        variable: Tensor, int, float, str, or a list, tuple or dict (str keys)
        of them. Invalid arguments cause a warning and are skipped.
        Raises InterfaceUsageError before construction.
        """
        cls._get("save")._save(variable, name, save_backward)

    @classmethod
    def report_loss(cls, loss: Any) -> None:
        """Reports the loss of this step, for trigger rules on it.

        loss: a number, or a tensor of one element. It is read, which waits for
        its device, only while such rules are set. Another value causes a warning.
        """
        self = cls._get("report_loss")
        if self._inert:
            return
        read = self._reader_of(loss)
        if read is None:
            warn(f"report_loss: a number or a tensor of one element, not {loss!r}; skipped")
        elif self._capture.wants_loss:
            self._capture.report_loss(read())

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: Optional[str] = None) -> None:
        """Records `module.api` as {api_prefix}.{api}; api_prefix defaults to the module's name.

        Raises InvalidParameterError if there is no such callable or the prefix is bad."""
        self = cls._get("register_custom_api")
        if self._inert:
            return
        try:
            self._instruments.apis.register_custom(module, api, api_prefix)
        except ValueError as error:
            raise InvalidParameterError(str(error)) from None

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Undoes register_custom_api; has no effect if it is not registered."""
        self = cls._get("restore_custom_api")
        if not self._inert:
            self._instruments.apis.restore_custom(module, api)

    @classmethod
    def wait_exported(cls) -> None:
        """Waits until the last step that ended is exported to dump_path."""
        self = cls._get("wait_exported")
        if not self._inert:
            self._session.wait_exported()

    def close(self) -> None:
        """Sends the remaining records and ends the session; also called at exit."""
        if self._over():
            if self._inert:
                self._forget()
            return
        self._instruments.end_recording()
        # `rankprobe run` begins a step when the previous one ends, so an empty step may follow the last one.
        is_empty = self._session.native.forget_empty_step()
        begun = self._steps.current + (self._steps.has_records and not is_empty)
        if not is_empty:
            self._end_of_recording()
            self._monitor.end_recording()
            if self._steps.dirty:
                self._session.stop()
                self._export(self._steps.current)
        self._monitor.end_step()
        if self._switch.asks:
            self._notices.ended(self._switch.asked, begun, self._started)
        self._session.finish_exports()
        self._closed, self._idle = True, False
        self._remove_parts()
        self._instruments.remove()
        self._session.close()
        self._forget()

    # --- interaction of the parts in a step

    def _over(self) -> bool:
        """Returns whether it is closed, cut off or a forked child's copy; nothing may be done then."""
        if self._closed or getpid() != self._pid:
            return True
        if self._session.is_cut_off():
            self._abandon()
        return self._closed

    def _abandon(self) -> None:
        self._closed, self._inert, self._idle = True, True, False
        self._instruments.end_recording()
        self._monitor.end_step()
        self._remove_parts()
        self._instruments.remove()
        self._session.abandon()

    def _requests_of(self, scheduled_tokens: Any, first_positions: Any) -> Optional[Requests]:
        """Reads the requests of a server's step. Returns None for bad ones, about which it warns."""
        try:
            return read_requests(scheduled_tokens, first_positions)
        except ValueError as error:
            self._notices.bad_requests(self._switch.asked, str(error))
            return None

    def _start_idle(self) -> bool:
        """Begins a step that records nothing, after another one. Returns False, having begun none, if more is to be done."""
        if not self._idle:
            return False
        if self._switch.followed:
            self._switch.follow_file(self._session)
        return self._session.start_idle()

    def _end_idle(self) -> bool:
        """Ends a step that _start_idle() or _start() has begun. Returns False, having done nothing, if more is to be done."""
        steps = self._steps
        if not self._idle or steps.dirty or not self._session.step_idle():
            return False
        steps.end()
        return True

    def _start(self, model: Any, token_range: Optional[Sequence[int]], rank_id: Optional[int], scheduled_tokens: Any = None,
               first_positions: Any = None) -> None:
        self._check_process(starts=True)
        if token_range is None and rank_id is None and self._start_idle():  # The requests of a server matter only to records.
            return
        over = self._over()
        if not over:
            self._switch.follow_file(self._session)
        _config.check_start(self._framework, model, token_range, rank_id, self._switch.checked_plan)
        if over:
            return
        # Also what is off here may be switched on by the collector.
        requests = None if scheduled_tokens is None else self._requests_of(scheduled_tokens, first_positions)
        self._started = True
        rank = self._session.start(rank_id, requests)
        nothing_in_place = not (self._instruments.applied or self._steps.running or self._steps.has_records)
        self._take_plan(model is not None)
        self._idle = nothing_in_place and not self._switch.enabled
        if not self._switch.enabled:
            return
        if self._finished():
            self._instruments.set_aside()
            return
        plan = self._switch.plan
        recording = self._session.recording
        if self._switch.asks:
            self._notices.started(self._switch.asked, rank, not recording and self._session.native.request_missing)
        if not recording:
            if not self._steps.has_records:
                self._instruments.set_aside()
        if plan["records_saved"] or not recording:
            return
        if requests is None and scheduled_tokens is None:
            self._notices.no_requests(self._switch.asked)
        self._instruments.put_back(plan)
        if model is not None:
            self._instruments.watch(model, plan, token_range is not None, bare_roots=self._attached)
        self._steps.begin(token_range)
        self._begin_of_step(plan, model)
        self._monitor.begin_step(plan, model)
        self._capture.enabled = token_range is None
        self._instruments.begin_step(plan)

    def _stop(self) -> None:
        if self._idle or self._over():
            return
        self._instruments.end_recording()
        self._end_of_recording()
        if self._steps.running:
            self._notices.stopped(self._switch.asked, self._capture, self._steps.current)
        self._steps.running = False
        self._session.stop()
        self._session.commit()

    def _step(self) -> None:
        if self._end_idle() or self._over():
            return
        if self._idle and not self._steps.has_records:
            self._session.native.step()
            self._steps.end()
            return
        self._instruments.end_step()
        if self._steps.running:
            self._end_of_recording()
            self._session.stop()
            self._session.commit()
            self._steps.running = False
        self._end_of_step()
        self._monitor.end_recording()
        self._monitor.end_step()
        self._capture.enabled = True
        self._session.native.step()
        ended = self._steps.current
        self._steps.end()
        self._export(ended)
        # A program that only saves (level debug) does not call start().
        self._switch.follow_file(self._session)
        self._finished()

    def _save(self, variable: Any, name: str, save_backward: bool) -> None:
        if self._over() or not self._switch.plan["records_saved"]:
            return
        fault = check_saved(variable, name, save_backward, self._tensor_type)
        if fault is not None:
            warn(f"save(): {fault}; skipped")
            return
        if not self._finished() and save_variable(self._capture, variable, name, save_backward, self._tensor_type, self._gets_gradient):
            self._steps.mark_dirty()

    def _take_plan(self, has_model: bool) -> None:
        """Takes over the plan of session.start(), and installs its stand-ins and hooks or removes them."""
        changed = self._switch.take(self._session)
        if not self._switch.enabled:
            if self._idle:
                return
            if self._steps.running:
                self._instruments.end_recording()
                self._end_of_recording()
                self._session.stop()
                self._steps.running = False
            self._monitor.end_step()
            self._instruments.take_off()
            return
        if changed:
            self._steps.new_plan()
        if self._instruments.applied and not changed:
            return
        plan = self._switch.plan
        self._instruments.apply(plan)
        path = self._session.fixed_path(self._switch.asked)
        if path is not None:
            warn(f"dump_path cannot change in a running job: dumps continue in {path}")
        if plan["records_modules"] and not has_model:
            warn(f"start() has no model: no modules are recorded at level {plan['level']}")

    def _finished(self) -> bool:
        return self._steps.finished(self._switch.plan.get("last_step"))

    def _export(self, step: int) -> None:
        if self._steps.take_dirty(step):
            self._session.export(step, self._switch.asked["dump_path"])

    def _on_root_begin(self) -> None:
        if not self._steps.running:
            return
        self._capture.reset_modules()
        if self._steps.token_range is not None:
            self._capture.enabled = self._steps.token_wanted

    def _on_root_end(self) -> None:
        if self._steps.running:  # Calls after the last selected forward, which choose its token, belong to it.
            self._steps.token_done()
