# SPDX-License-Identifier: Apache-2.0
"""docs/config.md and the JSON schema of config.json are what the program prints, and the schema judges as the parser does."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
from typing import Any

import pytest

from conftest import BUILD, ROOT

MARK = "<!-- made by: rankprobe config schema --markdown -->\n"


def printed(*flags: str) -> str:
    return subprocess.run([BUILD / "bin/rankprobe", "config", "schema", *flags], capture_output=True, text=True, timeout=60,
                          check=True).stdout


@pytest.fixture(scope="module")
def schema() -> dict:
    return json.loads(printed())


def test_the_tables_are_what_the_program_prints():
    written, tables = (ROOT / "docs/config.md").read_text().split(MARK)
    assert tables == "\n" + printed("--markdown"), "put the output of `rankprobe config schema --markdown` below the mark"
    assert written.startswith("# config.json\n")


def faults(value: Any, schema: dict, path: str = "") -> list[str]:
    """As far as our schema goes: type, enum, bounds, pattern, items, anyOf, properties."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
    unknown = set(schema) - {"$schema", "title", "description", "default", "examples", "type", "enum", "minimum", "maximum",
                             "pattern", "items", "anyOf", "properties", "required", "additionalProperties"}
    assert not unknown, unknown
    if "anyOf" in schema:
        return [] if any(not faults(value, one) for one in schema["anyOf"]) else [path]
    if "type" in schema:
        if not isinstance(value, kinds[schema["type"]]) or (schema["type"] == "integer" and isinstance(value, bool)):
            return [path]
    bad = "enum" in schema and value not in schema["enum"]
    bad = bad or ("minimum" in schema and value < schema["minimum"]) or ("maximum" in schema and value > schema["maximum"])
    bad = bad or ("pattern" in schema and not re.search(schema["pattern"], value))
    out = [path] if bad else []
    if isinstance(value, list):
        out += [f for i, item in enumerate(value) for f in faults(item, schema.get("items", {}), f"{path}[{i}]")]
    if isinstance(value, dict) and "properties" in schema:
        out += [f"{path}.{key}" for key in schema.get("required", []) if key not in value]
        for key, item in value.items():
            if key in schema["properties"]:
                out += faults(item, schema["properties"][key], f"{path}.{key}")
            elif schema.get("additionalProperties") is False:
                out.append(f"{path}.{key}")
    return out


def test_examples_and_defaults_are_right_by_the_schema(schema: dict):
    def visit(one: dict) -> int:
        seen = 0
        for field in one.get("properties", {}).values():
            for value in [*field.get("examples", []), *([field["default"]] if "default" in field else [])]:
                assert faults(value, field) == []
                seen += 1
            seen += visit(field) + visit(field.get("items", {}))
        return seen

    assert visit(schema) > 60


def test_examples_of_the_page_are_right(schema: dict):
    blocks = re.findall(r"^```json\n(.*?)^```", (ROOT / "docs/config.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    assert [faults(json.loads(block), schema) for block in blocks] == [[]] * len(blocks)


# What only the parser knows: combinations, forms of names, and what is legal elsewhere.
BEYOND = {"bad_rank_range", "bad_data_mode_all", "bad_data_mode_many", "bad_scope_len", "bad_scope_level",
          "bad_scope_mixed_L0", "bad_scope_name"}
ACCEPTED = {"bad_L0_nomodel", "bad_bench_missing", "bad_bench_nomd5", "bad_notjson"}


@pytest.mark.parametrize("path", sorted((ROOT / "tests/golden/invalid_config").iterdir()), ids=lambda p: p.name)
def test_what_the_parser_refuses_the_schema_refuses(path: pathlib.Path, schema: dict):
    found = faults(json.loads((path / "config.json").read_text()), schema)
    if path.name in ACCEPTED | BEYOND:
        assert found == [], found
    else:
        assert found != []


@pytest.mark.parametrize("path", [*sorted((ROOT / "tests/golden/dumps").glob("*/config.json"))], ids=lambda p: p.parts[-2])
def test_what_the_parser_takes_the_schema_takes(path: pathlib.Path, schema: dict):
    assert faults(json.loads(path.read_text()), schema) == []
