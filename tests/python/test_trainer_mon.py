# SPDX-License-Identifier: Apache-2.0
"""TrainerMon's config and calls; its values are held against msprobe's in tests/interop/test_monitor_csv.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rankprobe.pytorch import InvalidParameterError, TrainerMon
from rankprobe.pytorch._trainer_mon import plan_of, read_config


def _config(tmp_path, **fields) -> str:
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps(fields))
    return str(path)


@pytest.mark.parametrize("fields, faults", [
    ({}, ["nothing is to be monitored"]),
    ({"wg_distribution": 1}, ["wg_distribution: 1 is not of type bool"]),
    ({"wg_distribution": True, "step_interval": 0, "ops": ["median"], "module_ranks": [-1]},
     ["step_interval: 0 (legal: 1 to", "ops: 'median' (legal: norm,", "module_ranks: -1 is not a rank"]),
    ({"wg_distribution": True, "format": "tensorboard"}, ["format: 'tensorboard' (legal: csv)"]),
    ({"cc_distribution": {"enable": False}}, ["nothing is to be monitored"]),
    ({"cc_distribution": {"enable": 1, "line": []}}, ["cc_distribution.enable: 1 is not of type bool", "cc_distribution.line: unknown (legal: enable,"]),
    ({"cc_distribution": {"enable": True, "cc_codeline": ["("]}}, ["cc_codeline: '(' is not a regular expression"]),
    ({"wg_distribution": True, "start_step": True}, ["start_step: True is not of type int"]),
], ids=str)
def test_every_fault_is_named(tmp_path, fields, faults) -> None:
    with pytest.raises(InvalidParameterError) as raised:
        TrainerMon(_config(tmp_path, **fields))
    assert all(fault in str(raised.value) for fault in faults), str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_what_is_no_config_is_refused(tmp_path, text) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidParameterError, match="config_file_path"):
        read_config(str(tmp_path / "x.json"))


@pytest.mark.parametrize("fields, plan", [
    ({"wg_distribution": True}, {"step": [], "monitor": {"every": 1, "values": ["weight_gradients"]}}),
    ({"xy_distribution": True, "backward_only": True, "start_step": 5, "step_interval": 10, "collect_times": 3, "ops": ["nans"],
      "targets": {"0:head": {}, "body": {}}},
     {"step": ["5-25"], "monitor": {"every": 10, "values": ["activation_gradients"], "extra_statistics": ["counts"],
                                    "list": ["head", "body"]}}),
    ({"mv_distribution": True, "ur_distribution": True, "collect_times": 0},
     {"step": ["0--1"], "dump_enable": False, "monitor": {"every": 1, "values": ["optimizer_state", "optimizer"]}}),
    ({"mv_distribution": True, "cc_distribution": {"enable": True, "cc_pre_hook": True}},
     {"step": [], "monitor": {"every": 1, "values": ["optimizer_state", "communication"]}}),
    ({"cc_distribution": {"enable": True, "cc_codeline": ["train.py"]}},
     {"step": [], "extra_info": True, "monitor": {"every": 1, "values": ["communication"]}}),
], ids=["plain", "all", "never", "communication", "code line"])
def test_its_fields_are_task_monitors(tmp_path, fields, plan) -> None:
    made = plan_of(read_config(_config(tmp_path, **fields)), "d")
    if plan["step"] == ["0--1"]:  # nothing is collected: no such step is named
        plan["step"] = []
    assert {name: made[name] for name in plan} == plan


def test_what_has_no_effect_is_said(tmp_path) -> None:
    with pytest.warns(RuntimeWarning, match="alert has no effect here; rankprobe triggers set"):
        read_config(_config(tmp_path, wg_distribution=True, alert={"rules": []} | {"dump": True}))


@pytest.mark.parametrize("arguments, fault", [({"grad_acc_steps": 0}, "grad_acc_steps must be an int >= 1"),
                                              ({"start_iteration": -1}, "start_iteration must be an int >= 0")], ids=str)
def test_bad_arguments_of_set_monitor(tmp_path, arguments, fault) -> None:
    with pytest.raises(InvalidParameterError, match=fault):
        TrainerMon(_config(tmp_path, wg_distribution=True)).set_monitor(None, None, **arguments)


def test_csv_of_nothing_is_refused(tmp_path) -> None:
    for words, fault in (([str(tmp_path), "-o", "out"], "no step*/rank*/ below"), ([".", "-o", "out", "--ops", "std"], "--ops: std is none of")):
        done = subprocess.run([sys.executable, "-m", "rankprobe.monitor_csv", *words], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 2 and fault in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_parameters_behind_the_step_are_there_whatever_pytorch_is(tmp_path) -> None:
    """PyTorch below 2.0 has no hooks of optimizers: what is around its step is to lie inside of what ends ours."""
    script = ("import sys, torch; from rankprobe.pytorch import TrainerMon\n"
              "net = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
              "TrainerMon(sys.argv[1], params_have_main_grad=False).set_monitor(net, optimizer)\n"
              "for _ in range(2):\n    net(torch.ones(1, 2)).sum().backward(); optimizer.step()\n")
    config = _config(tmp_path, param_distribution=True, ops=["norm"])
    done = subprocess.run([sys.executable, "-c", script, config], capture_output=True, text=True, timeout=120, cwd=tmp_path,
                          env={**os.environ, "MONITOR_OUTPUT_DIR": str(tmp_path / "out")})
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("out/*/*.csv")} == {
        f"param_{which}_{step}-{step}.csv" for which in ("origin", "updated") for step in (0, 1)}
