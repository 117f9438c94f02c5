# SPDX-License-Identifier: Apache-2.0
"""Pings to a collector by a rank that waits for room, and by one that pings far too often."""

import harness
from harness import RawAgent, agent

# No disk of a test is so large: nothing is committed.
FULL = ("--min-free-bytes", str(1 << 40))


def test_a_ping_is_answered_whatever_the_disk_does(start_daemon):
    daemon = start_daemon(*FULL)
    rank = RawAgent(daemon, run="full")
    rank.batch(0, [harness.begin_record(0)])
    for _ in range(20):
        rank.event(ping=agent.Ping())
        answer = rank.session.receive()
        assert answer is not None and answer.WhichOneof("directive") == "pong", answer


def test_a_flood_of_pings_takes_no_memory_and_holds_nobody_up(daemon):
    rank = RawAgent(daemon, run="flood")
    before = daemon.memory()
    for _ in range(50_000):
        rank.event(ping=agent.Ping())
    other = RawAgent(daemon, run="honest", pid=7)
    other.event(ping=agent.Ping())
    assert other.session.receive().WhichOneof("directive") == "pong"
    assert daemon.memory() - before < 64 << 20
