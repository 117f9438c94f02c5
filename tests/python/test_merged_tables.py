# SPDX-License-Identifier: Apache-2.0
"""merge_result of tables as csv: rows, columns, what is left out and what is refused. Beside msprobe's own: tests/interop/test_merge_result.py."""

from __future__ import annotations

import builtins
import csv
import json
import os
import pathlib
import zipfile
from typing import Any

import pytest

from rankprobe import merge_result

openpyxl = pytest.importorskip("openpyxl")
pytest.importorskip("pandas")

TIME = "20261124020304"
FIRST = ["NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape", "NPU Requires_grad", "Bench Requires_grad"]
STATISTICS = ["Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr"]
TENSORS = ["Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr"]
VALUES = ["NPU max", "NPU min", "Bench max", "Bench min"]
LAST = ["Requires_grad Consistent", "Result", "Err_message"]


def table(directory: pathlib.Path, rank: int, rows: list[tuple], indices: list[str] = STATISTICS, **cells: str) -> pathlib.Path:
    """Rows of name, first index, NPU max and Bench max; N/A elsewhere."""
    header = FIRST + indices + VALUES + LAST
    path = directory / f"compare_result_rank{rank}_{TIME}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for name, index, ours, theirs in rows:
            known = {"NPU Name": name, indices[0]: index, "NPU max": ours, "Bench max": theirs, LAST[0]: "True", **cells}
            writer.writerow([known.get(column, "N/A") for column in header])
    path.chmod(0o640)
    return path


class Answer:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.err, self.report = code, err, json.loads(out) if code < 2 else {}

    def sheets(self) -> dict[str, list[tuple]]:
        book = openpyxl.load_workbook(self.report["file"])
        return {sheet.title: list(sheet.iter_rows(values_only=True)) for sheet in book.worksheets}


@pytest.fixture
def merge(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> Any:
    tmp_path.chmod(0o750)

    def run(config: str, *words: str) -> Answer:
        path = tmp_path / "merge.yaml"
        path.write_text(config)
        path.chmod(0o640)
        code = merge_result.main([str(tmp_path), "-o", str(tmp_path / "out"), "-config", str(path), "--json", *words])
        return Answer(code, *capsys.readouterr())
    return run


def test_a_sheet_for_each_index_and_a_column_for_each_rank(tmp_path: pathlib.Path, merge: Any) -> None:
    table(tmp_path, 0, [("b.f.0.in", 1, 2, 1), ("a.f.0.in", 0.5, 2, 1.5), ("other.0", 7, 7, 7)])
    table(tmp_path, 10, [("b.f.0.in", 3, 4, 1), ("c.f.0.in", -2, 4, 6)])
    table(tmp_path, 2, [("x.0", 1, 1, 1)])
    answer = merge("{api: [f, missing], compare_index: [Max diff, Mean diff]}")
    assert answer.code == 0 and answer.report["ranks"] == [0, 2, 10] and answer.report["rows"] == 3
    assert [line.removeprefix("rankprobe: warning: ") for line in answer.err.splitlines()] == [
        "rank 0 has no row of missing", "rank 2 has no row of f", "rank 2 has no row of missing", "rank 10 has no row of missing"]
    head = ("NPU Name", "rank0", "rank2", "rank10")
    # In place of an index that is not a number stand the values; 2 is 2.0 beside 1.5.
    assert answer.sheets() == {
        "Max diff": [head, ("a.f.0.in", 0.5, None, None), ("b.f.0.in", 1, None, 3), ("c.f.0.in", None, None, -2)],
        "Mean diff": [head, ("a.f.0.in", "NPU:2  Bench:1.5", None, None), ("b.f.0.in", "NPU:2  Bench:1.0", None, "NPU:4  Bench:1"),
                      ("c.f.0.in", None, None, "NPU:4  Bench:6")]}
    answer = merge("{api: [f], compare_index: [Max diff]}", "--csv")
    assert pathlib.Path(answer.report["file"]).read_text().splitlines() == [
        "Index,NPU Name,rank0,rank2,rank10", "Max diff,a.f.0.in,0.5,,", "Max diff,b.f.0.in,1,,3", "Max diff,c.f.0.in,,,-2"]
    assert not list((tmp_path / "out").glob(".*")), "no temporary file is left"


def test_tables_that_cannot_be_merged_are_left_out(tmp_path: pathlib.Path, merge: Any) -> None:
    table(tmp_path, 0, [("z.0", 1, 2, 1), ("a.0", 1, 2, 1)])
    table(tmp_path, 1, [("a.0", 1, 2, 1)], ["NPU MD5", "Max diff"])
    table(tmp_path, 2, [("a.0", 1, 2, 1)], TENSORS)
    table(tmp_path, 3, [])
    (tmp_path / f"compare_result_rank4_{TIME}.csv").write_text("NPU Name,x\na,1\n")
    answer = merge("api: [z, a]")
    assert answer.code == 1 and answer.report["left_out"] == [
        "rank 1: is of checksums (md5), which are not merged", f"rank 2: has no {', '.join(i for i in STATISTICS if i not in TENSORS)} to compare by",
        "rank 3: has no rows", "rank 4: does not have the columns of a compare table"]
    # One rank alone keeps the order of the configuration.
    assert [row[0] for row in answer.sheets()["Max diff"][1:]] == ["z.0", "a.0"]
    assert list(answer.sheets()) == [*STATISTICS, LAST[0]]
    answer = merge("{api: [a], compare_index: [Nonsense]}")
    assert answer.code == 2 and ": nothing to merge: rank 0: has no Nonsense to compare by; rank 1: " in answer.err


def test_expressions(tmp_path: pathlib.Path, merge: Any) -> None:
    table(tmp_path, 0, [(name, i, 2, 1) for i, name in enumerate(
        ("layers.0.x.in", "layers.1.x.in", "layersX1.x.in", "layers.1.x.in", "layers.10.x.in"))])
    table(tmp_path, 1, [("y.0", 1, 2, 1)])
    # The dot is a dot, the name ends with one, and the first of two rows counts.
    assert merge("{api: [layers.1], compare_index: [Max diff]}").sheets()["Max diff"][1:] == [("layers.1.x.in", 1, None)]
    assert merge("{api: ['layers.[01]+.x'], compare_index: [Max diff]}").report["rows"] == 3


@pytest.mark.parametrize("config, said", [
    ("", "no `api`"), ("compare_index: [a]", "no `api`"), ("api: []", "no `api`"), ("api: a", "`api` is a list"), ("api: [[a]]", "`api` is a list"),
    ("{api: [a], compare_index: Max diff}", "`compare_index` is a list"), ("api: [a", "merge.yaml: "), ("api: ['a[']", "api a[: ")])
def test_configurations_that_are_refused(tmp_path: pathlib.Path, merge: Any, config: str, said: str) -> None:
    answer = merge(config)
    assert answer.code == 2 and said in answer.err and answer.err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_directories_that_are_refused(tmp_path: pathlib.Path, merge: Any) -> None:
    assert "has 0 tables of ranks" in merge("api: [a]").err
    table(tmp_path, 0, [("a.0", 1, 2, 1)])
    (tmp_path / "advice.csv").write_text("x")
    assert "has 1 tables of ranks" in merge("api: [a]").err
    table(tmp_path, 1, [("a.0", 1, 2, 1)])
    assert merge("api: [a]").code == 0
    (tmp_path / f"compare_result_rank1-rank1_{TIME}.csv").write_text("x")
    assert "rank 1 has two tables, " in merge("api: [a]").err
    (tmp_path / f"compare_result_step0_rank1_{TIME}.xlsx").write_text("x")
    assert "expected only tables" in merge("api: [a]").err


def test_hostile_tables_are_refused(tmp_path: pathlib.Path, merge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path, 0, [("a.0", 1, 2, 1)])
    path = table(tmp_path, 1, [("a.0", "=cmd|' /C calc'!A0", 2, 1)])
    assert "rank1_20261124020304.csv: a cell that a spreadsheet would run: =cmd" in merge("api: [a]").err
    assert merge("api: [b]").code == 0, "a row that is not chosen does no harm"
    for text, said in (("," * 1000 + "\n", "more than 256 columns"), ("\xff", "cannot be read as a table"), ('a\n"b', "cannot be read as a table")):
        path.write_bytes(text.encode("latin-1"))
        assert said in merge("api: [a]").err, text[:5]
    path.unlink()
    for rank in range(2):
        book = tmp_path / f"compare_result_rank{rank}_{TIME}.xlsx"
        with zipfile.ZipFile(book, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("xl/workbook.xml", b" " * (64 << 10))
        book.chmod(0o640)
    assert "cannot be read as a table" in merge("api: [a]").err
    monkeypatch.setattr(merge_result, "_MOST_BYTES_UNPACKED", 1000)
    assert "more than 1000 bytes unpacked" in merge("api: [a]").err
    monkeypatch.setattr(merge_result, "_MOST_BYTES", 10)
    assert "has more than 10 bytes" in merge("api: [a]").err


def test_a_library_that_is_missing_is_named(tmp_path: pathlib.Path, merge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_pandas(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        return real(name, *rest)

    for rank in range(2):
        table(tmp_path, rank, [("a.0", 1, 2, 1)])
    monkeypatch.setattr(builtins, "__import__", without_pandas)
    answer = merge("api: [a]")
    assert answer.code == 2 and answer.err == "rankprobe: merge_result needs pandas: pip install 'rankprobe[tables]'\n"
    assert os.listdir(tmp_path).count("out") == 0
