# SPDX-License-Identifier: Apache-2.0
"""Whatever a call is given, the other calls of the step are recorded and nothing is lost without a word
(D01 of tests/attack/README.md, "Attacks")."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rankprobe.pytorch import PrecisionDebugger  # noqa: E402

LISTS, DICTS = 45, 30  # common/base/limits.h
VALUES, TENSORS, TEXT = 65_536, 16_384, 64 << 10


class Echo(torch.nn.Module):
    """Is given anything, hands on its tensor."""

    def forward(self, x: torch.Tensor, *values: Any, **named: Any) -> torch.Tensor:
        return x * 1


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.echo, self.after = torch.nn.Linear(2, 2), Echo(), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, *values: Any, **named: Any) -> torch.Tensor:
        return self.after(self.echo(self.before(x), *values, **named))


ENTRY = "Module.echo.Echo.forward.0"
ENTRIES = ["Module.before.Linear.forward.0", ENTRY, "Module.after.Linear.forward.0"]


def nested(levels: int, make=lambda inner: [inner]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = make(value)
    return value


def self_list() -> list:
    value: list = [1]
    value.append(value)
    value.append(value)
    return value


def self_dict() -> dict:
    value: dict = {"a": 1}
    value["self"] = {"again": value}
    return value


def run_step(net: Net, *values: Any, **named: Any) -> None:
    PrecisionDebugger.start(model=net)
    with torch.no_grad():
        net(torch.ones(1, 2), *values, **named)
    PrecisionDebugger.stop()
    PrecisionDebugger.step()


@pytest.fixture
def shared(collector, dump, monkeypatch):
    """A debugger against a collector of its own, and what the run's export and ledger say."""
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "any")
    monkeypatch.setenv("RANK", "0")

    class Shared:
        debugger = dump.debugger(level="L0")
        tree = dump.path.parent / "tree"

        def export(self) -> dict:
            PrecisionDebugger._instance.close()
            collector.cli("export", "--run", "any", "-o", self.tree)
            return json.loads((self.tree / "manifest.json").read_text())

        def data(self, step: int) -> dict:
            return json.loads((self.tree / f"step{step}" / "rank0" / "dump.json").read_text())["data"]

    Shared.collector = collector
    return Shared()


def leaves(value: Any) -> Any:
    """What stands innermost in nested lists and dicts of one item."""
    while isinstance(value, list) or (isinstance(value, dict) and len(value) == 1):
        value = value[0] if isinstance(value, list) else next(iter(value.values()))
    return value


def cut_of(value: Any) -> dict:
    return value["rankprobe_cut"]


def test_values_beyond_every_limit(shared, capfd) -> None:
    net = Net()
    values = {
        "ints": list(range(100_000)),
        "text": "\u00e9" * (1 << 20),
        "tensors": [torch.ones(())] * 65_000,
        "lists at the limit": nested(LISTS),
        "lists": nested(LISTS + 1),
        "a hundred lists": nested(100),
        "five thousand lists": nested(5000),
        "dicts at the limit": nested(DICTS, lambda inner: {"k": inner}),
        "dicts": nested(DICTS + 1, lambda inner: {"k": inner}),
        "self list": self_list(),
        "self dict": self_dict(),
        "surrogates": {"\ud800": "\udfff", "b": 2},
        "huge int": 10 ** 10_000,
        "big int": 10 ** 4000,
        "long keys": {"k" * (1 << 20) + str(i): i for i in range(2)},
        "wide dict": {i: i for i in range(100_000)},
        "dimensions": torch.ones([1] * 70),
        "last": "fine",
    }
    before = time.monotonic()
    for value in values.values():
        run_step(net, value)
    # By keyword too: each dict around it costs more of protobuf's depth.
    run_step(net, value=values["five thousand lists"], other=values["self dict"])
    assert PrecisionDebugger._instance._capture.faults == 0
    manifest = shared.export()
    assert time.monotonic() - before < 240  # some took minutes to hours
    assert manifest["gaps"] == [] and manifest["incomplete"] == []
    assert "nothing lost" in shared.collector.cli("ledger", "--run", "any").stdout
    assert "refuse" not in capfd.readouterr().err
    data = {}
    for step, name in enumerate(values):
        assert list(shared.data(step)) == ENTRIES, name
        data[name] = shared.data(step)[ENTRY]["input_args"][1]

    ints = data["ints"]
    kept = len(ints) - 1
    assert [i["value"] for i in ints[:-1]] == list(range(kept)) and VALUES - 10 < kept < VALUES
    assert cut_of(ints[-1]) == {"limit": "length", "size": 100_000, "kept": kept}
    assert ints[-1]["type"] == "list"
    assert cut_of(data["text"]) == {"limit": "length", "size": 2 << 20, "kept": TEXT}
    assert data["text"]["value"] == "\u00e9" * (TEXT // 2)
    tensors = data["tensors"]
    assert TENSORS - 2000 < len(tensors) <= TENSORS and cut_of(tensors[-1])["size"] == 65_000
    assert cut_of(tensors[-1])["kept"] == len(tensors) - 1
    assert leaves(data["lists at the limit"]) == leaves(data["dicts at the limit"]) == {"type": "int", "value": 1}
    for name in ("lists", "a hundred lists", "five thousand lists", "dicts"):
        assert cut_of(leaves(data[name]))["limit"] == "depth", name
    assert [cut_of(item)["limit"] for item in data["self list"][1:]] == ["cycle", "cycle"]
    assert data["self list"][0]["value"] == 1
    assert cut_of(data["self dict"]["self"]["again"])["limit"] == "cycle"
    assert data["surrogates"]["b"]["value"] == 2 and len(data["surrogates"]) == 2
    assert abs(cut_of(data["huge int"])["size"] - 10_001) <= 1 and data["huge int"]["type"] == "int"
    assert data["big int"]["value"] == 10 ** 4000
    assert sorted(v["value"] for v in data["long keys"].values()) == [0, 1]
    assert cut_of(data["wide dict"]["rankprobe_cut"])["size"] == 100_000
    assert cut_of(data["dimensions"])["size"] == 70
    assert data["last"] == {"type": "str", "value": "fine"}


def test_payloads_that_are_cut_off_are_gaps(collector, dump, monkeypatch) -> None:
    """Too many tensors for a frame: the ledger counts the payloads of those that the record cannot name."""
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "cut")
    monkeypatch.setenv("RANK", "0")
    dump.debugger(level="L0", task="tensor")
    net = Net()
    ones = torch.ones([1] * 60)
    run_step(net, [ones] * 9000)
    run_step(net)
    PrecisionDebugger._instance.close()
    steps = [json.loads(line) for line in collector.cli(
        "ledger", "--run", "cut", "--json", check=False).stdout.splitlines()]
    first, second = steps[0], steps[1]
    (gap,) = first["gaps"]
    assert gap["reason"] == "TOO_LARGE" and gap["entry"] == ENTRY and not second.get("gaps")
    assert 100 < gap["payloads"] < 8000 and gap["records"] == 0
    assert first["stored_records"] == first["expected_records"]
    assert first["stored_payloads"] + gap["payloads"] == first["expected_payloads"] == 9010


PRIVATE = textwrap.dedent("""
    import sys, torch
    sys.path.insert(0, sys.argv[1])
    import test_any_value as t
    debugger = t.PrecisionDebugger(config_path=sys.argv[2])
    net = t.Net()
    t.run_step(net, t.nested(400), list(range(100_000)), "x" * (2 << 20))
    t.run_step(net, t.self_list(), [torch.ones(())] * 65_000)
    t.run_step(net, 1)
    print(t.time.monotonic())  # of the whole machine
""")


def test_the_private_collector_ends_at_once(dump, tmp_path: pathlib.Path) -> None:
    config = dump.config(level="L0")
    result = subprocess.run([sys.executable, "-c", PRIVATE, str(pathlib.Path(__file__).parent), config],
                            cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    # It took a minute and more. What comes before its end is this machine's affair.
    assert time.monotonic() - float(result.stdout) < 50
    assert "not committed" not in result.stderr and "refuse" not in result.stderr, result.stderr
    for step in range(3):
        (directory,) = (dump.path / f"step{step}").iterdir()
        assert list(json.loads((directory / "dump.json").read_text())["data"]) == ENTRIES
    assert json.loads((dump.path / "manifest.json").read_text())["gaps"] == []


def test_any_value_leaves_the_other_calls_intact(shared) -> None:
    hypothesis = pytest.importorskip("hypothesis")
    strategies = hypothesis.strategies
    scalars = strategies.one_of(
        strategies.none(), strategies.booleans(), strategies.integers(), strategies.floats(),
        strategies.text(alphabet=strategies.characters(blacklist_categories=()), max_size=50),  # lone surrogates too
        strategies.integers(65, 20_000).map(lambda bits: -(1 << bits)),
        strategies.integers(1, 300_000).map(lambda size: "\u20ac" * size),
        strategies.integers(1, 120).map(nested),
        strategies.integers(1, 120).map(lambda n: nested(n, lambda inner: {"k": inner})),
        strategies.integers(1, 90_000).map(lambda n: [7] * n),
        strategies.integers(1, 70).map(lambda n: torch.ones([1] * n)),
        strategies.sampled_from([self_list(), self_dict(), object(), Echo, slice(1, None), ..., b"bytes", 1j,
                                 torch.float16, torch.Size([1, 2]), range(3), {1, 2}]))
    keys = strategies.one_of(strategies.text(max_size=20), strategies.integers(), strategies.none(),
                             strategies.integers(4000, 10_000).map(lambda n: "k" * n),
                             strategies.tuples(strategies.integers()))
    values = strategies.recursive(
        scalars, lambda inner: strategies.one_of(
            strategies.lists(inner, max_size=8), strategies.dictionaries(keys, inner, max_size=8),
            strategies.tuples(inner, inner)), max_leaves=30)
    net = Net()
    steps = []

    @hypothesis.settings(max_examples=40, deadline=None, database=None, derandomize=True,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(values, values)
    def step(one: Any, two: Any) -> None:
        steps.append(len(steps))
        run_step(net, one, named=two)

    step()
    assert PrecisionDebugger._instance._capture.faults == 0
    manifest = shared.export()
    assert manifest["gaps"] == [] and manifest["incomplete"] == []
    assert len(steps) >= 40
    for number in steps:
        assert list(shared.data(number)) == ENTRIES, number
