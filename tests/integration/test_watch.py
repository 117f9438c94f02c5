# SPDX-License-Identifier: Apache-2.0
"""Triggers, flight recorder, budgets, events and explain on a live job."""

import json
import math
import re
import zipfile

import pytest

import harness


def has_nan(node) -> bool:
    if isinstance(node, dict):
        return any(has_nan(v) for v in node.values())
    if isinstance(node, list):
        return any(has_nan(v) for v in node)
    return isinstance(node, float) and math.isnan(node)


def events(collector, run: str, kind: str = "") -> list[dict]:
    found = collector.json("events", "--run", run, "--limit", "1000")["events"]
    return [e for e in found if not kind or e["kind"] == f"KIND_{kind}"]


def set_triggers(collector, run: str, tmp_path, spec: dict) -> None:
    path = tmp_path / "triggers.json"
    path.write_text(json.dumps(spec))
    collector.cli("triggers", "set", "--create", "--run", run, path)


# The step in which something goes wrong.
FAULT = 10
NAN_RULE = {"name": "nan", "non_finite": {"nan_only": True}, "level": "L0", "for_steps": 2}


def test_a_nan_on_one_rank_is_found_named_and_recorded(tmp_path, start_job):
    """Nobody types anything: the collector was started with the rules."""
    watch = tmp_path / "watch.json"
    watch.write_text(json.dumps({"flight": {"steps": 4, "level": "L0"}, "rules": [NAN_RULE]}))
    directory = tmp_path / "collector"
    directory.mkdir()
    collector = harness.Collector(directory, "--triggers", str(watch)).start()
    job = start_job("nan", collector.address, harness.config(), world_size=3,
                    extra=(f"--inject-nan=1:{FAULT}:block1.attn.proj",), stepwise=True)
    job.step(2)
    job.wait_known(collector)  # and with it they have heard of the rules
    job.step_until(FAULT + 1)
    harness.wait_for(lambda: job.step() or events(collector, "nan", "SWITCHED"), 60, "the switch")
    job.step(8)
    assert job.finish() == [0, 0, 0]

    fired = events(collector, "nan", "TRIGGER_FIRED")
    first = fired[0]
    assert first["rule"] == "nan" and first["step"] == FAULT
    assert first["identity"]["rank"] == 1
    assert first["entry"] == "Module.block1.attn.proj.Linear.forward.0", first
    assert first["detail"] == "input 0: Max NaN"
    assert "flight recorder of 3 ranks" in first["outcome"] and "tensors at level L0" in first["outcome"]
    # Others see it later, through the averaged gradients; that changes nothing.
    assert all(int(e["step"]) >= FAULT and "nothing more" in e["outcome"] for e in fired[1:])
    switched = events(collector, "nan", "SWITCHED")[0]
    assert switched["outcome"].startswith("3/3 ranks at step")
    start = int(switched["step"])

    out = tmp_path / "dump"
    collector.cli("export", "--run", "nan", "-o", out, check=False)
    ranks = harness.tree_ranks(out)
    everyone = {"rank0", "rank1", "rank2"}
    # Steps before the fault and the step itself, of all ranks, without a gap to what follows.
    for step in range(FAULT - 3, start + 2):
        assert ranks.get(step) == everyone, (step, ranks)
    assert not has_nan(harness.load_dump(out / f"step{FAULT - 1}" / "rank1")["data"])
    bad = harness.load_dump(out / f"step{FAULT}" / "rank1")["data"]
    entries = list(bad)
    assert has_nan(bad["Module.block1.attn.proj.Linear.forward.0"])
    assert not any(has_nan(bad[e]) for e in entries[:entries.index("Module.block0.Block.forward.0")])
    for step in (start, start + 1):
        for rank in everyone:
            files = list((out / f"step{step}" / rank / "dump_tensor_data").glob("*.pt"))
            assert files, (step, rank)
    # The flight recorder had statistics alone, and of the call at which the rule fired the tensors.
    kept = [path.name for path in (out / f"step{FAULT}" / "rank1").glob("dump_tensor_data/*.pt")]
    assert kept == [f"{first['entry']}.input.0.pt"], kept
    assert not list((out / f"step{FAULT - 1}").glob("rank*/dump_tensor_data/*.pt"))
    assert collector.stop() == 0


def test_the_operators_config_survives_a_trigger(collector, start_job, tmp_path):
    set_triggers(collector, "keep", tmp_path, {"flight": {"steps": 2}, "rules": [NAN_RULE]})
    job = start_job("keep", collector.address, harness.config(level="L0"), world_size=1,
                    extra=(f"--inject-nan=0:{FAULT}:block0.fc1",))
    harness.wait_for(lambda: events(collector, "keep", "SWITCHED"), 60, "the switch")
    job.wait_steps(6)
    config = json.loads(collector.json("config", "get", "--run", "keep")["config_json"])
    assert config["level"] == "L0" and config["task"] == "statistics"
    answer = collector.json("enable", "--run", "keep", "--for-steps", "1")
    job.wait_steps(4)
    job.finish()
    out = tmp_path / "dump"
    collector.cli("export", "--run", "keep", "-o", out, "--steps", answer["effective_at_step"], check=False)
    head = harness.load_dump(out / f"step{answer['effective_at_step']}" / "rank0")
    assert head["task"] == "statistics" and head["level"] == "L0"


def test_a_replica_that_differs_is_named(collector, start_job, tmp_path):
    set_triggers(collector, "replica", tmp_path,
                 {"rules": [{"name": "replica", "replica": {}, "raise_to": "EVIDENCE_NONE"}]})
    job = start_job("replica", collector.address, harness.config(), world_size=3,
                    extra=(f"--corrupt-replica=2:{FAULT}",))
    fired = harness.wait_for(lambda: events(collector, "replica", "TRIGGER_FIRED"), 60, "the event")
    assert fired[0]["identity"]["rank"] == 2 and fired[0]["step"] == FAULT, fired
    assert "of 3 ranks is" in fired[0]["detail"]
    job.finish()


def test_the_flight_recorder_ships_on_request(collector, start_job, tmp_path):
    job = start_job("flight", collector.address, harness.config(), world_size=2)
    job.wait_steps(2)
    job.wait_known(collector)
    refused = collector.cli("flight", "--run", "flight", check=False)
    assert refused.returncode == 5 and "no flight recorder" in refused.stderr
    set_triggers(collector, "flight", tmp_path, {"flight": {"steps": 3, "level": "L1"}})
    # More than the ring has: the rules are with the ranks a moment later.
    job.wait_steps(30)
    collector.cli("flight", "--run", "flight")
    harness.wait_for(lambda: len(events(collector, "flight", "FLIGHT_SHIPPED")) >= 2, 60, "the flight")
    (line,) = [line for line in collector.cli("events", "--run", "flight").stdout.splitlines() if " flight: " in line]
    assert re.search(r"; \d+ more flights? up to step \d+, of 2 processes$", line), line
    job.wait_steps(2)
    job.finish()
    out = tmp_path / "dump"
    collector.cli("export", "--run", "flight", "-o", out, check=False)
    ranks = harness.tree_ranks(out)
    whole = [s for s, names in ranks.items() if names == {"rank0", "rank1"}]
    assert len(whole) >= 3, ranks
    data = harness.load_dump(out / f"step{whole[0]}" / "rank0")["data"]
    assert data and all(name.startswith("Aten.") for name in data)


def test_a_byte_budget_turns_tensors_into_statistics_and_says_so(collector, start_job, tmp_path):
    job = start_job("budget", collector.address, harness.config("tensor", "L0"), world_size=1)
    job.wait_steps(2)
    job.wait_known(collector)
    set_triggers(collector, "budget", tmp_path, {"budget": {"bytes_per_step": 400000}})
    answer = collector.json("enable", "--run", "budget", "--for-steps", "2")
    job.wait_steps(5)
    job.finish()
    out = tmp_path / "dump"
    collector.cli("export", "--run", "budget", "-o", out, check=False)
    step = out / f"step{answer['effective_at_step']}" / "rank0"
    # Equal tensors are one payload; the budget is of what is sent.
    distinct = set()
    for file in (step / "dump_tensor_data").glob("*.pt"):
        with zipfile.ZipFile(file) as archive:
            distinct.update(archive.read(n) for n in archive.namelist() if "/data/" in n)
    assert 0 < sum(map(len, distinct)) <= 400000
    named = re.findall(r'"data_name": "([^"]+)"', (step / "dump.json").read_text())
    files = {f.name for f in (step / "dump_tensor_data").iterdir()}
    assert len(set(named)) >= len(files)
    manifest = json.loads(next(out.rglob("manifest.json")).read_text())
    assert "AGENT_BUDGET" in json.dumps(manifest), "what was left out is in the ledger"
    told = harness.wait_for(lambda: events(collector, "budget", "DEGRADED"), 30, "what the rank has left out")
    assert told[0]["detail"].startswith("bytes_per_step"), told


def test_explain_before_and_after(collector, start_job, tmp_path):
    job = start_job("explain", collector.address, harness.config(level="L1", risk_level="FOCUS"), world_size=2)
    job.wait_steps(3)
    job.wait_known(collector)

    def explain(*flags, status=0):
        done = collector.cli("--json", "explain", "--run", "explain", *flags, check=False)
        assert done.returncode == status, (flags, done.stderr)
        return json.loads(done.stdout)

    before = explain("--rank", "0")["ranks"][0]
    stages = {s["stage"]: s for s in before["stages"]}
    assert stages["connected"]["passes"] and not stages["enabled"]["passes"]
    assert "dumping is off" in stages["enabled"]["reason"]
    assert "no call of this rank has been seen" in stages["hooked"]["reason"]

    answer = collector.json("enable", "--run", "explain", "--for-steps", "2")
    job.wait_steps(5)
    after = explain("--step", str(answer["effective_at_step"]), "--max-calls", "20000")
    assert len(after["ranks"]) == 2
    rank = after["ranks"][0]
    assert {s["stage"] for s in rank["stages"] if not s["passes"]} == set()
    captured = {c["entry"] for c in rank["calls"] if c["captured"]}
    left = {c["entry"]: c for c in rank["calls"] if not c["captured"]}
    assert any(c["stage"] == "level" and "API calls, not modules" in c["reason"] for c in left.values())

    # What it says is what the archive holds: every call of the step, no other.
    out = tmp_path / "dump"
    collector.cli("export", "--run", "explain", "-o", out)
    step = int(rank["calls_step"])
    data = set(harness.load_dump(out / f"step{step}" / "rank0")["data"])
    assert data == captured

    # A config that is not in force: what it would do.
    trial = tmp_path / "trial.json"
    trial.write_text(json.dumps(harness.config(level="L1", section={"list": ["softmax"]})))
    would = explain("--rank", "1", "--config", trial, "--max-calls", "20000")["ranks"][0]
    for call in would["calls"]:
        if call["captured"]:
            assert "softmax" in call["entry"]
        elif call["entry"].startswith("Aten."):
            assert call["stage"] == "list" and "softmax" in call["reason"]
    assert any(c["captured"] for c in would["calls"])
    nothing = explain("--rank", "1", "--call", "no_such_call")["ranks"][0]
    assert "none of the" in [s for s in nothing["stages"] if s["stage"] == "hooked"][0]["reason"]
    gone = explain("--rank", "7", status=4)
    assert gone["stages"][0]["stage"] == "connected" and "rank 7 is not connected" in gone["stages"][0]["reason"]
    text = collector.cli("explain", "--run", "explain", "--rank", "0", "--call", "softmax").stdout
    assert "yes connected" in text and "NO  enabled" in text
    job.finish()


def test_windows_are_checked_again_by_the_collector(collector, start_job, tmp_path):
    """With scope and list at mix the agent sends what it decided on; nothing true is refused."""
    job = start_job("window", collector.address, harness.config(), world_size=1)
    job.wait_steps(2)
    job.wait_known(collector)
    trial = tmp_path / "window.json"
    trial.write_text(json.dumps(harness.config(level="mix", section={
        "scope": ["Module.block0.Block.forward.0", "Module.block1.attn.proj.Linear.forward.0"],
        "list": ["attn"]})))
    answer = collector.json("enable", "--run", "window", "--config", trial, "--for-steps", "1")
    job.wait_steps(4)
    says = collector.json("explain", "--run", "window", "--max-calls", "20000",
                          "--step", str(answer["effective_at_step"]))["ranks"][0]
    job.finish()
    out = tmp_path / "dump"
    collector.cli("export", "--run", "window", "-o", out)
    data = set(harness.load_dump(out / f"step{answer['effective_at_step']}" / "rank0")["data"])
    assert data == {c["entry"] for c in says["calls"] if c["captured"]}
    assert any(e.startswith("Aten.") for e in data) and any("block1.attn" in e for e in data)
    manifest = next(out.rglob("manifest.json")).read_text()
    assert "FILTERED" not in manifest


def test_top_and_watch(collector, start_job):
    job = start_job("top", collector.address, harness.config(), world_size=2)
    job.wait_steps(3)
    job.wait_known(collector)
    text = collector.cli("top", "--rounds", "2", "--interval", "0.2").stdout
    assert "2 ranks connected, 0 dumping" in text and "connected" in text and "MS/STEP" in text
    lines = [json.loads(line) for line in
             collector.cli("watch", "--json", "--rounds", "2", "--interval", "0.2").stdout.splitlines()]
    assert sum("event" in line for line in lines) == 2, "each event once"
    agents = [line for line in lines if "agents" in line]
    assert len(agents) == 2 and {a["identity"]["rank"] for a in agents[1]["agents"]} == {0, 1}
    job.finish()
    kinds = [e["kind"] for e in events(collector, "top")]
    assert kinds.count("KIND_CONNECTED") == 2
    harness.wait_for(lambda: len(events(collector, "top", "DISCONNECTED")) == 2, 60, "the farewells")
    assert {e["detail"] for e in events(collector, "top", "DISCONNECTED")} == {"the process has ended"}


def test_a_killed_rank_is_told_and_events_outlive_the_collector(collector, start_job, tmp_path):
    job = start_job("silent", collector.address, harness.config(), world_size=1)
    job.wait_steps(2)
    job.wait_known(collector)
    set_triggers(collector, "silent", tmp_path,
                 {"rules": [{"name": "gone", "silence": {"after_ms": 500}, "raise_to": "EVIDENCE_NONE"}]})
    job.ranks[0].process.kill()
    fired = harness.wait_for(lambda: events(collector, "silent", "TRIGGER_FIRED"), 60, "the event")
    assert fired[0]["rule"] == "gone" and fired[0]["identity"]["rank"] == 0
    assert "without a goodbye" in fired[0]["detail"]
    # They are listed before they are written, and all of them are told by now.
    harness.wait_for(lambda: events(collector, "silent", "DISCONNECTED"), 30, "the end of the rank")
    before = events(collector, "silent")
    log = collector.data_dir / "events.log"
    harness.wait_for(lambda: all(e.get("detail", "").encode() in log.read_bytes() for e in before), 30, "all of them on disk")
    collector.kill()
    collector.start()
    assert events(collector, "silent") == before
    assert collector.json("triggers", "get", "--run", "silent")["rules"][0]["name"] == "gone"


@pytest.mark.parametrize("spec, words", [
    ('{"rules": [{"name": "x"}]}', "condition"),
    ('{"flight": {"steps": 99999}}', "flight.steps"),
    ("nonsense", "not a trigger spec"),
])
def test_bad_triggers_are_refused(collector, tmp_path, spec, words):
    path = tmp_path / "bad.json"
    path.write_text(spec)
    result = collector.cli("triggers", "set", "--run", "r", path, check=False)
    assert result.returncode == 2 and words in result.stderr, result
