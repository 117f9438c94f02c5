# SPDX-License-Identifier: Apache-2.0
"""tests/lib/include_graph.py finds what it is there for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "lib"))

import include_graph

ROOMS = {"common/base": set(), "common/io": {"common/base"}, "agent/runtime/queue": {"common/io", "common/base"},
         "cli": {"common/base"}}


@pytest.mark.parametrize("name, line", [
    ("common/base/a.cc", '#include "common/io/b.h"'),
    ("common/base/a.cc", '#include "cli/c.h"'),
    ("common/loose.h", ""),
    ("agent/runtime/loose.cc", ""),
    ("common/loose_test.cc", ""),
    ("common/io/a.cc", '#include "common/loose.h"'),
    ("common/io/a.cc", '#include "common/testing/scratch_directory.h"'),
    ("agent/runtime/queue/a.h", '#include "agent/runtime/queue/testing/fake.h"'),
    ("agent/runtime/queue/a.h", '#include "tests/crash/proxy.h"'),
    ("common/io/a.cc", "  mutex_.AwaitWithTimeout(absl::Condition(&done), absl::Seconds(1));"),
    ("common/io/a.cc", "  if (changed->WaitWithDeadline(&mutex, deadline)) return;"),
    ("common/io/a.cc", "  done.WaitForNotificationWithTimeout(t);"),
    ("common/io/a.h", "  std::condition_variable_any changed_;"),
    ("common/io/a.cc", "  ready.wait_for(std::chrono::seconds(1));"),
])
def test_found(name: str, line: str) -> None:
    (fault,) = include_graph.faults_of(name, f"// Of a test.\n{line}\n", ROOMS)
    assert fault.startswith(name)


@pytest.mark.parametrize("name, line", [
    ("agent/runtime/queue/a.cc", '#include "common/base/b.h"'),
    ("common/io/a.cc", '#include "rankprobe/v1/types.pb.h"'),
    ("common/io/a_test.cc", '#include "common/testing/scratch_directory.h"'),
    ("common/testing/a.cc", '#include "common/io/b.h"'),
    ("common/io/a.cc", "  int i = 0;  // AwaitWithTimeout would be on the wall clock"),
])
def test_allowed(name: str, line: str) -> None:
    assert include_graph.faults_of(name, f"{line}\n", ROOMS) == []


def test_a_type_of_one_name_in_two_headers_is_found() -> None:
    one = "namespace rankprobe {\n\nstruct Request {\n  int a = 0;\n};\n\n}  // namespace rankprobe\n"
    other = one.replace("namespace rankprobe {", "namespace rankprobe::analysis {")
    (fault,) = include_graph.defined_twice({"common/io/a.h": one, "cli/b.h": one})
    assert fault.startswith("common/io/a.h: rankprobe::Request is a type of cli/b.h too")
    assert include_graph.defined_twice({"common/io/a.h": one, "cli/b.h": other}) == []
    assert include_graph.defined_twice({"agent/libtorch/a.h": one, "agent/python/native/b.h": one}) == []


def test_the_tree_is_clean() -> None:
    done = subprocess.run([sys.executable, ROOT / "tests/lib/include_graph.py"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
