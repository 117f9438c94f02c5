# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters: sums over the calls of a step, compared with those that the reference accumulated."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

import torch

from rankprobe.pytorch import _isolation_numbers as numbers
from rankprobe.pytorch._isolation_frame import Parameter
from rankprobe._isolation_reference import Reference, Unreadable, is_tensor
from rankprobe._isolation_report import ERROR, NOT_JUDGED, PASS, Row


def _judged(known: Parameter, recorded: torch.Tensor, fixed: Optional[float], own: torch.Tensor) -> tuple[float, float]:
    """Returns error and tolerance of one gradient."""
    found = numbers.difference(own, recorded)
    if fixed is not None:
        return found.error, fixed
    tolerance = numbers.auto_tolerance(known.rounding, own.numel(), known.operands, known.rows)
    if own.dim() <= 1 and found.size > 0:
        # The gradient of a bias is a sum that may cancel, so the tolerance is relative to the summands.
        tolerance *= max(1.0, known.summed / found.size)
    if found.size == 0:
        small = max(numbers.NOISE * known.noise, tolerance * known.summed)
        return found.error, math.inf if found.absolute <= small else tolerance
    return found.error, max(tolerance, numbers.NOISE * known.noise / found.size)


def parameter_rows(reference: Reference, targets: Sequence[tuple[str, str, torch.nn.Module]], parameters: dict[int, Parameter],
                   fixed: Optional[float], without: dict[str, str], sources: dict[str, str], before: Sequence[Row],
                   notes: list[str]) -> list[Row]:
    """Returns a row for each module for which the reference has gradients of parameters. before: the rows of the calls. Adds to
    `notes`."""
    rows = []
    not_judged = {row.module: row.reason for row in before if row.verdict == NOT_JUDGED}
    failing = {row.module for row in before if row.verdict == ERROR}
    for name, path, module in targets:
        passes = reference.parameter_gradients.get(path)
        if not passes:
            continue
        worst: Optional[Row] = None
        reason = without.get(name, "")
        for key, record in passes[max(passes)].items():
            record = record[0] if isinstance(record, list) and record else record
            parameter = module._parameters.get(key)
            known = None if parameter is None else parameters.get(id(parameter))
            if not is_tensor(record) or known is None or parameter is None:
                continue
            if not parameter.requires_grad or known.reason or known.total is None:
                reason = reason or known.reason or (f"{key} requires no gradient in this program" if not parameter.requires_grad else
                                                    not_judged.get(name) or f"no call was judged that uses {key}")
                continue
            row = _row(reference, record, known, fixed, name, key, len(passes))
            row.source = sources[name]
            guilty = sorted((set(known.users) & failing) - {name})
            if row.verdict == ERROR and guilty:
                reason = reason or f"the gradient of {key} is partly of {', '.join(guilty[:3])}, which differs"
                continue
            if worst is None or _beyond(row) > _beyond(worst):
                worst = row
        if worst is None or (reason and worst.verdict == PASS):
            if worst is not None or reason:
                rows.append(Row(f"{name}.parameters_grad", name, "parameters_grad", NOT_JUDGED, reason=reason, source=sources[name]))
        else:
            rows.append(worst)
    _earlier_batches(rows, notes)
    return rows


def _row(reference: Reference, record: Any, known: Parameter, fixed: Optional[float], name: str, key: str, passes: int) -> Row:
    row = Row(f"{name}.parameters_grad", name, "parameters_grad", NOT_JUDGED, where=f"gradient of {key}")
    assert known.total is not None and known.last is not None
    try:
        recorded = reference.load(record)
    except Unreadable as fault:
        row.reason = f"the gradient of {key} was not recorded: {fault}"
        return row
    if recorded.shape != known.total.shape:
        row.reason = f"the gradient of {key} has another shape in the reference"
        return row
    row.error, row.tolerance = _judged(known, recorded, fixed, known.total)
    if passes > 1 and row.error > row.tolerance:  # A hook of msprobe records only the part of the last micro batch.
        row.error, row.tolerance = min((row.error, row.tolerance), _judged(known, recorded, fixed, known.last))
    row.verdict = ERROR if row.error > row.tolerance else PASS
    others = sorted(set(known.users) - {name})
    if row.verdict == ERROR and others:
        row.reason = f"used by {', '.join(others[:3])} as well"
    return row


def _beyond(row: Row) -> float:
    if math.isnan(row.error):
        return -1.0
    return row.error / row.tolerance if row.tolerance else math.inf if row.error else 0.0


def _earlier_batches(rows: list[Row], notes: list[str]) -> None:
    """Marks gradients of parameters as not judged if most of them differ, since the reference then had accumulated others before the
    step, or divided them."""
    wrong = [row for row in rows if row.verdict == ERROR]
    if len(wrong) < 4 or 2 * len(wrong) <= len([row for row in rows if row.verdict != NOT_JUDGED]):
        return
    for row in wrong:
        row.verdict = NOT_JUDGED
        row.reason = ("most gradients of parameters differ: the reference's may hold earlier micro batches, or be divided or scaled; "
                      "record its step from zero_grad() on")
    notes.append(f"the gradients of parameters of {len(wrong)} modules differ and were not judged")


__all__ = ["parameter_rows"]
