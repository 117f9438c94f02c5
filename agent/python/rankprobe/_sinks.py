# SPDX-License-Identifier: Apache-2.0
"""Programs that `rankprobe sink` sends items to. Each send() returns when the program has stored the items, or raises SinkError.

Addresses of webhooks and tokens come from files and the environment; no message contains them.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Iterator, Mapping, Sequence

Item = dict[str, Any]

_SECONDS = 15
_MOST_WAIT = 60.0
# Items of one chat message, and characters of each.
_CHAT_LINES, _CHAT_TEXT = 20, 500


class SinkError(Exception):
    """Sending failed. `again`: a retry may succeed. `wait`: seconds to wait before it, if the program stated them, else 0."""

    def __init__(self, text: str, again: bool = False, wait: float = 0) -> None:
        super().__init__(text)
        self.again, self.wait = again, wait


class Sink:
    """Base of all sinks. `state` is saved with the position of the stream. most_together: items of one send(). wants_ranks: whether
    ranks() is called."""

    most_together = 100
    wants_ranks = False

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def send(self, items: Sequence[Item]) -> None:
        raise NotImplementedError

    def ranks(self, agents: Sequence[Mapping[str, Any]]) -> None:
        """Sends the state of the ranks, as `rankprobe status` returns it."""

    def close(self) -> None:
        pass


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Disables redirects, because urllib would send the POST without its content and the token to another host."""

    def redirect_request(self, *arguments: Any, **keywords: Any) -> None:
        return None


_PRINTABLE = re.compile("[!-~]+")


def _has_port(parts: urllib.parse.SplitResult) -> bool:
    """Returns whether the port is absent or a valid number."""
    try:
        return parts.port != 0
    except ValueError:
        return False


class Webhook(Sink):
    """Sends JSON by POST: {"source": "rankprobe", "text": .., "items": [..]}. A receiver can recognize a repeated item by its id.
    Raises ValueError for an address or token that cannot be used."""

    def __init__(self, state: dict[str, Any], url: str, token: str = "") -> None:
        super().__init__(state)
        # Validates the address here, because error messages of libraries would quote it.
        if not _PRINTABLE.fullmatch(url):
            raise ValueError("the address of the webhook has white space or characters beyond ASCII (it is not shown, because it may be a secret)")
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or not _has_port(parts):
            raise ValueError("the address of the webhook is not https://HOST[:PORT]/PATH (it is not shown, because it may be a secret)")
        token = token.strip()
        if token and not _PRINTABLE.fullmatch(token):
            raise ValueError("RANKPROBE_SINK_TOKEN has white space or characters beyond ASCII")
        self._url, self._token = url, token
        # The address for messages lacks the path, which is the secret part for Slack and Teams.
        self.place = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self._opener = urllib.request.build_opener(_NoRedirect)

    def body(self, items: Sequence[Item]) -> dict[str, Any]:
        plain = [{key: value for key, value in item.items() if key != "html"} for item in items]
        return {"source": "rankprobe", "text": "\n".join(item["text"] for item in items), "items": plain}

    def send(self, items: Sequence[Item]) -> None:
        headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "rankprobe"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url, json.dumps(self.body(items), ensure_ascii=False).encode(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                answer.read(1024)
        except urllib.error.HTTPError as error:
            with error:
                again = error.code in (408, 425, 429) or error.code >= 500
                raise SinkError(f"{self.place} answered {error.code} {error.reason}", again, _retry_after(error.headers)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            # A message of the operating system does not contain the address; one of a library may contain a part of it.
            said = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
            raise SinkError(f"{self.place} does not answer: {said}", not isinstance(error, ValueError)) from None


def _retry_after(headers: Any) -> float:
    text = headers.get("Retry-After", "") if headers is not None else ""
    return min(float(text), _MOST_WAIT) if text.isdecimal() else 0.0


class Slack(Webhook):
    """An incoming webhook of Slack."""

    most_together = _CHAT_LINES

    def body(self, items: Sequence[Item]) -> dict[str, Any]:
        lines = [item["text"][:_CHAT_TEXT].translate({38: "&amp;", 60: "&lt;", 62: "&gt;"}) for item in items]
        return {"text": "\n".join(["*rankprobe*", *lines]), "unfurl_links": False}


class Teams(Webhook):
    """A webhook of a Teams workflow, which gets an adaptive card."""

    most_together = _CHAT_LINES

    def body(self, items: Sequence[Item]) -> dict[str, Any]:
        # Escapes Markdown, which a card interprets, for names such as a_b*c.
        lines = [re.sub(r"([\\`*_\[\]])", r"\\\1", item["text"][:_CHAT_TEXT]) for item in items]
        blocks = [{"type": "TextBlock", "text": "rankprobe", "weight": "Bolder"},
                  *({"type": "TextBlock", "text": line, "wrap": True} for line in lines)]
        return {"type": "message", "attachments": [{
            "contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None,
            "content": {"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4", "body": blocks}}]}


def _by_run(items: Sequence[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item["run"] or "collector", []).append(item)
    return found


def _counted(state: dict[str, Any], name: str, items: Sequence[Item]) -> tuple[list[tuple[Item, int]], Callable[[], None]]:
    """Returns each item with its running number among those of its kind in the run, and a function that stores the counts, to be
    called when everything is sent."""
    counts = dict(state.get("counts", {}).get(name, {}))
    numbered = []
    for item in items:
        counts[item["kind"]] = counts.get(item["kind"], 0) + 1
        numbered.append((item, counts[item["kind"]]))
    return numbered, lambda: state.setdefault("counts", {}).update({name: counts})


def _short_name(text: str) -> str:
    """Makes an identifier of ASCII letters, digits, _, . and -. Another text gives another identifier, by a part of its hash."""
    plain = re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip(".-")[:60]
    return plain if plain == text else f"{plain or 'run'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@contextlib.contextmanager
def _errors_of(package: str) -> Iterator[None]:
    """Converts exceptions of a library to SinkError. Whether a retry helps is not known, so it is allowed."""
    try:
        yield
    except SinkError:
        raise
    except Exception as error:  # noqa: BLE001 - a library may raise any type
        raise SinkError(f"{package}: {type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}", True) from None


class Wandb(Sink):
    """Sends to one run of W&B for each run, or to that of WANDB_RUN_ID; WANDB_MODE selects offline mode."""

    most_together = 1000

    def __init__(self, state: dict[str, Any], project: str) -> None:
        super().__init__(state)
        import wandb

        self._wandb: Any = wandb
        self._project = project

    def send(self, items: Sequence[Item]) -> None:
        for run, of_run in _by_run(items).items():
            with _errors_of("wandb"):
                self._send(run, of_run)

    def _send(self, name: str, items: Sequence[Item]) -> None:
        wandb = self._wandb
        own = {} if os.environ.get("WANDB_RUN_ID") else {"id": f"rankprobe-{_short_name(name)}", "name": f"rankprobe {name}"}
        run = wandb.init(project=self._project or os.environ.get("WANDB_PROJECT") or "rankprobe", job_type="rankprobe", resume="allow",
                         settings=wandb.Settings(silent=True, console="off"), **own)
        try:
            run.define_metric("rankprobe/step")
            run.define_metric("rankprobe/*", step_metric="rankprobe/step")
            numbered, keep = _counted(self.state, name, items)
            for item, count in numbered:
                row = {"rankprobe/step": max(item["step"], 0), f"rankprobe/{item['kind']}": count}
                if item.get("html"):
                    row["rankprobe/diagnosis"] = wandb.Html(item["html"], inject=False)
                    run.summary["rankprobe/first"] = item["text"]
                run.log(row)
                if item["severity"] == "error":
                    run.alert(title=f"rankprobe {item['kind']} {name}"[:63], text=item["text"], level=wandb.AlertLevel.ERROR, wait_duration=0)
        finally:
            # Returns when everything is sent, or is in the files of an offline run.
            run.finish()
        keep()


class Mlflow(Sink):
    """Sends to one run of MLflow for each run, or to that of MLFLOW_RUN_ID, at MLFLOW_TRACKING_URI."""

    most_together = 1000

    def __init__(self, state: dict[str, Any], project: str) -> None:
        super().__init__(state)
        import mlflow

        self._client: Any = mlflow.MlflowClient()
        self._experiment = project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "rankprobe"

    def send(self, items: Sequence[Item]) -> None:
        for run, of_run in _by_run(items).items():
            with _errors_of("mlflow"):
                self._send(run, of_run)

    def _run_id(self, name: str) -> str:
        given = os.environ.get("MLFLOW_RUN_ID")
        if given:
            return given
        known: dict[str, str] = self.state.setdefault("runs", {})
        if name not in known:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
            known[name] = self._client.create_run(experiment, run_name=f"rankprobe {name}", tags={"rankprobe.run": name}).info.run_id
        return known[name]

    def _send(self, name: str, items: Sequence[Item]) -> None:
        client, run = self._client, self._run_id(name)
        numbered, keep = _counted(self.state, name, items)
        for item, count in numbered:
            client.log_metric(run, f"rankprobe/{item['kind']}", count, timestamp=int(item["unix_time"] * 1000),
                              step=max(item["step"], 0))
            plain = {key: value for key, value in item.items() if key != "html"}
            # A repeated item has the same name and replaces the first.
            client.log_dict(run, plain, f"rankprobe/{item['type']}s/{_short_name(item['id'])}.json")
            if item.get("html"):
                client.log_text(run, item["html"], "rankprobe/diagnosis.html")
                client.set_tag(run, "rankprobe.first", item["text"][:4000])
        keep()


class TensorBoard(Sink):
    """Writes event files with the texts and the counts of each kind, one TensorBoard run for each run."""

    def __init__(self, state: dict[str, Any], directory: pathlib.Path) -> None:
        super().__init__(state)
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary, self._tensor, self._types = event_pb2.Event, summary_pb2, tensor_pb2.TensorProto, types_pb2
        self._make_writer: Callable[[str], Any] = EventFileWriter
        self._directory = directory
        self._writers: dict[str, Any] = {}

    def send(self, items: Sequence[Item]) -> None:
        for run, of_run in _by_run(items).items():
            with _errors_of("tensorboard"):
                self._send(run, of_run)

    def _send(self, name: str, items: Sequence[Item]) -> None:
        if name not in self._writers:
            self._writers[name] = self._make_writer(str(self._directory / _short_name(name)))
        numbered, keep = _counted(self.state, name, items)
        for item, count in numbered:
            metadata = self._summary.SummaryMetadata(plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="text"))
            text = self._tensor(dtype=self._types.DT_STRING, string_val=[item["text"].encode()])
            text.tensor_shape.dim.add(size=1)
            values = [self._summary.Summary.Value(tag=f"rankprobe/{item['type']}s/text_summary", metadata=metadata, tensor=text),
                      self._summary.Summary.Value(tag=f"rankprobe/{item['kind']}", simple_value=float(count))]
            self._writers[name].add_event(self._event(wall_time=item["unix_time"], step=max(item["step"], 0),
                                                      summary=self._summary.Summary(value=values)))
        self._writers[name].flush()
        keep()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class Otlp(Sink):
    """Sends logs and metrics with OpenTelemetry's exporters, configured by OTEL_EXPORTER_OTLP_ENDPOINT, .._HEADERS and .._PROTOCOL."""

    wants_ranks = True

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__(state)
        if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf") == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        else:
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.resources import Resource

        self._resource: Any = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "rankprobe")})
        self._reader: Any = InMemoryMetricReader()
        self._meters: Any = MeterProvider([self._reader], self._resource, shutdown_on_exit=False)
        meter = self._meters.get_meter("rankprobe")
        self._events = meter.create_counter("rankprobe.events", "{event}", "Events by kind, since this sink started")
        self._gauges = {field: meter.create_gauge(f"rankprobe.{name}", unit, text) for field, name, unit, text in (
            ("step", "step", "{step}", "Step of a rank"), ("lag_steps", "lag", "{step}", "Steps behind the first rank of the run"),
            ("lost_records", "lost_records", "{record}", "Records that a rank lost"))}
        self._logs: Any = OTLPLogExporter()
        self._metrics: Any = OTLPMetricExporter()

    def send(self, items: Sequence[Item]) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        levels = {"error": SeverityNumber.ERROR, "warning": SeverityNumber.WARN, "info": SeverityNumber.INFO}
        records = []
        for item in items:
            attributes = {f"rankprobe.{key}": item[key] for key in ("id", "type", "kind", "run", "step", "rank", "rule", "call", "outcome")
                          if item.get(key) not in (None, "")}
            record = LogRecord(timestamp=int(item["unix_time"] * 1e9), observed_timestamp=time.time_ns(), severity_text=item["severity"].upper(),
                               severity_number=levels[item["severity"]], body=item["text"], attributes=attributes,
                               event_name=f"rankprobe.{item['kind']}")
            records.append(ReadableLogRecord(record, self._resource, InstrumentationScope("rankprobe")))
        with _errors_of("opentelemetry"):
            self._done(self._logs.export(records))
        for item in items:
            self._events.add(1, {"rankprobe.kind": item["kind"], "rankprobe.run": item["run"]})

    def ranks(self, agents: Sequence[Mapping[str, Any]]) -> None:
        for agent in agents:
            labels = {"rankprobe.run": agent["identity"]["run"], "rankprobe.process": str(
                agent["identity"]["rank"] if agent["identity"].get("rank") is not None else f"proc{agent['identity']['pid']}")}
            for field, gauge in self._gauges.items():
                gauge.set(int(agent[field]), labels)
        with _errors_of("opentelemetry"):
            data = self._reader.get_metrics_data()
            if data is not None:
                self._done(self._metrics.export(data))

    def _done(self, result: Any) -> None:
        if result.name != "SUCCESS":
            raise SinkError("opentelemetry: the exporter could not send (its messages above say why; "
                            "OTEL_EXPORTER_OTLP_ENDPOINT names the receiver)", True)

    def close(self) -> None:
        self._meters.shutdown()
        self._logs.shutdown()
        self._metrics.shutdown()
