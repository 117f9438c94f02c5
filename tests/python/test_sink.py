# SPDX-License-Identifier: Apache-2.0
"""rankprobe sink: events of a real collector arrive at a webhook at least once, and secrets in no message. W&B, MLflow, TensorBoard and
OpenTelemetry are in tests/tools."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any, Iterator

import pytest

import harness
from rankprobe import _sinks, sink

torch = pytest.importorskip("torch")

SCRIPT = textwrap.dedent("""
    import sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    for step in range(8):
        debugger.start(model=net)
        batch = torch.ones(4, 6)
        if step == 5:
            batch[0, 0] = float("nan")
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    debugger.close()
""")
RULES = {"rules": [{"name": "nan", "non_finite": {}, "raise_to": "EVIDENCE_NONE"}]}
SECRET = "T0/B0/sEcReT"


def train(collector: harness.Collector, directory: pathlib.Path, run: str) -> None:
    """A run with a NaN in step 5, whose end the collector knows."""
    config = directory / f"{run}.json"
    config.write_text(json.dumps({"task": "monitor", "dump_path": str(directory / "dump"), "monitor": {"every": 1}}))
    subprocess.run([sys.executable, "-c", SCRIPT, str(config)], check=True, timeout=240,
                   env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", "RANKPROBE_RUN": run, "RANKPROBE_COLLECTOR": collector.address})
    harness.wait_for(lambda: "KIND_DISCONNECTED" in collector.cli("events", "--run", run, "--json").stdout, 60, f"the end of {run}")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Collector]:
    directory = tmp_path_factory.mktemp("sink")
    rules = directory / "rules.json"
    rules.write_text(json.dumps(RULES))
    collector = harness.Collector(directory, "--triggers", rules).start()
    train(collector, directory, "train")
    yield collector
    assert collector.stop() == 0


class Hook:
    """A webhook: `bodies` has what it took; `answers` are the next statuses, 200 behind them, 0 for none."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        self.tries = 0
        self.answers: list[int] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.tries += 1
                status = hook.answers.pop(0) if hook.answers else 200
                if status in (0, 200):
                    hook.bodies.append(body)
                    hook.tokens.append(self.headers.get("Authorization", ""))
                if status == 0:  # taken, and the answer is lost
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/{SECRET}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def items(self) -> list[dict[str, Any]]:
        return [item for body in self.bodies for item in body["items"]]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    one = Hook()
    yield one
    one.close()


@pytest.fixture
def send(recorded, hook, tmp_path):
    """The command, by the command line, which becomes Python."""

    def run(kind: str, *flags: object, position: str = "position", **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run([harness.BIN / "rankprobe", "sink", kind, "--position", tmp_path / position, "--retry-wait", "0.01", *map(str, flags)],
                              capture_output=True, text=True, timeout=120, env={
                                  **os.environ, "RANKPROBE_COLLECTOR": recorded.address, "RANKPROBE_PYTHON": sys.executable,
                                  "RANKPROBE_SINK_URL": hook.url, **environment})

    return run


def test_events_arrive_once_and_the_next_start_continues(recorded, hook, send, tmp_path) -> None:
    done = send("webhook", "--once", "--run", "train")
    assert done.returncode == 0 and done.stderr == "" and done.stdout == "", done.stderr
    (fired, *others) = hook.items()
    assert (fired["kind"], fired["run"], fired["rank"], fired["step"], fired["rule"], fired["severity"]) == ("trigger", "train", 0, 5, "nan", "error")
    assert fired["text"].startswith("train rank 0 step 5 trigger nan: ") and "NaN" in fired["text"] and fired["time"].endswith("+00:00")
    known = {event["id"] for event in recorded.json("events", "--run", "train")["events"]}
    assert {int(item["id"].rpartition("/")[2]) for item in hook.items()} <= known
    assert not {item["kind"] for item in others} - {"trigger"}, "processes that come and end as they should are no news"
    sent = len(hook.items())
    assert send("webhook", "--once", "--run", "train").returncode == 0 and len(hook.items()) == sent
    train(recorded, tmp_path, "later")
    assert send("webhook", "--once").returncode == 0
    assert {item["run"] for item in hook.items()[sent:]} == {"later"}
    everything = send("webhook", "--once", "--kinds", "all", "--run", "train", position="other")
    assert everything.returncode == 0 and {"connected", "ended"} <= {item["kind"] for item in hook.items()}


def test_what_a_webhook_does_not_take_is_sent_again(hook, send, tmp_path) -> None:
    hook.answers = [500, 429]
    done = send("webhook", "--once", "--run", "train")
    assert done.returncode == 0 and hook.tries == 3 and "answered 500" in done.stderr and "next try in" in done.stderr, done.stderr
    assert SECRET not in done.stderr and "http://127.0.0.1" in done.stderr


def test_what_was_taken_without_an_answer_comes_twice(hook, send) -> None:
    hook.answers = [0]
    assert send("webhook", "--once", "--run", "train").returncode == 0
    assert hook.tries == 2 and hook.bodies[0] == hook.bodies[1]


@pytest.mark.parametrize("answers, flags, tries, said", [
    ([404], [], 1, "answered 404 Not Found; not tried again"), ([302], [], 1, "answered 302"),
    ([503] * 9, ["--retries", "2"], 3, "given up after 3 tries")])
def test_a_webhook_that_refuses_ends_it_and_nothing_is_forgotten(hook, send, answers, flags, tries, said) -> None:
    hook.answers = list(answers)
    done = send("webhook", "--once", "--run", "train", *flags)
    assert done.returncode == 5 and hook.tries == tries and said in done.stderr and "the next start continues here" in done.stderr, done.stderr
    assert SECRET not in done.stderr and "Traceback" not in done.stderr
    hook.answers = []
    assert send("webhook", "--once", "--run", "train").returncode == 0 and hook.items()[0]["kind"] == "trigger"


def test_secrets_come_from_files_and_the_environment(hook, send, tmp_path) -> None:
    place = tmp_path / "url"
    place.write_text(hook.url + "\n")
    place.chmod(0o644)
    done = send("webhook", "--once", "--run", "train", "--url-file", place, RANKPROBE_SINK_URL="", RANKPROBE_SINK_TOKEN="t0ken")
    assert done.returncode == 0 and hook.tokens == ["Bearer t0ken"] and "chmod 600" in done.stderr and SECRET not in done.stderr
    for_a_file = send("webhook", "--url-file", hook.url)
    assert for_a_file.returncode == 2 and "names a file" in for_a_file.stderr and SECRET not in for_a_file.stderr
    flag = send("webhook", f"--url={hook.url}")
    assert flag.returncode == 2 and "there is no flag --url; did you mean --url-file?" in flag.stderr and SECRET not in flag.stderr
    none = send("slack", "--once", RANKPROBE_SINK_URL="")
    assert none.returncode == 2 and "RANKPROBE_SINK_URL, or --url-file FILE" in none.stderr
    odd = send("slack", "--once", RANKPROBE_SINK_URL=SECRET)
    assert odd.returncode == 2 and "https://HOST" in odd.stderr and SECRET not in odd.stderr
    gone = send("webhook", "--once", "--retries", "0", position="gone", RANKPROBE_SINK_URL=f"http://127.0.0.1:9/{SECRET}")
    assert gone.returncode == 5 and "does not answer" in gone.stderr and SECRET not in gone.stderr


def test_the_forms_of_slack_and_teams(hook, send) -> None:
    assert send("slack", "--once", "--run", "train").returncode == 0
    assert hook.bodies[0]["text"].startswith("*rankprobe*\ntrain rank 0 step 5 trigger nan: ")
    assert send("teams", "--once", "--run", "train", position="teams").returncode == 0
    (card,) = hook.bodies[-1]["attachments"]
    assert hook.bodies[-1]["type"] == "message" and card["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert card["content"]["type"] == "AdaptiveCard" and card["content"]["body"][1]["text"].startswith("train rank 0 step 5 trigger nan: ")


def test_an_answer_of_diagnose_is_sent_once_for_what_it_says(hook, send) -> None:
    done = send("webhook", "--once", "--run", "train", "--answers", "--kinds", "error")
    assert done.returncode == 0, done.stderr
    (answer,) = hook.items()
    assert (answer["type"], answer["kind"], answer["sure"], answer["step"]) == ("answer", "diagnosis", "exact", 5)
    assert answer["findings"][0]["command"].startswith("rankprobe ") and "html" not in answer
    assert answer["text"].startswith("diagnose run:train: step 5 rank 0: ")
    assert send("webhook", "--once", "--run", "train", "--answers", "--kinds", "error").returncode == 0 and len(hook.items()) == 1
    assert send("webhook", "--answer", "run:train").returncode == 0 and hook.items()[1]["text"] == answer["text"]
    missing = send("webhook", "--answer", "run:nosuchrun")
    assert missing.returncode == 4 and "nosuchrun" in missing.stderr


def test_an_answer_that_was_not_taken_is_sent_by_the_next_start(hook, send) -> None:
    hook.answers = [404]
    flags = ("webhook", "--once", "--run", "train", "--answers", "--kinds", "error")
    assert send(*flags).returncode == 5 and hook.items() == []
    assert send(*flags).returncode == 0 and [item["kind"] for item in hook.items()] == ["diagnosis"]


@pytest.mark.parametrize("text, said", [("[]", "is not a position"), ("{", "is not a position"), ('{"after": "x"}', "is not a position")])
def test_a_damaged_position_is_said(hook, send, tmp_path, text: str, said: str) -> None:
    (tmp_path / "position").write_text(text)
    done = send("webhook", "--once")
    assert done.returncode == 2 and said in done.stderr and hook.tries == 0


def test_events_of_another_archive_are_sent_from_the_first_on(hook, send, tmp_path) -> None:
    (tmp_path / "position").write_text('{"after": 1000000000}')
    done = send("webhook", "--once", "--run", "train")
    assert done.returncode == 0 and "another archive" in done.stderr and hook.items()[0]["kind"] == "trigger"


def test_it_follows_until_it_is_ended_and_one_position_is_of_one_process(recorded, hook, send, tmp_path) -> None:
    with subprocess.Popen([sys.executable, "-m", "rankprobe.sink", "webhook", "--collector", recorded.address, "--run", "train", "--interval", "0.05",
                           "--position", str(tmp_path / "position")], env={**os.environ, "RANKPROBE_SINK_URL": hook.url},
                          stderr=subprocess.PIPE, text=True) as process:
        harness.wait_for(lambda: hook.items(), 60, "an event")
        second = send("webhook", "--once")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and said == ""
    assert second.returncode == 2 and "in use by another rankprobe sink" in second.stderr


def test_a_collector_that_is_not_there(send) -> None:
    done = send("webhook", "--once", RANKPROBE_COLLECTOR="127.0.0.1:9")
    assert done.returncode == 3 and "127.0.0.1:9" in done.stderr and "Traceback" not in done.stderr
    bad = send("webhook", "--kinds", "nonsense")
    assert bad.returncode == 2 and "expected trigger, difference" in bad.stderr


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert sink.main(["mlflow", "--once", "--position", str(tmp_path / "p")]) == 2
    assert "pip install 'rankprobe[mlflow]'" in capsys.readouterr().err


def test_a_name_is_no_markup_of_a_chat() -> None:
    item = {"text": "run <!channel> a_b & [x](y) -> " + "z" * 900}
    (line,) = _sinks.Slack({}, "https://h/").body([item])["text"].splitlines()[1:]
    assert line.startswith("run &lt;!channel&gt; a_b &amp; [x](y) -&gt; z") and len(line) < 600
    card = _sinks.Teams({}, "https://h/").body([item])["attachments"][0]["content"]["body"][1]["text"]
    assert card.startswith(r"run <!channel> a\_b & \[x\](y) -> z")


@pytest.mark.parametrize("detail, kind", [("the process has ended", "ended"), ("the connection was lost; it was recording", "lost"),
                                          ("the process has ended; 3 records were not delivered", "lost")])
def test_a_process_that_is_lost_is_no_ordinary_end(detail: str, kind: str) -> None:
    event = {"id": 7, "run": "r", "time_unix_ns": 1, "kind": "KIND_DISCONNECTED", "identity": {"rank": None, "pid": 4}, "step": -1, "rule": "",
             "entry": "", "detail": detail, "outcome": ""}
    item = sink.item_of(event, "c")
    assert item["kind"] == kind and item["text"] == f"r proc4 {kind}: {detail}"


def test_names_of_runs_are_names_of_files() -> None:
    names = ["a", "a/b", "a-b", "../x", "-", "é", "a" * 99]
    short = [_sinks._short_name(name) for name in names]
    assert len(set(short)) == len(names) and short[0] == "a" and all(part.strip(".-") and "/" not in part and len(part) < 80 for part in short)


@pytest.mark.parametrize("url, token", [
    ("https://user:PASSWORD@host/x", ""), ("https://host/services/SE CRET", ""), ("https://host:SECRET/x", ""), ("https://host/SECR\u00c9T", ""),
    ("https://host/x", "SECRET\nSECRET"),
])
def test_an_address_or_a_token_that_cannot_be_used_is_not_shown(url: str, token: str, tmp_path: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, "-m", "rankprobe.sink", "webhook", "--once", "--position", tmp_path / "position", "--collector", "127.0.0.1:1"],
                          env={**os.environ, "RANKPROBE_SINK_URL": url, "RANKPROBE_SINK_TOKEN": token}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "SECR" not in done.stderr and "PASSWORD" not in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_token_of_a_mounted_file_may_end_with_a_line_break() -> None:
    from rankprobe._sinks import Webhook

    assert Webhook({}, "https://host/x", "SECRET\n")._token == "SECRET"
