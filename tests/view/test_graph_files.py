# SPDX-License-Identifier: Apache-2.0
"""Graphs beyond the features of the plugin: communication, every database of the real msprobe, files of ill will, pages beside each other,
what is outside the directory, and axe."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import urllib.error
import urllib.request

import graphs
import harness
import pytest
from conftest import PICTURES, View, open_page, holds
from graph_fixtures import RELU, ask, details, files, open_graph, page, root, say  # noqa: F401
from graphs import Boxes


def test_communication_leads_to_the_other_rank_in_build_and_compare_graphs(page, files) -> None:
    for name in ("ours_ddp_build", "ours_ddp", "cmp_ddp_multistep"):
        open_graph(page, files, f"db={name}.vis.db")
        say(page, "Search", "Distributed.")
        page.get_by_role("status").filter(has_text="found").wait_for()
        link = page.locator(".links a").first
        for _ in range(30):
            page.get_by_role("button", name="Next").click()
            page.locator(".graph .card h2").wait_for()
            page.locator(".graph .card [aria-busy]").wait_for(state="detached")
            if link.count() > 0 and "rank1 " in link.inner_text():
                break
        peer = link.inner_text().split(" ")[1]
        link.click()
        holds(page, "location.hash.includes('rank=1')")
        details(page, peer)
        Boxes(page).wait(peer)


@pytest.mark.parametrize("name", sorted([path.name[:-len(".vis.db.gz")] for path in (graphs.GOLDEN / "graphs").glob("*.gz")] +
                                        [path.name[:-len(".vis.db")] for path in (graphs.GOLDEN / "analysis" / "graph").glob("*.vis.db")]))
def test_every_database_of_the_real_msprobe_opens(page, files, root, name: str) -> None:
    """All nodes of each step and rank are there, and what msprobe coloured has its colour."""
    with sqlite3.connect(root / f"{name}.vis.db") as db:
        places = db.execute("SELECT DISTINCT step, rank FROM tb_nodes ORDER BY step, rank").fetchall()
        compare = db.execute("SELECT graph_type FROM tb_config").fetchone()[0] == "compare"
        for step, rank in places:
            graph = ask(files, "Graph", {"db": f"{name}.vis.db", "step": step, "rank": rank})
            assert len(graph["sides"]) == (2 if compare else 1) and graph["faults"] == 0
            for side in graph["sides"]:
                rows = db.execute("SELECT node_name, up_node, precision_index FROM tb_nodes WHERE step = ? AND rank = ? AND data_source = ? ORDER BY node_order", (step, rank, side["source"])).fetchall()
                above = [side["names"][up] if up >= 0 else "" for up in side["parents"]]
                assert [(a, b or "") for a, b, _ in rows] == list(zip(side["names"], above))
                assert [p if p is not None else -1 for *_, p in rows] == side["precision"]
    open_graph(page, files, f"db={name}.vis.db")
    if compare:
        Boxes(page, 1).wait("DefaultModel")
    page.get_by_role("button", name="Open all", exact=True).click()
    holds(page, "document.querySelector('#graph-0').graphView.layout.count === document.querySelector('#graph-0').graphView.layout.nodes.length")
    say(page, "Search", "linear")
    page.get_by_role("button", name="Next").click()
    page.locator(".graph .card").get_by_text(re.compile("Save as csv|It has no values")).first.wait_for()


def test_two_pages_share_nothing(browser, files) -> None:
    """In msprobe's plugin the second page's file takes the place of the first one's."""
    with open_page(browser, files, "two_a") as one, open_page(browser, files, "two_b") as two:
        open_graph(one, files, "db=ours_planted.vis.db")
        open_graph(two, files, "db=ours_ddp.vis.db")
        Boxes(one).double_click("Module.relu.ReLU.forward.0")
        Boxes(one).wait(RELU)
        Boxes(one).click(RELU)
        details(one, RELU)


def test_a_hostile_database_is_text(page, files, root) -> None:
    evil = "<img src=x onerror=alert(1)>"
    shutil.copy(root / "ours_build.vis.db", root / "evil.vis.db")
    with sqlite3.connect(root / "evil.vis.db") as db:
        db.execute("UPDATE tb_nodes SET node_name = ? WHERE node_name = ?", (evil, RELU))
        db.execute("UPDATE tb_nodes SET input_data = ?, output_data = ?, matched_distributed = ?, parallel_merge_info = ?, stack_id = 'evil' WHERE node_name = ?",
                   (json.dumps({evil: {evil: evil, "__proto__": "x"}}), "[{\"", json.dumps({"communications_type": evil, "nodes_info": {"1": [evil, evil], evil: 7}}), json.dumps([evil]), evil))
        db.execute("INSERT INTO tb_stack VALUES ('evil', ?)", (json.dumps([evil]),))
        db.execute("UPDATE tb_nodes SET up_node = node_name WHERE node_name = 'DefaultModel'")
        db.execute("UPDATE tb_config SET tool_tip = ?, task = ?", (json.dumps({evil: evil}), evil))
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    open_graph(page, files, "db=evil.vis.db")
    page.locator(".failure", has_text="Shown at the top").wait_for()
    say(page, "Search", "<IMG")
    page.get_by_role("button", name="Next").click()
    card = details(page, evil)
    card.locator("tbody tr", has_text=evil).first.wait_for()
    assert page.locator("img").count() == 0 and asked == []


def test_nothing_outside_the_root_is_reached(files, root, tmp_path) -> None:
    shutil.copy(root / "ours_build.vis.db", tmp_path / "outside.vis.db")
    (root / "link.vis.db").symlink_to(tmp_path / "outside.vis.db")
    (root / "up").symlink_to(tmp_path)
    try:
        for db in ("../outside.vis.db", str(tmp_path / "outside.vis.db"), "link.vis.db", "up/outside.vis.db", "dumps/../../x.vis.db", "a\0.vis.db", "/proc/self/environ", ".vis.db", "@999", "@-1", "@"):
            assert "error" in ask(files, "Open", {"db": db}), db
        assert not {"link.vis.db", "up/outside.vis.db"} & {one["path"] for one in ask(files, "List", {})["databases"]}
        for target in ("..", "../..", "up", "/etc", "run:x"):
            assert "error" in ask(files, "Build", {"target": target}), target
        for path in ("../x.vis.config", "up/x.vis.config", "/etc/passwd", "ours_build.vis.db"):
            assert "error" in ask(files, "LoadMapping", {"path": path}), path
        for db in ("../x.vis.db", "up/outside.vis.db", "none.vis.db", "@1"):
            assert "error" in ask(files, "SaveMapping", {"db": db, "pairs": [["a", "b"]]}), db
        assert [path.name for path in tmp_path.iterdir()] == ["outside.vis.db"]
        for body in (b"", b"[]", b"{", b'{"db": 1}', b'{"sql": ""}', json.dumps({"node": "n" * 70_000}).encode()):
            assert ask(files, "Open", body)["error"]["code"] == "INVALID_ARGUMENT", body[:40]
        assert ask(files, "DROP", {})["error"]["code"] == "NOT_FOUND"
        assert "error" in ask(files, "List", {}, Authorization="Bearer none")
    finally:
        (root / "link.vis.db").unlink()
        (root / "up").unlink()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_a_graph_and_the_pictures_of_the_documents(page, files, dark: bool) -> None:
    from axe_playwright_python.sync_playwright import Axe

    if dark:
        page.get_by_role("button", name="Dark").click()
    page.get_by_role("link", name="ours_planted.vis.db").wait_for()
    found = {one["id"]: [node["html"][:200] for node in one["nodes"]][:3] for one in Axe().run(page).response["violations"]}
    open_graph(page, files, "db=ours_planted.vis.db&filter=error")
    page.get_by_role("button", name="Next").click()
    details(page, RELU).locator("tbody tr").first.wait_for()
    page.locator(".hand summary").click()
    page.get_by_role("button", name="Keys").click()
    for one in Axe().run(page).response["violations"]:
        found[one["id"]] = [node["html"][:200] for node in one["nodes"]][:3]
    page.get_by_role("button", name="Keys").click()
    page.locator(".hand summary").click()
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / ("graph_dark.png" if dark else "graph_compare.png"))
    assert found == {}


def test_no_graph_is_wider_than_the_screen(page, files) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_graph(page, files, f"db=ours_planted.vis.db&node={RELU}")
    details(page, RELU)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_directory_that_is_not_there_is_one_line(tmp_path) -> None:
    said = subprocess.run([harness.BIN / "rankprobe", "view", "--no-open", "--root", tmp_path / "none"], capture_output=True, text=True, timeout=60)
    assert said.returncode != 0 and said.stdout == "" and len(said.stderr.strip().splitlines()) == 1 and "none" in said.stderr


def _post(view: View, method: str, body: dict | None) -> tuple[int, str]:
    """The answer of a method, and its status."""
    request = urllib.request.Request(f"{view.origin}/api/v1/{method}", None if body is None else json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "Authorization": f"Bearer {view.token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("method, body, said", [
    ("ArchiveService/ListRuns", {}, "has no collector"),
    ("TensorLook", {"tensor": {"run": "r", "digest": "AAAA", "lengthBytes": 8, "dtype": "DTYPE_FLOAT32", "shape": [2]}, "bins": 8}, "has no collector"),
    ("JobStart", {"command": "scan", "options": {"run": "r"}}, "needs a collector")])
def test_what_needs_a_collector_says_so_where_there_is_none(files, method: str, body: dict, said: str) -> None:
    status, answer = _post(files, method, body)
    assert status != 200 and said in answer
    assert files.process.poll() is None and _post(files, "about", None)[0] == 200


@pytest.mark.parametrize("address", ["", "127.0.0.1:7411"], ids=["none", "the address that is the default"])
def test_a_collector_is_named_by_the_environment(root, address: str) -> None:
    view = View("--root", root, collector=address)
    try:
        assert json.loads(_post(view, "about", None)[1])["collector"] == address
    finally:
        view.stop()
