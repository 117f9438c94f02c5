# SPDX-License-Identifier: Apache-2.0
"""Report of an isolated step: one row for each call of a module in each direction."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import json
import math
import os
from typing import Any

from rankprobe._inputs import show

PASS, ERROR, NOT_JUDGED = "pass", "error", "not judged"
_SHOWN = 3
NOTICE = ("in this step modules received recorded values instead of the program's: its loss, gradients and outputs are not "
          "those of a training")


@dataclasses.dataclass
class Row:
    """One call of a module in one direction (forward, backward, parameters_grad). error and tolerance are relative and belong to
    the value that exceeds its tolerance most, which `where` names; NaN if there is no such value."""

    name: str
    module: str
    direction: str
    verdict: str
    error: float = math.nan
    tolerance: float = math.nan
    where: str = ""
    reason: str = ""
    source: str = ""


def source_of(module: Any) -> str:
    """Returns file:line of the class of `module`; "" if it has no source."""
    cls: Any = type(module)
    return _source(cls)


@functools.cache
def _source(cls: Any) -> str:
    try:
        file, (_, line) = inspect.getsourcefile(cls), inspect.getsourcelines(cls)
        return f"{os.path.relpath(file) if file and file.startswith(os.getcwd() + os.sep) else file}:{line}"
    except Exception:  # noqa: BLE001 - classes made at run time, missing source files
        return ""


@dataclasses.dataclass
class Report:
    """Result of a step, filled when the step has ended. rows: in the order of the calls; notes: further facts for the reader."""

    reference: str
    rows: list[Row] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    finished: bool = False

    @property
    def failing(self) -> list[str]:
        """Modules with an error, without duplicates, in the order of their calls."""
        return list(dict.fromkeys(row.module for row in self.rows if row.verdict == ERROR))

    @property
    def exit_code(self) -> int:
        """Exit status: 0 if no module differs, 1 if some do, 2 if nothing could be judged."""
        if not self.finished or not any(row.verdict != NOT_JUDGED for row in self.rows):
            return 2
        return 1 if self.failing else 0

    def to_json(self) -> str:
        """Returns the report as one line of JSON; NaN and infinities become null."""
        def plain(value: Any) -> Any:
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return json.dumps({"reference": self.reference, "exit_code": self.exit_code, "failing": self.failing, "notes": self.notes,
                           "rows": [{key: plain(value) for key, value in dataclasses.asdict(row).items()} for row in self.rows]})

    @classmethod
    def from_json(cls, text: str) -> Report:
        # Parses the text of to_json(). An error without a number becomes infinite, since NaN cannot have been an error.
        data = json.loads(text)
        rows = [Row(**{key: math.nan if value is None else value for key, value in row.items()})  # type: ignore[arg-type]
                for row in data["rows"]]
        for row in rows:
            if row.verdict == ERROR and math.isnan(row.error):
                row.error = math.inf
        return cls(data["reference"], rows, data["notes"], finished=True)

    def __str__(self) -> str:
        counts = collections.Counter(row.verdict for row in self.rows)
        failing = self.failing
        judged = counts[PASS] + counts[ERROR]
        if not judged:
            head = "no module could be judged"
        elif failing:
            head = "1 module differs" if len(failing) == 1 else f"{len(failing)} modules differ"
        else:
            head = "no module differs"
        lines = [f"{head}: {counts[PASS]} pass, {counts[ERROR]} error, {counts[NOT_JUDGED]} not judged "
                 f"(calls and directions, each on the inputs in {self.reference})"]
        for row in self.rows:
            if row.verdict == ERROR:
                lines.append(f"error  {row.name}  {row.where}: {_number(row.error)}, tolerance {_number(row.tolerance)}"
                             + (f"; {row.reason}" if row.reason else "") + (f"  {row.source}" if row.source else ""))
        reasons: dict[str, list[str]] = {}
        for row in self.rows:
            if row.verdict == NOT_JUDGED:
                reasons.setdefault(row.reason, []).append(row.name)
        for reason, names in reasons.items():
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            lines.append(f"not judged  {', '.join(names[:_SHOWN])}{more}: {reason}")
        # Escapes control characters: file names, dtypes and exception texts come from the reference and from the program.
        return "\n".join(map(show, [*lines, *(f"note: {note}" for note in self.notes), f"note: {NOTICE}"]))


def _number(value: float) -> str:
    return "infinite" if math.isinf(value) else "-" if math.isnan(value) else f"{value:.3g}"
