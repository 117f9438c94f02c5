# SPDX-License-Identifier: Apache-2.0
"""tb_graph_ascend, the TensorBoard plugin, opens the graph databases and answers from them over its HTTP API."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Any

import pytest
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

import layouts
import test_analysis as tools
from server.plugin import GraphsPlugin  # of tb-graph-ascend


class View:
    """The plugin over one log directory, and the one database in it."""

    def __init__(self, logdir: pathlib.Path) -> None:
        self.plugin = GraphsPlugin(base_plugin.TBContext(logdir=str(logdir)))
        assert self.plugin.is_active()
        found = self.get("/load_meta_dir")
        assert not found.get("error"), found
        (run, tags), = found["data"].items()
        self.meta = {"run": run, "type": tags["type"], "tag": tags["tags"][0], "lang": "en", "microStep": -1, "rank": 0,
                     "step": 0}
        query = {"run": run, "tag": self.meta["tag"], "type": tags["type"], "lang": "en"}
        # It answers with the keys of its answer.
        assert self._bytes("/loadGraphData", method="GET", query_string=query) == b"success"
        self.config = self.post("/loadGraphConfigInfo")
        self.nodes = self.post("/loadGraphAllNodeList")

    def _bytes(self, route: str, **request: Any) -> bytes:
        client = Client(self.plugin.get_plugin_apps()[route])
        response = client.open(route, **request)
        assert response.status_code == 200
        return response.get_data()

    def _answer(self, route: str, **request: Any) -> Any:
        return json.loads(self._bytes(route, **request))

    def get(self, route: str, **query: str) -> Any:
        return self._answer(route, method="GET", query_string=query)

    def post(self, route: str, **body: Any) -> Any:
        answer = self._answer(route, method="POST", json={"metaData": self.meta, **body})
        assert answer["success"], (route, answer)
        return answer["data"]

    def node(self, name: str, side: str) -> Any:
        return self.post("/getNodeInfo", nodeInfo={"nodeName": name, "nodeType": side})

    def expand(self, name: str, side: str) -> Any:
        return self.post("/changeNodeExpandState", nodeInfo={"nodeName": name, "nodeType": side})


def view(directory: pathlib.Path, *words: object) -> View:
    tools.run_ours([*map(str, ["graph_visualize", *words, "-o", directory / "logs"])])
    return View(directory / "logs")


def gelu_for_relu(rank: pathlib.Path) -> None:
    for path in rank.glob("*.json"):
        path.write_text(path.read_text().replace("Functional.relu.0.", "Functional.gelu.0."))


def test_build(tmp_path: pathlib.Path) -> None:
    opened = view(tmp_path, "-tp", tools.rank_dir("weird_stat_mix"), "-oc")
    assert opened.config["isSingleGraph"] and opened.config["overflowCheck"]
    dump = json.loads((tools.rank_dir("weird_stat_mix") / "dump.json").read_text())["data"]
    assert set(opened.nodes["npuNodeList"]) >= {n for n in dump if ".parameters_grad" not in n}
    shown = opened.expand("root", "Single")
    assert "DefaultModel" in shown and any(n.startswith("Module.") for n in shown)
    bad = opened.post("/screen", type="overflow", values=["critical", "high", "medium"])
    assert bad and set(bad) <= set(opened.nodes["npuNodeList"])


def test_compare(tmp_path: pathlib.Path) -> None:
    target = tools.planted("cnn_stat_mix", tmp_path)
    opened = view(tmp_path, "-tp", target, "-gp", tools.rank_dir("cnn_stat_mix"))
    assert not opened.config["isSingleGraph"] and opened.config["task"] == "summary"
    name = "Functional.relu.0.forward"
    assert opened.nodes["npuMatchNodes"][name] == name == opened.nodes["benchMatchNodes"][name]
    assert "Torch.extra.0.forward" not in opened.nodes["npuMatchNodes"]
    pair = opened.node(name, "NPU")
    rows = [pair[side]["output_data"] for side in ("npu", "bench")]
    assert rows[0].keys() == rows[1].keys() and "NormRelativeErr" in next(iter(rows[0].values()))
    wrong = opened.post("/screen", type="precision", values=[[0.6, 1.1]])
    fine = opened.post("/screen", type="precision", values=[[0, 0.3]])
    assert wrong and fine and not set(wrong) & set(fine)
    for side in ("NPU", "Bench"):
        assert "DefaultModel" in opened.expand("root", side)
    # What lies deep opens all that is above it.
    assert name in opened.expand(name, "NPU")
    # Hand matching writes to the file, which must be one that can be written to.
    opened.post("/deleteMatchNodes", npuNodeName=name, benchNodeName=name, isUnMatchChildren=False)
    assert name not in opened.post("/loadGraphAllNodeList")["npuMatchNodes"]
    opened.post("/addMatchNodes", npuNodeName=name, benchNodeName=name, isMatchChildren=False)
    assert opened.post("/loadGraphAllNodeList")["npuMatchNodes"][name] == name


def test_steps_and_ranks(tmp_path: pathlib.Path) -> None:
    """E2: each step and rank of a database can be chosen, and has its own nodes."""
    for step in (0, 5):
        for rank in ("rank0", "rank2"):
            shutil.copytree(tools.rank_dir("cnn_stat_mix"), tmp_path / "dump" / f"step{step}" / rank)
    gelu_for_relu(tmp_path / "dump" / "step5" / "rank2")
    opened = view(tmp_path, "-tp", tmp_path / "dump")
    assert opened.config["ranks"] == [0, 2] and opened.config["steps"] == [0, 5]
    for step, rank, name in ((0, 0, "relu"), (0, 2, "relu"), (5, 2, "gelu")):
        opened.meta.update(step=step, rank=rank)
        found = opened.post("/loadGraphAllNodeList")["npuNodeList"]
        assert {n for n in found if "elu.0.forward" in n} == {f"Functional.{name}.0.forward"}


def test_search_colours_and_what_has_no_partner(tmp_path: pathlib.Path) -> None:
    """E5, E8, E11: the lists and colours that the plugin's front end searches, filters and paints by."""
    target, golden = tmp_path / "target", tools.rank_dir("cnn_stat_mix")
    shutil.copytree(golden, target)
    gelu_for_relu(target)
    opened = view(tmp_path, "-tp", target, "-gp", golden)
    for side, source, own in (("npu", target, "gelu"), ("bench", golden, "relu")):
        dump = json.loads((source / "dump.json").read_text())["data"]
        assert set(opened.nodes[f"{side}NodeList"]) >= {n for n in dump if ".parameters_grad" not in n}
        unmatched = set(opened.nodes[f"{side}UnMatchNodes"])
        assert unmatched == {f"Functional.{own}.0.{way}" for way in ("forward", "backward")}
        assert not unmatched & set(opened.nodes[f"{side}MatchNodes"])
    colours = opened.config["colors"]
    assert len(colours) == 4 and all(re.fullmatch("#[0-9A-Fa-f]{6}", colour) for colour in colours)


@pytest.mark.parametrize("compare", [False, True])
def test_merged(compare: bool, tmp_path: pathlib.Path) -> None:
    layout = (2, 2, 1, 1)
    dump = layouts.write(tmp_path / "dump", *layout)
    golden = ["-gp", layouts.write(tmp_path / "golden", 1, 1)] if compare else []
    opened = view(tmp_path, "-tp", dump, *golden, *tools.sizes(layout, *([(1, 1, 1, 1)] if compare else [])))
    name = "Module.0.module.decoder.layers.3.mlp.fc1.ColumnParallelLinear.forward.0"
    assert name in opened.nodes["npuNodeList"]
    assert "ranks [2, 3]" in json.dumps(opened.node(name, "NPU" if compare else "Single")["npu"])
