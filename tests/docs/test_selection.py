# SPDX-License-Identifier: Apache-2.0
"""tests/selection.txt against the tests that there are, and what tests/conftest.py makes of it."""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import subprocess
import sys

import pytest

from conftest import ROOT

_spec = importlib.util.spec_from_file_location("tests_conftest", ROOT / "tests" / "conftest.py")
selection = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(selection)

RULES = selection.selection_rules((ROOT / "tests" / "selection.txt").read_text())


@pytest.fixture(scope="module")
def tests() -> list[str]:
    """directory/file.py::function of every test function in the tree."""
    found = []
    for path in sorted(ROOT.glob("tests/*/test_*.py")):
        names = re.findall(r"^\s*(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        found += [f"{path.relative_to(ROOT / 'tests')}::{name}" for name in names]
    return found


@pytest.mark.parametrize("pattern", [pattern for _, pattern in RULES])
def test_a_pattern_names_a_test(pattern: str, tests: list[str]) -> None:
    function = pattern.partition("[")[0]
    assert fnmatch.filter(tests, function) or fnmatch.filter(tests, function + "*"), pattern


def test_a_test_has_one_line_of_each_kind() -> None:
    assert len(set(RULES)) == len(RULES)


def test_later_lines_override_earlier_ones() -> None:
    rules = selection.selection_rules("full a.py::*  # a comment\n\nkeep a.py::test_x[1]\nreal a.py::test_x*\n")
    assert selection.marks_of("a.py::test_x[1]", rules) == {"real"}
    assert selection.marks_of("a.py::test_x[12]", rules) == {"full", "real"}
    assert selection.marks_of("b.py::test_x[1]", rules) == set()


@pytest.mark.parametrize("text", ["slow a.py::*", "full", "full a.py b.py"])
def test_a_line_that_is_none_is_refused(text: str) -> None:
    with pytest.raises((pytest.UsageError, ValueError)):
        selection.selection_rules(text)


def test_three_lines_of_unsteadiness_are_too_many() -> None:
    lines = ["# a heading", *["a.py::test_x\tc0ffee\t2026-11-27\t1.0"] * 3, *["a.py::test_y\tc0ffee\t2026-11-27\t1.0"] * 2]
    assert selection.unsteady_tests("\n".join(lines)) == {"a.py::test_x"}


@pytest.mark.parametrize("words, names", [
    (["--selection=default"], {"test_kept"}),
    (["--selection=full"], {"test_left"}),
    ([], {"test_kept", "test_left"}),
])
def test_what_runs(tmp_path, words: list[str], names: set[str]) -> None:
    (tmp_path / "selection.txt").write_text("full some/*left*\n")
    (tmp_path / "unsteady.tsv").write_text("")
    (tmp_path / "pytest.ini").write_text((ROOT / "tests" / "pytest.ini").read_text())
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "test_some.py").write_text("def test_kept(): pass\ndef test_left(): pass\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *words, "some"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=120)
    assert set(re.findall(r"::(test_\w+) PASSED", done.stdout)) == names, done.stdout + done.stderr
