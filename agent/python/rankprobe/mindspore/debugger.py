# SPDX-License-Identifier: Apache-2.0
"""PrecisionDebugger for MindSpore: msprobe's interface on rankprobe's recorder.

What is MindSpore's is in CellHooks (cells), Apis (functions and primitives) and
_bindings (tensors and graph); the rest is that of every front end.
"""

from __future__ import annotations

import atexit
import os
import pathlib
import threading
from typing import Any, Optional, Sequence, Union

from mindspore import nn

from rankprobe._frontend import config as _config
from rankprobe._frontend.errors import CollectorMissingError, InterfaceUsageError, InvalidParameterError
from rankprobe._frontend.notices import Notices
from rankprobe._frontend.process import InstanceOfProcess, warn
from rankprobe._frontend.session import CannotRecordError, RankSession
from rankprobe._frontend.steps import StepState, check_first
from rankprobe._frontend.switch import Switch
from rankprobe._say import say
from rankprobe.mindspore._apis import Apis
from rankprobe.mindspore._bindings import make_capture
from rankprobe.mindspore._cells import CellHooks, named_cells
from rankprobe.mindspore._monitor import Monitor
from rankprobe.mindspore._process import FRAMEWORK, check_mode
from rankprobe.mindspore._saving import check_saved, save_variable

Model = Union[nn.Cell, Sequence[nn.Cell]]
_PACKAGE = str(pathlib.Path(__file__).resolve().parent.parent)


def _check_plan(plan: dict[str, Any]) -> None:
    """What documents allow for PyTorch alone, or for what is no PyNative mode."""
    monitor = plan.get("monitor", {})
    if monitor.get("communication") and not plan["records_modules"] and not any(
            monitor[word] for word in ("weight_gradients", "parameters", "optimizer", "updates", "training")):
        raise InvalidParameterError("monitor.values: communication alone records no call of MindSpore, whose collectives have no kernel "
                                    "on a CPU to try it with; task statistics at level L1 has them as Distributed")
    if plan["summary_mode"] == "xor":
        raise InvalidParameterError("summary_mode: xor is for PyTorch; md5 has a checksum of each tensor in MindSpore too")


class PrecisionDebugger:
    """Records what the tensors of a MindSpore training in PyNative mode did.

    config_path: config.json; None: statistics of level L1.
    task, dump_path, level, step: beat the file, also when it changes later.
    auto_export, on_collector_missing: as with rankprobe.pytorch.

    The first instance of a process counts; another construction returns to it
    without a change. Its methods can be called on the class. Where records go:
    RANKPROBE_COLLECTOR (host:port), else a private collector whose trees appear
    in dump_path at the end of each step.

    Raises InvalidParameterError (a ValueError) naming every fault of the config,
    InterfaceUsageError in graph mode.
    """

    _instance: Optional["PrecisionDebugger"] = None
    _lock = threading.RLock()
    # The instance of this process, None before construction; read-only.
    instance = InstanceOfProcess()

    def __new__(cls, *args: Any, **kwargs: Any) -> "PrecisionDebugger":
        with cls._lock:
            return cls._instance if cls._instance is not None else super().__new__(cls)

    def __init__(self, config_path: Optional[str] = None, task: Optional[str] = None,
                 dump_path: Optional[str] = None, level: Optional[str] = None,
                 step: Optional[Sequence[Union[int, str]]] = None, auto_export: Optional[bool] = None,
                 on_collector_missing: Optional[str] = None) -> None:
        with self._lock:
            if PrecisionDebugger._instance is not None:
                return
            check_mode()
            _config.check_arguments(config_path, task, dump_path, level, step, auto_export, on_collector_missing)
            self._switch = Switch(_config.ConfigFile(config_path, {
                "task": task, "dump_path": dump_path, "level": level, "step": step, "auto_export": auto_export,
                # Its classes are those of PyTorch's functions: no effect here, says the document.
                "risk_level": "ALL"}), FRAMEWORK.name)
            _check_plan(self._switch.plan)
            for note in self._switch.notes:
                warn(note)
            self._pid = os.getpid()
            self._closed = self._inert = self._started = False
            self._steps = StepState()
            self._notices = Notices(FRAMEWORK)
            missing = on_collector_missing or os.environ.get("RANKPROBE_ON_COLLECTOR_MISSING", "")
            try:
                self._session = RankSession(FRAMEWORK, self._switch.plan, self._switch.config_json, self._switch.config_path,
                                            on_collector_missing or "")
            except CannotRecordError as error:
                if missing == "fail":
                    raise CollectorMissingError(str(error)) from None
                say(f"rankprobe: {error}; nothing is recorded, and the training continues")
                self._inert = self._closed = True
                PrecisionDebugger._instance = self
                return
            self._capture = make_capture(self._session.native, _PACKAGE)
            self._apis = Apis(self._capture)
            self._cells = CellHooks(self._capture)
            self._cells.on_root_begin, self._cells.on_root_end = self._on_root_begin, self._on_root_end
            self._monitor = Monitor(self._capture)
            # What is in place is that of the plan in force.
            self._applied = False
            PrecisionDebugger._instance = self
            if self._switch.enabled:
                self._apply(self._switch.plan)
            atexit.register(self.close)

    # --- the public interface

    @property
    def config(self) -> _config.ConfigView:
        """What is in force: level, task, dump_path, dump_enable and so on, read-only."""
        return self._switch.view

    @classmethod
    def start(cls, model: Optional[Model] = None, token_range: Optional[Sequence[int]] = None,
              rank_id: Optional[int] = None) -> None:
        """Recording on, for the current step.

        model: needed for L0, mix and token_range: a Cell or a list or tuple of
        them; what is below them is recorded, not they themselves. At L1 the
        primitives of its cells are recorded.
        token_range: [a, b], both inclusive: only these forwards of the (first)
        model since start. rank_id: the rank to file under, >= 0.

        Raises InterfaceUsageError before construction and in graph mode,
        InvalidParameterError for a bad argument.
        """
        cls._get("start")._start(model, token_range, rank_id)

    @classmethod
    def stop(cls) -> None:
        """Recording off. What was recorded is safe with the collector after it.

        Gradients of recorded forwards are still taken until step()."""
        cls._get("stop")._stop()

    @classmethod
    def step(cls) -> None:
        """The step is over: its tree is complete; the step counter is one more."""
        cls._get("step")._step()

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """The number of the first step, 0 to 2**52. Before the loop."""
        self = cls._get("set_init_step")
        check_first(step)
        if not self._inert:
            self._session.native.set_init_step(step)
        self._steps.set_first(step)

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """At level debug: records `variable` as {name}.{N}.debug, and, when it
        has tensors that get gradients, these as {name}_grad.{N}.debug.

        variable: Tensor, int, float, str, or a list, tuple or dict (str keys)
        of them. Invalid arguments are warned about and skipped.
        """
        cls._get("save")._save(variable, name, save_backward)

    @classmethod
    def report_loss(cls, loss: Any) -> None:
        """The loss of this step, a number or a tensor of one element, for trigger rules on it."""
        self = cls._get("report_loss")
        if self._inert or not self._capture.wants_loss:
            return
        try:
            self._capture.report_loss(float(loss.asnumpy()) if hasattr(loss, "asnumpy") else float(loss))
        except (TypeError, ValueError):
            warn(f"report_loss: a number or a tensor of one element, not {loss!r}; skipped")

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: Optional[str] = None) -> None:
        """Records `module.api` as {api_prefix}.{api}; prefix None: module name."""
        self = cls._get("register_custom_api")
        if self._inert:
            return
        try:
            self._apis.register_custom(module, api, api_prefix)
        except ValueError as error:
            raise InvalidParameterError(str(error)) from None

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Undoes register_custom_api; not registered: a no-op."""
        self = cls._get("restore_custom_api")
        if not self._inert:
            self._apis.restore_custom(module, api)

    @classmethod
    def wait_exported(cls) -> None:
        """Waits until the tree of the last step() lies in dump_path."""
        self = cls._get("wait_exported")
        if not self._inert:
            self._session.wait_exported()

    def close(self) -> None:
        """Sends what is left and ends the session; also done at exit."""
        if self._over():
            if self._inert:
                self._forget()
            return
        is_empty = self._session.native.forget_empty_step()
        begun = self._steps.current + (self._steps.has_records and not is_empty)
        if not is_empty:
            self._monitor.end_recording()
            if self._steps.any_dirty:
                self._session.stop()
                self._export(self._steps.current)
        if self._switch.asks:
            self._notices.ended(self._switch.asked, begun, self._started)
        self._session.finish_exports()
        self._closed = True
        self._take_off()
        self._session.close()
        self._forget()

    # --- how the parts go together in a step

    @classmethod
    def _get(cls, what: str) -> "PrecisionDebugger":
        instance = PrecisionDebugger._instance
        if instance is None:
            raise InterfaceUsageError(f"PrecisionDebugger instance is not created: construct it before {what}()")
        return instance

    def _forget(self) -> None:
        with PrecisionDebugger._lock:
            if PrecisionDebugger._instance is self:
                PrecisionDebugger._instance = None

    def _over(self) -> bool:
        """Closed, cut off, or a forked child's copy: nothing is done any more."""
        if not self._closed and os.getpid() == self._pid and self._session.cut_off:
            self._abandon()
        return self._closed or os.getpid() != self._pid

    def _abandon(self) -> None:
        self._closed = self._inert = True
        self._take_off()
        self._session.abandon()

    def _start(self, model: Optional[Model], token_range: Optional[Sequence[int]], rank_id: Optional[int]) -> None:
        check_mode()
        self._follow_file()
        _config.check_start(FRAMEWORK, model, token_range, rank_id, self._switch.checked_plan)
        if self._over():
            return
        self._started = True
        # Also what is off here may be switched on by the collector.
        rank = self._session.start(rank_id)
        self._take_plan(model is not None)
        if not self._switch.enabled:
            return
        if self._finished():
            return self._take_off()
        plan = self._switch.plan
        recording = self._session.recording
        if self._switch.asks:
            self._notices.started(self._switch.asked, rank, not recording and self._session.native.request_missing)
        if not recording:
            if not self._steps.has_records:
                self._take_off()
        if plan["records_saved"] or not recording:
            return
        self._apply(plan)
        if model is not None:
            self._watch(model, plan, token_range is not None)
        self._steps.begin(token_range)
        self._monitor.begin_step(plan, model)
        self._capture.enabled = token_range is None
        self._cells.begin_step()

    def _watch(self, model: Model, plan: dict[str, Any], tokens: bool) -> None:
        if plan["records_modules"]:
            self._cells.hook_model(model)
        if plan["records_apis"]:
            self._apis.watch_primitives([cell for _, cell, _ in named_cells(model)])
        if tokens:
            self._cells.hook_roots(model)

    def _apply(self, plan: dict[str, Any]) -> None:
        """Stand-ins and hooks that this level needs, and no others."""
        if self._applied:
            return
        self._applied = True
        # construct.json names backward calls even where their data is not wanted.
        self._cells.backward = plan["backward"] or plan["extra_info"]
        self._cells.parameters_grad = plan["parameters_grad"]
        if plan["records_apis"]:
            self._apis.install()

    def _take_off(self) -> None:
        """In steps that are not recorded nothing of ours is left in MindSpore."""
        self._applied = False
        self._monitor.end_step()
        self._apis.remove()
        self._cells.remove()

    def _stop(self) -> None:
        if self._over():
            return
        if self._steps.running:
            self._notices.stopped(self._switch.asked, self._capture, self._steps.current)
        self._steps.running = False
        self._session.stop()
        self._session.commit()

    def _step(self) -> None:
        if self._over():
            return
        if self._steps.running:
            self._session.stop()
            self._session.commit()
            self._steps.running = False
        self._monitor.end_recording()
        self._monitor.end_step()
        self._capture.enabled = True
        self._session.native.step()
        self._export(self._steps.end())
        # Who only saves (level debug) does not call start().
        self._follow_file()
        self._finished()

    def _save(self, variable: Any, name: str, save_backward: bool) -> None:
        if self._over() or not self._switch.plan["records_saved"]:
            return
        fault = check_saved(variable, name, save_backward)
        if fault is not None:
            warn(f"save(): {fault}; skipped")
            return
        if not self._finished() and save_variable(self._capture, variable, name, save_backward):
            self._steps.mark_dirty()

    def _follow_file(self) -> None:
        if not self._over():
            self._switch.follow_file(self._session)

    def _take_plan(self, has_model: bool) -> None:
        """The plan in force since session.start(): its stand-ins and hooks, or none."""
        changed = self._switch.take(self._session)
        if not self._switch.enabled:
            if self._steps.running:
                self._session.stop()
                self._steps.running = False
            return self._take_off()
        if changed:
            self._steps.new_plan()
            self._take_off()
        if self._applied:
            return
        plan = self._switch.plan
        self._apply(plan)
        path = self._session.fixed_path(self._switch.asked)
        if path is not None:
            warn(f"dump_path cannot change in a running job: trees go on to {path}")
        if plan["records_modules"] and not has_model:
            warn(f"start() has no model: no cells are recorded at level {plan['level']}")

    def _finished(self) -> bool:
        return self._steps.finished(self._switch.plan.get("last_step"))

    def _export(self, step: int) -> None:
        if self._steps.take_dirty(step):
            self._session.export(step, self._switch.asked["dump_path"])

    def _on_root_begin(self) -> None:
        if self._steps.running:
            self._capture.reset_modules()
            if self._steps.token_range is not None:
                self._capture.enabled = self._steps.token_wanted

    def _on_root_end(self) -> None:
        if self._steps.running:
            self._steps.token_done()
