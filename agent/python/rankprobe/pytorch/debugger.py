"""PrecisionDebugger: msprobe's interface on rankprobe's recorder."""

from __future__ import annotations

import atexit
import os
import pathlib
import sys
import threading
from typing import Any, Callable, Optional, Sequence, Union

import torch

from rankprobe import _native
from rankprobe.embedded import EmbeddedCollector
from rankprobe.pytorch import _config
from rankprobe.pytorch._apis import Apis, optimizer_scopes
from rankprobe.pytorch._bindings import make_capture
from rankprobe.pytorch._errors import InterfaceUsageError, InvalidParameterError
from rankprobe.pytorch._exports import Exports, tell_place
from rankprobe.pytorch._module_dump import ModuleDump
from rankprobe.pytorch._modules import ModuleHooks
from rankprobe.pytorch._notices import Notices
from rankprobe.pytorch._process import InstanceOfProcess, check_torch_compile, environment_rank, run_name, warn
from rankprobe.pytorch._recompute import Recomputations
from rankprobe.pytorch._saving import check_saved, save_variable

_PACKAGE = str(pathlib.Path(__file__).resolve().parent.parent)
Model = Union[torch.nn.Module, Sequence[torch.nn.Module]]


class PrecisionDebugger:
    """Records what the tensors of a training process did.

    config_path: config.json; None: statistics of level L1.
    task, dump_path, level, step: beat the file, also when it changes later.
    auto_export: with a collector elsewhere, fetch the tree of each step into
    dump_path when it has ended (else `rankprobe export` does it on demand).

    The first instance of a process counts; another construction returns to it
    without a change. Its methods can be called on the class. Where records go:
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
                 step: Optional[Sequence[Union[int, str]]] = None, auto_export: Optional[bool] = None) -> None:
        with self._lock:
            if PrecisionDebugger._instance is not None:
                return
            _config.check_arguments(config_path, task, dump_path, level, step, auto_export)
            self._file = _config.ConfigFile(config_path, {
                "task": task, "dump_path": dump_path, "level": level, "step": step, "auto_export": auto_export})
            self._plan, notes = _config.parse(self._file.text, config_path)
            for note in notes:
                warn(note)
            self._dump_path = self._plan["dump_path"]
            self._pid = os.getpid()
            self._closed = False
            self._init_step = 0
            self._loop = 0
            self._running = False
            self._banner_shown = False
            self._token_range: Optional[tuple[int, int]] = None
            self._tokens = 0
            self._rank_sent: Optional[int] = None
            # What the records are filed under.
            self._filed_rank: Optional[int] = None
            # Stand-ins and hooks are those of self._plan, the plan in force.
            self._applied = False
            self._enabled = self._plan.get("dump_enable", True)
            # The file is a switch.
            self._dynamic = config_path is not None and "dump_enable" in self._plan
            # The plan is still the one that the constructor was given.
            self._own_plan = True
            self._embedded: Optional[EmbeddedCollector] = None
            self._dirty_steps: set[int] = set()
            self._place_told = False
            self._exports: Optional[Exports] = None
            self._scopes: list[Callable[[], None]] = []
            self._notices = Notices()
            self._open_session()
            self._capture = make_capture(self._session, _PACKAGE)
            self._apis = Apis(self._capture)
            self._modules = ModuleHooks(self._capture, warn)
            self._module_dump = ModuleDump(self._capture, self._modules)
            self._modules.on_root_begin = self._on_root_begin
            self._modules.on_root_end = self._on_root_end
            self._recomputations = Recomputations(lambda: self._capture.active)
            PrecisionDebugger._instance = self
            if self._enabled:
                self._apply_plan(self._plan)
            atexit.register(self._at_exit)

    # --- the public interface

    @property
    def config(self) -> _config.ConfigView:
        """What is in force: level, task, dump_path, dump_enable and so on, read-only."""
        return _config.ConfigView(self._plan, self._enabled)

    @classmethod
    def start(cls, model: Optional[Model] = None, token_range: Optional[Sequence[int]] = None,
              rank_id: Optional[int] = None) -> None:
        """Recording on, for the current step.

        model: needed for L0, mix and token_range: a Module or a list or tuple
        of them; what is below them is recorded, not they themselves.
        token_range: [a, b], both inclusive: only these forwards of the (first)
        model since start. rank_id: the rank to file under, >= 0.

        Raises InterfaceUsageError before construction, InvalidParameterError
        for a bad argument.
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
        """The number of the first step, >= 0. Before the loop."""
        self = cls._get("set_init_step")
        if not _config.is_int(step) or step < 0:
            raise InvalidParameterError(f"init step must be an int >= 0, not {step!r}")
        self._session.set_init_step(step)
        self._init_step, self._loop = step, 0

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
        capture = cls._get("report_loss")._capture
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
        capture = cls._get("report_replica")._capture
        if capture.wants_replica:
            parts = [replica] if isinstance(replica, (torch.nn.Module, torch.Tensor)) else list(replica)
            capture.report_replica([t for part in parts for t in (
                part.parameters() if isinstance(part, torch.nn.Module) else [part])])

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: Optional[str] = None) -> None:
        """Records `module.api` as {api_prefix}.{api}; prefix None: module name."""
        self = cls._get("register_custom_api")
        try:
            self._apis.register_custom(module, api, api_prefix)
        except ValueError as error:
            raise InvalidParameterError(str(error)) from None

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Undoes register_custom_api; not registered: a no-op."""
        cls._get("restore_custom_api")._apis.restore_custom(module, api)

    # --- the step state machine

    @classmethod
    def _get(cls, what: str) -> "PrecisionDebugger":
        instance = PrecisionDebugger._instance
        if instance is None:
            raise InterfaceUsageError(f"PrecisionDebugger instance is not created: construct it before {what}()")
        return instance

    def _forked(self) -> bool:
        return os.getpid() != self._pid

    def _start(self, model: Optional[Model], token_range: Optional[Sequence[int]], rank_id: Optional[int]) -> None:
        check_torch_compile()
        self._follow_file()
        # A config that comes later raises nothing in a training loop.
        level = self._plan["level"] if self._enabled and self._own_plan else ""
        _config.check_start(model, token_range, rank_id, level)
        if self._forked() or self._closed:
            return
        rank = rank_id if rank_id is not None else self._known_rank()
        # Tells the collector step and rank, and takes the plan it has for them:
        # also what is off here may be switched on from there.
        if self._filed_rank is None:
            self._filed_rank = rank
        self._session.start(rank)
        self._take_plan(model is not None)
        if not self._enabled or self._finished():
            return
        plan = self._plan
        recording = self._session.recording
        if not recording:
            self._notices.started(plan, rank)
        if plan["level"] == "debug" or not recording:
            return
        if model is not None and (plan["level"] in ("L0", "mix") or token_range is not None):
            if plan["level"] in ("L0", "mix"):
                self._modules.hook_model(model)
            if token_range is not None:
                self._modules.hook_roots(model)
        if model is not None:
            self._recomputations.watch(list(model) if isinstance(model, (list, tuple)) else [model])
        if not self._running:
            self._tokens = 0
        self._running = True
        self._dirty_steps.add(self._current_step())
        self._modules.begin_step()
        self._token_range = None if token_range is None else (token_range[0], token_range[1])
        self._capture.enabled = self._token_range is None
        if plan["level"] in ("L1", "mix"):
            self._apis.enter_mode()

    def _stop(self) -> None:
        if self._forked() or self._closed:
            return
        self._apis.leave_mode()
        if self._running:
            self._notices.stopped(self._plan, self._capture, self._current_step())
        self._running = False
        self._session.stop()
        if self._exports is not None:
            self._exports.commit()

    def _step(self) -> None:
        if self._forked() or self._closed:
            return
        self._apis.leave_mode()
        self._module_dump.end_step()
        if self._running:
            self._session.stop()
            if self._exports is not None:
                self._exports.commit()
            self._running = False
        self._tokens = 0
        self._capture.enabled = True
        step = self._current_step()
        self._session.step()
        self._loop += 1
        self._export(step)
        # Who only saves (level debug) does not call start().
        self._follow_file()
        self._finished()

    def _current_step(self) -> int:
        return self._init_step + self._loop

    def _finished(self) -> bool:
        """Past the last wanted step: says so once, then nothing is done."""
        last = self._plan.get("last_step")
        if last is None or self._current_step() <= last:
            return False
        if not self._banner_shown:
            self._banner_shown = True
            print("\n".join(["*" * 48, "*" + "rankprobe ends successfully.".center(46) + "*", "*" * 48]), flush=True)
        return True

    def _known_rank(self) -> Optional[int]:
        dist = torch.distributed
        if dist.is_available() and dist.is_initialized():
            rank = dist.get_rank()
            if self._rank_sent != rank:
                self._rank_sent = rank
                self._session.set_rank(rank, dist.get_world_size())
            return rank
        return None

    def _on_root_begin(self) -> None:
        if not self._running:
            return
        self._capture.reset_modules()
        if self._token_range is not None:
            self._capture.enabled = self._token_range[0] <= self._tokens <= self._token_range[1]

    def _on_root_end(self) -> None:
        if self._running:  # what follows the last wanted forward, the choice of its token, belongs to it
            self._tokens += 1

    # --- what the plan needs of PyTorch

    def _take_plan(self, has_model: bool) -> None:
        """The plan in force since session.start(): its stand-ins and hooks, or none."""
        self._enabled = self._session.enabled
        if not self._enabled:
            self._take_off()
            return
        plan = self._session.plan()
        if plan is not self._plan and plan != self._plan:
            self._applied = self._own_plan = self._banner_shown = False
        self._plan = plan
        if self._applied:
            return
        self._apply_plan(plan)
        if self._exports is not None and plan["dump_path"] != self._dump_path:
            warn(f"dump_path cannot change in a running job: trees go on to {self._dump_path}")
        if plan["level"] in ("L0", "mix") and not has_model:
            warn(f"start() has no model: no modules are recorded at level {plan['level']}")

    def _take_off(self) -> None:
        if self._running:
            self._apis.leave_mode()
            self._session.stop()
            self._running = False
        if self._applied:
            self._applied = False
            self._apis.remove()
            self._recomputations.remove()

    def _apply_plan(self, plan: dict) -> None:
        """Patches and hooks that this level needs, and no others."""
        self._applied = True
        # construct.json names backward calls even where their data is not wanted.
        self._modules.backward = plan["backward"] or plan["extra_info"]
        self._modules.parameters_grad = plan["parameters_grad"]
        if plan["level"] != "debug":
            self._recomputations.install()
        if plan["level"] in ("L1", "mix"):
            self._apis.install()
        else:
            self._apis.leave_mode()
            self._apis.remove()
        for undo in self._scopes:
            undo()
        self._scopes.clear()
        if plan["level"] == "mix":
            self._scopes = list(optimizer_scopes(self._capture))

    # --- save

    def _save(self, variable: Any, name: str, save_backward: bool) -> None:
        if self._forked() or self._closed or self._plan["level"] != "debug":
            return
        fault = check_saved(variable, name, save_backward)
        if fault is not None:
            warn(f"save(): {fault}; skipped")
            return
        if self._finished():
            return
        if save_variable(self._capture, variable, name, save_backward):
            self._dirty_steps.add(self._current_step())

    # --- the collector

    def _open_session(self) -> None:
        address = os.environ.get("RANKPROBE_COLLECTOR", "")
        run = run_name()
        if not address:
            self._embedded = EmbeddedCollector(self._plan["dump_path"], run)
            address, run = self._embedded.address, self._embedded.run
        rank = self._filed_rank = environment_rank()
        self._session = _native.Session(address, run=run, rank=rank, config_json=self._file.text,
                                        framework=f"pytorch {torch.__version__}",
                                        config_path=os.path.abspath(self._file.path) if self._file.path else "")
        if self._embedded is not None:
            self._embedded.connect(self._session)
        self._run = run
        if self._embedded is not None or self._plan["auto_export"]:
            self._exports = Exports(self._session, run, self._plan["dump_path"], self._embedded,
                                    lambda: self._filed_rank, warn)

    def _export(self, step: int) -> None:
        """Has the tree of `step` written, beside the training of the next one."""
        if step not in self._dirty_steps:
            return
        self._dirty_steps.discard(step)
        self._tell_place()
        if self._exports is not None:
            self._exports.begin(step)

    def _tell_place(self) -> None:
        if not self._place_told:
            self._place_told = True
            tell_place(self._run, self._plan["dump_path"], self._exports, self._filed_rank)

    @classmethod
    def wait_exported(cls) -> None:
        """Waits until the tree of the last step() lies in dump_path."""
        exports = cls._get("wait_exported")._exports
        if exports is not None:
            exports.wait()

    # --- dump_enable: the config file as a switch

    def _follow_file(self) -> None:
        """An edit of the config file: with a private collector in force with the
        next session.start(), else the collector makes a plan of the run of it."""
        if not self._dynamic or self._forked() or self._closed:
            return
        try:
            self._take_edit(self._file.edited())
        except Exception as error:  # noqa: BLE001 - the training goes on
            warn(f"the edit of {self._file.path} was not taken: {error!r}")

    def _take_edit(self, edit: Optional[_config.Edit]) -> None:
        if edit is None:
            return
        path, fault = os.path.abspath(str(self._file.path)), edit.fault
        if not fault:
            try:
                for note in _config.parse(edit.text)[1]:
                    warn(note)
            except InvalidParameterError as error:
                fault = str(error)
        fault, _ = self._session.edit_config(path, edit.text, fault, self._embedded is not None)
        if fault:
            print(_native.fault_line(path, fault), end="", file=sys.stderr, flush=True)

    # --- the end

    def _at_exit(self) -> None:
        if self._forked() or self._closed:
            return
        self.close()

    def close(self) -> None:
        """Sends what is left and ends the session; also done at exit."""
        if self._closed or self._forked():
            return
        self._apis.leave_mode()
        if self._dirty_steps:
            self._session.stop()
            step = self._current_step()
            self._export(step)
        if self._exports is not None:
            self._exports.close()
        self._closed = True
        self._apis.remove()
        self._modules.remove()
        self._recomputations.remove()
        for undo in self._scopes:
            undo()
        self._session.close()
        if self._embedded is not None:
            self._embedded.leave()
        with PrecisionDebugger._lock:
            if PrecisionDebugger._instance is self:
                PrecisionDebugger._instance = None


def module_dump(module: torch.nn.Module, dump_name: str) -> None:
    """Until module_dump_end(): only `module` is recorded, as
    Module.{dump_name}.{Class}; its children and all APIs are silent.

    It ends with the step at the latest. Raises InvalidParameterError for
    another type, InterfaceUsageError before PrecisionDebugger exists. A module hooked by start(model) is left as it is.
    """
    PrecisionDebugger._get("module_dump")._module_dump.begin(module, dump_name)


def module_dump_end() -> None:
    """Ends module_dump."""
    PrecisionDebugger._get("module_dump_end")._module_dump.end()


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """PrecisionDebugger.save."""
    PrecisionDebugger.save(variable, name, save_backward)
