# SPDX-License-Identifier: Apache-2.0
"""PrecisionDebugger: msprobe's interface on rankprobe's recorder.

It is put together from four parts, each of which knows nothing of this file:
Switch (what is to be recorded), RankSession (where it goes), StepState (where
the training loop is) and Instruments (what is in place in PyTorch).
"""

from __future__ import annotations

import atexit
import os
import pathlib
import threading
from os import getpid
from typing import Any, Mapping, Optional, Sequence, Union

import torch

from rankprobe._frontend import config as _config
from rankprobe._frontend.msprobe_names import Service
from rankprobe._frontend.notices import Notices
from rankprobe._frontend.requests import Requests, read_requests
from rankprobe._frontend.session import CannotRecordError, RankSession
from rankprobe._frontend.saving import check_saved, save_variable
from rankprobe._frontend.steps import StepState, check_first
from rankprobe._frontend.switch import Switch
from rankprobe._say import say
from rankprobe.pytorch import _walk
from rankprobe.pytorch._bindings import make_capture
from rankprobe.pytorch._compiled import compiles
from rankprobe.pytorch._errors import CollectorMissingError, InterfaceUsageError, InvalidParameterError, RankprobeError
from rankprobe.pytorch._instruments import Instruments, Model
from rankprobe.pytorch._monitor import Monitor
from rankprobe.pytorch._namespaces import Namespaces, namespaces_of
from rankprobe.pytorch._process import FRAMEWORK, InstanceOfProcess, check_torch_compile, report_fault, warn
from rankprobe.pytorch._run_card import RunCard
from rankprobe.pytorch._wrap_ops import WrapOps, wanted

_PACKAGE = str(pathlib.Path(__file__).resolve().parent.parent)


class PrecisionDebugger:
    """Records what the tensors of a training process did.

    config_path: config.json; None: statistics of level L1.
    task, dump_path, level, step: beat the file, also when it changes later.
    auto_export: with a collector elsewhere, fetch the tree of each step into
    dump_path when it has ended (else `rankprobe export` does it on demand).
    on_collector_missing: when no collector answers: "fail" raises here, "spool"
    keeps what is recorded in RANKPROBE_SPOOL, "ignore" records nothing; None:
    RANKPROBE_ON_COLLECTOR_MISSING, else "ignore".

    A process has one instance: constructing another one returns the first
    unchanged. Under `rankprobe run` that is the one of the command, and start,
    stop and step of the program have no effect. Methods can be called on the
    class. Where records go:
    RANKPROBE_COLLECTOR (host:port), else a private collector whose trees appear
    in dump_path at the end of each step.

    Raises InvalidParameterError (a ValueError) naming every fault of the config.
    """

    _instance: Optional["PrecisionDebugger"] = None
    _lock = threading.RLock()
    # The instance of this process, None before construction; read-only.
    instance = InstanceOfProcess()

    def __new__(cls, *args: Any, **kwargs: Any) -> "PrecisionDebugger":
        with cls._lock:
            if cls._instance is not None:
                return cls._instance
            return super().__new__(cls)

    def __init__(self, config_path: Optional[str] = None, task: Optional[str] = None,
                 dump_path: Optional[str] = None, level: Optional[str] = None,
                 step: Optional[Sequence[Union[int, str]]] = None, auto_export: Optional[bool] = None,
                 on_collector_missing: Optional[str] = None) -> None:
        with self._lock:
            if PrecisionDebugger._instance is not None:
                PrecisionDebugger._instance._tell_of_attached()
                return
            _config.check_arguments(config_path, task, dump_path, level, step, auto_export, on_collector_missing)
            try:
                self._switch = Switch(_config.ConfigFile(config_path, {
                    "task": task, "dump_path": dump_path, "level": level, "step": step, "auto_export": auto_export}), FRAMEWORK.name)
                functions = wanted()
            except InvalidParameterError:
                raise
            except ValueError as error:
                raise InvalidParameterError(str(error)) from None
            for note in self._switch.notes:
                warn(note)
            self._pid = getpid()
            self._closed = self._inert = self._started = False
            # Set by `rankprobe run`, which begins and ends the steps in place of the program.
            self._attached = self._told_of_attached = False
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
            self._instruments = Instruments(self._capture, self._on_root_begin, self._on_root_end)
            self._namespaces = Namespaces(self._instruments.apis)
            self._wrap_ops = WrapOps(self._instruments.apis, functions)
            self._run_card = RunCard(self._capture, self._instruments.on_first_module)
            self._monitor = Monitor(self._capture)
            PrecisionDebugger._instance = self
            if self._switch.enabled and not compiles():
                self._instruments.apply(self._switch.plan)
            atexit.register(self.close)

    # --- the public interface

    @property
    def config(self) -> _config.ConfigView:
        """What is in force: level, task, dump_path, dump_enable and so on, read-only."""
        return self._switch.view

    @property
    def service(self) -> Service:
        """For drivers that reach into msprobe's debugger."""
        return Service(self)

    @classmethod
    def start(cls, model: Optional[Model] = None, token_range: Optional[Sequence[int]] = None,
              rank_id: Optional[int] = None, scheduled_tokens: Optional[Mapping[str, int]] = None,
              first_positions: Optional[Mapping[str, int]] = None) -> None:
        """Recording on, for the current step.

        model: needed for L0, mix and token_range: a Module or a list or tuple
        of them; what is below them is recorded, not they themselves.
        token_range: [a, b], both inclusive: only these forwards of the (first)
        model since start. rank_id: the rank to file under, >= 0.
        scheduled_tokens: of a server's step, how many tokens of each request it
        computes, in the order of their rows in dim 0. The records say so; with a
        request_id in the plan only steps with that request are recorded, and of
        tensors with as many rows as there are tokens only its rows. A bad one is
        warned about and ignored. first_positions: where in its request the first
        of these tokens is, for the record.

        Raises InterfaceUsageError before construction, InvalidParameterError
        for a bad argument.
        """
        cls._do("start", model, token_range, rank_id, scheduled_tokens, first_positions)

    @classmethod
    def stop(cls) -> None:
        """Recording off. What was recorded is safe with the collector after it.

        Gradients of recorded forwards are still taken until step()."""
        cls._do("stop")

    @classmethod
    def step(cls) -> None:
        """The step is over: its tree is complete; the step counter is one more."""
        cls._do("step")

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
        has tensors that require gradients, these as {name}_grad.{N}.debug.

        variable: Tensor, int, float, str, or a list, tuple or dict (str keys)
        of them. Invalid arguments are warned about and skipped.
        """
        cls._get("save")._save(variable, name, save_backward)

    @classmethod
    def report_loss(cls, loss: Union[float, torch.Tensor]) -> None:
        """The loss of this step, for trigger rules on it.

        loss: a number, or a tensor of one element, which is read (and its
        device waited for) only while rules are set.
        """
        self = cls._get("report_loss")
        if self._inert:
            return
        capture = self._capture
        if not isinstance(loss, (int, float)) and not (isinstance(loss, torch.Tensor) and loss.numel() == 1):
            warn(f"report_loss: a number or a tensor of one element, not {loss!r}; skipped")
        elif capture.wants_loss:
            capture.report_loss(float(loss.detach() if isinstance(loss, torch.Tensor) else loss))

    @classmethod
    def report_replica(cls, replica: Union[Model, Sequence[torch.Tensor]]) -> None:
        """What every rank should hold alike in this step, for trigger rules `replica`.

        replica: a module or several (their parameters), or tensors, in the same
        order on every rank. Read only while such a rule is set.
        """
        self = cls._get("report_replica")
        if self._inert:
            return
        capture = self._capture
        if capture.wants_replica:
            parts = [replica] if isinstance(replica, (torch.nn.Module, torch.Tensor)) else list(replica)
            capture.report_replica([t for part in parts for t in (
                _walk.parameters(part) if isinstance(part, torch.nn.Module) else [part])])

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: Optional[str] = None) -> None:
        """Records `module.api` as {api_prefix}.{api}; prefix None: module name."""
        self = cls._get("register_custom_api")
        if self._inert:
            return
        try:
            self._instruments.apis.register_custom(module, api, api_prefix)
        except ValueError as error:
            raise InvalidParameterError(str(error)) from None

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Undoes register_custom_api; not registered: a no-op."""
        self = cls._get("restore_custom_api")
        if not self._inert:
            self._instruments.apis.restore_custom(module, api)

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
        self._instruments.end_recording()
        # What is attached begins a step where the last one ends, also behind the last one.
        is_empty = self._session.native.forget_empty_step()
        begun = self._steps.current + (self._steps.has_records and not is_empty)
        if not is_empty:
            self._run_card.end_recording()
            self._monitor.end_recording()
            if self._steps.any_dirty:
                self._session.stop()
                self._export(self._steps.current)
        self._monitor.end_step()
        if self._switch.asks:
            self._notices.ended(self._switch.asked, begun, self._started)
        self._session.finish_exports()
        self._closed = True
        self._namespaces.remove()
        self._wrap_ops.remove()
        self._instruments.remove()
        self._session.close()
        self._forget()

    # --- how the parts go together in a step

    @classmethod
    def _get(cls, what: str) -> "PrecisionDebugger":
        instance = PrecisionDebugger._instance
        if instance is None:
            raise InterfaceUsageError(f"PrecisionDebugger instance is not created: construct it before {what}()")
        return instance

    @classmethod
    def _do(cls, what: str, *args: Any) -> None:
        """What the program's loop calls: a fault of ours is reported, and the training goes on."""
        self = cls._get(what)
        if self._attached:
            return
        try:
            getattr(self, f"_{what}")(*args)
        except RankprobeError:
            raise
        except Exception as error:  # noqa: BLE001 - the training must not notice
            report_fault(self._capture, f"{what}()", error)

    def _tell_of_attached(self) -> None:
        """Reports once that the program's own debugger has no effect under `rankprobe run`."""
        if self._attached and not self._told_of_attached and os.environ.get("RANK", "0") == "0":
            self._told_of_attached = True
            say("rankprobe: `rankprobe run` records this process, and the program's own PrecisionDebugger has no effect; for that "
                "one start the program with `rankprobe run --as-msprobe`, or without `rankprobe run`")

    def _forget(self) -> None:
        with PrecisionDebugger._lock:
            if PrecisionDebugger._instance is self:
                PrecisionDebugger._instance = None

    def _over(self) -> bool:
        """Closed, cut off, or a forked child's copy: nothing is done any more."""
        if not self._closed and getpid() == self._pid and self._session.cut_off:
            self._abandon()
        return self._closed or getpid() != self._pid

    def _abandon(self) -> None:
        self._closed = self._inert = True
        self._instruments.end_recording()
        self._monitor.end_step()
        self._namespaces.remove()
        self._wrap_ops.remove()
        self._instruments.remove()
        self._session.abandon()

    def _start(self, model: Optional[Model], token_range: Optional[Sequence[int]], rank_id: Optional[int],
               scheduled_tokens: Any = None, first_positions: Any = None) -> None:
        check_torch_compile()
        self._follow_file()
        _config.check_start(FRAMEWORK, model, token_range, rank_id, self._switch.checked_plan)
        if self._over():
            return
        # Also what is off here may be switched on by the collector.
        requests = self._requests(scheduled_tokens, first_positions)
        self._started = True
        rank = self._session.start(rank_id, requests)
        self._take_plan(model is not None)
        if not self._switch.enabled:
            return
        if self._finished():
            return self._instruments.set_aside()
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
        if plan["records_apis"]:
            self._namespaces.use(namespaces_of(plan))
            self._namespaces.refresh()
            self._wrap_ops.refresh()
        self._steps.begin(token_range)
        self._run_card.begin_step(self._steps.current, model)
        self._monitor.begin_step(plan, model)
        self._capture.enabled = token_range is None
        self._instruments.begin_step(plan)

    def _requests(self, scheduled_tokens: Any, first_positions: Any) -> Optional[Requests]:
        try:
            return read_requests(scheduled_tokens, first_positions)
        except ValueError as error:
            self._notices.bad_requests(self._switch.asked, str(error))
            return None

    def _stop(self) -> None:
        if self._over():
            return
        self._instruments.end_recording()
        self._run_card.end_recording()
        if self._steps.running:
            self._notices.stopped(self._switch.asked, self._capture, self._steps.current)
        self._steps.running = False
        self._session.stop()
        self._session.commit()

    def _step(self) -> None:
        if self._over():
            return
        self._instruments.end_step()
        if self._steps.running:
            self._run_card.end_recording()
            self._session.stop()
            self._session.commit()
            self._steps.running = False
        self._run_card.end_step()
        self._monitor.end_recording()
        self._monitor.end_step()
        self._capture.enabled = True
        self._session.native.step()
        self._export(self._steps.end())
        # Who only saves (level debug) does not call start().
        self._follow_file()
        self._finished()

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step has ended, and ours ends with it: told within the optimizer's `step`, before its hooks
        and what is around it run, which the monitor has in place itself."""
        if not self._over():
            self._monitor.after_optimizer(optimizer)

    def _save(self, variable: Any, name: str, save_backward: bool) -> None:
        if self._over() or not self._switch.plan["records_saved"]:
            return
        fault = check_saved(variable, name, save_backward, torch.Tensor)
        if fault is not None:
            warn(f"save(): {fault}; skipped")
            return
        if self._finished():
            return
        if save_variable(self._capture, variable, name, save_backward, torch.Tensor, lambda tensor: tensor.requires_grad):
            self._steps.mark_dirty()

    def _follow_file(self) -> None:
        if not self._over():
            self._switch.follow_file(self._session)

    def _take_plan(self, has_model: bool) -> None:
        """The plan in force since session.start(): its stand-ins and hooks, or none."""
        changed = self._switch.take(self._session)
        if not self._switch.enabled:
            if self._steps.running:
                self._instruments.end_recording()
                self._run_card.end_recording()
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
            warn(f"dump_path cannot change in a running job: trees go on to {path}")
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
        if self._steps.running:  # what follows the last wanted forward, the choice of its token, belongs to it
            self._steps.token_done()
