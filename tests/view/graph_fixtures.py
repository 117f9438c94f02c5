# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of graphs: a directory with databases of the real msprobe, our own, and dumps; `rankprobe view --root` over
it without a collector; and what is asked of a page."""

from __future__ import annotations

import json
import pathlib
import shutil
import urllib.error
import urllib.request
from typing import Any, Iterator

import graphs
import pytest
from conftest import View, open_page

LINEAR = "Functional.linear.0.forward"
RELU = "Functional.relu.0.forward"


def _plant(data: dict) -> None:
    """A NaN, other values, and a call that the reference has not."""
    data[RELU]["output"][0].update(Max=float("nan"), Norm=float("nan"))
    data["Module.fc.Linear.forward.0"]["output"][0].update(Max=1e6, Norm=3e6)
    data[LINEAR]["output"][0].update(Max=1e6, Norm=3e6)
    data["Torch.extra.0.forward"] = data["Torch.flatten.0.forward"]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("root")
    graphs.golden_databases(root)
    dumps = root / "dumps"
    graphs.copy_rank("cnn_stat_mix", dumps / "golden" / "step0" / "rank0")
    target = dumps / "planted" / "step0" / "rank0"
    graphs.copy_rank("cnn_stat_mix", target, _plant)
    construct = json.loads((target / "construct.json").read_text())
    (target / "construct.json").write_text(json.dumps({**construct, "Torch.extra.0.forward": None}))
    graphs.copy_rank("cnn_stat_mix", dumps / "renamed" / "step0" / "rank0", _plant)
    graphs.rename(dumps / "renamed" / "step0" / "rank0", "Functional.relu.0.", "Functional.gelu.0.")
    for step in (0, 5):
        for rank in (0, 2):
            graphs.copy_rank("cnn_stat_mix", dumps / "many" / f"step{step}" / f"rank{rank}", _plant if (step, rank) == (5, 2) else None)
            graphs.copy_rank("cnn_stat_mix", dumps / "clean" / f"step{step}" / f"rank{rank}")
    for rank, directory in enumerate(graphs.ranks_of("ddp_stat_mix")):
        shutil.copytree(directory, dumps / "ddp" / "step0" / f"rank{rank}")
    graphs.make_database(root, "ours_planted", "-tp", dumps / "planted", "-gp", dumps / "golden", "-oc")
    graphs.make_database(root, "ours_renamed", "-tp", dumps / "renamed", "-gp", dumps / "golden")
    graphs.make_database(root, "ours_build", "-tp", dumps / "planted", "-oc")
    graphs.make_database(root, "ours_many", "-tp", dumps / "many", "-gp", dumps / "clean")
    graphs.make_database(root, "ours_ddp_build", "-tp", dumps / "ddp")
    graphs.make_database(root, "ours_ddp", "-tp", dumps / "ddp", "-gp", dumps / "ddp")
    return root


@pytest.fixture(scope="module")
def files(root) -> Iterator[View]:
    view = View("--root", root)
    yield view
    view.stop()


@pytest.fixture
def page(browser, files, request) -> Iterator[Any]:
    with open_page(browser, files, request.node.name) as page:
        yield page


def open_graph(page: Any, files: View, query: str) -> None:
    page.goto(f"{files.origin}/#/graph?{query}")
    page.locator("#graph-0 [role=treeitem]").first.wait_for(state="attached")


def say(page: Any, label: str, text: str) -> None:
    page.get_by_label(label, exact=True).fill(text)
    page.get_by_label(label, exact=True).press("Enter")


def details(page: Any, name: str) -> Any:
    card = page.locator(".graph .card").filter(has=page.get_by_role("heading", name=name, exact=True))
    card.wait_for()
    return card


def ask(files: View, method: str, body: object, **headers: str) -> Any:
    request = urllib.request.Request(f"{files.origin}/api/v1/Graph/{method}", json.dumps(body).encode() if not isinstance(body, bytes) else body,
                                     {"Content-Type": "application/json", "Authorization": f"Bearer {files.token}", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read().splitlines()[-1])
    except urllib.error.HTTPError as error:
        return json.loads(error.read())
