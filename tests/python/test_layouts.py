# SPDX-License-Identifier: Apache-2.0
"""Runs on several ranks against a run on one, call by call: rankprobe first-divergence and compare --layout auto.

The runs are real: sharded_llama.py on gloo ranks with FSDP2, tensor parallel, both, and a pipeline.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess

import harness
import pytest
import torch
from sharded_runs import Record, calls, cli, recorder

pytestmark = pytest.mark.skipif(tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 6),
                                reason="FSDP2 and DTensor as PyTorch 2.6 and later have them")
# Outside of the modules: what both stages of a pipeline call (an optimizer), which nobody can tell apart, and what the
# program of the pipeline does not call.
_OUTSIDE = ("Tensor.add_.", "Torch.abs.", "Tensor.__truediv__.")


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Record:
    return recorder(tmp_path_factory, "sharded_llama.py")


def _diverge(target: pathlib.Path, reference: pathlib.Path, *flags: str) -> dict:
    return json.loads(cli("first-divergence", target, reference, "--layout", "auto", "--json", *flags))


@pytest.mark.parametrize("layout, ranks, step, flags", [
    ("tp", 2, 0, ()), ("tp", 2, 1, ()), ("sp", 2, 0, ()), ("fsdp", 2, 1, ()), ("tp_fsdp", 4, 1, ()), ("pp", 2, 1, ()),
    ("fsdp+batch", 2, 0, ("--split_batch",)), ("tp_fsdp+batch", 4, 0, ("--split_batch",))])
def test_a_healthy_run_agrees_with_one_rank(record: Record, layout: str, ranks: int, step: int, flags: tuple) -> None:
    reference = record("single") / f"step{step}"
    report = _diverge(record(layout, ranks) / f"step{step}", reference, *flags)
    assert not report.get("origins") and not report.get("calls_differing"), report
    # Every call of the run on one rank was compared.
    assert int(report["calls_compared"]) == len(calls(reference)) == 75
    # The other way round it is the same.
    assert not _diverge(reference, record(layout, ranks) / f"step{step}", *flags).get("origins")


@pytest.mark.parametrize("layout, ranks", [("tp", 2), ("sp", 2), ("tp_fsdp", 4), ("pp", 2)])
def test_calls_inside_of_modules_agree_too(record: Record, layout: str, ranks: int) -> None:
    reference = record("single", level="mix") / f"step{0 if layout == 'sp' else 1}"
    report = _diverge(record(layout, ranks, level="mix") / f"step{0 if layout == 'sp' else 1}", reference)
    assert not report.get("origins"), report
    wanted = {name for name in calls(reference) if layout != "pp" or not name.startswith(_OUTSIDE)}
    assert int(report["calls_compared"]) == len(wanted) > 200


@pytest.mark.parametrize("level, call", [("L0", "Module.layers.1.mlp.down.Linear.forward.0"), ("mix", "Functional.linear.13.forward")])
def test_a_fault_in_a_stage_of_a_pipeline_is_named_at_its_call(record: Record, level: str, call: str) -> None:
    target, reference = record("pp", 2, "stage_weight", level), record("single", level=level)
    (origin,) = _diverge(target / "step1", reference / "step1")["origins"]
    assert origin["call"] == call


@pytest.mark.parametrize("layout, ranks, fault, call", [
    ("tp", 2, "not_reduced", "Module.layers.1.attention.Attention.forward.0"),
    ("tp", 2, "bias_split", "Module.layers.1.mlp.up.Linear.forward.0"),
    ("tp", 2, "swapped", "Module.layers.1.attention.v.Linear.forward.0"),
    ("sp", 2, "unequal_norm", "Module.layers.1.norm2.RmsNorm.forward.0"),
    ("fsdp", 2, "swapped", "Module.layers.1.mlp.gate.Linear.forward.0"),
    ("tp_fsdp", 4, "bias_split", "Module.layers.1.mlp.up.Linear.forward.0")])
def test_a_planted_fault_is_named_at_its_call(record: Record, layout: str, ranks: int, fault: str, call: str) -> None:
    (origin,) = _diverge(record(layout, ranks, fault) / "step0", record("single") / "step0")["origins"]
    assert origin["call"] == call
    # Thousands of times what rounding is allowed: nobody needs to guess.
    assert origin["difference"] > 1000 * origin["tolerance"]


def test_copies_that_differ_are_named_with_their_ranks(record: Record) -> None:
    said = cli("first-divergence", record("tp", 2, "not_reduced") / "step0", record("single") / "step0", "--layout", "auto")
    assert "copies differ: Module.layers.1.attention.Attention.forward.0.output.0: ranks 0 and 1" in said
    healthy = cli("first-divergence", record("tp", 2) / "step0", record("single") / "step0", "--layout", "auto")
    assert "copies that differ" not in healthy
    # The dumps in the temporary directory are nobody's business.
    assert "/rankprobe_" not in healthy + said


def test_calls_of_one_run_only_are_named_in_the_dumps_that_were_given(record: Record) -> None:
    """Which step that was is not known from its directory: the temporary dump has a number of its own."""
    runs = [record("tp", 2, level="mix") / "step1", record("single", level="mix") / "step1"]
    said = cli("first-divergence", *runs, "--layout", "auto", code=None)
    only = [line.strip() for line in said.splitlines() if line.endswith("is in this dump only")]
    assert only and all(line.startswith(tuple(f"{run}: " for run in runs)) for line in only), said


def test_what_cannot_be_put_together_is_refused_by_name(record: Record) -> None:
    batches, reference = record("fsdp+batch", 2) / "step0", record("single") / "step0"
    said = cli("first-divergence", batches, reference, "--layout", "auto")
    assert "share no model and hold different values" in said and "--split_batch" in said
    split = cli("first-divergence", batches, reference, "--layout", "auto", "--split_batch")
    assert "Module.head.Linear.parameters_grad.0.weight was not assembled" in split
    assert "--layout auto" in cli("first-divergence", batches, reference, "--split_batch", code=2)
    assert "--noise" in cli("first-divergence", batches, reference, "--layout", "auto", "--noise", reference, code=2)


def test_elements_of_a_sum_and_of_shards(record: Record, tmp_path: pathlib.Path) -> None:
    """With tensors recorded a row-parallel product is compared element by element, before its reduction."""
    flags = ["-tp", record("tp", 2, task="tensor") / "step0", "-gp", record("single", task="tensor") / "step0", "-o", tmp_path]
    said = cli("compare", "--layout", "auto", *flags)
    assert "of terms of a sum" in said
    (table,) = tmp_path.glob("*.csv")
    import csv

    rows = {row["NPU Name"]: row for row in csv.DictReader(table.open())}
    for name in ("Module.layers.0.mlp.down.Linear.forward.0.output.0", "Module.layers.1.mlp.up.Linear.forward.0.output.0",
                 "Module.layers.0.attention.o.Linear.forward.0.parameters.weight"):
        assert float(rows[name]["Cosine"]) > 0.999999 and float(rows[name]["MaxAbsErr"]) < 1e-5, rows[name]
        assert rows[name]["NPU Tensor Shape"] == rows[name]["Bench Tensor Shape"]
    assert not [name for name, row in rows.items() if row["Result"] == "error"]
    refused = {name for name, row in rows.items() if "not assembled" in row["Err_message"]}
    assert "Module.embed.Embedding.forward.0.output.0" in refused
    assert all(rows[name]["Result"] == "warning" for name in refused)


def test_elements_of_what_fsdp_and_tensor_parallel_sharded_on_one_dimension(record: Record, tmp_path: pathlib.Path) -> None:
    """Their order is that of a strided shard, which msprobe's placements leave out: element by element, it must be found."""
    import csv

    target, reference = (record(*run, level="mix", task="tensor") / "step0" for run in (("tp_fsdp", 4), ("single",)))
    placed = [json.loads(path.read_text())["data"]["Torch.abs.0.forward"]["input_args"][0] for path in target.glob("*/dump.json")]
    assert len(placed) == 4 and all(p["device_mesh"] == [[0, 1], [2, 3]] and p["shape"] == [4, 16] for p in placed)
    assert all(p["placements"] == [{"Shard": {"dim": 0}}] for p in placed)
    for path in target.glob("rank*"):
        note = json.loads((path / "tensor_notes.json").read_text())["Torch.abs.0.forward.input.0"]
        assert note == {"global_shape": [16, 16], "placements": [{"_StridedShard": {"dim": 0, "split_factor": 2}}, {"Shard": {"dim": 0}}]}
    cli("compare", "--layout", "auto", "-tp", target, "-gp", reference, "-o", tmp_path)
    (table,) = tmp_path.glob("*.csv")
    rows = {row["NPU Name"]: row for row in csv.DictReader(table.open())}
    for call in range(3):
        row = rows[f"Torch.abs.{call}.forward.input.0"]
        assert float(row["Cosine"]) > 0.999999 and float(row["MaxAbsErr"]) < 1e-6, row


def test_parts_that_do_not_make_the_whole_are_refused(record: Record, tmp_path: pathlib.Path) -> None:
    """The size of the whole is recorded: a rank that says another is not assembled to what is none."""
    reference = record("single") / "step0"
    shutil.copytree(record("tp", 2) / "step0", tmp_path / "step0")
    path = tmp_path / "step0" / "rank0" / "tensor_notes.json"
    notes = json.loads(path.read_text())
    row = next(name for name, note in notes.items() if name.endswith("parameters.weight") and {"Shard": {"dim": 0}} in note["placements"])
    notes[row]["global_shape"][0] += 1
    path.write_text(json.dumps(notes))
    said = cli("first-divergence", tmp_path / "step0", reference, "--layout", "auto", code=1)
    whole = notes[row]["global_shape"]
    assert f"its parts make {[whole[0] - 1, *whole[1:]]}, the full size is {whole}" in said, said
    path.write_text("{")
    assert f"{path}: " in cli("first-divergence", tmp_path / "step0", reference, "--layout", "auto", code=2)


@pytest.mark.parametrize("verb, flags, named", [
    ("first-divergence", ("--noise", "DUMP"), "--noise"), ("first-divergence", ("--live",), "--live"),
    ("first-divergence", ("--rules", "vllm-llama"), "--rules"), ("compare", ("--rules", "vllm-llama"), "--rules"),
    ("compare", ("--layer_mapping",), "--layer_mapping")])
def test_what_does_not_go_with_a_layout_is_refused_in_one_line(tmp_path: pathlib.Path, verb: str, flags: tuple, named: str) -> None:
    (tmp_path / "DUMP").mkdir()
    words = ["-tp", tmp_path, "-gp", tmp_path, "-o", tmp_path] if verb == "compare" else [tmp_path, tmp_path]
    said = cli(verb, *words, "--layout", "auto", *(tmp_path / flag if flag == "DUMP" else flag for flag in flags), code=2)
    assert f"{named} does not go with --layout auto" in said and len(said.strip().splitlines()) == 1


def test_runs_of_other_numbers_of_ranks_are_hinted_at(record: Record, tmp_path: pathlib.Path) -> None:
    words = ["-tp", str(record("tp", 2) / "step0"), "-gp", str(record("single") / "step0"), "-o", str(tmp_path)]
    said = [subprocess.run([str(harness.BIN / "rankprobe"), "compare", *words, *flags], capture_output=True, text=True, timeout=60)
            for flags in ((), ("--layout", "auto"))]
    assert "2 and 1 ranks" in said[0].stderr and "--layout auto" in said[0].stderr
    assert "--layout" not in said[1].stderr and said[1].returncode == 0


def test_every_other_tool_reads_what_was_put_together(record: Record, tmp_path: pathlib.Path) -> None:
    """The library and the graph: the same answers as --layout auto."""
    import sqlite3

    import rankprobe.analysis as analysis

    healthy, faulty, reference = (record(*run) / "step0" for run in (("tp", 2), ("tp", 2, "bias_split"), ("single",)))
    for target, name in ((healthy, "healthy"), (faulty, "faulty")):
        lines = analysis.put_together(target, reference, tmp_path / name)
        assert lines[0].startswith("target: 2 ranks, 173 tensors, 77 assembled from shards")
    report = analysis.first_divergence(tmp_path / "healthy" / "target", tmp_path / "healthy" / "reference")
    assert report["calls_compared"] == 75 and not report["origins"]
    (origin,) = analysis.first_divergence(tmp_path / "faulty" / "target", tmp_path / "faulty" / "reference")["origins"]
    assert origin["call"] == "Module.layers.1.mlp.up.Linear.forward.0"
    with pytest.raises(ValueError, match="no step in common|does not exist"):
        analysis.put_together(healthy, tmp_path / "none", tmp_path / "bad")

    cli("graph_visualize", "-tp", healthy, "-gp", reference, "--layout", "auto", "-o", tmp_path / "graph")
    (path,) = (tmp_path / "graph").glob("*.vis.db")
    nodes = dict(sqlite3.connect(path).execute("select node_name, output_data from tb_nodes where data_source = 'NPU'"))
    assert '"shape": "[4, 6, 24]"' in nodes["Module.layers.1.mlp.up.Linear.forward.0"]


def test_shards_of_parameters_are_no_replicas_of_one_another(record: Record) -> None:
    """Of tensor parallel ranks only what is whole is compared: nothing differs in a healthy run."""
    assert cli("replicas", record("tp", 2) / "step1", code=0).startswith("0 differences in 9 parameters")
    assert "attention.o.Linear.forward.0.parameters.bias" in cli("replicas", record("tp", 2, "not_reduced") / "step1", code=1)
