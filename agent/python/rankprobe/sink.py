# SPDX-License-Identifier: Apache-2.0
"""Sends the events of a collector to another program: rankprobe sink KIND [options]

    RANKPROBE_SINK_URL=https://.. rankprobe sink slack --run train --answers
    rankprobe sink mlflow --once
    rankprobe sink webhook --url-file webhook --answer run:train

KIND is webhook, slack, teams, wandb, mlflow, tensorboard or otlp. Each event is sent at least once: the last one that the program
has taken is kept in a file, and the next start continues there. What cannot be sent is tried again some times, and then the
command ends with an error. Addresses of webhooks are secrets: they come from RANKPROBE_SINK_URL or --url-file, a token from
RANKPROBE_SINK_TOKEN; W&B, MLflow and OpenTelemetry have their own variables. A webhook gets {"source": "rankprobe", "text": ..,
"items": [..]}. An item has type (event, answer), id, kind, severity (error, warning, info), run, rank, step, rule, call, time,
unix_time and text; an event detail and outcome, an answer sure, findings and unjudged. Exit status: 0 done, 2 bad usage, 3 no collector,
4 no such run, 5 the program does not take it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
from typing import Any, Callable, Iterator, Sequence

from rankprobe import _command
from rankprobe._recording import answer_text
from rankprobe._sinks import Item, Mlflow, Otlp, Sink, SinkError, Slack, Teams, TensorBoard, Wandb, Webhook
from rankprobe.run import Parser

KINDS = ("trigger", "difference", "budget", "lost", "error", "disk", "switched", "flight", "connected", "ended")
_USUAL = KINDS[:6]
# Kinds of events after which the answer of diagnose may have changed.
_ASKED_AFTER = ("trigger", "difference", "lost", "ended")
_MOST_EVENTS = 10000  # the number of events that a collector keeps
_MOST_RETRY_WAIT = 60.0
_RANKS_EVERY = 15.0
_ORDINARY_END = "the process has ended"
_NAMES = {"TRIGGER_FIRED": "trigger", "DEGRADED": "budget", "CONNECTED": "connected", "SWITCHED": "switched", "FLIGHT_SHIPPED": "flight",
          "DIFFERENCE": "difference", "ERROR": "error", "DISK": "disk"}
_SEVERITY = {"trigger": "error", "difference": "error", "lost": "error", "error": "error", "budget": "warning", "disk": "warning"}
_WEBHOOKS: dict[str, type[Webhook]] = {"webhook": Webhook, "slack": Slack, "teams": Teams}
_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny", "tensorboard": "tensorboard", "otlp": "opentelemetry-exporter-otlp"}


class Stop(Exception):
    """Ends the command with the exit status `code`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def item_of(event: dict[str, Any], collector: str) -> Item:
    """Converts an event of the collector to the item that is sent."""
    kind = _NAMES.get(event["kind"].removeprefix("KIND_"), "error")
    if event["kind"] == "KIND_DISCONNECTED":
        kind = "ended" if event["detail"] == _ORDINARY_END else "lost"
    identity = event.get("identity") or {}
    rank = identity.get("rank")
    who = "" if not identity else f"rank {rank}" if rank is not None else f"proc{identity.get('pid', 0)}"
    what = " ".join(part for part in (event["entry"], event["detail"]) if part)
    head = " ".join(part for part in (event["run"], who, f"step {event['step']}" if event["step"] >= 0 else "", kind, event["rule"]) if part)
    seconds = event["time_unix_ns"] / 1e9
    return {"type": "event", "id": f"{collector}/{event['id']}", "kind": kind, "severity": _SEVERITY.get(kind, "info"), "run": event["run"],
            "rank": rank, "step": event["step"], "rule": event["rule"], "call": event["entry"], "detail": event["detail"],
            "outcome": event["outcome"], "time": _time_text(seconds), "unix_time": seconds,
            "text": head + (f": {what}" if what else "") + (f" -> {event['outcome']}" if event["outcome"] else "")}


def _time_text(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="milliseconds")


def answer_item(source: str, collector: str) -> Item:
    """Runs diagnose on `source` and returns its answer as the item that is sent. Raises CommandFailed."""
    with tempfile.TemporaryDirectory() as scratch:
        page = pathlib.Path(scratch, "answer.html")
        (report,), _ = _command.ask(["diagnose", source, f"--html={page}"], collector=collector)
        text = page.read_text(encoding="utf-8")
    findings = report["findings"]
    first = findings[0] if findings else {}
    sure = first.get("sure", "")
    now = time.time()
    return {"type": "answer", "id": f"{source}/{_digest(report)}", "kind": "diagnosis", "run": source.removeprefix("run:"),
            "severity": "error" if sure == "exact" else "warning" if sure else "info", "rank": first.get("rank"), "step": first.get("step", -1),
            "call": first.get("name", ""), "rule": first.get("by", ""), "sure": sure, "findings": findings[:5], "unjudged": report["unjudged"],
            "time": _time_text(now), "unix_time": now, "text": f"diagnose {source}: {answer_text(report, 1)}", "html": text}


def _digest(report: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(report["findings"], sort_keys=True).encode()).hexdigest()[:16]


class Position:
    """The id of the last event that was sent and the state of the sink, in a file that is replaced atomically. A lock keeps a second
    process from using the file. Raises Stop if it is in use or cannot be read."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = open(f"{path}.lock", "w", encoding="utf-8")  # Held until the process ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except BlockingIOError:
            raise Stop(2, f"{path} is in use by another rankprobe sink; --position FILE gives this one its own") from None
        except OSError as error:
            raise Stop(2, f"{path}: {error.strerror}; --position FILE names another place") from None
        except ValueError:
            kept = None
        if not isinstance(kept, dict) or not isinstance(kept.get("after", 0), int):
            raise Stop(2, f"{path}: is not a position of rankprobe sink; remove it to send from the first event that the collector has")
        self.after: int = kept.get("after", 0)
        self.answers: dict[str, str] = kept.get("answers", {})
        # Runs for which diagnose has still to be run.
        self.asked: set[str] = set(kept.get("asked", []))
        self.state: dict[str, Any] = kept.get("state", {})

    def save(self) -> None:
        """Writes the file. Raises Stop if that fails, since the items already sent would be sent again."""
        fresh = self._path.with_name(f".{self._path.name}.new")  # The name needs no process id: the lock admits one process.
        try:
            with open(fresh, "w", encoding="utf-8") as file:
                json.dump({"after": self.after, "answers": self.answers, "asked": sorted(self.asked), "state": self.state}, file)
                # Flushed before the rename, so that a crash leaves a complete file, old or new.
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise Stop(5, f"{self._path}: {error.strerror}; the next start sends the last items once more") from None


class Follower:
    """Reads events of a collector and sends them, and answers of diagnose, to a sink."""

    def __init__(self, sink: Sink, position: Position, options: argparse.Namespace) -> None:
        self._sink, self._position, self._options = sink, position, options
        self._collector: str = options.collector
        self._kinds = KINDS if "all" in options.kinds else options.kinds
        self._checked = False
        self._ranks_sent = 0.0

    def send(self, items: Sequence[Item]) -> None:
        # Sends the items, retrying with growing pauses. Raises Stop when the retries are used up or cannot help.
        wait = self._options.retry_wait
        for left in range(self._options.retries, -1, -1):
            try:
                return self._sink.send(items)
            except SinkError as error:
                if not error.again or left == 0:
                    raise Stop(5, f"{error}; " + (f"given up after {self._options.retries + 1} tries" if error.again else "not tried again") +
                               "; the next start continues here") from None
                pause = max(wait, error.wait)
                _say(f"{error}; next try in {pause:g} s")
                time.sleep(pause)
                wait = min(wait * 2, _MOST_RETRY_WAIT)

    def _events(self) -> list[dict[str, Any]]:
        if not self._checked:
            # Event ids increase for the life of an archive, so a smaller newest id means a different archive.
            (newest,), _ = _command.ask(["events", "--limit", "1"], collector=self._collector)
            if newest["events"] and newest["events"][-1]["id"] < self._position.after or (self._position.after and not newest["events"]):
                _say("the collector has another archive than before: its events are sent from the first on")
                self._position.after = 0
            self._checked = True
        (reply,), _ = _command.ask(["events", "--after", str(self._position.after), "--limit", str(_MOST_EVENTS)], collector=self._collector)
        found: list[dict[str, Any]] = reply["events"]
        return found

    def round(self) -> None:
        """Sends all events that the collector has now, and saves the position after each batch. Raises Stop or CommandFailed."""
        events = self._events()
        at = 0
        while at < len(events):
            items, size = [], 0
            for event in events[at:]:
                size += 1
                item = item_of(event, self._collector)
                if self._options.run in ("", item["run"]):
                    if self._options.answers and item["kind"] in _ASKED_AFTER and item["run"]:
                        self._position.asked.add(item["run"])
                    if item["kind"] in self._kinds:
                        items.append(item)
                if len(items) == self._sink.most_together:
                    break
            if items:
                self.send(items)
            # Saved after each batch, so that a restart repeats at most one batch and skips none.
            at += size
            self._position.after = events[at - 1]["id"]
            self._position.save()
        if self._options.answers:
            self._send_answers()
        if self._sink.wants_ranks and time.monotonic() >= self._ranks_sent + _RANKS_EVERY:
            self._send_ranks()

    def _send_answers(self) -> None:
        for run in sorted(self._position.asked):
            try:
                item = answer_item(f"run:{run}", self._collector)
            except _command.CommandFailed as error:
                # The run has no recorded data, or it was deleted.
                if error.code not in (_command.NOT_FOUND, _command.REFUSED):
                    raise
                _say(f"diagnose run:{run}: {error}")
            else:
                if self._position.answers.get(run) != item["id"]:
                    self.send([item])
                    self._position.answers[run] = item["id"]
            self._position.asked.discard(run)
            self._position.save()

    def _send_ranks(self) -> None:
        (reply,), _ = _command.ask(["status", *([f"--run={self._options.run}"] if self._options.run else [])], collector=self._collector)
        try:
            self._sink.ranks(reply["agents"])
        except SinkError as error:
            # Not retried, since newer numbers are sent after _RANKS_EVERY.
            _say(str(error))
        self._ranks_sent = time.monotonic()

    def follow(self) -> None:
        # Sends events until an error ends the command. Waits for a collector that cannot be reached.
        away = False
        while True:
            try:
                self.round()
                away = False
            except _command.CommandFailed as error:
                if error.code != _command.UNREACHABLE:
                    raise
                if not away:
                    _say(f"{error}; it is asked again until it answers")
                away, self._checked = True, False
            time.sleep(self._options.interval)


def _say(text: str) -> None:
    print(f"rankprobe sink: {text}", file=sys.stderr, flush=True)


def _secret_url(options: argparse.Namespace) -> str:
    if not options.url_file:
        url = os.environ.get("RANKPROBE_SINK_URL", "")
        if not url:
            raise Stop(2, f"{options.kind} needs the address of its webhook: RANKPROBE_SINK_URL, or --url-file FILE (never on the command line)")
        return url.strip()
    if "://" in options.url_file:
        raise Stop(2, "--url-file names a file that holds the address; an address on the command line is seen by every user of this machine")
    path = pathlib.Path(options.url_file)
    try:
        url = path.read_text(encoding="utf-8").strip()
        if path.stat().st_mode & 0o077:
            _say(f"warning: other users may read {path}; chmod 600 keeps the address secret")
    except (OSError, UnicodeDecodeError) as error:
        raise Stop(2, f"--url-file {path}: {getattr(error, 'strerror', None) or 'is not a text file'}") from None
    if not url:
        raise Stop(2, f"--url-file {path}: is empty")
    return url


def make_sink(options: argparse.Namespace, state: dict[str, Any]) -> Sink:
    """Makes the sink that the command line names. Raises Stop for bad usage or a missing package."""
    makers: dict[str, Callable[[], Sink]] = {
        "wandb": lambda: Wandb(state, options.project), "mlflow": lambda: Mlflow(state, options.project),
        "tensorboard": lambda: TensorBoard(state, pathlib.Path(options.directory)), "otlp": lambda: Otlp(state)}
    if options.kind == "tensorboard" and not options.directory:
        raise Stop(2, "tensorboard needs --directory DIR")
    try:
        if options.kind in _WEBHOOKS:
            return _WEBHOOKS[options.kind](state, _secret_url(options), os.environ.get("RANKPROBE_SINK_TOKEN", ""))
        return makers[options.kind]()
    except ImportError as error:
        raise Stop(2, f"{options.kind} needs {_PACKAGES[options.kind]} in {sys.executable} (pip install 'rankprobe[{options.kind}]'): {error}") from None
    except ValueError as error:
        raise Stop(2, str(error)) from None


def _position_path(options: argparse.Namespace) -> pathlib.Path:
    if options.position:
        return pathlib.Path(options.position)
    home = pathlib.Path(os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local" / "state")
    place = re.sub(r"[^\w.-]+", "-", f"{options.collector}-{options.run}" if options.run else options.collector, flags=re.ASCII)
    return home / "rankprobe" / f"sink-{options.kind}-{place}.json"


def _kinds(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    unknown = [name for name in names if name not in (*KINDS, "all")]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} is not a kind; expected {', '.join(KINDS)}, or all")
    return names


def _parser() -> Parser:
    # Abbreviations are off: --url, short for --url-file, would show the secret address that follows it in a message.
    parser = Parser(prog="rankprobe sink", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("kind", metavar="KIND", choices=(*_WEBHOOKS, *_PACKAGES), help=f"{', '.join((*_WEBHOOKS, *_PACKAGES))}")
    parser.add_argument("--collector", default=os.environ.get("RANKPROBE_COLLECTOR") or "127.0.0.1:7411",
                        help="host:port or unix:PATH; default RANKPROBE_COLLECTOR")
    parser.add_argument("--run", default="", metavar="NAME", help="only events of this run")
    parser.add_argument("--kinds", type=_kinds, default=_USUAL, help=f"of events; default {','.join(_USUAL)}; others: {','.join(KINDS[6:])}; or all")
    parser.add_argument("--position", default="", metavar="FILE", help="keeps the last event that was sent; default in the user's state directory")
    parser.add_argument("--once", action="store_true", help="send what there is, and end")
    parser.add_argument("--answers", action="store_true", help="after a trigger, a difference or the end of a process: the answer of diagnose, if it is new")
    parser.add_argument("--answer", default="", metavar="INPUT", help="send the answer of diagnose on this input (run:NAME), and end")
    parser.add_argument("--directory", default="", metavar="DIR", help="of TensorBoard's files")
    parser.add_argument("--project", default="", metavar="NAME", help="of W&B; the experiment of MLflow")
    parser.add_argument("--url-file", default="", metavar="FILE", help="address of the webhook; default RANKPROBE_SINK_URL")
    parser.add_argument("--retries", type=int, default=5, metavar="N", help="times that sending is tried again (5)")
    parser.add_argument("--retry-wait", type=float, default=1, metavar="SECONDS", help="before the first of them; each next one is twice as long (1)")
    parser.add_argument("--interval", type=float, default=2, metavar="SECONDS", help="between checks for new events (2)")
    return parser


@contextlib.contextmanager
def _ended_by_a_signal(is_service: bool) -> Iterator[None]:
    """Ends the process on SIGTERM or SIGINT. A service ends with status 0, since the position of what it sent is saved; other work is
    incomplete and ends with 128 plus the signal number."""

    def end(number: int, _: Any) -> None:
        sys.exit(0 if is_service else 128 + number)  # SystemExit passes libraries that catch every Exception.

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve(options: argparse.Namespace) -> None:
    position = Position(_position_path(options))
    sink = make_sink(options, position.state)
    follower = Follower(sink, position, options)
    with _ended_by_a_signal(not (options.answer or options.once)), contextlib.closing(sink):
        if options.answer:
            follower.send([answer_item(options.answer, options.collector)])
            position.save()
        elif options.once:
            follower.round()
        else:
            follower.follow()


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.answer.startswith("-"):
        options.answer = f"./{options.answer}"
    try:
        _serve(options)
    except Stop as stop:
        if stop.code:
            _say(str(stop))
        return stop.code
    except _command.CommandFailed as error:
        _say(str(error))
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
