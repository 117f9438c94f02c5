# SPDX-License-Identifier: Apache-2.0
"""Kills by SIGKILL: acknowledged records survive, and training never stops."""

import signal

import harness


def committed(collector, run: str) -> dict[tuple[int, int], int]:
    """The records that the collector has, of each step and rank."""
    steps = collector.json("status", "--run", run, "--steps").get("steps", [])
    return {(s["step"], s["rank"]): s["records"] for s in steps}


def test_collector_killed_in_the_middle_of_an_upload(collector, start_job, tmp_path):
    job = start_job("ckill", collector.address, harness.config("tensor", "mix"), stepwise=True)
    job.step(3)
    job.wait_known(collector)
    on = collector.json("enable", "--run", "ckill", "--for-steps", "12")
    first = on["effective_at_step"]
    job.step_until(first + 3)
    acked = harness.wait_for(lambda: committed(collector, "ckill"), 60, "something to be committed before the kill")
    collector.kill()
    job.step(3)  # training goes on without a collector
    collector.start()
    job.step_until(first + 14)
    assert job.finish() == [0, 0]
    out = tmp_path / "dump"
    collector.cli("export", "--run", "ckill", "-o", out)
    tree = harness.tree_ranks(out)
    assert set(tree) == set(range(first, first + 12))
    for (step, rank) in acked:
        assert f"rank{rank}" in tree[step]
    # The agent still had what was not acked: nothing at all is missing.
    manifest = __import__("json").loads((out / "manifest.json").read_text())
    assert manifest["gaps"] == [] and manifest["incomplete"] == []


def test_rank_killed_keeps_its_records_up_to_the_last_ack(collector, start_job, tmp_path):
    job = start_job("rkill", collector.address, harness.config("statistics", "mix"), stepwise=True)
    job.step(3)
    job.wait_known(collector)
    on = collector.json("enable", "--run", "rkill")
    first = on["effective_at_step"]
    job.step_until(first + 4)
    # What is killed before it has sent anything keeps nothing.
    harness.wait_for(lambda: sum(rank == 1 for _, rank in committed(collector, "rkill")) >= 4, 60, "four steps of rank 1")
    job.ranks[1].process.send_signal(signal.SIGKILL)
    job.ranks[1].process.wait()
    harness.wait_for(lambda: any(not a["connected"] for a in collector.json("status")["agents"]), 30,
                     "the collector to see the rank go")
    out = tmp_path / "dump"
    collector.cli("export", "--run", "rkill", "-o", out, check=False)
    tree = harness.tree_ranks(out)
    full = [s for s in sorted(tree) if "rank1" in tree[s]]
    assert len(full) >= 3 and full[0] == first
    for step in full[:-1]:
        mine = list(harness.load_dump(out / f"step{step}" / "rank1")["data"])
        other = list(harness.load_dump(out / f"step{step}" / "rank0")["data"])
        assert mine == other


def test_training_runs_without_a_collector(start_job):
    job = start_job("alone", "127.0.0.1:1", harness.config(), steps=6)
    assert [r.process.wait(timeout=120) for r in job.ranks] == [0, 0]
    assert len(job.ranks[0].steps()) == 6
