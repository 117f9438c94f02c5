# SPDX-License-Identifier: Apache-2.0
"""Selection of the tests that run by default, and the record of tests that fail, for every directory of tests.

tests/selection.txt marks tests as `full` or `real`; tests/unsteady.tsv lists failures that passed when they were run again.
RANKPROBE_FAILURES, a file: the identifier and the kind of each test that fails are added to it (read by tests/lib/counts.sh).
"""

from __future__ import annotations

import collections
import fnmatch
import os
import pathlib
import shutil
import sys
import zlib

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
# pytest has put this directory there, whose mindspore/ would stand for the package of that name.
sys.path[:] = [str(TESTS / "lib"), *(path for path in sys.path if path != str(TESTS))]
# gRPC in this process would act on each fork, also on one that only starts another program, and can end that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# A collector that says nothing for 50 ms is not waited for. On a machine that is busy with tests one may be silent for longer, and
# what tests look for in it would come after they have looked.
os.environ.setdefault("RANKPROBE_WAIT_MS", "10000")
# A test that was unsteady so often leaves the default run until it is mended.
UNSTEADY_LIMIT = 3
_failed = pytest.StashKey[bool]()
_directory = pytest.StashKey[pathlib.Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--selection", choices=("default", "full", "all"), default="all",
                     help="tests of the default run, those that it leaves out, or all of them (the default)")
    parser.addoption("--shard", metavar="K/N", help="every N-th of the tests, by their names")


def selection_rules(text: str) -> list[tuple[str, str]]:
    """(mark, pattern) of each line of tests/selection.txt."""
    rules = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words:
            mark, pattern = words
            if mark not in ("full", "real", "keep"):
                raise pytest.UsageError(f"tests/selection.txt: {line}: a line is `full`, `real` or `keep`, and a pattern")
            rules.append((mark, pattern))
    return rules


def unsteady_tests(text: str) -> set[str]:
    """The tests that tests/unsteady.tsv names UNSTEADY_LIMIT times or more."""
    times = collections.Counter(line.split("\t")[0] for line in text.splitlines() if line and not line.startswith("#"))
    return {name for name, count in times.items() if count >= UNSTEADY_LIMIT}


def marks_of(nodeid: str, rules: list[tuple[str, str]]) -> set[str]:
    """A later line overrides an earlier one: `keep` takes `full` back."""
    marks: set[str] = set()
    for mark, pattern in rules:
        # Of fnmatch's characters only * is special here: names of parametrized tests hold brackets.
        if fnmatch.fnmatchcase(nodeid, pattern.replace("[", "[[]")):
            marks = marks - {"full"} if mark == "keep" else marks | {mark}
    return marks


@pytest.hookimpl(tryfirst=True)  # before -m deselects by the marks that it gives
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rules = selection_rules((TESTS / "selection.txt").read_text())
    unsteady = unsteady_tests((TESTS / "unsteady.tsv").read_text())
    selection = config.getoption("--selection")
    shard = config.getoption("--shard")
    number, count = map(int, shard.split("/")) if shard else (0, 1)
    kept, left = [], []
    for item in items:
        marks = marks_of(item.nodeid, rules) | ({"full"} if item.nodeid in unsteady else set())
        for mark in marks:
            item.add_marker(mark)
        wanted = selection == "all" or (selection == "full") == ("full" in marks)
        (kept if wanted and zlib.crc32(item.nodeid.encode()) % count == number else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):  # type: ignore[type-arg]
    report = (yield).get_result()
    if report.failed:
        first = not item.stash.get(_failed, False)
        item.stash[_failed] = True
        path = os.environ.get("RANKPROBE_FAILURES")
        if path and first:
            kind = "real" if item.get_closest_marker("real") else "deterministic"
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{kind}\t{item.nodeid}\n")


@pytest.fixture
def tmp_path(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> pathlib.Path:
    """pytest's, removed when the test has passed: some write gigabytes, and pytest keeps those of three runs."""
    request.node.stash[_directory] = tmp_path
    return tmp_path


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item):  # type: ignore[no-untyped-def]
    # After all fixtures: some of them close what lies in the directory.
    yield
    if _directory in item.stash and not item.stash.get(_failed, False):
        shutil.rmtree(item.stash[_directory], ignore_errors=True)
        # The empty directory stays, or pytest would give its name to the next test while processes of this one still end.
        item.stash[_directory].mkdir(exist_ok=True)
