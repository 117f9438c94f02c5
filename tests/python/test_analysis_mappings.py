# SPDX-License-Identifier: Apache-2.0
"""Mappings and parallel layouts through rankprobe.analysis: the same answers as the verbs with the same flags."""

import csv
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys

import pytest

import rankprobe.analysis as analysis

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "interop"))
BIN = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release")) / "bin" / "rankprobe"
CNN = next((ROOT / "tests" / "golden" / "dumps" / "cnn_stat_mix" / "step0").iterdir())
PLANTED = ROOT / "tests" / "golden" / "analysis" / "dumps" / "cnn_stat_planted"


def verb(*words):
    done = subprocess.run([BIN, *map(str, words), "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def table(target, golden, out, *flags):
    """The csv of the verb, as columns."""
    result = verb("compare", "-tp", target, "-gp", golden, "-o", out, *flags)
    with open(result["results"][0]["file"], newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def same(answer, expected):
    assert list(answer) == ["step", "rank", *expected]
    for name, column in expected.items():
        assert answer[name] == column, name
    return answer


@pytest.fixture
def renamed(tmp_path):
    """The golden dump as a model with other layer names would have made it."""
    target = tmp_path / "renamed"
    shutil.copytree(CNN, target)
    for file in target.glob("*.json"):
        file.write_text(file.read_text().replace(".conv1.", ".stem."))
    return target


def partner(answer, row):
    return answer["Bench Name"][answer["NPU Name"].index(row)]


ROW = "Module.conv1.Conv2d.forward.0.input.0"
STEM = "Module.stem.Conv2d.forward.0.input.0"


def test_layer_mapping(tmp_path, renamed):
    rules = tmp_path / "rules.yaml"
    rules.write_text("TopLayer: {conv1: stem}\n")
    assert partner(analysis.compare(PLANTED, renamed), ROW) == "N/A"
    answer = same(analysis.compare(PLANTED, renamed, layer_mapping=rules),
                  table(PLANTED, renamed, tmp_path / "out", "-lm", rules))
    assert partner(answer, ROW) == STEM
    # By scope alone only layers of equal names meet.
    answer = same(analysis.compare(PLANTED, renamed, layer_mapping=True),
                  table(PLANTED, renamed, tmp_path / "auto", "-lm"))
    assert partner(answer, ROW) == "N/A"
    links = []
    for layers in (rules, True):
        path = analysis.graph(tmp_path / f"{layers is True}.vis.db", PLANTED, renamed, layer_mapping=layers)
        links.append("".join(row[0] for row in sqlite3.connect(path).execute("select matched_node_link from tb_nodes "
                                                                             "where data_source = 'NPU'")))
    assert "Module.stem.Conv2d.forward.0" in links[0] and "Module.stem.Conv2d.forward.0" not in links[1]


def test_cell_and_data_mapping(tmp_path, renamed):
    cells, rows = {"conv1.Conv2d": "stem.Conv2d"}, {ROW: STEM}
    for name, flag, mapping in (("cell_mapping", "-cm", cells), ("data_mapping", "-dm", rows)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(mapping))
        expected = table(PLANTED, renamed, tmp_path / name, flag, file)
        for source in (file, mapping):
            assert partner(same(analysis.compare(PLANTED, renamed, **{name: source}), expected), ROW) == STEM


def test_api_mapping(tmp_path):
    target = tmp_path / "other"
    shutil.copytree(CNN, target)
    for file in target.glob("*.json"):
        file.write_text(file.read_text().replace("Functional.relu.", "Torch.relu."))
    rules = tmp_path / "apis.yaml"
    rules.write_text("Torch.relu: Functional.relu\n")
    answer = same(analysis.compare(target, CNN, api_mapping=rules), table(target, CNN, tmp_path / "out", "-am", rules))
    assert partner(answer, "Torch.relu.0.forward.input.0") == "Functional.relu.0.forward.input.0"


def test_layouts(tmp_path):
    import layouts

    four = layouts.write(tmp_path / "four", 2, 2)
    two = layouts.write(tmp_path / "two", 1, 2)
    answer = sqlite3.connect(analysis.graph(tmp_path / "m.vis.db", four, two, layout=analysis.Layout(4, 2, 2),
                                            reference_layout=analysis.Layout(2, tp=1, pp=2)))
    flags = ["--rank_size", 4, 2, "--tp", 2, 1, "--pp", 2, 2]
    done = verb("graph_visualize", "-tp", four, "-gp", two, "-o", tmp_path / "out", *flags)
    query = "select * from tb_nodes order by rowid"
    rows = answer.execute(query).fetchall()
    assert rows == sqlite3.connect(done["file"]).execute(query).fetchall()
    assert sum("_rank" in row[0] for row in rows) > 0


def test_what_does_not_go_together(tmp_path, renamed):
    import layouts

    four = layouts.write(tmp_path / "four", 2, 2)
    layout = analysis.Layout(4, 2, 2)
    path = tmp_path / "x.vis.db"
    for match, call in (
            ("-lm and -dm", lambda: analysis.compare(CNN, renamed, layer_mapping=True, fuzzy=True)),
            ("-lm and -dm", lambda: analysis.compare(CNN, renamed, data_mapping={"a": "b"}, cell_mapping={"a": "b"})),
            ("none.yaml: ", lambda: analysis.compare(CNN, renamed, api_mapping=tmp_path / "none.yaml")),
            ("reference dump", lambda: analysis.graph(path, CNN, layer_mapping=True)),
            ("for each side", lambda: analysis.graph(path, four, four, layout=layout)),
            ("for each side", lambda: analysis.graph(path, four, reference_layout=layout)),
            ("multiple", lambda: analysis.graph(path, four, layout=analysis.Layout(4, 3, 1)))):
        with pytest.raises(ValueError, match=match):
            call()
        assert not path.exists()


def nodes(path):
    return {row[:2]: row[2:] for row in sqlite3.connect(path).execute(
        "select rank, node_name, node_order, node_type, up_node, sub_nodes, micro_step_id, input_data, output_data from tb_nodes")}


@pytest.mark.parametrize("sizes", [(2, 2, 1, 1), (1, 2, 1, 2), (2, 2, 2, 1)])
def test_merged_ranks_as_a_dump(tmp_path, sizes):
    """--file_type json: the dump it makes has the graph that --file_type db makes."""
    import layouts

    tp, pp, dp, vpp = sizes
    source = layouts.write(tmp_path / "source", *sizes)
    flags = ["--rank_size", tp * pp * dp, "--tp", tp, "--pp", pp, "--vpp", vpp]
    out = tmp_path / "out"
    verb("graph_visualize", "-tp", source, "-o", out, *flags, "--file_type", "json")
    assert sorted(p.name for p in out.iterdir()) == ["step0"]
    ranks = sorted((out / "step0").iterdir())
    assert len(ranks) == dp
    direct = verb("graph_visualize", "-tp", source, "-o", tmp_path / "db", *flags)["file"]
    again = verb("graph_visualize", "-tp", out, "-o", tmp_path / "again")["file"]
    assert nodes(again) == nodes(direct)
    notes = [json.loads(text) for text, in sqlite3.connect(direct).execute(
        "select parallel_merge_info from tb_nodes where parallel_merge_info != ''")]
    written = [json.loads((rank / "dump.json").read_text()) for rank in ranks]
    assert all(dump["is_merged"] is True for dump in written)
    assert sorted(map(str, notes)) == sorted(
        str(entry["parallel_merge_info"]) for dump in written for entry in dump["data"].values()
        if "parallel_merge_info" in entry)
    stacks = [text for text, in sqlite3.connect(again).execute("select stack_info from tb_stack")]
    assert set(stacks) == {text for text, in sqlite3.connect(direct).execute("select stack_info from tb_stack")}
    # It is never written over, and what fails leaves nothing.
    before = (ranks[0] / "dump.json").read_bytes()
    done = subprocess.run([BIN, "graph_visualize", "-tp", source, "-o", out, *map(str, flags), "--file_type", "json"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "already exists" in done.stderr
    assert (ranks[0] / "dump.json").read_bytes() == before and sorted(p.name for p in out.iterdir()) == ["step0"]
    for words in (["--file_type", "json"], ["--file_type", "xml"], ["--file_type", "json", "-gp", source]):
        done = subprocess.run([BIN, "graph_visualize", "-tp", source, "-o", tmp_path / "bad", *map(str, words)],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    with pytest.raises(ValueError, match="merged ranks"):
        analysis.graph(tmp_path, source, merged_as_dump=True)
