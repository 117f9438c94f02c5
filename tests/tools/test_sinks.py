# SPDX-License-Identifier: Apache-2.0
"""rankprobe sink to W&B and MLflow (offline), TensorBoard, and OpenTelemetry (a receiver on loopback), read back by their own packages."""

from __future__ import annotations

import concurrent.futures
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
from typing import Any, Iterator

import pytest

import harness
import rankprobe


@pytest.fixture
def send(collector, tmp_path):
    def run(kind: str, *flags: object, **environment: str) -> subprocess.CompletedProcess:
        done = subprocess.run([harness.BIN / "rankprobe", "sink", kind, "--once", "--kinds", "all", "--retry-wait", "0.01", "--position",
                               tmp_path / "position", *map(str, flags)], capture_output=True, text=True, timeout=240, cwd=tmp_path, env={
                                   **os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_PYTHON": sys.executable, **environment})
        assert "Traceback" not in done.stderr
        return done

    return run


def test_tensorboard(send, tmp_path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert "needs --directory" in send("tensorboard").stderr
    done = send("tensorboard", "--directory", tmp_path / "board", "--answers")
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "board").iterdir()
    board = EventAccumulator(str(directory)).Reload()
    assert {"rankprobe/connected", "rankprobe/ended", "rankprobe/diagnosis"} <= set(board.Tags()["scalars"])
    (answer,) = board.Tensors("rankprobe/answers/text_summary")
    assert answer.step == 7 and answer.tensor_proto.string_val[0].startswith(b"diagnose run:train/1: step 7 rank 0: ")
    events = [event.tensor_proto.string_val[0].decode() for event in board.Tensors("rankprobe/events/text_summary")]
    assert any("connected" in text for text in events)
    count = len(events)
    assert send("tensorboard", "--directory", tmp_path / "board", "--answers").returncode == 0
    assert len(EventAccumulator(str(directory)).Reload().Tensors("rankprobe/events/text_summary")) == count, "sent once"


def test_mlflow(send, tmp_path) -> None:
    store = {"MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = send("mlflow", "--answers", "--project", "precision", **store)
    assert done.returncode == 0, done.stderr
    assert send("mlflow", "--answer", "run:train/1", "--project", "precision", **store).returncode == 0
    program = """
import json, mlflow
client = mlflow.MlflowClient()
runs = client.search_runs([client.get_experiment_by_name("precision").experiment_id])
(run,) = [one for one in runs if one.data.tags.get("rankprobe.run") == "train/1"]
files = [f.path for d in client.list_artifacts(run.info.run_id, "rankprobe") for f in ([d] if not d.is_dir else client.list_artifacts(run.info.run_id, d.path))]
print(json.dumps([run.data.metrics, run.data.tags["rankprobe.first"], files,
                  [m.step for m in client.get_metric_history(run.info.run_id, "rankprobe/diagnosis")]]))
"""
    read = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **store}, timeout=120)
    assert read.returncode == 0, read.stderr
    metrics, first, files, steps = json.loads(read.stdout)
    assert metrics["rankprobe/connected"] >= 1 and metrics["rankprobe/diagnosis"] == 2 and steps == [7, 7]
    assert first.startswith("diagnose run:train/1: step 7 rank 0") and "rankprobe/diagnosis.html" in files
    assert sum(path.startswith("rankprobe/answers/") for path in files) == 1, "the same answer has the same name"


def test_mlflow_that_is_not_there_is_tried_again_and_said(send, tmp_path) -> None:
    done = send("mlflow", "--retries", "1", MLFLOW_TRACKING_URI="http://127.0.0.1:9", MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    assert done.returncode == 5 and "mlflow: " in done.stderr and "given up after 2 tries" in done.stderr, done.stderr
    assert not (tmp_path / "position").exists(), "nothing was sent"


def test_wandb(send, tmp_path) -> None:
    done = send("wandb", "--answers", "--run", "train/1", WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr
    files = sorted((tmp_path / "wandb").glob("offline-run-*-rankprobe-train-1-*/run-rankprobe-train-1-*.wandb"))
    assert files, list((tmp_path / "wandb").glob("*"))
    kept = b"".join(file.read_bytes() for file in files)
    assert b"rankprobe/connected" in kept and b"rankprobe/step" in kept and b"rankprobe/diagnosis" in kept
    assert b"diagnose run:train/1: step 7 rank 0" in kept and b"rankprobe diagnosis train/1" in kept, "the summary, and the alert"
    assert list((tmp_path / "wandb").glob("offline-run-*/files/media/html/**/*.html"))


@pytest.fixture
def live(collector) -> Iterator[None]:
    """A rank that the collector knows: it forgets one that has ended."""
    session = rankprobe.Session(collector.address, run="train/1", rank=1, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    yield
    session.close()


class Receiver:
    """OTLP over HTTP: what came to /v1/logs and /v1/metrics."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Any]] = {"/v1/logs": [], "/v1/metrics": []}
        self.headers: list[str] = []
        self.refuse = 0
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
                from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

                content = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.headers.append(self.headers.get("api-key", ""))
                status = 400 if receiver.refuse > 0 else 200
                receiver.refuse -= 1
                if status == 200:
                    kind = ExportLogsServiceRequest if self.path == "/v1/logs" else ExportMetricsServiceRequest
                    receiver.requests[self.path].append(kind.FromString(content))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=k3y",
                            "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}


def attributes(record: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in record.attributes}


def check(logs: list[Any], metrics: list[Any]) -> None:
    records = [record for request in logs for resource in request.resource_logs for scope in resource.scope_logs for record in scope.log_records]
    by_kind = {attributes(record)["rankprobe.kind"]: record for record in records}
    assert {"connected", "ended", "diagnosis"} <= set(by_kind)
    answer = by_kind["diagnosis"]
    assert answer.body.string_value.startswith("diagnose run:train/1: step 7") and answer.severity_text == "ERROR"
    assert attributes(answer)["rankprobe.step"] == 7 and answer.event_name == "rankprobe.diagnosis" and answer.time_unix_nano > 1e18
    (resource,) = {one.value.string_value for request in logs for part in request.resource_logs for one in part.resource.attributes if one.key == "service.name"}
    assert resource == "rankprobe"
    series = {metric.name: metric for request in metrics for part in request.resource_metrics for scope in part.scope_metrics for metric in scope.metrics}
    assert series["rankprobe.step"].gauge.data_points and series["rankprobe.lost_records"].gauge.data_points[0].as_int == 0
    counted = {attributes(point)["rankprobe.kind"]: point.as_int for point in series["rankprobe.events"].sum.data_points}
    assert counted["connected"] >= 1 and counted["diagnosis"] == 1 and series["rankprobe.events"].sum.is_monotonic


def test_opentelemetry_over_http(send, live) -> None:
    receiver = Receiver()
    receiver.refuse = 1
    done = send("otlp", "--answers", "--run", "train/1", **receiver.environment)
    assert done.returncode == 0 and "next try in" in done.stderr, done.stderr
    assert "k3y" not in done.stderr and set(receiver.headers) == {"k3y"}
    check(receiver.requests["/v1/logs"], receiver.requests["/v1/metrics"])
    receiver.server.shutdown()


def test_opentelemetry_over_grpc(send, live) -> None:
    import grpc
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc

    logs: list[Any] = []
    metrics: list[Any] = []

    class Logs(logs_service_pb2_grpc.LogsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            logs.append(request)
            return logs_service_pb2.ExportLogsServiceResponse()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            metrics.append(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(Logs(), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    done = send("otlp", "--answers", "--run", "train/1", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert done.returncode == 0, done.stderr
    check(logs, metrics)
    server.stop(None)


def test_a_notebook_runs_with_what_the_extra_brings(collector, tmp_path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    opened = rankprobe.open("train/1", collector=collector.address)
    assert len(opened.frame()) == 20 and opened.plot().get_lines() and pathlib.Path(harness.BIN).is_dir()
    assert opened.diagnose().findings.iloc[0]["step"] == 7
