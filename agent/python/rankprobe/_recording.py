# SPDX-License-Identifier: Apache-2.0
"""Notebook interface of rankprobe.open(): a run or a dump as DataFrames, plots and the answer of diagnose."""

from __future__ import annotations

import contextlib
import html
import json
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from . import _command, archive

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas
    import pyarrow

# Number of lines in a plot that a reader can still distinguish.
_MOST_LINES = 10
_FRAME_HEIGHT = 460
_KEYS = ["call", "position", "rank"]


class Answer:
    """The answer of diagnose: `findings` and `unjudged` as DataFrames, `report` as parsed JSON, `text`, and `html`, a self-contained
    page, which a notebook shows."""

    def __init__(self, report: dict[str, Any], text: str, page: str) -> None:
        self.report, self.text, self.html = report, text, page

    @property
    def findings(self) -> pandas.DataFrame:
        """One row for each finding; the first is the most likely cause."""
        import pandas

        return pandas.DataFrame(self.report["findings"],
                                columns=["step", "rank", "name", "module", "code_line", "what", "sure", "by", "numbers", "command"])

    @property
    def unjudged(self) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame(self.report["unjudged"], columns=["what", "record", "judge"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to a file. Raises OSError."""
        pathlib.Path(path).write_text(self.html, encoding="utf-8")

    def __repr__(self) -> str:
        return self.text.rstrip("\n")

    def _repr_html_(self) -> str:
        # An iframe isolates the style of the page from that of the notebook; its colours follow the reader's system.
        return (f'<iframe sandbox srcdoc="{html.escape(self.html, quote=True)}" title="rankprobe diagnose" '
                f'style="width:100%;height:{_FRAME_HEIGHT}px;border:0"></iframe>')


class Recording:
    """A run in a collector or in the archive of a data directory, or a dump on disk. Use rankprobe.open() to construct one.

    Methods raise ValueError for a request that a dump cannot answer or that is invalid, LookupError if there is no such run or
    value, ConnectionError if no collector answers, and OSError if it refuses."""

    def __init__(self, source: str | os.PathLike[str], *, run: str | None = None, collector: str | None = None) -> None:
        self._collector, self._data_dir, self.dump = collector, None, None
        path = pathlib.Path(source)
        name = os.fspath(source)
        if name.startswith("run:") or not path.is_dir():
            if not name.startswith("run:") and (path.is_absolute() or name.startswith(".") or path.exists()):
                raise ValueError(f"{name}: is not a directory")
            if run is not None:
                raise ValueError(f"{name} names a run; run= chooses one of a data directory")
            self.run: str | None = name.removeprefix("run:")
            self.info = self._run_info()
        elif (path / "index").is_dir() and (path / "segments").is_dir():
            if collector is not None:
                raise ValueError("a collector or a data directory, not both")
            self._data_dir, self.run = path, run
            self.info = self._run_info()
            self.run = str(self.info["run"])
        else:
            if run is not None:
                raise ValueError(f"{path} is a dump, which has no runs to choose from")
            self.dump, self.run, self.info = path, None, {}

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[str | None]:
        """Yields the address of a collector that has the archive open; None means the default one. Starts one for a data directory."""
        if self._data_dir is None:
            yield self._collector
        else:
            with archive.collector_of(self._data_dir) as address:
                yield address

    def _run_info(self) -> dict[str, Any]:
        with self._reachable() as address, _as_python_errors():
            lines, _ = _command.ask(["runs"], collector=address)
        found = {str(one["run"]): dict(one) for one in lines[0]["runs"]}
        if self.run is None and len(found) == 1:
            return next(iter(found.values()))
        if self.run is None or self.run not in found:
            which = "which run? run=NAME" if self.run is None else f"there is no run {self.run}"
            raise LookupError(f"{which}; there are {', '.join(found) or 'none'}")
        return found[self.run]

    def _selected(self, selection: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if self.run is None:
            raise ValueError(f"{self.dump} is a dump: it has no table. diagnose() reads it; a table needs a run in a collector or a "
                             "data directory (docs/tables.md)")
        where = {"data_dir": self._data_dir} if self._data_dir is not None else {"collector": self._collector}
        return self.run, {**where, **selection}

    def table(self, match: str = "", **selection: Any) -> pyarrow.Table:
        """Returns the table of rankprobe.archive.read(); `match`, `steps`, `ranks` and `of` select the values."""
        run, selection = self._selected({"match": match, **selection})
        return archive.read(run, **selection)

    def frame(self, match: str = "", **selection: Any) -> pandas.DataFrame:
        """Returns the DataFrame of rankprobe.archive.frame(), with one row for each value of each step and rank."""
        run, selection = self._selected({"match": match, **selection})
        return archive.frame(run, **selection)

    def plot(self, match: str = "", statistic: str = "Norm", *, most: int = _MOST_LINES, ax: matplotlib.axes.Axes | None = None,
             **selection: Any) -> Any:
        """Plots a statistic over the steps, with one line for each value and rank, at most `most` (default 10): first those with
        numbers that are not finite, then those that change most. A cross marks the steps in which a number is not finite. `ax`:
        the Axes to draw on; default a new figure. Returns matplotlib's Axes."""
        import numpy
        from matplotlib import pyplot

        frame = self.frame(match, **selection)
        if statistic not in frame.columns:
            raise ValueError(f"{statistic} is not a statistic; there are {', '.join(frame.columns[8:])}")
        frame = frame[frame[statistic].notna() | (frame[statistic] != frame[statistic])]
        lines = []
        for key, group in frame.groupby(_KEYS, observed=True, dropna=False, sort=False):
            numbers = group[statistic].to_numpy(dtype=float, na_value=numpy.nan)
            finite = numpy.abs(numbers[numpy.isfinite(numbers)])
            spread = float(finite.max() / max(finite.min(), 1e-30)) if finite.size else 0.0
            lines.append((bool(finite.size < numbers.size), spread, key, group["step"].to_numpy(), numbers))
        if not lines:
            raise LookupError(f"no {statistic} of {match or 'any value'} is recorded")
        lines.sort(key=lambda line: line[:2], reverse=True)
        axes: Any = pyplot.subplots(layout="constrained")[1] if ax is None else ax
        shown = lines[:most]
        for _, _, (call, position, rank), steps, numbers in shown:
            name = f"{call}.{position}" if position else str(call)
            (line,) = axes.plot(steps, numpy.where(numpy.isfinite(numbers), numbers, numpy.nan), marker=".",
                                label=name if rank != rank else f"{name} rank {int(rank)}")
            bad = steps[~numpy.isfinite(numbers)]
            axes.plot(bad, [0.98] * len(bad), "x", color=line.get_color(), transform=axes.get_xaxis_transform())
        positive = numpy.concatenate([numbers[numpy.isfinite(numbers)] for *_, numbers in shown])
        if positive.size and positive.min() > 0 and positive.max() > 100 * positive.min():
            axes.set_yscale("log")
        axes.set(xlabel="step", ylabel=statistic, title=f"{self.run}: {len(shown)} of {len(lines)} values")
        axes.legend(fontsize="x-small")
        return axes

    def diagnose(self, reference: str | os.PathLike[str] = "") -> Answer:
        """Returns the answer of `rankprobe diagnose`; with `reference` (run:NAME of the same collector, or a dump) it includes what
        differs from the reference."""
        return diagnose(f"run:{self.run}" if self.run is not None else os.fspath(self.dump or ""), reference, self._reachable())

    def _rows(self) -> Sequence[tuple[str, Any]]:
        if self.run is None:
            return [("dump", self.dump)]
        return [("run", self.run), ("from", self._data_dir or self._collector or "the collector"),
                *((name, self.info[name]) for name in ("ranks", "steps", "records"))]

    def __repr__(self) -> str:
        return f"<rankprobe {', '.join(f'{name} {value}' for name, value in self._rows())}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th style='text-align:left'>{html.escape(name)}</th><td style='text-align:left'>{html.escape(str(value))}</td></tr>"
                       for name, value in self._rows())
        calls = ("frame(), plot(), diagnose()" if self.run is not None else "diagnose()")
        return f"<table>{rows}<tr><th style='text-align:left'>ask</th><td style='text-align:left'><code>{calls}</code></td></tr></table>"


@contextlib.contextmanager
def _as_python_errors() -> Iterator[None]:
    try:
        yield
    except _command.CommandFailed as error:
        raise archive.ERRORS.get(error.code, OSError)(str(error)) from None


def diagnose(source: str, reference: str | os.PathLike[str] = "",
             reachable: contextlib.AbstractContextManager[str | None] | None = None) -> Answer:
    """Runs the command and returns its answer with the page. `reachable`: a context manager that yields the collector's address."""
    words = ["diagnose", source, *([f"--reference={_command.to_input(os.fspath(reference))}"] if os.fspath(reference) else [])]
    with tempfile.TemporaryDirectory() as scratch, (reachable or contextlib.nullcontext()) as address, _as_python_errors():
        page = pathlib.Path(scratch, "answer.html")
        out, _ = _command.text_of(["--json", *words, f"--html={page}"], collector=address)
        report = json.loads(out)
        return Answer(report, answer_text(report), page.read_text(encoding="utf-8"))


def answer_text(report: dict[str, Any], most: int = 5) -> str:
    """Returns the notes, which say what was judged where several jobs have the run's name, and the first `most` findings, one per line."""
    notes, lines = [f"{note}." for note in report.get("notes", [])], []
    for one in report["findings"][:most]:
        rank = f" rank {one['rank']}" if one.get("rank") is not None else ""
        place = f" at {one['code_line']}" if one.get("code_line") else ""
        lines.append(f"step {one['step']}{rank}: {one['name']} {one['what']}{place} ({one['by']}, {one['sure']})")
    if len(report["findings"]) > most:
        lines.append(f"{len(report['findings']) - most} more findings")
    return "\n".join([*notes, *(lines or ["nothing was found in what was recorded"])])
