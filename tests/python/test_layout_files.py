# SPDX-License-Identifier: Apache-2.0
"""Runs whose dumps do not say how their tensors lie: --layout FILE, with megatron_gpt.py on gloo ranks against one rank."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest
import torch
from sharded_runs import Record, calls, cli, recorder

pytestmark = pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_dot_product_attention"), reason="a function of PyTorch 2")

_MEGATRON = """\
version: 1
mesh: {tp: 2}
rules:
- {entry: '*.ColumnParallelLinear', at: [parameters, grads], place: {tp: shard(0)}}
- {entry: '*.RowParallelLinear', at: [parameters.weight, grads.weight], place: {tp: shard(1)}}
- {entry: '*.RowParallelLinear', at: [parameters.bias, grads.bias], place: {tp: replicate}}
- {entry: '*.RowParallelLinear.forward', at: output, place: {tp: replicate}}
- {entry: '*.VocabParallelEmbedding', at: [parameters, grads], place: {tp: shard(0)}}
"""
# What is not a tensor of the model: the products before their sum, gradients before theirs, indices into a rank's rows, and a
# cut into as many parts as there are ranks.
_MIX = _MEGATRON + """\
- {entry: '*', inside: '*.VocabParallelEmbedding', place: local}
- {entry: Tensor.chunk, place: local}
- {entry: 'Tensor.masked_fill.*.backward', place: local}
- {entry: 'Functional.embedding.*.backward', place: local}
- {entry: Functional.linear, inside: '*.RowParallelLinear.forward', at: output, place: {tp: partial(sum)}}
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Record:
    return recorder(tmp_path_factory, "megatron_gpt.py")


@pytest.fixture(scope="module")
def layouts(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("layouts")
    (directory / "tp.yaml").write_text(_MEGATRON)
    (directory / "mix.yaml").write_text(_MIX)
    (directory / "mesh.yaml").write_text("version: 1\nmesh: {tp: 2}\n")
    (directory / "tp_dp.yaml").write_text(_MEGATRON.replace("{tp: 2}", "{dp: 2, tp: 2}"))
    (directory / "tp_dp.json").write_text(json.dumps({"version": 1, "target": {"parallel": {"rank_size": 4, "tp": 2}}}))
    return directory


def _diverge(target: pathlib.Path, reference: pathlib.Path, layout: object, *flags: str) -> dict:
    return json.loads(cli("first-divergence", target, reference, "--layout", layout, "--json", *flags))


@pytest.mark.parametrize("layout, ranks, file, flags", [
    ("tp", 2, "tp.yaml", ()), ("tp", 2, "mesh.yaml", ()), ("tp_dp", 4, "tp_dp.yaml", ()), ("tp_dp", 4, "tp_dp.json", ()),
    ("tp_dp+batch", 4, "tp_dp.yaml", ("--split_batch",))])
@pytest.mark.parametrize("step", [0, 1])
def test_a_healthy_run_agrees_with_one_rank(record: Record, layouts: pathlib.Path, layout: str, ranks: int, file: str,
                                            flags: tuple, step: int) -> None:
    reference = record("single") / f"step{step}"
    report = _diverge(record(layout, ranks) / f"step{step}", reference, layouts / file, *flags)
    assert not report.get("origins") and not report.get("calls_differing"), report
    assert int(report["calls_compared"]) == len(calls(reference))


def test_calls_inside_of_modules_agree_and_what_is_a_ranks_own_is_named(record: Record, layouts: pathlib.Path) -> None:
    target, reference = record("tp", 2, level="mix") / "step0", record("single", level="mix") / "step0"
    report = _diverge(target, reference, layouts / "mix.yaml")
    assert not report.get("origins"), report
    said = cli("first-divergence", target, reference, "--layout", layouts / "mix.yaml", code=1)
    assert "of terms of a sum" in said and "each rank's own, by line 9 of" in said and "copies that differ" not in said
    # Without the rules products before their sum look like copies that differ.
    assert _diverge(target, reference, layouts / "tp.yaml")["origins"]


@pytest.mark.parametrize("layout, ranks, file", [("tp", 2, "tp.yaml"), ("tp", 2, "mesh.yaml"), ("tp_dp", 4, "tp_dp.yaml")])
@pytest.mark.parametrize("fault, call", [
    ("not_reduced", "Module.layers.1.attention.dense.RowParallelLinear.forward.0"),
    ("bias_first", "Module.layers.1.mlp.down.RowParallelLinear.forward.0"),
    ("bias_split", "Module.layers.1.mlp.up.ColumnParallelLinear.forward.0"),
    ("swapped", "Module.layers.1.attention.query_key_value.ColumnParallelLinear.forward.0")])
def test_a_planted_fault_is_named_at_its_call(record: Record, layouts: pathlib.Path, layout: str, ranks: int, file: str,
                                              fault: str, call: str) -> None:
    (origin,) = _diverge(record(layout, ranks, fault) / "step0", record("single") / "step0", layouts / file)["origins"]
    assert origin["call"] == call
    assert origin["difference"] > 1000 * origin["tolerance"]


def test_the_other_verbs_and_the_library_take_the_file(record: Record, layouts: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import csv
    import sqlite3

    import rankprobe.analysis as analysis

    target, reference = (record(*run, task="tensor") / "step0" for run in (("tp", 2), ("single",)))
    cli("compare", "-tp", target, "-gp", reference, "-o", tmp_path / "table", "--layout", layouts / "tp.yaml", code=0)
    (table,) = (tmp_path / "table").glob("*.csv")
    rows = {row["NPU Name"]: row for row in csv.DictReader(table.open())}
    for name in ("Module.layers.1.attention.query_key_value.ColumnParallelLinear.forward.0.output.0",
                 "Module.layers.0.mlp.down.RowParallelLinear.forward.0.parameters.weight", "Module.embed.VocabParallelEmbedding.forward.0.output.0"):
        assert float(rows[name]["Cosine"]) > 0.999999 and float(rows[name]["MaxAbsErr"]) < 1e-5, rows[name]
        assert rows[name]["NPU Tensor Shape"] == rows[name]["Bench Tensor Shape"]
    assert not [name for name, row in rows.items() if row["Result"] == "error"]
    cli("graph_visualize", "-tp", target, "-gp", reference, "-o", tmp_path / "graph", "--layout", layouts / "tp.yaml", code=0)
    (path,) = (tmp_path / "graph").glob("*.vis.db")
    nodes = dict(sqlite3.connect(path).execute("select node_name, output_data from tb_nodes where data_source = 'NPU'"))
    assert '"shape": "[4, 6, 24]"' in nodes["Module.layers.1.mlp.up.ColumnParallelLinear.forward.0"]
    lines = analysis.put_together(target, reference, tmp_path / "both", layout=layouts / "tp.yaml")
    assert lines[0].startswith("target: 2 ranks, 141 tensors, 30 assembled from shards")
    assert not analysis.first_divergence(tmp_path / "both" / "target", tmp_path / "both" / "reference")["origins"]
    with pytest.raises(ValueError, match="no such file|No such file|does not exist"):
        analysis.put_together(target, reference, tmp_path / "none", layout=tmp_path / "none.yaml")


def test_two_runs_of_one_layout_need_no_run_on_one_rank(record: Record, layouts: pathlib.Path) -> None:
    """The file says what no whole tensor is there to tell."""
    faulty, healthy = record("tp", 2, "bias_split") / "step0", record("tp", 2) / "step0"
    (layouts / "both.yaml").write_text(_MEGATRON + """\
- {entry: '*.ColumnParallelLinear.forward', at: output, place: {tp: shard(-1)}}
- {entry: '*.ColumnParallelLinear.backward', at: input, place: {tp: shard(-1)}}
- {entry: '*.RowParallelLinear.forward', at: input, place: {tp: shard(-1)}}
- {entry: '*.RowParallelLinear.backward', at: output, place: {tp: shard(-1)}}
""")
    (origin,) = _diverge(faulty, healthy, layouts / "both.yaml")["origins"]
    assert origin["call"] == "Module.layers.1.mlp.up.ColumnParallelLinear.forward.0"
    report = _diverge(healthy, healthy, layouts / "both.yaml")
    assert not report.get("origins") and int(report["calls_compared"]) == len(calls(healthy))


@pytest.mark.parametrize("file, said", [
    ("mesh: {tp: 2}", "version is missing"), ("version: 1\nmesh: {tp: 3}", "line 2: tp 3 is 3 ranks, the target has no rank 2"),
    ("version: 1\nmesh: {tp: 1}", "line 2: tp 1 is 1 rank, the target has a rank 1"),
    ("version: 1\ntarget: {mesh: {tp: 2}}\nreference: {mesh: {tp: 2}}", "line 3: tp 2 is 2 ranks, the reference has no rank 1"),
    ("version: 1\nmesh: {tp: 2}\nrules: [{entry: a, place: {tp: split(0)}}]", "line 3: place: split(0) is not a placement"),
    ("\x00\x01", "line 1")])
def test_files_that_do_not_fit_are_refused_in_one_line(record: Record, tmp_path: pathlib.Path, file: str, said: str) -> None:
    path = tmp_path / "layout.yaml"
    path.write_text(file)
    error = cli("first-divergence", record("tp", 2) / "step0", record("single") / "step0", "--layout", path, code=2)
    assert said in error and str(path) in error and len(error.strip().splitlines()) == 1


def test_odd_uses(record: Record, layouts: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target, reference = record("tp", 2) / "step0", record("single") / "step0"
    shutil.copytree(target, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "rank1")
    (tmp_path / "half" / "rank0").rename(tmp_path / "half" / "rank1")
    assert "is neither a file" in cli("compare", "-tp", target, "-gp", reference, "-o", tmp_path, "--layout", "atuo", code=2)
    assert "both runs have one rank" in cli("first-divergence", reference, reference, "--layout", layouts / "tp.yaml", code=2)
    (tmp_path / "sides.yaml").write_text("version: 1\ntarget: {mesh: {tp: 2}}\n")
    missing = cli("first-divergence", tmp_path / "half", reference, "--layout", tmp_path / "sides.yaml", code=2)
    assert "tp 2 is 2 ranks, the target has no rank 0" in missing
    (tmp_path / "wrong.yaml").write_text("""\
version: 1
mesh: {tp: 2}
rules:
- {entry: Module.nobody, place: {tp: shard(0)}}
- {entry: Module.norm, at: output, place: {tp: shard(-1)}}
- {entry: Module.layers.0.norm1, at: output, place: {tp: shard(5)}}
""")
    odd = cli("first-divergence", target, reference, "--layout", tmp_path / "wrong.yaml", code=1)
    assert f"target: nothing is placed by line 4 of {tmp_path}/wrong.yaml: Module.nobody" in odd
    assert "wrong.yaml makes it [4, 6, 32], the other run has [4, 6, 16]" in odd
    assert "shard(5) of line 6 of" in odd and "is not a dimension of [4, 6, 16]" in odd
