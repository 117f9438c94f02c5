# SPDX-License-Identifier: Apache-2.0
"""Every feature E1 to E16 of the graph in Chromium, over databases of the real msprobe, over our own, and over dumps without one."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sqlite3

import graphs
import harness
import pytest
from conftest import View, open_page, holds
from graph_fixtures import LINEAR, RELU, ask, details, files, open_graph, page, root, say  # noqa: F401
from graphs import Boxes


def test_e1_the_page_is_served_on_this_machine_alone_and_needs_nothing_from_elsewhere(browser, files, root) -> None:
    assert files.address.startswith("http://127.0.0.1:")
    asked: list[str] = []
    with open_page(browser, files, "e1") as page:
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        page.get_by_role("heading", name="Graphs and dumps").wait_for()
        page.get_by_role("link", name="ours_planted.vis.db").click()
        page.locator("#graph-1 [role=treeitem]").first.wait_for(state="attached")
    assert asked and all(url.startswith(files.origin) for url in asked)
    assert "error" in ask(files, "List", {}, Host="evil.example")
    assert "error" in ask(files, "List", {}, Origin="http://evil.example")
    assert ask(files, "List", {})["root"] == str(root)


def test_e2_database_step_rank_and_micro_step_are_chosen(page, files, root) -> None:
    page.get_by_role("link", name="ours_many.vis.db").click()
    boxes = Boxes(page)
    boxes.wait("DefaultModel")
    page.get_by_label("Step", exact=True).select_option("5")
    page.get_by_label("Rank", exact=True).select_option("2")
    page.locator(".chip", has_text=re.compile(r"^\s*error [1-9]")).wait_for()
    page.get_by_label("Step", exact=True).select_option("0")
    page.locator(".chip", has_text="error 0").wait_for()
    page.get_by_role("button", name="All ranks and steps").click()
    table = page.get_by_role("region", name="All ranks and steps")
    bad = table.locator("tbody tr.bad")
    bad.wait_for()
    assert table.locator("tbody tr").count() == 4 and bad.count() == 1
    bad.press("Enter")
    holds(page, "location.hash.includes('step=5') && location.hash.includes('rank=2')")
    # Micro steps, as Megatron marks them.
    dump = root / "dumps" / "micro" / "rank0"
    dump.mkdir(parents=True)
    call = {"input_args": [], "input_kwargs": {}, "output": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1], "Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 1.0, "requires_grad": False}]}
    names = [f"Torch.relu.{i}.forward" for i in range(2)]
    (dump / "dump.json").write_text(json.dumps({"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": dict.fromkeys(names, call)}))
    (dump / "construct.json").write_text(json.dumps({**{name: [None, i] for i, name in enumerate(names)}, "megatron_micro_step_number": 1}))
    (dump / "stack.json").write_text("{}")
    open_graph(page, files, "target=dumps/micro")
    page.get_by_role("button", name="Open all", exact=True).click()
    boxes.wait(names[0])
    page.get_by_label("Micro step").select_option("1")
    boxes.gone(names[0])
    boxes.wait(names[1])
    page.get_by_label("Micro step").select_option("-1")
    boxes.wait(names[0])


def test_e3_mouse_wheel_keys_and_menu(page, files) -> None:
    open_graph(page, files, "db=ours_build.vis.db")
    boxes = Boxes(page)
    module = "Module.relu.ReLU.forward.0"
    assert not boxes.open(module)
    boxes.double_click(module)
    boxes.wait(RELU)
    boxes.click(RELU)
    assert details(page, RELU)
    boxes.double_click(module)
    boxes.gone(RELU)
    boxes.click(module, button="right")
    page.get_by_role("menuitem", name="Open all in it").click()
    boxes.wait(RELU)
    page.get_by_role("button", name="Open all", exact=True).click()
    before = boxes.view("top")
    page.mouse.move(*boxes.point(boxes.names()[3]))
    page.mouse.wheel(0, 300)
    holds(page, f"document.querySelector('#graph-0').graphView.top > {before}")
    zoom = boxes.view("zoom")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    holds(page, f"document.querySelector('#graph-0').graphView.zoom > {zoom}")
    boxes.tree.focus()
    for key, field, sign in (("w", "zoom", 1), ("s", "zoom", -1), ("w", "zoom", 1), ("w", "zoom", 1), ("w", "zoom", 1), ("d", "left", 1), ("a", "left", -1)):
        value = boxes.view(field)
        page.keyboard.press(key)
        assert (boxes.view(field) - value) * sign > 0, key
    page.keyboard.press("f")
    assert boxes.view("layout.totalHeight") * boxes.view("zoom") <= boxes.tree.bounding_box()["height"]
    page.get_by_role("button", name="Close all", exact=True).click()
    page.keyboard.press("Shift+?")
    boxes.tree.focus()
    page.keyboard.press("Home")
    where = "document.querySelector('#graph-0').graphView"
    for _ in range(40):
        if page.evaluate(f"{where}.scene.side.names[{where}.scene.focused]") == module:
            break
        page.keyboard.press("ArrowDown")
    # Said to those who do not see it.
    holds(page, f"document.getElementById(document.querySelector('#graph-0').getAttribute('aria-activedescendant'))?.textContent.startsWith('{module}')")
    page.keyboard.press("ArrowRight")
    boxes.wait(RELU)
    page.keyboard.press("ArrowLeft")
    boxes.gone(RELU)
    page.keyboard.press("Shift+F10")
    page.get_by_role("menuitem", name="Open", exact=True).press("Enter")
    boxes.wait(RELU)


def test_e4_thumbnails_and_both_sides_together(page, files) -> None:
    open_graph(page, files, "db=ours_planted.vis.db")
    target, reference = Boxes(page, 0), Boxes(page, 1)
    assert page.locator(".graph-mini").count() == 2
    target.double_click("Module.relu.ReLU.forward.0")
    reference.wait(RELU)
    page.get_by_role("button", name="Open all", exact=True).click()
    mini = page.locator(".graph-mini").first.bounding_box()
    page.mouse.click(mini["x"] + 30, mini["y"] + mini["height"] * 0.9)
    holds(page, "document.querySelector('#graph-0').graphView.top > 0 && document.querySelector('#graph-1').graphView.top > 0")
    page.get_by_label("Both sides together").uncheck()
    page.get_by_role("button", name="Close all", exact=True).click()
    target.gone(RELU)
    reference.gone(RELU)
    target.double_click("Module.relu.ReLU.forward.0")
    target.wait(RELU)
    assert not reference.open("Module.relu.ReLU.forward.0")
    page.get_by_label("Thumbnails").uncheck()
    page.locator(".graph-mini").first.wait_for(state="detached")


def test_e4_a_jump_opens_the_partner_too_whatever_made_it(page, files) -> None:
    """From search, from a filter, and from the button: in msprobe's page the other side stays closed."""
    for way in ("search", "filter", "button"):
        open_graph(page, files, "db=ours_planted.vis.db")
        page.reload()
        Boxes(page, 1).wait("DefaultModel")
        if way == "search":
            say(page, "Search", "LINEAR.0.forw")
            page.get_by_role("button", name="Next").click()
            name = LINEAR
        elif way == "filter":
            page.locator(".chip", has_text="error").click()
            page.get_by_role("button", name="Next").click()
            name = RELU
        else:
            page.get_by_role("button", name="First bad call", exact=True).click()
            name = RELU
        details(page, name)
        Boxes(page, 0).wait(name)
        Boxes(page, 1).wait(name)
        there = [Boxes(page, side).item(name).bounding_box()["y"] for side in (0, 1)]
        assert abs(there[0] - there[1]) < 2, way


def test_e5_search(page, files) -> None:
    open_graph(page, files, "db=ours_planted.vis.db")
    say(page, "Search", "conv2D")
    status = page.get_by_role("status").filter(has_text="found")
    status.wait_for()
    rows = page.get_by_role("region", name="Found nodes").locator("tbody tr")
    seen = [row.locator("td").first.inner_text() for row in rows.all()]
    assert len(seen) > 2 and all("conv2d" in name.lower() for name in seen)
    page.get_by_role("button", name="Next").click()
    first = details(page, seen[0])
    page.get_by_role("button", name="Next").click()
    details(page, seen[1])
    assert first.count() == 0
    page.get_by_role("button", name="Previous").click()
    details(page, seen[0])
    page.get_by_role("button", name="Previous").click()
    details(page, seen[-1])
    say(page, "Search", "no such call")
    page.get_by_role("status").filter(has_text="no node of this name or kind").wait_for()
    assert page.get_by_role("button", name="Next").is_disabled()


def test_e6_precision_filter_in_the_order_of_collection_and_counts_up_to_every_parent(page, files, root) -> None:
    open_graph(page, files, "db=ours_planted.vis.db")
    with sqlite3.connect(root / "ours_planted.vis.db") as db:
        wrong = [name for (name,) in db.execute("SELECT node_name FROM tb_nodes WHERE data_source = 'NPU' AND sub_nodes = '' AND precision_index >= 0.6 AND matched_node_link != '[]' ORDER BY node_order")]
    assert wrong
    page.locator(".chip", has_text="error").click()
    rows = page.get_by_role("region", name="Found nodes").locator("tbody tr")
    rows.first.wait_for()
    assert [row.locator("td").first.inner_text() for row in rows.all()] == wrong
    # Which module an error is in is said before it is chosen.
    assert "Module.relu.ReLU.forward.0" in rows.first.inner_text()
    text = Boxes(page).item("DefaultModel").inner_text()
    assert f"{len(wrong)} error" in text
    page.locator(".chip", has_text="pass").click()
    page.get_by_role("status").filter(has_text="found").wait_for()
    harness.wait_for(lambda: (texts := rows.all_inner_texts()) and all("pass" in text for text in texts), 30, "those that pass, and no others")


def test_e7_overflow_filter(page, files) -> None:
    open_graph(page, files, "db=ours_planted.vis.db")
    page.get_by_label("Colours").select_option("overflow")
    page.locator(".chip", has_text="critical overflow").click()
    rows = page.get_by_role("region", name="Found nodes").locator("tbody tr")
    rows.filter(has_text=RELU).wait_for()
    page.get_by_role("button", name="First bad call", exact=True).click()
    details(page, RELU)
    Boxes(page).wait_status(RELU, "critical")
    # Not asked for: there is no such filter.
    open_graph(page, files, "db=cmp_cnn.vis.db")
    assert page.get_by_label("Colours").count() == 0 and page.locator(".chip", has_text="overflow").count() == 0


def test_e8_what_has_no_partner_and_why(page, files) -> None:
    open_graph(page, files, "db=ours_renamed.vis.db")
    page.locator(".chip", has_text="no partner").click()
    rows = page.get_by_role("region", name="Found nodes").locator("tbody tr")
    rows.first.wait_for()
    names = [row.locator("td").first.inner_text() for row in rows.all()]
    assert {"Functional.gelu.0.forward", RELU} <= set(names)
    rows.filter(has_text="Functional.gelu.0.forward").first.press("Enter")
    card = details(page, "Functional.gelu.0.forward")
    Boxes(page).wait_status("Functional.gelu.0.forward", "unmatched")
    card.get_by_text("No partner.").wait_for()
    card.get_by_role("button", name=RELU).click()
    details(page, RELU)


def test_e9_match_by_hand_save_load_and_take_apart(page, files, root) -> None:
    before = (root / "ours_renamed.vis.db").read_bytes()
    open_graph(page, files, "db=ours_renamed.vis.db&node=Functional.gelu.0.forward")
    card = details(page, "Functional.gelu.0.forward")
    page.locator(".hand summary").click()
    page.locator(".hand").get_by_role("button", name="Match by hand …").click()
    page.get_by_role("status").filter(has_text="Now click the partner").wait_for()
    reference = Boxes(page, 1)
    reference.double_click("Module.relu.ReLU.forward.0")
    reference.wait(RELU)
    reference.click(RELU)
    card.get_by_role("link", name=RELU, exact=True).wait_for()
    # Judged like all others: its output has a NaN.
    Boxes(page).wait_status("Functional.gelu.0.forward", "error")
    card.locator("tbody tr", has_text="error").first.wait_for()
    # Its backward went with it.
    page.locator(".hand li", has_text="Functional.gelu.0.backward").wait_for()
    page.get_by_role("button", name="Save the mapping").click()
    page.get_by_text("Saved as ours_renamed_0_0.vis.config").wait_for()
    saved = root / "ours_renamed_0_0.vis.config"
    assert json.loads(saved.read_text()) == {f"Functional.gelu.0.{way}": f"Functional.relu.0.{way}" for way in ("forward", "backward")}
    assert (root / "ours_renamed.vis.db").read_bytes() == before
    # Read again with the address alone, then from a file of the user.
    page.reload()
    page.locator(".hand li", has_text="Functional.gelu.0.forward").wait_for()
    Boxes(page).wait_status("Functional.gelu.0.forward", "error")
    page.get_by_role("button", name="Remove the match").click()
    card.get_by_text("No partner.").wait_for()
    page.get_by_role("button", name="Undo all").click()
    page.get_by_label("Load a mapping").set_input_files(saved)
    page.get_by_text("2 pairs read").wait_for()
    card.get_by_role("link", name=RELU, exact=True).wait_for()
    page.get_by_label("Load a mapping").set_input_files({"name": "x.config", "mimeType": "application/json", "buffer": b"[1]"})
    page.get_by_role("alert").filter(has_text="not a mapping").wait_for()
    # Nodes of two kinds are no pair, and it says so.
    page.get_by_label("Load a mapping").set_input_files({"name": "x.config", "mimeType": "application/json", "buffer": json.dumps({"Module.relu.ReLU.forward.0": "Torch.flatten.0.forward"}).encode()})
    page.locator(".failure", has_text="are not a pair").wait_for()
    saved.unlink()


def test_e9_a_module_is_matched_with_what_is_in_it(page, files, root) -> None:
    dump = root / "dumps" / "other" / "step0" / "rank0"
    graphs.copy_rank("cnn_stat_mix", dump)
    graphs.rename(dump, "Module.conv1.", "Module.first.")
    graphs.make_database(root, "ours_other", "-tp", root / "dumps" / "other", "-gp", root / "dumps" / "golden")
    open_graph(page, files, "db=ours_other.vis.db&node=Module.first.Conv2d.forward.0")
    details(page, "Module.first.Conv2d.forward.0").get_by_text("No partner.").wait_for()
    page.locator(".hand summary").click()
    page.get_by_label("with their children").check()
    page.locator(".hand").get_by_role("button", name="Match by hand …").click()
    Boxes(page, 1).click("Module.conv1.Conv2d.forward.0")
    page.locator(".hand li", has_text="Functional.conv2d.0.forward ⇄ Functional.conv2d.0.forward").wait_for()
    Boxes(page).wait_status("Module.first.Conv2d.forward.0", "pass")


def test_e10_values_of_both_sides_stack_and_csv(page, files, root) -> None:
    open_graph(page, files, f"db=ours_planted.vis.db&node={LINEAR}")
    card = details(page, LINEAR)
    card.locator("tbody tr").first.wait_for()
    with page.expect_download() as download:
        card.get_by_role("button", name="Save as csv").click()
    rows = [row for row in csv.DictReader(open(download.value.path())) if row["Value"] == "output.0"]
    dumps = [json.loads(next((root / "dumps" / name).rglob("dump.json")).read_text())["data"][LINEAR]["output"][0] for name in ("planted", "golden")]
    assert [row["Side"] for row in rows] == ["target", "reference"]
    for row, value in zip(rows, dumps):
        assert float(row["Norm"]) == pytest.approx(value["Norm"]) and row["dtype"] == "torch.float32"
    assert rows[0]["Result"] == "error" and rows[0]["NormRelativeErr"].endswith("%")
    assert card.locator(".stack").count() == 2 and "File" in card.locator(".stack").first.inner_text()
    assert card.get_by_role("link", name="Module.fc.Linear.forward.0").count() == 1


def test_e10_what_was_merged_of_ranks(page, files, root, tmp_path) -> None:
    import layouts

    dump = layouts.write(root / "dumps" / "layout", 2, 2, 1, 1)
    graphs.make_database(root, "ours_merged", "-tp", dump, "--rank_size", 4, "--tp", 2, "--pp", 2)
    open_graph(page, files, "db=ours_merged.vis.db")
    say(page, "Search", "layers.3.mlp.fc1.ColumnParallelLinear.forward")
    page.get_by_role("button", name="Next").click()
    page.get_by_role("heading", name="Merged of ranks").wait_for()
    page.get_by_text("ranks [2, 3]").first.wait_for()


def test_e11_colours_have_a_legend_and_are_not_alone(page, files) -> None:
    open_graph(page, files, "db=ours_planted.vis.db")
    legend = page.locator(".chip").all_inner_texts()
    assert [re.sub(r"[ \d,]+$", "", text.strip()) for text in legend] == ["error", "warning", "no partner", "pass"]
    swatches = page.locator(".chip .dot").evaluate_all("dots => dots.map(dot => getComputedStyle(dot).backgroundColor)")
    assert len(set(swatches)) == 4
    # What the canvas shows is said too.
    page.get_by_role("button", name="Open all", exact=True).click()
    Boxes(page).wait(RELU)
    assert "error" in Boxes(page).item(RELU).inner_text()


def test_e12_dark_and_chinese_are_kept_and_drawn(page, files) -> None:
    open_graph(page, files, "db=ours_planted.vis.db")
    light = Boxes(page).pixels()
    page.get_by_role("button", name="Dark").click()
    page.get_by_role("button", name="中文").click()
    harness.wait_for(lambda: Boxes(page).pixels() != light, 30, "another picture")
    page.reload()
    page.get_by_role("button", name="全部展开").wait_for()
    assert page.locator(".chip", has_text="错误").count() == 1
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_e13_a_graph_of_dumps_without_a_file(page, files) -> None:
    page.get_by_role("link", name="dumps/planted", exact=True).click()
    Boxes(page).wait("DefaultModel")
    page.locator(".chip", has_text=re.compile("critical overflow [1-9]")).wait_for()
    page.go_back()
    page.get_by_label("Target").fill("dumps/planted")
    page.get_by_label("Reference").fill("dumps/golden")
    page.get_by_role("button", name="Compare as a graph").click()
    Boxes(page, 1).wait("DefaultModel")
    page.locator(".chip", has_text=re.compile("error [1-9]")).wait_for()
    page.get_by_text("rankprobe graph_visualize -tp dumps/planted -gp dumps/golden -oc -o graph").wait_for()
    page.goto(f"{files.origin}/#/graph?target=dumps/none")
    page.get_by_role("alert").filter(has_text="dumps/none").wait_for()
    page.goto(f"{files.origin}/#/graph?target=run:train")
    page.get_by_role("alert").filter(has_text="no collector").wait_for()


def test_e14_the_address_is_the_state_and_back_works(page, files, browser) -> None:
    open_graph(page, files, "db=ours_planted.vis.db")
    page.get_by_role("button", name="First bad call", exact=True).click()
    details(page, RELU)
    link = page.url
    say(page, "Search", "linear")
    page.get_by_role("button", name="Next").click()
    holds(page, "!location.hash.includes('relu')")
    page.go_back()
    page.go_back()
    details(page, RELU)
    with open_page(browser, files, "e14_link") as other:
        other.goto(link)
        details(other, RELU)
        Boxes(other).wait(RELU)
        Boxes(other, 1).wait(RELU)


def test_e15_a_database_opens_where_it_was_copied_to(browser, root, tmp_path) -> None:
    shutil.copy(root / "ours_planted.vis.db", tmp_path / "elsewhere.vis.db")
    (tmp_path / "elsewhere.vis.db").chmod(0o400)
    view = View("--root", tmp_path)
    try:
        with open_page(browser, view, "e15") as page:
            page.get_by_role("link", name="elsewhere.vis.db").click()
            Boxes(page, 1).wait("DefaultModel")
    finally:
        view.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere.vis.db"]


def test_e16_other_files_are_said_to_be_unsupported(page, files, root) -> None:
    (root / "text.vis.db").write_text("no database")
    with sqlite3.connect(root / "foreign.vis.db") as db:
        db.execute("CREATE TABLE something (a)")
    shutil.copy(root / "ours_build.vis.db", root / "old.vis.db")
    with sqlite3.connect(root / "old.vis.db") as db:
        for index in range(1, 8):
            db.execute(f"DROP INDEX IF EXISTS index{index}")
        db.execute("ALTER TABLE tb_nodes DROP COLUMN up_node")
    for name, reason in (("text", "not an SQLite database"), ("foreign", "table tb_nodes"), ("old", "no column up_node"), ("gone", "No such file")):
        page.goto(f"{files.origin}/#/graph?db={name}.vis.db")
        page.get_by_role("alert").filter(has_text=reason).wait_for()
    for query, reason in (("step=99", "no step 99"), ("node=Torch.none", "no node Torch.none")):
        page.goto(f"{files.origin}/#/graph?db=ours_build.vis.db&{query}")
        page.get_by_role("alert").filter(has_text=reason).wait_for()
