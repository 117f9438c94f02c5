# SPDX-License-Identifier: Apache-2.0
"""Writer of other_{first}-{last}.csv of msprobe's training monitor: the communication calls of a rank's step.

msprobe has one row for each function, not for each call: over all calls of the
step, norms and NaN counts of an argument are added, means and shares of zeros are
averaged. A row has the numbers of all arguments in sequence, before the call (with
`cc_pre_hook`) and after it. These are more than the header names, and the step
follows the first of them. Programs that read these files expect this layout.
"""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Iterator, Optional, Sequence

_CALL = re.compile(r"Distributed\.(.+)\.(\d+)\.forward")
_FRAME = re.compile(r"File (.*), line (\d+), in ([^,]*)", re.DOTALL)
# Takes the name of a statistic and an entry of dump.json; returns the statistic.
Number = Callable[[str, dict[str, Any]], Any]


def is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and "dtype" in value and "shape" in value


def _tensors(value: Any) -> list[dict[str, Any]]:
    """Returns the tensors of an argument, also of a list and of the operations of batch_isend_irecv."""
    if is_tensor(value):
        return [value]
    if isinstance(value, list):
        return [t for item in value for t in _tensors(item.get("tensor", item) if isinstance(item, dict) else item)]
    return []


def _elements(tensor: dict[str, Any]) -> int:
    return math.prod(tensor["shape"])


def _of_list(op: str, numbers: list[float], tensors: list[dict[str, Any]]) -> float:
    """Combines the statistics of the tensors of a list to that of one tensor."""
    if any(math.isnan(number) for number in numbers):
        return math.nan
    if op == "norm":
        return math.hypot(*numbers)
    if op in ("min", "max"):
        return min(numbers) if op == "min" else max(numbers)
    if op == "nans":
        return sum(numbers)
    weights = [_elements(tensor) for tensor in tensors]
    return sum(n * w for n, w in zip(numbers, weights)) / sum(weights) if sum(weights) else math.nan


def _of_calls(op: str, numbers: list[float]) -> float:
    if any(math.isnan(number) for number in numbers):
        return math.nan
    if op in ("min", "max"):
        return min(numbers) if op == "min" else max(numbers)
    return sum(numbers) / (len(numbers) if op in ("mean", "zeros") else 1)


def call_site(frame: str) -> str:
    """Converts a frame of stack.json to the form of msprobe's monitor: path[line]   function."""
    found = _FRAME.match(frame)
    return f"{found[1]}[{found[2]}]   {found[3]}" if found else frame


class Communication:
    """Makes the rows of one rank's steps. number(op, tensor) returns a statistic of an entry of dump.json.

    before: adds the arguments before the call. lines: regular expressions; selects the calls whose call site matches
    one of them, or all calls if empty. digits: decimal places.
    """

    def __init__(self, ops: Sequence[str], number: Number, before: bool = False, lines: Sequence[str] = (),
                 digits: int = 6) -> None:
        self._ops, self._number, self._before, self._digits = list(ops), number, before, digits
        self._lines = [re.compile(line) for line in lines]

    def _calls(self, data: dict[str, Any], stacks: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        sites = {entry: ";".join(map(call_site, frames)) for entries, frames in stacks.values() for entry in entries}
        for entry, content in data.items():
            call = _CALL.fullmatch(entry)
            if call is not None and (not self._lines or any(line.search(sites.get(entry, "")) for line in self._lines)):
                yield call[1], content

    def _numbers(self, argument: Any) -> Optional[dict[str, float]]:
        tensors = _tensors(argument)
        if not tensors:
            return None
        return {op: _of_list(op, [float(self._number(op, tensor)) for tensor in tensors], tensors) for op in self._ops}

    def _functions(self, data: dict[str, Any], stacks: dict[str, Any]) -> dict[str, dict[str, list[dict[str, float]]]]:
        """Returns, by function and place of the argument ("pre_0", "post_1"), the numbers of each call."""
        functions: dict[str, dict[str, list[dict[str, float]]]] = {}
        nothing = {op: math.nan for op in self._ops}
        for function, content in self._calls(data, stacks):
            tags = functions.setdefault(function, {})
            given = [*content.get("input_args", []), *content.get("input_kwargs", {}).values()]
            after = content.get("output", [])
            given, after = ([*side, *[None] * len(content)][:max(len(given), len(after))] for side in (given, after))
            # An argument that is only received has no value before the call, one that is only sent none after it.
            pairs = [(self._numbers(a), self._numbers(b)) for a, b in zip(given, after)]
            pairs = [pair for pair in pairs if pair != (None, None)]
            for side, wanted in (("pre", self._before), ("post", True)):
                for index, pair in enumerate(pairs if wanted else ()):
                    tags.setdefault(f"{side}_{index}", []).append(pair[side == "post"] or nothing)
        return functions

    def numbers(self, data: dict[str, Any], stacks: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, float]]]:
        """Yields function, place of the argument and the combined numbers of all its calls in the step."""
        for function, tags in self._functions(data, stacks).items():
            for tag, calls in tags.items():
                yield function, tag, {op: _of_calls(op, [call[op] for call in calls]) for op in self._ops}

    def rows(self, data: dict[str, Any], stacks: dict[str, Any], step: int) -> list[list[Any]]:
        """Returns the rows of a step, padded to one width. data: the data of dump.json. stacks: that of stack.json; may be empty if
        no lines were given."""
        found = []
        for function, tags in self._functions(data, stacks).items():
            cells: list[Any] = [cell for calls in tags.values() for cell in (
                *(self._cell(op, [call[op] for call in calls]) for op in self._ops), "nan", "nan")]  # no shape, no dtype
            if cells:
                found.append([function, cells[0], step, *cells[1:]])
        width = max(map(len, found), default=0)
        return [row + ["nan"] * (width - len(row)) for row in found]

    def _cell(self, op: str, numbers: list[float]) -> Any:
        number = _of_calls(op, numbers)
        return "nan" if math.isnan(number) else round(number, self._digits)


__all__ = ["Communication", "call_site", "is_tensor"]
