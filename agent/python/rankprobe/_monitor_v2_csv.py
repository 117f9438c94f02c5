# SPDX-License-Identifier: Apache-2.0
"""Writer of the csv files of msprobe's second training monitor (`monitors` in its config), from exported steps of task monitor:
rank_{rank}/{monitor}_step{first}-{last}.csv, with one row for each tensor.
"""

from __future__ import annotations

import csv
import math
import pathlib
import re
from typing import Any, Iterable, Iterator, Optional, Sequence

from rankprobe._communication_csv import Communication, is_tensor
from rankprobe.monitor_csv import statistic

OPS = ("min", "max", "mean", "norm", "nans")
_CALL = re.compile(r"Module\.(.+)\.([^.]+)\.(forward|backward)\.(\d+)")
_GRADIENTS = re.compile(r"Module\.(.+)\.([^.]+)\.parameters_grad\.(\d+)")
_OF_PARAMETER = re.compile(r"(Parameter|Update|State)\.(.+)\.0\.debug")
# vpp_stage of a model that is not a list of chunks.
_NO_STAGE = -1


def _number(op: str, tensor: dict[str, Any]) -> float:
    return float(statistic(op, tensor))


class Rows:
    """Makes the rows of one rank's steps, for each of `monitors` (as read_config returns them).

    chunks: whether the model is a list of chunks; names then begin with the number of the chunk and ':'.
    """

    def __init__(self, monitors: dict[str, dict[str, Any]], chunks: bool, rank: int) -> None:
        self._monitors, self._chunks, self._rank = monitors, chunks, rank
        self._communication: dict[str, Communication] = {}
        for slug, told in monitors.items():
            if told["kind"] == "cc":
                self._communication[slug] = Communication(told["ops"], statistic, told["cc_pre_hook"], told["cc_codeline"])

    def of(self, slug: str, step: int, modules: dict[str, Any], others: dict[str, Any], stacks: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the rows of monitor `slug` for a step. modules, others: the data of dump.json and debug.json; stacks: stack.json."""
        told = self._monitors[slug]
        if told["kind"] == "cc":
            return [{"step": step, "module_name": f"{function}/rank{self._rank}/{place}", "scope": "comm",
                     **numbers}
                    for function, place, numbers in self._communication[slug].numbers(modules, stacks)]
        found = {"module": self._of_modules, "weight_grad": self._of_gradients, "optimizer": self._of_states,
                 "param": self._of_parameters}[told["kind"]](told, modules, others)
        rows = []
        for name, suffix, scope, micro, tensor in found:
            stage, full = self._named(name)
            rows.append({"vpp_stage": stage, "step": step, "module_name": full + suffix, "scope": scope,
                         **({} if micro is None else {"micro_step": micro}), **{op: _number(op, tensor) for op in told["ops"]}})
        return rows

    def _named(self, path: str) -> tuple[int, str]:
        chunk, _, rest = path.partition(".")
        return (int(chunk), f"{chunk}:{rest}") if self._chunks and chunk.isdigit() else (_NO_STAGE, path)

    def _of_modules(self, told: dict[str, Any], modules: dict[str, Any], _: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        for entry, content in modules.items():
            call = _CALL.fullmatch(entry)
            if call is None or (told["targets"] and not any(part in self._named(call[1])[1] for part in told["targets"])):
                continue
            if call[3] == "forward":
                sides = {"input": [*content.get("input_args", []), *content.get("input_kwargs", {}).values()],
                         "output": content.get("output", [])}
            else:  # The outputs of a module's backward are the gradients of its inputs.
                sides = {"grad_input": content.get("output") or [], "grad_output": content.get("input") or []}
            for side, values in sides.items():
                for index, tensor in enumerate(value for value in values if is_tensor(value)):
                    yield call[1], f".{side}.{index}", call[3], None, tensor

    def _of_gradients(self, told: dict[str, Any], modules: dict[str, Any], others: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        micro_batches = told["grad_acc_steps"]
        for entry, content in modules.items():
            gradients = _GRADIENTS.fullmatch(entry)
            if gradients is None:
                continue
            number = int(gradients[3]) % micro_batches + 1
            if number < micro_batches and not told["monitor_mbs_grad"]:
                continue
            for name, tensors in content.items():
                if is_tensor(tensors[0]):
                    yield f"{gradients[1]}.{name}", "", "unreduced", number, tensors[0]
        for name, content in _of_kind("Parameter", others):
            if is_tensor(content.get("grad")):
                yield name, "", "reduced", micro_batches, content["grad"]

    @staticmethod
    def _of_states(_: dict[str, Any], __: dict[str, Any], others: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        for key in ("exp_avg", "exp_avg_sq"):
            for name, content in _of_kind("State", others):
                if is_tensor(content.get(key)):
                    yield name, f".{key}", key, None, content[key]

    @staticmethod
    def _of_parameters(_: dict[str, Any], __: dict[str, Any], others: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        for kind, scope in (("Parameter", "param_origin"), ("Update", "param_updated")):
            for name, content in _of_kind(kind, others):
                if is_tensor(content.get("param")) and math.prod(content["param"]["shape"]):
                    yield name, "", scope, None, content["param"]


def _of_kind(kind: str, others: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for entry, content in others.items():
        of = _OF_PARAMETER.fullmatch(entry)
        if of is not None and of[1] == kind:
            yield of[2], content


def header(kind: str, ops: Sequence[str]) -> list[str]:
    return ["vpp_stage", "step", "module_name", "scope", *(["micro_step"] if kind == "weight_grad" else []), *ops]


def write(folder: pathlib.Path, slug: str, kind: str, ops: Sequence[str], rows: Iterable[dict[str, Any]], step: int, start: int,
          steps_per_file: int) -> Optional[pathlib.Path]:
    """Appends the rows of a step to its file and returns the file's path; returns None if there are no rows. Files begin at step
    `start` and hold `steps_per_file` steps each."""
    rows = list(rows)
    if not rows:
        return None
    first = start + (step - start) // steps_per_file * steps_per_file
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_file_name(slug)}_step{first}-{first + steps_per_file - 1}.csv"
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=header(kind, ops))
        if file.tell() == 0:  # The process that created the file may have been killed before it wrote the header.
            writer.writeheader()
        writer.writerows(rows)
    return path


def _file_name(slug: Any) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", slug.replace("..", "_")).strip("._") or "monitor"


__all__ = ["OPS", "Rows", "header", "write"]
