# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the program's signal handlers reach the program, also when our code runs at that moment."""

from __future__ import annotations

import importlib.machinery
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import types

import harness
import pytest

import rankprobe
from rankprobe import _native

torch = pytest.importorskip("torch")

SCRIPT = textwrap.dedent("""
    import sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    import alarms
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(30)])
    debugger = PrecisionDebugger(dump_path=sys.argv[3], level=sys.argv[2])
    debugger.start(model)
    model(torch.ones(4, 8))  # what is imported and read of files at first has an `except OSError` of the standard library's
    def start():
        x = torch.ones(4, 8)
        def forward():
            nonlocal x
            x = model(x).detach()
        return forward
    missed = alarms.missed(sys.argv[1], start)
    debugger.stop()
    print("missed", missed)
""")


@pytest.mark.parametrize("kind", ["Limit", "TimeoutError", "KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_no_exception_of_a_handler_is_lost(tmp_path: pathlib.Path, level: str, kind: str) -> None:
    if level == "mix" and torch.__version__.startswith("1."):
        pytest.skip("the function mode of PyTorch 1.13 is Python code, which an exception at the wrong moment leaves half done")
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "RANKPROBE_COLLECTOR")}
    done = subprocess.run([sys.executable, "-c", SCRIPT, kind, level, tmp_path / "dump"], capture_output=True, text=True,
                          timeout=300, env={**environment, "RANKPROBE_BIN_DIR": str(harness.BIN),
                                            "PYTHONPATH": f"{pathlib.Path(rankprobe.__file__).parents[1]}:{harness.ROOT / 'tests' / 'lib'}"})
    assert done.returncode == 0 and done.stdout.split() == ["missed", "0"], done.stdout + done.stderr
    errors = [path.read_text() for path in (tmp_path / "dump").rglob("dump_error_info.log")]
    assert not any("alarm" in text for text in errors), errors


READING = textwrap.dedent("""
    import importlib, pathlib, signal, sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    folder = pathlib.Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    for number in range(30):
        (folder / f"caller_{number}.py").write_text("def call(model, x):\\n    return model(x)\\n" + "# more\\n" * 20000)
    callers = [importlib.import_module(f"caller_{number}").call for number in range(30)]
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    debugger = PrecisionDebugger(dump_path=str(folder / "dump"), level="L0")
    debugger.start(model)
    x = torch.ones(4, 8)
    model(x)

    def handler(*_):
        raise TimeoutError("alarm")

    signal.signal(signal.SIGALRM, handler)
    missed = 0
    for number, call in enumerate(callers):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.0002 * number)
                for _ in range(20000):
                    call(model, x)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            missed += 1
        except TimeoutError:
            pass
    for call in callers:
        call(model, x)
    debugger.stop()
    print("missed", missed)
""")


def test_none_is_lost_where_source_files_are_read_for_stacks(tmp_path: pathlib.Path) -> None:
    """A TimeoutError is an OSError, as what a file that is not there raises."""
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "RANKPROBE_COLLECTOR")}
    done = subprocess.run([sys.executable, "-c", READING, tmp_path], capture_output=True, text=True, timeout=300,
                          env={**environment, "RANKPROBE_BIN_DIR": str(harness.BIN),
                               "PYTHONPATH": str(pathlib.Path(rankprobe.__file__).parents[1])})
    assert done.returncode == 0 and done.stdout.split() == ["missed", "0"], done.stdout + done.stderr
    stacks = next((tmp_path / "dump" / "step0").glob("*/stack.json")).read_text()
    assert all(f"caller_{number}.py, line 2, in call" in stacks for number in range(30))


def test_faults_of_our_own_stay_ours() -> None:
    try:
        torch.ones(2).view(3)
    except RuntimeError as error:
        assert not _native.raise_later_if_programs(error)
    told = []

    def elsewhere() -> None:
        told.append(_native.raise_later_if_programs(KeyboardInterrupt()))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert told == [False], "it would be raised in the main thread"


class Limit(Exception):
    """What a handler of the program raises."""


@pytest.fixture
def fire():
    """Takes any arguments: an alarm comes, whose handler raises."""

    def handler(*_) -> None:
        raise Limit("alarm")

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda *_, **__: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def _attach_hook(fire, _) -> None:
    from rankprobe.pytorch import _attach_hook as hook

    hook._guarded(fire)


def _mindspores_attach_hook(fire, _) -> None:
    pytest.importorskip("mindspore")
    from rankprobe.mindspore import _attach_hook as hook

    hook._guarded(fire)


def _device_read(fire, monkeypatch) -> None:
    from rankprobe.pytorch import _device

    monkeypatch.setattr(_device, "backend_of", fire)
    _device.DeviceReader(fire).read(torch.ones(2), torch.ones(2), _device.NUMBERS, -1)


def _device_finish(fire, _) -> None:
    from rankprobe.pytorch import _device

    reader = _device.DeviceReader()
    reader.statistics.take_slot()
    reader._work[torch.device("cpu")] = types.SimpleNamespace(begin_copy=fire)
    reader.finish()


def _namespaces(fire, monkeypatch) -> None:
    from rankprobe.pytorch import _namespaces as names

    held = names.Namespaces(None)
    held.use(["mine"])
    monkeypatch.setattr(held, "_register", fire)
    try:
        held.refresh()
    finally:
        monkeypatch.setattr(held, "_register", lambda: monkeypatch.setattr(held, "again", True, raising=False))
        held.refresh()
        assert held.again, "what the alarm came between was never done"


def _wrap_ops(fire, monkeypatch) -> None:
    from rankprobe.pytorch import _wrap_ops as ops

    monkeypatch.setattr(ops, "_resolve", fire)
    held = ops.WrapOps(None, {"mine": ["f"]})
    try:
        held.refresh()
    finally:
        assert held._pending == [("mine", "f")]


def _wrap_ops_of_msprobe(fire, monkeypatch) -> None:
    from rankprobe.pytorch import _wrap_ops as ops

    monkeypatch.delenv("RANKPROBE_CUSTOM_WRAP_OPS", raising=False)
    monkeypatch.setenv("RANKPROBE_AS_MSPROBE", "told")
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", fire)
    ops.wanted()


def _switch(fire, monkeypatch) -> None:
    from rankprobe._frontend.config import ConfigFile
    from rankprobe._frontend.switch import Switch

    switch = Switch.__new__(Switch)
    switch.followed, switch._file = True, types.SimpleNamespace(edited=fire, path="config.json")
    assert hasattr(ConfigFile, "edited")
    switch.follow_file(None)


def _exports(fire, monkeypatch) -> None:
    from rankprobe._frontend.exports import Exports

    exports, warned = Exports.__new__(Exports), []
    exports._steps = types.SimpleNamespace(close=lambda: None, take_faults=list)
    exports.embedded, exports.root, exports._warn = types.SimpleNamespace(ensure_supervised=fire), "dump", warned.append
    try:
        exports.close()
    finally:
        assert exports.embedded.unfinished and len(warned) == 1


def _vllm_worker(fire, monkeypatch) -> None:
    from rankprobe.vllm import _worker

    monkeypatch.delenv("RANKPROBE_ATTACH", raising=False)
    monkeypatch.setattr(_worker, "settings", fire)
    _worker._look_at(types.SimpleNamespace(rank=0), None)


def _vllm_steps(fire, _) -> None:
    from rankprobe.vllm._steps import Steps

    steps = Steps(None, None, None, print)
    try:
        steps._guarded(fire)
    finally:
        assert not steps._broken


def _graphs(fire, _) -> None:
    graphs = pytest.importorskip("rankprobe.pytorch._graphs")
    if not graphs._graph_calls.SUPPORTED:
        pytest.skip("this PyTorch compiles nothing that is recorded")
    variant = graphs._Variant.__new__(graphs._Variant)
    variant._broken, variant._failed = False, pytest.fail

    def compile_frame(*_) -> None:
        try:
            fire()
        except Limit as error:
            raise RuntimeError("as Dynamo wraps it") from error

    variant._torchdynamo_orig_backend = compile_frame
    try:
        variant(types.SimpleNamespace(f_code=fire.__code__), None, None)
    finally:
        assert not variant._broken


def _recompute_state(fire, _) -> None:
    from rankprobe.pytorch import _recompute

    _recompute._Whole(None, None, types.SimpleNamespace(buffers=fire))


def _recompute_decision(fire, monkeypatch) -> None:
    from rankprobe.pytorch import _recompute

    region = _recompute._Whole(types.SimpleNamespace(early_stop=True), None, types.SimpleNamespace(buffers=lambda: None, wanted=fire))
    region._unchanged = True
    region._may_run_on()


def _recompute_rest(fire, monkeypatch) -> None:
    """In what would not have run without us."""
    from rankprobe.pytorch import _recompute

    frame = types.SimpleNamespace(recomp_counter={}, weak_holders=[], ignore_saved_mismatch=False)
    region = _recompute._Whole(frame, fire, types.SimpleNamespace(buffers=lambda: None))
    monkeypatch.setattr(region, "_may_run_on", lambda: True)
    region()


def _fault_that_cannot_be_shown(fire, _) -> None:
    from rankprobe._frontend import process

    odd = type("Odd", (Exception,), {"__repr__": fire})
    process.report_fault(types.SimpleNamespace(report_fault=lambda _: None), "here", odd())


def _fault_that_cannot_be_told(fire, _) -> None:
    from rankprobe._frontend import process

    process.report_fault(types.SimpleNamespace(report_fault=fire), "here", ValueError())


def _vllm_register(fire, monkeypatch) -> None:
    from rankprobe import vllm
    from rankprobe.vllm import _worker

    for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.worker_base"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["vllm.v1.worker.worker_base"].WorkerWrapperBase = object
    monkeypatch.setattr(_worker, "watch", fire)
    monkeypatch.setattr(vllm, "_registered", False)
    try:
        vllm.register()
    finally:
        assert not vllm._registered


def _line(fire, monkeypatch) -> None:
    from rankprobe import _say

    monkeypatch.setattr(sys, "__stderr__", types.SimpleNamespace(fileno=lambda: 2, flush=fire))
    _say.say("a line")


@pytest.mark.parametrize("place", [
    _attach_hook, _mindspores_attach_hook, _device_read, _device_finish, _namespaces, _wrap_ops, _wrap_ops_of_msprobe, _switch,
    _exports, _vllm_worker, _vllm_steps, _graphs, _recompute_state, _recompute_decision, _recompute_rest, _line,
    _fault_that_cannot_be_shown, _fault_that_cannot_be_told, _vllm_register,
], ids=lambda place: place.__name__.strip("_"))
def test_no_guard_of_ours_swallows_it(fire, monkeypatch, place) -> None:
    with pytest.raises(Limit, match="alarm"):
        place(fire, monkeypatch)
        for _ in range(100):  # raised soon
            len([])


def test_a_line_to_a_reader_that_is_gone_ends_no_program_that_lets_sigpipe_do_so() -> None:
    program = """
import os, signal
from rankprobe._say import say
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(reader)
say("one")
print(signal.sigpending(), signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)
os.write(2, b"the program's own")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGPIPE, "set() set()\n")
