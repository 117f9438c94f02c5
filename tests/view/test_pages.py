# SPDX-License-Identifier: Apache-2.0
"""Every page of `rankprobe view` in Chromium, before a real collector with a real training on four ranks that runs meanwhile."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys

import harness
import pytest
from conftest import BAD_RANK, BAD_STEP, PICTURES, RANKS, Training, View, holds, open_page, training_config
from graphs import Boxes

BAD_CALL = re.compile(r"Tensor\.(__truediv__|div)\.\d+\.forward")


def _tab(page, name: str) -> None:
    page.get_by_role("navigation", name="Pages of the run").get_by_role("link", name=name, exact=True).click()


def test_the_token_leaves_the_address_and_no_other_is_taken(browser, view, page) -> None:
    page.wait_for_selector("h1:has-text('Runs')")
    assert "token" not in page.url
    stranger = browser.new_context().new_page()
    stranger.goto(view.origin + "/#token=0123")
    stranger.get_by_text("Open the address that rankprobe view printed").first.wait_for()
    stranger.context.close()


def _whole(collector, run: str, first: int, last: int) -> int:
    """How many ranks' steps are whole, from `first` to `last`."""
    said = collector.cli("ledger", "--run", run, "--json", check=False).stdout.splitlines()
    return sum(first <= one["step"] <= last and one["state"] == "STATE_WHOLE" for one in map(json.loads, said) if "state" in one)


def test_from_the_page_to_the_first_bad_call_in_full_in_two_clicks(page, training, collector, tmp_path) -> None:
    page.get_by_role("link", name=training).click()  # 1
    card = page.locator(".card.bad")
    card.get_by_text(f"Step {BAD_STEP}, rank {BAD_RANK}").wait_for()
    name = card.locator(".call-name").inner_text()
    name = name.split()[0]  # behind it stands the module
    assert BAD_CALL.fullmatch(name), name
    assert "this call made the first bad value" in card.inner_text()
    assert f"{training}.py" in card.locator(".stack").inner_text()
    card.get_by_role("button", name="Record this call in full").click()  # 2
    said = card.get_by_role("status").filter(has_text="then as before")
    said.wait_for(timeout=60_000)
    first, last = map(int, re.search(r"steps (\d+) to (\d+)", said.inner_text()).groups())
    assert BAD_STEP < first <= last
    harness.wait_for(lambda: _whole(collector, training, first, last + 1) == RANKS * (last + 2 - first), 60, "these steps of all ranks, and the one after them")
    collector.cli("export", "--run", training, "--steps", f"{first}-{last + 1}", "-o", tmp_path / "out")
    kept = {path.name for path in (tmp_path / "out" / f"step{first}" / f"rank{BAD_RANK}" / "dump_tensor_data").iterdir()}
    assert any(path.startswith(f"{name}.output") for path in kept), kept
    assert all(path.startswith(name.rsplit(".", 2)[0]) for path in kept), kept
    # As before: statistics of everything, no tensor.
    assert not list((tmp_path / "out" / f"step{last + 1}").glob("rank*/dump_tensor_data/*"))
    assert len(list((tmp_path / "out" / f"step{last + 1}").glob("rank*/dump.json"))) == RANKS
    # Numbers of calls move between steps: the tensors shown are those of the same module and line.
    card.get_by_role("link", name="Show its tensors").click()
    page.get_by_role("heading", name="Histogram").wait_for()
    shown = page.locator(".facts .call-name").inner_text()
    assert BAD_CALL.match(shown) and shown.endswith(".output.0"), shown
    construct = json.loads((tmp_path / "out" / f"step{first}" / f"rank{BAD_RANK}" / "construct.json").read_text())
    assert "Module.scale.Scale" in construct[shown.removesuffix(".output.0")]


def test_the_bad_steps_own_tensors_are_there_where_a_rule_fired(page, collector, tmp_path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps({"flight": {"steps": 4, "level": "mix"}, "rules": [{"name": "bad", "non_finite": {}}]}))
    collector.cli("triggers", "set", "--create", "--run", "fired", tmp_path / "rules.json")
    job = Training(tmp_path, collector, "fired", training_config(dump_enable=False), BAD_STEP)
    harness.wait_for(lambda: _whole(collector, "fired", BAD_STEP, BAD_STEP) == RANKS, 120, "the flight recorder's step of all ranks")
    page.reload()
    page.get_by_role("link", name="fired").click()  # 1
    card = page.locator(".card.bad")
    card.get_by_text(f"Step {BAD_STEP}, rank {BAD_RANK}").wait_for()
    card.get_by_role("link", name=f"Show its tensors at step {BAD_STEP}").click()  # 2
    page.get_by_role("heading", name="Histogram").wait_for()
    assert BAD_CALL.match(page.locator(".facts .call-name").inner_text())
    job.stop()
    collector.cli("export", "--run", "fired", "--steps", str(BAD_STEP), "-o", tmp_path / "out", check=False)
    kept = sorted(path.name.split(".forward.")[1] for path in (tmp_path / "out" / f"step{BAD_STEP}" / f"rank{BAD_RANK}" / "dump_tensor_data").iterdir())
    assert kept == ["input.0.pt", "input.1.pt", "output.0.pt"], "what the division was given, and what it made"


def test_heat_by_module_to_the_step_by_keyboard_and_back(page, training) -> None:
    page.get_by_role("link", name=training).click()
    _tab(page, "Heat")
    canvas = page.locator("canvas")
    canvas.wait_for()
    page.locator(".heatmap-names", has_text="Module.first.Linear").wait_for()
    page.get_by_label("Statistic").select_option("Max")
    page.get_by_label("To step").fill(str(BAD_STEP))
    page.get_by_label("To step").press("Enter")
    holds(page, f"location.hash.includes('to={BAD_STEP}')")
    page.locator(".note").filter(has_text=f"{BAD_STEP + 1} steps").wait_for()
    assert page.locator(".heatmap-steps span").all_inner_texts() == [str(step) for step in range(BAD_STEP + 1)]
    page.locator(".legend", has_text="each row from its smallest to its largest value").wait_for()
    page.get_by_label("Colours").select_option("all")
    page.locator(".legend", has_text="…").wait_for()
    canvas.focus()
    page.keyboard.press("ArrowRight")
    page.locator(".readout", has_text=re.compile(r"step 1: [-\d.]")).wait_for()
    link = page.url
    page.keyboard.press("Enter")
    page.get_by_role("region", name="Values of the step").wait_for()
    assert "/step?" in page.url
    page.go_back()
    page.locator("canvas").wait_for()
    assert page.url == link and page.get_by_label("Statistic").input_value() == "Max"


def test_the_numbers_of_a_step_are_those_of_its_dump(page, training, collector, tmp_path) -> None:
    page.get_by_role("link", name=training).click()
    _tab(page, "Step")
    page.get_by_label("Step", exact=True).fill("2")
    page.get_by_label("Step", exact=True).press("Enter")
    page.get_by_label("Process").select_option("rank1")
    page.get_by_label("Names").fill("second")
    page.get_by_label("Names").press("Enter")
    page.locator("tbody tr", has_text="Module.second.Linear.forward.0").first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as csv").click()
    rows = list(csv.DictReader(open(download.value.path())))
    assert download.value.suggested_filename == "step2_rank1.csv"
    collector.cli("export", "--run", training, "--steps", "2", "-o", tmp_path / "out")
    data = json.loads((tmp_path / "out" / "step2" / "rank1" / "dump.json").read_text())["data"]
    (output,) = data["Module.second.Linear.forward.0"]["output"]
    (row,) = [row for row in rows if row["Call"] == "Module.second.Linear.forward.0" and row["Value"] == "output.0"]
    assert [float(row[name]) for name in ("Max", "Min", "Mean", "Norm")] == [output[name] for name in ("Max", "Min", "Mean", "Norm")]
    assert row["Shape"] == str(output["shape"]) and row["Type"] == output["dtype"]
    page.locator("tbody tr", has_text="Module.second.Linear.forward.0").first.press("Enter")
    card = page.locator(".card")
    card.get_by_text("Stack").wait_for()
    assert f"{training}.py" in card.locator(".stack").inner_text()


def test_the_tree_opens_to_the_bad_call_by_mouse_keyboard_and_search(page, training) -> None:
    page.get_by_role("link", name=training).click()
    page.get_by_role("link", name="Show the step").click()
    page.get_by_role("region", name="Values of the step").wait_for()
    page.goto(page.url.replace("/step?", "/graph?").split("&call=")[0])
    boxes = Boxes(page)
    module, division = "Module.scale.Scale.forward.0", "Tensor.__truediv__.0.forward"
    # What is bad below is counted on what is around it, which is closed.
    assert not boxes.open(module) and re.search(r"\d critical", boxes.item(module).inner_text())
    assert "critical" not in boxes.item("Module.first.Linear.forward.0").inner_text()
    assert boxes.item(division).count() == 0
    boxes.double_click(module)
    boxes.wait(division)
    assert f"node={module}" in page.url and boxes.item(module).get_attribute("aria-selected") == "true"
    assert boxes.item(division).get_attribute("aria-level") == "2"
    boxes.tree.focus()
    page.keyboard.press("ArrowLeft")
    boxes.gone(division)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    card = page.locator(".card", has=page.get_by_role("heading", name=division, exact=True))
    card.get_by_text("Stack").wait_for()
    link = page.url
    page.get_by_role("button", name="Close all", exact=True).click()
    page.get_by_label("Search", exact=True).fill("LINEAR.1")
    page.get_by_label("Search", exact=True).press("Enter")
    page.get_by_role("status").filter(has_text="found").wait_for()
    page.get_by_role("button", name="Next").click()
    page.locator(".card h2", has_text="Functional.linear.1").wait_for()
    page.goto(link)
    page.reload()
    card.get_by_text("Stack").wait_for()
    boxes.wait(division)
    page.get_by_role("button", name="First bad call", exact=True).click()
    card.get_by_text("Stack").wait_for()


def test_a_step_of_the_archive_as_one_graph_of_all_ranks_and_beside_itself(page, training) -> None:
    page.get_by_role("link", name=training).click()
    _tab(page, "Graph")
    page.get_by_label("Step", exact=True).fill(str(BAD_STEP))
    page.get_by_label("Step", exact=True).press("Enter")
    Boxes(page).wait("Module.first.Linear.forward.0")
    page.get_by_text("All ranks of this step, or compared with another run").click()
    here = page.url
    page.get_by_role("link", name="All ranks of this step as one graph").click()
    Boxes(page).wait("DefaultModel")
    page.get_by_label("Rank", exact=True).select_option(str(BAD_RANK))
    page.get_by_role("button", name="First bad call", exact=True).click()
    page.locator(".card h2", has_text=BAD_CALL).wait_for()
    page.get_by_role("button", name="All ranks and steps").click()
    table = page.get_by_role("region", name="All ranks and steps")
    table.locator("tbody tr").first.wait_for()
    assert table.locator("tbody tr").count() == RANKS and table.locator("tbody tr.bad").count() == 1
    page.goto(here)
    page.get_by_text("All ranks of this step, or compared with another run").click()
    page.get_by_label("Reference").fill(f"run:{training}@{BAD_STEP - 2}")
    page.get_by_role("button", name="Compare as a graph").click()
    Boxes(page, 1).wait("DefaultModel")
    page.get_by_label("Rank", exact=True).select_option(str(BAD_RANK))
    page.locator(".chip", has_text=re.compile("error [1-9]")).wait_for()


def test_a_trend_shows_its_band_and_where_it_is_not_finite(page, training) -> None:
    page.get_by_role("link", name=training).click()
    _tab(page, "Trend")
    page.get_by_label("Name (part, or * and ?)").fill("Module.second.Linear.forward.0.output.0")
    page.get_by_label("Name (part, or * and ?)").press("Enter")
    page.locator(".chart canvas").wait_for()
    page.locator(".u-legend", has_text="middle of 4 ranks").wait_for()
    page.get_by_text("Red marks").wait_for()
    page.get_by_label("Single ranks").fill("0,2")
    page.get_by_label("Single ranks").press("Enter")
    page.locator(".u-legend", has_text="rank2").wait_for()
    page.goto(f"{page.url}&other=no+such+run")
    page.get_by_role("alert").filter(has_text="NOT_FOUND").wait_for()


def test_the_trend_begins_with_loss_gradients_and_what_moved_most(page, training, collector, tmp_path) -> None:
    (tmp_path / "train.py").write_text(LOSS_RISES)
    subprocess.run([sys.executable, "-m", "rankprobe.run", "--on", "--run", "loss_rises", "--", sys.executable, "train.py"],
                   check=True, cwd=tmp_path, timeout=120, env={**os.environ, "RANKPROBE_COLLECTOR": collector.address})
    page.get_by_role("link", name="loss_rises").click()
    _tab(page, "Trend")
    page.get_by_role("heading", name=re.compile(r"Loss: Functional\.mse_loss\.\d+\.forward\.output\.0, each rank")).wait_for()
    page.get_by_role("heading", name="Norm of all parameters' gradients").wait_for()
    for label in ("Loss over the steps", "Norm of the gradients over the steps", "Norm of the modules' outputs over the steps"):
        page.get_by_role("img", name=label).locator("canvas").wait_for()
    # Two runs' gradients in two clicks: this page, and the other run.
    page.get_by_label("Overlay another run").select_option(training)
    page.locator(".u-legend", has_text="norm of all gradients").locator("tr", has_text=training).wait_for()
    # What it scales by grows from 1 to 1,000; nothing else does.
    moved = page.get_by_role("button", name=re.compile(r"^Module\.")).first
    assert "Scale" in moved.inner_text()
    moved.click()
    page.get_by_role("img", name=re.compile("^Norm of Module.*Scale")).locator("canvas").wait_for()


def test_the_trend_of_a_monitored_run_shows_its_own_loss_and_gradient_norm(page, collector, tmp_path) -> None:
    (tmp_path / "train.py").write_text(LOSS_RISES)
    subprocess.run([sys.executable, "-m", "rankprobe.run", "--monitor", "--every", "1", "--run", "monitored", "--", sys.executable, "train.py"],
                   check=True, cwd=tmp_path, timeout=120, env={**os.environ, "RANKPROBE_COLLECTOR": collector.address})
    page.get_by_role("link", name="monitored").click()
    _tab(page, "Trend")
    page.get_by_role("heading", name="Loss: Training.0.debug.loss, each rank").wait_for()
    page.get_by_role("heading", name="Norm of all gradients as the optimizer takes them").wait_for()
    for label, name in (("Loss over the steps", "loss"), ("Norm of the gradients over the steps", "grad_norm")):
        chart = page.get_by_role("img", name=label)
        chart.locator(".u-over").hover()
        shown = float(re.findall(r"[-+\d.e]+$", chart.locator(".u-legend .u-value").last.inner_text())[0])
        recorded = collector.cli("query", "--run", "monitored", "--of", "all", "--csv", f"Training.0.debug.{name[:-1]}?").stdout
        numbers = [float(cell) for cell in recorded.splitlines()[1].split(",")[1:]]
        assert any(math.isclose(shown, number, rel_tol=1e-2) for number in numbers), (shown, numbers)


def test_a_run_without_a_loss_function_says_so(page, collector, tmp_path) -> None:
    (tmp_path / "train.py").write_text(LOSS_RISES)
    (tmp_path / "config.json").write_text(json.dumps(training_config(level="L0")))
    subprocess.run([sys.executable, "-m", "rankprobe.run", "--on", "--config", "config.json", "--run", "no_loss", "--", sys.executable, "train.py"],
                   check=True, cwd=tmp_path, timeout=120, env={**os.environ, "RANKPROBE_COLLECTOR": collector.address})
    page.get_by_role("link", name="no_loss").click()
    _tab(page, "Trend")
    page.get_by_text("No call of a loss function is recorded").wait_for()


def test_a_run_that_is_not_there_is_not_said_to_have_ended_unrecorded(page, view) -> None:
    page.goto(f"{view.origin}/#/run/no%20such%20run")
    page.get_by_text("The collector knows no run of this name.").wait_for()


def test_from_anywhere_to_the_first_row_in_three_keys(page, training) -> None:
    page.get_by_role("link", name=training).wait_for()
    for key in ("Tab", "Enter", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.tagName") == "TR"
    page.keyboard.press("Enter")
    page.get_by_role("navigation", name="Pages of the run").wait_for()


def test_the_step_shown_first_is_no_torso(page, collector, tmp_path) -> None:
    """A training's last step may hold a call or two of its end."""
    (tmp_path / "config.json").write_text(json.dumps(training_config()))
    subprocess.run([sys.executable, "-c", ENDS_WITH_A_TORSO, tmp_path / "config.json"], check=True, timeout=120,
                   env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "torso", "RANK": "0"})
    page.get_by_role("link", name="torso").click()
    _tab(page, "Step")
    page.get_by_role("region", name="Values of the step").wait_for()
    assert page.get_by_label("Step", exact=True).input_value() == "2"


def test_on_a_narrow_screen_the_filters_are_folded(page, training) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("link", name=training).click()
    _tab(page, "Heat")
    page.locator(".heatmap canvas").wait_for()
    assert not page.get_by_label("Statistic").is_visible()
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("Statistic").wait_for()


def test_a_page_recovers_when_its_collector_is_back(browser, tmp_path) -> None:
    collector = harness.Collector(tmp_path).start()
    _record(collector, tmp_path, "before", 0)
    view = View("--collector", collector.address)
    try:
        with open_page(browser, view, "recovers") as page:
            page.get_by_role("link", name="before").click()
            page.get_by_text("No NaN and no infinity in ").wait_for()
            collector.kill()
            _tab(page, "Ledger")
            page.get_by_role("alert").filter(has_text="UNAVAILABLE").first.wait_for()
            collector.start()
            # Nothing is clicked.
            page.locator("tbody tr", has_text="rank0").first.wait_for()
    finally:
        view.stop()
        collector.stop()


def test_a_job_is_switched_on_from_the_page_and_every_rank_follows(page, idle, collector) -> None:
    page.get_by_role("link", name=idle).click()
    page.get_by_text("Dumping may be off").wait_for()
    page.get_by_role("link", name="or do it on the page of its ranks").click()
    page.get_by_role("heading", name="Dumping is off").wait_for()
    page.get_by_text("config.json: what is recorded").click()
    page.get_by_role("button", name="What would it record?").click()
    page.locator(".preview summary").filter(has_text=re.compile(r"rank0: .*\d+ of \d+ calls")).wait_for()
    page.get_by_label("For steps").fill("2")
    page.get_by_role("button", name="Switch on").click()
    done = page.get_by_role("status")
    done.wait_for(timeout=30_000)
    assert done.get_by_text("follows").count() == RANKS, done.inner_text()
    step = int(re.search(r"from step (\d+)", done.inner_text())[1])

    def whole() -> list[int]:
        # Its exit code says that steps are not finished yet.
        said = collector.cli("ledger", "--run", idle, "--json", check=False).stdout.splitlines()
        return sorted(one["step"] for one in map(json.loads, said) if one.get("state") == "STATE_WHOLE")

    harness.wait_for(lambda: whole() == [step] * RANKS + [step + 1] * RANKS, 60, "two whole steps of each rank")
    page.get_by_role("heading", name="Dumping is off").wait_for(timeout=30_000)
    assert collector.cli("ledger", "--run", idle).returncode == 0


def test_bad_words_are_refused_with_a_reason_and_change_nothing(page, idle, collector) -> None:
    page.get_by_role("link", name=idle).click()
    _tab(page, "Live")
    before = collector.json("config", "get", "--run", idle)
    page.get_by_label("Ranks (all if empty)").fill("two")
    page.get_by_label("Ranks (all if empty)").press("Enter")
    page.get_by_role("button", name="Switch on").click()
    page.get_by_role("alert").filter(has_text="not like 0,2-3").wait_for()
    page.get_by_label("Ranks (all if empty)").fill("")
    page.get_by_label("Ranks (all if empty)").press("Enter")
    page.get_by_text("config.json: what is recorded").click()
    page.locator("textarea").fill('{"task": "statistic"}')
    page.get_by_role("button", name="Switch on").click()
    page.get_by_role("alert").filter(has_text="INVALID_ARGUMENT").filter(has_text="task").wait_for()
    assert collector.json("config", "get", "--run", idle) == before


def test_ledger_and_events(page, training) -> None:
    page.get_by_role("link", name=training).click()
    _tab(page, "Ledger")
    page.locator("tbody tr", has_text="rank3").first.wait_for()
    assert page.locator("tbody tr.bad").count() == 0
    _tab(page, "Events")
    page.locator("tbody tr", has_text="connected").first.wait_for()


LOSS_RISES = """
import torch
class Scale(torch.nn.Module):
    def forward(self, x, by):
        return x * by
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.scale, self.last = torch.nn.Linear(8, 8), Scale(), torch.nn.Linear(8, 1)
    def forward(self, x, by):
        return self.last(torch.tanh(self.scale(self.first(x), by)))
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
for step in range(8):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(torch.ones(4, 8), 1000.0 if step == 5 else 1.0), torch.ones(4, 1)).backward()
    optimizer.step()
"""
ENDS_WITH_A_TORSO = """
import sys, torch
from rankprobe.pytorch import PrecisionDebugger
debugger, net = PrecisionDebugger(config_path=sys.argv[1]), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
for step in range(4):
    debugger.start(model=net)
    if step < 3:
        net(torch.ones(2, 4)).sum().backward()
    else:
        torch.zeros(1).add(1)
    debugger.stop()
    debugger.step()
debugger.close()
"""
IN_A_STEP = """
import sys, torch
from rankprobe.pytorch import PrecisionDebugger
debugger, net = PrecisionDebugger(config_path=sys.argv[1]), torch.nn.Linear(4, 4)
for calls in (1, 2000):  # of the second step some leave the process before its end
    debugger.start(model=net)
    for _ in range(calls):
        net(torch.ones(2, 4))
    if calls > 1:
        sys.stdin.readline()
    debugger.stop()
    debugger.step()
debugger.close()
"""


def test_a_step_that_a_process_is_still_in_is_no_failure(page, collector, tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(training_config()))
    training = subprocess.Popen([sys.executable, "-c", IN_A_STEP, tmp_path / "config.json"], stdin=subprocess.PIPE, text=True,
                                env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "in_a_step"})

    def states() -> list[str]:
        said = collector.cli("ledger", "--run", "in_a_step", "--json", check=False).stdout.splitlines()
        return [one["state"] for one in map(json.loads, said) if "state" in one]

    harness.wait_for(lambda: states() == ["STATE_WHOLE", "STATE_OPEN"], 60, lambda: f"a step that is not finished: {states()}")
    page.get_by_role("link", name="in_a_step").click()
    _tab(page, "Ledger")
    page.get_by_text("1 of 2 rank-steps are not finished: their process is still in the step, or it ended there.").wait_for()
    assert page.locator(".failure").count() == 0
    training.communicate("\n", timeout=60)
    assert training.returncode == 0


A_WEIGHT_CHANGES = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if step == 15:
        with torch.no_grad():
            net[2].weight[0, 3] = 64.0
"""


def test_the_overview_has_the_first_answer_of_diagnose(page, collector, tmp_path) -> None:
    (tmp_path / "train.py").write_text(A_WEIGHT_CHANGES)
    subprocess.run([sys.executable, "-m", "rankprobe.run", "--monitor", "--every", "1", "--run", "a_weight_changes", "--", sys.executable, "train.py"],
                   check=True, cwd=tmp_path, timeout=120, env={**os.environ, "RANKPROBE_COLLECTOR": collector.address})
    page.get_by_role("link", name="a_weight_changes").click()
    card = page.locator(".card.diagnosis.bad")
    said = collector.cli("diagnose", "run:a_weight_changes", check=False)
    assert said.returncode == 1 and "2.weight" in said.stdout, said.stdout
    finding = collector.json("diagnose", "run:a_weight_changes", check=False)["findings"][0]
    card.get_by_text(finding["what"]).first.wait_for()
    card.get_by_text(finding["name"], exact=True).first.wait_for()
    card.get_by_role("link", name=re.compile(f"^Step {finding['step']}$")).first.click()
    page.get_by_role("heading", name="a_weight_changes").wait_for()
    assert page.get_by_label("Step", exact=True).input_value() == str(finding["step"])


def test_chinese_and_dark_stay(page, training) -> None:
    page.get_by_role("button", name="中文").click()
    page.get_by_role("button", name="深色").click()
    page.get_by_role("link", name=training).click()
    page.reload()
    page.get_by_role("navigation").get_by_text("总览").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_text("首个异常调用").wait_for()


PROGRAM = """
import sys, torch
from rankprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(config_path=sys.argv[1])
for step in map(int, sys.argv[2:]):
    debugger.set_init_step(step)
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.stop()
    debugger.step()
debugger.close()
"""


def _record(collector, directory, run: str, *steps: int, **config) -> None:
    """One relu in each of these steps, by one rank."""
    (directory / "config.json").write_text(json.dumps({"task": "statistics", "dump_path": str(directory), "rank": [], "step": [], "level": "L1", **config}))
    subprocess.run([sys.executable, "-c", PROGRAM, directory / "config.json", *map(str, steps)], check=True, timeout=120,
                   env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": run, "RANK": "0"})


def test_names_are_text(page, collector, tmp_path) -> None:
    """What a run is called is shown, and not run."""
    run = "<img src=x onerror=alert(1)>'\"&%2F"
    _record(collector, tmp_path, run, 0)
    page.get_by_role("link", name=run).click()
    page.get_by_role("heading", name=run).wait_for()
    page.get_by_text("No NaN and no infinity in 1 step").wait_for()
    assert page.locator("img").count() == 0


def test_steps_far_apart_are_all_looked_at(page, collector, tmp_path) -> None:
    _record(collector, tmp_path, "far", 3, 70_000, 900_000_000)
    page.get_by_role("link", name="far").click()
    page.get_by_text("All 3 rank-steps are complete").wait_for()
    page.get_by_text("No NaN and no infinity in 3 steps").wait_for()
    _tab(page, "Step")
    page.locator("tbody tr", has_text="Torch.relu.0.forward").first.wait_for()
    assert page.get_by_label("Step", exact=True).input_value() == "900000000"


def test_a_heat_map_of_many_calls_has_their_names(page, collector, tmp_path) -> None:
    program = tmp_path / "many.py"
    program.write_text("import torch, sys\nfrom rankprobe.pytorch import PrecisionDebugger\nd = PrecisionDebugger(config_path=sys.argv[1])\n"
                       "d.start()\nx = torch.ones(2)\nfor _ in range(600):\n    x = torch.relu(x)\nd.stop()\nd.step()\nd.close()\n")
    (tmp_path / "config.json").write_text(json.dumps({"task": "statistics", "dump_path": str(tmp_path), "rank": [], "step": [], "level": "L1"}))
    subprocess.run([sys.executable, program, tmp_path / "config.json"], check=True, timeout=120,
                   env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "many", "RANK": "0"})
    page.get_by_role("link", name="many").click()
    _tab(page, "Heat")
    page.get_by_label("A row is a").select_option("call")
    page.locator(".note", has_text="600 rows").wait_for()
    assert page.locator(".heatmap-names div").count() == 600
    canvas = page.locator("canvas")
    canvas.focus()
    for _ in range(60):
        page.keyboard.press("ArrowDown")
    assert page.locator(".readout").inner_text().startswith("Torch.relu.60.forward, step 0: 1.41421")
    assert page.evaluate("document.querySelector('.heatmap-frame').scrollTop") > 0
    # Drawn down to its end.
    assert page.evaluate("(() => { const c = document.querySelector('canvas'); return c.getContext('2d').getImageData(0, c.height - 1, 1, 1).data[3] })()") == 255


def test_without_statistics_nothing_is_said_to_be_well(page, collector, tmp_path) -> None:
    _record(collector, tmp_path, "names only", 0, 1, statistics={"summary_mode": "xor"})
    page.get_by_role("link", name="names only").click()
    page.get_by_text("No statistics are recorded (task structure").wait_for()
    assert page.get_by_text("No NaN and no infinity").count() == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page, training, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    for name in (None, "Overview", "Live"):
        if name is None:
            page.get_by_role("link", name=training).wait_for()
        elif name == "Overview":
            page.get_by_role("link", name=training).click()
            page.locator(".card.bad").wait_for()
        else:
            _tab(page, name)
            page.get_by_role("heading", name="Dumping is on").wait_for()
            page.get_by_text("config.json: what is recorded").click()
            page.get_by_role("button", name="What would it record?").click()
            page.locator(".preview summary").first.click()
            page.locator(".preview li").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    _tab(page, "Heat")
    page.get_by_role("group", name="Steps shown").get_by_role("button", name="All steps").click()
    page.locator(".heatmap canvas").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "Heat"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_and_the_pictures_of_the_documents(page, training, dark: bool) -> None:
    """Contrast, names, roles and order of every page."""
    from axe_playwright_python.sync_playwright import Axe

    if dark:
        page.get_by_role("button", name="Dark").click()
    page.get_by_role("link", name=training).wait_for()
    found = {}
    waits = {"Runs": "table", "Overview": ".card.bad", "Live": ".card", "Heat": "canvas", "Trend": "tbody tr", "Step": "tbody tr", "Graph": ".graph-view canvas",
             "Ledger": "tbody tr", "Events": "tbody tr"}
    for name, there in waits.items():
        if name == "Overview":
            page.get_by_role("link", name=training).click()
        elif name != "Runs":
            _tab(page, name)
        if name == "Trend":
            page.locator("tbody tr", has_text="Module.second.Linear.forward.0.output.0").click()
            there = ".chart canvas"
        page.locator(there).first.wait_for()
        for one in Axe().run(page).response["violations"]:
            found[name, one["id"]] = [node["html"][:200] for node in one["nodes"]][:3]
        if not dark:
            PICTURES.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=PICTURES / f"{name.lower()}.png")
    assert found == {}


def test_no_collector_is_said(browser) -> None:
    view = View("--collector", "127.0.0.1:1")
    try:
        page = browser.new_context().new_page()
        page.goto(view.address)
        page.get_by_role("alert").filter(has_text="UNAVAILABLE").filter(has_text="No collector answers there").first.wait_for(timeout=30_000)
        page.context.close()
    finally:
        view.stop()
