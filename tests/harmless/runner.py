# SPDX-License-Identifier: Apache-2.0
"""Runs one of programs.py in several modes, each from the same seeds: `runner.py NAME,NAME.. MODE..`, one line of JSON for each program and
mode, which runs in a process of its own, forked once torch is imported, in a directory NAME/MODE. `runner.py --here NAME MODE`: in
this process and directory, as `python program.py`; what only the process knows is in answer.json.

Modes: off, LEVEL:TASK (the debugger from the first step on), switched (its file switches it on in the middle), flight (dumping is off,
and the collector asks for a flight recorder), attached (off, in a process that `rankprobe run --on` has attached to), monitored (off, in
one that `rankprobe run --monitor --every 1` without a collector has attached to).
"""

from __future__ import annotations

import argparse
import copy
import gc
import hashlib
import importlib
import io
import json
import linecache
import os
import pathlib
import pickle
import random
import sys
import types
from typing import Any

import torch

from programs import PROGRAMS

STEPS = 3


class Off:
    def start(self, *_: Any) -> None: ...
    def stop(self) -> None: ...
    def step(self) -> None: ...


class Switched:
    """A debugger that is off in the first step, and then switched on by its config file."""

    def __init__(self, debugger: Any, path: str) -> None:
        self._debugger, self._path, self._steps = debugger, path, 0
        self.start, self.stop = debugger.start, debugger.stop

    def step(self) -> None:
        self._debugger.step()
        self._steps += 1
        if self._steps == 1:
            _config(self._path, "mix", "statistics", True)


def _config(path: str, level: str, task: str, enabled: bool) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({"task": task, "level": level, "dump_path": "dump", "rank": [], "step": [], "dump_enable": enabled}, file)
    os.replace(path + ".new", path)


def _digest(*things: Any) -> str:
    digest = hashlib.sha256()

    def feed(value: Any) -> None:
        if isinstance(value, torch.nn.Module):
            feed(dict(value.state_dict()))
            feed([p.grad for p in value.parameters()])
        elif isinstance(value, torch.optim.Optimizer):
            feed(value.state_dict())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                digest.update(str(key).encode())
                feed(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                feed(item)
        elif isinstance(value, torch.Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        else:
            digest.update(repr(value).encode())

    feed(things)
    digest.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
    return digest.hexdigest()


def _run(name: str, debugger: Any) -> dict:
    torch.manual_seed(0)
    random.seed(0)
    program = types.ModuleType("__main__")  # Classes of the program are pickled by this module name.
    sys.modules["__main__"] = program
    vars(program).update({"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "copy": copy, "io": io, "pickle": pickle, "STEPS": STEPS,
                          "d": debugger})
    text = PROGRAMS[name][1]
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # TorchScript reads the source.
    exec(compile(text, name, "exec"), vars(program))
    return {"digest": _digest(vars(program).get("result"))}


def _debugger(mode: str) -> tuple[Any, Any]:
    """Returns the object that the program uses, and the debugger itself or None."""
    if mode in ("off", "attached", "monitored"):
        return Off(), None
    from rankprobe.pytorch import PrecisionDebugger

    level, _, task = mode.partition(":") if ":" in mode else ("mix", "", "statistics")
    _config("config.json", level, task, ":" in mode)
    debugger = PrecisionDebugger(config_path="config.json")
    return (Switched(debugger, "config.json") if mode == "switched" else debugger), debugger


def here(name: str, mode: str) -> None:
    torch.set_num_threads(1)
    used, debugger = _debugger(mode)
    answer = _run(name, used)
    if debugger is not None:
        answer["faults"] = debugger._capture.faults
    pathlib.Path("answer.json").write_text(json.dumps(answer))


# Names that the runner and rankprobe write in a program's directory.
_OURS = {"answer.json", "config.json", "dump", "dump_path", "stdout", "stderr"}


def collected(directory: pathlib.Path, code: int, stdout: str, stderr: str) -> dict:
    """Returns the observable results of one run of here(), without rankprobe's lines on stderr and those of PyTorch's profiler, which
    contain times."""
    found = directory / "answer.json"
    return {"code": code, "stdout": stdout, "stderr": [line for line in stderr.splitlines() if not line.startswith(("rankprobe: ", "USDT:"))],
            "files": {str(path.relative_to(directory)): path.stat().st_size for path in sorted(directory.rglob("*"))
                      if path.is_file() and path.relative_to(directory).parts[0] not in _OURS},
            "faults": 0, **(json.loads(found.read_text()) if found.exists() else {})}


def _attach(monitor: bool) -> None:
    """Attaches as attach/sitecustomize.py does after the import of torch, in the environment of `rankprobe run --on`, or of `rankprobe
    run --monitor --every 1`."""
    from rankprobe import run
    from rankprobe.pytorch import _attach_hook

    asked = argparse.Namespace(as_msprobe=False, on=True, monitor=monitor, every=1, collector=None, run=None, config=None,
                               on_collector_missing=None)
    os.environ.update(run.environment(asked, dict(os.environ)))
    _attach_hook.install(torch.optim.Optimizer)


def _in_child(name: str, mode: str, directory: pathlib.Path) -> bool:
    """Forks. Returns True in the child, which runs to its end as an ordinary process; the parent waits, prints the result and returns
    False."""
    directory.mkdir(parents=True)
    child = os.fork()
    if child == 0:
        os.chdir(directory)
        os.environ["RANKPROBE_RUN"] = f"{name}-{mode.replace(':', '-')}"
        if mode == "flight":
            os.environ["RANKPROBE_COLLECTOR"] = os.environ["COLLECTOR_WITH_FLIGHT_RECORDER"]
        for number, file in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        if mode == "monitored":
            os.environ.pop("RANKPROBE_COLLECTOR", None)
        if mode in ("attached", "monitored"):
            _attach(mode == "monitored")
        return True
    _, status = os.waitpid(child, 0)
    said = [(directory / file).read_text(errors="replace") for file in ("stdout", "stderr")]
    answer = collected(directory, os.waitstatus_to_exitcode(status), *said)
    print(json.dumps({"program": name, "mode": mode, **answer}), flush=True)
    return False


def main(names: list[str], modes: list[str]) -> None:
    if hasattr(torch, "compile"):  # Otherwise each child would import it with its first optimizer. With --here it is imported within a step.
        importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()  # Otherwise each child would copy the pages of torch's objects when it frees them at its end.
    top = pathlib.Path.cwd()
    for name in names:
        for mode in modes:
            if _in_child(name, mode, top / name / mode.replace(":", "-")):
                return here(name, mode)


if __name__ == "__main__":
    if sys.argv[1] == "--here":
        here(*sys.argv[2:])
    else:
        main(sys.argv[1].split(","), sys.argv[2:])
