# SPDX-License-Identifier: Apache-2.0
"""The heat map of many ranks and steps: the coarse picture comes first, the numbers are those of the command line, and how long a view takes.

A small archive; RANKPROBE_HEAT_ARCHIVE=DIR takes one that bench_archive made (tests/bench/run.sh --only archive) for the figures of docs/view.md, printed with -s.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
from typing import Any, Iterator

import harness
import pytest
from conftest import CollectorsPage, View, holds, open_page

ARCHIVE = os.environ.get("RANKPROBE_HEAT_ARCHIVE", "")
ROUNDS = int(os.environ.get("RANKPROBE_HEAT_ROUNDS", "2"))
RANKS, STEPS = 16, 700
# A view of a user's: no later than this, however much else the machine does.
LATE_MS = 20_000
# From a new address to the second frame after the picture was painted.
VIEW = """async (hash) => {
  // What the view before has asked for is there, as when somebody has looked at it.
  if (window.asked === undefined) {
    window.asked = 0;
    const ask = window.fetch;
    window.fetch = async (...what) => {
      ++window.asked;
      try {
        const answer = await ask(...what), read = answer.arrayBuffer.bind(answer);
        answer.arrayBuffer = () => { ++window.asked; return read().finally(() => --window.asked); };
        return answer;
      } finally { --window.asked; }
    };
  }
  for (let quiet = 0; quiet < 20; quiet = window.asked === 0 ? quiet + 1 : 0) await new Promise((done) => setTimeout(done, 5));
  const old = document.querySelector(".heatmap canvas"), began = performance.now();
  location.hash = hash;
  for (;;) {
    await new Promise((done) => setTimeout(done, 1));
    const canvas = document.querySelector(".heatmap canvas");
    if (canvas !== null && canvas !== old && canvas.dataset.painted !== undefined) {
      const first = performance.now() - began, cells = Number(canvas.dataset.painted);
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      return {first, ms: performance.now() - began, cells};
    }
    if (performance.now() - began > 20000) throw new Error("no picture");
  }
}"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Iterator[harness.Collector]:
    directory = tmp_path_factory.mktemp("heat")
    data = pathlib.Path(ARCHIVE) if ARCHIVE else directory / "data"
    if not ARCHIVE:
        subprocess.run([harness.BIN / "bench_archive", data, str(RANKS), str(STEPS), "5"], check=True, capture_output=True, timeout=300)
    collector = harness.Collector(directory, "--web-listen", "127.0.0.1:0", data_dir=data).start()
    yield collector
    assert collector.stop() == 0, collector.log_text()[-2000:]


def _last(collector: harness.Collector) -> int:
    return next(int(one["steps"]) for one in collector.json("runs")["runs"] if one["run"] == "ranks") - 1


@pytest.fixture(params=["view", "collector"])
def heat(request, browser, archive) -> Iterator[Any]:
    view = View("--collector", archive.address) if request.param == "view" else CollectorsPage(archive)
    try:
        with open_page(browser, view, f"heat_speed_{request.param}") as page:
            page.get_by_role("link", name="ranks").first.wait_for()
            page.of = request.param
            yield page
    finally:
        if request.param == "view":
            view.stop()


def test_views_of_all_ranks_and_steps(heat, archive) -> None:
    last = _last(archive)
    middle = last // 2
    views = {"all steps": "from=0", "a fifth": f"from={middle}&to={middle + last // 5}", "200 steps": f"from={middle}&to={middle + 199}",
             "100 later": f"from={middle + 100}&to={middle + 299}", "1,000 steps": f"from={max(0, last - 999)}&to={last}"}
    took: dict[str, list[dict]] = {name: [] for name in views}
    for _ in range(ROUNDS + 1):
        for name, where in views.items():
            took[name].append(heat.evaluate(VIEW, f"#/run/ranks/heat?rows=rank&stat=Norm&{where}"))
            heat.locator(".heatmap canvas").first.wait_for()
    for name, rounds in took.items():
        warm = [one["ms"] for one in rounds[1:]]
        print(f"{heat.of}, {name}: first {rounds[0]['ms']:.0f} ms, median {statistics.median(warm):.0f} ms of {len(warm)} (painted {statistics.median(one['first'] for one in rounds[1:]):.0f} ms), "
              f"{rounds[-1]['cells']:,} cells")
        assert max(one["ms"] for one in rounds) < LATE_MS and rounds[-1]["cells"] > 0
    print(f"load {os.getloadavg()[0]:.1f}")


def test_the_coarse_picture_is_first_and_then_the_fine_one(heat, archive) -> None:
    last = _last(archive)
    heat.evaluate("""() => {
      window.seen = [];
      const ask = window.fetch;
      window.fetch = (...what) => { if (String(what[0]).includes("QueryGrid")) window.seen.push(JSON.parse(what[1].body)); return ask(...what); };
    }""")
    first = heat.evaluate(VIEW, f"#/run/ranks/heat?rows=rank&stat=Norm&from={last - 599}&to={last}")
    holds(heat, f"Number(document.querySelector('.heatmap canvas').dataset.painted) > 5 * {first['cells']}")
    assert [one.get("leastStepsPerColumn", 0) for one in heat.evaluate("window.seen")] == [64, 0]
    # A range that is quick by each step is asked for once.
    heat.evaluate("window.seen.length = 0")
    heat.evaluate(VIEW, f"#/run/ranks/heat?rows=rank&stat=Norm&from={last - 99}&to={last}")
    assert [one.get("leastStepsPerColumn", 0) for one in heat.evaluate("window.seen")] == [0]
    assert all(one["packed"] for one in heat.evaluate("window.seen"))


def test_the_numbers_and_the_moves(heat, archive) -> None:
    last = _last(archive)
    heat.evaluate(VIEW, f"#/run/ranks/heat?rows=rank&stat=Norm&from={last - 9}&to={last}&ranks=3")
    canvas = heat.locator(".heatmap canvas")
    canvas.press("ArrowRight")
    canvas.press("ArrowRight")
    said = heat.locator(".readout").inner_text()
    head, *rows = [json.loads(line) for line in archive.cli("query", "--run", "ranks", "--rows", "rank", "--statistic", "Norm", "--ranks", "3", "--from-step", str(last - 9),
                                                           "--to-step", str(last), "--json").stdout.splitlines()]
    value = rows[0]["row"]["cells"][2] if "row" in rows[0] else rows[0]["cells"][2]
    assert said.startswith(f"rank3, step {last - 7}: ") and float(said.split(": ")[1].split(" ")[0].rstrip(",")) == pytest.approx(value, rel=1e-5), (said, rows[0])
    moves = heat.get_by_role("group", name="Steps shown")
    moves.get_by_role("button", name="Earlier").press("Enter")
    holds(heat, f"location.hash.includes('from={last - 14}&to={last - 5}')")
    moves.get_by_role("button", name="Farther").click()
    holds(heat, f"location.hash.includes('from={last - 19}&to={last}')")
    moves.get_by_role("button", name="Nearer").click()
    holds(heat, f"location.hash.includes('from={last - 14}')")
    moves.get_by_role("button", name="All steps").click()
    holds(heat, "location.hash.includes('from=0') && !location.hash.includes('to=')")
    moves.get_by_role("button", name="Earlier").wait_for()
    assert moves.get_by_role("button", name="Earlier").is_disabled()
    heat.go_back()
    holds(heat, f"location.hash.includes('from={last - 14}')")


def test_a_run_that_is_not_there_says_so(heat) -> None:
    heat.evaluate("() => { location.hash = '#/run/nobody/heat?rows=rank&from=0&to=5'; }")
    heat.locator(".failure", has_text="nobody").first.wait_for()
