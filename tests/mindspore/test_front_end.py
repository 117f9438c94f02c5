# SPDX-License-Identifier: Apache-2.0
"""What lies behind the front end is that of every other: attaching, switches, ledger, spool, triggers, configs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Iterator

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "tests" / "integration"))

import harness  # noqa: E402
from conftest import HERE, cli  # noqa: E402
from polling import wait_for  # noqa: E402

_TRAIN = HERE / "plain_train.py"


@pytest.fixture
def collector(tmp_path: pathlib.Path) -> Iterator[harness.Collector]:
    directory = tmp_path / "collector"
    directory.mkdir()
    running = harness.Collector(directory).start()
    yield running
    assert running.stop() == 0, running.log_text()[-2000:]


def attached(*words: object) -> list[str]:
    return [sys.executable, "-m", "rankprobe.run", *map(str, words)]


def trained(*words: object, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done


def loss(done: subprocess.CompletedProcess) -> str:
    return next(line for line in done.stdout.splitlines() if line.startswith("LOSS"))


def entries(step: pathlib.Path) -> list[str]:
    return list(json.loads((next(step.iterdir()) / "dump.json").read_text())["data"])


def test_a_script_is_attached_and_a_step_is_one_call_of_its_optimizer(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "dump_path": str(tmp_path / "dump"), "rank": [], "step": []}))
    done = trained(*attached("--on", "--config", config, "--"), sys.executable, _TRAIN, 3)
    assert "attached to Net, recording" in done.stderr and "not attached" not in done.stderr
    assert loss(done) == loss(trained(sys.executable, _TRAIN, 3)), "the training is another one"
    for step in range(3):
        found = entries(tmp_path / "dump" / f"step{step}")
        assert {"Cell.fc1.Dense.forward.0", "Functional.relu.0.forward", "Primitive.matmul.MatMul.0.forward",
                "Cell.fc1.Dense.parameters_grad.0", "Cell.fc2.Dense.backward.0"} <= set(found), found


def test_a_script_without_an_optimizer_is_told(tmp_path: pathlib.Path) -> None:
    done = trained(*attached("--"), sys.executable, "-c", "import mindspore")
    assert "not attached: no optimizer was made of a cell's parameters" in done.stderr


def test_switched_from_outside(tmp_path: pathlib.Path, collector: harness.Collector) -> None:
    """Idle, on for two steps, exported; the ledger says that nothing is lost."""
    end = tmp_path / "end"
    job = subprocess.Popen([*attached("--collector", collector.address, "--run", "live", "--"), sys.executable, str(_TRAIN), "1",
                            str(end)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: '"agents": []' not in collector.cli("status", "--run", "live", "--json", check=False).stdout
                 and collector.cli("status", "--run", "live", check=False).returncode == 0, 120, "the rank")
        collector.cli("enable", "--run", "live", "--for-steps", "2")
        wait_for(lambda: len(collector.json("status", "--run", "live", "--steps").get("steps", [])) >= 2, 120, "two steps")
    finally:
        end.write_text("")
        said, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    assert loss(subprocess.CompletedProcess([], 0, said)) == loss(trained(sys.executable, _TRAIN, 1))
    collector.cli("export", "--run", "live", "-o", tmp_path / "out")
    steps = sorted((tmp_path / "out").glob("step*"))
    assert len(steps) == 2
    for step in steps:
        assert "Cell.fc2.Dense.parameters_grad.0" in entries(step)
        assert json.loads((next(step.iterdir()) / "dump.json").read_text())["framework"] == "mindspore"
    assert "lost" not in collector.cli("ledger", "--run", "live").stdout.lower().replace("0 lost", "")


def test_a_nan_fires_a_trigger(tmp_path: pathlib.Path, collector: harness.Collector) -> None:
    rules = tmp_path / "nan.json"
    rules.write_text(json.dumps({"flight": {"steps": 2, "level": "mix"}, "rules": [{"name": "nan", "non_finite": {"nan_only": True}}]}))
    collector.cli("triggers", "set", rules, "--run", "bad", check=False)
    end = tmp_path / "end"
    job = subprocess.Popen([*attached("--collector", collector.address, "--run", "bad", "--"), sys.executable, str(_TRAIN), "1",
                            str(end), "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: "trigger nan" in collector.cli("events", "--run", "bad", check=False).stdout, 120, "the event")
    finally:
        end.write_text("")
        _, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    assert "Functional.div.0.forward" in collector.cli("events", "--run", "bad").stdout


def test_a_spool_keeps_what_no_collector_took(tmp_path: pathlib.Path, collector: harness.Collector) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": str(tmp_path / "d"), "rank": [], "step": [],
                                  "tensor": {}}))
    address = collector.address
    assert collector.stop() == 0
    spool = tmp_path / "spool"
    trained(*attached("--collector", address, "--run", "kept", "--on", "--config", config, "--on-collector-missing", "spool", "--"),
            sys.executable, _TRAIN, 2, RANKPROBE_SPOOL=str(spool))
    assert any(path.is_file() for path in spool.rglob("*"))
    collector.start()
    # The next process of that machine brings it.
    trained(*attached("--collector", address, "--run", "other", "--"), sys.executable, _TRAIN, 2, RANKPROBE_SPOOL=str(spool))
    collector.cli("export", "--run", "kept", "-o", tmp_path / "out")
    payloads = list((tmp_path / "out" / "step0").rglob("*.npy"))
    assert len(payloads) > 10 and not list((tmp_path / "out").rglob("*.pt"))


_CONFIG = {"task": "statistics", "dump_path": "d", "rank": [], "step": [], "level": "L1"}


def refused(tmp_path: pathlib.Path, *, mode: str = "PYNATIVE_MODE", **fields: object) -> str:
    """The one line in which the construction ends."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**_CONFIG, "dump_path": str(tmp_path / "d"), **fields}))
    text = (f"import mindspore as ms, sys, warnings\nms.set_context(mode=ms.{mode})\n"
            "from rankprobe.mindspore import PrecisionDebugger, RankprobeError\n"
            "with warnings.catch_warnings(record=True) as said:\n    warnings.simplefilter('always')\n"
            f"    try:\n        PrecisionDebugger(config_path={str(path)!r}).close()\n"
            "    except RankprobeError as error:\n        print('REFUSED', error)\n"
            "print('SAID', *(str(w.message) for w in said if 'rankprobe' in str(w.message)))\n")
    return trained(sys.executable, "-c", text).stdout


@pytest.mark.parametrize("fields,reason", [
    ({"task": "overflow_check", "overflow_check": {"check_mode": "all"}}, "MindSpore static"),
    ({"task": "exception_dump"}, "level L2"),
    ({"level": "L2"}, "NPU"),
    ({"statistics": {"list": ["name-regex((]"]}}, "regular expression"),
    ({"statistics": {"device": "tpu"}}, "host, device"),
    ({"statistics": {"summary_mode": ["max", "hash"]}}, "static"),
    ({"statistics": {"summary_mode": "xor"}}, "xor is for PyTorch"),
    ({"task": "tensor", "tensor": {"file_format": "pt"}}, "npy, bin"),
    ({"task": "monitor"}, "monitor is for PyTorch"),
], ids=["A5", "A6", "A11", "A20", "A22", "A24-list", "A24-xor", "A25", "monitor"])
def test_fields_that_are_refused(tmp_path: pathlib.Path, fields: dict, reason: str) -> None:
    said = refused(tmp_path, **fields)
    assert "REFUSED" in said and reason in said, said


@pytest.mark.parametrize("fields,reason", [
    ({"statistics": {"list": ["name-regex(conv.*)"]}}, "static graphs of MindSpore"),
    ({"statistics": {"device": "device"}}, "static graphs"),
    ({"task": "tensor", "tensor": {"file_format": "bin"}}, "L2"),
], ids=["A20", "A22", "A25"])
def test_fields_without_effect_are_told(tmp_path: pathlib.Path, fields: dict, reason: str) -> None:
    said = refused(tmp_path, **fields)
    assert "REFUSED" not in said and reason in said, said


def test_graph_mode_is_refused_with_its_reason(tmp_path: pathlib.Path) -> None:
    said = refused(tmp_path, mode="GRAPH_MODE")
    assert "REFUSED" in said and "PyNative" in said and "NPU" in said, said


def test_a_dump_is_examined_like_any_other(scenario, tmp_path: pathlib.Path) -> None:
    step = scenario("cnn_mix", "rankprobe") / "dump" / "step0"
    rank = next(step.iterdir())
    assert "0 differences" in cli("first-divergence", step, step).stdout or cli("first-divergence", step, step).returncode == 0
    cli("graph_visualize", "-tp", rank, "-o", tmp_path / "graph")
    cli("compare", "-tp", rank, "-gp", rank, "-o", tmp_path / "table")
    assert list((tmp_path / "graph").glob("*.db")) and list((tmp_path / "table").glob("*.csv"))
