# SPDX-License-Identifier: Apache-2.0
"""tests/lib/counts.sh: each test counts once, one that fails is named, and only one in real time runs again."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Fails until it has run `passes_at` times.
PYTEST = """
import pathlib
def {name}():
    ran = pathlib.Path({ran!r})
    times = len(ran.read_text()) + 1 if ran.exists() else 1
    ran.write_text("x" * times)
    assert times >= {passes_at}
"""
NEVER, LATER, AT_ONCE = 99, 2, 1


def last_lines(commands: str, root: pathlib.Path = ROOT) -> list[str]:
    """What counts_print says after the commands."""
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"source '{ROOT}/deploy/lib/common.sh'; source '{ROOT}/tests/lib/counts.sh'; counts_reset; "
         f"RANKPROBE_ROOT='{root}'; {commands}; echo ENDED; counts_print"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "RANKPROBE_JOBS": "1"})
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.partition("ENDED\n")[2].splitlines()


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout with the scripts and a directory of tests of its own."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "lib").symlink_to(ROOT / "tests" / "lib")
    for name in ("conftest.py", "pytest.ini"):
        (tmp_path / "tests" / name).write_text((ROOT / "tests" / name).read_text())
    (tmp_path / "tests" / "unsteady.tsv").write_text("")
    (tmp_path / "tests" / "selection.txt").write_text("real some/*real*\n")
    (tmp_path / "tests" / "some").mkdir()
    return tmp_path


@pytest.mark.parametrize("passes_at, ran, said", [
    ({"test_a": AT_ONCE, "test_real": AT_ONCE}, 2, ["2 passed, 0 failed, 0 skipped"]),
    # A deterministic one that fails, fails.
    ({"test_a": AT_ONCE, "test_b": LATER}, 2, ["failed: some.test_some.test_b", "1 passed, 1 failed, 0 skipped"]),
    ({"test_a": AT_ONCE, "test_real": LATER}, 3, ["unsteady: some/test_some.py::test_real", "2 passed, 0 failed, 0 skipped"]),
    ({"test_real": NEVER}, 2, ["failed: some.test_some.test_real", "0 passed, 1 failed, 0 skipped"]),
    ({"test_b": NEVER, "test_real_1": LATER, "test_real_2": NEVER}, 5,
     ["unsteady: some/test_some.py::test_real_1", "failed: some.test_some.test_b", "failed: some.test_some.test_real_2",
      "1 passed, 2 failed, 0 skipped"]),
    # So many are no matter of chance.
    ({f"test_real_{i:02}": LATER for i in range(11)}, 11,
     [f"failed: some.test_some.test_real_{i:02}" for i in range(11)] + ["0 passed, 11 failed, 0 skipped"]),
])
def test_only_a_test_in_real_time_runs_again(root, passes_at: dict[str, int], ran: int, said: list[str]) -> None:
    (root / "tests" / "some" / "test_some.py").write_text(
        "".join(PYTEST.format(name=name, ran=str(root / f"{name}.ran"), passes_at=at) for name, at in passes_at.items()))
    assert last_lines(f"run_pytest '{sys.executable}' '{root}/tests/some'; run_unsteady_again", root) == said
    assert sum(len((root / f"{name}.ran").read_text()) for name in passes_at) == ran
    unsteady = [line.split("\t")[0] for line in (root / "tests" / "unsteady.tsv").read_text().splitlines()]
    assert unsteady == [line.removeprefix("unsteady: ") for line in said if line.startswith("unsteady: ")]


def test_a_runner_that_breaks_is_a_failure(root) -> None:
    (root / "tests" / "some" / "test_some.py").write_text("import nothing_of_that_name\n")
    assert last_lines(f"run_pytest '{sys.executable}' '{root}/tests/some'", root)[-1].startswith("0 passed, ")
    assert not last_lines(f"run_pytest '{sys.executable}' '{root}/tests/some'", root)[-1].startswith("0 passed, 0 failed")


def test_a_directory_without_tests_is_a_failure(root) -> None:
    said = last_lines(f"run_pytest '{sys.executable}' '{root}/tests/some'", root)
    assert said == [f"failed: pytest {root}/tests/some, which found no test", "0 passed, 1 failed, 0 skipped"]


GTEST_REPORT = """<testsuites><testsuite name="Some"><testcase name="Passes" classname="Some" status="run"/>{more}</testsuite></testsuites>"""
FAILS = """<testcase name="Fails" classname="Some" status="run"><failure message="1"/></testcase>"""
SKIPPED = """<testcase name="Skipped" classname="Some" status="notrun"/>"""


@pytest.mark.parametrize("report, rc, said", [
    (GTEST_REPORT.format(more=SKIPPED), 0, ["1 passed, 0 failed, 1 skipped"]),
    (GTEST_REPORT.format(more=FAILS), 1, ["failed: Some.Fails", "1 passed, 1 failed, 0 skipped"]),
    # A leak, which the sanitizer reports after the last test.
    (GTEST_REPORT.format(more=""), 1, ["failed: some_test.some_test", "1 passed, 1 failed, 0 skipped"]),
    # A crash: no report.
    (None, 1, ["failed: some_test.some_test", "0 passed, 1 failed, 0 skipped"]),
    # No report of its own: it is one test.
    (None, 0, ["1 passed, 0 failed, 0 skipped"]),
])
def test_a_program_counts_by_its_tests(tmp_path, report: str | None, rc: int, said: list[str]) -> None:
    writes = f"mkdir -p gtest; cat > gtest/some_test.xml < {tmp_path}/report; " if report else ""
    (tmp_path / "report").write_text(report or "")
    (tmp_path / "CTestTestfile.cmake").write_text(f'add_test(some_test "/bin/sh" "-c" "cd {tmp_path}; {writes}exit {rc}")\n')
    assert last_lines(f"run_ctest '{tmp_path}'") == said


def test_no_program_is_a_failure(tmp_path) -> None:
    (tmp_path / "CTestTestfile.cmake").write_text("")
    assert last_lines(f"run_ctest '{tmp_path}'") == [f"failed: ctest in {tmp_path}, which found no test", "0 passed, 1 failed, 0 skipped"]
