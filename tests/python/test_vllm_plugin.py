# SPDX-License-Identifier: Apache-2.0
"""The plugin of vLLM where there is no vLLM: what it declares, takes and refuses.

With vLLM: tests/serving, run by tests/run.sh --stage vllm.
"""

from __future__ import annotations

import enum
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tomllib
import types

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
    assert settings(given, {"RANKPROBE_ATTACH": "idle"}) == (None, None, 0)


@pytest.mark.parametrize("given, fault", [
    ({"dump_config_pth": "a.json"}, "unknown dump_config_pth; known are dump_config_path, dump_config, dump_kv_cache"),
    ({"dump_config_path": "a.json", "dump_config": {}}, "give only one of"),
    ({"dump_config_path": 3}, "dump_config_path must be the path"),
    ({"dump_config_path": ""}, "dump_config_path must be the path"),
    ({"dump_kv_cache": True}, "dump_kv_cache needs dump_config"),
    ({"dump_config": {}, "dump_kv_cache": "yes"}, "dump_kv_cache must be true, false or a number of steps"),
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


def _vllm_config(mode: object, captured: object, eager: bool = False) -> types.SimpleNamespace:
    return types.SimpleNamespace(model_config=types.SimpleNamespace(enforce_eager=eager),
                                 compilation_config=types.SimpleNamespace(mode=mode, cudagraph_mode=captured))


class Mode(enum.Enum):
    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3
    FULL_AND_PIECEWISE = (2, 1)


@pytest.mark.parametrize("mode, captured, supported, why", [
    (Mode.DYNAMO_TRACE_ONCE, Mode.NONE, True, ""),
    (Mode.STOCK_TORCH_COMPILE, None, True, ""),
    (Mode.DYNAMO_TRACE_ONCE, Mode.NONE, False, "with PyTorch 2.13 or later"),
    (Mode.VLLM_COMPILE, Mode.NONE, True, "vLLM's own backend compiles them in pieces"),
    (Mode.DYNAMO_TRACE_ONCE, Mode.FULL_AND_PIECEWISE, True, "they are captured and replayed"),
    (Mode.NONE, Mode.FULL_AND_PIECEWISE, True, "they are captured and replayed"),
])
def test_which_compiled_servers_are_recorded(mode: object, captured: object, supported: bool, why: str) -> None:
    from rankprobe.vllm._settings import GRAPH_MODE, graph_mode, why_not_recorded

    config = _vllm_config(mode, captured)
    assert graph_mode(config) and not graph_mode(_vllm_config(mode, captured, eager=True))
    said = why_not_recorded(config, supported)
    assert said == "" if why == "" else said.startswith(GRAPH_MODE) and why in said


def test_a_server_in_eager_mode_is_no_compiled_one() -> None:
    from rankprobe.vllm._settings import graph_mode

    assert not graph_mode(_vllm_config(Mode.NONE, Mode.NONE)) and not graph_mode(_vllm_config(None, None))


COMPILED_PART = """
import json, pathlib, sys, types
import torch
from rankprobe.pytorch import PrecisionDebugger
from rankprobe.vllm._compiled import CompiledParts

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Part(torch.nn.Module):
    \"\"\"As vLLM's decorator makes one: what is compiled is called past Dynamo and past hooks.\"\"\"
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.do_not_compile, self._dynamic_arg_dims, self._compiled_bytecode = False, {"x": 0}, "the server's own"
        self.vllm_config = types.SimpleNamespace(compilation_config=types.SimpleNamespace())
        self._compiled_callable = torch.compile(self.forward, fullgraph=True, dynamic=False, backend="aot_eager",
                                                options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe})
        self.plain_calls = 0
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
    def __call__(self, x):
        self.plain_calls += 1
        for layer in self.layers:
            x = layer.forward(x)
        return x

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.head = Part(), torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.head(self.model(x))

torch.manual_seed(0)
model, dump = Model(), pathlib.Path(sys.argv[1])
own, parts = Part.__call__, CompiledParts(model)
debugger = PrecisionDebugger(dump_path=str(dump), task="statistics", level="L0", step=[1, 3])
with torch.inference_mode():
    with parts.entered():
        debugger._instruments.compile_ahead(model, lambda: model(torch.randn(6, 4)))
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    answers = []
    for rows in (5, 3, 1, 7):
        x = torch.ones(rows, 4)
        debugger.start(model=model)
        if debugger._steps.running:
            parts.enter()
        answers.append(model(x))
        parts.leave()
        debugger.stop()
        debugger.step()
        assert torch.equal(answers[-1], model(x))
    assert Part.__call__ is own and vars(Part)["__call__"] is own
    assert model.model._compiled_bytecode == "the server's own"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled == 1, torch._dynamo.utils.counters["stats"]
    # Two recorded steps of four did not call what the server had compiled; the checks did.
    assert model.model.plain_calls == 2 + 4
    assert debugger._capture.faults == 0
    assert not any("rankprobe" in name for module in model.modules() for name in vars(module))
debugger.close()
for step, rows in ((1, 3), (3, 7)):
    data = json.loads(next((dump / f"step{step}").glob("*/dump.json")).read_text())["data"]
    assert {f"Module.model.layers.{layer}.{name}" for layer in (0, 1) for name in ("up.Linear.forward.0", "down.Linear.forward.0")} <= set(data), sorted(data)
    assert data["Module.model.layers.1.up.Linear.forward.0"]["output"][0]["shape"] == [rows, 8]
    assert "Module.head.Linear.forward.0" in data and not (dump / f"step{step - 1}").exists()
print("recorded")
"""


def test_a_part_that_is_compiled_is_recorded_by_a_graph_of_its_own(tmp_path: pathlib.Path) -> None:
    from rankprobe.pytorch._graph_calls import SUPPORTED

    if not SUPPORTED:
        pytest.skip("PyTorch 2.13 or later")
    done = subprocess.run([sys.executable, "-c", COMPILED_PART, tmp_path / "dump"], env={**os.environ, "PYTHONPATH": PACKAGE}, cwd=tmp_path,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.endswith("recorded\n"), done.stderr[-4000:]


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
