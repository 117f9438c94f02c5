# SPDX-License-Identifier: Apache-2.0
"""Two dumps below a directory as a table: in `rankprobe view --root` without a collector, and in a collector's page with --web-root."""

from __future__ import annotations

import csv
import json
import pathlib
import re
import shutil
import subprocess
import urllib.parse
from typing import Any, Iterator

import graphs
import harness
import pytest
from conftest import PICTURES, CollectorsPage, open_page
from graph_fixtures import RELU, files, page, root  # noqa: F401
from test_collectors_page import TOKENS, Guarded

EVIL = '<img src=x onerror="fetch(\'/stolen\')">'
LATE = 60_000


def _choose(page: Any, target: str, reference: str) -> None:
    form = page.locator("form.together")
    form.get_by_label("Target").fill(target)
    form.get_by_label("Reference").fill(reference)


def _address(view: Any, **query: str) -> str:
    return f"{view.origin}/#/compare?{urllib.parse.urlencode(query)}"


def _rows(root: pathlib.Path, out: pathlib.Path, target: str, reference: str) -> list[dict]:
    subprocess.run([harness.BIN / "rankprobe", "compare", "--force", "-tp", root / target, "-gp", root / reference, "-o", out], check=True, capture_output=True, timeout=120)
    (file,) = out.glob("*.csv")
    with open(file, newline="") as text:
        return list(csv.DictReader(text))


def test_two_dumps_are_a_table_as_the_command_line_makes_it(page, files, root, tmp_path) -> None:
    rows = _rows(root, tmp_path, "dumps/planted", "dumps/golden")
    before = sorted(str(path) for path in root.rglob("*"))
    _choose(page, "dumps/planted", "dumps/golden")
    page.get_by_role("button", name="Compare value by value").click()
    region = page.get_by_role("region", name="Values of both sides")
    region.locator("tbody tr").first.wait_for(timeout=LATE)
    page.get_by_role("button", name="all rows").click()
    page.locator(".remote [role=status]", has_text=f"{len(rows):,} rows").wait_for()
    page.get_by_role("group", name="Result").get_by_role("button", name=re.compile("^error")).click()
    errors = [row for row in rows if row["Result"] == "error"]
    assert errors
    page.locator(".remote [role=status]", has_text=f"{len(errors)} of {len(rows)} rows").wait_for()
    page.locator("main").get_by_text("rankprobe compare").first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as csv").click()
    with open(download.value.path(), newline="") as text:
        assert list(csv.DictReader(text)) == rows
    region.locator("tbody tr").first.press("Enter")
    page.locator(".card", has_text=errors[0]["NPU Name"]).get_by_role("button", name="Close").wait_for()
    # The address without its job, as somebody else would be given it: begun by itself.
    page.goto(_address(files, target="dumps/planted", reference="dumps/golden", results="error"))
    page.reload()
    page.locator(".remote [role=status]", has_text=f"{len(errors)} of {len(rows)} rows").wait_for(timeout=LATE)
    page.go_back()
    page.locator(".remote [role=status]").wait_for(timeout=LATE)
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_what_cannot_be_compared_says_why_and_can_be_tried_again(page, files, root) -> None:
    for target, said in (("dumps/none", "No such file or directory"), ("../outside", "is not a directory below"), ("/etc", "is not a directory below"),
                         ("run:x@1", "has no collector")):
        page.goto(_address(files, target=target, reference="dumps/golden"))
        page.locator(".failure", has_text=said).wait_for()
    page.goto(_address(files, target="dumps", reference="dumps/golden"))
    page.locator(".failure[role=alert]").first.wait_for(timeout=LATE)
    _choose(page, "dumps/planted", "dumps/golden")
    page.get_by_role("button", name="Compare", exact=True).press("Enter")
    page.get_by_role("region", name="Values of both sides").locator("tbody tr").first.wait_for(timeout=LATE)


@pytest.fixture
def evil(root) -> Iterator[str]:
    """A dump whose calls have script in their names, below a directory whose name is one."""
    directory = root / "dumps" / "a b'<b>"
    graphs.copy_rank("cnn_stat_mix", directory / "step0" / "rank0")
    graphs.rename(directory / "step0" / "rank0", "Functional.relu.0.", f"Functional.{json.dumps(EVIL)[1:-1]}.0.")
    yield "dumps/a b'<b>"
    shutil.rmtree(directory)


def test_names_of_a_hostile_dump_are_text(page, files, evil) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "stolen" in request.url else None)
    page.goto(_address(files, target=evil, reference="dumps/golden", find="onerror"))
    region = page.get_by_role("region", name="Values of both sides")
    region.locator("tbody tr", has_text="onerror").first.wait_for(timeout=LATE)
    region.locator("tbody tr", has_text="onerror").first.click()
    page.locator(".card", has_text="onerror").first.wait_for()
    assert page.locator("main img, main b").count() == 0 and asked == []


def _axe(page: Any, found: dict, name: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for one in Axe().run(page).response["violations"]:
        found[name, one["id"]] = [node["html"][:200] for node in one["nodes"]][:3]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, name


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(page, files, root, dark: bool, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    found: dict = {}
    if dark:
        page.get_by_role("button", name="Dark").click()
    page.get_by_role("link", name="ours_planted.vis.db").wait_for()
    _axe(page, found, "runs with files", width)
    page.goto(f"{files.origin}/#/compare")
    page.get_by_text("Choose two dumps.").wait_for()
    _axe(page, found, "nothing chosen", width)
    page.goto(_address(files, target="dumps/none", reference="dumps/golden"))
    page.locator(".failure").first.wait_for()
    _axe(page, found, "failed", width)
    page.goto(_address(files, target="dumps/planted", reference="dumps/golden"))
    region = page.get_by_role("region", name="Values of both sides")
    region.locator("tbody tr").first.wait_for(timeout=LATE)
    region.locator("tbody tr.bad").first.press("Enter")
    page.locator(".card.bad").wait_for()
    _axe(page, found, "two dumps", width)
    page.goto(f"{files.origin}/#/jobs")
    page.locator(".job").first.wait_for()
    _axe(page, found, "jobs", width)
    PICTURES.mkdir(parents=True, exist_ok=True)
    assert found == {}


@pytest.fixture(scope="module")
def shown(tmp_path_factory, root) -> Iterator[Guarded]:
    """A collector that shows the same directory."""
    collector = Guarded(tmp_path_factory.mktemp("shown"))
    collector.flags = (*collector.flags, "--web-root", str(root))
    collector.start()
    yield collector
    assert collector.stop() == 0, collector.log_text()[-2000:]


def test_a_collectors_page_shows_its_directory_and_a_job_makes_the_graph(browser, shown, root) -> None:
    before = sorted(str(path) for path in root.rglob("*"))
    with open_page(browser, CollectorsPage(shown, TOKENS["operator"]), "collectors_page_root") as page:
        page.get_by_role("link", name="ours_planted.vis.db").wait_for()
        _choose(page, "dumps/planted", "dumps/golden")
        page.get_by_role("button", name="Compare value by value").click()
        page.get_by_role("region", name="Values of both sides").locator("tbody tr.bad").first.wait_for(timeout=LATE)
        page.get_by_role("link", name="rankprobe").click()
        page.get_by_role("link", name="dumps/planted").click()
        page.locator("#graph-0 [role=treeitem]").first.wait_for(state="attached", timeout=LATE)
        page.get_by_role("link", name="Jobs").click()
        page.get_by_text("Run exports and scans in a terminal").wait_for()
        made = page.get_by_role("group").filter(has_text="rankprobe graph_visualize")
        made.first.wait_for()
        assert made.count() == 1
    with open_page(browser, CollectorsPage(shown, TOKENS["viewer"]), "collectors_page_root_viewer") as page:
        page.get_by_role("link", name="ours_planted.vis.db").wait_for()
        _choose(page, "dumps/planted", "dumps/golden")
        assert page.get_by_role("button", name="Compare value by value").is_disabled()
        page.get_by_role("link", name="ours_planted.vis.db").click()
        page.locator("#graph-0 [role=treeitem]").first.wait_for(state="attached")
        assert RELU in page.locator("#graph-0").inner_text() or page.locator("#graph-0 [role=treeitem]").count() > 0
    audited = [json.loads(line) for line in (shown.data_dir / "audit.jsonl").read_text().splitlines()]
    assert [line["action"] for line in audited] == ["JobStart"] * 4 and {line["actor"] for line in audited} == {"olga"}
    assert sorted(str(path) for path in root.rglob("*")) == before
