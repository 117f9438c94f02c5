#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of attacks in tests/attack/README.md, from the ids in the tests' names, docstrings and parameters.

    tests/attack/table.py           prints it
    tests/attack/table.py --write   puts it into tests/attack/README.md
"""

import ast
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
DOC = HERE / "README.md"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"
ID = re.compile(r"(?<![A-Za-z0-9])[A-Z]\d{2}[a-z]?(?![0-9A-Za-z])")


def tests():
    """(ids, what is asserted, file::test) of each test that names an id."""
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            text = (ast.get_docstring(node) or "").strip()
            cases = [c.value for d in node.decorator_list for c in ast.walk(d)
                     if isinstance(c, ast.Constant) and isinstance(c.value, str)]
            ids = sorted(set(ID.findall(" ".join([node.name.replace("_", " "), text, *cases]))))
            if ids:
                words = [w for w in node.name.split("_")[1:] if not ID.fullmatch(w)]
                yield ids, " ".join(words), f"{path.name}::{node.name}"


def table() -> str:
    rows = sorted((attack, what, where) for ids, what, where in tests() for attack in ids)
    lines = ["| id | holds because a test shows: | in tests/attack |", "| --- | --- | --- |"]
    lines += [f"| {attack} | {what} | {where.split('::')[0]} |" for attack, what, where in rows]
    return "\n".join(lines)


def main() -> None:
    if "--write" not in sys.argv[1:]:
        print(table())
        return
    text = DOC.read_text()
    before, rest = text.split(BEGIN)
    DOC.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
