# SPDX-License-Identifier: Apache-2.0
"""tests/lib/counts.sh: a test that failed counts, and one that is run again and passes is named."""

from __future__ import annotations

import os
import pathlib
import re
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
CTEST = 'add_test({name} "/bin/sh" "-c" "printf x >> {ran}; test $(wc -c < {ran}) -ge {passes_at}")\n'
NEVER, LATER, AT_ONCE = 99, 2, 1


def count(directory: pathlib.Path, runner: str, passes_at: dict[str, int], again: bool) -> tuple[int, list[str]]:
    """How often each test ran in all, and the last lines: those of counts_print."""
    tests = [(PYTEST if runner == "run_pytest" else CTEST).format(name=name, ran=str(directory / f"{name}.ran"), passes_at=at)
             for name, at in passes_at.items()]
    (directory / ("test_some.py" if runner == "run_pytest" else "CTestTestfile.cmake")).write_text("".join(tests))
    command = f"run_pytest '{sys.executable}' -c /dev/null '{directory}'" if runner == "run_pytest" else f"run_ctest '{directory}'"
    environment = {k: v for k, v in os.environ.items() if k != "RANKPROBE_TRY_AGAIN"}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"source '{ROOT}/deploy/lib/common.sh'; source '{ROOT}/tests/lib/counts.sh'; counts_reset; "
         f"{command}; echo ENDED; counts_print"],
        capture_output=True, text=True, timeout=120, env={**environment, **({"RANKPROBE_TRY_AGAIN": "1"} if again else {})})
    assert result.returncode == 0, result.stdout + result.stderr
    ran = sum(len((directory / f"{name}.ran").read_text()) for name in passes_at)
    # Of a name the last part: before it stands the file.
    return ran, [re.sub(r": .*\b(?=test_)", ": ", line) for line in result.stdout.partition("ENDED\n")[2].splitlines()]


@pytest.mark.parametrize("runner", ["run_pytest", "run_ctest"])
@pytest.mark.parametrize("passes_at, again, ran, said", [
    ([AT_ONCE, AT_ONCE], True, 2, ["2 passed, 0 failed, 0 skipped"]),
    ([AT_ONCE, LATER], False, 2, ["failed: test_1", "1 passed, 1 failed, 0 skipped"]),
    ([AT_ONCE, LATER], True, 3, ["unsteady: test_1", "2 passed, 0 failed, 0 skipped"]),
    ([LATER, NEVER, AT_ONCE], True, 5, ["unsteady: test_0", "failed: test_1", "2 passed, 1 failed, 0 skipped"]),
    ([NEVER], True, 2, ["failed: test_0", "0 passed, 1 failed, 0 skipped"]),
    # So many are no matter of chance.
    ([LATER] * 4, True, 4, [f"failed: test_{i}" for i in range(4)] + ["0 passed, 4 failed, 0 skipped"]),
])
def test_what_failed_is_asked_once_more_and_named(tmp_path, runner, passes_at, again, ran, said):
    names = {f"test_{i}": at for i, at in enumerate(passes_at)}
    assert count(tmp_path, runner, names, again) == (ran, said)


def test_a_runner_that_breaks_is_a_failure(tmp_path):
    (tmp_path / "test_some.py").write_text("import nothing_of_that_name\n")
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"source '{ROOT}/deploy/lib/common.sh'; source '{ROOT}/tests/lib/counts.sh'; counts_reset; "
         f"run_pytest '{sys.executable}' -c /dev/null '{tmp_path}'; counts_print"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "RANKPROBE_TRY_AGAIN": "1"})
    assert result.stdout.splitlines()[-1].endswith("0 passed, 1 failed, 0 skipped"), result.stdout
