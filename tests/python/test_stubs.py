# SPDX-License-Identifier: Apache-2.0
"""The type stubs beside the extensions: py.typed promises them, and nobody else holds them to the code.

pybind11 writes the signature of a function into the first line of its docstring.
"""

from __future__ import annotations

import ast
import importlib
import pathlib
import re

import pytest

import rankprobe

PACKAGE = pathlib.Path(rankprobe.__file__).parent


def members(tree: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Public functions and classes of a stub by name; a property is an AnnAssign or decorated."""
    named = {node.name: node for node in tree if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    named |= {node.target.id: node for node in tree
              if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return {name: node for name, node in named.items() if name == "__init__" or not name.startswith("_")}


def arguments(signature: str) -> list[tuple[str, bool]]:
    """(name, has a default) of each argument in pybind11's text, without self."""
    inside, brackets = signature, 1
    while brackets:  # the innermost first
        inside, brackets = re.subn(r"\[[^\[\]]*\]", "", inside)
    inside = inside[inside.index("(") + 1:inside.rindex(") ->")]
    found = re.findall(r"(\w+): [^=,]+(=)?", inside)
    return [(name, bool(default)) for name, default in found if name != "self"]


def stated(node: ast.FunctionDef) -> list[tuple[str, bool]]:
    names = [argument.arg for argument in node.args.args]
    defaults = [False] * (len(names) - len(node.args.defaults)) + [True] * len(node.args.defaults)
    return [(name, default) for name, default in zip(names, defaults) if name != "self"]


def check(where: str, stub: list[ast.stmt], real: object) -> None:
    said = members(stub)
    there = {name for name in vars(real) if not name.startswith("_")}
    assert set(said) - {"__init__"} == there, where
    for name, node in said.items():
        what = getattr(real, name)
        if isinstance(node, ast.ClassDef):
            # What is no pybind11 type has Python's own members too.
            if "pybind11" in type(what).__name__:
                check(f"{where}.{name}", node.body, what)
        elif isinstance(node, ast.AnnAssign) or node.decorator_list:
            assert isinstance(what, property), f"{where}.{name}"
            assert (what.fset is None) == isinstance(node, ast.FunctionDef), f"{where}.{name}: is it read-only?"
        else:
            assert stated(node) == arguments(what.__doc__.splitlines()[0]), f"{where}.{name}"


@pytest.mark.parametrize("name", ["_native", "_analysis"])
def test_the_stub_names_what_the_extension_has(name: str):
    stub = ast.parse((PACKAGE / f"{name}.pyi").read_text(encoding="utf-8"))
    check(name, stub.body, importlib.import_module(f"rankprobe.{name}"))
