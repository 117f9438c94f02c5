# SPDX-License-Identifier: Apache-2.0
"""An agent's client of the real package mcp, over stdio: it finds the cause of published bugs (tests/realbugs) in at most 10 calls each."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Awaitable, Callable

import anyio
import pytest
from mcp import Client, StdioServerParameters

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "realbugs"))
import run as realbugs

MOST_BYTES, MOST_CALLS = 4096, 10
# What the place of the answer holds; with a twin as reference, which no rule needs.
ALONE = {name: realbugs.EXPECTED[name] for name in (
    "p01", "p02", "p06", "p11", "p12", "p14", "p15", "p25", "p28", "p29", "lost_micro_batches", "never_zeroed", "tie_broken",
    "restored_behind_forward", "labels_not_shifted", "mask_missing", "batch_repeated")}
WITH_TWIN = {"p17": "p17_router_bias_bf16.py:16", "p20": "p20_kv_stale_block.py:42", "p26": "Functional.embedding.0.backward"}


class Agent:
    """Counts its calls, and finds each answer small."""

    def __init__(self, client: Client) -> None:
        self.client, self.calls = client, 0

    async def ask(self, name: str, **arguments: Any) -> Any:
        self.calls += 1
        result = await self.client.call_tool(name, arguments)
        (content,) = result.content
        assert len(content.text.encode()) <= MOST_BYTES
        return content.text if result.is_error else json.loads(content.text)

    async def solve(self, run: str) -> str:
        """As SKILL.md has it: from coarse to fine, until something is exact."""
        page = await self.ask("runs")
        names = {one["run"] for one in page["runs"]}
        while "more" in page:
            page = await self.ask("runs", cursor=page["more"])
            names |= {one["run"] for one in page["runs"]}
        answer = await self.ask("diagnose", input=f"run:{run}")
        findings = answer.get("findings", [])
        if findings and findings[0]["sure"] == "exact":
            return json.dumps(findings[0])
        bad, good = f"{run[:-3]}-x1", f"{run[:-3]}-x0"
        if {bad, good} <= names:
            for step in (0, 1, 12):
                parts = await self.ask("first_divergence", target=f"run:{bad}@{step}", reference=f"run:{good}@{step}")
                if parts.get("origins"):
                    return json.dumps(parts["origins"][0])
        # Worth a look: its numbers around the step are looked at.
        first = findings[0]
        numbers = await self.ask("query", run=run, match=first["name"], of="all", from_step=max(0, first.get("step", 0) - 2),
                                 to_step=first.get("step", 0) + 2)
        assert numbers["rows_of_values"]
        return json.dumps(first)


def talk(collector: str, conversation: Callable[[Agent], Awaitable[None]], *flags: str, **environment: str) -> None:
    server = StdioServerParameters(command=str(harness.BIN / "rankprobe"), args=["mcp", "--collector", collector, *flags],
                                   env={"PYTHONPATH": os.environ["PYTHONPATH"], "RANKPROBE_PYTHON": sys.executable, **environment})

    async def main() -> None:
        async with Client(server, read_timeout_seconds=120) as client:
            await conversation(Agent(client))

    anyio.run(main)


def test_tools_and_guide(collector) -> None:
    async def conversation(agent: Agent) -> None:
        tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
        assert set(tools) == {"runs", "diagnose", "scan", "query", "first_divergence", "explain"}
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert tools["scan"].input_schema["required"] == ["run"]
        assert "Go from coarse to fine" in (agent.client.instructions or "")
        assert "there is no tool enable" in await agent.ask("enable", run="train/1", for_steps=1)
        assert (await agent.ask("diagnose", input="run:train/1"))["findings"][0]["step"] == 7

    talk(collector.address, conversation)


def test_bad_arguments_say_what_to_do(collector) -> None:
    async def conversation(agent: Agent) -> None:
        assert "scan needs run: the name of a run, as the tool runs lists it" == await agent.ask("scan")
        assert "did you mean from_step?" in await agent.ask("scan", run="train/1", fromstep=3)
        said = await agent.ask("scan", run="nosuch")
        assert "train/1" in said and "call the tool runs" in said
        assert "is not of type string" in await agent.ask("diagnose", input=["run:train/1"])

    talk(collector.address, conversation)


def test_recording_is_switched_only_where_the_operator_allowed_it(tmp_path) -> None:
    operator, viewer = tmp_path / "operator", tmp_path / "viewer"
    operator.write_text("o" * 32)
    viewer.write_text("v" * 32)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operator op {'o' * 32}\nviewer view {'v' * 32}\n")
    for file in (operator, viewer, tokens):
        file.chmod(0o600)
    collector = harness.Collector(tmp_path / "collector", "--token-file", tokens).start()
    as_operator = {"RANKPROBE_TOKEN_FILE": str(operator)}
    collector.cli("disable", "--create", "--run", "train", check=False, environment=as_operator)

    def is_on() -> bool:
        return json.loads(collector.cli("config", "get", "--run", "train", "--json", environment=as_operator).stdout)["enabled"]

    async def allowed(agent: Agent) -> None:
        tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
        assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == {"enable", "disable"}
        assert "no run named nosuch" in (await agent.ask("enable", run="nosuch", for_steps=2)).replace('"', "")
        assert "within 0 and 1000" in await agent.ask("enable", run="nosuch", for_steps=9999)
        assert isinstance(await agent.ask("runs"), dict), "a viewer may see them"
        assert isinstance(await agent.ask("enable", run="train", for_steps=2), dict) and is_on()
        assert isinstance(await agent.ask("disable", run="train"), dict) and not is_on()

    async def refused(agent: Agent) -> None:
        assert "view has the role viewer; SetDumpEnable needs operator" in await agent.ask("enable", run="train", for_steps=2)

    try:
        talk(collector.address, allowed, "--allow-enable", "--token-file", str(operator), RANKPROBE_TOKEN_FILE=str(viewer))
        talk(collector.address, refused, "--allow-enable", "--token-file", str(viewer), RANKPROBE_TOKEN_FILE=str(viewer))
    finally:
        assert collector.stop() == 0


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory):
    """A collector, and record(name), which runs a program of tests/realbugs with its bug."""
    directory = tmp_path_factory.mktemp("realbugs")
    collector = harness.Collector(directory).start()
    python = os.environ["RANKPROBE_TORCH_PYTHON"]
    environment = {**os.environ, "RANKPROBE_COLLECTOR": collector.address, "OMP_NUM_THREADS": "1", "RANKPROBE_PYTHON": python}

    def record(name: str, kind: str, bug: bool, *flags: str) -> str:
        ranks = realbugs.RANKS.get(name, 1)
        launch = [python] if ranks == 1 else [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        done = subprocess.run([harness.BIN / "rankprobe", "run", "--run", f"{name}-{kind}{int(bug)}", *flags, "--", *launch, realbugs.program_of(name)],
                              cwd=directory, capture_output=True, text=True, timeout=300,
                              env={**environment, "BUG": str(int(bug)), "CASE": name, **({"STEPS": "14"} if kind == "x" else {})})
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
        return f"{name}-{kind}{int(bug)}"

    (directory / "mix.json").write_text(json.dumps(realbugs.MIX))
    yield collector, record
    assert collector.stop() == 0


@pytest.mark.parametrize("name", [*ALONE, *WITH_TWIN])
def test_the_cause_of_a_published_bug_is_found_in_ten_calls(archive, name: str) -> None:
    collector, record = archive
    run = record(name, "m", True, "--monitor", "--every", "1")
    if name in WITH_TWIN:
        for bug in (True, False):
            record(name, "x", bug, "--config", "mix.json", "--on")

    async def conversation(agent: Agent) -> None:
        found = await agent.solve(run)
        assert (ALONE | WITH_TWIN)[name] in found, found
        assert agent.calls <= MOST_CALLS

    talk(collector.address, conversation)
