# SPDX-License-Identifier: Apache-2.0
"""A job of two ranks that takes steps only when it is told to: a server without requests."""

import json
import os
import subprocess
import sys
import time

import harness
import pytest

torch = pytest.importorskip("torch")

_JOB = """
import sys
import torch
from rankprobe.pytorch import PrecisionDebugger
torch.set_num_threads(1)
debugger = PrecisionDebugger(config_path=sys.argv[1])
debugger._session.native.wait_connected(60.0)
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        PrecisionDebugger.start()
        torch.relu(torch.ones(8))
        recorded = debugger._session.recording
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
        print(int(recorded), flush=True)
"""


class _Rank:
    def __init__(self, rank: int, collector, config) -> None:
        env = {**os.environ, "PYTHONPATH": str(harness.BUILD / "python"), "RANKPROBE_RUN": "idle", "RANK": str(rank),
               "WORLD_SIZE": "2", "RANKPROBE_COLLECTOR": collector.address}
        self.process = subprocess.Popen([sys.executable, "-c", _JOB, config], env=env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == "ready\n"

    def begin(self, steps: int) -> None:
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()

    def recorded(self, steps: int) -> list:
        """Of each of so many steps, whether it was recorded."""
        return [bool(int(self.process.stdout.readline())) for _ in range(steps)]

    def end(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(60) == 0


def test_idle_ranks_switch_at_their_next_step(collector, tmp_path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "dump_path": str(tmp_path / "dump"), "level": "L1",
                                  "dump_enable": False}))
    ranks = [_Rank(rank, collector, config) for rank in range(2)]
    try:
        for rank in ranks:
            rank.begin(12)
        assert [rank.recorded(12) for rank in ranks] == [[False] * 12] * 2
        # All of these have been told, and the pause is one.
        harness.wait_for(lambda: [int(agent.get("step", 0)) for agent in collector.json("status", "--run", "idle")["agents"]]
                         in ([11, 11], [12, 12]), 60, "the steps")
        rested = time.monotonic() + 2.5  # What is under test is that they begin no step for so long.
        harness.wait_for(lambda: time.monotonic() >= rested, what="a pause")
        said = collector.cli("enable", "--run", "idle", "--for-steps", 3)
        assert said.stdout.splitlines()[0] == "recording on: 2/2 ranks will switch at step 12: waits for the next step (ranks are idle)"
        for rank in ranks:
            rank.begin(5)
        assert [rank.recorded(5) for rank in ranks] == [[True, True, True, False, False]] * 2
    finally:
        for rank in ranks:
            rank.end()
