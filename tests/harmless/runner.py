# SPDX-License-Identifier: Apache-2.0
"""Runs one of programs.py in several modes, each from the same seeds: `runner.py NAME MODE..`, one line of JSON for a mode.
`runner.py NAME,NAME.. MODE..`: each program in a process of its own, forked once torch is imported, and in a directory of its name.

Modes: off, LEVEL:TASK (the debugger from the first step on), switched (its file switches it on in the middle).
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import linecache
import os
import pickle
import random
import sys
import traceback
from typing import Any

import torch

from programs import PROGRAMS

STEPS = 3


class Off:
    def start(self, *_: Any) -> None: ...
    def stop(self) -> None: ...
    def step(self) -> None: ...


class Switched:
    """Off at first, on from the second step on."""

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
    place = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "copy": copy, "io": io, "pickle": pickle, "STEPS": STEPS, "d": debugger,
             "__name__": "__main__"}
    # Classes of a program are pickled by their names in __main__.
    vars(sys.modules["__main__"]).update({key: value for key, value in place.items() if key != "__name__"})
    text = PROGRAMS[name][1]
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # TorchScript reads sources
    out, error = io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(text, name, "exec"), place)
        except Exception as raised:  # noqa: BLE001
            error = repr(raised)
    said = "".join(line for line in out.getvalue().splitlines(True) if not (line.startswith("*") and line.rstrip().endswith("*")))
    return {"digest": _digest(place.get("result")), "stdout": said, "error": error}


def main(name: str, modes: list[str]) -> None:
    torch.set_num_threads(1)
    for mode in modes:
        debugger: Any = Off()
        if mode != "off":
            from rankprobe.pytorch import PrecisionDebugger

            os.environ["RANKPROBE_RUN"] = f"{name}-{mode.replace(':', '-')}"
            level, _, task = ("mix", "", "statistics") if mode == "switched" else mode.partition(":")
            _config("config.json", level, task, mode != "switched")
            debugger = PrecisionDebugger(config_path="config.json")
            used = Switched(debugger, "config.json") if mode == "switched" else debugger
            answer = _run(name, used)
            answer["faults"] = debugger._capture.faults
            debugger.close()
        else:
            answer = _run(name, debugger)
        print(json.dumps({"program": name, "mode": mode, **answer}), flush=True)


def fork_each(names: list[str], modes: list[str]) -> None:
    for name in names:
        child = os.fork()
        if child == 0:
            os.mkdir(name)
            os.chdir(name)
            try:
                main(name, modes)
            except BaseException:  # noqa: BLE001 - the parent's test misses its answers
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    programs = sys.argv[1].split(",")
    if len(programs) > 1:
        fork_each(programs, sys.argv[2:])
    else:
        main(programs[0], sys.argv[2:])
