# SPDX-License-Identifier: Apache-2.0
"""merge_result beside the real msprobe, on the same compare tables: sheet by sheet, cell by cell, exactly."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import openpyxl
import pytest
import torch

import layouts
import peer
import plant

ROOT = pathlib.Path(__file__).parents[2]
DUMPS = ROOT / "tests" / "golden" / "dumps"
RANKPROBE = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release")) / "bin" / "rankprobe"
TIME = "20261124020304"
STATISTICS = ["Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr",
              "NormRelativeErr", "Requires_grad Consistent"]
TENSORS = ["Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio",
           "Requires_grad Consistent"]


def ours(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run([RANKPROBE, *map(str, words)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "RANKPROBE_PYTHON": sys.executable})


def cells(path: pathlib.Path) -> dict[str, list[tuple]]:
    """Rows of each sheet; a truth is not a number here."""
    book = openpyxl.load_workbook(path)
    return {sheet.title: [tuple(("truth", c) if isinstance(c, bool) else c for c in row)
                          for row in sheet.iter_rows(values_only=True)] for sheet in book.worksheets}


def config(directory: pathlib.Path, text: str) -> pathlib.Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "merge.yaml"
    path.write_text(text)
    path.chmod(0o640)
    return path


def merge_with_both(tables: pathlib.Path, text: str, directory: pathlib.Path, status: int = 0) -> tuple[dict, dict]:
    path = config(directory, text)
    done = ours("merge_result", "-i", tables, "-o", directory / "ours", "-config", path)
    assert done.returncode == status, done.stderr
    code, said = peer.run("merge_result", "-i", tables, "-o", directory / "peer", "-config", path, directory=directory)
    assert code == 0, said[-3000:]
    books = []
    for name in ("ours", "peer"):
        book, = (directory / name).iterdir()
        assert book.name.startswith("multi_ranks_compare_merge_") and len(book.stem) == 40 and book.suffix == ".xlsx"
        books.append(cells(book))
    return books[0], books[1]


def compare(tool: str, target: pathlib.Path, golden: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    words = ["compare", "-tp", target, "-gp", golden, "-o", out, "--xlsx"]
    if tool == "rankprobe":
        done = ours(*words)
        assert done.returncode == 0, done.stderr
    else:
        code, said = peer.run(*words, directory=target.parent)
        assert code == 0, said[-3000:]
    return out


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> pathlib.Path:
    """Dumps of two real ranks; of the target one has planted defects."""
    directory = tmp_path_factory.mktemp("two")
    for name in ("target", "golden"):
        shutil.copytree(DUMPS / "ddp_stat_mix" / "step0", directory / name)
    plant.plant(str(directory / "target" / "rank1"))
    return directory


@pytest.fixture(scope="module")
def tables_of_two(two, tmp_path_factory) -> pathlib.Path:
    return compare("rankprobe", two / "target", two / "golden", tmp_path_factory.mktemp("tables_of_two") / "tables")


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> pathlib.Path:
    """Dumps of four ranks of a tensor and pipeline parallel model: the stages have other calls. Numbers differ."""
    directory = tmp_path_factory.mktemp("four")
    for name in ("target", "golden"):
        layouts.write(directory / name, 2, 2)
    for rank in range(4):
        path = directory / "target" / f"rank{rank}" / "dump.json"
        dump = json.loads(path.read_text())
        for number, leaf in enumerate(leaf for entry in dump["data"].values() for leaf in plant.leaves(entry)
                                      if leaf["type"] == "torch.Tensor"):
            if number % 3 == 0:
                leaf["Max"] *= 1 + rank / 7
                leaf["Norm"] += number
            if number % 11 == 0:
                leaf["Mean"] = float("nan") if rank % 2 else float("inf")
            if number % 13 == 0:
                leaf["requires_grad"] = False
        path.write_text(json.dumps(dump, indent=1))
    # Rows without a partner on one rank, and rows that another lacks.
    for side, rank, call in (("golden", 2, "Distributed.all_reduce.1.forward"), ("target", 3, "Distributed.all_reduce.2.forward")):
        path = directory / side / f"rank{rank}" / "dump.json"
        dump = json.loads(path.read_text())
        del dump["data"][call]
        path.write_text(json.dumps(dump, indent=1))
    return directory


@pytest.fixture(scope="module")
def tensors(four, tmp_path_factory) -> pathlib.Path:
    """The same ranks with values: the .pt files of both sides."""
    directory = tmp_path_factory.mktemp("tensors")
    for name in ("target", "golden"):
        shutil.copytree(four / name, directory / name)
        for rank in (directory / name).iterdir():
            path, place = rank / "dump.json", rank / "dump_tensor_data"
            place.mkdir(exist_ok=True)
            dump = json.loads(path.read_text())
            dump.update(task="tensor", dump_data_dir=str(place))
            for call, entry in dump["data"].items():
                for section in ("input_args", "input", "output"):
                    for i, leaf in enumerate(entry.get(section, [])):
                        torch.manual_seed(len(call) * 31 + i)
                        value = torch.randn(leaf["shape"])
                        if name == "target" and i % 2 == 0:
                            value = value * 1.01 + 0.001 * int(rank.name[-1])
                        kind = "output" if section == "output" else "input"
                        leaf["data_name"] = f"{call}.{kind}.{i}.pt"
                        torch.save(value, place / leaf["data_name"])
                        (place / leaf["data_name"]).chmod(0o640)
            path.write_text(json.dumps(dump, indent=1))
    return directory


@pytest.mark.parametrize("tool", ["rankprobe", "msprobe"])
@pytest.mark.parametrize("text,sheets", [
    ("api: [Module, Functional.linear, Distributed]", STATISTICS),
    ("api:\n  - linear\n  - Torch.nothing\ncompare_index:\n  - MaxRelativeErr\n  - Max diff\n", ["MaxRelativeErr", "Max diff"]),
    ("api: ['Module.module.[a-z0-9]+.(Linear|ReLU)']\ncompare_index:\n", STATISTICS),
    ("api: [Nothing.at.all]\ncompare_index: [Mean diff]", ["Mean diff"]),
])
def test_two_ranks(two, tmp_path, tool, text, sheets) -> None:
    tables = compare(tool, two / "target", two / "golden", tmp_path / "tables")
    mine, theirs = merge_with_both(tables, text, tmp_path)
    assert list(mine) == sheets and mine == theirs
    assert mine[sheets[0]][0] == ("NPU Name", "rank0", "rank1")
    assert len(mine[sheets[0]]) > 5 or "Nothing" in text


@pytest.mark.parametrize("tool", ["rankprobe", "msprobe"])
def test_four_ranks(four, tmp_path, tool) -> None:
    tables = compare(tool, four / "target", four / "golden", tmp_path / "tables")
    text = "api: [Distributed.all_reduce, 'Module.0.module.decoder.layers.1', TransformerLayer]"
    mine, theirs = merge_with_both(tables, text, tmp_path)
    assert mine == theirs and list(mine) == STATISTICS
    rows = mine["Mean diff"]
    assert rows[0] == ("NPU Name", "rank0", "rank1", "rank2", "rank3") and len(rows) > 30
    lacking = {row[0] for row in rows if row[4] is None}
    assert lacking == {f"Distributed.all_reduce.2.forward.{place}" for place in ("input.0", "input.group", "output.0")}
    partnerless = {row[0].split(".forward.")[1]: row[3] for row in rows if row[0].startswith("Distributed.all_reduce.1.forward")}
    assert partnerless["input.group"] == "NPU:[2, 3]  Bench:N/A" and partnerless["output.0"].endswith("  Bench:N/A")


@pytest.mark.parametrize("tool", ["rankprobe", "msprobe"])
def test_four_ranks_of_tensors(tensors, tmp_path, tool) -> None:
    tables = compare(tool, tensors / "target", tensors / "golden", tmp_path / "tables")
    mine, theirs = merge_with_both(tables, "api: [Torch.matmul, Distributed]", tmp_path)
    assert mine == theirs and list(mine) == TENSORS
    assert sum(isinstance(cell, float) for row in mine["Cosine"] for cell in row) > 20


def table(path: pathlib.Path, columns: dict[str, list], names: list[str] | None = None) -> None:
    """A workbook as a spreadsheet saves it: statistics, with these cells."""
    rows = len(next(iter(columns.values())))
    basic = ["NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
             "NPU Requires_grad", "Bench Requires_grad"]
    summary = [f"{side} {name}" for side in ("NPU", "Bench") for name in ("max", "min", "mean", "l2norm")]
    header = [*basic, *STATISTICS[:-1], *summary, "Requires_grad Consistent", "Result", "Err_message"]
    book = openpyxl.Workbook()
    book.active.append(header)
    for row in range(rows):
        book.active.append([(names or [f"call.{i}.in" for i in range(rows)])[row] if name == "NPU Name"
                            else columns[name][row] if name in columns else "N/A" for name in header])
    path.parent.mkdir(exist_ok=True)
    book.save(path)
    path.chmod(0o640)


def test_cells_of_every_kind(tmp_path) -> None:
    kinds = {
        "Max diff": [1, 2.5, 0.1, 1e-300], "Min diff": [1, 2, 3, "N/A"], "Mean diff": ["1", "2.5", "inf", "-inf"],
        "L2norm diff": [1.5, "unsupported", "Nan", "nan"], "MaxRelativeErr": ["1%", "", None, 0.5],
        "MinRelativeErr": [True, 1, 2.5, False], "MeanRelativeErr": [1e20, -5, 2**53 + 2, 3],
        "NormRelativeErr": ["True", "x", True, 0], "NPU max": [1, 2**62, 3.4028234663852886e38, -0.0],
        "Bench max": [0.5, 1, 1e16, 1e-7], "Requires_grad Consistent": ["True", "FALSE", "true", True],
    }
    tables = tmp_path / "tables"
    table(tables / f"compare_result_rank0_{TIME}.xlsx", kinds)
    turned = {name: values[1:] + values[:1] for name, values in kinds.items()}
    turned["NPU max"] = ["tp-0-1", True, 7, 1e20]
    table(tables / f"compare_result_rank11-rank11_{TIME}.xlsx", turned, ["call.2.in", "call.1.in", "call.2.in", "other.call.3"])
    table(tables / f"compare_result_rank2_{TIME}.xlsx", {"NPU max": []})  # no rows
    mine, theirs = merge_with_both(tables, "api: [call]", tmp_path, status=1)
    assert mine == theirs
    assert mine["Max diff"][0] == ("NPU Name", "rank0", "rank11")
    assert ("call.0.in", "NPU:1.0  Bench:0.5", None) not in mine["Max diff"]
    assert mine["Min diff"][4] == ("call.3.in", "NPU:0  Bench:1e-07", None)
    assert mine["L2norm diff"][3][1] == "NPU:340282346638528897590636046441678635008  Bench:1e+16"
    assert mine["Requires_grad Consistent"][1][1] == ("truth", True)


def test_csv_tables_and_a_csv_of_all(four, tmp_path) -> None:
    done = ours("compare", "-tp", four / "target", "-gp", four / "golden", "-o", tmp_path / "csv")
    assert done.returncode == 0 and {p.suffix for p in (tmp_path / "csv").iterdir()} == {".csv"}
    compare("rankprobe", four / "target", four / "golden", tmp_path / "xlsx")
    path = config(tmp_path, "api: [Distributed.all_reduce, TransformerLayer]")
    books = []
    for kind in ("csv", "xlsx"):
        done = ours("merge_result", "-i", tmp_path / kind, "-o", tmp_path / f"of_{kind}", "-config", path, "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["ranks"] == [0, 1, 2, 3] and report["indices"] == STATISTICS and report["left_out"] == []
        books.append(cells(pathlib.Path(report["file"])))
    # A workbook of compare has 16 digits of a number, its csv all 17.
    assert [rounded(book) for book in books] == [rounded(books[0])] * 2
    done = ours("merge_result", "-i", tmp_path / "csv", "-o", tmp_path / "one", "-config", path, "--csv")
    assert done.returncode == 0, done.stderr
    one, = (tmp_path / "one").glob("*.csv")
    rows = list(csv.reader(one.open()))
    assert rows[0] == ["Index", "NPU Name", "rank0", "rank1", "rank2", "rank3"]
    expected = [(sheet, *row) for sheet, rows_of in books[0].items() for row in rows_of[1:]]
    assert len(rows) - 1 == len(expected) > 150

    def shown(cell: object) -> str:
        cell = cell[1] if isinstance(cell, tuple) else cell
        return "" if cell is None else f"{cell:.16g}" if isinstance(cell, (int, float)) and not isinstance(cell, bool) else str(cell)

    assert rows[1:] == [[shown(cell) for cell in row] for row in expected]


def rounded(book: object) -> str:
    return re.sub(r"\d+\.\d+(e[-+]\d+)?", lambda found: f"{float(found[0]):.14g}", repr(book))


@pytest.mark.parametrize("text", ["", "api:", "api: []", "api: conv", "compare_index: [Max diff]", "- api",
                                  "api: [a]\ncompare_index: Max diff", "api: [a]\ncompare_index: [Nonsense]",
                                  "api: [a]\ncompare_index: [Cosine]", "api: ['a[']", "api: [a"])
def test_configs_that_both_refuse(tables_of_two, tmp_path, text) -> None:
    refused_by_both(tables_of_two, text, tmp_path)


def refused_by_both(tables: pathlib.Path, text: str, directory: pathlib.Path) -> str:
    path = config(directory, text)
    done = ours("merge_result", "-i", tables, "-o", directory / "ours", "-config", path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not (directory / "ours").exists(), done
    code, _ = peer.run("merge_result", "-i", tables, "-o", directory / "peer", "-config", path, directory=directory)
    assert code != 0 and not list((directory / "peer").glob("*"))
    return done.stderr


def test_tables_that_both_refuse(two, tmp_path) -> None:
    api = "api: [Module]"
    one = compare("rankprobe", two / "target", two / "golden", tmp_path / "one")
    first, second = sorted(one.iterdir())
    second.rename(tmp_path / second.name)
    assert "has 1 tables of ranks" in refused_by_both(one, api, tmp_path)
    # Of no rank: a warning, and still one.
    shutil.copy(first, one / f"compare_result_rank_{TIME}.xlsx")
    assert "has 1 tables of ranks" in refused_by_both(one, api, tmp_path)
    (one / f"compare_result_rank_{TIME}.xlsx").rename(one / f"compare_result_step0_rank1_{TIME}.xlsx")
    assert "expected only tables" in refused_by_both(one, api, tmp_path)
    (one / f"compare_result_step0_rank1_{TIME}.xlsx").rename(one / f"compare_result_rank1_{TIME}.xlsx")
    (one / f"compare_result_rank1_{TIME}.xlsx").write_bytes(first.read_bytes()[:5000])
    assert "compare_result_rank1" in refused_by_both(one, api, tmp_path)
    # A cell that a spreadsheet would run.
    formula = tmp_path / "formula"
    for rank in range(2):
        table(formula / f"compare_result_rank{rank}_{TIME}.xlsx", {"Max diff": [";=1+1", 1]})
    assert "a cell that a spreadsheet would run" in refused_by_both(formula, "api: [call]", tmp_path)
    # Checksums.
    sides = [next((DUMPS / "cnn_md5_mix" / "step0").iterdir())] * 2
    md5 = tmp_path / "md5"
    done = ours("compare", "-tp", sides[0], "-gp", sides[1], "-o", md5, "--xlsx")
    assert done.returncode == 0, done.stderr
    table_of_md5, = md5.iterdir()
    for rank in range(2):
        shutil.copy(table_of_md5, md5 / f"compare_result_rank{rank}_{TIME}.xlsx")
    table_of_md5.unlink()
    assert "nothing to merge: rank 0: is of checksums" in refused_by_both(md5, api, tmp_path)
