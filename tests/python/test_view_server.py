# SPDX-License-Identifier: Apache-2.0
"""rankprobe view: the page's server in front of a real collector with a recorded run."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any, Iterator

import pytest

import harness
from page_client import PageClient

torch = pytest.importorskip("torch")

STEPS, BAD = 4, 2
SCRIPT = textwrap.dedent("""
    import sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    steps, bad = int(sys.argv[2]), int(sys.argv[3])
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    for step in range(steps):
        debugger.start(model=net)
        x = torch.full((2, 4), 1.0 + step)
        if step >= bad:
            x[0, 0] = float("nan")
        net(x).sum().backward()
        debugger.stop()
        debugger.step()
""")


class View(PageClient):
    """`rankprobe view`, and a client with the token of its address."""

    def __init__(self, collector: str, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [harness.BIN / "rankprobe", "view", "--collector", collector, *flags], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        self.line = self.process.stdout.readline()
        if "--json" in flags:
            self.line = json.loads(self.line)["address"]
        origin, _, token = self.line.strip().partition("/#token=")
        super().__init__(origin or "http://127.0.0.1:0", token)

    def end(self, number: int = signal.SIGTERM) -> tuple[str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return out, err


@pytest.fixture
def start_view() -> Iterator[Any]:
    started: list[View] = []

    def start(collector: str, *flags: str, **keywords: Any) -> View:
        started.append(View(collector, "--no-open", *flags, **keywords))
        return started[-1]

    yield start
    for view in started:
        if view.process.poll() is None:
            view.end()


@pytest.fixture
def recorded(dump, collector):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, dump.config(level="mix"), str(STEPS), str(BAD)], capture_output=True, text=True,
        timeout=180, env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "shown", "RANK": "0",
                          "WORLD_SIZE": "1"})
    assert done.returncode == 0, done.stderr
    return collector


def test_it_serves_on_when_it_was_stopped_and_goes_on(start_view):
    """Ctrl-Z and fg, or a virtual machine that was frozen: it ended, with exit code 0."""
    view = start_view("127.0.0.1:1")
    view.process.send_signal(signal.SIGSTOP)
    os.waitpid(view.process.pid, os.WUNTRACED)
    view.process.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        view.process.wait(timeout=0.5)
    assert view.ask("GET", "/").status == 200
    view.end()



def test_the_page_and_its_files(start_view, collector) -> None:
    view = start_view(collector.address)
    assert view.line == f"http://127.0.0.1:{view.port}/#token={view.token}\n"
    assert len(view.token) == 32 and int(view.token, 16) >= 0
    page = view.ask("GET", "/")
    text = page.read().decode()
    assert page.status == 200 and page.getheader("Content-Type") == "text/html; charset=utf-8"
    assert 'src="/assets/app.js"' in text and view.token not in text
    for name, kind in (("app.js", "text/javascript"), ("app.css", "text/css")):
        file = view.ask("GET", f"/assets/{name}")
        assert file.status == 200 and file.getheader("Content-Type").startswith(kind), name
        assert file.getheader("X-Content-Type-Options") == "nosniff"
        file.read()
    for path in ("/assets/", "/assets/none.js", "/assets/../index.html", "/index.html", "/etc/passwd", "/%2e%2e/x"):
        answer = view.ask("GET", path)
        assert answer.status == 404 and json.loads(answer.read())["error"]["code"] == "NOT_FOUND", path
    # One line, then nothing, however it ends.
    assert view.end(signal.SIGINT) == ("", "")


def test_a_run_in_json(start_view, recorded) -> None:
    view = start_view(recorded.address, "--json")
    assert view.about() == {"version": recorded.cli("--version").stdout.split()[1], "collector": recorded.address, "root": "",
                            "jobs": True, "builds": True}
    (run,) = view.call("ArchiveService/ListRuns")["runs"]
    assert run["run"] == "shown" and run["steps"] == str(STEPS)
    steps = view.call("ArchiveService/ListSteps", run="shown")["steps"]
    assert [s["step"] for s in steps] == [str(i) for i in range(STEPS)]
    # Zeros are there, absent optional fields are not.
    assert all(s["lost"] == "0" and s["complete"] and s["rank"] == "0" for s in steps)
    assert view.call("ArchiveService/ListSteps", run="shown", afterStep=str(BAD))["steps"] == steps[BAD + 1:]
    calls = view.call("ArchiveService/ListCalls", run="shown", step=0, rank=0, contains="Module.0.Linear.forward")
    assert [c["entry"] for c in calls] == ["Module.0.Linear.forward.0"]
    ledger = view.call("ArchiveService/GetLedger", run="shown")
    assert [line["state"] for line in ledger] == ["STATE_WHOLE"] * STEPS
    head, *rows = view.call("ArchiveService/QueryGrid", run="shown", rows="GRID_ROWS_MODULE", statistic="Norm")
    assert head["head"]["firstSteps"] == [str(i) for i in range(STEPS)]
    row = {line["row"]["name"]: line["row"] for line in rows}["Module.0.Linear"]
    assert row["cells"][BAD:] == ["NaN"] * (STEPS - BAD) and all(isinstance(c, float) for c in row["cells"][:BAD])
    assert view.call("ArchiveService/Verify")[-1]["finished"] is True
    (agent,) = view.call("ControlService/ListAgents", run="shown")["agents"]
    assert agent["connected"] is False
    assert view.call("ControlService/GetConfig", run="shown")["configJson"]
    assert isinstance(view.call("ControlService/ListEvents")["events"], list)


def test_lines_come_one_by_one(start_view, recorded) -> None:
    view = start_view(recorded.address)
    answer = view.post("ArchiveService/GetLedger", {"run": "shown"})
    assert answer.status == 200 and answer.getheader("Transfer-Encoding") == "chunked"
    assert answer.getheader("Content-Length") is None
    lines = answer.read().splitlines(keepends=True)
    assert len(lines) == STEPS and all(line.endswith(b"\n") for line in lines)
    # Neither an open connection nor a poller of gRPC's keeps who wants to go: the machine may, and not each time.
    took = []
    while not took or (took[-1] >= 8 and len(took) < 3):
        if took:
            view = start_view(recorded.address)
            view.post("ArchiveService/GetLedger", {"run": "shown"}).read()
        began = time.monotonic()
        view.end(signal.SIGINT)
        took.append(time.monotonic() - began)
    assert min(took) < 8, took
    view = start_view(recorded.address)
    assert view.call("ArchiveService/ListCalls", run="shown", step=0, rank=0, contains="no such call") == []


@pytest.mark.parametrize(("method", "request_json", "status", "code", "said"), [
    ("ArchiveService/ListSteps", {"run": "nobody"}, 404, "NOT_FOUND", "nobody"),
    ("ArchiveService/GetLedger", {"run": "nobody"}, 404, "NOT_FOUND", "nobody"),
    ("ArchiveService/QueryGrid", {"run": "nobody"}, 404, "NOT_FOUND", "nobody"),
    ("ArchiveService/ListSteps", {"rnu": "x"}, 400, "INVALID_ARGUMENT", "rnu"),
    ("ArchiveService/ListSteps", b"{", 400, "INVALID_ARGUMENT", "ListStepsRequest"),
    ("ArchiveService/ListSteps", b"[" * 100_000, 400, "INVALID_ARGUMENT", "ListStepsRequest"),
    ("ArchiveService/ListSteps", b"", 400, "INVALID_ARGUMENT", "ListStepsRequest"),
    ("ArchiveService/ListSteps", {"run": "x" * (1 << 20)}, 413, "INVALID_ARGUMENT", "too large"),
    ("ControlService/SetConfig", {"run": "r", "configJson": "{"}, 400, "INVALID_ARGUMENT", "JSON"),
    # What deletes, or writes to the collector's disk, is no business of a page; nor is being a rank.
    ("ArchiveService/Delete", {"run": "x"}, 404, "NOT_FOUND", "no such method"),
    ("ArchiveService/Backup", {}, 404, "NOT_FOUND", "no such method"),
    ("ArchiveService/Export", {"run": "x"}, 404, "NOT_FOUND", "no such method"),
    ("AgentService/Session", {}, 404, "NOT_FOUND", "no such method"),
    ("ArchiveService/ListRuns/", {}, 404, "NOT_FOUND", "no such method"),
    ("", {}, 404, "NOT_FOUND", "no such method"),
])
def test_failures_have_a_reason(start_view, collector, method, request_json, status, code, said) -> None:
    view = start_view(collector.address)
    got = view.error(method, request_json)
    assert got[:2] == (status, code) and said in got[2], got


def test_a_large_config_passes(start_view, collector) -> None:
    """A collector takes 256 KiB from a connection that has asked nothing yet; the page's may be its first."""
    config = {"task": "statistics", "dump_path": "d", "rank": [], "step": [], "level": "mix", "dump_enable": False,
              "statistics": {"list": [f"Torch.op{i}" for i in range(20_000)]}}
    request = {"run": "large", "configJson": json.dumps(config)}
    assert 300_000 < len(json.dumps(request)) < 1 << 20
    view = start_view(collector.address)
    assert view.call("ControlService/SetConfig", **request)["epoch"] == "1"
    assert view.call("ControlService/GetConfig", run="large")["configJson"] == request["configJson"]


def test_who_may_ask(start_view, collector) -> None:
    view = start_view(collector.address)
    method = "ControlService/ListAgents"
    assert view.post(method, {}).status == 200
    assert view.post(method, {}, Origin=view.origin, **{"Sec-Fetch-Site": "same-origin"}).status == 200
    for headers, status in (({"Authorization": "Bearer " + "0" * 32}, 401), ({"Authorization": ""}, 401),
                            ({"Host": "evil.example"}, 403), ({"Host": f"evil.example:{view.port}"}, 403),
                            ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403),
                            ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Content-Type": "text/plain"}, 415)):
        assert view.error(method, {}, **headers)[0] == status, headers
    # A token is of one start.
    assert start_view(collector.address).token != view.token


def test_without_a_collector_the_page_is_there(start_view, start_collector) -> None:
    collector = start_collector()
    collector.stop()
    view = start_view(collector.address)
    assert view.ask("GET", "/").status == 200
    for method in ("ArchiveService/ListRuns", "ArchiveService/GetLedger"):
        status, code, said = view.error(method, {})
        assert (status, code) == (503, "UNAVAILABLE") and f"no rankprobe collector answers at {collector.address}" in said
    # The same page goes on when it comes.
    collector.start()
    harness.wait_for(lambda: view.post("ArchiveService/ListRuns", {}).status == 200, 30, "the collector to be found")


def test_roles_are_the_collectors(start_view, start_collector, tmp_path: pathlib.Path) -> None:
    secrets = {"operator": "0e" * 16, "viewer": "7f" * 16}
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{role} {role}s-name {token}\n" for role, token in secrets.items()))
    tokens.chmod(0o600)
    collector = start_collector("--token-file", tokens)
    views = {}
    for role, token in {**secrets, "nobody": "00" * 16}.items():
        file = tmp_path / f"{role}.token"
        file.write_text(token)
        file.chmod(0o600)
        views[role] = start_view(collector.address, "--token-file", str(file))
    switches = (("ControlService/SetDumpEnable", {"run": "job", "enable": True}),
                ("ControlService/SetConfig", {"run": "job", "configJson": "{}"}),
                ("ControlService/SetTriggers", {"run": "job"}), ("ControlService/ShipFlight", {"run": "job"}))
    for method, request in switches:
        status, code, said = views["viewer"].error(method, request)
        assert (status, code) == (403, "PERMISSION_DENIED") and "operator" in said, method
        assert views["nobody"].error(method, request)[:2] == (401, "UNAUTHENTICATED")
    assert views["viewer"].call("ArchiveService/ListRuns") == {"runs": [], "truncated": False}
    assert views["viewer"].error("ArchiveService/GetLedger", {"run": "job"})[0] == 404
    assert views["operator"].call("ControlService/SetTriggers", run="job") == {"ranks": "0"}
    audit = [json.loads(line) for line in (collector.data_dir / "audit.jsonl").read_text().splitlines()]
    assert {(line["actor"], line["action"]) for line in audit} == {("operators-name", "SetTriggers")}
    # The server is the user's own: a viewer's jobs are processes of his, and read as he may. Who may not read has jobs that say so.
    for role, said in (("viewer", 'no run named "job"'), ("operator", 'no run named "job"'), ("nobody", "token")):
        assert "caller" not in views[role].about()
        job = views[role].call("JobStart", command="export", options={"run": "job"})["id"]
        harness.wait_for(lambda: views[role].call("JobGet", id=job)["state"] == "JOB_STATE_FAILED", 60, "the end of the job")
        assert said in views[role].call("JobGet", id=job)["messages"], role


@pytest.mark.parametrize(("flags", "code", "said"), [
    (["--port", "{taken}"], 5, "cannot listen on 127.0.0.1:{taken}: Address already in use"),
    (["--port", "65536"], 2, "--port"),
    (["--port", "x"], 2, "--port"),
    (["--collector", "nowhere"], 2, "--collector"),
])
def test_a_start_that_cannot_be(start_view, collector, flags, code, said) -> None:
    taken = start_view(collector.address).port
    done = subprocess.run([harness.BIN / "rankprobe", "view", "--no-open", *(f.format(taken=taken) for f in flags)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == code and said.format(taken=taken) in done.stderr, done
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1


def test_a_browser_gets_a_file_and_no_token_on_its_command_line(collector, tmp_path: pathlib.Path) -> None:
    tool = tmp_path / "xdg-open"
    tool.write_text(f'#!/bin/sh\necho "$#" "$1" >{tmp_path}/opened.tmp\ncat "$1" >{tmp_path}/page\n'
                    f'stat -c %a "$1" "${{1%/*}}" >>{tmp_path}/opened.tmp\nmv {tmp_path}/opened.tmp {tmp_path}/opened\n')
    tool.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DISPLAY": ":99", "TMPDIR": str(tmp_path)}
    view = View(collector.address, environment=environment)
    harness.wait_for((tmp_path / "opened").exists, 30, "the browser")
    (count, path), *modes = [line.split() for line in (tmp_path / "opened").read_text().splitlines()]
    assert count == "1" and view.token not in path and modes == [["640"], ["700"]]
    assert f'url={view.origin}/#token={view.token}"' in (tmp_path / "page").read_text()
    view.end()
    assert not pathlib.Path(path).exists()
    # Without a display, nothing is opened.
    (tmp_path / "opened").unlink()
    for flags, display in ((("--no-open",), ":99"), ((), "")):
        quiet = View(collector.address, *flags, environment={**environment, "DISPLAY": display, "WAYLAND_DISPLAY": ""})
        quiet.ask("GET", "/").read()
        quiet.end()
    assert not (tmp_path / "opened").exists()
