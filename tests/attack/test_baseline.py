# SPDX-License-Identifier: Apache-2.0
"""The harness itself: what an honest rank sends by hand arrives, so that an attack that fails did not fail by accident."""

import os

import harness


def test_an_honest_step_is_exported(daemon, tmp_path):
    rank = harness.RawAgent(daemon, run="honest", rank=3)
    data = os.urandom(1 << 20)  # two chunks
    rank.step(5, data)
    assert rank.committed() and rank.synced()
    tensors = harness.exported_tensors(harness.export(daemon, "honest", tmp_path / "tree"))
    assert tensors == {"step5/rank3/dump_tensor_data/Torch.relu.0.forward.output.0.pt": data}
    assert daemon.alive and 0 < daemon.memory() <= daemon.peak_memory() < 1 << 30


def test_tokens_are_asked_for(secured, tokens):
    assert harness.outcome(secured.control().ListAgents, harness.control.ListAgentsRequest())[0] == "UNAUTHENTICATED"
    assert harness.outcome(secured.control(tokens.viewer).ListAgents, harness.control.ListAgentsRequest())[0] == "OK"
    assert harness.RawAgent(secured).refused[0] == "UNAUTHENTICATED"
    assert harness.RawAgent(secured, token=tokens.viewer).refused[0] == "PERMISSION_DENIED"
    rank = harness.RawAgent(secured, token=tokens.alice)
    rank.step()
    assert rank.committed()
