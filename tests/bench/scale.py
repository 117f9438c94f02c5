# SPDX-License-Identifier: Apache-2.0
"""Several collectors and one store: what that costs and brings (docs/scale.md).

What is compared is run in turn, and medians of the ratios are taken. Stores: a directory, and the bucket of the
environment (RANKPROBE_SCALE_BUCKET with AWS_ENDPOINT_URL and credentials) or a Ceph that is started for it where
radosgw is installed (tests/scale/packages.txt)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from typing import Callable, Iterator

from budgets import Table
from harness import BIN, ROOT, Collector, wait_for

TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Sizes:
    mib: int
    thousands: int
    # Of the switch: leaves and ranks of each.
    leaves: int
    ranks: int
    switches: int
    # Of the simulation of control: leaves, and each number of ranks.
    many_leaves: int
    simulated: tuple[int, ...]
    # Of real sessions over as many leaves: ranks, load programs.
    many_ranks: int
    loads: int
    step_ms: int
    # Of eight ranks that record on the node of a leaf.
    node_step_ms: int


FULL = Sizes(mib=512, thousands=300, leaves=4, ranks=256, switches=4, many_leaves=16,
             simulated=(1000, 2500, 5000, 10000), many_ranks=2000, loads=4, step_ms=1000, node_step_ms=10_000)
# Whether it runs at all.
SMALL = Sizes(mib=64, thousands=20, leaves=2, ranks=8, switches=2, many_leaves=3,
              simulated=(20, 40), many_ranks=30, loads=2, step_ms=100, node_step_ms=100)
# Ranks that nothing here has room for: a line through what was measured.
MODELLED = 100_000


def cpu_seconds(*processes: subprocess.Popen) -> float:
    total = 0
    for process in processes:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def resident_mib(process: subprocess.Popen, key: str = "VmRSS") -> float:
    return int(re.search(rf"^{key}:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.M)[1]) / 1024


class Bed:
    """Collectors below one directory; what was started is ended."""

    def __init__(self, directory: pathlib.Path):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=directory))
        self.running: list[Collector] = []

    def __enter__(self) -> "Bed":
        return self

    def __exit__(self, *_: object) -> None:
        # Leaves before their root.
        for one in reversed(self.running):
            one.stop(seconds=120)
        shutil.rmtree(self.directory, ignore_errors=True)

    def collector(self, name: str, *flags: str) -> Collector:
        (self.directory / name).mkdir()
        self.running.append(Collector(self.directory / name, *flags).start())
        return self.running[-1]

    def leaf(self, name: str, url: str, *more: str) -> Collector:
        return self.collector(name, "--role", "leaf", "--object-store", url, "--seal-seconds", "1", *more)

    def fleet(self, url: str, leaves: int, *root_flags: str) -> tuple[Collector, list[Collector]]:
        root = self.collector("root", "--role", "root", "--object-store", url, *root_flags)
        return root, [self.leaf(f"leaf{n}", url, "--root", root.address) for n in range(leaves)]


def stored(leaf: Collector, field: str = "steps") -> int:
    return sum(int(n) for n in re.findall(rf"\bstored .*?\b{field}=\"?(\d+)", leaf.log_text()))


@contextlib.contextmanager
def stores(scratch: pathlib.Path, small: bool) -> Iterator[dict[str, Callable[[], str]]]:
    """By its name what gives a new place in it."""
    found: dict[str, Callable[[], str]] = {"directory": lambda: tempfile.mkdtemp(prefix="objects", dir=scratch)}
    ceph, before = scratch / "ceph", dict(os.environ)
    bucket = os.environ.get("RANKPROBE_SCALE_BUCKET")
    if bucket is None and shutil.which("radosgw") and not small:
        # All that is measured stays in it.
        subprocess.run([ROOT / "tests/scale/ceph.sh", "up", ceph], check=True, stdout=subprocess.DEVNULL, timeout=300, env={**os.environ, "RANKPROBE_CEPH_GIB": "24"})
        os.environ.update(re.findall(r"(AWS_\w+)=(\S+)", (ceph / "env").read_text()))
        bucket = "scale"
        subprocess.run(["python3", ROOT / "tests/scale/make_bucket.py", bucket], check=True, stdout=subprocess.DEVNULL, timeout=60)
    if bucket is not None:
        found["bucket"] = lambda: f"s3://{bucket}/{uuid.uuid4().hex}"
    try:
        yield found
    finally:
        if ceph.exists():
            subprocess.run([ROOT / "tests/scale/ceph.sh", "down", ceph], check=False, stdout=subprocess.DEVNULL, timeout=300)
        os.environ.clear()
        os.environ.update(before)


def load(mode: str, address: str, run: str, amount: int, *step_ms_and_rank: int) -> dict:
    result = subprocess.run([BIN / "bench_ingest", mode, address, run, str(amount), *map(str, step_ms_and_rank)], capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        raise RuntimeError(f"bench_ingest {mode}: {result.stderr}")
    return json.loads(result.stdout)


def ingest(table: Table, scratch: pathlib.Path, kind: str, new_store: Callable[[], str], sizes: Sizes, rounds: int) -> None:
    """A leaf that stores all the while, beside the same collector that stores nothing."""
    for mode, amount, steps, unit in (("steps", sizes.mib, sizes.mib // 64, "MB/s"), ("records", sizes.thousands, sizes.thousands // 10, "/s")):
        with Bed(scratch) as bed:
            leaf, plain = bed.leaf("leaf", new_store()), bed.collector("plain")
            ratios, rates, stored_within, stored_rates = [], [], [], []
            for i in range(rounds + 1):
                rate = {}
                for one in (plain, leaf) if i % 2 else (leaf, plain):
                    before, began = stored(leaf), time.monotonic()
                    done = load(mode, one.address, f"{mode}{i}", amount)
                    rate[one] = (done["bytes"] or done["records"]) / done["seconds"]
                    if one is leaf:
                        within = (stored(leaf) - before) / steps
                        # The other one's turn comes when all is stored.
                        wait_for(lambda: stored(leaf) >= before + steps, 300, lambda: f"{steps} stored steps: {leaf.log_text()[-1000:]}")
                        through = (done["bytes"] or done["records"]) / (time.monotonic() - began)
                if i > 0:  # the first warms up
                    ratios.append(rate[leaf] / rate[plain])
                    rates.append(rate[leaf])
                    stored_within.append(within)
                    stored_rates.append(through)
            scale = 1e6 if mode == "steps" else 1
            name = f"{kind}_leaf_{'tensors' if mode == 'steps' else 'records'}"
            table.info(f"{name}", statistics.median(rates) / scale, unit)
            table.info(f"{name}_until_stored", statistics.median(stored_rates) / scale, unit)
            table.info(f"{name}_stored_meanwhile", statistics.median(stored_within))
            table.at_least(f"{name}_of_storing_nothing", statistics.median(ratios), 0.8)


def two_leaves(table: Table, scratch: pathlib.Path, kind: str, new_store: Callable[[], str], sizes: Sizes, rounds: int) -> None:
    with Bed(scratch) as bed:
        url = new_store()
        leaves = [bed.leaf(f"leaf{n}", url) for n in range(2)]
        steps, ratios, busy = sizes.mib // 64, [], []

        def ingest_of(count: int, tag: str) -> tuple[float, float]:
            """Bytes a second of all, and how many processors they and their leaves kept busy."""
            before = [stored(leaf) for leaf in leaves]
            cpu = cpu_seconds(*(leaf.process for leaf in leaves[:count]))
            children = os.times()
            began = time.monotonic()
            loads = [threading.Thread(target=load, args=("steps", leaf.address, f"{tag}-{n}", sizes.mib)) for n, leaf in enumerate(leaves[:count])]
            for one in loads:
                one.start()
            for one in loads:
                one.join()
            seconds, after = time.monotonic() - began, os.times()
            cpu = cpu_seconds(*(leaf.process for leaf in leaves[:count])) - cpu
            cpu += after.children_user + after.children_system - children.children_user - children.children_system
            wait_for(lambda: all(stored(leaf) >= was + steps for leaf, was in zip(leaves[:count], before)), 300, "all to be stored")
            return count * sizes.mib / seconds, cpu / seconds

        for i in range(rounds + 1):
            one, two = ingest_of(1, f"one{i}"), ingest_of(2, f"two{i}")
            if i > 0:
                ratios.append(two[0] / one[0])
                busy.append((one[1], two[1]))
        table.info(f"{kind}_two_leaves_of_one", statistics.median(ratios), "x")
        for n, name in enumerate(("one", "two")):
            table.info(f"{kind}_{name}_busy_processors", statistics.median(b[n] for b in busy))


def export(table: Table, scratch: pathlib.Path, kind: str, new_store: Callable[[], str], sizes: Sizes, rounds: int) -> None:
    with Bed(scratch) as bed:
        for name, mode, amount, steps in (("large", "steps", sizes.mib, sizes.mib // 64), ("small", "tensors", sizes.thousands // 10, 1)):
            url = new_store()
            leaf = bed.leaf(f"leaf-{name}", url)
            load(mode, leaf.address, "run", amount)
            wait_for(lambda: stored(leaf) >= steps, 300, lambda: f"{steps} stored steps: {leaf.log_text()[-1000:]}")
            copied, read, own = [], [], []
            for i in range(rounds + 1):
                out, copy = bed.directory / f"{name}{i}", bed.directory / f"{name}{i}-copy"
                copy.mkdir()
                plain = json.loads(subprocess.run([BIN / "bench_objects", url], check=True, capture_output=True, timeout=300).stdout)
                written = json.loads(subprocess.run([BIN / "bench_objects", url, copy], check=True, capture_output=True, timeout=300).stdout)
                began = time.monotonic()
                subprocess.run([BIN / "rankprobe", "--object-store", url, "export", "--run", "run", "-o", out], check=True, capture_output=True, timeout=300)
                seconds = time.monotonic() - began
                shutil.rmtree(copy)
                began = time.monotonic()
                leaf.cli("export", "--run", "run", "-o", bed.directory / f"{name}{i}-own", timeout=300)
                if i > 0:
                    own.append((time.monotonic() - began) / seconds)
                    copied.append(written["seconds"] / seconds)
                    read.append(plain["seconds"] / seconds)
            table.info(f"{kind}_export_{name}_objects", plain["objects"])
            table.info(f"{kind}_export_{name}_bytes", plain["bytes"] / 1e6, "MB")
            table.info(f"{kind}_export_{name}_of_reading_into_nothing", statistics.median(read))
            table.info(f"{kind}_export_{name}_of_the_collectors_own", statistics.median(own))
            measured = table.at_least if name == "large" else table.info
            measured(f"{kind}_export_{name}_of_reading_into_files", statistics.median(copied), *([0.7] if name == "large" else []))


@contextlib.contextmanager
def ranks(address: str, count: int, step_ms: int, first: int = 0, world: int | None = None, light: bool = False) -> Iterator[subprocess.Popen]:
    """Sessions that do not step yet. Light ones are streams without a session's threads."""
    program = ["bench_light", address, "many", str(count), str(step_ms)]
    if not light:
        program = ["bench_ranks", *program[1:], str(first), str(world or count)]
    simulated = subprocess.Popen([BIN / program[0], *program[1:]],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield simulated
    finally:
        simulated.stdin.close()
        try:
            simulated.wait(timeout=120)
        except subprocess.TimeoutExpired:
            simulated.kill()
            simulated.wait()


def connected(simulated: subprocess.Popen) -> float:
    line = simulated.stdout.readline()
    if not line.startswith("connected"):
        raise RuntimeError(f"bench_ranks said {line!r}")
    return float(line.split()[1])


def begin_steps(root: Collector, simulated: list[subprocess.Popen], count: int) -> None:
    for one in simulated:
        one.stdin.write("step\n")
        one.stdin.flush()

    def stepping() -> bool:
        agents = root.json("status", "--run", "many", check=False).get("agents", [])
        return len(agents) == count and all(int(agent.get("step", 0)) > 3 for agent in agents)

    wait_for(stepping, 120, f"steps of {count} ranks")


def switch_times(root: Collector, count: int, switches: int, may_miss: int = 0) -> list[float]:
    """Of switches that all ranks followed at one step; on a busy machine a commit may come too late for some."""
    times, missed = [], 0
    while len(times) < switches:
        began = time.monotonic()
        answer = root.json("disable" if (len(times) + missed) % 2 else "enable", "--run", "many", "--wait", "60", check=False)
        took = time.monotonic() - began
        applied = {rank.get("applied_step") for rank in answer.get("ranks", [])}
        if len(answer.get("ranks", [])) == count and applied == {answer.get("effective_at_step")}:
            times.append(took)
            continue
        missed += 1
        if missed > may_miss:
            raise RuntimeError(f"a switch of {count} ranks: {answer.get('summary')}")
    return times


def switch(table: Table, scratch: pathlib.Path, sizes: Sizes, rounds: int) -> None:
    """All ranks of several leaves, beside as many of one collector; one after the other, for both load the machine."""
    count, ratios, times = sizes.leaves * sizes.ranks, [], {"leaves": [], "one": []}
    for i in range(rounds):
        for way in ("leaves", "one") if i % 2 else ("one", "leaves"):
            with Bed(scratch) as bed:
                root = bed.fleet(tempfile.mkdtemp(dir=bed.directory), sizes.leaves)[0] if way == "leaves" else bed.collector("one")
                with ranks(root.address, count, 200, light=True) as simulated:
                    connected(simulated)
                    begin_steps(root, [simulated], count)
                    times[way].append(statistics.median(switch_times(root, count, sizes.switches, may_miss=2 * sizes.switches)))
        ratios.append(times["leaves"][-1] / times["one"][-1])
    table.info(f"switch_{count}_of_one_collector", statistics.median(times["one"]), "s")
    table.info(f"switch_{count}_over_{sizes.leaves}_leaves", statistics.median(times["leaves"]), "s")
    table.at_most(f"switch_{count}_over_{sizes.leaves}_leaves_of_one_collector", statistics.median(ratios), 1.2, "x")


def simulated(scratch: pathlib.Path, ranks: int, leaves: int, step_ms: int, switches: int) -> dict:
    """What bench_control says: a root in a process of its own, leaves and ranks in the program's."""
    with Bed(scratch) as bed:
        root = bed.collector("root", "--role", "root", "--object-store", tempfile.mkdtemp(dir=bed.directory), "--max-sessions", str(2 * ranks))
        done = subprocess.run([BIN / "bench_control", root.address, str(root.process.pid), str(ranks), str(leaves), str(step_ms), str(switches),
                               bed.directory], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"bench_control of {ranks} ranks: {done.stderr[-1000:]}")
        return json.loads(done.stdout)


def line_through(points: list[tuple[float, float]]) -> tuple[float, float]:
    """a and b of a + b * x, by least squares."""
    mean_x, mean_y = (statistics.mean(p[n] for p in points) for n in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    b = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return mean_y - b * mean_x, b


def control(table: Table, scratch: pathlib.Path, sizes: Sizes) -> None:
    """Control alone, of very many simulated ranks: what a switch takes, and what a line through the sizes says of more."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for count in sizes.simulated:
        seen = simulated(scratch, count, sizes.many_leaves, sizes.step_ms, sizes.switches + 1)
        first = seen["switches"][0]
        figures = {
            "decided": (statistics.median(s["told"] for s in seen["switches"]), "s"),
            "switch_root_cpu": (statistics.median(s["root_cpu"] for s in seen["switches"]), "s"),
            "switch_messages": (statistics.median(sum(s["directives"].values()) + s["events"]["prepared"] + s["events"]["applied"]
                                                  for s in seen["switches"]), ""),
            "connect_root_cpu": (seen["connect_root_cpu"], "s"),
            "root_busy_between": (seen["quiet_root_busy"], ""),
            "progress_a_second": (seen["quiet_progress_a_second"], ""),
            "root_resident": (seen["root_mib"], "MiB"),
        }
        name = f"control_{count}_over_{sizes.many_leaves}_leaves"
        table.info(f"{name}_switch", statistics.median(s["done"] for s in seen["switches"]), "s")
        table.info(f"{name}_switch_attempts", max(s["attempts"] for s in seen["switches"]))
        table.info(f"{name}_connect", seen["connect"], "s")
        table.info(f"{name}_status", seen["status"], "s")
        for what, (value, unit) in figures.items():
            table.info(f"{name}_{what}", value, unit)
            curves.setdefault(f"{what} {unit}", []).append((count, value))
        for kind, messages in {**first["events"], **first["directives"]}.items():
            table.info(f"{name}_first_switch_{kind}", messages)
    for curve, points in curves.items():
        what, _, unit = curve.partition(" ")
        a, b = line_through(points)
        table.info(f"control_model_of_{MODELLED}_{what}", a + b * MODELLED, unit)


def sessions(table: Table, scratch: pathlib.Path, sizes: Sizes) -> None:
    """Real sessions, leaves and root, without anything to record: how long a switch of very many ranks takes."""
    count, part = sizes.many_ranks, sizes.many_ranks // sizes.loads
    with Bed(scratch) as bed, contextlib.ExitStack() as held:
        root, leaves = bed.fleet(tempfile.mkdtemp(dir=bed.directory), sizes.many_leaves, "--max-sessions", str(2 * count))
        began = time.monotonic()
        loads = []
        for n in range(sizes.loads):
            loads.append(held.enter_context(ranks(root.address, part, sizes.step_ms, n * part, count)))
            connected(loads[-1])
        table.info(f"sessions_{count}_connect", time.monotonic() - began, "s")
        began = time.monotonic()
        wait_for(lambda: sum(agent.get("connected", False) for agent in root.json("status", "--run", "many", check=False).get("agents", [])) == count,
                 120, f"{count} ranks in the root's status")
        table.info(f"sessions_{count}_status", time.monotonic() - began, "s")
        begin_steps(root, loads, count)
        before = cpu_seconds(root.process), cpu_seconds(*(leaf.process for leaf in leaves))
        began = time.monotonic()
        times = switch_times(root, count, sizes.switches)
        wall = time.monotonic() - began
        table.info(f"sessions_{count}_ranks_over_{sizes.many_leaves}_leaves_switch", statistics.median(times), "s")
        table.info(f"sessions_{count}_switch_longest", max(times), "s")
        table.info(f"sessions_{count}_root_busy", (cpu_seconds(root.process) - before[0]) / wall)
        table.info(f"sessions_{count}_leaves_busy", (cpu_seconds(*(leaf.process for leaf in leaves)) - before[1]) / wall)
        table.info(f"sessions_{count}_root_resident", resident_mib(root.process), "MiB")
        table.info(f"sessions_{count}_leaf_resident", max(resident_mib(leaf.process) for leaf in leaves), "MiB")


def leaf_memory(table: Table, scratch: pathlib.Path, sizes: Sizes) -> None:
    """One leaf of one node, eight ranks: as it is by default, and as deploy/ starts it beside a training. They are connected, record 10,000
    records in each step of `sizes.node_step_ms`, or record as fast as they can."""
    for shape, flags in (("leaf", ()), ("lean_leaf", ("--lean", "--free-stored"))):
        with Bed(scratch) as bed:
            leaf = node_leaf(bed, flags)
            table.info(f"{shape}_of_nothing_resident", resident_mib(leaf.process), "MiB")
            root = bed.running[0]
            with ranks(root.address, 8, 100) as simulated:
                connected(simulated)
                begin_steps(root, [simulated], 8)
                switch_times(root, 8, 2)
                table.at_most(f"{shape}_of_8_ranks_resident", resident_mib(leaf.process), 64, "MiB")
        # Most ever is of a process, so each has one.
        for what, thousands, step_ms in (("in_steps", min(30, sizes.thousands), sizes.node_step_ms), ("that_record_all_they_can", sizes.thousands // 4, 0)):
            with Bed(scratch) as bed:
                leaf = node_leaf(bed, flags)
                anonymous = record(leaf, thousands, step_ms)
                name = f"{shape}_of_8_ranks_{what}"
                table.info(f"{name}_resident", resident_mib(leaf.process), "MiB")
                table.at_most(f"{name}_most_ever_resident", resident_mib(leaf.process, "VmHWM"), 64, "MiB")
                table.info(f"{name}_most_seen_anonymous", anonymous, "MiB")


def node_leaf(bed: Bed, flags: tuple[str, ...]) -> Collector:
    """Behind a root, which is what the bed started first."""
    url = tempfile.mkdtemp(dir=bed.directory)
    root = bed.collector("root", "--role", "root", "--object-store", url)
    return bed.leaf("leaf0", url, "--root", root.address, *flags)


def record(leaf: Collector, thousands: int, step_ms: int) -> float:
    """Eight ranks of one run, until all is stored; the most that the leaf had in memory of its own, MiB, of looks ten times a second."""
    loads = [threading.Thread(target=load, args=("records", leaf.address, "run", thousands, step_ms, rank)) for rank in range(8)]
    most = 0.0
    for one in loads:
        one.start()
    while any(one.is_alive() for one in loads):
        most = max(most, resident_mib(leaf.process, "RssAnon"))
        time.sleep(0.1)
    wait_for(lambda: stored(leaf) >= 8 * (thousands // 10), 300, "all to be stored")
    return max(most, resident_mib(leaf.process, "RssAnon"))


def measure(table: Table, scratch: pathlib.Path, rounds: int, small: bool, parts: list[str]) -> None:
    sizes = SMALL if small else FULL
    with stores(scratch, small) as found:
        table.info("processors", os.cpu_count() or 0)
        table.info("load_of_others", os.getloadavg()[0])
        for part, of_each in (("ingest", ingest), ("two", two_leaves), ("export", export)):
            for kind, new_store in found.items():
                if part in parts:
                    attempt(table, f"{kind}_{part}", lambda: of_each(table, scratch, kind, new_store, sizes, rounds))
        for part, once in (("switch", lambda: switch(table, scratch, sizes, rounds)), ("memory", lambda: leaf_memory(table, scratch, sizes)),
                           ("control", lambda: control(table, scratch, sizes)), ("sessions", lambda: sessions(table, scratch, sizes))):
            if part in parts:
                attempt(table, part, once)
        table.info("load_at_the_end", os.getloadavg()[0])


def attempt(table: Table, name: str, measured: Callable[[], None]) -> None:
    try:
        measured()
    except Exception as error:  # noqa: BLE001 - one part's failure is not the others'
        table.failed(name, error)
