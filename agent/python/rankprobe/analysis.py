"""The analysis as a library: the same answers as the `rankprobe` verbs, no files between.

    table = rankprobe.analysis.compare("run_a/step0/rank0", "run_b/step0/rank0")
    pandas.DataFrame(table)            # one column a key, equal lengths
    rankprobe.analysis.first_divergence("run_a", "run_b")["origins"]

Built with the collector side (RANKPROBE_BUILD_COLLECTOR); bad input raises ValueError in one line.
"""

from __future__ import annotations

import os
from typing import Any, Sequence

from rankprobe import _analysis

Path = str | os.PathLike[str]

__all__ = ["compare", "first_divergence", "graph", "replicas", "to_numbers"]


def compare(target: Path, golden: Path, *, fuzzy: bool = False) -> dict[str, list[str]]:
    """The table of `rankprobe compare`, over all steps and ranks both have: column name to cells (text)."""
    return _analysis.compare(os.fspath(target), os.fspath(golden), fuzzy)


def to_numbers(column: Sequence[str]) -> list[float]:
    """A column as floats: percent as a ratio, what is no number as NaN. numpy.asarray takes it as it is."""
    out = []
    for cell in column:
        try:
            out.append(float(cell[:-1]) / 100 if cell.endswith("%") else float(cell))
        except ValueError:
            out.append(float("nan"))
    return out


def first_divergence(target: Path, golden: Path, *, tolerance: float | None = None, noise: Path = "",
                     fuzzy: bool = False) -> dict[str, Any]:
    """Where the target began to differ, and what could not be seen. `tolerance` None: from dtype and sum lengths."""
    return _analysis.first_divergence(os.fspath(target), os.fspath(golden), tolerance, os.fspath(noise), fuzzy)


def replicas(dump: Path, *, groups: Sequence[Sequence[int]] = (), gradients: bool = False) -> list[dict[str, Any]]:
    """What should be equal across the ranks of a dump and is not."""
    return _analysis.replicas(os.fspath(dump), [list(g) for g in groups], gradients)


def graph(path: Path, target: Path, golden: Path = "", *, overflow_check: bool = False, fuzzy: bool = False,
          layer_mapping: Path = "") -> str:
    """Writes the .vis.db of `rankprobe graph_visualize` to `path`."""
    return _analysis.graph(os.fspath(path), os.fspath(target), os.fspath(golden), overflow_check, fuzzy,
                           os.fspath(layer_mapping))
