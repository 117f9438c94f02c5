# SPDX-License-Identifier: Apache-2.0
"""`rankprobe run --as-msprobe`: programs that import msprobe, without a line changed and with no msprobe."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

import rankprobe

# Stage torch113 runs them: its interpreter has no msprobe of its own.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("msprobe") is not None, reason="the real msprobe is installed")

PROGRAM = """
import multiprocessing, os, sys
import msprobe
from msprobe.pytorch import PrecisionDebugger, seed_all
from msprobe.core.common.exceptions import MsprobeException

def serve():
    import torch
    seed_all(mode=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    try:
        debugger.start(model=model, token_range="x")
        print("no error")
    except MsprobeException:
        pass
    for _ in range(2):
        debugger.start(model=model, scheduled_tokens={"r": 2, "q": 1})
        model(torch.ones(3, 4))
        debugger.stop()
        debugger.step()
    print("module", PrecisionDebugger.__module__, msprobe.__file__)

if __name__ == "__main__":
    if sys.argv[2:] == ["child"]:
        process = multiprocessing.get_context("spawn").Process(target=serve)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    serve()
"""


def _run(directory: pathlib.Path, program: str, *arguments: str, paths: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    script = directory / "serve.py"
    script.write_text(program)
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    return subprocess.run([sys.executable, "-m", "rankprobe.run", "--as-msprobe", "--", sys.executable, str(script), *arguments],
                          cwd=directory, env={**os.environ, "PYTHONPATH": os.pathsep.join((package, *paths))},
                          capture_output=True, text=True, timeout=180)


def _config(directory: pathlib.Path) -> str:
    path = directory / "config.json"
    path.write_text(json.dumps({"task": "statistics", "level": "mix", "dump_path": str(directory / "dump"), "rank": [],
                                "step": [], "statistics": {"request_id": "q"}}))
    return str(path)


@pytest.mark.parametrize("where", ["", "child"])
def test_a_program_that_imports_msprobe(tmp_path: pathlib.Path, where: str) -> None:
    done = _run(tmp_path, PROGRAM, _config(tmp_path), *where.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0].startswith("module rankprobe."), done.stdout
    assert "in place of" not in done.stderr and "attached" not in done.stderr, done.stderr
    for step in range(2):
        (directory,) = (tmp_path / "dump" / f"step{step}").iterdir()
        data = json.loads((directory / "dump.json").read_text())["data"]
        assert data["Module.0.Linear.forward.0"]["output"][0]["shape"] == [1, 4]


def test_what_there_is_not_says_so(tmp_path: pathlib.Path) -> None:
    done = _run(tmp_path, """
import msprobe.pytorch
print(hasattr(msprobe.pytorch, "set_ge_dump_config"))
for text in ("from msprobe.pytorch import set_ge_dump_config", "import msprobe.mindspore", "msprobe.pytorch.acl_save",
             "from msprobe.pytorch.common.utils import Const"):
    try:
        exec(text)
    except (ImportError, AttributeError) as error:
        print(type(error).__name__, error)
""")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "False" and len(lines) == 5, done.stdout
    for line, kind, name in zip(lines[1:], ("ImportError", "ImportError", "AttributeError", "ImportError"), (
            "msprobe.pytorch.set_ge_dump_config", "msprobe.mindspore", "msprobe.pytorch.acl_save",
            "msprobe.pytorch.common.utils.Const")):
        assert line.startswith(f"{kind} rankprobe has no {name} (rankprobe run --as-msprobe"), line


def test_an_installed_msprobe_is_named_once_and_not_imported(tmp_path: pathlib.Path) -> None:
    real = tmp_path / "site" / "msprobe"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("raise SystemExit('the real one')")
    done = _run(tmp_path, PROGRAM, _config(tmp_path), "child", paths=(str(real.parent),))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"rankprobe records in place of the msprobe of {real}") == 1, done.stderr


def test_flags_that_make_no_sense_with_it(tmp_path: pathlib.Path) -> None:
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    done = subprocess.run([sys.executable, "-m", "rankprobe.run", "--as-msprobe", "--on", "--", sys.executable, "-V"],
                          env={**os.environ, "PYTHONPATH": package}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "own PrecisionDebugger" in done.stderr


def test_without_the_flag_nothing_stands_for_msprobe(tmp_path: pathlib.Path) -> None:
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    done = subprocess.run([sys.executable, "-m", "rankprobe.run", "--", sys.executable, "-c", "import msprobe"],
                          env={**os.environ, "PYTHONPATH": package}, capture_output=True, text=True, timeout=60)
    assert "No module named 'msprobe'" in done.stderr


@pytest.mark.parametrize("stderr", ["closed", "none", "full"])
@pytest.mark.parametrize("what", ["told", "not attached"])
def test_a_stderr_that_takes_nothing_ends_no_program(stderr: str, what: str) -> None:
    take = {"closed": "sys.stderr.close()", "none": "sys.stderr = None", "full": "sys.stderr = open('/dev/full', 'w', buffering=1)"}[stderr]
    say = {"told": "import importlib.machinery, rankprobe_as_msprobe as ours\n"
                   "finder, spec = importlib.machinery.PathFinder, importlib.machinery.ModuleSpec('msprobe', None, origin='/x/y')\n"
                   "find = finder.find_spec\n"
                   "finder.find_spec = lambda name, *args: spec if name == 'msprobe' else find(name, *args)\n"
                   "ours._tell_of_the_real_one()\n",
           "not attached": "import sitecustomize\n"
                           "finder = sitecustomize._Finder()\n"
                           "finder.watched = {'colorsys': lambda module: 1 / 0}\n"
                           "sys.meta_path.insert(0, finder)\n"
                           "import colorsys\n"}[what]
    package = pathlib.Path(rankprobe.__file__).parent
    environment = {key: value for key, value in os.environ.items() if key not in ("RANKPROBE_ATTACH", "RANK")}
    done = subprocess.run([sys.executable, "-c", f"import os, sys\n{take}\n{say}os.write(1, b'alive')\nos._exit(0)"],
                          env={**environment, "RANKPROBE_AS_MSPROBE": "1", "PYTHONPATH": f"{package / 'attach'}:{package.parent}"},
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "alive", done


def test_a_driver_that_reaches_into_the_debugger(dump, capfd) -> None:
    """verl sets the path of each stage, and swallows what that raises."""
    import torch
    from rankprobe.pytorch import PrecisionDebugger

    dump.debugger(level="L1")
    for stage in ("old_log_prob", "update_actor"):
        PrecisionDebugger._instance.service.config.dump_path = f"data/{stage}"
        PrecisionDebugger._instance.start()
        torch.relu(torch.ones(2))
        PrecisionDebugger._instance.stop()
        PrecisionDebugger._instance.step()
    assert PrecisionDebugger._instance.service.config.level == "L1"
    for touch in ("service.data_collector", "service.config.nothing"):
        target = PrecisionDebugger._instance
        *path, last = touch.split(".")
        for name in path:
            target = getattr(target, name)
        with pytest.raises(AttributeError, match=last):
            getattr(target, last)
    said = capfd.readouterr().err
    assert said.count("dump_path cannot change in a running job") == 1 and "data_collector" in said and "nothing" in said
    assert "Torch.relu.0.forward" in dump.data(1)
