# SPDX-License-Identifier: Apache-2.0
"""A root, leaves over one directory store, and real agents that the root sends to them (docs/scale.md): what becomes
of ranks whose leaf is killed, and of what it had."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import subprocess

import pytest

import harness
from polling import wait_for

SEED = 7
AGENTS = 6
# In flags, until its port is known.
ROOT = "ROOT:0"


class Fleet:
    def __init__(self, directory: pathlib.Path, leaves: int, *leaf_flags: str, root_flags: tuple[str, ...] = (),
                 seal_seconds: int = 1, url: str = "", small: bool = False):
        self.directory = directory
        # Payloads of some KiB, for tests of what is decided and not of what is moved: reading them all takes half of such a test.
        self.payloads = ["--small"] if small else []
        self.url = url or str(directory / "objects")
        (directory / "objects").mkdir()
        self.leaves: list[harness.Collector] = []
        self.agents: list[subprocess.Popen] = []
        self.check_seconds = 120.0
        self.root = self._collector("root", "--role", "root", "--object-store", self.url, *root_flags)
        self.leaves = [self._collector(f"leaf{n}", "--role", "leaf", "--object-store", self.url, "--seal-seconds",
                                       str(seal_seconds), "--seal-quiet-seconds", "2", "--min-free-bytes", "0",
                                       "--drain-seconds", "60", "--root", ROOT, *leaf_flags) for n in range(leaves)]

    def begin(self) -> "Fleet":
        self.root.start()
        for leaf in self.leaves:
            leaf.flags = tuple(self.root.address if flag == ROOT else flag for flag in leaf.flags)
            leaf.start()
        return self

    def _collector(self, name: str, *flags: str) -> harness.Collector:
        directory = self.directory / name
        directory.mkdir()
        return harness.Collector(directory, *flags)

    def state(self, rank: int) -> pathlib.Path:
        return self.directory / f"state{rank}"

    def start_agents(self) -> None:
        for rank in range(AGENTS):
            with open(self.directory / f"agent{rank}.log", "ab") as log:
                self.agents.append(subprocess.Popen(
                    [harness.BIN / "crash_oracle", "--agent", "--collector", self.root.address, "--rank", str(rank),
                     "--life", "0", "--state", self.state(rank), "--seed", str(SEED), "--pause-ms", "200", *self.payloads], stdout=log, stderr=log))

    def agent_logs(self) -> str:
        return "".join(p.read_text(errors="replace")[-500:] for p in sorted(self.directory.glob("agent*.log")))

    def acked(self, rank: int) -> int:
        return self.state(rank).read_text().count("A ") if self.state(rank).exists() else 0

    def wait_acked(self, more: int, seconds: float = 90) -> None:
        before = [self.acked(r) for r in range(AGENTS)]
        wait_for(lambda: all(self.acked(r) >= before[r] + more for r in range(AGENTS)), seconds,
                 lambda: f"{more} more steps of each rank: {[self.acked(r) for r in range(AGENTS)]} after {before}; "
                         f"{self.agent_logs()} {self.root.log_text()[-1500:]}")

    def end_agents(self) -> None:
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            assert agent.wait(timeout=90) == 0, self.agent_logs()

    def connected(self, collector: harness.Collector) -> set[int]:
        status = collector.json("status", "--run", "oracle", check=False) if collector.process.poll() is None else {}
        return {int(a["identity"].get("rank", -1)) for a in status.get("agents", []) if a.get("connected")}

    def check(self) -> subprocess.CompletedProcess:
        """Every acked step is in the store, bit by bit, once, and the ledger says so."""
        return subprocess.run([harness.BIN / "crash_oracle", "--check", "--collector", self.root.address, "--seed",
                               str(SEED), *self.payloads, "--states", *[str(self.state(r)) for r in range(AGENTS)]],
                              capture_output=True, text=True, timeout=self.check_seconds)

    def wait_whole(self) -> None:
        last = None

        def whole() -> bool:
            nonlocal last
            last = self.check()
            return last.returncode == 0

        wait_for(whole, 90, lambda: f"all that was acked in the store: {last.stdout[-2000:]} {last.stderr[-500:]}")

    def ledger(self) -> list[dict]:
        lines = self.root.cli("ledger", "--run", "oracle", "--json", check=False).stdout.splitlines()
        assert lines
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        for collector in [*self.leaves, self.root]:
            if collector.process is not None and collector.process.poll() is None:
                assert collector.stop() == 0, collector.log_text()[-2000:]


@pytest.fixture
def start_fleet(tmp_path: pathlib.Path):
    fleets = []

    def start(*args, **kwargs) -> Fleet:
        fleets.append(Fleet(tmp_path, *args, **kwargs))
        return fleets[-1].begin()

    yield start
    for fleet in fleets:
        fleet.end()


def fullest(fleet: Fleet) -> harness.Collector:
    leaf = max(fleet.leaves, key=lambda one: len(fleet.connected(one)))
    assert fleet.connected(leaf)
    return leaf


def test_ranks_of_a_killed_leaf_go_on_at_the_next_one(start_fleet):
    fleet = start_fleet(3)
    fleet.start_agents()
    fleet.wait_acked(6)
    # The root says of all what each leaf says of its own.
    wait_for(lambda: fleet.connected(fleet.root) == set(range(AGENTS)), 60, "all ranks in the root's status")
    for _ in range(2):
        leaf = fullest(fleet)
        ranks = fleet.connected(leaf)
        leaf.kill()
        fleet.wait_acked(6)
        others = [other for other in fleet.leaves if other is not leaf]
        wait_for(lambda: ranks <= set().union(*map(fleet.connected, others)), 60, f"{ranks} at other leaves")
        leaf.start()
        fleet.wait_acked(4)
    fleet.end_agents()
    fleet.wait_whole()
    ledger = fleet.ledger()
    assert all(step["state"] == "STATE_WHOLE" for step in ledger), ledger[:3]


def test_what_went_with_a_leaf_is_in_the_ledger(start_fleet):
    # What is never stored goes with the leaf.
    fleet = start_fleet(2, seal_seconds=3600)
    fleet.start_agents()
    fleet.wait_acked(6)
    lost = fullest(fleet)
    ranks = fleet.connected(lost)
    lost.kill()
    fleet.wait_acked(6)
    fleet.end_agents()
    kept = next(leaf for leaf in fleet.leaves if leaf is not lost)
    assert kept.stop() == 0
    crashed = {step["rank"]: gap["detail"] for step in fleet.ledger() for gap in step["gaps"]
               if step["step"] < 0 and gap["reason"] == "COLLECTOR_CRASH"}
    assert set(crashed) == ranks, crashed
    assert all(int(re.match(r"\d+", detail)[0]) > 0 for detail in crashed.values()), crashed


def test_a_root_that_is_away_is_in_nobodys_way(start_fleet):
    fleet = start_fleet(2)
    fleet.start_agents()
    fleet.wait_acked(4)
    fleet.root.kill()
    fleet.wait_acked(6)
    fleet.root.start()
    wait_for(lambda: fleet.connected(fleet.root) == set(range(AGENTS)), 60, "all ranks in the root's status")
    fleet.end_agents()
    fleet.wait_whole()


def all_follow(fleet: Fleet, *command: str) -> dict:
    """A switch of the root that all ranks follow at one step; asked again while it does not know of all of them yet.
    These ranks do not wait for each other: one that is far behind comes to the step later."""
    answers = []

    def done() -> bool:
        answers.append(fleet.root.json(*command, "--run", "oracle", check=False))
        return len(answers[-1].get("ranks", [])) == AGENTS

    wait_for(done, 60, lambda: f"a switch of all ranks: {answers[-1:]} {fleet.root.log_text()[-1500:]}")
    answer = answers[-1]
    assert {rank["state"] for rank in answer["ranks"]} <= {"STATE_APPLIED", "STATE_PREPARED"}, answer
    # Where the machine is busy, it may come too late for some: then they are named.
    late = {(int(rank), int(step)) for rank, step in re.findall(r"rank (\d+) at step (\d+)", answer["summary"])}
    applied = {(int(rank["rank"]), int(rank["applied_step"])) for rank in answer["ranks"] if rank["state"] == "STATE_APPLIED"}
    assert {step for rank, step in applied - late} <= {int(answer["effective_at_step"])}, answer
    wait_for(lambda: epochs(fleet) == {int(answer["epoch"])}, 90, lambda: f"epoch {answer['epoch']}: {epochs(fleet)}")
    return answer


def epochs(fleet: Fleet) -> set[int]:
    agents = fleet.root.json("status", "--run", "oracle", check=False).get("agents", [])
    return {int(agent["plan_epoch"]) for agent in agents if agent.get("connected")} if len(agents) >= AGENTS else set()


def test_the_root_switches_the_ranks_of_all_leaves_at_one_step(start_fleet):
    fleet = start_fleet(3, small=True)
    fleet.start_agents()
    fleet.wait_acked(2)
    on = all_follow(fleet, "enable")
    assert sum(bool(fleet.connected(leaf)) for leaf in fleet.leaves) > 1
    # A leaf leaves that to its root.
    refused = fleet.leaves[0].cli("disable", "--run", "oracle", check=False)
    assert refused.returncode != 0 and f"ask {fleet.root.address}" in refused.stderr, refused.stderr
    # Ranks that come to another leaf keep the plan.
    lost = fullest(fleet)
    lost.kill()
    fleet.wait_acked(4)
    wait_for(lambda: epochs(fleet) == {int(on["epoch"])}, 60, lambda: f"epoch {on['epoch']}: {epochs(fleet)}")
    # A root that was killed knows what was decided, and uses no epoch twice.
    fleet.root.kill()
    lost.start()
    fleet.root.start()
    assert int(fleet.root.json("config", "get", "--run", "oracle")["epoch"]) == int(on["epoch"])
    off = all_follow(fleet, "disable")
    assert int(off["epoch"]) > int(on["epoch"])
    fleet.end_agents()
    fleet.wait_whole()


def test_a_leaf_that_hangs_in_a_switch_is_named(start_fleet):
    fleet = start_fleet(3)
    fleet.start_agents()
    fleet.wait_acked(2)
    all_follow(fleet, "enable")
    hangs = fullest(fleet)
    ranks = fleet.connected(hangs)
    hangs.process.send_signal(signal.SIGSTOP)
    try:
        answer = fleet.root.json("disable", "--run", "oracle", check=False)
    finally:
        hangs.process.send_signal(signal.SIGCONT)
    applied = {int(rank["rank"]): rank["applied_step"] for rank in answer["ranks"] if rank["state"] == "STATE_APPLIED"}
    # Who did not answer is named, and the others are at one step or have not switched.
    assert len(answer["ranks"]) == AGENTS and not ranks & set(applied), answer
    assert set(applied.values()) <= {answer["effective_at_step"]}, answer
    fleet.wait_acked(2)
    fleet.end_agents()
    fleet.wait_whole()


def test_a_root_killed_in_a_switch_leaves_one_plan(start_fleet):
    fleet = start_fleet(2)
    fleet.start_agents()
    fleet.wait_acked(2)
    all_follow(fleet, "enable")
    for number in range(4):
        # At once: it has not heard of the command, or ranks are preparing. Or later.
        command = subprocess.Popen([harness.BIN / "rankprobe", "--collector", fleet.root.address,
                                    "disable" if number % 2 == 0 else "enable", "--run", "oracle"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = fleet.root.log_text().count("leaf_linked")
        if number >= 2:
            # Decided: the commit is on its way, or has been for some.
            plans = len(list((fleet.directory / "objects").rglob("plans/*/*")))
            wait_for(lambda: command.poll() is not None or len(list(
                (fleet.directory / "objects").rglob("plans/*/*"))) > plans, 60, "a plan that is decided on")
        fleet.root.kill()
        command.wait(timeout=60)
        fleet.root.start()
        wait_for(lambda: fleet.root.log_text().count("leaf_linked") >= before + 2, 60, "both leaves")
        decided = int(fleet.root.json("config", "get", "--run", "oracle")["epoch"])
        wait_for(lambda: epochs(fleet) == {decided}, 60, lambda: f"epoch {decided} everywhere: {epochs(fleet)}")
    all_follow(fleet, "disable")
    fleet.end_agents()


def test_of_two_roots_one_decides(start_fleet):
    fleet = start_fleet(2)
    fleet.start_agents()
    fleet.wait_acked(2)
    second = fleet._collector("second", "--role", "root", "--object-store", fleet.url).start()
    try:
        on = all_follow(fleet, "enable")
        refused = second.cli("enable", "--run", "oracle", check=False)
        assert refused.returncode != 0 and "another root has decided" in refused.stderr, refused.stderr
        wait_for(lambda: epochs(fleet) == {int(on["epoch"])}, 60, lambda: f"epoch {on['epoch']}: {epochs(fleet)}")
        all_follow(fleet, "disable")
    finally:
        assert second.stop() == 0
    fleet.end_agents()


def whole_steps(fleet: Fleet, run: str) -> dict[int, set[int]]:
    """Step to its ranks, of those that are whole in the store; nothing while the ledger says of anything that it is not."""
    lines = fleet.root.cli("ledger", "--run", run, "--json", check=False).stdout.splitlines()
    steps: dict[int, set[int]] = {}
    for step in map(json.loads, lines):
        if step["state"] != "STATE_WHOLE":
            return {}
        steps.setdefault(step["step"], set()).add(step["rank"])
    return steps


def test_a_training_over_several_leaves_is_one_dump(start_fleet, start_job):
    fleet = start_fleet(3)
    job = start_job("training", fleet.root.address, harness.config(), world_size=4)
    job.wait_steps(3)
    wait_for(lambda: sum(agent.get("connected", False) for agent in fleet.root.json(
        "status", "--run", "training", check=False).get("agents", [])) == 4, 60, "all ranks in the root's status")
    on = fleet.root.json("enable", "--run", "training", "--for-steps", "3")
    assert on["summary"] == f"4/4 ranks at step {on['effective_at_step']}", on
    first = on["effective_at_step"]
    assert "MODULE" in fleet.root.cli("explain", "--run", "training", "--rank", "0").stdout.upper()
    job.wait_steps(8)
    assert job.finish() == [0] * 4
    expected = {first + n: set(range(4)) for n in range(3)}
    wait_for(lambda: whole_steps(fleet, "training") == expected, 60,
             lambda: f"{expected} in the store: {whole_steps(fleet, 'training')}")
    fleet.root.cli("export", "--run", "training", "-o", fleet.directory / "exported")
    assert harness.tree_ranks(fleet.directory / "exported") == {step: {f"rank{r}" for r in range(4)}
                                                                for step in expected}


def test_a_training_whose_leaf_is_killed_has_no_gap(start_fleet, start_job):
    fleet = start_fleet(3)
    job = start_job("killed", fleet.root.address, harness.config(dump_enable=True), world_size=4)
    job.wait_steps(4)
    leaf = max(fleet.leaves, key=lambda one: len(one.json("status", "--run", "killed", check=False).get("agents", [])))
    leaf.kill()
    for rank in range(4):
        job.wait_steps(6, rank=rank)
    leaf.start()
    assert job.finish() == [0] * 4
    last = len(job.ranks[0].steps()) - 1

    def all_there() -> bool:
        steps = whole_steps(fleet, "killed")
        return all(steps.get(step) == set(range(4)) for step in range(last))

    wait_for(all_there, 90, lambda: f"steps 0 to {last - 1}: {fleet.root.cli('ledger', '--run', 'killed', check=False)}")


def test_a_leaf_proves_itself(start_fleet, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("leaf nodes llllllllllllllllllll\nagent job aaaaaaaaaaaaaaaaaaaa\nviewer bob vvvvvvvvvvvvvvvvvvvv\n"
                      "operator ann oooooooooooooooooooo\n")
    tokens.chmod(0o600)
    for name, token in (("leaf", "l" * 20), ("agent", "a" * 20), ("viewer", "v" * 20), ("operator", "o" * 20)):
        (tmp_path / f"{name}.token").write_text(token)
        (tmp_path / f"{name}.token").chmod(0o600)
    fleet = start_fleet(1, "--root-token-file", str(tmp_path / "agent.token"),
                        root_flags=("--token-file", str(tokens)))
    leaf = fleet.leaves[0]
    wait_for(lambda: "no_root" in leaf.log_text(), 60, "the leaf to be refused")
    assert "job has the role agent; Link needs leaf" in leaf.log_text(), leaf.log_text()[-1000:]
    assert leaf.stop() == 0
    leaf.flags = tuple(str(tmp_path / "leaf.token") if flag.endswith("agent.token") else flag for flag in leaf.flags)
    leaf.start()
    wait_for(lambda: "root_linked" in leaf.log_text(), 60, "the leaf to be taken")


def test_a_leaf_and_its_root_speak_tls(start_fleet, tmp_path):
    """The leaf checks the root's certificate, and without one to check it by it gets nowhere."""
    for name in ("own", "other"):
        subprocess.run([harness.ROOT / "deploy" / "certs.sh", tmp_path / name], check=True, capture_output=True)
    own = tmp_path / "own"
    fleet = start_fleet(1, "--root-token-file", str(own / "leaf.token"), "--root-ca", str(tmp_path / "other" / "ca.pem"),
                        root_flags=("--tls-cert", str(own / "server.pem"), "--tls-key", str(own / "server.key"),
                                    "--token-file", str(own / "tokens")))
    leaf = fleet.leaves[0]
    right = tuple(str(own / "ca.pem") if flag.endswith("ca.pem") else flag for flag in leaf.flags)
    plain = tuple(flag for flag in right if flag != "--root-ca" and not flag.endswith("ca.pem"))
    for flags, word in ((leaf.flags, "no_root"), (plain, "no_root"), (right, "root_linked")):
        leaf.stop()
        leaf.flags = flags
        told = len(leaf.log_text())
        leaf.start()
        wait_for(lambda: word in leaf.log_text()[told:], 60, lambda: f"{word} with {flags}: {leaf.log_text()[told:]}")
        assert word == "root_linked" or "root_linked" not in leaf.log_text()[told:]


@pytest.mark.parametrize("flags,says", [
    (["--root", "127.0.0.1:1"], "given with role leaf"),
    (["--role", "leaf", "--object-store", "/x", "--root", "nowhere"], "HOST:PORT"),
    (["--role", "leaf", "--object-store", "/x", "--advertise", "a:1"], "given with root"),
    (["--role", "leaf", "--object-store", "/x", "--root", "a:1", "--listen", "0.0.0.0:0", "--insecure"], "advertise"),
    (["--role", "leaf", "--object-store", "/x", "--root", "a:1", "--root-token-file", "/t"], "root-ca"),
    (["--role", "root"], "object-store"),
])
def test_flags_of_a_root_that_do_not_go_together(tmp_path, flags, says):
    ended = subprocess.run([harness.BIN / "rankprobed", "--data-dir", tmp_path, *flags], capture_output=True,
                           text=True, timeout=30)
    assert ended.returncode == 2 and says in ended.stderr, ended.stderr


@pytest.mark.parametrize("advertise,says", [("ROOT:0", "an address of this leaf"), ("node 17:7411", "HOST:PORT"),
                                            ("node17: 7411", "HOST:PORT"), ("\tnode17:7411", "HOST:PORT")])
def test_an_address_that_ranks_cannot_use_is_refused(tmp_path, advertise, says):
    ended = subprocess.run([harness.BIN / "rankprobed", "--data-dir", tmp_path, "--role", "leaf", "--object-store",
                            "/x", "--root", "ROOT:7410", "--advertise", advertise.replace("ROOT:0", "ROOT:7410")],
                           capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2 and says in ended.stderr, ended.stderr


def test_a_leaf_that_names_its_root_as_itself_is_refused(tmp_path):
    """By another name than the one it was given."""
    fleet = Fleet(tmp_path, 1)
    try:
        fleet.root.start()
        leaf = fleet.leaves[0]
        leaf.flags = (*(fleet.root.address if flag == "ROOT:0" else flag for flag in leaf.flags), "--advertise",
                      f"localhost:{fleet.root.port}")
        leaf.start()
        wait_for(lambda: "no_root" in leaf.log_text(), 60, "the leaf to be refused")
        assert "that would be a loop; give its own with --advertise" in leaf.log_text(), leaf.log_text()[-1000:]
    finally:
        fleet.end()
