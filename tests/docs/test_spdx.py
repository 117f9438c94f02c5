# SPDX-License-Identifier: Apache-2.0
"""Each source file says its licence in one line (tests/lib/spdx.py)."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "lib"))
import spdx


def test_each_source_file_has_the_line() -> None:
    assert len(spdx.sources()) > 800
    assert [str(p.relative_to(ROOT)) for p in spdx.lacking()] == []


def test_a_file_without_it_is_found_and_mended_once(tmp_path: pathlib.Path) -> None:
    files = {"a.cc": "int x;\n", "a.py": "#!/usr/bin/env python3\n\"\"\"What it is.\"\"\"\n", "CMakeLists.txt": "project(x)\n",
             "run": "#!/bin/sh\ntrue\n", "data.json": "{}\n", "tests/golden/g.py": "x = 1\n", "__init__.py": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run("git init -q . && git add .", shell=True, check=True, cwd=tmp_path)
    found = spdx.lacking(tmp_path)
    assert sorted(p.name for p in found) == ["CMakeLists.txt", "a.cc", "a.py", "run"]
    line = f" {spdx.LINE}\n"
    assert found[tmp_path / "a.cc"].decode() == "//" + line + "int x;\n"
    assert found[tmp_path / "a.py"].decode() == f"#!/usr/bin/env python3\n#{line}" + "\"\"\"What it is.\"\"\"\n"
    for path, text in found.items():
        path.write_bytes(text)
    assert spdx.lacking(tmp_path) == {}
