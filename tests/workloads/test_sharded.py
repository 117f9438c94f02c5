# SPDX-License-Identifier: Apache-2.0
"""Runs of public models on several ranks against a run on one, call by call: a Llama and a mixture of experts (Mixtral) of transformers, laid out
by transformers' own plans, by PyTorch's, and as a pipeline. sharded_hf.py makes the runs, on gloo ranks.

RANKPROBE_WORKLOADS=all runs all of them (stage workloads), else one layout, where transformers is installed.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Iterator

import pytest

pytest.importorskip("transformers")
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE.parent / "python")]

from sharded_runs import Record, calls, cli  # noqa: E402

ALL = os.environ.get("RANKPROBE_WORKLOADS") == "all"
full = pytest.mark.skipif(not ALL, reason="in stage workloads")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """Each run is made once and gives the directory of its dump."""
    log = tmp_path_factory.mktemp("sharded_hf") / "log"
    made: dict[tuple, pathlib.Path] = {}
    with log.open("w") as errors:
        runs = subprocess.Popen([sys.executable, str(HERE / "sharded_hf.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    assert runs.stdin and runs.stdout

    def run(layout: str, ranks: int = 1, fault: str = "none", level: str = "L0", task: str = "statistics") -> pathlib.Path:
        key = (layout, ranks, fault, level, task)
        if key not in made:
            directory = tmp_path_factory.mktemp("run")
            (directory / "config.json").write_text(json.dumps(
                {"task": task, "level": level, "rank": [], "step": [], "risk_level": "ALL", "dump_path": str(directory / "dump")}))
            request = {"layout": layout, "fault": fault, "ranks": ranks, "directory": str(directory)}
            runs.stdin.write(json.dumps(request) + "\n")
            runs.stdin.flush()
            codes = json.loads(runs.stdout.readline() or "[]")
            assert codes == [0] * ranks, log.read_text()[-1500:] + "".join(path.read_text()[-1500:] for path in directory.glob("log*"))
            made[key] = directory / "dump"
        return made[key]

    yield run
    runs.stdin.close()
    runs.wait(timeout=60)


def diverge(target: pathlib.Path, reference: pathlib.Path, *flags: str) -> dict[str, Any]:
    return json.loads(cli("first-divergence", target, reference, "--layout", "auto", "--json", *flags))


def said(target: pathlib.Path, reference: pathlib.Path, *flags: str) -> str:
    """Its line for the target."""
    return cli("first-divergence", target, reference, "--layout", "auto", *flags).splitlines()[0]


def of_batch(layout: str) -> tuple[str, ...]:
    return ("--split_batch",) if layout.endswith("+batch") else ()


def module_of(call: str, reference: pathlib.Path) -> str:
    """The call of a module that it is, or that made it."""
    (construct,) = reference.glob("*/construct.json")
    return call if call.startswith("Module.") else json.loads(construct.read_text())[call]


@pytest.mark.parametrize("layout, ranks, flags", [
    ("llama:tp", 2, ()), *(pytest.param(*case, marks=full) for case in (
        ("llama:fsdp", 2, ()), ("llama:tp_fsdp", 4, ()), ("llama:torch_tp", 2, ()), ("llama:torch_tp_fsdp", 4, ()), ("llama:pp", 2, ()),
        ("llama:fsdp+batch", 2, ("--split_batch",)), ("mixtral:fsdp", 2, ()), ("mixtral:ep", 2, ()), ("mixtral:ep_all_to_all", 2, ()),
        ("mixtral:ep_dp+batch", 2, ("--split_batch",))))])
def test_a_healthy_run_agrees_with_one_rank(record: Record, layout: str, ranks: int, flags: tuple) -> None:
    # After an update each part of the weights stands on its gradient; a batch that is split has its gradients summed outside of the calls.
    for step in (0, 1):
        reference = record(layout.split(":")[0] + ":single") / f"step{step}"
        report = diverge(record(layout, ranks) / f"step{step}", reference, *flags)
        assert not report.get("origins") and not report.get("calls_differing"), report
        assert int(report["calls_compared"]) == len(calls(reference)) == (82 if layout.startswith("llama") else 76)


@pytest.mark.parametrize("layout, ranks, rest", [
    ("llama:tp", 2, "51 assembled from shards, 36 by the other run's shape, 115 copies"),
    *(pytest.param(*case, marks=full) for case in (
        ("llama:tp_fsdp", 4, "51 assembled from shards, 36 by the other run's shape, 115 copies"), ("llama:fsdp", 2, "202 copies"),
        ("mixtral:fsdp", 2, "176 copies"), ("mixtral:ep_all_to_all", 2, "27 assembled from shards, 24 by the other run's shape, 125 copies")))])
def test_every_tensor_is_compared(record: Record, layout: str, ranks: int, rest: str) -> None:
    """transformers' layers take and give plain tensors: their weights tell which ranks have one model."""
    kind = layout.split(":")[0]
    told = said(record(layout, ranks) / "step1", record(f"{kind}:single") / "step1")
    assert told == f"target: {ranks} ranks, {202 if kind == 'llama' else 176} tensors, {rest}"


@full
@pytest.mark.parametrize("layout, ranks, missing, rest", [
    ("llama:tp", 2, 0, "848 tensors, 191 assembled from shards, 200 by the other run's shape, 4 of terms of a sum, 451 copies, 6 not assembled"),
    ("llama:fsdp", 2, 0, "846 tensors, 105 assembled from shards, 740 copies, 1 not assembled"),
    ("llama:tp_fsdp", 4, 0, "846 tensors, 219 assembled from shards, 200 by the other run's shape, 4 of terms of a sum, 421 copies, 6 not assembled"),
    ("llama:torch_tp", 2, 0, "848 tensors, 221 assembled from shards, 172 by the other run's shape, 19 of terms of a sum, 433 copies, 38 not assembled"),
    ("llama:torch_tp_fsdp", 4, 0, "847 tensors, 249 assembled from shards, 172 by the other run's shape, 19 of terms of a sum, 404 copies, "
     "38 not assembled"),
    # The stages' optimizers (35 calls) and the gradient of what the second stage was given.
    ("llama:pp", 2, 36, "740 tensors, 46 copies, 3 not assembled"),
    # Of other batches: the loss, and gradients of weights before they are reduced.
    ("llama:fsdp+batch", 2, 0, "846 tensors, 105 assembled from shards, 566 of parts of the batch, 131 copies, 44 not assembled"),
    ("mixtral:fsdp", 2, 0, "922 tensors, 63 assembled from shards, 856 copies, 3 not assembled"),
    # Each rank runs its experts on the whole batch, and hides the tokens of others: what is made inside is its own.
    ("mixtral:ep", 2, 0, "924 tensors, 101 assembled from shards, 176 by the other run's shape, 2 of terms of a sum, 517 copies, 134 not assembled"),
    # Tokens go to the ranks of their experts, which gives all of them weights of 1 and has no gradient of these (4 calls).
    ("mixtral:ep_all_to_all", 2, 4, "914 tensors, 101 assembled from shards, 236 by the other run's shape, 2 of terms of a sum, 507 copies, "
     "78 not assembled"),
    ("mixtral:ep_dp+batch", 2, 4, "912 tensors, 71 assembled from shards, 650 of parts of the batch, 95 copies, 98 not assembled")])
def test_calls_inside_of_modules_agree_too(record: Record, layout: str, ranks: int, missing: int, rest: str) -> None:
    """`missing`: calls of the run on one rank that the other has not. `rest`: what became of the tensors."""
    for step in (0, 1):
        target = record(layout, ranks, level="mix") / f"step{step}"
        reference = record(layout.split(":")[0] + ":single", level="mix") / f"step{step}"
        report = diverge(target, reference, *of_batch(layout))
        assert not report.get("origins") and not report.get("calls_differing"), report
        assert len(calls(reference)) > 300
        assert int(report["calls_compared"]) == len(calls(reference)) - missing
        told = said(target, reference, *of_batch(layout))
        assert told.startswith(f"target: {ranks} ranks, {rest}; "), told


@full
@pytest.mark.parametrize("layout", ["mixtral:ep", "mixtral:ep_all_to_all", "mixtral:ep_dp+batch"])
def test_elements_inside_of_experts_lie_in_an_order_of_their_own(record: Record, layout: str) -> None:
    target, reference = record(layout, 2, level="mix", task="tensor") / "step1", record("mixtral:single", level="mix", task="tensor") / "step1"
    report = diverge(target, reference, *of_batch(layout))
    assert not report.get("origins") and not report.get("calls_differing"), report


@full
@pytest.mark.parametrize("layout", ["llama:tp", "mixtral:ep"])
def test_elements_are_put_together(record: Record, tmp_path: pathlib.Path, layout: str) -> None:
    import csv

    kind = layout.split(":")[0]
    runs = ["-tp", record(layout, 2, task="tensor") / "step0", "-gp", record(f"{kind}:single", task="tensor") / "step0", "-o", tmp_path]
    cli("compare", "--layout", "auto", *runs)
    (table,) = tmp_path.glob("*.csv")
    rows = {row["NPU Name"]: row for row in csv.DictReader(table.open())}
    wanted = ["Module.model.layers.1.self_attn.q_proj.Linear.forward.0.output.0", "Module.model.layers.1.self_attn.o_proj.Linear.forward.0.input.0",
              "Module.model.layers.0.self_attn.o_proj.Linear.forward.0.parameters.weight"]
    if kind == "mixtral":
        wanted += [f"Module.model.layers.1.mlp.experts.MixtralExperts.{row}" for row in
                   ("forward.0.output.0", "forward.0.parameters.down_proj", "parameters_grad.0.gate_up_proj")]
    for name in wanted:
        assert float(rows[name]["Cosine"]) > 0.999999 and float(rows[name]["MaxAbsErr"]) < 1e-5, rows[name]
        assert rows[name]["NPU Tensor Shape"] == rows[name]["Bench Tensor Shape"]
    assert not [name for name, row in rows.items() if row["Result"] == "error"]


@full
def test_what_ranks_compute_inside_of_their_experts_is_not_compared(record: Record) -> None:
    """With an all-reduce each rank runs its experts on the whole batch, and hides the tokens of others."""
    target, reference = record("mixtral:ep", 2) / "step1", record("mixtral:single") / "step1"
    assert said(target, reference).endswith("8 not assembled")
    lines = cli("first-divergence", target, reference, "--layout", "auto")
    assert "SiLUActivation.forward.0.output.0: computed inside of experts, of which each rank has its own" in lines
    assert "copies differ" not in lines


@pytest.mark.parametrize("layout, ranks, fault, call", [
    ("llama:tp", 2, "not_reduced", "Module.model.layers.1.self_attn.o_proj.Linear.forward.0"),
    *(pytest.param(*case, marks=full) for case in (
        ("llama:tp", 2, "swapped", "Module.model.layers.1.self_attn.v_proj.Linear.forward.0"),
        ("llama:tp", 2, "bias_split", "Module.model.layers.1.self_attn.q_proj.Linear.forward.0"),
        ("llama:tp_fsdp", 4, "not_reduced", "Module.model.layers.1.self_attn.o_proj.Linear.forward.0"),
        # PyTorch's linear gives a sum that was not made yet, as it should; its caller gets it.
        ("llama:torch_tp", 2, "not_reduced", "Module.model.layers.1.self_attn.LlamaAttention.forward.0"),
        ("llama:torch_tp", 2, "swapped", "Module.model.layers.1.self_attn.v_proj.Linear.forward.0"),
        ("llama:torch_tp", 2, "bias_split", "Module.model.layers.1.self_attn.q_proj.Linear.forward.0"),
        ("llama:pp", 2, "stage_weight", "Module.model.layers.1.mlp.down_proj.Linear.forward.0"),
        ("mixtral:ep", 2, "experts_swapped", "Module.model.layers.1.mlp.experts.MixtralExperts.forward.0"),
        ("mixtral:ep", 2, "experts_not_reduced", "Module.model.layers.1.mlp.experts.MixtralExperts.forward.0")))])
def test_a_planted_fault_is_named_at_its_call(record: Record, layout: str, ranks: int, fault: str, call: str) -> None:
    (origin,) = diverge(record(layout, ranks, fault) / "step0", record(layout.split(":")[0] + ":single") / "step0")["origins"]
    assert origin["call"] == call
    # Thousands of times what rounding is allowed: nobody needs to guess.
    assert origin["difference"] > 1000 * origin["tolerance"]


EXPERTS = "Module.model.layers.1.mlp.experts.MixtralExperts.forward.0"


@full
@pytest.mark.parametrize("layout, fault, call, module", [
    ("llama:pp", "stage_weight", "Functional.linear.13.forward", "Module.model.layers.1.mlp.down_proj.Linear.forward.0"),
    # The products of the experts are in no record: what takes them is.
    ("mixtral:ep_all_to_all", "experts_swapped", "Tensor.__mul__.22.forward", EXPERTS),
    ("mixtral:ep_dp+batch", "experts_swapped", "Tensor.__mul__.22.forward", EXPERTS),
    # Inside each rank has its own.
    ("mixtral:ep", "experts_swapped", EXPERTS, EXPERTS), ("mixtral:ep", "experts_not_reduced", EXPERTS, EXPERTS)])
def test_a_planted_fault_is_named_inside_of_its_module(record: Record, layout: str, fault: str, call: str, module: str) -> None:
    reference = record(layout.split(":")[0] + ":single", level="mix") / "step0"
    (origin,) = diverge(record(layout, 2, fault, level="mix") / "step0", reference, *of_batch(layout))["origins"]
    assert origin["call"] == origin["reference_call"] == call
    assert origin["difference"] > 1000 * origin["tolerance"]
    assert module_of(call, reference) == module


@full
@pytest.mark.parametrize("layout, level", [("mixtral:ep", "L0"), ("mixtral:fsdp", "L0"), ("mixtral:fsdp", "mix"), ("mixtral:ep", "mix"),
                                           ("mixtral:ep_all_to_all", "mix"), ("mixtral:ep_dp+batch", "mix")])
def test_a_router_that_is_off_by_one(record: Record, layout: str, level: str) -> None:
    """Indices that are moved around have the same Max and Min: their elements name the router, statistics what it sends tokens to."""
    of_task = {task: (record(layout, 2, "router", level, task) / "step0", record("mixtral:single", level=level, task=task) / "step0")
               for task in ("tensor", "statistics")}
    (origin,) = diverge(*of_task["tensor"], *of_batch(layout))["origins"]
    assert origin["call"] == "Module.model.layers.1.mlp.gate.MixtralTopKRouter.forward.0" and origin["row"].endswith("output.2")
    (origin,) = diverge(*of_task["statistics"], *of_batch(layout))["origins"]
    assert module_of(origin["call"], of_task["statistics"][1]).startswith("Module.model.layers.1.mlp.experts.")
