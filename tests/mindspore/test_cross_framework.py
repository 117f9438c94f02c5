# SPDX-License-Identifier: Apache-2.0
"""D14: one network with the same weights in PyTorch and in MindSpore, laid beside each other."""

from __future__ import annotations

import csv
import functools
import json
import pathlib
import sqlite3

import pytest
from conftest import cli, program
from cross import LAYERS


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory):
    """tree(framework, network, task, level, planted): the rank directory of step 0."""
    @functools.lru_cache(maxsize=None)
    def run(framework: str, network: str, task: str = "statistics", level: str = "L0", planted: str = "") -> pathlib.Path:
        directory = tmp_path_factory.mktemp(f"{framework}-{network}-{task}")
        program("cross.py", framework, network, directory, task, level, *([planted] if planted else []))
        tree.loss[framework, network, planted] = json.loads((directory / "loss.json").read_text())
        return next((directory / "dump" / "step0").iterdir())

    tree = run
    tree.loss = {}
    return run


@pytest.fixture()
def layers(tmp_path: pathlib.Path) -> list:
    path = tmp_path / "layers.yaml"
    path.write_text(LAYERS)
    return {"lenet": ["-lm"], "transformer": ["-lm", path]}


def table(out: pathlib.Path) -> list[dict[str, str]]:
    with open(next(out.glob("*.csv")), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def compared(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of cells that have a partner."""
    return [row for row in rows if row["Bench Name"] != "N/A"]


@pytest.mark.parametrize("network", ["lenet", "transformer"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_equal_networks_are_equal(tree, layers, tmp_path: pathlib.Path, network: str, task: str) -> None:
    new, old = tree("mindspore", network, task), tree("pytorch", network, task)
    assert tree.loss["mindspore", network, ""] == pytest.approx(tree.loss["pytorch", network, ""], rel=1e-5)
    cli("compare", "-tp", new, "-gp", old, "-o", tmp_path / "out", *layers[network])
    rows = compared(table(tmp_path / "out"))
    outputs = [row for row in rows if ".forward." in row["NPU Name"] and ".output." in row["NPU Name"]]
    cells = {row["NPU Name"].partition(".forward.")[0] for row in outputs}
    assert len(cells) == {"lenet": 7, "transformer": 25}[network], sorted(cells)
    assert all(row["NPU Name"].startswith("Cell.") and row["Bench Name"].startswith("Module.") for row in rows)
    for row in outputs:
        if task == "tensor":
            assert float(row["Cosine"]) > 0.99999, row
        else:
            assert float(row["NPU l2norm"]) == pytest.approx(float(row["Bench l2norm"]), rel=1e-4), row
    backward = [row for row in rows if ".backward." in row["NPU Name"]]
    assert backward


def test_parameters_pair_by_what_they_are(tree, layers, tmp_path: pathlib.Path) -> None:
    """gamma with weight, embedding_table with weight; the one row without a partner has no value in MindSpore."""
    new, old = tree("mindspore", "transformer"), tree("pytorch", "transformer")
    cli("compare", "-tp", new, "-gp", old, "-o", tmp_path / "out", *layers["transformer"])
    rows = {row["NPU Name"]: row for row in table(tmp_path / "out")}
    for name, partner in (("norm.LayerNorm.forward.0.parameters.gamma", "norm.LayerNorm.forward.0.parameters.weight"),
                          ("norm.LayerNorm.parameters_grad.0.beta", "norm.LayerNorm.parameters_grad.0.bias"),
                          ("embedding.Embedding.forward.0.parameters.embedding_table", "embed.Embedding.forward.0.parameters.weight")):
        assert rows[f"Cell.{name}"]["Bench Name"] == f"Module.{partner}"
        assert float(rows[f"Cell.{name}"]["NPU l2norm"]) == pytest.approx(float(rows[f"Cell.{name}"]["Bench l2norm"]), rel=1e-3)
    assert [name for name, row in rows.items() if row["Bench Name"] == "N/A"] == ["Cell.embedding.Embedding.backward.0.output.0"]
    assert not any("dtype" in row["Err_message"] for row in rows.values() if row["NPU Dtype"] == "Float32")


@pytest.mark.parametrize("network,planted", [("lenet", "fc2"), ("transformer", "blocks.1.mlp.up")])
def test_a_planted_weight_is_named_at_its_layer(tree, layers, tmp_path: pathlib.Path, network: str, planted: str) -> None:
    """The first output in the table that differs is that of the layer."""
    new, old = tree("mindspore", network, "statistics", "L0", planted), tree("pytorch", network)
    cli("compare", "-tp", new, "-gp", old, "-o", tmp_path / "out", *layers[network])
    outputs = [row for row in compared(table(tmp_path / "out")) if ".forward." in row["NPU Name"] and ".output." in row["NPU Name"]]
    different = [row["NPU Name"] for row in outputs
                 if float(row["NPU l2norm"]) != pytest.approx(float(row["Bench l2norm"]), rel=2e-5)]
    assert different and different[0].startswith(f"Cell.{planted}."), different


def divergence(new: pathlib.Path, old: pathlib.Path, *flags: object, code: int) -> dict:
    return json.loads(cli("first-divergence", new, old, "--json", *flags, code=code).stdout)


@pytest.mark.parametrize("network", ["lenet", "transformer"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_healthy_runs_have_no_origin(tree, layers, network: str, task: str) -> None:
    """Within `--tolerance auto`; what only one side has is said to be not seen."""
    new, old = tree("mindspore", network, task), tree("pytorch", network, task)
    found = divergence(new, old, *layers[network], code=1)
    assert not found["origins"] and int(found["calls_differing"]) == 0, found
    assert int(found["calls_compared"]) == {"lenet": 19, "transformer": 69}[network]
    # The first cell has no gradient of its input: a null in one, nothing in the other.
    first = {"lenet": "conv1.Conv2d", "transformer": "embedding.Embedding"}[network]
    assert found["unseen"]["examples"] == [f"Cell.{first}.backward.0.output.0 has no partner"], found["unseen"]
    # Without the mapping there is nothing to lay beside each other.
    assert int(divergence(new, old, code=1)["calls_compared"]) == 0


@pytest.mark.parametrize("network,planted,partner", [
    ("lenet", "fc2", "fc2.Linear"), ("lenet", "conv1", "conv1.Conv2d"),
    ("transformer", "blocks.1.mlp.up", "layers.1.mlp.up.Linear"),
    ("transformer", "blocks.0.attention.k", "layers.0.self_attn.k.Linear")])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_first_divergence_names_the_layer(tree, layers, network: str, planted: str, partner: str, task: str) -> None:
    new, old = tree("mindspore", network, task, "L0", planted), tree("pytorch", network, task)
    found = divergence(new, old, *layers[network], code=1)
    (origin,) = found["origins"]
    assert origin["call"].startswith(f"Cell.{planted}.") and ".forward." in origin["call"], origin
    assert origin["reference_call"] == f"Module.{partner}.forward.0"
    assert origin["from_outside"] and ".parameters.weight" in origin["row"], origin
    said = cli("first-divergence", new, old, *layers[network], code=1).stdout
    assert f"Cell.{planted}." in said.splitlines()[0] and "a weight" in said


def test_first_divergence_of_functions(tree) -> None:
    """-am mindspore at L1: the first function that the wrong weight goes into."""
    old = tree("pytorch", "transformer", "statistics", "L1")
    healthy = divergence(tree("mindspore", "transformer", "statistics", "L1"), old, "-am", "mindspore", code=1)
    assert not healthy["origins"] and int(healthy["calls_compared"]) > 5, healthy
    wrong = divergence(tree("mindspore", "transformer", "statistics", "L1", "blocks.0.attention.k"), old, "-am", "mindspore", code=1)
    (origin,) = wrong["origins"]
    assert origin["call"] == "Functional.matmul.0.forward", origin


@pytest.mark.parametrize("network", ["lenet", "transformer"])
def test_a_graph_pairs_cells_with_modules(tree, layers, tmp_path: pathlib.Path, network: str) -> None:
    cli("graph_visualize", "-tp", tree("mindspore", network), "-gp", tree("pytorch", network), "-o", tmp_path / "out", *layers[network])
    with sqlite3.connect(next((tmp_path / "out").glob("*.db"))) as db:
        links = {name: json.loads(link)[-1:] for name, link in db.execute(
            "select node_name, matched_node_link from tb_nodes where data_source = 'NPU'")}
    cells = [name for name in links if name.startswith("Cell.") and ".forward." in name]
    assert len(cells) >= {"lenet": 7, "transformer": 25}[network]
    assert all(links[name] and links[name][0].startswith("Module.") for name in cells), links


def test_functions_pair_by_the_table_that_comes_along(tree, tmp_path: pathlib.Path) -> None:
    new, old = tree("mindspore", "transformer", "statistics", "L1"), tree("pytorch", "transformer", "statistics", "L1")
    cli("compare", "-tp", new, "-gp", old, "-o", tmp_path / "out", "-am", "mindspore")
    pairs = {row["NPU Name"]: row["Bench Name"] for row in table(tmp_path / "out")}
    assert pairs["Functional.matmul.0.forward.output.0"] == "Torch.matmul.0.forward.output.0"
    assert pairs["Functional.relu.1.forward.output.0"] == "Functional.relu.1.forward.output.0"
