# SPDX-License-Identifier: Apache-2.0
"""Twenty clients of one page's server while a training is ingested: no error, and nothing is lost.

RANKPROBE_VIEW_LOAD_SECONDS=60 for a figure of docs/view.md; printed with -s.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import time
import urllib.parse

CLIENTS = 20
SECONDS = float(os.environ.get("RANKPROBE_VIEW_LOAD_SECONDS", "10"))


def _client(view, run: str, until: float) -> list[tuple[str, float]]:
    place = urllib.parse.urlsplit(view.origin)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    requests = [("ControlService/ListAgents", {"run": run}), ("ArchiveService/ListRuns", {}), ("ControlService/ListEvents", {"run": run}),
                ("ArchiveService/QueryGrid", {"run": run, "rows": "GRID_ROWS_RANK", "statistic": "Max"}),
                ("ArchiveService/ListCalls", {"run": run, "step": "2", "rank": "1", "context": True})]
    took: list[tuple[str, float]] = []
    while time.monotonic() < until:
        method, body = requests[len(took) % len(requests)]
        began = time.monotonic()
        connection.request("POST", f"/api/v1/{method}", json.dumps(body),
                           {"Content-Type": "application/json", "Authorization": f"Bearer {view.token}", "Origin": view.origin})
        answer = connection.getresponse()
        text = answer.read()
        took.append((method, time.monotonic() - began))
        assert answer.status == 200 and b'"error"' not in text, (method, answer.status, text[-300:])
    connection.close()
    return took


def test_twenty_clients_while_a_training_is_ingested(view, training, collector) -> None:
    until = time.monotonic() + SECONDS
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        took = [one for client in [pool.submit(_client, view, training, until) for _ in range(CLIENTS)] for one in client.result()]
    for method in sorted({method for method, _ in took}):
        times = sorted(seconds for of, seconds in took if of == method)
        print(f"{method}: {len(times)} requests, median {times[len(times) // 2] * 1e3:.1f} ms, p99 {times[int(len(times) * .99)] * 1e3:.1f} ms")
    assert len(took) > CLIENTS
    lost = [line for line in map(json.loads, collector.cli("ledger", "--run", training, "--json", check=False).stdout.splitlines())
            if line.get("state") == "STATE_GAPS"]
    assert lost == []
