# SPDX-License-Identifier: Apache-2.0
"""compare and graph_visualize beside the real msprobe, on the same dumps.

Cell by cell and row by row; the differences that are meant are in
docs/analysis.md and are known to table_diff.py and db_diff.py. Not here:
`compare -fm`, which ends with an exception in msprobe 26.2.0.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sqlite3
import subprocess

import pytest
import yaml
from msprobe.core.compare.layer_mapping import generate_data_mapping_by_layer_mapping

import db_diff
import layouts
import peer
import plant
import table_diff

ROOT = pathlib.Path(__file__).parents[2]
DUMPS = ROOT / "tests" / "golden" / "dumps"
RANKPROBE = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release")) / "bin" / "rankprobe"


def rank_dir(name: str) -> pathlib.Path:
    return next((DUMPS / name / "step0").iterdir())


def planted(name: str, directory: pathlib.Path) -> pathlib.Path:
    target = directory / f"{name}_planted"
    shutil.copytree(rank_dir(name), target)
    plant.plant(str(target))
    return target


def only(directory: pathlib.Path, pattern: str = "*") -> str:
    files = [f for f in directory.glob(pattern) if not f.name.endswith(("-wal", "-shm"))]
    assert len(files) == 1, files
    return str(files[0])


def run_msprobe(words: list[str]) -> None:
    directory = pathlib.Path(words[-1]).parent
    status, text = peer.run(*words, directory=directory)
    assert status == 0, text[-3000:]


def run_ours(words: list[str]) -> None:
    done = subprocess.run([RANKPROBE, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def run_both(directory: pathlib.Path, *arguments: object) -> tuple[str, str]:
    words = [str(a) for a in arguments]
    run_ours([*words, "-o", str(directory / "ours")])
    run_msprobe([*words, "-o", str(directory / "peer")])
    return only(directory / "ours"), only(directory / "peer")


@pytest.mark.parametrize("name,swap", [("cnn_stat_mix", False), ("cnn_stat_mix", True), ("cnn_md5_mix", False),
                                       ("weird_stat_mix", False), ("weird_stat_mix", True)])
def test_compare(name: str, swap: bool, tmp_path: pathlib.Path) -> None:
    pair = [planted(name, tmp_path), rank_dir(name)]
    if swap:
        pair.reverse()
    ours, theirs = run_both(tmp_path, "compare", "-tp", pair[0] / "dump.json", "-gp", pair[1] / "dump.json")
    assert table_diff.diff(ours, theirs) == []


@pytest.mark.parametrize("name", ["cnn_stat_mix", "cnn_stat_L0", "weird_stat_mix", "cnn_structure"])
def test_build(name: str, tmp_path: pathlib.Path) -> None:
    ours, theirs = run_both(tmp_path, "graph_visualize", "-tp", rank_dir(name), "-oc")
    assert db_diff.diff(ours, theirs)[0] == []


@pytest.mark.parametrize("name,flags", [("cnn_stat_mix", []), ("cnn_stat_mix", ["-oc"]), ("cnn_stat_mix", ["-lm"]),
                                        ("cnn_md5_mix", [])])
def test_graph_compare(name: str, flags: list[str], tmp_path: pathlib.Path) -> None:
    ours, theirs = run_both(tmp_path, "graph_visualize", "-tp", planted(name, tmp_path), "-gp", rank_dir(name), *flags)
    assert db_diff.diff(ours, theirs)[0] == []


def test_ranks(tmp_path: pathlib.Path) -> None:
    step = rank_dir("ddp_stat_mix").parent
    ours, theirs = run_both(tmp_path, "graph_visualize", "-tp", step, "-gp", step)
    assert db_diff.diff(ours, theirs)[0] == []


RENAMED = {"Module.conv1.": "Module.stem.", "Module.fc.": "Module.top.head."}
RULES = {"TopLayer": {"conv1": "stem", "fc": "top.head"}}


def renamed(name: str, directory: pathlib.Path) -> pathlib.Path:
    """The dump as a model with other layer names would have made it."""
    target = directory / f"{name}_renamed"
    shutil.copytree(rank_dir(name), target)
    for file in target.glob("*.json"):
        text = file.read_text()
        for old, new in RENAMED.items():
            text = text.replace(old, new)
        file.write_text(text)
    return target


def test_layer_mapping(tmp_path: pathlib.Path) -> None:
    target, golden = planted("cnn_stat_mix", tmp_path), renamed("cnn_stat_mix", tmp_path)
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(RULES))
    ours, theirs = run_both(tmp_path, "graph_visualize", "-tp", target, "-gp", golden, "-lm", rules)
    assert db_diff.diff(ours, theirs)[0] == []
    assert '"Module.top.head.Linear.forward.0"' in "".join(
        link for link, in sqlite3.connect(ours).execute("select matched_node_link from tb_nodes"))


def test_table_layer_mapping(tmp_path: pathlib.Path) -> None:
    """msprobe has layer mapping in tables for MindSpore only: its own row map of these layers goes in by -dm."""
    target, golden = planted("cnn_stat_mix", tmp_path), renamed("cnn_stat_mix", tmp_path)
    rules, rows = tmp_path / "rules.yaml", tmp_path / "rows.yaml"
    rules.write_text(yaml.safe_dump(RULES))
    paths = {"npu_path": str(target / "dump.json"), "bench_path": str(golden / "dump.json")}
    rows.write_text(yaml.safe_dump(generate_data_mapping_by_layer_mapping(paths, str(rules))))
    words = ["compare", "-tp", paths["npu_path"], "-gp", paths["bench_path"]]
    run_ours([*words, "-lm", str(rules), "-o", str(tmp_path / "ours")])
    run_msprobe([*words, "-dm", str(rows), "-o", str(tmp_path / "peer")])
    # Gradients of parameters are not in construct.json: msprobe drops them, here they follow their module.
    faults = table_diff.diff(only(tmp_path / "ours"), only(tmp_path / "peer"))
    assert [f for f in faults if ".parameters_grad." not in f] == []
    assert any("Module.top.head.Linear.parameters_grad.0.bias" in f for f in faults)


def test_data_mapping(tmp_path: pathlib.Path) -> None:
    directory = rank_dir("cnn_stat_mix")
    rows = tmp_path / "rows.yaml"
    rows.write_text("Functional.conv2d.0.forward.input.0: Module.conv1.Conv2d.forward.0.input.0\n"
                    "Functional.relu.0.forward.output.0: Functional.relu.0.forward.input.0\n")
    paths = ["-tp", directory / "dump.json", "-gp", directory / "dump.json"]
    ours, theirs = run_both(tmp_path, "compare", *paths, "-dm", rows)
    assert table_diff.diff(ours, theirs) == []


def test_cell_mapping(tmp_path: pathlib.Path) -> None:
    target, golden = planted("cnn_stat_mix", tmp_path), renamed("cnn_stat_mix", tmp_path)
    cells = tmp_path / "cells.yaml"
    cells.write_text("conv1.Conv2d: stem.Conv2d\nfc: top.head\n")
    ours, theirs = run_both(tmp_path, "compare", "-tp", target / "dump.json", "-gp", golden / "dump.json", "-cm", cells)
    assert table_diff.diff(ours, theirs) == []



def sizes(*layouts_: tuple[int, int, int, int]) -> list[object]:
    """Flags for tp, pp, dp, vpp of each side."""
    words: list[object] = ["--rank_size", *(tp * pp * dp for tp, pp, dp, _ in layouts_)]
    for flag, index in (("--tp", 0), ("--pp", 1), ("--vpp", 3)):
        words += [flag, *(layout[index] for layout in layouts_)]
    return words


@pytest.mark.parametrize("layout", [(2, 1, 1, 1), (2, 2, 1, 1), (2, 2, 2, 1), (1, 2, 1, 2)])
def test_merged_build(layout: tuple[int, int, int, int], tmp_path: pathlib.Path) -> None:
    # With dp, msprobe loses the calls between modules of the second pipeline, whose names meet the first's.
    dump = layouts.write(tmp_path / "dump", *layout, loose=layout[2] == 1)
    ours, theirs = run_both(tmp_path, "graph_visualize", "-tp", dump, *sizes(layout))
    assert db_diff.diff(ours, theirs)[0] == []


@pytest.mark.parametrize("layout", [(2, 2, 1, 1), (1, 2, 1, 2)])
def test_merged_build_as_json(layout: tuple[int, int, int, int], tmp_path: pathlib.Path) -> None:
    """Parents, stacks, and what went in and came out; msprobe's parameters in these files are those of one rank."""
    dump = layouts.write(tmp_path / "dump", *layout)
    words = [str(a) for a in ("graph_visualize", "-tp", dump, *sizes(layout), "--file_type", "json")]
    run_ours([*words, "-o", str(tmp_path / "ours")])
    run_msprobe([*words, "-o", str(tmp_path / "peer")])
    ours, theirs = ({file.stem: json.loads(file.read_text()) for file in sorted((tmp_path / side).glob("step0/rank0/*.json"))}
                    for side in ("ours", "peer"))
    assert list(ours) == list(theirs) == ["construct", "dump", "stack"]
    assert ours["construct"] == theirs["construct"] and list(ours["construct"]) == list(theirs["construct"])
    data, expected = ours["dump"].pop("data"), theirs["dump"].pop("data")
    assert ours["dump"] == theirs["dump"] | {"dump_data_dir": None}
    assert list(data) == list(expected)
    compared = 0
    for name, entry in expected.items():
        for section in ("input_args", "output"):
            # Of a moved backward entry msprobe calls the inputs input_args; they are its input.
            ours_section = data[name].get("input" if section == "input_args" and "input" in data[name] else section, [])
            if section not in entry:
                continue
            for mine, item in zip(ours_section, entry[section], strict=True):
                if isinstance(item, dict) and "Max" in item:
                    compared += 1
                    for stat in ("Max", "Min", "Mean", "Norm"):
                        assert mine[stat] == pytest.approx(item[stat], rel=1e-6, nan_ok=True), (name, section, stat)
    assert compared > 100


def test_merged_compare(tmp_path: pathlib.Path) -> None:
    layout, golden_layout = (2, 2, 1, 1), (1, 2, 1, 1)
    target = layouts.write(tmp_path / "target", *layout)
    golden = layouts.write(tmp_path / "golden", *golden_layout)
    ours, theirs = run_both(tmp_path, "graph_visualize", "-tp", target, "-gp", golden, *sizes(layout, golden_layout))
    assert db_diff.diff(ours, theirs)[0] == []
