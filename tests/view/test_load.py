# SPDX-License-Identifier: Apache-2.0
"""Twenty clients of one page while a training is ingested, and jobs that are begun and cancelled beside them: no error, and nothing is lost.

RANKPROBE_VIEW_LOAD_SECONDS=60 for the figures of docs/view.md; printed with -s.
"""

from __future__ import annotations

import collections
import concurrent.futures
import http.client
import json
import os
import time
import urllib.parse
from typing import Any

import harness
from conftest import CollectorsPage

CLIENTS = 20
SECONDS = float(os.environ.get("RANKPROBE_VIEW_LOAD_SECONDS", "6"))
OVER = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")


class Client:
    """One connection; how long each of its requests took."""

    def __init__(self, page: Any) -> None:
        place = urllib.parse.urlsplit(page.origin)
        self._connection = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
        self._headers = {"Content-Type": "application/json", "Origin": page.origin,
                         **({} if page.token is None else {"Authorization": f"Bearer {page.token}"})}
        self.took: list[tuple[str, float]] = []

    def ask(self, method: str, body: dict) -> bytes:
        began = time.monotonic()
        self._connection.request("POST", f"/api/v1/{method}", json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        self.took.append((method, time.monotonic() - began))
        # A stream that fails says so in its last line.
        assert answer.status == 200 and not text.rpartition(b"\n{")[2].startswith(b'"error"'), (method, answer.status, text[-300:])
        return text


def _look(page: Any, run: str, until: float) -> list[tuple[str, float]]:
    client = Client(page)
    requests = [("ControlService/ListAgents", {"run": run}), ("ArchiveService/ListRuns", {}), ("ControlService/ListEvents", {"run": run}),
                ("ArchiveService/QueryGrid", {"run": run, "rows": "GRID_ROWS_RANK", "statistic": "Max"}),
                ("ArchiveService/ListCalls", {"run": run, "step": "2", "rank": "1", "context": True})]
    while not client.took or time.monotonic() < until:
        client.ask(*requests[len(client.took) % len(requests)])
    return client.took


def _convert(page: Any, run: str, until: float) -> tuple[list[tuple[str, float]], collections.Counter]:
    """Conversions, three at a time, until the last of them is cancelled; at least one round. How the jobs ended."""
    client = Client(page)
    ended: collections.Counter = collections.Counter()
    round_ = 0
    while round_ == 0 or time.monotonic() < until:
        round_ += 1
        kinds = [("graph_visualize", {"target_path": f"run:{run}@2", "golden_path": f"run:{run}@3"}), ("export", {"run": run, "steps": "0-1"}),
                 ("graph_visualize", {"target_path": f"run:{run}@2", "overflow_check": "true"})]
        # Two are at work at a time: the third waits, or has just begun.
        jobs = [json.loads(client.ask("JobStart", {"command": command, "options": options}))["id"] for command, options in kinds]
        client.ask("JobCancel", {"id": jobs[2]})

        def over() -> bool:
            return all(json.loads(client.ask("JobGet", {"id": job}))["state"] in OVER for job in jobs)

        harness.wait_for(over, 300, "the end of three jobs")
        for job in jobs:
            info = json.loads(client.ask("JobGet", {"id": job}))
            assert info["state"] != "JOB_STATE_FAILED", (info["commandLine"], info["exitCode"], info["messages"])
            ended[info["state"]] += 1
            if info["state"] == "JOB_STATE_DONE":
                assert info["files"], info
            client.ask("JobDelete", {"id": job})
    return client.took, ended


def _tell(of: str, took: list[tuple[str, float]]) -> None:
    for method in sorted({method for method, _ in took}):
        times = sorted(seconds for name, seconds in took if name == method)
        print(f"{of} {method}: {len(times)} requests, median {times[len(times) // 2] * 1e3:.1f} ms, p99 {times[int(len(times) * .99)] * 1e3:.1f} ms")
    print(f"{of}: {len(took)} requests, load {os.getloadavg()[0]:.1f}")


def _is_whole(collector: harness.Collector, run: str) -> None:
    said = collector.cli("ledger", "--run", run, "--json", check=False).stdout.splitlines()
    lines = [line for line in map(json.loads, said) if "state" in line]
    assert lines and [line for line in lines if line["state"] == "STATE_GAPS"] == []


def _newest_step(collector: harness.Collector, run: str) -> int:
    return max(int(agent["step"]) for agent in collector.json("status", "--run", run)["agents"])


def test_twenty_clients_and_jobs_while_a_training_is_ingested(view, training, collector) -> None:
    before = _newest_step(collector, training)
    until = time.monotonic() + SECONDS
    with concurrent.futures.ThreadPoolExecutor(CLIENTS + 1) as pool:
        looks = [pool.submit(_look, view, training, until) for _ in range(CLIENTS)]
        jobs = pool.submit(_convert, view, training, until)
        took = [one for client in looks for one in client.result()]
        asked, ended = jobs.result()
    _tell("view", took)
    _tell("jobs", asked)
    print(f"jobs: {dict(ended)}")
    assert len(took) >= CLIENTS and ended["JOB_STATE_DONE"] > 0 and ended["JOB_STATE_CANCELLED"] > 0
    # The ranks went on meanwhile.
    harness.wait_for(lambda: _newest_step(collector, training) > before, 60, "further steps")
    _is_whole(collector, training)


def test_twenty_clients_of_the_collectors_own_page_while_a_training_is_ingested(training, collector) -> None:
    before = _newest_step(collector, training)
    until = time.monotonic() + SECONDS
    page = CollectorsPage(collector)
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        took = [one for client in [pool.submit(_look, page, training, until) for _ in range(CLIENTS)] for one in client.result()]
    _tell("collector", took)
    harness.wait_for(lambda: _newest_step(collector, training) > before, 60, "further steps")
    _is_whole(collector, training)
