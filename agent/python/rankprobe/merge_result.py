# SPDX-License-Identifier: Apache-2.0
"""Merges the compare tables of many ranks into one workbook: rankprobe merge_result TABLES -o OUT -config YAML

    rankprobe merge_result result -o merged -config merge.yaml

TABLES has a file compare_result_rank{R}_{time}.xlsx (or .csv) for each rank, as `rankprobe compare` and msprobe write it. The result,
multi_ranks_compare_merge_{time}.xlsx, has a sheet for each index and a column for each rank. Needs pandas, openpyxl and PyYAML
(pip install 'rankprobe[tables]'). Exit status: 0 all tables are merged, 1 some are left out, 2 nothing is merged, or bad usage.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import pathlib
import re
import sys
import time
import warnings
import zipfile
from typing import Any, Iterator, NamedTuple, Sequence

from rankprobe._inputs import Refused, open_input, show
from rankprobe.run import Parser

_TABLE = re.compile(r"compare_result_rank(\d+)(?:-rank\1)?_\d{14}(?:_\d+)?\.(?:xlsx|csv)")
_TABLE_OF_NO_RANK = re.compile(r"compare_result_rank(?:-rank)?_\d{14}\.(?:xlsx|csv)")
_MERGED = "multi_ranks_compare_merge_"
_FIRST_COLUMNS = ["NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape", "NPU Requires_grad",
                  "Bench Requires_grad"]
_REQUIRES_GRAD = "Requires_grad Consistent"
# Index values that are not numbers; the maxima of both sides are shown instead.
_NO_NUMBER = ("N/A", "unsupported", "Nan")
# Matches a cell, or a part of it after ";", that a spreadsheet would interpret as a formula.
_FORMULA = re.compile(r"[=+\-@%＋－＝％＠]|.*;[=+\-@%]", re.DOTALL)
_MOST_BYTES, _MOST_BYTES_UNPACKED, _MOST_COLUMNS = 1 << 30, 1 << 32, 256
_SHEET_ROWS, _SHEET_NAME = 1_048_500, 31


class _LeftOut(Exception):
    """The table is not merged; the text says why."""


class _Rank(NamedTuple):
    number: int
    cells: dict[str, list[Any]]  # name of a row to its cells, in the order of the indices


class _Merged(NamedTuple):
    indices: list[str]
    ranks: list[_Rank]
    names: list[str]
    left_out: list[str]

    def rows(self, index: int) -> Iterator[list[Any]]:
        for name in self.names:
            yield [name, *(rank.cells[name][index] if name in rank.cells else None for rank in self.ranks)]


def _read_config(path: str, force: bool) -> tuple[dict[str, re.Pattern[str]], list[str]]:
    """Reads the configuration. Returns the pattern for the rows of each API, and the indices; an empty list means all of the task."""
    import yaml

    def names(key: str) -> list[str]:
        found = config.get(key) or []
        if not isinstance(found, list) or not all(isinstance(name, (str, int, float)) and name != "" for name in found):
            raise Refused(f"{path}: `{key}` is a list of names")
        return list(dict.fromkeys(map(str, found)))

    try:
        with open_input(path, force) as file:
            config = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as fault:
        raise Refused(f"{path}: {' '.join(str(fault).split())}") from None
    if not isinstance(config, dict) or not config.get("api"):
        raise Refused(f"{path}: no `api`: name the APIs whose rows are merged, as `api: [..]`")
    apis = {}
    for api in names("api"):
        try:
            apis[api] = re.compile(f"{api}.".replace(".", r"\."))
        except re.error as fault:
            raise Refused(f"{path}: api {api}: {fault}") from None
    return apis, names("compare_index")


def _find_tables(directory: pathlib.Path, warned: list[str]) -> dict[int, pathlib.Path]:
    """Returns the tables of the directory by rank, in the order of ranks. Adds warnings to `warned`. Raises Refused."""
    try:
        names = sorted(os.listdir(directory))
    except OSError as fault:
        raise Refused(f"{directory}: {fault.strerror}") from None
    books = [name for name in names if name.endswith(".xlsx") and not name.startswith(_MERGED)]
    found: dict[int, pathlib.Path] = {}
    for name in books or [name for name in names if name.endswith(".csv")]:
        if table := _TABLE.fullmatch(name):
            if (other := found.setdefault(int(table[1]), directory / name)).name != name:
                raise Refused(f"{directory}: rank {table[1]} has two tables, {other.name} and {name}")
        elif _TABLE_OF_NO_RANK.fullmatch(name):
            warned.append(f"{name} is of no rank: there is nothing to merge it with")
        elif books:
            raise Refused(f"{directory / name}: expected only tables compare_result_rank{{R}}_{{time}}.xlsx, as `compare` names them "
                          "for the ranks of one step")
    if len(found) < 2:
        raise Refused(f"{directory}: has {len(found)} tables of ranks (compare_result_rank{{R}}_{{time}}.xlsx or .csv); a merge needs two")
    return dict(sorted(found.items()))


def _number_or_text(cell: str) -> float | str:
    """Converts a csv cell to the value that a workbook has: a finite number becomes a float, or an int if it is integral."""
    try:
        number = float(cell)
    except ValueError:
        return cell
    return cell if not math.isfinite(number) or "_" in cell else int(number) if number.is_integer() else number


def _read_table(path: pathlib.Path, force: bool) -> Any:
    """Reads a table as a pandas.DataFrame with the column types that pandas infers, as in msprobe. Raises Refused."""
    import pandas

    with open_input(path, force, "rb") as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise Refused(f"{path}: has more than {_MOST_BYTES} bytes")
        try:
            if path.suffix == ".csv":
                text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
                rows = [[_number_or_text(cell) for cell in row] for row in csv.reader(text, strict=True) if row]
                frame = pandas.io.parsers.TextParser(rows, header=0, keep_default_na=False).read()
            else:
                with zipfile.ZipFile(file) as book:
                    if sum(member.file_size for member in book.infolist()) > _MOST_BYTES_UNPACKED:
                        raise ValueError(f"has more than {_MOST_BYTES_UNPACKED} bytes unpacked")
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # openpyxl warns about styles that it does not keep.
                    first, *others = pandas.read_excel(file, sheet_name=None, keep_default_na=False, engine="openpyxl").values()
                # A table that is longer than a sheet continues in the next one.
                others = [other for other in others if list(other.columns) == list(first.columns)]
                frame = pandas.concat([first, *others], ignore_index=True) if others else first
        except ImportError:
            raise
        except Exception as fault:  # noqa: BLE001 - pandas, openpyxl, zipfile and the XML parser each raise errors of their own
            raise Refused(f"{path}: cannot be read as a table: {' '.join(str(fault).split())[:200]}") from None
    if len(frame.columns) > _MOST_COLUMNS:
        raise Refused(f"{path}: has more than {_MOST_COLUMNS} columns")
    return frame


def _indices_of(columns: list[str]) -> list[str]:
    """Returns the indices of a table with these columns. Raises _LeftOut for a table that cannot be merged."""
    if columns[:len(_FIRST_COLUMNS)] != _FIRST_COLUMNS or not {"Result", "Err_message", _REQUIRES_GRAD} <= set(columns):
        raise _LeftOut("does not have the columns of a compare table")
    if "NPU MD5" in columns:
        raise _LeftOut("is of checksums (md5), which are not merged")
    if not {"NPU max", "Bench max"} <= set(columns) or not {"Max diff", "Cosine"} & set(columns):
        raise _LeftOut("does not have the columns of a compare table")
    return [*columns[len(_FIRST_COLUMNS):columns.index("NPU max")], _REQUIRES_GRAD]


def _read_rank(rank: int, path: pathlib.Path, force: bool, apis: dict[str, re.Pattern[str]], indices: list[str],
               warned: list[str]) -> _Rank:
    """Returns the cells of the rows that match an API. If the configuration names no indices, the first table defines `indices`."""
    frame = _read_table(path, force)
    own = _indices_of([str(column) for column in frame.columns])
    indices[:] = indices or own
    if lacking := [index for index in indices if index not in own]:
        raise _LeftOut(f"has no {', '.join(lacking)} to compare by")
    names = frame["NPU Name"].tolist()
    if not names:
        raise _LeftOut("has no rows")
    columns = [frame[index].tolist() for index in indices]
    largest, of_bench = frame["NPU max"].tolist(), frame["Bench max"].tolist()
    rows: dict[str, int] = {}  # The first of several rows with the same name counts.
    for api, pattern in apis.items():
        found = [(name, row) for row, name in enumerate(names) if isinstance(name, str) and pattern.search(name)]
        for name, row in found:
            rows.setdefault(name, row)
        if not found:
            warned.append(f"rank {rank} has no row of {api}")

    def cell(column: list[Any], row: int) -> Any:
        value = column[row]
        _refuse_formula(path, value)
        if isinstance(value, str):
            return f"NPU:{largest[row]}  Bench:{of_bench[row]}" if value in _NO_NUMBER else value or None
        if isinstance(value, float) and not math.isfinite(value):
            return None if math.isnan(value) else str(value)
        return value

    for name in rows:
        _refuse_formula(path, name)
    return _Rank(rank, {name: [cell(column, row) for column in columns] for name, row in rows.items()})


def _refuse_formula(path: pathlib.Path, value: Any) -> None:
    if not isinstance(value, str) or not _FORMULA.match(value):
        return
    try:
        float(value)
    except ValueError:
        raise Refused(f"{path}: a cell that a spreadsheet would run: {value[:200]}") from None


def _merge(tables: pathlib.Path, config: str, force: bool) -> _Merged:
    apis, indices = _read_config(config, force)
    ranks, left_out, warned = [], [], list[str]()
    for rank, path in _find_tables(tables, warned).items():
        try:
            ranks.append(_read_rank(rank, path, force, apis, indices, warned))
        except _LeftOut as why:
            left_out.append(f"rank {rank}: {why}")
    if not ranks:
        raise Refused(f"{tables}: nothing to merge: {'; '.join(left_out)}")
    for text in warned:
        print(f"rankprobe: warning: {show(text)}", file=sys.stderr)
    names = list(dict.fromkeys(name for rank in ranks for name in rank.cells))
    return _Merged(indices, ranks, sorted(names) if len(ranks) > 1 else names, left_out)


def _write_book(path: pathlib.Path, merged: _Merged) -> None:
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE
    from openpyxl.styles import Font

    def shown(value: Any) -> Any:
        return ILLEGAL_CHARACTERS_RE.sub(lambda found: show(found[0]), value) if isinstance(value, str) else value

    book = Workbook(write_only=True)
    parts = 1 if len(merged.names) < _SHEET_ROWS else -(-len(merged.names) // _SHEET_ROWS)
    size = -(-len(merged.names) // parts)
    for number, index in enumerate(merged.indices):
        rows = merged.rows(number)
        for part in range(parts):
            end = f"_part_{part}" if parts > 1 else ""
            sheet = book.create_sheet(re.sub(r"[][:*?/\\']", "_", index)[:_SHEET_NAME - len(end)] + end)
            header = [WriteOnlyCell(sheet, text) for text in ("NPU Name", *(f"rank{rank.number}" for rank in merged.ranks))]
            for cell in header:
                cell.font = Font(bold=True)
            sheet.append(header)
            for _, row in zip(range(size), rows):
                sheet.append([shown(value) for value in row])
    book.save(path)


def _write_csv(path: pathlib.Path, merged: _Merged) -> None:
    def shown(value: Any) -> str:
        # 16 digits, as in a workbook.
        return "" if value is None else f"{value:.16g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)

    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["Index", "NPU Name", *(f"rank{rank.number}" for rank in merged.ranks)])
        for number, index in enumerate(merged.indices):
            writer.writerows([index, *map(shown, row)] for row in merged.rows(number))


def _write(directory: pathlib.Path, as_csv: bool, merged: _Merged) -> pathlib.Path:
    """Writes the result atomically and returns its path. A number is added to the name if a file of the same second exists."""
    directory.mkdir(parents=True, exist_ok=True)
    stem, suffix = _MERGED + time.strftime("%Y%m%d%H%M%S"), ".csv" if as_csv else ".xlsx"
    path, number = directory / (stem + suffix), 2
    while path.exists():
        path, number = directory / f"{stem}_{number}{suffix}", number + 1
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        (_write_csv if as_csv else _write_book)(temporary, merged)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _parser() -> Parser:
    parser = Parser(prog="rankprobe merge_result", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                    allow_abbrev=False)
    parser.add_argument("tables", nargs="?", help="directory of compare_result_rank{R}_{time}.xlsx, or .csv where there is no .xlsx")
    parser.add_argument("-i", "--input_dir", metavar="TABLES", help="the same, as msprobe takes it")
    parser.add_argument("-o", "--output_dir", metavar="OUT", required=True, help="directory of the result")
    parser.add_argument("-config", "--config-path", metavar="YAML", required=True,
                        help="api: [NAME ..], compare_index: [COLUMN ..] (left out: all of the task)")
    parser.add_argument("--csv", action="store_true", help="one csv whose first column is the index, in place of a workbook")
    parser.add_argument("--force", action="store_true", help="read files that the permission rule refuses, with a warning")
    parser.add_argument("--json", action="store_true", help="one line of JSON on standard output")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    tables = arguments.input_dir or arguments.tables
    if tables is None or (arguments.input_dir and arguments.tables):
        parser.error("name one directory of tables")
    try:
        merged = _merge(pathlib.Path(tables), arguments.config_path, arguments.force)
        path = _write(pathlib.Path(arguments.output_dir), arguments.csv, merged)
    except ImportError as fault:
        print(f"rankprobe: merge_result needs {fault.name or 'openpyxl'}: pip install 'rankprobe[tables]'", file=sys.stderr)
        return 2
    except (Refused, OSError) as fault:
        print(f"rankprobe: {show(fault)}", file=sys.stderr)
        return 2
    report = {"file": str(path), "ranks": [rank.number for rank in merged.ranks], "indices": merged.indices, "rows": len(merged.names),
              "left_out": merged.left_out}
    if arguments.json:
        print(json.dumps(report))
    else:
        print(f"{path}: indices: {len(merged.indices)}, ranks: {len(merged.ranks)}, rows: {len(merged.names)}")
        for text in merged.left_out:
            print(f"left out: {show(text)}")
    return 1 if merged.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
