# SPDX-License-Identifier: Apache-2.0
"""The plugin of vLLM where there is no vLLM: what it declares, takes and refuses.

With vLLM: tests/serving, run by tests/run.sh --stage vllm.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tomllib

import harness
import pytest

import rankprobe

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = str(pathlib.Path(rankprobe.__file__).parents[1])


def test_the_entry_point_that_is_declared_can_be_loaded() -> None:
    declared = tomllib.loads((ROOT / "agent" / "python" / "pyproject.toml").read_text())["project"]["entry-points"]
    (name, value), = declared["vllm.general_plugins"].items()
    register = importlib.metadata.EntryPoint(name, value, "vllm.general_plugins").load()
    assert name == "rankprobe" and register.__name__ == "register"


def test_without_vllm_it_says_so_once_and_raises_nothing() -> None:
    code = "from rankprobe.vllm import register; register(); register()"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.count("rankprobe: not attached to vLLM: ModuleNotFoundError") == 1, done.stderr


@pytest.mark.parametrize("given", [None, {}, {"ascend_scheduler_config": {"enabled": True}}, object()])
def test_nothing_is_asked_for(given: object) -> None:
    from rankprobe.vllm._settings import settings

    assert settings(given, {}) is None
    # Under `rankprobe run` it waits to be switched on.
    assert settings(given, {"RANKPROBE_ATTACH": "idle"}) == (None, None)


@pytest.mark.parametrize("given, fault", [
    ({"dump_config_pth": "a.json"}, "unknown dump_config_pth; known are dump_config_path and dump_config"),
    ({"dump_config_path": "a.json", "dump_config": {}}, "give only one of"),
    ({"dump_config_path": 3}, "dump_config_path must be the path"),
    ({"dump_config_path": ""}, "dump_config_path must be the path"),
    ({"dump_config": "a.json"}, "dump_config must be the contents of a config.json"),
])
def test_what_cannot_be_meant_is_refused(given: dict, fault: str) -> None:
    from rankprobe.vllm._settings import settings

    with pytest.raises(ValueError, match=fault):
        settings(given, {})


def test_a_config_given_inline_is_a_file_while_it_is_read() -> None:
    from rankprobe.vllm._settings import settings

    wanted = settings({"dump_config": {"task": "tensor", "level": "L1"}, "other": 1}, {})
    with wanted.config_file() as path:
        assert json.loads(pathlib.Path(path).read_text()) == {"task": "tensor", "level": "L1"}
    assert not os.path.exists(path)
    with settings({"dump_config_path": "/a/config.json"}, {}).config_file() as path:
        assert path == "/a/config.json"


def test_under_rankprobe_run_it_is_idle_until_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankprobe.vllm._settings import settings

    monkeypatch.delenv("RANKPROBE_CONFIG", raising=False)
    for mode, enabled in (("idle", False), ("on", True)):
        monkeypatch.setenv("RANKPROBE_ATTACH", mode)
        with settings({}, os.environ).config_file() as path:
            assert json.loads(pathlib.Path(path).read_text())["dump_enable"] is enabled


COMPILED_SERVER = """
import sys, types
from rankprobe.vllm import _worker
worker = types.SimpleNamespace(rank=0, compile_or_warm_up_model=lambda: None)
config = types.SimpleNamespace(instance_id="0", additional_config=None, model_config=types.SimpleNamespace(enforce_eager=False),
                               compilation_config=types.SimpleNamespace(mode=3, cudagraph_mode=None))
_worker._look_at(worker, config)
worker.compile_or_warm_up_model()
print("serving", flush=True)
sys.stdin.readline()
"""


def test_a_server_of_compiled_graphs_says_why_it_records_nothing(collector: harness.Collector, tmp_path: pathlib.Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", COMPILED_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                              env={**os.environ, "PYTHONPATH": PACKAGE, "RANKPROBE_ATTACH": "idle", "RANKPROBE_COLLECTOR": collector.address,
                                   "RANKPROBE_RUN": "compiled", "RANK": "0"})
    assert server.stdout.readline() == "serving\n"
    why = "add the --enforce-eager flag. This server runs compiled graphs"
    harness.wait_for(lambda: why in collector.cli("status", "--run", "compiled", check=False).stdout, 60, "the reason in status")
    switched = collector.cli("enable", "--run", "compiled", "--for-steps", "1", check=False)
    assert switched.returncode == 1 and why in switched.stdout + switched.stderr, (switched.returncode, switched.stdout, switched.stderr)
    _, said = server.communicate("\n", timeout=60)
    assert server.returncode == 0 and said.count("rankprobe: not attached: Please enforce eager mode") == 1, said


TRAINER = """
import sys, torch
from rankprobe.pytorch import PrecisionDebugger
debugger, net = PrecisionDebugger(config_path=sys.argv[1]), torch.nn.Linear(2, 2)
for _ in sys.stdin:
    debugger.start(model=net)
    net(torch.ones(1, 2))
    debugger.stop()
    debugger.step()
    print("step", flush=True)
debugger.close()
"""


def test_a_compiled_server_beside_a_training_of_its_run_stops_nothing(collector: harness.Collector, tmp_path: pathlib.Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "dump_path": str(tmp_path / "dump"), "rank": [], "step": [], "level": "L1"}))
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": "both"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, config], env={**environment, "RANK": "0"}, **pipes)

    def step() -> None:
        trainer.stdin.write("\n")
        trainer.stdin.flush()
        assert trainer.stdout.readline() == "step\n"

    step()
    server = subprocess.Popen([sys.executable, "-c", COMPILED_SERVER], env={**environment, "RANKPROBE_ATTACH": "idle"}, **pipes)
    assert server.stdout.readline() == "serving\n"
    harness.wait_for(lambda: "runs compiled graphs" in collector.cli("status", "--run", "both", check=False).stdout, 60, "the reason in status")
    step()
    # A switch is of the rank that can follow.
    switched = collector.cli("enable", "--run", "both", "--for-steps", "1", "--no-wait", check=False)
    assert switched.returncode == 0, (switched.stdout, switched.stderr)
    for process in (server, trainer):
        process.communicate(timeout=60)
        assert process.returncode == 0
    recorded = [json.loads(line) for line in collector.cli("ledger", "--run", "both", "--json", check=False).stdout.splitlines()]
    assert {one["step"] for one in recorded if one.get("state") == "STATE_WHOLE"} == {0, 1}, recorded
