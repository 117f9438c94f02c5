# SPDX-License-Identifier: Apache-2.0
"""The MindSpore front end has what every other has: attaching, switches, ledger, spool, triggers, configs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import cli
from live import ROOT, TRAIN, attached, collector, harness, trained, training, wait_for  # noqa: F401 - fixtures


def loss(done: subprocess.CompletedProcess) -> str:
    return next(line for line in done.stdout.splitlines() if line.startswith("LOSS"))


def entries(step: pathlib.Path) -> list[str]:
    return list(json.loads((next(step.iterdir()) / "dump.json").read_text())["data"])


def test_a_script_is_attached_and_a_step_is_one_call_of_its_optimizer(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "dump_path": str(tmp_path / "dump"), "rank": [], "step": []}))
    done = trained(*attached("--on", "--config", config, "--"), sys.executable, TRAIN, 3)
    assert "attached to Net, recording" in done.stderr and "not attached" not in done.stderr
    assert loss(done) == loss(trained(sys.executable, TRAIN, 3)), "the training is another one"
    for step in range(3):
        found = entries(tmp_path / "dump" / f"step{step}")
        assert {"Cell.fc1.Dense.forward.0", "Functional.relu.0.forward", "Primitive.matmul.MatMul.0.forward",
                "Cell.fc1.Dense.parameters_grad.0", "Cell.fc2.Dense.backward.0"} <= set(found), found


def test_a_script_without_an_optimizer_is_told(tmp_path: pathlib.Path) -> None:
    done = trained(*attached("--"), sys.executable, "-c", "import mindspore")
    assert "not attached: no optimizer was made of a cell's parameters" in done.stderr


def test_switched_from_outside(tmp_path: pathlib.Path, training, collector: harness.Collector) -> None:
    """Idle, on for two steps, exported; the ledger says that nothing is lost."""
    job = training("live")
    first = int(collector.json("enable", "--run", "live", "--for-steps", "2")["effective_at_step"])
    wait_for(lambda: len(job.recorded()) >= 2, 120, "two steps")
    job.wait_steps(3)
    job.finish()
    job.whole([first, first + 1])
    collector.cli("export", "--run", "live", "-o", tmp_path / "out")
    steps = sorted((tmp_path / "out").glob("step*"))
    assert len(steps) == 2
    for step in steps:
        assert "Cell.fc2.Dense.parameters_grad.0" in entries(step)
        assert json.loads((next(step.iterdir()) / "dump.json").read_text())["framework"] == "mindspore"


def test_on_and_off_while_it_trains(training, collector: harness.Collector) -> None:
    """enable, disable: from the step that each names, and no other; losses and parameters are those of the script alone."""
    job = training("switch")
    job.wait_steps(3)
    first = int(collector.json("enable", "--run", "switch")["effective_at_step"])
    wait_for(lambda: len(job.recorded()) >= 3, 120, "three steps")
    end = int(collector.json("disable", "--run", "switch")["effective_at_step"])
    job.wait_steps(max(0, end - len(job.steps())) + 10)
    assert job.recorded() == list(range(first, end))
    job.finish()
    assert job.recorded() == list(range(first, end))
    job.whole(list(range(first, end)))


def test_a_collector_killed_while_it_records(tmp_path: pathlib.Path, training, collector: harness.Collector) -> None:
    """The training goes on; what waited is sent when it is back; nothing is lost, payloads included."""
    config = tmp_path / "tensors.json"
    config.write_text(json.dumps({"task": "tensor", "level": "mix", "dump_path": str(tmp_path / "d"), "rank": [], "step": [],
                                  "tensor": {}}))
    job = training("killed")
    job.wait_steps(3)
    first = int(collector.json("enable", "--run", "killed", "--config", config, "--for-steps", "30")["effective_at_step"])
    wait_for(lambda: len(job.recorded()) >= 3, 120, "three steps")
    collector.kill()
    assert len(job.steps()) < first + 30, "killed too late"
    job.wait_steps(5)
    wait_for(lambda: "is unreachable" in job.errors.read_text(), 60, "the line that says so")
    collector.start()
    wait_for(lambda: "is back; waiting records are sent" in job.errors.read_text(), 60, "the line that says so")
    wait_for(lambda: len(job.recorded()) == 30, 120, "thirty steps")
    job.finish()
    job.whole(list(range(first, first + 30)))
    collector.cli("export", "--run", "killed", "-o", tmp_path / "out")
    for step in range(first, first + 30):
        rank = next((tmp_path / "out" / f"step{step}").iterdir())
        assert "Cell.fc2.Dense.parameters_grad.0" in json.loads((rank / "dump.json").read_text())["data"]
        assert len(list(rank.rglob("*.npy"))) > 20


_ALARMS = """
import sys
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from rankprobe.mindspore import PrecisionDebugger
import alarms
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")
net = nn.SequentialCell(*[nn.Dense(8, 8) for _ in range(30)])
debugger = PrecisionDebugger(dump_path=sys.argv[3], level=sys.argv[2])
debugger.start(net)
net(Tensor(np.ones((4, 8), np.float32)))
def start():
    x = Tensor(np.ones((4, 8), np.float32))
    def forward():
        nonlocal x
        x = net(x)
    return forward
missed = alarms.missed(sys.argv[1], start)
debugger.stop()
print("missed", missed)
"""


@pytest.mark.parametrize("kind", ["Limit", "KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_no_exception_of_a_handler_is_lost(tmp_path: pathlib.Path, level: str, kind: str) -> None:
    done = trained(sys.executable, "-c", _ALARMS, kind, level, tmp_path / "dump",
                   PYTHONPATH=f"{os.environ['PYTHONPATH']}:{ROOT / 'tests' / 'lib'}")
    assert "missed 0" in done.stdout, done.stdout + done.stderr
    errors = [path.read_text() for path in (tmp_path / "dump").rglob("dump_error_info.log")]
    assert not any("alarm" in text for text in errors), errors


def test_a_nan_fires_a_trigger(tmp_path: pathlib.Path, collector: harness.Collector) -> None:
    rules = tmp_path / "nan.json"
    rules.write_text(json.dumps({"flight": {"steps": 2, "level": "mix"}, "rules": [{"name": "nan", "non_finite": {"nan_only": True}}]}))
    collector.cli("triggers", "set", rules, "--create", "--run", "bad", check=False)
    end = tmp_path / "end"
    job = subprocess.Popen([*attached("--collector", collector.address, "--run", "bad", "--"), sys.executable, str(TRAIN), "1",
                            str(end), "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: "trigger nan" in collector.cli("events", "--run", "bad", check=False).stdout, 120, "the event")
    finally:
        end.write_text("")
        _, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    # The division makes infinities; the first NaN is made of them.
    assert "step 40 trigger nan: Primitive.matmul.MatMul.0.forward" in collector.cli("events", "--run", "bad").stdout


def test_a_spool_keeps_what_no_collector_took(tmp_path: pathlib.Path, collector: harness.Collector) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": str(tmp_path / "d"), "rank": [], "step": [],
                                  "tensor": {}}))
    address = collector.address
    assert collector.stop() == 0
    spool = tmp_path / "spool"
    trained(*attached("--collector", address, "--run", "kept", "--on", "--config", config, "--on-collector-missing", "spool", "--"),
            sys.executable, TRAIN, 2, RANKPROBE_SPOOL=str(spool))
    assert any(path.is_file() for path in spool.rglob("*"))
    collector.start()
    # The next process of that machine brings it.
    trained(*attached("--collector", address, "--run", "other", "--"), sys.executable, TRAIN, 2, RANKPROBE_SPOOL=str(spool))
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
    ({"task": "monitor", "monitor": {"values": ["communication"]}}, "communication alone records no call of MindSpore"),
    ({"task": "monitor", "monitor": {"every": 0}}, "monitor.every: 0"),
], ids=["A5", "A6", "A11", "A20", "A22", "A24-list", "A24-xor", "A25", "monitor-communication", "monitor-every"])
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
