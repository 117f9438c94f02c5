# SPDX-License-Identifier: Apache-2.0
"""A run as tables: rankprobe.archive, and export --format parquet, tensorboard and trend, of two real ranks.

Read back by what people read them with: pandas, DuckDB, ClickHouse (chdb), TensorBoard, msprobe's trend_analyzer.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap

import peer
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness

from rankprobe import archive

STEPS, BAD = (0, 3, 4, 9), 4
SCRIPT = textwrap.dedent("""
    import os, sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    rank, steps, bad = int(os.environ["RANK"]), json.loads(sys.argv[2]), int(sys.argv[3])
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    torch.manual_seed(rank)
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
            self.head = torch.nn.Linear(4, 1)
        def forward(self, x):
            for layer in self.layers:
                x = torch.relu(layer(x)) + layer(x)
            return self.head(x)
    net = Net()
    for step in range(max(steps) + 1):
        debugger.start(model=net)
        x = torch.full((2, 4), 1e15 if step == 9 else 1.0 + step)
        if rank == 1 and step == bad:
            x[0, 0] = float("nan")
            x[1, 0] = float("inf")
        net(x).sum().backward()
        debugger.stop()
        debugger.step()
""").replace("import os,", "import json, os,")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tables")
    collector = harness.Collector(directory).start()
    config = directory / "config.json"
    config.write_text(json.dumps({"task": "statistics", "dump_path": str(directory / "unused"), "rank": [], "step": list(STEPS),
                                  "level": "mix", "risk_level": "ALL"}))
    ranks = [subprocess.Popen([sys.executable, "-c", SCRIPT, str(config), json.dumps(STEPS), str(BAD)],
                              env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "ta\"b",
                                   "RANK": str(rank), "WORLD_SIZE": "2"}, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]
    for rank in ranks:
        _, said = rank.communicate(timeout=180)
        assert rank.returncode == 0, said
    collector.cli("export", "--run", "ta\"b", "-o", directory / "dump")
    yield collector
    assert collector.stop() == 0


@pytest.fixture
def export(recorded, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKPROBE_PYTHON", sys.executable)

    def run(kind: str, name: str, *flags: str, **kwargs):
        done = recorded.cli("export", "--run", "ta\"b", "--format", kind, "-o", tmp_path / name, *flags, **kwargs)
        return tmp_path / name if done.returncode == 0 and not kwargs else done

    return run


def dumped(collector) -> dict[tuple[int, int, str, str], dict]:
    """Every tensor of the exported dump.json files, by step, rank, call and position."""
    found = {}
    for path in sorted((collector.directory / "dump").glob("step*/rank*/dump.json")):
        step, rank = int(path.parts[-3][4:]), int(path.parts[-2][4:])
        for call, record in json.loads(path.read_text())["data"].items():
            if ".parameters_grad" in call:
                record = {"": {name: value[0] for name, value in record.items() if value[0]}}
            for section, values in record.items():
                if section not in ("", "input_args", "input_kwargs", "input", "output", "parameters"):
                    continue
                begin = {"input_args": "input.", "input_kwargs": "input.", "": ""}.get(section, section + ".")
                named = values.items() if isinstance(values, dict) else enumerate(values)
                for name, value in named:
                    if isinstance(value, dict) and value.get("type") == "torch.Tensor":
                        found[step, rank, call, f"{begin}{name}"] = value
    return found


def number(value) -> float | None:
    return float(value) if value is not None else None


def same(left, right) -> bool:
    left, right = number(left), number(right)
    return left == right or (left is not None and right is not None and math.isnan(left) and math.isnan(right))


def check_rows(rows: list[dict], collector) -> None:
    expected = dumped(collector)
    assert len(rows) == len(expected) > 400
    for row in rows:
        value = expected.pop((row["step"], row["rank"], row["call"], row["position"]))
        for key in ("Max", "Min", "Mean", "Norm"):
            assert same(row[key], value[key]), (row, value)
        assert row["run"] == "ta\"b" and row["pid"] > 0 and row["NanCount"] is None
        assert row["call"].startswith(row["module"]) and f".{row['phase']}" in row["call"]
    assert not expected


def test_the_table_says_what_the_dump_says(recorded) -> None:
    table = archive.read("ta\"b", collector=recorded.address)
    check_rows(table.to_pylist(), recorded)
    table.validate(full=True)
    assert table.schema.metadata[b"rank_steps"] == b"8"
    order = list(zip(table["step"].to_pylist(), table["rank"].to_pylist()))
    assert order == sorted(order)
    assert set(table["phase"].to_pylist()) == {"forward", "backward", "parameters_grad"}
    assert "Module.layers.0.Linear" in set(table["module"].to_pylist())


def test_a_selection_and_a_frame(recorded) -> None:
    frame = archive.frame("ta\"b", collector=recorded.address, steps=range(3, 5), ranks=1, match="*Linear.forward*", of="outputs")
    assert set(frame["step"]) == {3, 4} and set(frame["rank"]) == {1} and set(frame["position"]) == {"output.0"}
    bad = frame[frame["Norm"].isna() | ~(frame["Norm"] < math.inf)]
    assert set(bad["step"]) == {BAD} and bad["call"].iloc[0] == "Module.layers.0.Linear.forward.0"
    seen = [batch.num_rows for batch in archive.batches("ta\"b", collector=recorded.address)]
    assert sum(seen) == len(dumped(recorded))
    # Whoever has seen enough just goes.
    next(iter(archive.batches("ta\"b", collector=recorded.address)))


def test_a_data_directory_without_a_collector(recorded, tmp_path) -> None:
    with pytest.raises(OSError, match="data"):
        archive.read("ta\"b", data_dir=recorded.data_dir)  # the collector has it
    recorded.stop()
    try:
        check_rows(archive.read("ta\"b", data_dir=recorded.data_dir).to_pylist(), recorded)
    finally:
        recorded.start()
    with pytest.raises(ValueError, match="no such directory"):
        archive.read("x", data_dir=tmp_path / "nothing")


@pytest.mark.parametrize(("arguments", "error", "said"), [
    ({"run": "nobody"}, LookupError, "nobody"),
    ({"run": "ta\"b", "steps": [-1]}, ValueError, "steps"),
    ({"run": "ta\"b", "steps": []}, ValueError, "steps"),
    ({"run": "ta\"b", "of": "gradients"}, ValueError, "--of"),
    ({"run": "ta\"b", "match": "x" * 5000}, ValueError, "4,096"),
    ({"run": "ta\"b", "data_dir": "/"}, ValueError, "not both"),
])
def test_what_cannot_be_read(recorded, arguments, error, said) -> None:
    with pytest.raises(error, match=said):
        archive.read(**arguments, collector=recorded.address)


def test_no_collector() -> None:
    with pytest.raises(ConnectionError):
        archive.read("run", collector="127.0.0.1:1")


def test_parquet_with_duckdb_and_pandas(export, recorded) -> None:
    import duckdb
    import pandas
    import pyarrow.parquet

    path = export("parquet", "run.parquet")
    check_rows(pyarrow.parquet.read_table(path).to_pylist(), recorded)
    assert pyarrow.parquet.read_metadata(path).metadata[b"rankprobe.rows"] == str(len(dumped(recorded))).encode()
    assert path.stat().st_mode & 0o777 == 0o640
    first = duckdb.sql(f"""
        SELECT step, rank, call FROM read_parquet('{path}', file_row_number = true)
        WHERE call LIKE 'Module.%' AND NOT isfinite(Norm) ORDER BY step, rank, file_row_number LIMIT 1""").fetchall()
    assert first == [(BAD, 1, "Module.layers.0.Linear.forward.0")]
    # A block whose smallest and largest are finite may have a NaN.
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE isnan(Norm)").fetchall()[0][0] > 10
    frame = pandas.read_parquet(path)
    largest = frame[frame["phase"] == "parameters_grad"].groupby(["step", "rank"], observed=True)["Norm"].max()
    assert len(largest) == 2 * len(STEPS) and largest[0, 0] > 0


def test_the_questions_of_the_documentation(export, recorded, monkeypatch, capfd) -> None:
    """docs/tables.md: each block of SQL and Python runs as it stands and answers."""
    import duckdb

    path = export("parquet", "train.parquet")
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("RANKPROBE_COLLECTOR", recorded.address)
    text = (pathlib.Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    blocks = re.findall(r"```(sql|python)\n(.*?)```", text, re.S)
    assert [kind for kind, _ in blocks] == ["python", "sql", "sql", "sql", "python", "python"]
    answers = [duckdb.sql(query).fetchall() for kind, query in blocks if kind == "sql"]
    assert answers[0][0][:4] == (BAD, 1, *answers[0][0][2:4]) and not math.isfinite(answers[0][0][4])
    # The step whose inputs are 1e15 times larger, and two ranks whose weights differ.
    assert answers[1][0][3] == 9 and answers[1][0][4] > 1e6
    assert len(answers[2]) == 10 and answers[2][0][3] > 1
    scope: dict = {}
    for kind, program in blocks:
        if kind == "python":
            exec(program.replace('"train"', '"ta\\"b"'), scope)  # the run of this test
    assert scope["rows"] == len(dumped(recorded)) and set(scope["table"]["rank"].to_pylist()) == {0, 1}
    assert list(scope["lines"].index) == list(STEPS) and "Module.head.Linear" in scope["lines"].columns
    assert re.search(rf"^{BAD},1,\d+$", capfd.readouterr().out, re.M)


def test_tensorboard_reads_its_event_files(export) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = export("tensorboard", "board")
    assert sorted(p.name for p in path.iterdir()) == ["rank0", "rank1"]
    events = EventAccumulator(str(path / "rank1"), size_guidance={"scalars": 0})
    events.Reload()
    scalars = events.Scalars("Norm/Module.layers.0.Linear.forward.0.output.0")
    assert [event.step for event in scalars] == list(STEPS)
    assert [math.isfinite(event.value) for event in scalars] == [step != BAD for step in STEPS]


def test_tensorboard_has_histograms_of_what_was_kept(recorded, tmp_path, monkeypatch) -> None:
    import torch
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("RANKPROBE_PYTHON", sys.executable)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "tensor", "dump_path": str(tmp_path / "unused"), "step": [0, 2], "level": "L0"}))
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(config), json.dumps([0, 2]), "1"], capture_output=True, text=True, timeout=180,
                          env={**os.environ, "RANKPROBE_COLLECTOR": recorded.address, "RANKPROBE_RUN": "kept", "RANK": "1"})
    assert done.returncode == 0, done.stderr
    dump, board = tmp_path / "dump", tmp_path / "board"
    recorded.cli("export", "--run", "kept", "-o", dump)
    broken = dump / "step0/rank1/dump_tensor_data/Module.head.Linear.forward.0.output.0.pt"
    broken.write_bytes(broken.read_bytes()[:40])
    done = recorded.cli("export", "--run", "kept", "--format", "tensorboard", "--payloads", dump, "--match", "Module.*", "-o", board)
    assert "1 tensors could not be read" in done.stderr
    events = EventAccumulator(str(board / "rank1"), size_guidance={"histograms": 0, "scalars": 0})
    events.Reload()
    assert "Values/Module.head.Linear.forward.0.output.0" in events.Tags()["histograms"]
    assert [event.step for event in events.Histograms("Values/Module.head.Linear.forward.0.output.0")] == [2]
    for step in (0, 2):
        tensor = torch.load(dump / f"step{step}/rank1/dump_tensor_data/Module.layers.0.Linear.forward.0.output.0.pt").double()
        (told,) = (e.histogram_value for e in events.Histograms("Values/Module.layers.0.Linear.forward.0.output.0") if e.step == step)
        assert told.num == tensor.numel() == sum(told.bucket) and len(told.bucket) == 64
        assert (told.min, told.max, told.sum) == pytest.approx((tensor.min().item(), tensor.max().item(), tensor.sum().item()))
        below = sum(told.bucket[:32])
        assert below == (tensor < told.bucket_limit[31]).sum().item()


def test_histograms_are_of_finite_elements() -> None:
    import numpy
    from rankprobe._histograms import histogram

    assert histogram(numpy.array([math.nan, math.inf])) is None
    some = histogram(numpy.array([math.nan, -1.0, 3.0, -math.inf]))
    assert (some["min"], some["max"], some["num"], sum(some["bucket"])) == (-1.0, 3.0, 2, 2)
    largest = sys.float_info.max
    assert histogram(numpy.array([-largest, largest]))["bucket"] == [1, 1]
    assert sum(histogram(numpy.array([5.0]))["bucket"]) == 1


def test_trend_analyzer_draws_what_msprobe_makes_of_the_dump(export, recorded, tmp_path) -> None:
    path = export("trend", "run.trend.db")
    data2db = tmp_path / "real"
    code, said = peer.run("data2db", "--data", recorded.directory / "dump", "--db", data2db, "--micro_step", "False", directory=tmp_path)
    assert code == 0, said
    real, = data2db.glob("*.trend.db")
    ours, theirs = (series(database) for database in (path, real))
    assert ours.keys() >= theirs.keys() and len(theirs) > 400
    for key, numbers in theirs.items():
        for left, right in zip(ours[key], numbers):
            # msprobe clips to 1e9 and leaves NaN out; what is true stays true here.
            if right is not None and abs(right) >= 1e9:
                assert abs(left) >= 1e9 and left * right > 0
            else:
                assert left == right, (key, left, right)
    from trend_analyzer.server.services.monvis_service import MonvisService

    answers = []
    for database in (path, real):
        os.chmod(database, 0o640)
        service = MonvisService(str(database))
        assert service.is_db_connected
        metrics = {metric["name"]: metric["stats"] for metric in service.get_metrics_stat()["data"]}
        tags = {(tag["id"], tag["category"]) for tag in service.get_tags("forward")["data"]}
        steps = service.get_values("forward", "norm", "step", [])["data"]
        heat = service.get_heatmap_data("forward", "norm", "rank", "1", ["layers.1"])["data"]
        answers.append((metrics, tags, steps, {(step, name.split("_", 2)[2]): value for step, (_, name), value in heat}))
    assert answers[0][0].items() >= answers[1][0].items()
    assert answers[0][1] >= answers[1][1] and answers[0][2] == answers[1][2]
    shared = {key: value for key, value in answers[1][3].items() if value is not None and abs(value) < 1e9}
    assert shared and shared.items() <= answers[0][3].items()


def series(path: pathlib.Path) -> dict[tuple, tuple]:
    with sqlite3.connect(path) as database:
        rows = database.execute("""
            SELECT rank, step, metric_name, target_name, micro_step, norm, max, min, mean FROM trend_data
            JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id)""").fetchall()
    return {row[:5]: row[5:] for row in rows}


def test_what_cannot_be_made(export, recorded, tmp_path) -> None:
    taken = tmp_path / "taken"
    (taken / "inside").mkdir(parents=True)
    for kind in ("parquet", "trend", "tensorboard"):
        done = export(kind, "taken", check=False)
        assert done.returncode == 2 and str(taken) in done.stderr, done
    for flags, said in ((("--tar", "x"), "--tar"), (("--link",), "--link")):
        done = export("parquet", "x", *flags, check=False)
        assert done.returncode == 2 and said in done.stderr
    assert recorded.cli("export", "--run", "ta\"b", "--format", "parquet", check=False).returncode == 2
    assert recorded.cli("export", "--run", "ta\"b", "--format", "xlsx", "-o", "x", check=False).returncode == 2
    done = recorded.cli("export", "--run", "ta\"b", "--match", "relu", "-o", tmp_path / "dump", check=False)
    assert done.returncode == 2 and "--match" in done.stderr
    done = recorded.cli("export", "--run", "nobody", "--format", "parquet", "-o", tmp_path / "no.parquet", check=False)
    assert done.returncode == 4
    (tmp_path / "file").write_text("")
    assert export("parquet", "file/run.parquet", check=False).returncode == 5
    assert not list(tmp_path.glob("**/*.parquet")) and not list(tmp_path.glob(".*"))


def test_a_python_without_the_package(recorded, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKPROBE_PYTHON", str(tmp_path / "python"))
    done = recorded.cli("export", "--run", "ta\"b", "--format", "parquet", "-o", tmp_path / "x", check=False)
    assert done.returncode == 2 and "RANKPROBE_PYTHON" in done.stderr
    monkeypatch.setenv("RANKPROBE_PYTHON", "/usr/bin/false")  # ends as a Python does that finds no module
    done = recorded.cli("export", "--run", "ta\"b", "--format", "parquet", "-o", tmp_path / "x", check=False)
    assert done.returncode == 2 and "package rankprobe; RANKPROBE_PYTHON" in done.stderr
    monkeypatch.setenv("RANKPROBE_PYTHON", str(tmp_path / "python"))
    # One that has rankprobe and no pyarrow: no trace, no file.
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nexec env PYTHONPATH={tmp_path}:$PYTHONPATH {sys.executable} \"$@\"\n")
    fake.chmod(0o755)
    (tmp_path / "pyarrow.py").write_text("raise ImportError('No module named pyarrow')\n")
    done = recorded.cli("export", "--run", "ta\"b", "--format", "parquet", "-o", tmp_path / "x.parquet", check=False)
    assert done.returncode == 2 and "needs pyarrow" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_a_stream_that_is_cut_leaves_no_file(recorded, tmp_path) -> None:
    stream = subprocess.run([harness.BIN / "rankprobe", "--collector", recorded.address, "export", "--run", "ta\"b",
                             "--format", "columns", "-o", "-"], capture_output=True, timeout=60)
    assert stream.returncode == 0 and stream.stdout.startswith(b"RPVALUES")
    worker = [sys.executable, "-m", "rankprobe.value_files", "parquet", str(tmp_path / "x.parquet")]
    for cut in (stream.stdout[:-3], stream.stdout[:len(stream.stdout) // 2], stream.stdout[:5], b"", b"RPVALUES\xff\xff\xff\xff"):
        done = subprocess.run(worker, input=cut, capture_output=True, timeout=60)
        assert done.returncode == 5 and b"stream of values" in done.stderr and b"Traceback" not in done.stderr, done
    assert not list(tmp_path.iterdir())
    # Nor does one that is interrupted.
    process = subprocess.Popen(worker, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(stream.stdout[:-3])
    process.stdin.flush()
    harness.wait_for(lambda: list(tmp_path.iterdir()), 30, "the worker's scratch directory")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130 and not list(tmp_path.iterdir())
    # At the first moment, too.
    at_once = ("import os, signal, sys; from rankprobe import value_files; made = os.mkdir\n"
               "def mkdir(*place, **how): made(*place, **how); os.kill(os.getpid(), signal.SIGINT)\n"
               "os.mkdir = mkdir; sys.exit(value_files.main(sys.argv[1:]))")
    done = subprocess.run([sys.executable, "-c", at_once, "parquet", str(tmp_path / "x.parquet")], input=stream.stdout, capture_output=True, timeout=120)
    assert done.returncode == 130 and not list(tmp_path.iterdir()), done


def test_the_benchmark_runs() -> None:
    bench = pathlib.Path(__file__).parents[1] / "bench" / "tables.py"
    done = subprocess.run([sys.executable, bench, "3"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("6000 rows; read "), done
