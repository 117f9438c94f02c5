# SPDX-License-Identifier: Apache-2.0
"""Pages that compare, jobs and tensors: what they show is what the command line and the archive have."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
import tarfile

import harness
import pytest
from conftest import BAD_RANK, BAD_STEP, PICTURES, Training, View, holds

BAD_CALL = re.compile(r"Tensor\.(__truediv__|div)\.\d+\.forward")
LATE = 120_000  # ms; a job is at nice 10, on a machine that is full


def _tab(page, name: str) -> None:
    page.get_by_role("navigation", name="Pages of the run").get_by_role("link", name=name, exact=True).click()


def _fill(page, label: str, text: str) -> None:
    field = page.get_by_label(label, exact=True)
    field.fill(text)
    field.press("Enter")


def _list(page, label: str):
    """A list's label has the texts of its options, too."""
    return page.locator("label.field", has=page.locator("span", has_text=re.compile(f"^{label}$"))).locator("select")


def _choose(page, label: str, value: str) -> None:
    _list(page, label).select_option(value)


@pytest.fixture(scope="session")
def good(collector, tmp_path_factory) -> str:
    """The same training without the fault, over."""
    config = {"task": "statistics", "dump_path": "./dump", "rank": [], "step": [], "level": "mix", "dump_enable": True, "statistics": {}}
    job = Training(tmp_path_factory.mktemp("good"), collector, "good", config, 10**9)
    harness.wait_for(lambda: max((int(one["steps"]) for one in collector.json("runs").get("runs", []) if one["run"] == "good"), default=0) > BAD_STEP + 2,
                     120, "steps without a fault")
    job.stop()
    return "good"


@pytest.fixture(scope="session")
def tensors(collector, tmp_path_factory) -> str:
    """Tensors in full of steps 1 to 3; NaN on one rank from step 2 on."""
    config = {"task": "tensor", "dump_path": "./dump", "rank": [], "step": [1, 2, 3], "level": "mix", "dump_enable": True,
              "tensor": {"scope": [], "list": [], "data_mode": ["all"]}}
    job = Training(tmp_path_factory.mktemp("tensors"), collector, "tensors", config, 2)
    harness.wait_for(lambda: max((int(one["steps"]) for one in collector.json("runs").get("runs", []) if one["run"] == "tensors"), default=0) >= 3,
                     120, "steps with tensors")
    job.stop()
    return "tensors"


LARGE = """
import sys, torch
from rankprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(config_path=sys.argv[1])
for step in range(2):
    debugger.start()
    x, y = torch.ones(2), torch.full((2,), 1.0 + 0.001 * step)
    for _ in range(35_000):
        torch.mul(x, y)
    debugger.stop()
    debugger.step()
debugger.close()
"""


@pytest.fixture(scope="session")
def large(collector, tmp_path_factory) -> str:
    """105,000 values at each of two steps, that differ in two of three."""
    directory = tmp_path_factory.mktemp("large")
    (directory / "config.json").write_text(json.dumps({"task": "statistics", "dump_path": str(directory), "rank": [], "step": [], "level": "L1"}))
    subprocess.run([sys.executable, "-c", LARGE, directory / "config.json"], check=True, timeout=500,
                   env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "large", "RANK": "0"})
    return "large"


def _compare(page, run: str, other: str, step: str, other_step: str = "", rank: str = "", other_rank: str = "") -> None:
    page.get_by_role("link", name=run, exact=True).first.click()
    _tab(page, "Compare")
    _fill(page, "Step (all if empty)", step)
    _fill(page, "Rank (all if empty)", rank)
    _choose(page, "Run", other)
    _fill(page, "Step (the same if empty)", other_step)
    _fill(page, "Rank (the same if empty)", other_rank)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_role("region", name="Values of both sides").wait_for(timeout=LATE)


def test_a_comparison_is_that_of_the_command_line(page, training, good, collector, tmp_path) -> None:
    step = BAD_STEP + 1
    _compare(page, training, good, str(step))
    chosen = page.get_by_label("Step and rank")
    chosen.select_option(label=next(text for text in chosen.locator("option").all_inner_texts() if f"rank {BAD_RANK}:" in text))
    collector.cli("compare", "-tp", f"run:{training}@{step}", "-gp", f"run:{good}@{step}", "-o", tmp_path)
    (file,) = tmp_path.glob(f"*rank{BAD_RANK}_*.csv")
    rows = list(csv.DictReader(open(file)))
    region = page.get_by_role("region", name="Values of both sides")
    region.locator("tbody tr").first.wait_for()
    # First what differs, in ten columns, named after the sides.
    differing = [row for row in rows if row["Result"] in ("error", "warning")]
    page.locator(".remote [role=status]", has_text=f"{len(differing):,} of {len(rows):,} rows").wait_for()
    heads = region.locator("thead th").all_inner_texts()
    assert len(heads) <= 10 and heads[:2] == ["Target: Name", "Result"] and not any("NPU" in head or "Bench" in head for head in heads), heads
    page.get_by_role("button", name="all rows").click()
    page.locator(".remote [role=status]", has_text=f"{len(rows):,} rows").wait_for()
    assert [row.locator("td").first.inner_text() for row in region.locator("tbody tr:not(.spacer)").all()[:5]] == [row["NPU Name"] for row in rows[:5]]
    errors = [row for row in rows if row["Result"] == "error"]
    assert errors
    page.get_by_role("group", name="Result").get_by_role("button", name=re.compile("^error")).click()
    page.locator(".remote [role=status]", has_text=f"{len(errors)} of {len(rows)} rows").wait_for()
    _fill(page, "Names", "TRUEDIV")
    wanted = [row for row in errors if "truediv" in row["NPU Name"].lower()]
    page.locator(".remote [role=status]", has_text=f"{len(wanted)} of {len(rows)} rows").wait_for()
    # A link shows the same.
    page.reload()
    page.locator(".remote [role=status]", has_text=f"{len(wanted)} of {len(rows)} rows").wait_for(timeout=LATE)
    page.get_by_role("region", name="Values of both sides").locator("tbody tr").first.press("Enter")
    card = page.locator(".card", has_text=wanted[0]["NPU Name"])
    card.get_by_role("heading", name="Stack").wait_for()
    assert f"{training}.py" in card.locator(".stack").inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name=re.compile(f"Save .*rank{BAD_RANK}")).click()
    assert list(csv.DictReader(open(download.value.path()))) == rows
    page.screenshot(path=PICTURES / "compare.png")
    card.get_by_role("link", name=f"The call in {good}").click()
    page.locator(".card", has_text="__truediv__").wait_for()
    assert f"/run/{good}/step" in page.url


def test_one_rank_against_another_and_rows_without_a_partner(page, training, collector) -> None:
    step = str(BAD_STEP + 1)
    _compare(page, training, training, step, step, "0", "1")
    page.get_by_text("0 errors").wait_for()
    assert page.get_by_label("Step and rank").count() == 0


def test_no_partner_is_explained(page, training, large) -> None:
    _compare(page, training, large, "1", "1", "0", "0")
    page.get_by_role("group", name="Result").get_by_role("button", name=re.compile("no partner")).click()
    page.get_by_role("region", name="Values of both sides").locator("tbody tr.gone").first.click()
    card = page.locator(".card", has_text="No partner")
    card.get_by_role("button", name="Match calls in order").click()
    holds(page, "location.hash.includes('fuzzy_match=true')")
    assert "job=" not in page.url


def test_a_hundred_thousand_rows_are_scrolled_and_sorted(page, large) -> None:
    _compare(page, large, large, "1", "0")
    page.locator(".remote [role=status]", has_text=re.compile(r"105,0\d\d rows")).wait_for()
    region = page.get_by_role("region", name="Values of both sides")
    region.locator("tbody tr:not(.spacer)").first.wait_for()
    region.evaluate("element => element.scrollTo(0, element.scrollHeight)")
    region.locator("tbody tr", has_text="Torch.mul.34999.forward").first.wait_for()
    assert region.locator("tbody tr").count() < 80
    region.get_by_role("button", name="Target: Name").click()
    region.get_by_role("button", name="Target: Name ▼").wait_for()
    region.locator("tbody tr", has_text="Torch.mul.9999.forward").first.wait_for()
    took = page.evaluate("""async () => {
        const began = performance.now();
        const region = document.querySelector('.remote .table-body');
        region.scrollTo(0, region.scrollHeight / 2);
        while (document.querySelector('.remote').innerText.includes('…') || region.scrollTop < 1000) await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        return performance.now() - began;
    }""")
    print(f"half way down 105,000 rows: {took:.0f} ms")


def test_the_first_divergence_with_both_sides(page, training, good) -> None:
    page.get_by_role("link", name=training).click()
    _tab(page, "Divergence")
    _fill(page, "Step (all if empty)", str(BAD_STEP))
    _choose(page, "Run", good)
    page.get_by_role("button", name="Find the first divergence").click()
    card = page.locator(".card.bad")
    card.wait_for(timeout=LATE)
    assert BAD_CALL.fullmatch(card.locator(".call-name").inner_text())
    assert f"rank {BAD_RANK}" in card.get_by_role("heading").first.inner_text()
    both = card.get_by_role("region", name="Both sides")
    row = both.locator("tr", has=page.get_by_role("rowheader", name="output.0"))
    row.wait_for()
    assert "NaN" in row.inner_text() or "Inf" in row.inner_text()
    assert "differs" in row.get_attribute("class")
    assert f"{training}.py" in card.locator(".stack").inner_text()
    link = page.url
    page.screenshot(path=PICTURES / "divergence.png")
    page.goto("about:blank")
    page.goto(link)
    page.get_by_role("link", name="rankprobe").first.wait_for()


def test_a_sound_run_is_proposed_as_the_other_side(page, training, good) -> None:
    page.get_by_role("link", name=training).click()
    _tab(page, "Divergence")
    proposal = page.get_by_role("button", name=re.compile("^Compare with "))
    proposal.wait_for()
    chosen = proposal.inner_text().removeprefix("Compare with ")
    # Runs of other tests may be newer, but none with NaN, and none of another number of ranks.
    assert chosen in (good, "idle"), chosen
    proposal.click()
    page.get_by_role("button", name="Find the first divergence").click()
    page.locator(".card.bad .call-name").first.wait_for(timeout=LATE)


def test_two_fields_that_change_in_one_moment_are_both_kept(page, training, good) -> None:
    page.get_by_role("link", name=training).click()
    _tab(page, "Divergence")
    fields = [page.get_by_label(label, exact=True) for label in ("Step (all if empty)", "Rank (all if empty)")]
    run = _list(page, "Run")
    run.locator("option", has_text=good).wait_for(state="attached")
    # Events of one task, as on a machine that is full: nothing is drawn and no event of the browser's comes in between.
    page.evaluate("""([step, rank, run, good]) => {
        for (const [field, text] of [[step, "6"], [rank, "2"]]) {
            field.value = text;
            field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
        }
        run.value = good;
        run.dispatchEvent(new Event("change", { bubbles: true }));
    }""", [*(field.element_handle() for field in fields), run.element_handle(), good])
    # What is typed is drawn anew from the address, a moment later.
    harness.wait_for(lambda: [field.input_value() for field in fields] == ["6", "2"], 30, "both fields")
    assert {"step=6", "rank=2", f"other={good}"} <= set(page.url.split("?", 1)[1].split("&"))
    page.go_back()
    holds(page, "!location.hash.includes('other=')")
    harness.wait_for(lambda: run.input_value() == "" and fields[1].input_value() == "2", 30, "the fields as they were")


def test_what_diverged_is_recorded_again_on_the_run_that_is_alive(page, training, good, collector) -> None:
    page.get_by_role("link", name=training).click()
    _tab(page, "Divergence")
    _fill(page, "Step (all if empty)", str(BAD_STEP))
    _choose(page, "Run", good)
    page.get_by_role("button", name="Find the first divergence").click()
    page.locator(".card.bad").wait_for(timeout=LATE)
    page.get_by_role("button", name="Record these calls in full").click()
    heading = page.get_by_role("heading", name=re.compile("Recorded again in full"))
    heading.wait_for(timeout=LATE)
    step = int(re.search(r"@(\d+)", heading.inner_text())[1])
    assert step > BAD_STEP
    page.get_by_text("The other side is not a run in progress").wait_for()


def test_a_run_is_exported_by_a_job_and_saved(page, training, collector) -> None:
    page.get_by_role("link", name="Jobs").click()
    _choose(page, "Run", training)
    _fill(page, "Steps, like 0,4-6 (all if empty)", "1-2")
    _fill(page, "Ranks (all if empty)", "0,3")
    page.get_by_role("button", name="Start").click()
    job = page.get_by_role("group", name=re.compile(f"export --run={training}"))
    save = job.get_by_role("button", name=re.compile("Save dump.tar"))
    save.wait_for(timeout=LATE)
    with page.expect_download() as download:
        save.click()
    with tarfile.open(download.value.path()) as tar:
        names = {"/".join(name.split("/")[-3:]) for name in tar.getnames()}
    for step in (1, 2):
        for rank in (0, 3):
            assert f"step{step}/rank{rank}/dump.json" in names, names
    assert not any("rank1" in name for name in names)
    page.screenshot(path=PICTURES / "jobs.png")
    job.get_by_role("button", name="Delete").click()
    job.wait_for(state="detached")


def test_a_job_that_fails_says_why_and_one_that_hangs_is_cancelled(browser, page, training) -> None:
    page.get_by_role("link", name="Jobs").click()
    _choose(page, "Job", "graph_visualize")
    _fill(page, "Dump (run:NAME@STEP)", "run:no such run@3")
    page.get_by_role("button", name="Start").click()
    page.locator(".job.bad .messages", has_text="no such run").wait_for(timeout=LATE)
    # One that listens and does not answer.
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        view = View("--collector", f"127.0.0.1:{deaf.getsockname()[1]}")
        try:
            other = browser.new_context().new_page()
            other.goto(view.address + "&to=%2Fjobs")
            _choose(other, "Job", "overflow_check")
            field = other.get_by_label("Dump (run:NAME@STEP)")
            field.fill("run:x@1")
            field.press("Enter")
            other.get_by_role("button", name="Start").click()
            job = other.locator(".job", has_text="running")
            job.wait_for()
            job.get_by_role("button", name="Cancel").click()
            other.locator(".job", has_text="cancelled").wait_for()
            other.context.close()
        finally:
            view.stop()


def test_a_tensor_has_its_numbers_and_its_nan(page, tensors, collector, tmp_path) -> None:
    import torch

    page.get_by_role("link", name=tensors).click()
    _tab(page, "Tensor")
    _fill(page, "Step", "2")
    page.get_by_label("Process").select_option(f"rank{BAD_RANK}")
    row = page.locator("tbody tr", has_text=re.compile(r"Module\.second\.Linear\.forward\.0.*input\.0"))
    row.first.wait_for()
    row.first.click()
    page.locator("dl.numbers").wait_for()
    assert "bad" in page.locator("dl.numbers").get_attribute("class")
    page.get_by_label("Process").select_option("rank0")
    page.locator("dl.numbers:not(.bad)").wait_for()
    collector.cli("export", "--run", tensors, "--steps", "2", "--ranks", "0", "-o", tmp_path / "out")
    (file,) = (tmp_path / "out" / "step2" / "rank0" / "dump_tensor_data").glob("Module.second.Linear.forward.0.input.0.pt")
    truth = torch.load(file)
    assert list(truth.shape) == [4, 16]
    cells = [[float(cell) for cell in row.locator("td").all_inner_texts()] for row in page.locator("table.slice tbody tr").all()]
    assert torch.allclose(torch.tensor(cells), truth.detach(), rtol=1e-4, atol=1e-6)
    numbers = dict(zip(page.locator("dl.numbers dt").all_inner_texts(), page.locator("dl.numbers dd").all_inner_texts()))
    assert abs(float(numbers["Max"]) - float(truth.max())) < 1e-4
    assert abs(float(numbers["Standard deviation"]) - float(truth.double().std(unbiased=False))) < 1e-4
    assert numbers["Elements"] == "64" and numbers["Zeros"] == str(int((truth == 0).sum()))
    page.get_by_role("img", name=re.compile("Histogram from")).wait_for()
    page.screenshot(path=PICTURES / "tensor.png")
    # The difference to the step before.
    _fill(page, "its step", "1")
    page.get_by_role("heading", name="Slices of the difference").wait_for()
    collector.cli("export", "--run", tensors, "--steps", "1", "--ranks", "0", "-o", tmp_path / "out")
    before = torch.load(tmp_path / "out" / "step1" / "rank0" / "dump_tensor_data" / file.name)
    holds(page, "document.querySelectorAll('table.slice tbody tr').length === 4")
    difference = truth - before
    harness.wait_for(lambda: torch.allclose(torch.tensor([[float(cell) for cell in row.locator("td").all_inner_texts()]
                                                          for row in page.locator("table.slice tbody tr").all()]), difference.detach(), rtol=1e-3, atol=1e-6),
                     60, "the difference")


def test_from_a_call_to_its_tensor_and_nearer(page, tensors) -> None:
    page.get_by_role("link", name=tensors).click()
    _tab(page, "Step")
    _fill(page, "Step", "1")
    _fill(page, "Names", "Module.first.Linear.forward")
    page.locator("tbody tr", has_text="Module.first.Linear.forward.0").first.press("Enter")
    page.locator(".card .leaves li", has_text="parameters.weight").get_by_role("link", name="Tensor").click()
    page.get_by_role("heading", name="Histogram").wait_for()
    page.get_by_label("of the logarithm").check()
    page.get_by_role("img", name=re.compile("Histogram from")).wait_for()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_on_the_pages_that_compare(page, training, good, tensors, dark: bool) -> None:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect

    if dark:
        page.get_by_role("button", name="Dark").click()
    found = {}

    def look(name: str) -> None:
        for one in Axe().run(page).response["violations"]:
            found[name, one["id"]] = [node["html"][:200] for node in one["nodes"]][:3]
        page.screenshot(path=PICTURES / f"axe_{name}_{'dark' if dark else 'light'}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, name

    _compare(page, training, good, str(BAD_STEP), rank=str(BAD_RANK))
    page.get_by_role("region", name="Values of both sides").locator("tbody tr.bad").first.click()
    look("compare")
    _tab(page, "Divergence")
    _fill(page, "Step (all if empty)", str(BAD_STEP))
    _choose(page, "Run", good)
    page.get_by_role("button", name="Find the first divergence").click()
    page.get_by_role("region", name="Both sides").first.wait_for(timeout=LATE)
    look("divergence of a step")
    # Of all steps: a table for every origin.
    _fill(page, "Step (all if empty)", "")
    page.get_by_role("button", name="Find the first divergence").click()
    page.locator(".card.bad").nth(1).wait_for(timeout=LATE)
    expect(page.get_by_role("region", name="Both sides")).to_have_count(page.locator(".card.bad").count(), timeout=LATE)
    look("divergence")
    page.get_by_role("link", name="Jobs").click()
    page.locator(".job").first.wait_for()
    look("jobs")
    page.get_by_role("link", name="rankprobe").click()
    page.get_by_role("link", name=tensors).click()
    _tab(page, "Tensor")
    _fill(page, "Step", "2")
    page.get_by_label("Process").select_option(f"rank{BAD_RANK}")
    page.locator("tbody tr", has_text=re.compile(r"Module\.second\.Linear\.forward\.0.*input\.0")).first.click()
    page.locator("dl.numbers.bad").wait_for()
    page.locator("table.slice").wait_for()
    look("tensor")
    assert found == {}


def test_jobs_of_a_page_read_as_its_user_and_write_nowhere_else(view, training, tmp_path) -> None:
    """The API itself, by a page that is not ours."""
    import urllib.error
    import urllib.request

    def ask(method: str, body: dict) -> tuple[int, dict]:
        request = urllib.request.Request(f"{view.origin}/api/v1/{method}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "Authorization": f"Bearer {view.token}", "Origin": view.origin})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    run = f"run:{training}@1"
    for spec in ({"command": "export", "options": {"run": training, "output": str(tmp_path)}},
                 {"command": "export", "options": {"run": training, "server-dir": str(tmp_path)}},
                 {"command": "compare", "options": {"target_path": "/etc", "golden_path": run}},
                 {"command": "compare", "options": {"target_path": run, "golden_path": run, "output_path": str(tmp_path)}},
                 {"command": "compare", "options": {"target_path": run, "golden_path": run, "layout": "/etc/passwd"}},
                 {"command": "run", "options": {}}, {"command": "overflow_check", "options": {"input_path": run, "collector": "evil:1"}},
                 {"command": "archive"}):
        status, said = ask("JobStart", spec)
        assert status == 400 and said["error"]["code"] == "INVALID_ARGUMENT", (spec, said)
    assert list(tmp_path.iterdir()) == []
    status, job = ask("JobStart", {"command": "overflow_check", "options": {"input_path": run}})
    assert status == 200
    harness.wait_for(lambda: ask("JobGet", {"id": job["id"]})[1]["state"] == "JOB_STATE_DONE", 120, "the job")
    for name in ("../in/x", "/etc/passwd", "..", ""):
        assert ask("JobFile", {"id": job["id"], "name": name})[0] == 404
        assert ask("JobRows", {"id": job["id"], "file": name})[0] == 404
    assert ask("JobGet", {"id": "1-00000000"})[0] == 404
    assert ask("JobDelete", {"id": job["id"]})[0] == 200
