#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Crash oracle of the private collector.

    private_rounds.py [--rounds N] [--seed S] [--first K] [--keep]

Each round is a job of one to three ranks (processes that record with
PrecisionDebugger into one dump_path) and a fault: a rank is killed, by SIGKILL,
SIGTERM or os._exit, at a chosen place or at any moment; or the supervisor, its
standby, the collector, or several of them are, while ranks record or while
what they left is exported. A rank writes down, synced, what each stop() has
returned for. When the job and its supervisor have ended the tree must hold all
of it, manifest.json must list what is there and what is not, and nothing may be
left: no process, no archive, no temporary file. The ranks are forked from this
process, which has PyTorch loaded and never a session of its own.

Needs PYTHONPATH with the package and RANKPROBE_BIN_DIR. Exit 1: a round failed;
its directory is kept and named.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Optional

import torch

from rankprobe.embedded import EmbeddedCollector

# Generous: the machine may be loaded.
_JOB_SECONDS = 120.0
_ENDING_SECONDS = 120.0
_SLOW_SECONDS = 15.0
_UNKEPT_SECONDS = 2.0
# Where one is there or comes, however long Python takes to start.
_KEPT_SECONDS = 20.0

SELF_FAULTS = ("none", "error", "sigkill", "sigterm", "os_exit")
PLACES = ("after_stop", "after_step", "between_calls", "after_start")
# Who is killed while ranks record, or once they have ended.
GUARDS = {"supervisor": ("supervisor",), "standby": ("standby",), "collector": ("collector",),
          "both": ("supervisor", "collector"), "supervisors": ("supervisor", "standby"),
          "all": ("supervisor", "standby", "collector")}


@dataclasses.dataclass
class RankPlan:
    steps: int
    fault: str
    place: str
    at: int
    guard: Optional[str]  # it kills them itself, just before the stop() of step `at`
    seed: int


@dataclasses.dataclass
class Plan:
    ranks: list[RankPlan]
    task: str
    named: bool  # RANK is in the environment, as torchrun does it
    oom_after: Optional[float]  # a random rank is killed then
    guard: Optional[str]
    guard_after: float
    late: Optional[str]
    late_after: float

    @property
    def leaves_a_keeper(self) -> bool:
        """Of supervisor and standby one lives, and has the time to fork another."""
        guards = [self.guard, self.late, *(rank.guard for rank in self.ranks)]
        return sum(one is not None for one in guards) <= 1 and not {"supervisors", "all"} & set(guards)

    @property
    def name(self) -> str:
        parts = sorted({rank.fault for rank in self.ranks})
        parts += sorted({f"before_stop:{rank.guard}" for rank in self.ranks if rank.guard is not None})
        if self.oom_after is not None:
            parts.append("oom")
        if self.guard is not None:
            parts.append(f"kill:{self.guard}")
        if self.late is not None:
            parts.append(f"late:{self.late}")
        return "+".join(parts)


def plan_round(rng: random.Random) -> Plan:
    ranks = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        steps = rng.randint(1, 8)
        rank = RankPlan(steps, rng.choice(SELF_FAULTS), rng.choice(PLACES), rng.randrange(steps), None, rng.getrandbits(32))
        if rng.random() < 0.15:
            rank.guard = rng.choice(list(GUARDS))
            if rng.random() < 0.7:
                rank.fault, rank.place = "sigkill", "after_stop"
        ranks.append(rank)
    kind = rng.random()
    return Plan(ranks, "tensor" if rng.random() < 0.3 else "statistics", len(ranks) > 1 or rng.random() < 0.5,
                rng.uniform(0, 0.6) if rng.random() < 0.3 else None,
                rng.choice(list(GUARDS)) if kind < 0.35 else None, rng.uniform(0, 0.6),
                rng.choice(list(GUARDS)) if kind > 0.7 else None, rng.uniform(0, 0.4))


# --- a rank


def _fail(kind: str) -> None:
    if kind == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if kind == "os_exit":
        os._exit(3)
    if kind == "error":
        raise RuntimeError("planned")


def work(directory: pathlib.Path, index: int, rank: RankPlan, named: bool) -> None:
    """Lines of state-N: `place P`, `open` once it has a session, `safe STEP CALLS` once a stop() has returned,
    `ending STEP` before step()."""
    from rankprobe.pytorch import PrecisionDebugger

    state = os.open(directory / f"state-{index}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(line: str) -> None:
        os.write(state, f"{line}\n".encode())
        os.fsync(state)

    write(f"place {f'rank{index}' if named else f'proc{os.getpid()}'}")
    rng = random.Random(rank.seed)
    debugger = PrecisionDebugger(config_path=str(directory / "config.json"))
    write("open")
    for step in range(rank.steps):
        calls = 0
        for part in range(rng.choice((1, 1, 2))):
            debugger.start()
            here = step == rank.at and part == 0
            if here and rank.place == "after_start":
                _fail(rank.fault)
            for _ in range(rng.randint(1, 3)):
                tensor = torch.full((3,), float(calls), requires_grad=True)
                torch.relu(tensor).sum().backward()
                calls += 1
                if here and rank.place == "between_calls":
                    _fail(rank.fault)
            if here and rank.guard is not None:
                kill_guards(directory / "dump", rank.guard)
            debugger.stop()
            write(f"safe {step} {calls}")
            if here and rank.place == "after_stop":
                _fail(rank.fault)
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, 0.1))
        write(f"ending {step}")
        debugger.step()
        if step == rank.at and rank.place == "after_step":
            _fail(rank.fault)


def fork(run: Callable[[], None], log: pathlib.Path) -> int:
    """A process that runs this and ends as a Python program does."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        run()
        code = 0
    except BaseException:  # noqa: BLE001 - its end is what is tested
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)


# --- who serves them


def processes(directory: pathlib.Path) -> dict[int, list[str]]:
    """Command lines of the supervisors and collectors of a dump_path, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                words = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(word == str(directory) or word.startswith(f"{directory}/") for word in words) and any(
                    word.endswith(("/_supervise.py", "/rankprobed")) for word in words):
                found[int(name)] = words
    return found


def guard(directory: pathlib.Path, role: str) -> Optional[int]:
    running = processes(directory)
    collectors = [pid for pid, words in running.items() if "--port-file" in words]
    if role == "collector":
        return collectors[0] if collectors else None
    holder = None
    for lock in (directory / ".rankprobe").glob("collector-*/supervisor.lock"):
        try:
            inode = f":{lock.stat().st_ino}"
        except FileNotFoundError:  # the end of the job has just removed it
            continue
        for line in pathlib.Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "->" not in words and words[1] == "FLOCK" and words[5].endswith(inode):
                holder = int(words[4])
    if role == "supervisor":
        return holder if holder in running else None
    others = [pid for pid in running if pid != holder and pid not in collectors]
    return others[0] if holder is not None and others else None


def kill_guards(directory: pathlib.Path, what: str) -> bool:
    pids = [pid for pid in (guard(directory, role) for role in GUARDS[what]) if pid]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return bool(pids)


# --- what must be true afterwards


class Wrong(Exception):
    pass


def check(condition: Any, text: str) -> None:
    if not condition:
        raise Wrong(text)


def check_rank(dump: pathlib.Path, state: pathlib.Path, task: str, manifest: Optional[dict]) -> int:
    """The number of steps whose stop() had returned; each is there."""
    lines = [line.split() for line in state.read_text().splitlines()]
    place = next(words[1] for words in lines if words[0] == "place")
    safe = {int(words[1]): int(words[2]) for words in lines if words[0] == "safe"}
    ended = {int(words[1]) for words in lines if words[0] == "ending"}
    for step, calls in safe.items():
        tree = dump / f"step{step}" / place
        check((tree / "dump.json").is_file(), f"{place} lacks step {step}, for which stop() had returned")
        data = json.loads((tree / "dump.json").read_text())["data"]
        for call in range(calls):
            for direction in ("forward", "backward"):
                name = f"Torch.relu.{call}.{direction}"
                check(name in data, f"{place} step {step} lacks {name}")
            (argument,) = data[f"Torch.relu.{call}.forward"]["input_args"]
            check(argument["Max"] == call, f"{place} step {step} call {call}: {argument}")
            check(data[f"Torch.relu.{call}.forward"]["output"], f"{place} step {step} call {call} has no output")
            if task == "tensor":
                saved = torch.load(tree / "dump_tensor_data" / f"Torch.relu.{call}.forward.input.0.pt")
                check(saved.tolist() == [call] * 3, f"{place} step {step} call {call}: {saved}")
        # The last one may have gone on when the rank was killed.
        recorded = sum(name.startswith("Torch.relu.") and name.endswith(".forward") for name in data)
        check(recorded == calls or step == max(safe), f"{place} step {step} has {recorded} calls, not {calls}")
        check(manifest is not None, "there is no manifest.json")
        check(any((e["step"], e["rank"]) == (step, place) for e in manifest["ledger"]),
              f"manifest.json has no account of {place} step {step}")
        if step not in ended:
            check(any((e["step"], e["rank"]) == (step, place) for e in manifest["incomplete"]),
                  f"manifest.json does not say that {place} has not finished step {step}")
    return len(safe)


def check_tree(directory: pathlib.Path, task: str) -> int:
    dump = directory / "dump"
    manifest = json.loads((dump / "manifest.json").read_text()) if (dump / "manifest.json").exists() else None
    steps = sum(check_rank(dump, state, task, manifest) for state in directory.glob("state-*"))
    if dump.exists():
        check(all(p.name == "manifest.json" or p.name.startswith("step") for p in dump.iterdir()),
              f"left behind: {sorted(p.name for p in dump.iterdir())}")
    there = sorted(str(p.relative_to(dump)) for p in dump.glob("step*/**/*") if p.is_file())
    told = {f["path"]: f["bytes"] for f in manifest["files"]} if manifest else {}
    check(there == sorted(told), f"in only one of manifest.json and the tree: {sorted(set(told) ^ set(there))}")
    for path, size in told.items():
        check((dump / path).stat().st_size == size, f"{path} has not the size that manifest.json says")
    for path in there:
        if path.endswith(".json"):
            json.loads((dump / path).read_text())
    return steps


# --- a round


def reap(pids: dict[int, int]) -> None:
    for pid in list(pids):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            pids.pop(pid)


def run_round(directory: pathlib.Path, plan: Plan, rng: random.Random) -> tuple[int, str]:
    """(steps that were promised, a word about how it ended)"""
    dump = directory / "dump"
    (directory / "config.json").write_text(json.dumps(
        {"task": plan.task, "dump_path": str(dump), "rank": [], "step": [], "level": "L1", plan.task: {}}))
    # What stop() promises, it promises of a collector that answers: on a machine that is busy with ten rounds one is silent
    # for longer than the 50 ms of the default.
    os.environ.update(RANKPROBE_RUN=f"round-{directory.name}", RANKPROBE_WAIT_MS="10000")
    for name in ("RANK", "RANKPROBE_COLLECTOR"):
        os.environ.pop(name, None)
    running: dict[int, int] = {}
    begun = time.monotonic()
    for index, rank in enumerate(plan.ranks):
        if plan.named:
            os.environ["RANK"] = str(index)
        pid = fork(lambda i=index, r=rank: work(directory, i, r, plan.named), directory / f"log-{index}")
        running[pid] = index
    events: list[tuple[float, Callable[[], Any]]] = []
    if plan.oom_after is not None:
        victim = rng.choice(sorted(running))
        events.append((plan.oom_after, lambda: victim in running and os.kill(victim, signal.SIGKILL)))
    if plan.guard is not None:
        events.append((plan.guard_after, lambda: kill_guards(dump, plan.guard)))
    events.sort(key=lambda event: event[0])
    while running:
        now = time.monotonic() - begun
        while events and events[0][0] <= now:
            events.pop(0)[1]()
        reap(running)
        if now > _JOB_SECONDS:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise Wrong(f"ranks {sorted(running.values())} did not end within {_JOB_SECONDS} s")
        time.sleep(0.002)
    if plan.late is not None:
        time.sleep(plan.late_after)
        kill_guards(dump, plan.late)
    how = await_end(directory, dump, _KEPT_SECONDS if plan.leaves_a_keeper else _UNKEPT_SECONDS)
    opened = all("\nopen\n" in state.read_text() for state in directory.glob("state-*"))
    check(how == "ended" or not opened or not plan.leaves_a_keeper, "none was left to export it, though not all were killed")
    return check_tree(directory, plan.task), how


def await_end(directory: pathlib.Path, dump: pathlib.Path, unkept_seconds: float) -> str:
    """Until nobody serves the dump_path. When all who could export what is left
    were killed, which is so when none was seen for `unkept_seconds`, the next job
    of the dump_path has them do it."""
    deadline = time.monotonic() + _ENDING_SECONDS
    kept = time.monotonic()  # when a supervisor was last seen: one that a rank had just started is not seen at once
    while (running := processes(dump)) or (dump / ".rankprobe").exists():
        now = time.monotonic()
        if any("--port-file" not in words for words in running.values()):
            kept = now
            check(now < deadline, f"{running} have not ended after {_ENDING_SECONDS} s")
        elif now - kept > unkept_seconds:
            break
        time.sleep(0.01)
    how = "ended"
    if processes(dump) or (dump / ".rankprobe").exists():
        how = "picked up"
        pid = fork(lambda: EmbeddedCollector(str(dump), "next").leave(), directory / "log-next")
        check(os.waitpid(pid, 0)[1] == 0, f"the next job failed: {(directory / 'log-next').read_text()[-2000:]}")
        while (processes(dump) or (dump / ".rankprobe").exists()) and time.monotonic() < deadline:
            time.sleep(0.01)
    check(not processes(dump), f"still running: {processes(dump)}")
    return how


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--keep", action="store_true", help="keep all directories")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps, ends = 0, collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    failed, longest = [], 0.0
    begun = time.monotonic()
    for number in range(options.first, options.first + options.rounds):
        rng = random.Random(f"{options.seed}-{number}")
        plan = plan_round(rng)
        directory = pathlib.Path(tempfile.mkdtemp(prefix=f"private-{number}-"))
        started = time.monotonic()
        try:
            promised, how = run_round(directory, plan, rng)
            steps += promised
            ends[how] += 1
        except (Wrong, OSError, ValueError, KeyError) as error:
            failed.append(number)
            print(f"round {number} ({plan.name}) FAILED in {directory}: {type(error).__name__}: {error}\n{plan}",
                  flush=True)
        if time.monotonic() - started > _SLOW_SECONDS:
            print(f"round {number} ({plan.name}) took {time.monotonic() - started:.1f} s", flush=True)
        longest = max(longest, time.monotonic() - started)
        kinds.update(set(plan.name.split("+")))
        if number not in failed and not options.keep:
            shutil.rmtree(directory)
    print(f"{options.rounds} rounds, seed {options.seed}, {time.monotonic() - begun:.0f} s (longest {longest:.1f} s): "
          f"{steps} rank-steps whose stop() had returned, {len(failed)} rounds failed {failed}; "
          f"{', '.join(f'{count} {how}' for how, count in sorted(ends.items()))}; "
          f"faults: {', '.join(f'{kind} {count}' for kind, count in sorted(kinds.items()))}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
