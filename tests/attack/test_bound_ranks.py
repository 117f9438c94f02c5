# SPDX-License-Identifier: Apache-2.0
"""Tokens that are bound to ranks: what their holders say reaches these ranks, and no others."""

from __future__ import annotations

import contextlib
import json
import threading

import harness
from harness import agent, control, watch

_OFF = json.dumps({"dump_path": "./d", "dump_enable": False})
_ON = json.dumps({"dump_path": "./d", "dump_enable": True})
_MIX = json.dumps({"dump_path": "./d", "dump_enable": True, "level": "mix"})
_DIFFERS = json.dumps({"task": "tensor", "dump_path": "./d", "tensor": {
    "summary_mode": "md5", "bench_path": "run:good", "diff_nums": 3}})
_TEXT = "agent alice {0} run=train ranks=0-3\nagent bob {1} run=train ranks=5\noperator olga {2}\nviewer vera {3}\n"


@contextlib.contextmanager
def _alice_and_bob(start_secured, tokens, config: str):
    """(daemon, alice's rank 0, bob's rank 5): both step on and follow the run's plans."""
    daemon = start_secured(text=_TEXT.format(tokens.alice, tokens.bob, tokens.operator, tokens.viewer))
    alice = harness.RawAgent(daemon, "train", 0, config=config, token=tokens.alice)
    bob = harness.RawAgent(daemon, "train", 5, config=config, token=tokens.bob)
    stop = threading.Event()
    threads = [harness.follow(rank, stop, 3) for rank in (alice, bob)]
    try:
        yield daemon, alice, bob
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _config(daemon, tokens) -> control.GetConfigResponse:
    return daemon.control(tokens.viewer).GetConfig(control.GetConfigRequest(run="train"), timeout=harness.SOON)


def _outcomes(daemon, tokens, count: int, word: str) -> list[str]:
    """The outcomes of the run's events that hold `word`, once there are `count`."""
    stub = daemon.control(tokens.viewer)

    def found() -> list[str]:
        events = stub.ListEvents(control.ListEventsRequest(run="train"), timeout=harness.SOON).events
        return [outcome for outcome in (event.outcome for event in events) if word in outcome]

    harness.wait_for(lambda: len(found()) >= count, what=f"{count} events with {word}")
    return found()


def _prepared(rank: harness.RawAgent) -> list[agent.PlanSpec]:
    return [d.prepare.plan for d in rank.session.waiting() if d.HasField("prepare")]


def test_an_edit_of_one_token_switches_nobody(start_secured, tokens) -> None:
    with _alice_and_bob(start_secured, tokens, _ON) as (daemon, alice, bob):
        before = _config(daemon, tokens)
        bob.event(config_edited=agent.ConfigEdited(config_json=_MIX, path="x", seen_epoch=1 << 60))
        bob.event(config_edited=agent.ConfigEdited(fault="broken", path="x", seen_epoch=1 << 60))
        told = _outcomes(daemon, tokens, 2, "nothing changes before rank 0")
        assert "bound to ranks" in told[0]
        daemon.control(tokens.operator).SetDumpEnable(control.SetDumpEnableRequest(run="train", enable=True), timeout=harness.SOON)
        bob.event(config_edited=agent.ConfigEdited(fault="broken again", path="x", seen_epoch=1 << 60))
        assert _config(daemon, tokens).enabled and before.enabled
        assert [plan.source for plan in _prepared(alice)] == [agent.PlanSpec.SOURCE_OPERATOR] * len(_prepared(alice))
        assert not _config(daemon, tokens).config_fault


def test_an_edit_that_all_tokens_tell_is_one_switch_of_all(start_secured, tokens) -> None:
    with _alice_and_bob(start_secured, tokens, _OFF) as (daemon, alice, bob):
        for rank in (bob, alice):
            rank.event(config_edited=agent.ConfigEdited(config_json=_MIX, path="x", seen_epoch=1))
        # On a busy machine one of them may be told too late for the step, and gets the plan behind it.
        _outcomes(daemon, tokens, 1, "/2 ranks at step")
        assert _config(daemon, tokens).enabled


def test_a_trigger_of_one_token_reaches_its_ranks(start_secured, tokens) -> None:
    with _alice_and_bob(start_secured, tokens, _OFF) as (daemon, alice, bob):
        rule = watch.TriggerRule(name="nan", non_finite=watch.NonFinite(), for_steps=1000)
        daemon.control(tokens.operator).SetTriggers(control.SetTriggersRequest(run="train", spec=watch.TriggerSpec(
            flight=watch.FlightSpec(steps=2), rules=[rule])), timeout=harness.SOON)
        bob.event(fired=agent.TriggerFired(rule="nan", step=3))
        _outcomes(daemon, tokens, 1, "1/1 ranks at step")
        assert "the ranks of its token" in _outcomes(daemon, tokens, 1, "flight recorder of 1 rank")[0]
        assert _prepared(bob) and not _prepared(alice)
        assert not any(d.HasField("ship_flight") for d in alice.session.waiting())


def test_differences_of_one_token_end_the_dump_of_its_ranks(start_secured, tokens) -> None:
    with _alice_and_bob(start_secured, tokens, _DIFFERS) as (daemon, alice, bob):
        for _ in range(5):
            bob.event(difference=agent.ReferenceDifference(step=3, entry="Torch.relu.0.forward", plan_epoch=1))
        _outcomes(daemon, tokens, 1, "1/1 ranks at step")
        assert [plan.enabled for plan in _prepared(bob)][-1] is False
        assert not _prepared(alice) and _config(daemon, tokens).enabled
