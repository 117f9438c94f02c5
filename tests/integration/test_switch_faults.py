# SPDX-License-Identifier: Apache-2.0
"""A leaf or the root is killed in a switch over four leaves: while ranks prepare, when it is decided, in the commit. Where it
stands is made sure of: a leaf that is stopped does not answer, and the store (s3_stub) holds the request that decides. In
the end all ranks have one plan, the one that is in the store. In the scale stage over 256 ranks on each leaf as well."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading

import pytest

import harness
from polling import wait_for
from s3_stub import S3Stub
from test_root import AGENTS, Fleet, start_fleet  # noqa: F401

LEAVES = 4
COUNTS = [AGENTS] + ([LEAVES * 256] if "RANKPROBE_SCALE_BUCKET" in os.environ else [])
# Puts of a decision: an epoch that nobody gets yet, and the plan.
PUTS_OF_A_PLAN = 2


class Gate:
    """Holds the request that decides on a plan, before it is done or before it is answered, until it is opened."""

    def __init__(self, stub: S3Stub, when: str):
        self.reached, self.opened, self.cuts = threading.Event(), threading.Event(), False
        self._seen, self._lock = 0, threading.Lock()
        setattr(stub, when, self._request)

    def _request(self, method: str, key: str) -> None:
        if method != "PUT" or "/plans/" not in key:
            return
        with self._lock:
            self._seen += 1
            if self._seen != PUTS_OF_A_PLAN:
                return
        self.reached.set()
        self.opened.wait(60)
        if self.cuts:
            raise ConnectionError("cut")

    def wait(self) -> None:
        assert self.reached.wait(60), "nothing was decided on"

    def open(self, cuts: bool = False) -> None:
        self.cuts = cuts
        self.opened.set()


class Switching:
    def __init__(self, fleet: Fleet, count: int):
        self.fleet, self.root, self.count = fleet, fleet.root, count
        self.run = "oracle" if count == AGENTS else "many"
        self.loads: list[subprocess.Popen] = []
        if count == AGENTS:
            fleet.start_agents()
            fleet.wait_acked(2)
        else:
            self.start_loads(count // LEAVES)
        wait_for(lambda: len(self.connected(self.root)) == count, 120, "all ranks in the root's status")

    def start_loads(self, part: int) -> None:
        """One after the other; what they say is kept."""
        errors = self.fleet.directory / "loads.log"
        try:
            for n in range(LEAVES):
                with open(errors, "a") as log:
                    self.loads.append(subprocess.Popen(
                        [harness.BIN / "bench_ranks", self.root.address, self.run, str(part), "500", str(n * part), str(self.count)],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True))
                assert self.loads[-1].stdout.readline().startswith("connected"), errors.read_text()
            for load in self.loads:
                load.stdin.write("step\n")
                load.stdin.flush()
        except BaseException:
            self.kill_loads()
            raise

    def agents(self, collector: harness.Collector) -> list[dict]:
        status = collector.json("status", "--run", self.run, check=False) if collector.process.poll() is None else {}
        return [agent for agent in status.get("agents", []) if agent.get("connected")]

    def connected(self, collector: harness.Collector) -> set[int]:
        return {int(agent["identity"].get("rank", -1)) for agent in self.agents(collector)}

    def epochs(self) -> set[int]:
        agents = self.agents(self.root)
        return {int(agent["plan_epoch"]) for agent in agents} if len(agents) == self.count else set()

    def wait_epoch(self, epoch: int) -> None:
        wait_for(lambda: self.epochs() == {epoch}, 120, lambda: f"epoch {epoch} everywhere: {self.epochs()} {self.root.log_text()[-1500:]}")

    def decided(self) -> int:
        return int(self.root.json("config", "get", "--run", self.run)["epoch"])

    def steps(self) -> dict[int, int]:
        return {int(agent["identity"].get("rank", -1)): int(agent.get("step", 0)) for agent in self.agents(self.root)}

    def furthest(self) -> int:
        return max(self.steps().values())

    def begin(self, verb: str, *flags: str) -> subprocess.Popen:
        begun = self.begun()
        command = subprocess.Popen([harness.BIN / "rankprobe", "--collector", self.root.address, verb, "--run", self.run, "--json", *flags],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: self.begun() > begun, 60, "the root to hear of it")
        return command

    def begun(self) -> int:
        lines = (self.root.data_dir / "audit.jsonl").read_text().splitlines()
        return sum(record["outcome"] == "BEGUN" for record in map(json.loads, lines))

    def far_ahead(self) -> int:
        """A step that nobody comes to while the store is held: what has passed is decided on anew."""
        return self.furthest() + (60 if self.count == AGENTS else 16)

    @staticmethod
    def answer(command: subprocess.Popen) -> dict:
        out, err = command.communicate(timeout=120)
        assert out, err
        return json.loads(out)

    def switch(self, verb: str) -> int:
        """One that all follow, asked for again while some have not come back."""
        answers = [{}]

        def done() -> bool:
            said = self.root.cli(verb, "--run", self.run, "--json", check=False)
            answers.append(json.loads(said.stdout or "{}"))
            return len(answers[-1].get("ranks", [])) == self.count

        wait_for(done, 120, lambda: f"a switch of all ranks: {answers[-1]} {self.root.log_text()[-1500:]}")
        epoch = int(answers[-1]["epoch"])
        self.wait_epoch(epoch)
        return epoch

    def wait_steps(self, more: int, but: set[int]) -> None:
        """Of ranks elsewhere than these: whatever was said to them meanwhile they have heard."""
        before = {rank: step for rank, step in self.steps().items() if rank not in but}
        assert before

        def stepped() -> bool:
            now = self.steps()
            return all(now.get(rank, 0) >= step + more for rank, step in before.items())

        wait_for(stepped, 60, f"{more} steps of {len(before)} ranks")

    def fullest(self) -> tuple[harness.Collector, set[int]]:
        leaf = max(self.fleet.leaves, key=lambda one: len(self.connected(one)))
        ranks = self.connected(leaf)
        assert ranks and len(ranks) < self.count
        return leaf, ranks

    def restart_root(self) -> None:
        linked = self.root.log_text().count("leaf_linked")
        self.root.start()
        wait_for(lambda: self.root.log_text().count("leaf_linked") >= linked + LEAVES, 60, "all leaves at the root")

    def end(self) -> None:
        if self.loads:
            for load in self.loads:
                load.stdin.close()
            for load in self.loads:
                assert load.wait(timeout=120) == 0
        else:
            self.fleet.end_agents()
            self.fleet.wait_whole()

    def kill_loads(self) -> None:
        for load in self.loads:
            if load.poll() is None:
                load.kill()
                load.wait()


@contextlib.contextmanager
def stopped(process: subprocess.Popen):
    """It neither hears nor says anything; it may be killed meanwhile."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)


@pytest.fixture(params=COUNTS)
def switching(request, stub, start_fleet):  # noqa: F811
    url = f"s3://bucket/some/prefix?endpoint={stub.url}"
    made = Switching(start_fleet(LEAVES, url=url, small=True), request.param)
    yield made
    made.kill_loads()


def states(answer: dict) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for rank in answer["ranks"]:
        found.setdefault(rank["state"], set()).add(int(rank["rank"]))
    return found


def assert_others_at_one_step(answer: dict, ranks: set[int], count: int) -> None:
    """Those of the leaf that was killed are named, the others have switched together."""
    assert len(answer["ranks"]) == count and states(answer).get("STATE_LOST") == ranks, answer
    applied = {rank["applied_step"] for rank in answer["ranks"] if rank["state"] == "STATE_APPLIED"}
    assert applied <= {answer["effective_at_step"]}, answer


@pytest.mark.parametrize("who", ["leaf", "root"])
def test_killed_while_ranks_prepare(switching: Switching, stub: S3Stub, who: str):
    before = switching.switch("enable")
    plans = stub.keys("/plans/")
    leaf, ranks = switching.fullest()
    with stopped(leaf.process):
        command = switching.begin("disable")
        switching.wait_steps(2, but=ranks)
        # Some have not said whether they can: nothing is decided.
        assert stub.keys("/plans/") == plans
        if who == "leaf":
            leaf.kill()
            answer = switching.answer(command)
            assert_others_at_one_step(answer, ranks, switching.count)
            after = int(answer["epoch"])
            assert after > before
        else:
            switching.root.kill()
            command.communicate(timeout=60)
            after = before
    if who == "leaf":
        leaf.start()
    else:
        switching.restart_root()
    assert switching.decided() == after
    switching.wait_epoch(after)
    assert switching.switch("enable") > after
    switching.end()


def test_a_root_that_is_killed_before_it_has_decided(switching: Switching, stub: S3Stub):
    """All ranks are prepared, and what would decide never comes to the store."""
    before = switching.switch("enable")
    gate, step = Gate(stub, "before"), switching.far_ahead()
    command = switching.begin("disable", "--at-step", str(step), "--wait", "60")
    gate.wait()
    switching.root.kill()
    gate.open(cuts=True)
    command.communicate(timeout=60)
    switching.restart_root()
    assert switching.decided() == before
    # Nor does anybody follow when the step comes.
    wait_for(lambda: len(switching.steps()) == switching.count and min(switching.steps().values()) > step, 120,
             lambda: f"step {step} of all: {switching.steps()}")
    switching.wait_steps(2, but=set())
    assert switching.epochs() == {before}
    # The epoch that ranks were prepared for is not used again.
    assert switching.switch("disable") > before + 1
    switching.end()


@pytest.mark.parametrize("who", ["leaf", "root"])
def test_killed_when_it_is_decided(switching: Switching, stub: S3Stub, who: str):
    """The plan is in the store, and nobody knows it yet."""
    before = switching.switch("enable")
    leaf, ranks = switching.fullest()
    gate = Gate(stub, "after")
    command = switching.begin("disable", "--at-step", str(switching.far_ahead()), "--wait", "60")
    gate.wait()
    # No rank hears of what the root does not know to be decided.
    assert switching.epochs() == {before}
    if who == "leaf":
        leaf.kill()
        wait_for(lambda: "leaf_gone" in switching.root.log_text(), 60, "the root to notice")
        gate.open()
        answer = switching.answer(command)
        assert_others_at_one_step(answer, ranks, switching.count)
        after = int(answer["epoch"])
        leaf.start()
    else:
        switching.root.kill()
        gate.open()
        command.communicate(timeout=60)
        switching.restart_root()
        after = switching.decided()
    assert switching.decided() == after > before
    switching.wait_epoch(after)
    assert switching.switch("enable") > after
    switching.end()


@pytest.mark.parametrize("who", ["leaf", "root"])
def test_killed_in_the_commit(switching: Switching, stub: S3Stub, who: str):
    """The others have it, the ranks of one leaf have not."""
    before = switching.switch("enable")
    leaf, ranks = switching.fullest()
    gate = Gate(stub, "after")
    command = switching.begin("disable", "--at-step", str(switching.far_ahead()), "--wait", "60")
    gate.wait()
    with stopped(leaf.process):
        gate.open()
        wait_for(lambda: switching.decided() > before, 60, "the root to decide")
        switching.wait_steps(2, but=ranks)
        (leaf if who == "leaf" else switching.root).kill()
        if who == "leaf":
            assert_others_at_one_step(switching.answer(command), ranks, switching.count)
        else:
            command.communicate(timeout=60)
    if who == "leaf":
        leaf.start()
    else:
        switching.restart_root()
    after = switching.decided()
    assert after > before
    switching.wait_epoch(after)
    assert switching.switch("enable") > after
    switching.end()
