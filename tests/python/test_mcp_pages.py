# SPDX-License-Identifier: Apache-2.0
"""rankprobe mcp without the package mcp: what its tools say, in pages of 4 kB. A real client speaks with it in tests/tools."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Iterator

import numpy
import pytest

import harness
import rankprobe
from rankprobe import mcp
from test_doctor import clean

TOOLS = {tool.name: tool for tool in (*mcp.TOOLS, *mcp.WRITING_TOOLS)}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mcp.Answers]:
    """Of a collector that holds the run r: 70 steps of 40 calls."""
    collector = harness.Collector(tmp_path_factory.mktemp("mcp")).start()
    session = rankprobe.Session(collector.address, run="r", rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    for _ in range(70):
        session.start()
        for i in range(40):
            session.call("Torch", f"function_{i}", [numpy.full(4, i + 0.123456789, "f")], [numpy.ones(4, "f")])
        session.stop()
        session.step()
    session.close()
    yield mcp.Answers(collector.address, "")
    assert collector.stop() == 0


def ask(answers: mcp.Answers, tool: str, **arguments: object) -> dict:
    text, wrong = mcp.answer(answers, TOOLS, tool, arguments)
    assert not wrong and len(text.encode()) <= mcp.MOST_BYTES, text
    return json.loads(text)


def refused(answers: mcp.Answers, tool: str, **arguments: object) -> str:
    text, wrong = mcp.answer(answers, TOOLS, tool, arguments)
    assert wrong and len(text) < mcp.MOST_BYTES // 2
    return text


def test_pages_hold_all_and_each_is_small(answers) -> None:
    page = ask(answers, "query", run="r", of="all")
    assert page["steps"] == 70 and page["rows_shown"] == 80
    rows, seen = page["rows_of_values"], 1
    while "more" in page:
        page = ask(answers, "query", run="r", of="all", cursor=page["more"])
        rows += page["rows_of_values"]
        seen += 1
    assert seen > 3
    assert len({row["name"] for row in rows}) == 80 and sum(len(row["values"]) for row in rows) == 80 * 70
    assert [row["steps"] for row in rows[:2]] == [list(range(60)), list(range(60, 70))], "a long row is in pieces"
    assert {value for row in rows if row["name"].startswith("Torch.function_7.0.forward.input") for value in row["values"]} == {14.247}
    # A server that was started again has the same page.
    again = mcp.Answers(answers._collector, "")
    first = ask(answers, "query", run="r", of="all")
    assert ask(again, "query", run="r", of="all", cursor=first["more"]) == ask(answers, "query", run="r", of="all", cursor=first["more"])


def test_each_tool_answers(answers) -> None:
    assert [run["run"] for run in ask(answers, "runs")["runs"]] == ["r"]
    assert ask(answers, "diagnose", input="run:r")["healthy"]
    assert ask(answers, "scan", run="r", match="Torch*", from_step=2)["steps"] == 68
    assert ask(answers, "query", run="r", names=True, limit=3)["names"][0]["name"].startswith("Torch.function_")
    assert ask(answers, "query", run="r", over_ranks=True, limit=1)["rows_of_values"][0]["median"]
    assert ask(answers, "explain", run="r", call="function_1")
    assert ask(answers, "first_divergence", target="run:r@0", reference="run:r@1")["calls_compared"] == 40


@pytest.mark.parametrize("name, arguments, said", [
    ("scna", {}, "did you mean scan?"), ("scan", {}, "scan needs run: the name of a run, as the tool runs lists it"),
    ("scan", {"rum": "r"}, "scan has no argument rum; did you mean run?"), ("scan", {"run": 3}, "run: 3 is not of type string"),
    ("scan", {"run": "r", "from_step": -1}, "not within 0"), ("scan", {"run": "r", "from_step": True}, "is not of type integer"),
    ("query", {"run": "r", "rows": "layer"}, 'rows: "layer" is none of value, call, module, rank'),
    ("query", {"run": "r", "limit": 100000}, "within 0 and 1000"),
    ("query", {"run": "r", "names": True, "over_ranks": True}, "correct the argument that is named"),
    ("scan", {"run": "r", "ranks": "x"}, "--ranks"), ("scan", {"run": "r", "match": "--force"}, "begins with -"),
    ("diagnose", {"input": "--html=/tmp/x"}, "begins with -"), ("diagnose", {"input": "run:"}, "there are: r; call the tool runs"),
    ("scan", {"run": "nosuch"}, "call the tool runs"), ("diagnose", {"input": "run:nosuch"}, "nosuch"),
    ("scan", {"run": "r\n"}, "control characters"), ("scan", {"run": "r", "match": "nosuchlayer"}, "nothing to scan"),
    ("query", {"run": "r", "cursor": "abc.1"}, "is not of this question"), ("query", {"run": "r", "cursor": ""}, "cursor: is empty"),
    ("enable", {"run": "r", "for_steps": 5000}, "within 0 and 1000"), ("enable", {"run": "r"}, "enable needs for_steps")])
def test_an_error_says_what_to_do(answers, name: str, arguments: dict, said: str) -> None:
    assert said in refused(answers, name, **arguments)


def test_no_collector_is_said() -> None:
    assert "ask the operator to start the collector" in refused(mcp.Answers("127.0.0.1:9", ""), "runs")


@pytest.mark.parametrize("document", [
    {"findings": [{"what": "é" * 9000, "numbers": ["x" * 5000] * 50}] * 3, "healthy": ["a"] * 2000}, {}, {"a": {}, "b": ["", None]},
    {"long": "y" * 9000, "list": [{f"key{i}": list(range(40)) for i in range(300)}]}])
def test_whatever_a_document_holds_its_pages_are_small(document: dict) -> None:
    found = mcp.pages(document)
    assert found and all(len(json.dumps(page, ensure_ascii=False).encode()) <= mcp.MOST_BYTES - 200 for page in found)
    assert sum(len(page.get("healthy", [])) for page in found) == len(document.get("healthy", []))
    assert sum(len(page.get("findings", [])) for page in found) == len(document.get("findings", []))


def run(*words: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([harness.BIN / "rankprobe", "mcp", *map(str, words)], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, env=clean(RANKPROBE_PYTHON=sys.executable, PYTHONPATH=str(harness.BUILD / "python"), **environment))


def test_who_may_switch_recording(tmp_path) -> None:
    empty = tmp_path / "token"
    empty.touch()
    assert "needs an operator's token" in run("--allow-enable").stderr
    assert "there is none" in run("--allow-enable").stderr and "has no token" in run("--allow-enable", "--token-file", empty).stderr
    assert "No such file" in run("--allow-enable", "--token-file", tmp_path / "nosuch").stderr
    assert "needs --allow-enable" in run("--token-file", empty).stderr
    assert all(one.returncode == 2 for one in (run("--allow-enable"), run("--token-file", empty), run("--bogus")))
    assert {tool.verb for tool in mcp.TOOLS} == {"runs", "diagnose", "scan", "query", "first-divergence", "explain"}, "they only read"


def test_the_guide_is_a_skill_and_names_tools_and_arguments_that_there_are() -> None:
    text = run("--skill").stdout
    head, body = text.split("---\n", 2)[1:]
    assert "name: rankprobe\n" in head and "description: " in head and len(head) < 1024
    assert body.strip() == mcp.skill_text() and text == mcp.SKILL.read_text()
    assert all(f"`{tool.name}`" in body for tool in mcp.TOOLS)
    named = set(re.findall(r"`([a-z_]+)`", body)) | {word for word in re.findall(r"`([a-z_]+):", body)}
    fields = {field.name for tool in TOOLS.values() for field in tool.fields} | {"cursor", "more", "sure", "command", "code_line", "unjudged"}
    assert named - fields - set(TOOLS) == set()


@pytest.mark.parametrize("verb", ["sink", "mcp"])
def test_documents_help_and_program_have_the_same_flags(verb: str) -> None:
    """The native program hands these verbs on, so the tests of documents cannot ask it for their flags."""
    program = set(re.findall(r"--[a-z-]+", subprocess.run([sys.executable, "-m", f"rankprobe.{verb}", "--help"], capture_output=True, text=True,
                                                          timeout=60, check=True).stdout))
    page = (harness.ROOT / "docs" / {"sink": "sinks.md", "mcp": "agents.md"}[verb]).read_text()
    ours = "\n".join(line for line in page.splitlines() if not line.startswith(("rankprobed ", "| ---")))
    named = set(re.findall(r"(?<![\w-])--[a-z-]+", ours))
    assert named and named <= program
    completion = subprocess.run([harness.BIN / "rankprobe", "--dump-help=man"], capture_output=True, text=True, timeout=60, check=True).stdout
    section = re.search(rf"^\\fB{verb}\b.*?(?=^\\fB[a-z_-]+\\fR|^\.SH)", completion.replace("\\-", "-"), re.DOTALL | re.MULTILINE)
    assert section is not None and set(re.findall(r"--[a-z-]+", section[0])) <= program | {"--json"}
