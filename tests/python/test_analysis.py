# SPDX-License-Identifier: Apache-2.0
"""rankprobe.analysis and the analysis verbs: answers, bad input, runs of the archive."""

import json
import math
import os
import pathlib
import pickle
import shutil
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import harness
import rankprobe
import rankprobe.analysis as analysis

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "interop"))
GOLDEN = ROOT / "tests" / "golden"
BIN = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release")) / "bin" / "rankprobe"
PLANTED = GOLDEN / "analysis" / "dumps" / "cnn_stat_planted"
CNN = next((GOLDEN / "dumps" / "cnn_stat_mix" / "step0").iterdir())
DDP = GOLDEN / "dumps" / "ddp_stat_mix" / "step0"


def cli(*words, code=0):
    done = subprocess.run([BIN, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def test_compare_is_columns():
    table = analysis.compare(PLANTED, CNN)
    assert len({len(column) for column in table.values()}) == 1
    assert set(table["Result"]) == {"pass", "warning", "error"}
    errors = np.asarray(analysis.to_numbers(table["NormRelativeErr"]))
    assert np.nanmax(errors) > 1
    assert math.isnan(analysis.to_numbers(["Diff"])[0])


def test_first_divergence_and_replicas():
    report = analysis.first_divergence(PLANTED, CNN)
    assert report["origins"][0]["call"] == "Functional.conv2d.0.forward"
    assert report["unseen"]["only_in_target"] == 1
    assert analysis.first_divergence(CNN, CNN)["origins"] == []
    found = analysis.replicas(DDP, gradients=True)
    assert {d["kind"] for d in found["differences"]} >= {"gradient"}
    assert found["rows_compared"] > 0 and found["differences"][0]["values"][0]["ranks"]


def test_overflow_check(tmp_path):
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 2.0,
              "requires_grad": False}
    bad = {**tensor, "Max": float("nan")}
    call = {"input_args": [tensor], "input_kwargs": {}, "output": [tensor]}
    (tmp_path / "rank0").mkdir(mode=0o750)
    dump = tmp_path / "rank0" / "dump.json"
    dump.write_text(json.dumps({"task": "statistics", "data": {"Torch.a.0.forward": call,
                                                                "Torch.b.0.forward": {**call, "output": [bad]}}}))
    dump.chmod(0o640)
    (found,) = analysis.overflow_check(tmp_path / "rank0")
    assert (found["rank"], found["call"], found["made"]) == (0, "Torch.b.0.forward", "NaN")
    assert analysis.overflow_check(CNN) == []


def test_graph(tmp_path):
    path = analysis.graph(tmp_path / "x.vis.db", PLANTED, CNN, overflow_check=True)
    assert os.path.getsize(path) > 10000


def test_bad_input_is_a_value_error():
    with pytest.raises(ValueError, match="/nope: does not exist"):
        analysis.compare("/nope", CNN)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch /tmp/rankprobe_bomb",)


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path):
    def broken(name, change):
        directory = tmp_path / name
        shutil.copytree(PLANTED, directory)
        change(directory)
        return directory

    def cut(path):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    cases = [
        (broken("cut", lambda d: cut(d / "dump.json")), "dump.json"),
        (broken("nojson", lambda d: (d / "dump.json").write_text("hello")), "dump.json"),
        (broken("noconstruct", lambda d: (d / "construct.json").unlink()), "construct.json"),
        (broken("cyclic", lambda d: (d / "construct.json").write_text('{"a": "b", "b": "a"}')), "construct.json"),
        (broken("badstack", lambda d: (d / "stack.json").write_text('{"0": 7}')), "stack.json"),
        (tmp_path / "missing", "missing"),
    ]
    (tmp_path / "empty").mkdir()
    cases.append((tmp_path / "empty", "empty"))
    out = tmp_path / "out"
    for directory, word in cases:
        done = cli("graph_visualize", "-tp", directory, "-o", out, code=2)
        assert word in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert not out.exists() or not list(out.iterdir())
    rules = tmp_path / "rules.txt"
    rules.write_text("TopLayer: {a: b}\n")
    done = cli("graph_visualize", "-tp", PLANTED, "-gp", CNN, "-lm", rules, "-o", out, code=2)
    assert "rules.txt: a layer mapping is a .yaml file" in done.stderr
    assert not out.exists() or not list(out.iterdir())
    assert cli("compare", "-tp", PLANTED, code=2).stderr.count("\n") == 1
    assert "name two of one kind" in cli("compare", "-tp", DDP, "-gp", CNN, "-o", out, code=2).stderr


def refused(out, *words):
    """Exit code 2, one line, nothing left in `out`; the line."""
    done = cli(*words, "-o", out, code=2)
    assert done.stderr.count("\n") == 1 and done.stdout == "", (words, done)
    assert not out.exists() or not list(out.iterdir()), words
    return done.stderr


def test_bad_mappings_and_flags(tmp_path):
    out = tmp_path / "out"
    shapes = {"text": "just words", "list": "- 1\n- 2\n", "deep": "a: {b: {c: d}}", "broken": "a: [", "number": "7"}
    for name, text in shapes.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        for flag in ("-cm", "-dm", "-am"):
            line = refused(out, "compare", "-tp", PLANTED, "-gp", CNN, flag, tmp_path / f"{name}.yaml")
            assert f"{name}.yaml: " in line, (flag, line)
        # As msprobe: a layer mapping that is none is told and not applied (D6).
        for verb in ("compare", "graph_visualize"):
            done = cli(verb, "-tp", PLANTED, "-gp", CNN, "-lm", tmp_path / f"{name}.yaml", "-o", tmp_path / "mapped")
            assert f"{name}.yaml: " in done.stderr and "not applied" in done.stderr, (verb, done.stderr)
    assert "none.yaml" in refused(out, "compare", "-tp", PLANTED, "-gp", CNN, "-lm", tmp_path / "none.yaml")
    assert "none.yaml" in refused(out, "compare", "-tp", PLANTED, "-gp", CNN, "-am", tmp_path / "none.yaml")
    assert "-lm and -dm" in refused(out, "compare", "-tp", PLANTED, "-gp", CNN, "-lm", "-fm")
    for flags, said in ((["-lm", tmp_path / "none.yaml"], "none.yaml"), (["-am", tmp_path / "none.yaml"], "none.yaml"),
                        (["-am", tmp_path / "deep.yaml"], "deep.yaml: "), (["-lm", "-fm"], "-lm and -dm"),
                        (["-am", "mindspore", "-lm"], "-lm and -dm"), (["-lm", "--rules", "vllm-llama"], "--layer_mapping"),
                        (["-lm", "--layout", "auto"], "--layer_mapping")):
        done = cli("first-divergence", PLANTED, CNN, *flags, code=2)
        assert done.stderr.count("\n") == 1 and done.stdout == "" and said in done.stderr, (flags, done)
    done = cli("first-divergence", CNN, CNN, "-lm", tmp_path / "list.yaml")
    assert "list.yaml: " in done.stderr and "not applied" in done.stderr
    for words in (["compare", "-tp", PLANTED, "-gp", CNN, "--nonsense"], ["graph_visualize", "-gp", CNN],
                  ["graph_visualize", "-tp", CNN, "-lm"]):
        refused(out, *words)


def test_bad_trees(tmp_path):
    out = tmp_path / "out"

    def tree(name, *ranks, source=CNN):
        for rank in ranks:
            shutil.copytree(source, tmp_path / name / rank)
        return tmp_path / name

    one, other = tree("one", "rank0", "rank1"), tree("other", "rank2", "rank3")
    for verb in ("compare", "graph_visualize"):
        line = refused(out, verb, "-tp", one, "-gp", other)
        assert str(one) in line and str(other) in line
    refused(tmp_path / "none", "compare", "-tp", one, "-gp", other)
    assert not (tmp_path / "none").exists()  # nothing was written
    half = tree("half", "rank0", "rank1")
    (half / "rank1" / "dump.json").write_text('{"task": "statistics", "data": {"Torch.a')
    for words in (["compare", "-tp", half, "-gp", one], ["graph_visualize", "-tp", half],
                  ["graph_visualize", "-tp", one, "-gp", half]):
        assert "half/rank1/dump.json: " in refused(out, *words)
    hollow = tree("hollow", "rank0")
    (hollow / "rank0" / "construct.json").write_text("{}")
    assert "hollow/rank0/construct.json" in refused(out, "graph_visualize", "-tp", hollow)
    mixed = tree("mixed", "rank0")
    (mixed / "step3").mkdir()
    assert "mixed" in refused(out, "compare", "-tp", mixed, "-gp", one)


def test_the_older_input_path(tmp_path):
    file = tmp_path / "compare.json"
    out = tmp_path / "out"
    bad = ['{"npu_path": 3}', "{}", "[]", '{"npu_path": "x", "more": 1}', "{", '{"npu_path": "x", "bench_path": null}']
    for text in bad:
        file.write_text(text)
        assert "compare.json: " in refused(out, "graph_visualize", "--input_path", file)
    assert "none.json" in refused(out, "graph_visualize", "--input_path", tmp_path / "none.json")
    refused(out, "graph_visualize", "--input_path", file, "-tp", CNN)
    file.write_text(json.dumps({"npu_path": str(PLANTED), "bench_path": str(CNN), "is_print_compare_log": True}))
    done = cli("graph_visualize", "--input_path", file, "-o", out, "--json")
    assert pathlib.Path(json.loads(done.stdout)["file"]).name.startswith("compare_")
    file.write_text(json.dumps({"npu_path": str(PLANTED)}))
    done = cli("graph_visualize", "--input_path", file, "-o", out, "--json")
    assert pathlib.Path(json.loads(done.stdout)["file"]).name.startswith("build_")


def test_a_pickle_bomb_is_refused(tmp_path):
    source = GOLDEN / "analysis" / "dumps" / "mlp_tensor"
    target = tmp_path / "bomb"
    shutil.copytree(source, target)
    victim = sorted((target / "dump_tensor_data").iterdir())[0]
    import zipfile

    with zipfile.ZipFile(victim, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(Bomb(), protocol=2))
    done = cli("compare", "-tp", target, "-gp", source, "-o", tmp_path / "out", code=2)
    assert victim.name in done.stderr and "system" in done.stderr
    assert not os.path.exists("/tmp/rankprobe_bomb")
    assert not (tmp_path / "out").exists(), "a verb that fails leaves nothing"


def merged(tmp_path, *words):
    """The nodes of a merged graph: name to row."""
    done = cli("graph_visualize", *words, "-o", tmp_path / "merged", "--json")
    db = sqlite3.connect(json.loads(done.stdout)["file"])
    db.row_factory = sqlite3.Row
    return {(row["rank"], row["data_source"], row["node_name"]): row for row in db.execute("select * from tb_nodes")}


def test_parallel_layouts_merge(tmp_path):
    import layouts

    one = layouts.write(tmp_path / "one", 1, 1)
    four = layouts.write(tmp_path / "four", 2, 2)
    chunks = layouts.write(tmp_path / "chunks", 1, 2, 1, 2)
    whole = {n for _, _, n in merged(tmp_path, "-tp", one, "--rank_size", 1, "--tp", 1, "--pp", 1)}
    modules = {n for n in whole if n.startswith("Module.")}
    assert len(modules) == 29
    for dump, sizes in ((four, (4, 2, 2, 1)), (chunks, (2, 1, 2, 2))):
        words = [w for pair in zip(("--rank_size", "--tp", "--pp", "--vpp"), sizes) for w in pair]
        names = {n for _, _, n in merged(tmp_path, "-tp", dump, *words)}
        lost = {"Module.0.module.output_layer.OutputLayer.forward.0"} if dump == chunks else set()
        assert {n for n in names if n.startswith("Module.")} >= modules - lost, modules - names
    # A weight that two ranks share out: the second layer of the second stage is the model's last.
    rows = merged(tmp_path, "-tp", four, "--rank_size", 4, "--tp", 2, "--pp", 2)
    name = "Module.0.module.decoder.layers.3.mlp.fc1.ColumnParallelLinear.forward.0"
    weight = json.loads(rows[0, "NPU", name]["input_data"])[f"{name}.parameters.weight"]
    parts = [json.loads((four / rank / "dump.json").read_text())["data"][name.replace("layers.3", "layers.1")]
             ["parameters"]["weight"] for rank in ("rank2", "rank3")]
    assert float(weight["Max"]) == pytest.approx(max(p["Max"] for p in parts), rel=1e-6)
    assert float(weight["Mean"]) == pytest.approx(sum(p["Mean"] for p in parts) / 2, rel=1e-6)
    assert float(weight["Norm"]) == pytest.approx(sum(p["Norm"] ** 2 for p in parts) ** 0.5, rel=1e-6)
    assert "ranks [2, 3]" in rows[0, "NPU", name]["parallel_merge_info"]
    # A NaN that one of the ranks has is in the whole.
    path = four / "rank3" / "dump.json"
    dump = json.loads(path.read_text())
    dump["data"][name.replace("layers.3", "layers.1")]["parameters"]["weight"].update(Max=math.nan, Min=math.nan)
    path.write_text(json.dumps(dump))
    rows = merged(tmp_path, "-tp", four, "--rank_size", 4, "--tp", 2, "--pp", 2)
    weight = json.loads(rows[0, "NPU", name]["input_data"])[f"{name}.parameters.weight"]
    assert weight["Max"] == weight["Min"] == "nan"
    # Replicas stay apart, and none of their calls is lost.
    eight = layouts.write(tmp_path / "eight", 2, 2, 2)
    rows = merged(tmp_path, "-tp", eight, "--rank_size", 8, "--tp", 2, "--pp", 2)
    assert {rank for rank, _, _ in rows} == {0, 2}
    assert (0, "NPU", "Torch.ones.0.forward") in rows and (0, "NPU", "Torch.ones_rank1.0.forward") in rows
    both = merged(tmp_path, "-tp", four, "-gp", one, "--rank_size", 4, 1, "--tp", 2, 1, "--pp", 2, 1)
    assert all(json.loads(row["matched_node_link"]) for (_, side, node), row in both.items()
               if side == "Bench" and node.startswith("Module."))


def test_notes_of_a_merged_call(tmp_path):
    """The merged node has another name than the call in the dump, by which notes go."""
    import layouts

    four = layouts.write(tmp_path / "four", 2, 2)
    flags = ["-tp", four, "--rank_size", 4, "--tp", 2, "--pp", 2]
    path = four / "rank2" / "dump.json"
    dump = json.loads(path.read_text())
    call = "Module.0.module.decoder.layers.1.mlp.fc1.ColumnParallelLinear.forward.0"
    dump["data"][call]["input_args"][0].update(Max=math.nan)
    path.write_text(json.dumps(dump))
    node = (0, "NPU", call.replace("layers.1", "layers.3"))
    assert merged(tmp_path, *flags, "-oc")[node]["overflow_level"] == "medium"
    notes = path.with_name("tensor_notes.json")
    notes.write_text(json.dumps({f"{call}.input.0": {"written": True}}))
    assert merged(tmp_path, *flags, "-oc")[node]["overflow_level"] is None
    # Who does not ask for levels needs no notes.
    notes.write_text("[]")
    assert node in merged(tmp_path, *flags)
    assert "rank2/tensor_notes.json" in refused(tmp_path / "out", "graph_visualize", *flags, "-oc")
    assert cli("graph_visualize", "-tp", four / "rank2", "-o", tmp_path / "one").returncode == 0
    assert "tensor_notes.json" in refused(tmp_path / "out", "graph_visualize", "-tp", four / "rank2", "-oc")


def test_bad_parallel_layouts(tmp_path):
    import layouts

    out = tmp_path / "out"
    four = layouts.write(tmp_path / "four", 2, 2)
    for words, what in (((4, 3, 1), "multiple"), ((3, 1, 3), "rank0 to rank2"), ((4, 0, 1), "--tp"), ((8, 2, 2), "rank7"),
                        ((4, 2, 2, "tp-dp"), "lacks pp"), ((4, 2, 2, "tp-qp-pp"), "'qp'"),
                        ((4, 2, 2, "tp-ep-pp-dp"), "neighbours")):
        flags = [w for pair in zip(("--rank_size", "--tp", "--pp", "--order"), words) for w in pair]
        assert what in refused(out, "graph_visualize", "-tp", four, *flags)
    flags = ["--rank_size", 4, "--tp", 2]
    assert "--pp" in refused(out, "graph_visualize", "-tp", four, *flags)
    assert "--vpp 2" in refused(out, "graph_visualize", "-tp", four, "--rank_size", 4, "--tp", 4, "--pp", 1, "--vpp", 2)
    assert "2 values" in refused(out, "graph_visualize", "-tp", four, "-gp", four, *flags, "--pp", 2)
    assert "parallel sizes differ" in refused(out, "graph_visualize", "-tp", four, "-gp", four, "--rank_size", 4, 4,
                                              "--tp", 2, 2, "--pp", 2, 1)
    assert "statistics" in refused(out, "graph_visualize", "-tp", GOLDEN / "analysis" / "dumps" / "mlp_tensor",
                                   "--rank_size", 1, "--tp", 1, "--pp", 1)


def test_json_output(tmp_path):
    done = cli("compare", "-tp", PLANTED, "-gp", CNN, "-o", tmp_path, "--json")
    assert json.loads(done.stdout)["results"][0]["error"] == 8
    done = cli("first-divergence", PLANTED, CNN, "--json", code=1)
    assert json.loads(done.stdout)["origins"][0]["from_outside"] is True
    assert json.loads(cli("graph_visualize", "-tp", CNN, "-o", tmp_path, "--json").stdout)["nodes"] == 43


def test_runs_of_the_archive(collector, tmp_path):
    config = json.dumps({"task": "statistics", "dump_path": "./dump", "rank": [], "step": [], "level": "L1",
                         "statistics": {}})
    for run, factor in (("good", 1.0), ("bad", 2.0)):
        session = rankprobe.Session(collector.address, run=run, rank=0, config_json=config)
        session.start()
        x = np.ones((3, 3), np.float32)
        session.call("Torch", "mul", [x], [x * factor])
        session.stop()
        session.step()
        session.close()
    done = cli("first-divergence", "run:bad", "run:good", "--collector", collector.address, "--json", code=1)
    assert json.loads(done.stdout)["origins"][0]["call"] == "Torch.mul.0.forward"
    cli("first-divergence", "run:good", "run:good@0", "--collector", collector.address, code=2)
    cli("first-divergence", "run:good@0", "run:good@0", "--collector", collector.address)
    cli("first-divergence", "run:none", "run:good", "--collector", collector.address, code=4)


class LiveRuns(threading.Thread):
    """Runs that step on until told to end; `mul` of a run multiplies by its factor."""

    def __init__(self, collector, **factors):
        super().__init__()
        config = json.dumps({"task": "statistics", "dump_path": "./dump", "rank": [], "step": [], "level": "L1",
                             "statistics": {"summary_mode": "statistics"}})
        self.sessions = {run: rankprobe.Session(collector.address, run=run, rank=0, config_json=config)
                         for run in factors}
        for session in self.sessions.values():
            session.wait_connected(20)
        self.factors, self.ended, self.steps, self.error = factors, threading.Event(), 0, None

    def run(self):
        try:
            while not self.ended.is_set():
                for run, session in self.sessions.items():
                    x = np.full((4, 4), 1 + self.steps % 7, np.float32)
                    session.start()
                    session.call("Torch", "add", [x], [x + 1])
                    session.call("Torch", "mul", [x + 1], [(x + 1) * self.factors[run]])
                    session.stop()
                    session.step()
                self.steps += 1
                self.ended.wait(0.02)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join(30)
        for session in self.sessions.values():
            session.close()
        assert self.error is None


def test_first_divergence_records_its_calls_again(collector, tmp_path):
    def exported(run):
        """Steps to calls."""
        out = tmp_path / f"{run}{time.monotonic_ns()}"
        collector.cli("export", "--run", run, "-o", out, check=False)
        return {int(d.name[4:]): list(harness.load_dump(d / "rank0")["data"]) for d in out.glob("step*")}

    words = ["--collector", collector.address, "--json", "--wait", "20"]
    with LiveRuns(collector, bad=1.5, good=1.0):
        for run in ("bad", "good"):
            harness.wait_for(lambda: len(exported(run)) > 2, 20, f"steps of {run}")
        before = collector.json("config", "get", "--run", "bad")
        done = cli("first-divergence", "run:bad@0", "run:good@0", "--live", *words, code=1)
        answer = json.loads(done.stdout)
        assert [o["call"] for o in answer["origins"]] == ["Torch.mul.0.forward"]
        captured = answer["captured"]
        step = captured["step"]
        assert captured["target"] == f"run:bad@{step}" and step > 1
        # The same call, now by its elements, and only that call.
        (origin,) = captured["report"]["origins"]
        assert (origin["call"], origin["step"]) == ("Torch.mul.0.forward", step)
        assert captured["report"]["calls_compared"] == 1
        for run in ("bad", "good"):
            assert exported(run)[step] == ["Torch.mul.0.forward"]
        # Then on as before.
        after = collector.json("config", "get", "--run", "bad")
        assert json.loads(after["config_json"]) == json.loads(before["config_json"])
        assert after["enabled"] == before["enabled"]
        harness.wait_for(lambda: any(s > step and len(calls) == 2 for s, calls in exported("bad").items()), 20,
                         "statistics again")
    done = cli("first-divergence", "run:bad@0", "run:good@0", "--live", *words, code=5)
    assert "bad" in done.stderr and "no rank of it is connected" in done.stderr
    assert "run:NAME" in cli("first-divergence", PLANTED, CNN, "--live", code=2).stderr
