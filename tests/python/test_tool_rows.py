# SPDX-License-Identifier: Apache-2.0
"""Rows C to F of the feature table that no other test holds, each under its number: the command line and its dumps.

As test_feature_rows.py for rows A and B. tests/features.md has the whole table.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess

import pytest

import harness

GOLDEN = harness.ROOT / "tests" / "golden"
CNN = next((GOLDEN / "dumps" / "cnn_stat_mix" / "step0").iterdir())
DDP = GOLDEN / "dumps" / "ddp_stat_mix"
TENSORS = GOLDEN / "analysis" / "dumps" / "mlp_tensor"
PLANTED_TENSORS = GOLDEN / "analysis" / "dumps" / "mlp_tensor_planted"


def cli(*words: object, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([harness.BIN / "rankprobe", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def graph(out: pathlib.Path, *words: object) -> tuple[dict, sqlite3.Connection]:
    """What graph_visualize says, and its database."""
    said = json.loads(cli("graph_visualize", *words, "-o", out, "--json").stdout)
    db = sqlite3.connect(said["file"])
    db.row_factory = sqlite3.Row
    return said, db


def config_of(db: sqlite3.Connection) -> sqlite3.Row:
    return db.execute("select * from tb_config").fetchone()


def changed(source: pathlib.Path, target: pathlib.Path, change) -> pathlib.Path:
    """A copy of a rank's dump; `change` gets the content of each JSON file by its name, and gives another."""
    shutil.copytree(source, target)
    for path in target.glob("*.json"):
        path.write_text(change(path.name, path.read_text()))
    return target


# --- C: trees of other generations

def test_c3_dumps_of_the_older_documents_are_read(tmp_path: pathlib.Path) -> None:
    """A directory `rank`, parameters_grad without an index, stack.json as name -> frames."""
    def older(name: str, text: str) -> str:
        if name == "stack.json":
            stacks = {entry: frames for names, frames in json.loads(text).values() for entry in names}
            return json.dumps(stacks)
        return text.replace('.parameters_grad.0"', '.parameters_grad"')

    assert '.parameters_grad.0"' in (CNN / "dump.json").read_text()
    old = changed(CNN, tmp_path / "old" / "step0" / "rank", older).parents[1]
    _, db = graph(tmp_path / "out", "-tp", old, "-gp", CNN.parents[1])
    nodes = {row["node_name"]: row for row in db.execute("select * from tb_nodes where data_source = 'NPU'")}
    name = "Functional.relu.0.forward"
    (stack,) = db.execute("select stack_info from tb_stack where id = ?", (nodes[name]["stack_id"],)).fetchone()
    assert ".py" in stack
    assert any(n.endswith(".parameters_grad") for n in nodes)
    assert json.loads(nodes[name]["matched_node_link"])[-1] == name


# --- D: graphs

def test_d3_a_rank_a_step_and_a_dump_are_told_apart(tmp_path: pathlib.Path) -> None:
    two_steps = tmp_path / "dump"
    for step in (0, 3):
        shutil.copytree(DDP / "step0", two_steps / f"step{step}")
    process = tmp_path / "alone" / "proc4711"
    shutil.copytree(CNN, process)
    ranks = sorted(int(path.name[4:]) for path in (DDP / "step0").iterdir())
    for target, steps, wanted in ((DDP / "step0" / f"rank{ranks[-1]}", [0], [0]), (DDP / "step0", [0], ranks),
                                  (two_steps, [0, 3], ranks), (process.parent, [0], [0])):
        _, db = graph(tmp_path / "out", "-tp", target)
        found = db.execute("select distinct step, rank from tb_nodes").fetchall()
        assert sorted({row["step"] for row in found}) == steps, target
        assert sorted({row["rank"] for row in found}) == wanted, target
        assert json.loads(config_of(db)["step_list"]) == steps and json.loads(config_of(db)["rank_list"]) == wanted


def test_d5_fuzzy_matching_goes_by_order(tmp_path: pathlib.Path) -> None:
    """The same calls under other numbers: nothing of them matches, with -fm all do."""
    other = changed(CNN, tmp_path / "other", lambda _, text: text.replace("Functional.relu.0.", "Functional.relu.7."))
    assert (other / "dump.json").read_text() != (CNN / "dump.json").read_text()
    exact, _ = graph(tmp_path / "out", "-tp", other, "-gp", CNN)
    fuzzy, _ = graph(tmp_path / "out", "-tp", other, "-gp", CNN, "-fm")
    assert exact["unmatched"] > 0 and fuzzy["unmatched"] == 0


def test_d7_tensor_log_has_a_line_for_each_tensor(tmp_path: pathlib.Path) -> None:
    words = ("graph_visualize", "-tp", PLANTED_TENSORS, "-gp", TENSORS, "-o", tmp_path / "out")
    assert cli(*words).stderr == ""
    lines = cli(*words, "-tensor_log").stderr.splitlines()
    (relu,) = [line for line in lines if line.startswith("[Functional.relu.0.forward.input.0] ")]
    assert "Compare result: Cosine " in relu and "EucDist " in relu and "Five Thousandths Err Ratio " in relu
    assert any(line.split(", ")[6] == "error" for line in lines) and any(line.endswith(", pass") for line in lines)
    old = tmp_path / "compare.json"
    old.write_text(json.dumps({"npu_path": str(PLANTED_TENSORS), "bench_path": str(TENSORS),
                               "is_print_compare_log": True}))
    assert cli("graph_visualize", "--input_path", old, "-o", tmp_path / "out").stderr.splitlines() == lines
    # Where there is nothing of the kind it says so.
    for more in (("-tp", TENSORS), ("-tp", CNN, "-gp", CNN)):
        said = cli("graph_visualize", *more, "-o", tmp_path / "out", "-tensor_log").stderr
        assert "-tensor_log: no tensors were compared" in said and said.count("\n") == 1


def test_d8_progress_log_has_a_line_at_each_tenth(tmp_path: pathlib.Path) -> None:
    steps = tmp_path / "dump"
    for step in range(20):
        shutil.copytree(CNN, steps / f"step{step}" / "rank0")
    words = ("graph_visualize", "-tp", steps, "-o", tmp_path / "out")
    assert cli(*words).stderr == ""
    assert cli(*words, "-progress_log").stderr.splitlines() == [f"ranks {10 * i}%" for i in range(11)]


def test_a_bar_on_a_terminal_makes_room_for_lines_and_goes(tmp_path: pathlib.Path) -> None:
    for side, source in (("new", PLANTED_TENSORS), ("old", TENSORS)):
        for step in (0, 1):
            shutil.copytree(source, tmp_path / side / f"step{step}" / "rank0")
    ours, terminal = os.openpty()
    with open(ours, "rb", buffering=0) as read:
        subprocess.run([harness.BIN / "rankprobe", "graph_visualize", "-tp", tmp_path / "new", "-gp", tmp_path / "old",
                        "-o", tmp_path / "out", "-tensor_log"],
                       stdout=subprocess.DEVNULL, stderr=terminal, check=True, timeout=120)
        os.close(terminal)
        said = b""
        try:
            while more := read.read(65536):
                said += more
        except OSError:  # the end of a terminal
            pass
    first, half, second, whole, last = said.decode().split("\r\x1b[K")
    assert first == second and "[Functional.relu.0.forward.input.0] " in first
    assert half == "[" + "#" * 15 + "." * 15 + "]  50%  ranks  "
    assert (whole, last) == ("[" + "#" * 30 + "] 100%  ranks  ", "")


@pytest.mark.parametrize("verb", ("graph_visualize", "compare"))
def test_a_verb_that_fails_leaves_no_directory(tmp_path: pathlib.Path, verb: str) -> None:
    """Nor those above it that it made; one that was there stays, and so does what somebody else put there."""
    broken = changed(CNN, tmp_path / "broken", lambda name, text: text[:-40] if name == "dump.json" else text)
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "new", tmp_path / "new" / "deep", tmp_path / "there" / "deep"):
        said = cli(verb, "-tp", broken, "-gp", CNN, "-o", f"{out}/", code=2).stderr
        assert "dump.json" in said and said.count("\n") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "there"], said
        assert list((tmp_path / "there").iterdir()) == []
    cli(verb, "-tp", CNN, "-gp", CNN, "-o", tmp_path / "new" / "deep")
    assert len(list((tmp_path / "new" / "deep").iterdir())) == 1


KINDS = {"statistics": CNN, "md5": next((GOLDEN / "dumps" / "cnn_md5_mix" / "step0").iterdir()), "tensor": TENSORS,
         "structure": next((GOLDEN / "dumps" / "cnn_structure" / "step0").iterdir())}


@pytest.mark.parametrize("kind", KINDS)
def test_d9_the_kind_of_data_is_found_and_not_mixed(tmp_path: pathlib.Path, kind: str) -> None:
    _, db = graph(tmp_path / "out", "-tp", KINDS[kind], "-gp", KINDS[kind])
    assert config_of(db)["task"] == {"statistics": "summary", "md5": "md5", "tensor": "all",
                                     "structure": "structure"}[kind]
    for other in set(KINDS) - {kind}:
        refused = tmp_path / "refused"
        line = cli("graph_visualize", "-tp", KINDS[kind], "-gp", KINDS[other], "-o", refused, code=2).stderr
        assert str(KINDS[kind]) in line and str(KINDS[other]) in line and line.count("\n") == 1
        assert not refused.exists() or not list(refused.iterdir())


def test_d10_structures_differ_where_they_do(tmp_path: pathlib.Path) -> None:
    other = changed(KINDS["structure"], tmp_path / "other",
                    lambda _, text: text.replace("Functional.relu.0.", "Functional.gelu.0."))
    said, db = graph(tmp_path / "out", "-tp", other, "-gp", KINDS["structure"])
    unmatched = {row["node_name"] for row in db.execute(
        "select node_name from tb_nodes where data_source = 'NPU' and matched_node_link = '[]'")}
    assert {"Functional.gelu.0.forward", "Functional.gelu.0.backward"} <= unmatched
    assert all("gelu" in name for name in unmatched)
    assert (said["error"], said["warning"]) == (0, 0)


def mindspore(name: str, text: str) -> str:
    """A dump as MindSpore's collection names things."""
    for ours, theirs in (("Module.", "Cell."), ("torch.Tensor", "mindspore.Tensor"), ("torch.float32", "Float32"),
                         ("torch.int64", "Int64"), ('"framework": "pytorch"', '"framework": "mindspore"')):
        text = text.replace(ours, theirs)
    return text


def test_d14_f9_a_dump_of_mindspore_is_laid_beside_one_of_pytorch(tmp_path: pathlib.Path) -> None:
    cells = changed(CNN, tmp_path / "cells", mindspore)
    alone, _ = graph(tmp_path / "out", "-tp", cells)
    assert alone["nodes"] == graph(tmp_path / "out", "-tp", CNN)[0]["nodes"]
    assert "-lm" in cli("graph_visualize", "-tp", cells, "-gp", CNN, "-o", tmp_path / "out", code=2).stderr
    _, db = graph(tmp_path / "out", "-tp", cells, "-gp", CNN, "-lm")
    links = {row["node_name"]: json.loads(row["matched_node_link"]) for row in db.execute(
        "select * from tb_nodes where data_source = 'NPU'")}
    cells_forward = [name for name in links if name.startswith("Cell.") and ".forward." in name]
    assert cells_forward
    for name in cells_forward:
        assert links[name][-1:] == [name.replace("Cell.", "Module.")], name


def with_a_nan(directory: pathlib.Path) -> pathlib.Path:
    """A step in which the first convolution makes NaN of finite numbers, which all that follows gets."""
    step = shutil.copytree(CNN.parent, directory / "step0")
    path = step / CNN.name / "dump.json"
    dump = json.loads(path.read_text())
    names = list(dump["data"])
    first = names.index("Functional.conv2d.0.forward")
    text = json.dumps({name: dump["data"][name] for name in names[first + 1:]})
    dump["data"].update(json.loads(re.sub(r'"(Max|Min|Mean|Norm)": [-\d.e]+', r'"\1": NaN', text)))
    dump["data"][names[first]]["output"][0].update(dict.fromkeys(("Max", "Min", "Mean", "Norm"), float("nan")))
    path.write_text(json.dumps(dump))
    return step


@pytest.mark.parametrize("verb", ["graph_visualize", "compare", "overflow_check"])
def test_d1_d19_an_output_that_cannot_be_is_one_line(tmp_path: pathlib.Path, verb: str) -> None:
    words = {"graph_visualize": ["-tp", CNN], "compare": ["-tp", CNN, "-gp", CNN],
             "overflow_check": ["-i", with_a_nan(tmp_path)]}[verb]
    (tmp_path / "file").write_text("mine")
    places = [tmp_path / "file", tmp_path / "file" / "below"]
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        places.append(tmp_path / "closed" / "below")
    for place in places:
        done = cli(verb, *words, "-o", place, code=2)
        assert done.stderr.count("\n") == 1 and str(place) in done.stderr and done.stdout == ""
    assert (tmp_path / "file").read_text() == "mine"
    done = cli(verb, *words, "-o", tmp_path / "out", "--no-such-flag", code=2)
    assert done.stderr.count("\n") == 1 and "--no-such-flag" in done.stderr


# --- F: what is asked of dumps

def test_f6_a_comparison_says_where_the_first_difference_is(tmp_path: pathlib.Path) -> None:
    planted = GOLDEN / "analysis" / "dumps" / "cnn_stat_planted"
    out = tmp_path / "out"
    cli("compare", "-tp", planted, "-gp", CNN, "-o", out, "-da")
    assert list(out.glob("*.csv"))
    said = "".join(path.read_text() for path in out.glob("*.json"))
    assert "Functional.conv2d.0.forward" in said
