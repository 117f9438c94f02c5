# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios, each in a fork of one warm process: python runner.py OUT [NAME..].

Leaves OUT/{scenario}/{msprobe,rankprobe}/ with config.json, dump/ and log.
Forking saves the seconds that importing PyTorch and msprobe take each time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pathlib
import shutil
import sys
import traceback

import torch

import scenarios

# A scenario takes seconds. One that hangs ends with its stack in the log, and the others still run.
_LONGEST_SECONDS = 240


def _child(scenario: scenarios.Scenario, tool: str, directory: pathlib.Path, rank: int) -> None:
    log = os.open(directory / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(_LONGEST_SECONDS, exit=True, file=log)
    os.chdir(directory)
    os.environ.update(INTEROP_RANK=str(rank), INTEROP_STORE=str(directory / "store"), RANKPROBE_RUN="interop",
                      GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    status = 1
    try:
        if tool == "msprobe":
            import msprobe.pytorch as probe
        else:
            import rankprobe.pytorch as probe
        scenario.run(probe, str(directory / "config.json"))
        status = 0
    except BaseException:  # noqa: BLE001 - told in the log
        traceback.print_exc()
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


def run(scenario: scenarios.Scenario, tool: str, out: pathlib.Path) -> int:
    """0, or the first rank's exit status that is not."""
    directory = out / scenario.name / tool
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config = {**scenario.config, "dump_path": str(directory / "dump")}
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    children = []
    for rank in range(scenario.ranks):
        pid = os.fork()
        if pid == 0:
            _child(scenario, tool, directory, rank)
        children.append(pid)
    # A signal is a negative number, and a failure like any other.
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in children)


def main() -> int:
    out = pathlib.Path(sys.argv[1]).resolve()
    names = sys.argv[2:] or list(scenarios.SCENARIOS)
    if os.environ.get("INTEROP_TOOLS", "msprobe") .find("msprobe") >= 0:
        import msprobe.pytorch  # noqa: F401 - warm
    for name in names:
        for tool in os.environ.get("INTEROP_TOOLS", "msprobe,rankprobe").split(","):
            status = run(scenarios.SCENARIOS[name], tool, out)
            if status != 0:
                print(f"{name} {tool} ended with {status}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
