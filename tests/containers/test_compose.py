# SPDX-License-Identifier: Apache-2.0
"""docker-compose.yml, typed as its head says, in podman-compose."""

from __future__ import annotations

import json
import pathlib
import shlex

import pytest

import conftest
from conftest import ROOT, Collector, podman
from polling import wait_for

PROJECT = "rankprobe-test"


def compose(*words: str, **options):
    return conftest.command("podman-compose", "-p", PROJECT, "-f", "docker-compose.yml", *words, **options)


def head_of_the_file() -> list[list[str]]:
    """The commands in the comment that begins docker-compose.yml."""
    lines = (ROOT / "docker-compose.yml").read_text().splitlines()
    return [shlex.split(line[1:])[2:] for line in lines if line.startswith("#   docker compose ")]


@pytest.fixture(scope="module")
def up():
    """The services, with the image that the stage has built; none of them afterwards."""
    assert conftest.left_over() == []
    first, *_, last = head_of_the_file()
    assert first == ["up", "--build", "-d"] and last == ["down", "--volumes"]
    try:
        compose("up", "-d")
        yield Collector(f"{PROJECT}_collector_1")
    finally:
        compose(*last, check=False)
        left = conftest.left_over()
        for line in left:
            kind, name = line.split()
            podman(kind, "rm", "--force", name, check=False)
    # podman-compose 1.0.3 leaves the network and the trainers' nameless volumes, which Docker would take away.
    assert not [line for line in left if line.startswith("container") or f" {PROJECT}_archive" in line], left


def test_ranks_of_two_containers_are_switched_and_exported(up: Collector):
    wait_for(lambda: up.cli("runs", check=False).returncode == 0, 60, "the collector")
    # What Docker and Podman ask before they call it healthy.
    podman("healthcheck", "run", up.container)
    wait_for(lambda: up.connected("compose") == {0, 1}, 120, "both ranks")
    hosts = {agent["identity"]["host"] for agent in up.ranks("compose").values()}
    assert hosts == {"trainer0", "trainer1"}
    wait_for(lambda: up.step("compose") > 2, 120, "training")
    typed = {words[3]: words[2:] for words in head_of_the_file() if words[:2] == ["exec", "collector"]}
    assert set(typed) == {"status", "enable", "export"}
    assert up.cli(*typed["status"][1:]).stdout.count("trainer") == 2
    up.cli(*typed["enable"][1:])
    first = up.step("compose")
    wait_for(lambda: up.step("compose") > first + 6, 120, "the steps that are recorded")
    up.cli(*typed["export"][1:])
    tree = typed["export"][typed["export"].index("-o") + 1]
    found = podman("exec", up.container, "find", tree, "-name", "dump.json").stdout.split()
    assert len({pathlib.Path(f).parts[-3] for f in found}) == 3 and len(found) == 6, found
    data = json.loads(podman("exec", up.container, "cat", found[0]).stdout)["data"]
    assert any(name.startswith("Module.") for name in data), sorted(data)[:5]


def test_a_killed_trainer_is_gone_and_nothing_else(up: Collector):
    wait_for(lambda: up.connected("compose") == {0, 1}, 120, "both ranks")
    records = up.cli("ledger", "--run", "compose", "--json").stdout
    podman("kill", "--signal", "KILL", f"{PROJECT}_trainer1_1")
    wait_for(lambda: 1 not in up.connected("compose"), 120, "the collector to miss rank 1")
    assert "gone" in up.cli("status", "--run", "compose").stdout
    events = up.cli("events", "--run", "compose").stdout
    assert "rank 1" in events, events
    up.cli("verify", "--read-data")
    assert up.cli("ledger", "--run", "compose", "--json").stdout.count("stored") >= records.count("stored")
    podman("healthcheck", "run", up.container)


def test_a_collector_that_is_made_anew_has_its_archive(up: Collector):
    before = json.loads(up.cli("runs", "--json").stdout)
    podman("stop", "--time", "60", up.container)
    assert podman("inspect", "--format", "{{.State.ExitCode}}", up.container).stdout.strip() == "0"
    podman("start", up.container)
    wait_for(lambda: up.cli("runs", check=False).returncode == 0, 60, "the collector")
    after = json.loads(up.cli("runs", "--json").stdout)
    assert [r["run"] for r in after["runs"]] == [r["run"] for r in before["runs"]] and after["runs"]
