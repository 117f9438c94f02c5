# SPDX-License-Identifier: Apache-2.0
"""tests/features.md: every feature has a row, a state with its reason, and tests or pages that are there."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ROW = re.compile(r"\| ([A-F]\d+) \| (.*?) \| (.*?) \| (.*?) \|$")
WANTED = [f"{section}{i}" for section, count in (("A", 34), ("B", 21), ("C", 10), ("D", 20), ("E", 16), ("F", 23))
          for i in range(1, count + 1)]
STATE = re.compile(r"works|(decision|partly|not here): \S.{9,}")
PYTHON = re.compile(r"`(\w+\.py)::(\w+)(?:\[([\w-]+))?`")
CPP = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+)`")
PAGE = re.compile(r"\[[\w ]+\]\(([\w./-]*)#([\w-]+)\)")


def rows() -> dict[str, tuple[str, str]]:
    """Number to state and what shows it."""
    found: dict[str, tuple[str, str]] = {}
    for line in (ROOT / "tests/features.md").read_text().splitlines():
        match = ROW.match(line)
        if match:
            assert match[1] not in found, f"{match[1]} twice"
            found[match[1]] = (match[3], match[4])
    return found


@functools.lru_cache(maxsize=None)
def python_file(name: str) -> tuple[set[str], str]:
    """The functions of all files of that name below tests/, and their text."""
    texts = [path.read_text() for path in sorted((ROOT / "tests").rglob(name))]
    functions = {node.name for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    return functions, "".join(texts)


@functools.lru_cache(maxsize=None)
def cpp_tests() -> set[tuple[str, str]]:
    found = set()
    for path in ROOT.rglob("*_test.cc"):
        if path.relative_to(ROOT).parts[0] != "build":
            found |= set(re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE))
    return found


def anchors(page: str) -> set[str]:
    path = ROOT / "tests" / (page or "features.md")
    if not path.is_file():
        return set()
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def faults(number: str, state: str, shown: str, compatibility: str) -> list[str]:
    said = []
    if not STATE.fullmatch(state):
        said.append(f"no state with a reason: {state!r}")
    elsewhere = re.search(rf"^\| (?:\w+, )*{number}(?:, \w+)* \|", compatibility, re.MULTILINE)
    if state == "works" and elsewhere:
        said.append("compatibility.md has a decision on it")
    for file, test, case in PYTHON.findall(shown):
        functions, text = python_file(file)
        if test not in functions:
            said.append(f"{file} has no {test}")
        elif case and f'"{case}"' not in text:
            said.append(f"{file} has no case {case}")
    for test in CPP.findall(shown):
        if test not in cpp_tests():
            said.append(f"no test {'.'.join(test)}")
    for page, anchor in PAGE.findall(shown):
        if anchor not in anchors(page):
            said.append(f"{page} has no {anchor}")
    rest = PAGE.sub("", CPP.sub("", PYTHON.sub("", shown))).strip(", ")
    if rest and not (rest == "-" and state.startswith("not here")):
        said.append(f"neither a test nor a page: {rest}")
    if not shown.strip():
        said.append("nothing shows it")
    return said


def test_every_feature_has_a_row() -> None:
    assert list(rows()) == WANTED


@pytest.mark.parametrize("number", WANTED)
def test_what_a_row_says_is_there(number: str) -> None:
    state, shown = rows()[number]
    assert not faults(number, state, shown, (DOCS / "compatibility.md").read_text())


@pytest.mark.parametrize("number,state,shown", [
    ("B5", "works", "`test_debugger.py::test_no_such_test`"), ("B5", "works", "`test_no_such_file.py::test_x`"),
    ("A2", "works", "`test_feature_rows.py::test_bad_values_are_refused[a2-nothing`"),
    ("B5", "works", "`StoreTest.NoSuchTest`"), ("B5", "works", "[pytorch](../docs/pytorch.md#no-such-title)"),
    ("B5", "works", ""), ("B5", "works", "somebody looked"), ("B5", "decision", "`StoreTest.PlansSurviveAReopen`"),
    ("B10", "works", "`StoreTest.PlansSurviveAReopen`"), ("A8", "works", "`StoreTest.PlansSurviveAReopen`"),
])
def test_a_bad_row_is_found(number: str, state: str, shown: str) -> None:
    assert faults(number, state, shown, (DOCS / "compatibility.md").read_text())
