# SPDX-License-Identifier: Apache-2.0
"""Attacks on the control of a run: steps and edits that no honest rank would send."""

from __future__ import annotations

import contextlib
import json
import threading

import harness
import pytest
from harness import agent, control

_OFF = json.dumps({"dump_path": "./d", "dump_enable": False})


def test_c01_a_step_of_2_to_the_62_blocks_no_switch(daemon) -> None:
    """C01: the rank far beyond the others is left out of the choice, with a note."""
    ranks = [harness.RawAgent(daemon, "far", rank, config=_OFF) for rank in range(3)]
    stop = threading.Event()
    threads = [harness.follow(rank, stop, 3) for rank in ranks[:2]]
    try:
        ranks[2].event(progress=agent.StepProgress(step=1 << 62))
        stub = daemon.control()
        harness.wait_for(lambda: [a for a in stub.ListAgents(control.ListAgentsRequest(run="far")).agents
                                  if a.step > 1 << 50], what="the lie")
        result = stub.SetDumpEnable(control.SetDumpEnableRequest(
            run="far", enable=True, options=control.SwitchOptions(timeout_ms=30000)), timeout=60)
        assert result.effective_at_step < 1_000_000
        states = {r.rank: (r.state, r.reason) for r in result.ranks}
        assert states[0][0] == states[1][0] == control.RankSwitch.STATE_APPLIED, result
        assert states[2][0] == control.RankSwitch.STATE_REFUSED and "left out" in states[2][1], result
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def _refusing_each_step(rank: harness.RawAgent, progress: bool):
    """The rank says of each step that is prepared that it has passed; with `progress` as its progress, too."""
    stop = threading.Event()

    def lie() -> None:
        seen = 0
        while not stop.wait(0.005):
            waiting = rank.session.waiting()
            for directive in waiting[seen:]:
                if directive.HasField("prepare"):
                    plan = directive.prepare.plan
                    if progress:
                        rank.event(progress=agent.StepProgress(step=plan.effective_at_step + 1))
                    rank.event(prepared=agent.PlanPrepared(epoch=plan.epoch, accepted=False,
                                                           current_step=plan.effective_at_step + 1))
            seen = len(waiting)

    thread = threading.Thread(target=lie)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("progress", [False, True])
def test_a_rank_that_has_passed_each_step_fails_no_switch(daemon, progress: bool) -> None:
    honest, liar = (harness.RawAgent(daemon, "liar", rank, config=_OFF) for rank in range(2))
    stop = threading.Event()
    thread = harness.follow(honest, stop, 3)
    try:
        liar.event(progress=agent.StepProgress(step=3, last_step_ns=20_000_000))
        with _refusing_each_step(liar, progress):
            for enable in (True, False, True):
                result = daemon.control().SetDumpEnable(control.SetDumpEnableRequest(
                    run="liar", enable=enable, options=control.SwitchOptions(timeout_ms=30000)), timeout=60)
                states = {r.rank: (r.state, r.reason) for r in result.ranks}
                assert states[0][0] == control.RankSwitch.STATE_APPLIED, result
                assert "left out" in states[1][1] and result.effective_at_step < 10_000, result
    finally:
        stop.set()
        thread.join()


def test_edits_in_a_flood_make_one_plan_at_a_time_and_end_with_the_newest(daemon) -> None:
    """An agent that edits without end holds up neither itself nor the operator."""
    rank = harness.RawAgent(daemon, "flood", 0, config=_OFF)
    stop = threading.Event()
    thread = harness.follow(rank, stop, 0)
    try:
        for i in range(2000):
            rank.event(config_edited=agent.ConfigEdited(
                config_json=json.dumps({"dump_path": "./d", "dump_enable": True, "step": [i]}), path="/x\x1b[2J",
                seen_epoch=1 << 40))
        stub = daemon.control()

        def newest() -> bool:
            got = stub.GetConfig(control.GetConfigRequest(run="flood"))
            return got.config_json.endswith('"step": [1999]}') and got.enabled

        harness.wait_for(newest, what="the newest edit")
        got = stub.GetConfig(control.GetConfigRequest(run="flood"))
        assert "\x1b" not in got.source_detail and got.source_detail.startswith("rank 0, /x")
        result = stub.SetDumpEnable(control.SetDumpEnableRequest(run="flood", enable=False), timeout=60)
        assert [r.state for r in result.ranks] == [control.RankSwitch.STATE_APPLIED]
    finally:
        stop.set()
        thread.join()
    assert daemon.alive


def test_a_file_that_cannot_be_used_is_bounded_and_harmless_text(daemon) -> None:
    rank = harness.RawAgent(daemon, "text", 0, config=_OFF)
    rank.event(config_edited=agent.ConfigEdited(fault="\x1b]0;title\x07" + "x" * 100_000, path="\n" * 100_000))
    stub = daemon.control()
    fault = harness.wait_for(lambda: stub.GetConfig(control.GetConfigRequest(run="text")).config_fault,
                             what="the fault")
    assert len(fault) < 20_000 and not any(c in fault for c in "\x1b\x07\n")
    printed = daemon.cli("config", "get", "--run", "text").stdout
    assert "\x1b" not in printed and "kept off" in printed
