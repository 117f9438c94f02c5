# SPDX-License-Identifier: Apache-2.0
"""Analysis as a library, with the same answers as the `rankprobe` verbs but without intermediate files.

    table = rankprobe.analysis.compare("run_a/step0/rank0", "run_b/step0/rank0")
    pandas.DataFrame(table)            # one column a key, equal lengths
    rankprobe.analysis.first_divergence("run_a", "run_b")["origins"]

Available in builds with the collector side (RANKPROBE_BUILD_COLLECTOR). Bad input raises ValueError with one line. So does a
dump that others can change, that belongs to another user, or that is a link (docs/analysis.md, "Which files are read"); with
`force` (default False) it is read with a warning.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Mapping, Sequence

from rankprobe import _analysis

Path = str | os.PathLike[str]

__all__ = ["Layout", "compare", "first_divergence", "graph", "overflow_check", "put_together", "replicas", "to_numbers"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the ranks of a dump share a model, by which graph() merges them. All sizes are counts of ranks.

    Of `rank_size` ranks, `tp` share each layer, `pp` share the layers (in `vpp` chunks each), and the rest are data parallel.
    `order` lists the dimensions, the fastest first; it is used where the communication does not determine the groups.
    """

    rank_size: int
    tp: int
    pp: int
    vpp: int = 1
    order: str = "tp-cp-ep-dp-pp"


def _names(mapping: Path | Mapping[str, str] | None) -> str | list[tuple[str, str]]:
    if mapping is None:
        return ""
    return list(mapping.items()) if isinstance(mapping, Mapping) else os.fspath(mapping)


def _layers(mapping: Path | bool) -> str | None:
    return None if mapping is False else "" if mapping is True else os.fspath(mapping)


def compare(target: Path, reference: Path, *, fuzzy: bool = False, layer_mapping: Path | bool = False,
            api_mapping: Path | None = None, cell_mapping: Path | Mapping[str, str] | None = None,
            data_mapping: Path | Mapping[str, str] | None = None, force: bool = False) -> dict[str, list[str]]:
    """Returns the table of `rankprobe compare` over all steps and ranks that both have, as column name to cells (text).

    The mappings are those of the verb (docs/analysis.md, "Tables" and "Layer mapping"), each a YAML file:
    `layer_mapping` (-lm) pairs the calls of layers of other names by rules, by scope alone when True; `api_mapping`
    (-am) renames APIs; `cell_mapping` (-cm) renames modules, `data_mapping` (-dm) pairs complete rows. The last two may be
    given as a dict, target name to reference name. A layer or data mapping excludes the others and `fuzzy`.
    """
    return _analysis.compare(os.fspath(target), os.fspath(reference), fuzzy, _layers(layer_mapping), _names(cell_mapping),
                             _names(data_mapping), "" if api_mapping is None else os.fspath(api_mapping), force)


def to_numbers(column: Sequence[str]) -> list[float]:
    """Converts a column to floats, for example for numpy.asarray: percent becomes a ratio, text that is not a number becomes NaN."""
    out = []
    for cell in column:
        try:
            out.append(float(cell[:-1]) / 100 if cell.endswith("%") else float(cell))
        except ValueError:
            out.append(float("nan"))
    return out


def first_divergence(target: Path, reference: Path, *, tolerance: float | None = None, noise: Path = "",
                     fuzzy: bool = False, layer_mapping: Path | bool = False, api_mapping: Path | None = None,
                     force: bool = False) -> dict[str, Any]:
    """Returns where the target began to differ and what could not be judged. `tolerance`: relative; None derives it from dtype
    and sum lengths. `noise`: a repetition of the reference, three times whose distance is allowed as well; "" for none.

    `fuzzy`, `layer_mapping` and `api_mapping`: as in compare().
    """
    return _analysis.first_divergence(os.fspath(target), os.fspath(reference), tolerance, os.fspath(noise), fuzzy,
                                      _layers(layer_mapping), "" if api_mapping is None else os.fspath(api_mapping), force)


def put_together(target: Path, reference: Path, directory: Path, *, split_batch: bool = False,
                 layout: Path = "auto", force: bool = False) -> list[str]:
    """Assembles the ranks of two runs by recorded placements, or by those of a layout file (`--layout` of the verbs), so that
    runs of different layouts can be compared. Writes `directory`/target and `directory`/reference, dumps of one rank that every
    function here can read.

    Returns the lines that the verbs print: the result for each side's tensors, and what was refused. `split_batch`: ranks with
    different data hold parts of one batch (docs/layouts.md, "Runs of different layouts").
    """
    return _analysis.put_together(os.fspath(target), os.fspath(reference), os.fspath(directory), split_batch,
                                  os.fspath(layout), force)


def replicas(dump: Path, *, groups: Sequence[Sequence[int]] = (), gradients: bool = False,
             force: bool = False) -> dict[str, Any]:
    """Returns what should be equal across the ranks of a dump and differs: `differences`, and how much was compared.

    Each difference has `kind`, `step`, `row` and `values`: groups of ranks with equal content, and that content. `groups`: lists
    of ranks that hold the same parameters. `gradients`: compares gradients too.
    """
    return _analysis.replicas(os.fspath(dump), [list(g) for g in groups], gradients, force)


def overflow_check(dump: Path, *, force: bool = False) -> list[dict[str, Any]]:
    """Returns the calls in which the NaN and infinities of a step originated, over its ranks, as `rank` and `call` of each."""
    found: list[dict[str, Any]] = _analysis.overflow_check(os.fspath(dump), force)["found"]
    return found


def _sizes(layout: Layout | None) -> tuple[int, int, int, int, str] | None:
    return None if layout is None else (layout.rank_size, layout.tp, layout.pp, layout.vpp, layout.order)


def graph(path: Path, target: Path, reference: Path = "", *, overflow_check: bool = False, fuzzy: bool = False,
          layer_mapping: Path | bool = False, layout: Layout | None = None,
          reference_layout: Layout | None = None, merged_as_dump: bool = False, force: bool = False) -> str:
    """Writes the .vis.db of `rankprobe graph_visualize` to `path`, and returns it.

    `layer_mapping` (-lm) matches layers of other names, by scope alone when True. `layout` merges the ranks of each
    step into one graph for each data parallel replica; with a reference dump both sides need theirs. With `merged_as_dump`
    (--file_type json) the merged graph becomes a dump, step{S}/rank{R} in the existing directory `path`.
    """
    layers = "auto" if layer_mapping is True else "" if layer_mapping is False else os.fspath(layer_mapping)
    return _analysis.graph(os.fspath(path), os.fspath(target), os.fspath(reference), overflow_check, fuzzy, layers,
                           _sizes(layout),
                           _sizes(reference_layout), merged_as_dump, force)
