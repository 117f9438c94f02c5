# SPDX-License-Identifier: Apache-2.0
"""Databases and dumps for the tests of graphs, and what these ask of a page: boxes are on a canvas, and the tree beside it says where."""

from __future__ import annotations

import gzip
import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "interop"))

import harness

GOLDEN = harness.ROOT / "tests" / "golden"


def golden_databases(root: pathlib.Path) -> list[str]:
    """All that the real msprobe made, below `root`."""
    names = []
    for path in sorted((GOLDEN / "graphs").glob("*.vis.db.gz")):
        (root / path.name[:-3]).write_bytes(gzip.decompress(path.read_bytes()))
        names.append(path.name[:-3])
    for path in sorted((GOLDEN / "analysis" / "graph").glob("*.vis.db")):
        shutil.copy(path, root / path.name)
        names.append(path.name)
    return names


def ranks_of(name: str) -> list[pathlib.Path]:
    """The directories of ranks of a golden dump."""
    return sorted(path.parent for path in (GOLDEN / "dumps" / name).rglob("dump.json"))


def copy_rank(name: str, to: pathlib.Path, change=None) -> None:
    """A rank's golden dump, with `change` made to its dump.json's data; without its readers' locks."""
    shutil.copytree(ranks_of(name)[0], to)
    if change is not None:
        dump = json.loads((to / "dump.json").read_text())
        change(dump["data"])
        (to / "dump.json").write_text(json.dumps(dump))


def rename(rank: pathlib.Path, old: str, new: str) -> None:
    """Another name of calls, in all files of a rank."""
    for path in rank.glob("*.json"):
        path.write_text(path.read_text().replace(old, new))


def make_database(root: pathlib.Path, name: str, *words: object) -> str:
    """By our graph_visualize, as root/NAME.vis.db."""
    out = root / f"{name}.d"
    done = subprocess.run([harness.BIN / "rankprobe", "graph_visualize", "--force", *map(str, words), "-o", out], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (made,) = out.glob("*.vis.db")
    made.rename(root / f"{name}.vis.db")
    out.rmdir()
    return f"{name}.vis.db"


class Boxes:
    """One side of the graph of a page: 0 the target, 1 the reference."""

    def __init__(self, page: Any, side: int = 0) -> None:
        self.page, self.tree = page, page.locator(f"#graph-{side}")

    def item(self, name: str) -> Any:
        """The box of this whole name, if it is in sight."""
        return self.tree.locator("[role=treeitem]").filter(has_text=name).first

    def wait(self, name: str) -> None:
        self.item(name).wait_for(state="attached")

    def gone(self, name: str) -> None:
        self.item(name).wait_for(state="detached")

    def names(self) -> list[str]:
        return [text.split(",")[0] for text in self.tree.locator("[role=treeitem]").all_inner_texts()]

    def point(self, name: str) -> tuple[float, float]:
        """Of its title, beside the triangle."""
        self.wait(name)
        self.tree.evaluate("element => element.scrollIntoView({block: 'center'})")
        # Where it stays: what was asked for a moment ago may still move it.
        box = self.tree.evaluate("""async (element, name) => {
            for (let last = ""; ;) {
                const view = element.graphView, box = view.boxOf(view.scene.side.numbers.get(name)), now = JSON.stringify([box.x, box.y]);
                if (now === last) return box;
                last = now;
                await new Promise(requestAnimationFrame);
                await new Promise(requestAnimationFrame);
            }
        }""", name)
        return box["x"] + 60, box["y"] + box["height"] / 2

    def click(self, name: str, **how: Any) -> None:
        self.page.mouse.click(*self.point(name), **how)

    def double_click(self, name: str) -> None:
        """As slowly as by hand: what the first click changes is drawn before the second."""
        self.page.mouse.move(*self.point(name))
        self.page.mouse.down(click_count=1)
        self.page.mouse.up(click_count=1)
        harness.wait_for(lambda: self.page.evaluate("location.hash.includes('node=')"), 30, "the node in the address")
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.page.mouse.down(click_count=2)
        self.page.mouse.up(click_count=2)

    def open(self, name: str) -> bool:
        self.wait(name)
        return self.item(name).get_attribute("aria-expanded") == "true"

    def wait_status(self, name: str, status: str) -> None:
        self.wait(name)
        self.tree.locator(f"[role=treeitem][data-status={status}]").filter(has_text=name).first.wait_for(state="attached")

    def view(self, field: str) -> Any:
        return self.tree.evaluate(f"element => element.graphView.{field}")

    def pixels(self) -> str:
        """What is drawn, to tell two pictures apart."""
        return self.tree.locator("canvas").evaluate("canvas => canvas.toDataURL()")
