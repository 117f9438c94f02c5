"""compare and graph_visualize beside the real msprobe, on the same dumps.

Cell by cell and row by row; the differences that are meant are in
docs/analysis.md and are known to table_diff.py and db_diff.py.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

import db_diff
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
    files = list(directory.glob(pattern))
    assert len(files) == 1, files
    return str(files[0])


def run_both(directory: pathlib.Path, *arguments: object) -> tuple[str, str]:
    words = [str(a) for a in arguments]
    done = subprocess.run([RANKPROBE, *words, "-o", directory / "ours"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    status, text = peer.run(*words, "-o", directory / "peer", directory=directory)
    assert status == 0, text[-4000:]
    return only(directory / "ours"), only(directory / "peer")


@pytest.mark.parametrize("name", ["cnn_stat_mix", "cnn_md5_mix", "weird_stat_mix"])
@pytest.mark.parametrize("swap", [False, True])
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


@pytest.mark.parametrize("flags", [[], ["-oc"], ["-lm"]])
@pytest.mark.parametrize("name", ["cnn_stat_mix", "cnn_md5_mix"])
def test_graph_compare(name: str, flags: list[str], tmp_path: pathlib.Path) -> None:
    ours, theirs = run_both(tmp_path, "graph_visualize", "-tp", planted(name, tmp_path), "-gp", rank_dir(name), *flags)
    assert db_diff.diff(ours, theirs)[0] == []


def test_ranks(tmp_path: pathlib.Path) -> None:
    step = rank_dir("ddp_stat_mix").parent
    ours, theirs = run_both(tmp_path, "graph_visualize", "-tp", step, "-gp", step)
    assert db_diff.diff(ours, theirs)[0] == []
