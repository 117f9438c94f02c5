# SPDX-License-Identifier: Apache-2.0
"""TrainerMonitorV2: msprobe's second training monitor (`monitors` in its config) on task monitor.

    monitor = TrainerMonitorV2("config.json")
    monitor.start(model=model, optimizer=optimizer)  # then train; a step ends with optimizer.step()
    monitor.stop()

The values go to the collector, for `rankprobe query` and export; stop() of a job
with a private collector writes msprobe's csv files below `output_dir`.
"""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import re
import tempfile
from typing import Any, Optional

import torch

from rankprobe import _monitor_v2_csv, monitor_csv
from rankprobe._frontend.files import read_object
from rankprobe.pytorch._errors import InterfaceUsageError, InvalidParameterError
from rankprobe.pytorch._process import environment_rank, warn
from rankprobe.pytorch._step_ends import StepEnds
from rankprobe.pytorch.debugger import PrecisionDebugger

_KINDS = {"module": ("activations", "activation_gradients"), "weight_grad": ("weight_gradients",), "optimizer": (),
          "param": ("parameters",), "cc": ("communication",)}
_FIELDS = {"framework": str, "output_dir": str, "rank": (int, list), "start_step": int, "stop_step": int, "step_interval": int,
           "step_count_per_record": int, "collect_times": int, "format": str, "patch_optimizer_step": bool, "monitors": dict,
           "async_write": bool}
_OF_KIND: dict[str, dict[str, Any]] = {"module": {"targets": list}, "weight_grad": {"monitor_mbs_grad": bool, "grad_acc_steps": int, "micro_batch_number": int},
            "optimizer": {"mv_distribution": bool}, "param": {"param_distribution": bool},
            "cc": {"cc_codeline": list, "cc_log_only": bool, "cc_pre_hook": bool, "module_ranks": list, "cc_distribution": dict}}
_OF_ALL: dict[str, Any] = {"enabled": bool, "ops": (list, str), "eps": (int, float)}
# Accepted fields without effect, with the replacement that a warning names.
_WITHOUT_EFFECT = {"async_write": "files are written by stop(), the training waits for none",
                   "mg_direction": "compare the sign of gradients and exp_avg in dumps of task tensor",
                   "ur_distribution": "task monitor has update and ratio (`\"values\": [\"optimizer\"]`)"}
_LAST_STEP = 1_000_000


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)


def _faults_of(given: dict[str, Any], kinds: dict[str, Any], before: str = "") -> list[str]:
    return [f"{before}{name}: {given[name]!r} is not of type {' or '.join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))}"
            for name, kind in kinds.items() if name in given and not _is(given[name], kind)]


def _read_monitor(name: str, given: dict[str, Any], faults: list[str], unknown: list[str]) -> dict[str, Any]:
    """Reads one of `monitors` and adds defaults. Appends errors to `faults`, and unknown fields to `unknown`."""
    kind, at = name.lower(), f"monitors.{name}."
    told = {**given, **(given["cc_distribution"] if kind == "cc" and isinstance(given.get("cc_distribution"), dict) else {})}
    legal = {**_OF_ALL, **_OF_KIND[kind]}
    wrong = _faults_of(told, legal, at)
    unknown += [at + field for field in told if field not in legal]
    ops = told.get("ops")
    ops = [ops] if isinstance(ops, str) else ops
    if isinstance(ops, list):
        wrong += [f"{at}ops: {op!r} (legal: {', '.join(_monitor_v2_csv.OPS)})" for op in ops if op not in _monitor_v2_csv.OPS]
    for field in ("grad_acc_steps", "micro_batch_number"):
        if not wrong and field in told and told[field] < 1:
            wrong.append(f"{at}{field}: {told[field]} (legal: 1 or more)")
    if not wrong:
        wrong += [f"{at}targets: {part!r} is not a str" for part in told.get("targets", []) if not isinstance(part, str)]
        wrong += [f"{at}module_ranks: {rank!r} is not a rank" for rank in told.get("module_ranks", []) if not _is(rank, int) or rank < 0]
        for line in told.get("cc_codeline", []):
            try:
                re.compile(line)
            except (re.error, TypeError) as error:
                wrong.append(f"{at}cc_codeline: {line!r} is not a regular expression: {error}")
    faults += wrong
    if wrong:
        return {}
    return {"kind": kind, "ops": list(dict.fromkeys(ops or _monitor_v2_csv.OPS)), "targets": told.get("targets", []),
            "monitor_mbs_grad": told.get("monitor_mbs_grad", False),
            "grad_acc_steps": told.get("micro_batch_number", told.get("grad_acc_steps", 0)),
            "cc_pre_hook": told.get("cc_pre_hook", False), "cc_log_only": told.get("cc_log_only", False),
            "cc_codeline": told.get("cc_codeline", []), "module_ranks": told.get("module_ranks", []),
            "on": told.get({"optimizer": "mv_distribution", "param": "param_distribution"}.get(kind, ""), True)}


def read_config(path: str, fr: Optional[str] = None) -> dict[str, Any]:
    """Reads and checks msprobe's config of `monitors`, and adds defaults. Warns about fields without effect. Raises
    InvalidParameterError with every fault."""
    try:
        given = read_object(path)
    except (OSError, ValueError) as error:
        raise InvalidParameterError(f"config_path {path}: {error}") from error
    faults = _faults_of(given, _FIELDS)
    unknown = [name for name in given if name not in _FIELDS]
    monitors: dict[str, dict[str, Any]] = {}
    if not faults:
        framework = (fr or given.get("framework", "pytorch")).strip().lower()
        if framework not in ("pytorch", "pt", "torch"):
            faults.append(f"framework: {framework!r} (legal here: pytorch; of MindSpore task monitor watches a training)")
        faults += [f"{name}: {given[name]} (legal: {low} to {high})" for name, low, high in (
            ("start_step", 0, _LAST_STEP), ("stop_step", given.get("start_step", 0), _LAST_STEP), ("step_interval", 1, _LAST_STEP),
            ("step_count_per_record", 1, _LAST_STEP), ("collect_times", 1, 10**9)) if name in given and not low <= given[name] <= high]
        ranks = given.get("rank", [])
        ranks = ranks if isinstance(ranks, list) else [ranks]
        faults += [f"rank: {rank!r} is not a rank" for rank in ranks if not _is(rank, int) or rank < 0]
        if given.get("format", "csv").strip().lower() != "csv":
            faults.append(f"format: {given['format']!r} (legal: csv)")
        for name, of in given.get("monitors", {}).items():
            if not isinstance(of, dict):
                faults.append(f"monitors.{name}: {of!r} is not an object")
            elif name.lower() not in _KINDS:
                unknown.append(f"monitors.{name}")
            elif of.get("enabled", name == "module"):
                monitors[name] = _read_monitor(name, of, faults, unknown)
        if not faults and not any(told["on"] for told in monitors.values()):
            faults.append(f"monitors: none of {', '.join(_KINDS)} is enabled")
    if faults:
        raise InvalidParameterError(f"config_path {path}: " + "\n".join(faults))
    if given.get("async_write"):
        unknown.append("async_write")
    for name in unknown:
        instead = _WITHOUT_EFFECT.get(name.rpartition(".")[2], "msprobe's TrainerMonitorV2 has no such field")
        warn(f"TrainerMonitorV2: {name} has no effect here; {instead}")
    start, every = given.get("start_step", 0), given.get("step_interval", 1)
    last = min(given.get("stop_step", _LAST_STEP + 1) - 1, start + (given.get("collect_times", 10**9) - 1) * every, _LAST_STEP)
    return {"output_dir": given.get("output_dir", "./"), "rank": ranks, "start": start, "every": every, "last": last,
            "steps_per_file": given.get("step_count_per_record", 1), "patch": given.get("patch_optimizer_step"),
            "monitors": {name: told for name, told in monitors.items() if told["on"]}}


def plan_of(config: dict[str, Any], dump_path: str, rank: Optional[int]) -> dict[str, Any]:
    """Returns the config.json of task monitor for a config of read_config(). rank: None if the process has none, which msprobe treats
    as 0."""
    monitors = config["monitors"].values()
    values = [word for told in monitors for word in _KINDS[told["kind"]]]
    # Values must not be empty, even if only the optimizer's state is recorded, which _record_states() does.
    monitor: dict[str, Any] = {"every": config["every"], "values": list(dict.fromkeys(values)) or ["training"]}
    if any("nans" in told["ops"] for told in monitors):
        monitor["extra_statistics"] = ["counts"]
    stacks = any(told["kind"] == "cc" and (told["cc_codeline"] or told["cc_log_only"]) for told in monitors)
    start, last = config["start"], config["last"]
    wanted = not config["rank"] or (rank or 0) in config["rank"]
    return {"task": "monitor", "dump_path": dump_path, "rank": [] if rank is None else config["rank"],
            "step": [f"{start}-{last}"] if last >= start and (start or last < _LAST_STEP) else [],
            **({"extra_info": True} if stacks else {}), "dump_enable": last >= start and wanted, "monitor": monitor}


class TrainerMonitorV2:
    """msprobe's second training monitor; use one in a process.

    config_path: its config (rank, start_step, stop_step, step_interval, collect_times, step_count_per_record,
    output_dir, patch_optimizer_step, and `monitors`: module, weight_grad, optimizer, param, cc); fields without
    effect here are warned about. fr: "pytorch"; overrides `framework` of the config.

    Raises InvalidParameterError, which names every fault of the config.
    """

    def __init__(self, config_path: str, fr: Optional[str] = None) -> None:
        self._config = read_config(config_path, fr)
        self._kinds = {told["kind"] for told in self._config["monitors"].values()}
        self._root = pathlib.Path(self._config["output_dir"]).absolute()
        self._debugger: Optional[PrecisionDebugger] = None
        self._model: Any = None
        self._optimizer: Any = None
        self._step_ends: Optional[StepEnds] = None
        self._patched = self._told_of_step = self._over = False
        self._names: dict[int, str] = {}
        self._steps = 0

    def start(self, model: Any = None, optimizer: Any = None, **context: Any) -> None:
        """Starts monitoring. Call it after the model is wrapped and the optimizer created.

        model: a module or a list of chunks. optimizer: a step ends with its step(), unless the config has
        `"patch_optimizer_step": false`. context: `grad_acc_steps`, micro batches of a step (default 1); the rest has no effect.

        Raises InvalidParameterError if a required argument is None, InterfaceUsageError if it was called before.
        """
        needs_model, needs_optimizer = self._kinds & {"module", "optimizer", "param"}, self._kinds & {"weight_grad", "optimizer", "param"}
        for name, value, needs in (("model", model, needs_model), ("optimizer", optimizer, needs_optimizer)):
            if value is None and needs:
                raise InvalidParameterError(f"{name} must be given: monitors {', '.join(sorted(needs))}")
        if self._debugger is not None or self._over:
            raise InterfaceUsageError("TrainerMonitorV2: start() was called already")
        micro = context.get("micro_batch_number", context.get("grad_acc_steps", 1))
        for told in self._config["monitors"].values():
            told["grad_acc_steps"] = told["grad_acc_steps"] or max(int(micro), 1)
        self._model, self._optimizer = model, optimizer
        self._names = self._names_of(model)
        self._dump = self._root / ".rankprobe-monitor"
        handle, path = tempfile.mkstemp(prefix="rankprobe-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(plan_of(self._config, str(self._dump), self._rank()), file)
        try:
            self._debugger = PrecisionDebugger(config_path=path)
        finally:
            os.unlink(path)
        if optimizer is not None and self._config["patch"] is not False:
            self._patched = True
        atexit.register(self.stop)
        PrecisionDebugger.start(model=model)
        if self._patched:
            self._step_ends = StepEnds(optimizer, self._end_step)

    def step(self) -> None:
        """Ends the step. Has no effect, except for a warning, if optimizer.step() ends steps."""
        if self._patched:
            if not self._told_of_step:
                self._told_of_step = True
                warn("TrainerMonitorV2: step() has no effect, optimizer.step() ends a step; \"patch_optimizer_step\": false for steps of "
                     "your own")
            return
        self._end_step()

    def stop(self) -> None:
        """Stops recording and writes the csv files. Repeated calls have no effect; it is also called at exit."""
        if self._over or self._debugger is None:
            return
        self._over = True
        if self._step_ends is not None:
            self._step_ends.remove()
        if PrecisionDebugger._instance is self._debugger:
            PrecisionDebugger.stop()
            self._write_csv()

    @staticmethod
    def _rank() -> Optional[int]:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return int(torch.distributed.get_rank())
        return environment_rank()

    @staticmethod
    def _names_of(model: Any) -> dict[int, str]:
        """Returns id of each parameter -> its name, prefixed by the number of the chunk in a list of chunks."""
        chunks = enumerate(model) if isinstance(model, (list, tuple)) else [(None, model)]
        names: dict[int, str] = {}
        for number, chunk in chunks:
            for name, parameter in chunk.named_parameters() if isinstance(chunk, torch.nn.Module) else ():
                names.setdefault(id(parameter), name if number is None else f"{number}.{name}")
        return names

    def _end_step(self) -> None:
        if self._over or self._debugger is None or PrecisionDebugger._instance is not self._debugger:
            return
        # A debugger that cannot record has no capture.
        if "optimizer" in self._kinds and not self._debugger._over():
            self._record_states()
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
        self._steps += 1
        PrecisionDebugger.start(model=self._model)

    def _record_states(self) -> None:
        """Records exp_avg and exp_avg_sq after the optimizer's step, as msprobe's second monitor does."""
        capture = self._debugger._capture  # type: ignore[union-attr]
        for optimizer in getattr(self._optimizer, "chained_optimizers", None) or [self._optimizer]:
            states = getattr(optimizer, "state", {})
            for group in getattr(optimizer, "param_groups", ()):
                for parameter in group["params"]:
                    name, state = self._names.get(id(parameter)), states.get(parameter)
                    values = {key: state[key].detach() for key in ("exp_avg", "exp_avg_sq")
                              if isinstance(state, dict) and isinstance(state.get(key), torch.Tensor)}
                    if name is not None and values:
                        with torch.no_grad():
                            capture.save_monitored(f"State.{name}", values)

    def _write_csv(self) -> None:
        """Writes the csv files from the steps of this process that a private collector has exported; with another collector, none."""
        debugger = self._debugger
        if debugger is None or debugger._over() or debugger._session.embedded is None:
            return
        rank = debugger._session._rank
        debugger.close()
        folder = f"rank{rank}" if rank is not None else f"proc{os.getpid()}"
        out = self._root / f"rank_{rank or 0}"
        monitors = {slug: told for slug, told in self._config["monitors"].items()
                    if not told["module_ranks"] or (rank or 0) in told["module_ranks"]}
        rows = _monitor_v2_csv.Rows(monitors, isinstance(self._model, (list, tuple)), rank or 0)
        for step, place in sorted((int(place.parent.name[4:]), place) for place in self._dump.glob(f"step*/{folder}")):
            if step >= self._steps:
                continue  # A step that did not end, or one of a longer training before this one.
            modules, others, stacks = (monitor_csv.load(place, name) for name in ("dump.json", "debug.json", "stack.json"))
            for slug, told in monitors.items():
                if not told["cc_log_only"]:
                    _monitor_v2_csv.write(out, slug, told["kind"], told["ops"], rows.of(slug, step, modules, others, stacks), step,
                                          self._config["start"], self._config["steps_per_file"])


__all__ = ["TrainerMonitorV2", "plan_of", "read_config"]
