# SPDX-License-Identifier: Apache-2.0
"""The table of tests/scale/mutants.py against the tree: what is to be changed stands where it says, and the tests that are
to notice are there. What they notice is found out by running it."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import Iterator

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "scale"))

import mutants
from mutants_table import FAULTS, MUTANTS, Gtest, Mutant


def test_each_fault_has_its_mutants() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert {mutant.fault for mutant in MUTANTS} == set(FAULTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_it_changes_stands_there_once(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1, mutant.file
    assert mutant.old != mutant.new


@pytest.fixture(scope="module")
def gtests() -> dict[str, set[str]]:
    """Of each test program the tests that its sources have."""
    found: dict[str, set[str]] = {}
    for listing in [*ROOT.glob("*/**/CMakeLists.txt")]:
        if "build" in listing.relative_to(ROOT).parts:
            continue
        for program, rest in re.findall(r"rankprobe_test\((\w+)\s(.*?)\)", listing.read_text(), re.DOTALL):
            for source in re.findall(r"[\w./]+\.cc", rest):
                text = (listing.parent / source).read_text()
                found.setdefault(program, set()).update(f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", text, re.MULTILINE))
    return found


@pytest.mark.parametrize("test", dict.fromkeys(mutant.test for mutant in MUTANTS), ids=str)
def test_the_test_that_is_to_notice_is_there(test: mutants.Test, gtests: dict[str, set[str]]) -> None:
    if isinstance(test, Gtest):
        name = re.sub(r"^\w+/(.*)/\w+$", r"\1", test.name)
        assert name in gtests[test.program]
        return
    path, _, name = test.node.partition("::")
    text = (ROOT / path).read_text()
    assert not name or re.search(rf"^def {re.escape(name.partition('[')[0])}\(", text, re.MULTILINE), test.node


class Pretended:
    """A workshop in which nothing is built: `said` is what became of each mutant."""

    def __init__(self, said: dict[str, str]):
        self.said, self.current = said, ""

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        self.current = mutant.name
        yield

    def build(self, targets: tuple[str, ...]) -> bool:
        return self.said.get(self.current) != "does not build"

    def run(self, test: mutants.Test) -> tuple[bool | None, str]:
        return {"MISSED": True, "does not run": None}.get(self.said.get(self.current, ""), False), ""


@pytest.mark.parametrize("what", ["caught", "MISSED", "does not build", "does not run"])
def test_all_but_one_that_is_caught_is_a_failure(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = mutants.run(Pretended({MUTANTS[1].name: what}), MUTANTS[:3])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert code == (0 if what == "caught" else 1)
    assert lines[1].startswith(f"{what:<8} {MUTANTS[1].name} ")
    assert lines[-1] == ("3 mutants: 3 caught" if what == "caught" else f"3 mutants: 2 caught, 1 {what}")


def test_none_at_all_are_not_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.run(Pretended({}), []) == 1
