# SPDX-License-Identifier: Apache-2.0
"""TrainerMon: msprobe's training monitor on task monitor.

    monitor = TrainerMon("monitor_config.json", params_have_main_grad=False)
    monitor.set_monitor(model, optimizer, grad_acc_steps=1)

A step ends with optimizer.step(). The values go to the collector, for
`rankprobe query` and export; at the end each rank of a job with a private
collector writes msprobe's csv files (rankprobe.monitor_csv) below
MONITOR_OUTPUT_DIR.
"""

from __future__ import annotations

import atexit
import datetime
import json
import os
import pathlib
import re
import tempfile
import uuid
from typing import Any, Optional

from rankprobe import monitor_csv
from rankprobe._communication_csv import Communication
from rankprobe._frontend.files import read_object
from rankprobe._say import say
from rankprobe.pytorch._errors import InvalidParameterError
from rankprobe.pytorch._process import environment_rank, warn
from rankprobe.pytorch._step_ends import StepEnds
from rankprobe.pytorch.debugger import PrecisionDebugger

_DISTRIBUTIONS = {"xy_distribution": ("activations", "activation_gradients"), "wg_distribution": ("weight_gradients",),
                  "mv_distribution": ("optimizer_state",), "ur_distribution": ("optimizer",), "param_distribution": ("parameters",)}
_FIELDS = {"targets": dict, "module_ranks": list, "ops": list, "start_step": int, "step_interval": int, "collect_times": int,
           "step_count_per_record": int, "ndigits": int, "format": str, "forward_only": bool, "backward_only": bool,
           "cc_distribution": dict, **dict.fromkeys(_DISTRIBUTIONS, bool)}
_COMMUNICATION = {"enable": bool, "cc_pre_hook": bool, "cc_log_only": bool, "cc_codeline": list}
# Accepted fields without effect, with the replacement that a warning names.
_WITHOUT_EFFECT = {
    "mg_direction": "compare the sign of gradients and exp_avg in dumps of task tensor", "alert": "rankprobe triggers set",
    "monitor_mbs_grad": "parameters_grad.{n} of `rankprobe query` has each micro batch", "stack_info": "stack.json of a dump",
    "print_struct": "construct.json of a dump", "recording_l2_features": "nothing yet", "l2_targets": "nothing yet",
    "squash_name": "names are the model's own", "append_output": "a folder of its own for each run", "dynamic_on": "rankprobe enable",
}
_LAST_STEP = 1_000_000


def read_config(path: str) -> dict[str, Any]:
    """Reads and checks msprobe's monitor config. Warns about fields without effect. Raises InvalidParameterError with every fault."""
    try:
        given = read_object(path)
    except (OSError, ValueError) as error:
        raise InvalidParameterError(f"config_file_path {path}: {error}") from error
    faults = [f"{name}: {given[name]!r} is not of type {kind.__name__}" for name, kind in _FIELDS.items()
              if name in given and (not isinstance(given[name], kind) or (kind is int and isinstance(given[name], bool)))]
    if not faults:
        faults += [f"{name}: {given[name]} (legal: {low} to {high})" for name, low, high in (
            ("start_step", 0, _LAST_STEP), ("step_interval", 1, _LAST_STEP), ("step_count_per_record", 1, _LAST_STEP),
            ("collect_times", 0, 10**9), ("ndigits", 1, 20)) if name in given and not low <= given[name] <= high]
        faults += [f"ops: {op!r} (legal: {', '.join(monitor_csv.OPS)})" for op in given.get("ops", [])
                   if op not in (*monitor_csv.OPS, "shape", "dtype", "id")]
        faults += [f"module_ranks: {rank!r} is not a rank" for rank in given.get("module_ranks", [])
                   if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0]
        if given.get("format", "csv") != "csv":
            faults.append(f"format: {given['format']!r} (legal: csv)")
        faults += _communication_faults(given.get("cc_distribution", {}))
        if not any(given.get(name) for name in _DISTRIBUTIONS) and not given.get("cc_distribution", {}).get("enable"):
            faults.append(f"nothing is to be monitored: none of {', '.join(_DISTRIBUTIONS)} is true, nor cc_distribution.enable")
    if faults:
        raise InvalidParameterError(f"config_file_path {path}: " + "\n".join(faults))
    for name, instead in _WITHOUT_EFFECT.items():
        if given.get(name):
            warn(f"TrainerMon: {name} has no effect here; {instead}")
    return given


def _communication_faults(given: dict[str, Any]) -> list[str]:
    faults = [f"cc_distribution.{name}: unknown (legal: {', '.join(_COMMUNICATION)})" for name in given if name not in _COMMUNICATION]
    faults += [f"cc_distribution.{name}: {given[name]!r} is not of type {kind.__name__}" for name, kind in _COMMUNICATION.items()
               if name in given and not isinstance(given[name], kind)]
    for line in given.get("cc_codeline", []) if not faults else []:
        try:
            re.compile(line)
        except (re.error, TypeError) as error:
            faults.append(f"cc_distribution.cc_codeline: {line!r} is not a regular expression: {error}")
    return faults


def plan_of(given: dict[str, Any], dump_path: str) -> dict[str, Any]:
    """Returns the config.json of task monitor for a config of read_config()."""
    values = [word for name, words in _DISTRIBUTIONS.items() if given.get(name) for word in words]
    for only, other in (("forward_only", "activation_gradients"), ("backward_only", "activations")):
        if given.get(only) and other in values:
            values.remove(other)
    calls = given.get("cc_distribution", {})
    if calls.get("enable"):
        values.append("communication")
    every, start = given.get("step_interval", 1), given.get("start_step", 0)
    last = min(_LAST_STEP, start + (given.get("collect_times", 10**9) - 1) * every)
    monitor: dict[str, Any] = {"every": every, "values": list(dict.fromkeys(values))}
    if {"zeros", "nans"} & set(given.get("ops", [])):
        monitor["extra_statistics"] = ["counts"]
    targets = [name.partition(":")[2] if name.partition(":")[0].isdigit() else name for name in given.get("targets", {})]
    if targets and "" not in targets:
        monitor["list"] = targets
    return {"task": "monitor", "dump_path": dump_path, "rank": given.get("module_ranks", []),
            "step": [f"{start}-{last}"] if last >= start and (start or last < _LAST_STEP) else [],
            # Call sites are in stack.json.
            **({"extra_info": True} if calls.get("enable") and (calls.get("cc_codeline") or calls.get("cc_log_only")) else {}),
            "dump_enable": last >= start, "monitor": monitor}


class TrainerMon:
    """msprobe's training monitor; use one in a process.

    config_file_path: msprobe's monitor config (targets, xy_, wg_, mv_, param_distribution,
    cc_distribution, ops, start_step, step_interval, collect_times, module_ranks, ndigits,
    step_count_per_record); fields without effect here are warned about.
    process_group, opt_ty: accepted, without effect. params_have_main_grad: without
    effect; gradients are read from `main_grad` if a parameter has one.

    Raises InvalidParameterError, which names every fault of the config.
    """

    def __init__(self, config_file_path: str, process_group: Any = None, params_have_main_grad: bool = True,
                 opt_ty: Any = None) -> None:
        self._given = read_config(config_file_path)
        self._root = pathlib.Path(os.environ.get("MONITOR_OUTPUT_DIR", "./monitor_output")).absolute()
        self._debugger: Optional[PrecisionDebugger] = None
        self._micro_batches = 1
        self._model: Any = None

    def monitor_gnorm_with_ad(self, model: Any, optimizer: Any = None, grad_acc_steps: int = 1, tp_group: Any = None,
                              dp_group: Any = None, start_iteration: int = 0) -> None:
        """Older name of set_monitor()."""
        self.set_monitor(model, optimizer, grad_acc_steps, tp_group, dp_group, start_iteration)

    def set_monitor(self, model: Any, optimizer: Any, grad_acc_steps: int = 1, tp_group: Any = None, dp_group: Any = None,
                    start_iteration: int = 0) -> None:
        """Starts monitoring. Call it after the model is wrapped and the optimizer created.

        model: a module or a list of chunks. optimizer: a step ends with its step().
        grad_acc_steps: micro batches of a step, >= 1. start_iteration: number of the
        first step, >= 0. tp_group, dp_group: accepted, without effect.

        Raises InvalidParameterError for a bad number. A second call only warns.
        """
        for name, value, low in (("grad_acc_steps", grad_acc_steps, 1), ("start_iteration", start_iteration, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise InvalidParameterError(f"{name} must be an int >= {low}, not {value!r}")
        if self._debugger is not None:
            warn("TrainerMon: set_monitor() was called already; the first call counts")
            return
        self._micro_batches = grad_acc_steps
        name = f"{datetime.datetime.now():%b%d_%H-%M-%S}-rank{environment_rank() or 0}-{uuid.uuid4().hex[:8]}"
        dump = self._root / ".rankprobe-monitor"
        handle, path = tempfile.mkstemp(prefix="rankprobe-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(plan_of(self._given, str(dump)), file)
        try:
            self._debugger = PrecisionDebugger(config_path=path)
        finally:
            os.unlink(path)
        if start_iteration:
            PrecisionDebugger.set_init_step(start_iteration)
        model = model[0] if isinstance(model, (list, tuple)) and len(model) == 1 else model
        self._model = model
        atexit.register(self._write_csv, dump, self._root / name)
        PrecisionDebugger.start(model=model)
        StepEnds(optimizer, self._end_step)

    def _end_step(self) -> None:
        if PrecisionDebugger._instance is self._debugger:
            PrecisionDebugger.stop()
            PrecisionDebugger.step()
            PrecisionDebugger.start(model=self._model)

    def _write_csv(self, dump: pathlib.Path, out: pathlib.Path) -> None:
        """Writes the csv files from the steps of this process that a private collector has exported; with another collector, none."""
        debugger = self._debugger
        if debugger is None or debugger._over() or debugger._session.embedded is None:
            return
        rank = debugger._session._rank
        debugger.close()
        folder = f"rank{rank}" if rank is not None else f"proc{os.getpid()}"
        ops = [op for op in self._given.get("ops", []) if op in monitor_csv.OPS] or ["norm"]
        reader = monitor_csv.Steps(ops, list(self._given.get("targets", {})), self._micro_batches, self._given.get("ndigits", 6))
        told = self._given.get("cc_distribution", {})
        used: dict[str, Any] = {}
        communication = Communication(ops, monitor_csv.statistic, told.get("cc_pre_hook", False),
                                      told.get("cc_codeline", []), self._given.get("ndigits", 6))
        for step, place in sorted((int(place.parent.name[4:]), place) for place in dump.glob(f"step*/{folder}")):
            calls, per_file = monitor_csv.load(place, "dump.json"), self._given.get("step_count_per_record", 1)
            monitor_csv.write_step(out, step, reader.rows(calls, monitor_csv.load(place, "debug.json")), ops, per_file)
            stacks = monitor_csv.load(place, "stack.json")
            if not told.get("cc_log_only"):
                monitor_csv.write_communication(out, step, communication.rows(calls, stacks, step), ops, per_file)
            elif not used:
                used = monitor_csv.used_functions(calls, stacks)
        if used:
            say("> Used communication ops and corresponding stack\n" + json.dumps(used))


__all__ = ["TrainerMon", "plan_of", "read_config"]
