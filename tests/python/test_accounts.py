# SPDX-License-Identifier: Apache-2.0
"""The losses that a rank reports, those of the collector's ledger and those of an export's manifest are one
account, whatever happened to the connection."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

import harness
from bad_wire import DOWN, UP, BadWire

SCRIPT = textwrap.dedent("""
    import sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    net = torch.nn.Linear(8, 8)
    for step in range(4):
        if step == 2:
            print("half", flush=True)
            sys.stdin.readline()
        debugger.start(model=net)
        net(torch.full((1, 8), float(step)))
        debugger.stop()
        debugger.step()
""")

# No step waits for the record that ends it.
LOST = r"(\d+) records and (\d+) payloads .* of steps [12] to 3 of rank 0 are lost"


@pytest.fixture
def half_way(dump, collector):
    """Trains two steps, does something to the wire, and trains two more: what the job said to stderr."""
    wire = BadWire(collector.address)

    def train(then) -> str:
        job = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, dump.config(level="L1", task="statistics")], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "RANKPROBE_COLLECTOR": wire.address, "RANK": "0", "RANKPROBE_RUN": "accounts",
                 "RANKPROBE_LANE": "off", "RANKPROBE_WAIT_MS": "300"})
        assert job.stdout.readline() == "half\n", job.communicate()
        then(wire)
        said = job.communicate("go\n", timeout=240)[1]
        assert job.returncode == 0, said
        return said

    yield train
    wire.end()


def accounts(collector, tmp_path) -> tuple[int, str, list[dict]]:
    """The ledger's exit code and text, and the manifest's gaps; the export's exit code is the ledger's."""
    text = collector.cli("ledger", "--run", "accounts", check=False)
    exported = collector.cli("export", "--run", "accounts", "-o", tmp_path / "tree", check=False)
    assert exported.returncode == text.returncode, (text, exported)
    return text.returncode, text.stdout, json.loads((tmp_path / "tree" / "manifest.json").read_text()).get("gaps", [])


def test_what_came_is_not_lost_though_its_acks_never_came(half_way, collector, tmp_path) -> None:
    said = half_way(lambda wire: wire.keep(DOWN))
    assert "are lost" not in said, said
    code, text, gaps = accounts(collector, tmp_path)
    assert code == 0 and "of 4 rank-steps stored, nothing lost" in text and not gaps, (text, gaps)


def test_where_nothing_comes_back_what_came_is_not_lost(half_way, collector, tmp_path) -> None:
    said = half_way(lambda wire: wire.keep(DOWN, later=True))
    assert re.search(LOST, said), said  # as far as it can know
    code, text, gaps = accounts(collector, tmp_path)
    assert "of 4 rank-steps stored" in text and "PROCESS_EXIT" not in text, text
    # The collector has heard the farewell, unless the rank had given up that connection on a busy machine.
    assert code == (1 if gaps else 0) and ("nothing lost" in text) == (not gaps), (text, gaps)
    assert [(gap["step"], gap["reason"]) for gap in gaps] in ([], [(-1, "NOT_HEARD_OF")]), gaps


def test_what_the_rank_lost_the_collector_is_told_on_a_new_connection(half_way, collector, tmp_path) -> None:
    said = half_way(lambda wire: wire.keep(UP, DOWN))
    (records, payloads), = re.findall(LOST, said)
    code, text, gaps = accounts(collector, tmp_path)
    assert code == 1 and f"lost PROCESS_EXIT: {records} records, {payloads} payloads" in text, text
    assert [(gap["step"], gap["reason"], int(gap["records"])) for gap in gaps] == [(-1, "PROCESS_EXIT", int(records))], gaps


def test_a_rank_that_never_came_back_is_not_whole(half_way, collector, tmp_path) -> None:
    said = half_way(lambda wire: wire.cut())
    assert re.search(LOST, said), said
    code, text, gaps = accounts(collector, tmp_path)
    assert code == 1 and "nothing lost" not in text, text
    assert "its connection ended without a goodbye" in text and re.search("newest records here are of step [01],", text), text
    assert [(gap["step"], gap["reason"]) for gap in gaps] == [(-1, "NOT_HEARD_OF")], gaps


FORKS = textwrap.dedent("""
    import os, sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    torch.set_num_threads(1)
    for line in iter(sys.stdin.readline, ""):
        os.environ["RANKPROBE_COLLECTOR"], os.environ["RANKPROBE_RUN"] = line.split()
        child = os.fork()
        if child == 0:
            debugger = PrecisionDebugger(config_path=sys.argv[1])
            print(os.getpid(), flush=True)
            while sys.stdin.readline():
                debugger.start()
                torch.relu(torch.ones(3))
                debugger.stop()
                print("stopped", flush=True)
                debugger.step()
        print(os.waitpid(child, 0)[1], flush=True)
""")


def test_a_step_whose_stop_has_returned_is_there_or_its_rank_is_named(dump, collector, tmp_path) -> None:
    """Something happens to the wire after a step that is stored, and the rank is killed after a later stop()."""
    faults = {"nothing": lambda wire: None, "no_acks": lambda wire: wire.keep(DOWN), "nothing_up": lambda wire: wire.keep(UP),
              "no_way": lambda wire: wire.keep(UP, DOWN, later=True), "cut": lambda wire: wire.cut()}
    with subprocess.Popen([sys.executable, "-c", FORKS, dump.config(level="L1")], text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, env={**os.environ, "RANK": "0", "RANKPROBE_LANE": "off"}) as forks:

        def ask(line: str = "step") -> str:
            forks.stdin.write(line + "\n")
            forks.stdin.flush()
            return forks.stdout.readline().strip()

        for fault, happens in faults.items():
            wire = BadWire(collector.address)
            pid = int(ask(f"{wire.address} {fault}"))
            stopped = 0
            while stopped == 0 or "rank-steps stored" not in collector.cli("ledger", "--run", fault, check=False).stdout:
                assert ask() == "stopped"
                stopped += 1
            happens(wire)
            for _ in range(3):
                assert ask() == "stopped"
                stopped += 1
            os.kill(pid, signal.SIGKILL)
            assert forks.stdout.readline() == f"{int(signal.SIGKILL)}\n"
            ledger = harness.wait_for(lambda: (found := collector.cli("ledger", "--run", fault, check=False)).returncode == 1 and found,
                                      30, "the collector to miss the rank")
            wire.end()
            (known,) = re.findall(r"its newest records here are of step (\d+), what it recorded after that is not known", ledger.stdout)
            tree = tmp_path / fault
            assert collector.cli("export", "--run", fault, "-o", tree, check=False).returncode == 1
            there = {int(path.parents[1].name.removeprefix("step")) for path in tree.glob("step*/rank0/dump.json")
                     if "Torch.relu.0.forward" in json.loads(path.read_text())["data"]}
            assert there == set(range(int(known) + 1)) <= set(range(stopped)), (fault, there, ledger.stdout)
            if fault == "nothing":
                assert len(there) == stopped, (there, stopped)
                collector.cli("export", "--run", fault, "--steps", f"0-{int(known) - 1}", "-o", tmp_path / "before")  # exit code 0
