# SPDX-License-Identifier: Apache-2.0
"""Writer of trend.db, the SQLite file that trend_analyzer of msprobe 26.2 plots: statistics by step, rank and module.

Tables and names are those that `msprobe data2db` makes from a dump; steps keep their numbers. Finite numbers are never
clipped. An infinity becomes the largest float64 of its sign, because the page cannot read Infinity; a NaN becomes NULL,
which the page leaves out.
"""

from __future__ import annotations

import math
import pathlib
import sqlite3
import sys
from typing import Any

from ._value_stream import split_entry

_METRICS = ("forward", "backward", "recompute", "parameters_grad", "debug")
_STATISTICS = ("norm", "max", "min", "mean")
_SCHEMA = f"""
CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY AUTOINCREMENT, metric_name TEXT UNIQUE NOT NULL);
CREATE TABLE monitoring_targets (target_id INTEGER PRIMARY KEY AUTOINCREMENT, target_name TEXT NOT NULL,
    vpp_stage INTEGER NOT NULL, micro_step INTEGER NOT NULL DEFAULT 0, UNIQUE (target_name, vpp_stage, micro_step));
CREATE TABLE monitoring_tags (tag_id INTEGER PRIMARY KEY AUTOINCREMENT, tag_name TEXT NOT NULL, category TEXT NOT NULL,
    metric_id INTEGER NOT NULL REFERENCES monitoring_metrics, UNIQUE (tag_name, category, metric_id));
CREATE TABLE tag_target_mapping (tag_id INTEGER NOT NULL REFERENCES monitoring_tags,
    target_id INTEGER NOT NULL REFERENCES monitoring_targets, PRIMARY KEY (tag_id, target_id));
CREATE TABLE trend_data (rank INTEGER NOT NULL, step INTEGER NOT NULL, target_id INTEGER NOT NULL REFERENCES monitoring_targets,
    metric_id INTEGER NOT NULL REFERENCES monitoring_metrics, {", ".join(f"{name} REAL" for name in _STATISTICS)},
    PRIMARY KEY (rank, step, target_id, metric_id)) WITHOUT ROWID;
CREATE TABLE global_stats (max_rank INTEGER DEFAULT 0, min_step INTEGER DEFAULT 0, max_step INTEGER DEFAULT 0,
    {", ".join(f"{name} TEXT" for name in _METRICS)});
"""


def target_of(call: str, position: str) -> tuple[str, str, int] | None:
    """Returns metric, target name and number of a call, such as ("forward", "Module.fc.Linear.output.0", 0); None if the call
    belongs to none of the metrics."""
    module, phase = split_entry(call)
    if phase not in _METRICS:
        return None
    number = next((int(part) for part in reversed(call.split(".")[-2:]) if part.isdigit()), 0)
    return phase, f"{module}.{position}" if position else module, number


def tags_of(target: str) -> set[tuple[str, str]]:
    """Returns the (tag, category) pairs by which the page filters its targets."""
    parts = target.split(".")
    if len(parts) < 3:
        return set()
    tags = {(".".join(parts[-2:]), "index")}
    if "parameters" in parts:
        tags.add(("parameters", "default"))
    kinds = {part for part in parts[:-2] if part in ("Module", "Cell")}
    path = [part for part in parts[:-2] if part not in kinds]
    tags |= {(kind, "default") for kind in kinds}
    if not path:
        return set()
    if not kinds:
        return tags | {(".".join(path), "function")}
    done = 0  # Parts before this index have their tags.
    for place, part in enumerate(path):
        if not part.isdigit():
            continue
        if place > done or (place == done and place > 0 and not path[place - 1].isdigit()):
            tags.add((f"{path[place - 1]}.{part}", "layer"))
            if path[done:place - 1]:
                tags.add((".".join(path[done:place - 1]), "module"))
        done = place + 1
    if path[done:]:
        tags.add((".".join(path[done:]), "module"))
    return tags


def _number(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value


def _inserted(database: sqlite3.Connection, statement: str, values: tuple[Any, ...]) -> int:
    """Executes an INSERT and returns the id of the new row."""
    row = database.execute(statement, values).lastrowid
    assert row is not None
    return row


class TrendDb:
    """Context manager for a new file at `path`, which is complete when the with statement ends without an error. Use it from one
    thread. add() raises OSError for an error of sqlite3."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._targets: dict[tuple[str, str], tuple[int, int] | None] = {}
        self._names: dict[tuple[str, int], int] = {}
        self._metric_targets: set[tuple[int, int]] = set()
        self._processes: dict[int, int] = {}  # pid of a process without a rank -> temporary negative rank
        self._ranks: set[int] = {-1}
        self._steps: set[int] = set()

    def __enter__(self) -> TrendDb:
        self._database = sqlite3.connect(self._path)
        # No journal and no fsync: the file is written under a temporary name and discarded after a failure (value_files.py).
        self._database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)
        self._database.executemany("INSERT INTO monitoring_metrics (metric_name) VALUES (?)", [(name,) for name in _METRICS])
        return self

    def add(self, rows: dict[str, list[Any]]) -> None:
        """Adds rows of rankprobe.archive, given as columns."""
        data = []
        for row, (step, rank, call, position) in enumerate(zip(rows["step"], rows["rank"], rows["call"], rows["position"])):
            target = self._target(call, position)
            if target is None:
                continue
            if rank is None:
                rank = self._processes.setdefault(rows["pid"][row], -1 - len(self._processes))
            else:
                self._ranks.add(rank)
            self._steps.add(step)
            data.append((rank, step, *target, *(_number(rows[name.capitalize()][row]) for name in _STATISTICS)))
        # If a step has a value twice, the later one counts, as in all outputs.
        try:
            self._database.executemany("INSERT OR REPLACE INTO trend_data VALUES (?, ?, ?, ?, ?, ?, ?, ?)", data)
        except sqlite3.Error as error:
            raise OSError(f"{self._path.name}: {error}") from None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._database as database:
            if kind is None:
                self._finish(database)
        self._database.close()

    def _target(self, call: str, position: str) -> tuple[int, int] | None:
        """Returns the ids of target and metric, which it adds if they are new; None if the call has no metric."""
        if (call, position) not in self._targets:
            found, target = target_of(call, position), None
            if found is not None:
                metric, name, number = found
                if (name, number) not in self._names:
                    self._names[name, number] = _inserted(
                        self._database, "INSERT INTO monitoring_targets (target_name, vpp_stage, micro_step) VALUES (?, 0, ?)",
                        (name, number))
                target = self._names[name, number], 1 + _METRICS.index(metric)
                self._metric_targets.add(target)
            self._targets[call, position] = target
        return self._targets[call, position]

    def _finish(self, database: sqlite3.Connection) -> None:
        # Processes without a rank get the numbers after the largest rank, as in msprobe.
        most = max(self._ranks)
        for place, below in enumerate(sorted(self._processes.values(), reverse=True)):
            database.execute("UPDATE trend_data SET rank = ? WHERE rank = ?", (most + 1 + place, below))
        names = {identity: name for (name, _), identity in self._names.items()}
        tags: dict[tuple[str, str, int], int] = {}
        for target, metric in sorted(self._metric_targets):
            for tag in sorted(tags_of(names[target])):
                key = (*tag, metric)
                if key not in tags:
                    tags[key] = _inserted(
                        database, "INSERT INTO monitoring_tags (tag_name, category, metric_id) VALUES (?, ?, ?)", key)
                database.execute("INSERT INTO tag_target_mapping VALUES (?, ?)", (tags[key], target))
        database.execute(f"INSERT INTO global_stats VALUES (?, ?, ?{', ?' * len(_METRICS)})",
                         (max(most + len(self._processes), 0), min(self._steps, default=0), max(self._steps, default=0),
                          *[",".join(_STATISTICS)] * len(_METRICS)))
