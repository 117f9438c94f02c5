# SPDX-License-Identifier: Apache-2.0
"""The table of budgets: one line `name value limit met|missed` each."""

from __future__ import annotations

import dataclasses
import sys


@dataclasses.dataclass
class Budget:
    name: str
    value: float
    # A limit of None is a figure without a budget.
    limit: float | None = None
    at_most: bool = True
    unit: str = ""

    @property
    def met(self) -> bool:
        if self.limit is None:
            return True
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def line(self) -> str:
        if self.limit is None:
            return f"{self.name} {self.value:.4g}{self.unit} - info"
        sign = "<=" if self.at_most else ">="
        return f"{self.name} {self.value:.4g}{self.unit} {sign}{self.limit:g} {'met' if self.met else 'missed'}"


class Table:
    """Collects and prints budgets as they are measured."""

    def __init__(self) -> None:
        self.rows: list[Budget] = []

    def _add(self, row: Budget) -> None:
        self.rows.append(row)
        print(row.line(), flush=True)

    def at_most(self, name: str, value: float, limit: float, unit: str = "") -> None:
        self._add(Budget(name, value, limit, True, unit))

    def at_least(self, name: str, value: float, limit: float, unit: str = "") -> None:
        self._add(Budget(name, value, limit, False, unit))

    def info(self, name: str, value: float, unit: str = "") -> None:
        self._add(Budget(name, value, None, True, unit))

    def failed(self, name: str, why: object) -> None:
        """Could not be measured: counts as missed."""
        print(f"{name} not-measured - missed", flush=True)
        print(f"  {name}: {str(why)[:400]}", file=sys.stderr, flush=True)
        self.rows.append(Budget(name, float("nan"), 0.0))

    def summary(self) -> str:
        limited = [row for row in self.rows if row.limit is not None]
        met = sum(row.met for row in limited)
        return f"{met} of {len(limited)} budgets met"
