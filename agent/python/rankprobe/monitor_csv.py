# SPDX-License-Identifier: Apache-2.0
"""The csv files of msprobe's training monitor, from exported steps of task monitor.

    python -m rankprobe.monitor_csv DUMP -o OUT [--ops norm,max,min,mean] [--targets a,b]

DUMP is what `rankprobe export` wrote, or the dump_path of a job with a private
collector. OUT gets a folder for each rank, with {metric}_{first}-{last}.csv:
actv, actv_grad, grad_unreduced, grad_reduced, exp_avg, exp_avg_sq, param_origin,
param_updated, other (communication calls). Steps that are there already are left out. Exit status 2: bad usage.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import pathlib
import re
import sys
from typing import Any, Iterator, Optional, Sequence, TextIO

from rankprobe._communication_csv import Communication, call_site, is_tensor

OPS = ("norm", "min", "max", "zeros", "nans", "mean")
_METRICS = ("actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq", "param_origin", "param_updated")
_STATISTICS = {"norm": "Norm", "max": "Max", "min": "Min", "mean": "Mean"}
_CALL = re.compile(r"Module\.(.+)\.([^.]+)\.(forward|backward)\.(\d+)")
_GRADIENTS = re.compile(r"Module\.(.+)\.([^.]+)\.parameters_grad\.(\d+)")
_OF_PARAMETER = re.compile(r"(Parameter|Update)\.(.+)\.0\.debug")

# A row's name and its tensor; None if the value is not a tensor.
Row = tuple[str, Optional[dict[str, Any]]]


class Steps:
    """Makes the rows of one rank's step, by metric, with the names that msprobe uses.

    targets: names of modules and prefixes of parameter names, without the number of their chunk; empty selects all.
    micro_batches: calls of a module are numbered modulo this. digits: decimal places of the values.
    """

    def __init__(self, ops: Sequence[str], targets: Sequence[str] = (), micro_batches: int = 1, digits: int = 6) -> None:
        self._ops, self._targets = list(ops), [t[2:] if t.startswith("0:") else t for t in targets if t != ""]
        self._micro_batches, self._digits = micro_batches, digits

    def _wants_module(self, path: str) -> bool:
        return not self._targets or path in self._targets

    def _wants_parameter(self, name: str) -> bool:
        return not self._targets or any(name.startswith(target) for target in self._targets)

    def rows(self, modules: dict[str, Any], others: dict[str, Any]) -> dict[str, list[list[Any]]]:
        """Returns the rows of each metric that has any. modules, others: the data of dump.json and debug.json."""
        found: dict[str, dict[tuple[Any, ...], Optional[dict[str, Any]]]] = {metric: {} for metric in _METRICS}
        for entry, content in modules.items():
            call = _CALL.fullmatch(entry)
            if call is not None and self._wants_module(call[1]):
                micro = int(call[4]) % self._micro_batches
                metric = "actv" if call[3] == "forward" else "actv_grad"
                for side, tensors in self._sides(call[3], content):
                    for index, tensor in enumerate(tensors):
                        which = f"_{index}" if len(tensors) > 1 else ""
                        found[metric][f"{call[1]}.{side}{which}", micro] = tensor
            gradients = _GRADIENTS.fullmatch(entry)
            if gradients is not None:
                for name, tensors in content.items():
                    full = f"{gradients[1]}.{name}"
                    if self._wants_parameter(full):
                        found["grad_unreduced"][(full,)] = tensors[0]
        for entry, content in others.items():
            of = _OF_PARAMETER.fullmatch(entry)
            if of is None or not self._wants_parameter(of[2]):
                continue
            names = {"grad": "grad_reduced", "param": "param_origin", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"} if (
                of[1] == "Parameter") else {"param": "param_updated"}
            for value, metric in names.items():
                if value in content:
                    found[metric][(of[2],)] = content[value]
        return {metric: [self._row(name, tensor) for name, tensor in rows.items()] for metric, rows in found.items() if rows}

    @staticmethod
    def _sides(direction: str, content: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
        if direction == "forward":
            given = [v for v in content.get("input_args", []) if is_tensor(v)]
            yield "input", given + [v for v in content.get("input_kwargs", {}).values() if is_tensor(v)]
            yield "output", [v if is_tensor(v) else None for v in content.get("output", [])]
        else:  # Backward outputs are the gradients of the module's inputs; None where an input required no gradient.
            yield "input", [v if is_tensor(v) else None for v in content.get("output") or [None]]
            yield "output", [v if is_tensor(v) else None for v in content.get("input", [])]

    def _row(self, name: tuple[Any, ...], tensor: Optional[dict[str, Any]]) -> list[Any]:
        values = ["nan" if tensor is None else self._value(op, tensor) for op in self._ops]
        shape = "nan" if tensor is None else str(list(tensor["shape"]))
        return [name, values + [shape, "nan" if tensor is None else tensor["dtype"]]]

    def _value(self, op: str, tensor: dict[str, Any]) -> Any:
        value = statistic(op, tensor)
        # dump.json stores NaN and infinities as strings.
        if isinstance(value, str):
            return value.lower()
        return round(value, self._digits) if isinstance(value, float) else value


def statistic(op: str, tensor: dict[str, Any]) -> Any:
    """Returns the statistic `op` of an entry of dump.json: a number, or NaN or infinity as a string; "nan" if it was not recorded."""
    if op in _STATISTICS:
        value = tensor.get(_STATISTICS[op])
    elif op == "nans":
        value = tensor.get("NanCount")
    else:
        count, elements = tensor.get("ZeroCount"), math.prod(tensor["shape"])
        value = None if count is None or not elements else count / elements
    return "nan" if value is None else value


def _header(metric: str, ops: Sequence[str]) -> list[str]:
    micro = ["micro_step"] if metric in ("actv", "actv_grad") else []
    return ["vpp_stage", "name", "step", *micro, *ops, "shape", "dtype"]


def _file(out: pathlib.Path, metric: str, step: int, ops: Sequence[str], steps_per_file: int) -> TextIO:
    first = step // steps_per_file * steps_per_file
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{metric}_{first}-{first + steps_per_file - 1}.csv"
    file = path.open("a", newline="", encoding="utf-8")
    if file.tell() == 0:  # The process that created the file may have been killed before it wrote the header.
        csv.writer(file, lineterminator="\n").writerow(_header(metric, ops))
    return file


def write_step(out: pathlib.Path, step: int, rows: dict[str, list[Any]], ops: Sequence[str], steps_per_file: int = 1) -> None:
    """Appends one rank's rows of `step` to its files in `out`."""
    for metric, of_metric in rows.items():
        with _file(out, metric, step, ops, steps_per_file) as file:
            writer = csv.writer(file, lineterminator="\n")
            for (name, *micro), values in of_metric:
                writer.writerow([0, name, step, *micro, *values])


def write_communication(out: pathlib.Path, step: int, rows: list[list[Any]], ops: Sequence[str], steps_per_file: int = 1) -> None:
    """Appends one rank's rows of communication calls, as Communication.rows() returns them, to its file in `out`."""
    if rows:
        with _file(out, "other", step, ops, steps_per_file) as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def load(place: pathlib.Path, file: str) -> dict[str, Any]:
    """Reads the data of dump.json or debug.json of a rank's step, or its stack.json; returns {} if the file does not exist."""
    try:
        content = json.loads((place / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    data: dict[str, Any] = content if file == "stack.json" else content["data"]
    return data


def used_functions(data: dict[str, Any], stacks: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Returns the distinct call sites (a list of frames each) of each function of torch.distributed."""
    used: dict[str, list[list[str]]] = {}
    for entries, frames in stacks.values():
        for entry in entries:
            if entry.startswith("Distributed.") and entry in data:
                places = used.setdefault(entry.split(".")[1], [])
                sites = [call_site(frame) for frame in frames]
                if sites not in places:
                    places.append(sites)
    return used


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rankprobe.monitor_csv", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--ops", default="norm,max,min,mean", help=f"of {', '.join(OPS)}")
    parser.add_argument("--targets", default="", help="names of modules; all if left out")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--steps-per-file", type=int, default=1)
    arguments = parser.parse_args(argv)
    ops = arguments.ops.split(",")
    bad = [op for op in ops if op not in OPS]
    if bad or arguments.micro_batches < 1 or arguments.steps_per_file < 1:
        parser.error(f"--ops: {', '.join(bad)} is none of {', '.join(OPS)}" if bad else "a number below 1")
    dump = pathlib.Path(arguments.dump)
    places = sorted(((int(place.parent.name[4:]), place) for place in dump.glob("step*/*") if place.is_dir()
                     and place.parent.name[4:].isdigit()), key=lambda found: (found[0], found[1].name))
    if not places:
        print(f"rankprobe: no step*/rank*/ below {dump}", file=sys.stderr)
        return 2
    reader = Steps(ops, [t for t in arguments.targets.split(",") if t], arguments.micro_batches)
    communication = Communication(ops, statistic, before=True)
    for step, place in places:
        out, calls = pathlib.Path(arguments.output) / place.name, load(place, "dump.json")
        write_step(out, step, reader.rows(calls, load(place, "debug.json")), ops, arguments.steps_per_file)
        write_communication(out, step, communication.rows(calls, {}, step), ops, arguments.steps_per_file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
