# SPDX-License-Identifier: Apache-2.0
# rankprobe._analysis: the analysis of dumps (analysis/python/module.cc).
# rankprobe.analysis is the front of it. Bad input raises ValueError in one line;
# what was read nevertheless is warned about.
from collections.abc import Sequence
from typing import Any

def compare(target: str, reference: str, fuzzy: bool = ..., layers: str | None = ...,
            cells: str | Sequence[tuple[str, str]] = ..., data: str | Sequence[tuple[str, str]] = ...,
            apis: str = ..., force: bool = ...) -> dict[str, list[str]]:
    """Column name to cells. layers: None: by name, "": by scope alone, else a file of rules.
    cells, data: a file, "" for none, or pairs of target name and reference name."""

def first_divergence(target: str, reference: str, tolerance: float | None = ..., noise: str = ...,
                     fuzzy: bool = ..., layers: str | None = ..., apis: str = ...,
                     force: bool = ...) -> dict[str, Any]:
    """The fields of rankprobe.v1.DivergenceReport by name. layers, apis: as in compare()."""

def put_together(target: str, reference: str, directory: str, split_batch: bool = ..., layout: str = ...,
                 force: bool = ...) -> list[str]:
    """Writes directory/target and directory/reference; the lines that say what became of the tensors."""

def replicas(dump: str, groups: Sequence[Sequence[int]] = ..., gradients: bool = ...,
             force: bool = ...) -> dict[str, Any]:
    """The fields of rankprobe.v1.ReplicaReport by name."""

def module_names(modules: Sequence[tuple[str, str]], layers: str | None = ..., cells: str | Sequence[tuple[str, str]] = ...,
                 force: bool = ...) -> list[str]:
    """The paths that modules (path, class) have in a reference. layers: a file of rules; cells: as in compare()."""

def overflow_check(dump: str, force: bool = ...) -> dict[str, Any]:
    """The fields of rankprobe.v1.OverflowReport by name."""

def graph(path: str, target: str, reference: str = ..., overflow_check: bool = ..., fuzzy: bool = ...,
          layer_mapping: str = ..., target_layout: tuple[int, int, int, int, str] | None = ...,
          reference_layout: tuple[int, int, int, int, str] | None = ..., merged_as_dump: bool = ...,
          force: bool = ...) -> str:
    """Writes a graph to `path`, and returns it. Layouts: ranks, tensor, pipeline and
    virtual pipeline sizes, and the order."""
