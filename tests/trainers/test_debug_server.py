# SPDX-License-Identifier: Apache-2.0
"""The tab in the debug server of torch.distributed: two ranks, asked by HTTP."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch.distributed.debug")
pytest.importorskip("tabulate")
PACKAGE = str(pathlib.Path(__import__("rankprobe").__file__).parents[1])
PROGRAM = """
import os, socket, time, urllib.request
import torch
from torch.distributed.debug import start_debug_server, stop_debug_server
from rankprobe.integrations.debug_server import handlers
from rankprobe.integrations.loops import watch

torch.distributed.init_process_group("gloo")
rank = int(os.environ["RANK"])
with socket.socket(socket.AF_INET6) as free:
    free.bind(("::", 0))
    port = free.getsockname()[1]
start_debug_server(port=port, handlers=handlers())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
watch(model, optimizer, config_path="config.json")
for step in range(3):
    model(torch.full((2, 4), float("nan") if step == 2 else 1.0)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.barrier()


def page(path):
    for attempt in range(600):  # the server starts in a process of its own, and the last step is still on its way
        try:
            text = urllib.request.urlopen(f"http://[::1]:{port}{path}", timeout=60).read().decode()
            if "No step is complete" not in text and "No calls of" not in text or attempt > 100:
                return text
        except OSError as error:
            if hasattr(error, "read"):
                raise
        time.sleep(0.1)


if rank == 0:
    print(page("/rankprobe?rank=1&step=1"))
    print(page("/rankprobe/diagnose"))
torch.distributed.barrier()
if rank == 0:
    stop_debug_server()
"""


def test_the_tab_has_the_calls_of_a_step_and_the_answer(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "config.json").write_text('{"task": "statistics", "dump_path": "dump", "rank": [], "step": [], "level": "mix"}')
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "train.py"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    page = done.stdout
    calls = page[page.index("<h2>"):]
    assert page.count("<td>recording</td>") == 2 and "Step 1, rank1" in calls, calls[:3000]
    assert "torch._C._nn.linear(t: f32[2, 4], t: f32[8, 4], t: f32[8])  -&gt;  t: f32[2, 8]  # {&#39;hash&#39;: " in calls, calls[:3000]
    assert "not finite" in page.lower() or "nan" in page.lower()
