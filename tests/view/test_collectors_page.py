# SPDX-License-Identifier: Apache-2.0
"""The page that a collector serves itself, before a rank that trains: a viewer looks, an operator switches, others see nothing."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any, Iterator

import harness
import pytest
from conftest import BAD_RANK, BAD_STEP, CollectorsPage, Training, open_page, training_config

BAD_CALL = re.compile(r"Tensor\.(__truediv__|div)\.\d+\.forward")
TOKENS = {"agent": "a1" * 16, "operator": "0e" * 16, "viewer": "7f" * 16}
NAMES = {"agent": "alice", "operator": "olga", "viewer": "vera"}
# As the page asks, from within it.
ASK = """async ([method, body, token]) => {
  const answer = await fetch(`/api/v1/${method}`, {method: "POST", headers: {"Content-Type": "application/json", Authorization: `Bearer ${token}`},
                                                   body: JSON.stringify(body)});
  return [answer.status, await answer.text()];
}"""


class Guarded(harness.Collector):
    """With tokens; its command line is the operator's."""

    def __init__(self, directory: pathlib.Path) -> None:
        table = directory / "tokens"
        table.write_text("".join(f"{role} {NAMES[role]} {token}\n" for role, token in TOKENS.items()))
        table.chmod(0o600)
        for role, token in TOKENS.items():
            (directory / f"{role}.token").write_text(token)
            (directory / f"{role}.token").chmod(0o600)
        super().__init__(directory, "--token-file", table, "--web-listen", "127.0.0.1:0")

    def cli(self, *args: str, **kwargs: Any):
        return super().cli("--token-file", self.directory / "operator.token", *args, **kwargs)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[Guarded]:
    collector = Guarded(tmp_path_factory.mktemp("guarded")).start()
    yield collector
    assert collector.stop() == 0, collector.log_text()[-2000:]


@pytest.fixture
def rank(guarded, tmp_path) -> Iterator[str]:
    """The run "one" of one rank, alive, dumping off."""
    job = Training(tmp_path, guarded, "one", training_config(dump_enable=False), 10**9, ranks=1,
                   environment={"RANKPROBE_TOKEN_FILE": str(guarded.directory / "agent.token")})
    harness.wait_for(lambda: any(one["connected"] for one in guarded.json("status", "--run", "one").get("agents", [])), 120, "the rank")
    yield "one"
    job.stop()


def _sign_in(page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Enter").click()


def _audited(collector: Guarded) -> list[dict]:
    file = collector.data_dir / "audit.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if line["role"] != "agent"]


def test_who_has_no_token_is_asked_for_one_and_sees_nothing(browser, guarded, rank) -> None:
    with open_page(browser, CollectorsPage(guarded), "collectors_page_sign_in") as page:
        page.get_by_text("this page requires a token").wait_for()
        assert page.get_by_text("rankprobe view printed").count() == 0
        assert page.get_by_label("Token").get_attribute("type") == "password"
        assert page.get_by_role("button", name="Enter").is_disabled()
        assert page.get_by_text(rank, exact=True).count() == 0
        _sign_in(page, "00" * 16)
        page.get_by_text("the token is not known here").wait_for()
        _sign_in(page, TOKENS["agent"])
        page.get_by_text("alice has the role agent; this page needs viewer").wait_for()
        assert page.get_by_role("link", name=rank).count() == 0
        _sign_in(page, TOKENS["viewer"])
        page.get_by_role("link", name=rank).wait_for()
        assert "token" not in page.url and TOKENS["viewer"] not in page.content()
        # It is of this tab: nothing that another one of the browser could send along.
        assert page.context.cookies() == [] and page.evaluate("Object.values(localStorage).join()").find(TOKENS["viewer"]) == -1
        page.get_by_role("button", name="vera (viewer)").click()
        page.get_by_text("this page requires a token").wait_for()


def test_a_viewer_looks_and_cannot_switch(browser, guarded, rank) -> None:
    before = len(_audited(guarded))
    with open_page(browser, CollectorsPage(guarded, TOKENS["viewer"]), "collectors_page_viewer") as page:
        page.get_by_role("link", name=rank).click()
        page.get_by_text("live: 1").wait_for()
        page.get_by_role("navigation", name="Pages of the run").get_by_role("link", name="Live", exact=True).click()
        page.get_by_role("heading", name="Dumping is off").wait_for()
        page.get_by_text("vera is viewer: switching needs an operator's token.").wait_for()
        for name in ("Switch on", "Switch off", "Keep the flight recorder's steps"):
            assert page.get_by_role("button", name=name).is_disabled(), name
        # What a config would record is a look.
        page.get_by_text("config.json: what is recorded").click()
        page.get_by_role("button", name="What would it record?").click()
        page.locator(".preview").wait_for()
        # Nor does a page that does not hold its buttons back get through.
        status, said = page.evaluate(ASK, ["ControlService/SetDumpEnable", {"run": rank, "enable": True}, TOKENS["viewer"]])
        assert status == 403 and "vera has the role viewer; SetDumpEnable needs operator" in said
        status, said = page.evaluate(ASK, ["JobStart", {"command": "export", "options": {"run": rank}}, TOKENS["viewer"]])
        assert status == 403 and "needs operator" in said
        page.get_by_role("link", name="Jobs").click()
        page.get_by_text("vera is viewer: a job needs an operator's token.").wait_for()
        assert page.get_by_role("button", name="Start").count() == 0
    assert len(_audited(guarded)) == before
    assert not any(agent["dumping"] for agent in guarded.json("status", "--run", rank)["agents"])


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_for_who_signs_in_looks_and_may_not_switch(browser, guarded, rank, dark: bool, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = {}
    with open_page(browser, CollectorsPage(guarded), f"collectors_page_axe_{width}_{'dark' if dark else 'light'}") as page:
        page.set_viewport_size({"width": width, "height": 844})

        def look(name: str) -> None:
            for one in Axe().run(page).response["violations"]:
                found[name, one["id"]] = [node["html"][:200] for node in one["nodes"]][:3]
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name

        if dark:
            page.get_by_role("button", name="Dark").click()
        page.get_by_text("this page requires a token").wait_for()
        look("sign in")
        # By keyboard alone.
        page.get_by_label("Token").focus()
        page.keyboard.type(TOKENS["viewer"])
        page.keyboard.press("Enter")
        page.get_by_role("link", name=rank).wait_for()
        look("runs")
        page.get_by_role("link", name=rank).press("Enter")
        page.get_by_text("live: 1").wait_for()
        look("overview")
        page.get_by_role("navigation", name="Pages of the run").get_by_role("link", name="Live", exact=True).press("Enter")
        page.get_by_text("vera is viewer: switching needs an operator's token.").wait_for()
        look("live")
        page.get_by_role("link", name="Jobs").press("Enter")
        page.get_by_text("vera is viewer: a job needs an operator's token.").wait_for()
        look("jobs of a viewer")
    with open_page(browser, CollectorsPage(guarded, TOKENS["operator"]), f"collectors_page_axe_operator_{width}_{'dark' if dark else 'light'}") as page:
        page.set_viewport_size({"width": width, "height": 844})
        if dark:
            page.get_by_role("button", name="Dark").click()
        page.get_by_role("link", name="Jobs").click()
        page.get_by_text("Run exports and scans in a terminal").wait_for()
        look("jobs of an operator")
    assert found == {}


def test_an_operator_switches_and_the_rank_follows(browser, guarded, rank) -> None:
    with open_page(browser, CollectorsPage(guarded, TOKENS["operator"]), "collectors_page_operator") as page:
        page.get_by_role("link", name=rank).click()
        page.get_by_role("navigation", name="Pages of the run").get_by_role("link", name="Live", exact=True).click()
        page.get_by_role("heading", name="Dumping is off").wait_for()
        assert page.get_by_text("switching needs").count() == 0
        page.get_by_label("For steps").fill("2")
        page.get_by_role("button", name="Switch on").click()
        done = page.get_by_role("status")
        done.wait_for(timeout=30_000)
        step = int(re.search(r"from step (\d+)", done.inner_text())[1])

        def whole() -> list[int]:
            said = guarded.cli("ledger", "--run", rank, "--json", check=False).stdout.splitlines()
            return sorted(one["step"] for one in map(json.loads, said) if one.get("state") == "STATE_WHOLE")

        harness.wait_for(lambda: whole()[-2:] == [step, step + 1], 60, "two whole steps")
        page.get_by_role("navigation", name="Pages of the run").get_by_role("link", name="Step", exact=True).click()
        page.locator("tbody tr").first.wait_for()
    line = _audited(guarded)[-1]
    assert (line["actor"], line["role"], line["run"]) == ("olga", "operator", rank) and line["peer"].startswith("page:127.0.0.1:")


def test_without_tokens_the_page_of_a_collector_on_loopback_is_open(browser, collector, training) -> None:
    with open_page(browser, CollectorsPage(collector), "collectors_page_open") as page:
        page.get_by_role("link", name=training).click()
        card = page.locator(".card.bad")
        card.get_by_text(f"Step {BAD_STEP}, rank {BAD_RANK}").wait_for()
        card.locator(".call-name", has_text=BAD_CALL).wait_for()
        card.get_by_text("All its inputs are finite: this call made the first bad value.").wait_for()
        card.get_by_text(f"rankprobe overflow_check -i run:{training}@{BAD_STEP}").wait_for()
        # A look costs no place in the list of jobs.
        page.get_by_role("link", name="Jobs").click()
        page.get_by_text("No job yet.").wait_for()
        page.go_back()
        card.wait_for()
        for name in ("Live", "Heat", "Trend", "Step", "Graph", "Compare", "Divergence", "Tensor", "Ledger", "Events"):
            page.get_by_role("navigation", name="Pages of the run").get_by_role("link", name=name, exact=True).click()
            page.locator("main").get_by_text(re.compile(r"\S")).locator("visible=true").first.wait_for()
            assert page.locator(".failure").all_inner_texts() == [], name
        page.get_by_role("link", name="Live", exact=True).click()
        page.get_by_role("button", name="Switch off").wait_for()
        assert page.get_by_role("button", name="Switch off").is_enabled()


def test_a_roots_page_names_a_leaf_that_is_away_and_stops_when_it_is_back(browser, tmp_path) -> None:
    objects = tmp_path / "objects"

    def start(name: str, *flags: str) -> harness.Collector:
        (tmp_path / name).mkdir()
        return harness.Collector(tmp_path / name, "--object-store", str(objects), *flags).start()

    root = start("root", "--role", "root", "--web-listen", "127.0.0.1:0")
    # Nothing of it is in the store, so that an answer without the leaf lacks something.
    leaf = start("leaf", "--role", "leaf", "--root", root.address, "--seal-seconds", "3600")
    job = Training(tmp_path, root, "far", training_config(), 10**9, ranks=1)
    try:
        harness.wait_for(lambda: any(one["run"] == "far" and int(one["steps"]) > 2 for one in root.json("runs").get("runs", [])), 120, "its steps")
        job.stop()
        with open_page(browser, CollectorsPage(root), "collectors_page_leaf_away") as page:
            page.get_by_role("link", name="far").wait_for()
            assert page.locator(".failure").count() == 0
            leaf.kill()
            page.reload()
            said = page.locator("main > .failure[role=status]")
            said.wait_for()
            assert leaf.address in said.inner_text(), said.inner_text()
            leaf.start()
            harness.wait_for(lambda: any(one["run"] == "far" for one in root.json("runs", check=False).get("runs", [])), 60, "the leaf again")
            page.reload()
            page.get_by_role("link", name="far").wait_for()
            assert page.locator(".failure").count() == 0
    finally:
        for collector in (leaf, root):
            assert collector.stop() == 0, collector.log_text()[-2000:]
