# SPDX-License-Identifier: Apache-2.0
"""Speed of a graph of 100,000 nodes a side, in Chromium. Budgets are printed with what was measured, and a missed one as missed
(docs/view.md has a run's figures with its conditions); only ten times a budget fails, for machines differ."""

from __future__ import annotations

import json
import os
import statistics
from typing import Any

import big_graph
import pytest
from conftest import PICTURES, View, open_page, holds

ROUNDS = int(os.environ.get("RANKPROBE_GRAPH_SPEED_ROUNDS", "5"))
# Milliseconds; frames a second at least.
BUDGETS = {"first paint": 500, "expand": 50, "search": 100, "frames a second": 50}
# Said, without a budget: every node is there to be searched and counted.
WHOLE = "whole graph"

FIRST_PAINT = """address => new Promise(done => {
    const begin = performance.now();
    location.hash = address;
    let first = 0;
    const look = () => {
        const views = [...document.querySelectorAll('.graph-view')].map(element => element.graphView);
        const painted = views.length > 0 && views.every(view => view !== undefined && view.paints > 0);
        if (painted && first === 0) first = performance.now() - begin;
        // All of it is there when the count behind the root is.
        if (painted && views.every(view => view.scene.side.names.length > 100000)) done([first, performance.now() - begin]);
        else requestAnimationFrame(look);
    };
    look();
})"""
# From the double click to the end of the frame in which both sides show it.
EXPAND = """name => new Promise(done => {
    const element = document.querySelector('#graph-0');
    const views = [...document.querySelectorAll('.graph-view')].map(element => element.graphView);
    const side = views[0].scene.side;
    const node = side.numbers.get(name);
    views[0].reveal(node);
    requestAnimationFrame(() => {
        const box = views[0].boxOf(node);
        const child = side.list[side.first[node]];
        const shown = () => views[0].layout.placeOf[child] >= 0;
        const before = shown();
        const painted = views.map(view => view.paints);
        const begin = performance.now();
        element.dispatchEvent(new MouseEvent('dblclick', {clientX: box.x + 60, clientY: box.y + box.height / 2, bubbles: true}));
        const look = () => {
            if (shown() !== before && views.every((view, i) => view.paints > painted[i])) done(performance.now() - begin);
            else requestAnimationFrame(look);
        };
        requestAnimationFrame(look);
    });
})"""
SEARCH = """text => new Promise(done => {
    const field = [...document.querySelectorAll('label.field')].find(label => label.textContent.startsWith('Search')).querySelector('input');
    const view = document.querySelector('#graph-0').graphView;
    field.value = text;
    field.dispatchEvent(new Event('input', {bubbles: true}));
    setTimeout(() => {
        const painted = view.paints;
        const begin = performance.now();
        field.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
        const look = () => {
            const status = document.querySelector('[role=status]');
            if (view.paints > painted && status !== null && /[1-9]/.test(status.textContent) && location.hash.includes('find=' + text)) done(performance.now() - begin);
            else requestAnimationFrame(look);
        };
        requestAnimationFrame(look);
    }, 50);
})"""
SCROLL = """ms => new Promise(done => {
    const element = document.querySelector('#graph-0');
    const box = element.getBoundingClientRect();
    const begin = performance.now();
    let frames = 0, worst = 0, last = begin;
    const step = now => {
        ++frames;
        worst = Math.max(worst, now - last);
        last = now;
        if (now - begin > ms) return done([1000 * (frames - 1) / (now - begin), worst]);
        element.dispatchEvent(new WheelEvent('wheel', {deltaY: 180, clientX: box.x + 50, clientY: box.y + 50, bubbles: true, cancelable: true}));
        requestAnimationFrame(step);
    };
    requestAnimationFrame(now => { last = now; step(now); });
})"""


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> Any:
    root = tmp_path_factory.mktemp("big")
    nodes = big_graph.write_dump(root / "dumps" / "target" / "step0" / "rank0", wrong=frozenset({60_000, 90_000}))
    big_graph.write_dump(root / "dumps" / "reference" / "step0" / "rank0")
    assert nodes > 100_000
    big_graph.visualize(root / "out", root / "dumps" / "target", root / "dumps" / "reference").rename(root / "compare.vis.db")
    big_graph.visualize(root / "out2", root / "dumps" / "target").rename(root / "build.vis.db")
    view = View("--root", root)
    yield view, root
    view.stop()


@pytest.mark.parametrize("name", ["build", "compare"])
def test_a_graph_of_100_000_nodes_a_side_is_within_its_budgets(browser, big, name: str) -> None:
    view, root = big
    taken: dict[str, list[float]] = {name: [] for name in (*BUDGETS, WHOLE)}
    load = os.getloadavg()[0]
    worst = 0.0
    for i in range(ROUNDS):
        with open_page(browser, view, f"graph_speed_{name}") as page:
            page.get_by_role("link", name=f"{name}.vis.db").wait_for()
            first, whole = page.evaluate(FIRST_PAINT, f"#/graph?db={name}.vis.db")
            taken["first paint"].append(first)
            taken[WHOLE].append(whole)
            for layer in (i, i + 20, i + 40):
                taken["expand"].append(page.evaluate(EXPAND, f"Module.model.layers.{layer}.Layer.forward.0"))
            taken["search"].append(page.evaluate(SEARCH, f"GELU.{i + 1}7"))
            page.get_by_label("Search", exact=True).fill("")
            page.get_by_label("Search", exact=True).press("Enter")
            page.get_by_role("button", name="Open all", exact=True).click()
            holds(page, "[...document.querySelectorAll('.graph-view')].every(element => element.graphView.layout.count > 100000)")
            frames, slowest = page.evaluate(SCROLL, 2000)
            taken["frames a second"].append(frames)
            worst = max(worst, slowest)
    lines = [f"{name}: {(root / f'{name}.vis.db').stat().st_size / 1e6:.0f} MB, load {load:.1f} before and {os.getloadavg()[0]:.1f} after, slowest frame {worst:.0f} ms"]
    failed = []
    for what, budget in {**BUDGETS, WHOLE: None}.items():
        median = statistics.median(taken[what])
        missed = budget is not None and (median < budget if what == "frames a second" else median > budget)
        lines.append(f"{what}: budget {budget}, median {median:.1f} of {len(taken[what])} ({min(taken[what]):.1f} to {max(taken[what]):.1f}){' MISSED' if missed else ''}")
        if budget is not None and ((median < budget / 10) if what == "frames a second" else (median > budget * 10)):
            failed.append(lines[-1])
    print("\n" + "\n".join(lines))
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / f"graph_speed_{name}.json").write_text(json.dumps(taken, indent=1))
    assert failed == []


def test_the_first_bad_call_of_100_000_is_one_click_away(browser, big) -> None:
    view, _ = big
    with open_page(browser, view, "graph_first_bad") as page:
        page.goto(f"{view.origin}/#/graph?db=compare.vis.db")
        page.get_by_role("button", name="First bad call", exact=True).click()
        page.locator(".graph .card h2").wait_for()
        name = page.locator(".graph .card h2").inner_text()
        page.locator("#graph-0 [role=treeitem][data-status=error]").filter(has_text=name).wait_for(state="attached")
