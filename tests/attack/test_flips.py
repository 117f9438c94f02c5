# SPDX-License-Identifier: Apache-2.0
"""A bit that flips between a rank and its collector, without TLS (F1, F2, F7 and F8 of docs/security.md, "A wire without TLS").
`crash_oracle --flips` does the same to real agents, with a proxy between."""

import json
import random
import re

import harness
import wire
import pytest
from bad_wire import UP, BadWire
from harness import agent, types
from rankprobe.v1 import query_pb2 as query

FLIPS = 60


def flipped(data: bytes, rng: random.Random) -> bytes:
    bit = rng.randrange(8 * len(data))
    return data[:bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1:]


def bytes_as_they_are(daemon: harness.Daemon, rank: harness.RawAgent, name: str, answer):
    """A call of the rank's service that sends bytes as they are and messages as ever."""
    return daemon.channel().stream_stream(
        f"/rankprobe.v1.AgentService/{name}", request_serializer=lambda m: m if isinstance(m, bytes) else wire.seal(m),
        response_deserializer=answer.FromString)


def test_F02_a_flip_in_a_frame_of_records_is_found_and_the_frame_is_taken_when_it_comes_again(daemon, tmp_path):
    rank = harness.RawAgent(daemon, upload=False)
    rank.stub.Upload = bytes_as_they_are(daemon, rank, "Upload", agent.UploadAck)
    call = harness.call("Torch.relu.0.forward", [harness.tensor(b"\1\2\3\4" * 64)])
    whole = wire.seal(agent.UploadFrame(sequence=1, batch=agent.RecordBatch(step=0, records=[
        harness.begin_record(task="statistics", has_payloads=False), harness.call_record(1, call), harness.end_record(2, 1)])))
    rng = random.Random(33)
    for _ in range(FLIPS):
        assert rank.open_upload() and rank.opened.committed == 0
        rank.upload.send(flipped(whole, rng))
        status, text = rank.upload.end()
        assert status == "DATA_LOSS" and "damaged in transit" in text, (status, text)
    rank.open_upload()
    rank.upload.send(whole)
    assert rank.committed(1)
    tree = harness.export(daemon, "run", tmp_path / "tree", gaps=True)  # the payload was never sent
    dump = json.loads((tree / "step0" / "rank0" / "dump.json").read_text())
    (output,) = dump["data"]["Torch.relu.0.forward"]["output"]
    assert [output["Max"], output["Min"], output["Mean"], output["Norm"], output["shape"]] == [1, 0, 0.5, 1, [64]]


def test_F07_a_flip_in_a_piece_of_a_payload_costs_nothing(daemon):
    rank = harness.RawAgent(daemon, upload=False)
    rank.stub.Upload = bytes_as_they_are(daemon, rank, "Upload", agent.UploadAck)
    data = bytes(range(256)) * 16
    whole = wire.seal(agent.UploadFrame(sequence=1, chunk=agent.PayloadChunk(
        digest=wire.digest(data), length_bytes=len(data), offset_bytes=0, data=data, crc32c=wire.crc32c(data))))
    rng = random.Random(34)
    for _ in range(10):
        rank.open_upload()
        rank.upload.send(flipped(whole, rng))
        assert rank.upload.end()[0] == "DATA_LOSS"
    rank.open_upload()
    rank.upload.send(whole)
    assert rank.committed(1) and not any(ack.refused_frames for ack in rank.acks)


def test_a_flip_between_a_command_and_its_collector_is_named_or_made_good(daemon):
    rank = harness.RawAgent(daemon)
    for step in range(4):
        call = harness.call("Torch.relu.0.forward", [harness.tensor(b"\1\2\3\4" * 64)])
        rank.upload.send(agent.UploadFrame(sequence=step + 1, batch=agent.RecordBatch(step=step, records=[
            harness.begin_record(task="statistics", has_payloads=False), harness.call_record(1, call),
            harness.end_record(2, 1)])))
    assert rank.committed(4)
    verbs = [("runs", "--json"), ("status", "--run=run", "--steps", "--json"), ("ledger", "--run=run", "--json"),
             ("query", "--run=run", "--json")]

    def said(done) -> str:
        # How many steps have rollups already is the only number that moves meanwhile.
        return re.sub(r'"rolled_up_rank_steps":\d+', "", done.stdout)

    right = {verb: daemon.cli(*verb) for verb in verbs}
    flips = named = 0
    for seed in range(24):
        verb = verbs[seed % len(verbs)]
        bad = BadWire(daemon.address, seed, (40, 200))
        done = daemon.cli(*verb, "--collector", bad.address)
        bad.end()
        flips += sum(bad.flips)
        if done.returncode == right[verb].returncode:
            assert said(done) == said(right[verb]), (seed, verb)
        else:
            named += "damaged in transit" in done.stderr
            assert done.returncode in (3, 5) and done.stderr.startswith("rankprobe: "), (seed, verb, done)
    assert flips > 0 and named > 0, (flips, named)


def test_a_command_whose_request_has_a_flip_in_its_flags_is_not_served_as_one_without_a_request(daemon):
    harness.RawAgent(daemon, run="other").step()
    verbs = [("events", "--run=run", "--json"), ("ledger", "--run=run", "--json"), ("verify", "--read-data", "--json")]
    harness.RawAgent(daemon, pid=7).step()
    right = {verb: daemon.cli(*verb) for verb in verbs}

    def said(done) -> str:
        # Rows of rollups come meanwhile.
        return re.sub(r'"rows":\d+', "", done.stdout)

    for verb in verbs:
        for bit in range(8):
            bad = BadWire(daemon.address)
            bad.flip_once(UP, 0, bit)  # gRPC's first byte before a message
            done = daemon.cli(*verb, "--collector", bad.address)
            bad.end()
            assert bad.flips == [1, 0]
            if done.returncode == right[verb].returncode:
                assert said(done) == said(right[verb]), (verb, bit, done)
            else:
                assert done.returncode in (3, 5), (verb, bit, done)


@pytest.mark.parametrize("verb", [("ledger", "--run=run"), ("verify", "--read-data"), ("query", "--run=run")])
def test_a_command_whose_answer_does_not_come_ends(daemon, verb):
    harness.RawAgent(daemon).step()
    bad = BadWire(daemon.address)
    bad.keeps_answers = True
    done = daemon.cli(*verb, "--timeout=1", "--collector", bad.address)
    bad.end()
    assert done.returncode == 3 and "a ping was not answered" in done.stderr, done


def test_F01_a_flip_in_what_a_rank_says_ends_its_session(daemon):
    identity = types.Identity(run="run", rank=0, incarnation=7, host="node", pid=1)
    hello = wire.seal(agent.AgentEvent(hello=agent.Hello(identity=identity, protocol=1, incarnation_secret=bytes(32))))
    session = bytes_as_they_are(daemon, None, "Session", agent.Directive)
    rng = random.Random(35)
    for _ in range(10):
        stream = harness.Stream(session)
        stream.send(flipped(hello, rng))
        assert stream.end()[0] == "DATA_LOSS"
    # Nobody was admitted.
    assert not daemon.archive().ListRuns(harness.archive.ListRunsRequest()).runs
    # Bytes without any checksum are no message either.
    stream = harness.Stream(session)
    stream.send(hello[:-6])
    assert stream.end()[0] == "DATA_LOSS"


def test_D03_a_large_first_message_is_taken(daemon):
    for rank in range(3):
        config = json.dumps({"task": "statistics", "dump_path": "d", "filler": "x" * (1 << 20)})
        assert harness.RawAgent(daemon, rank=rank, config=config[:1 << 20]).welcome is not None
    assert "connection_cut" not in daemon.log()


def test_Q3b_an_error_that_repeats_a_long_text_arrives(daemon):
    harness.RawAgent(daemon).step()
    status, text = harness.outcome(daemon.archive().QueryGrid, query.QueryGridRequest(run="run", statistic="n" * 100_000))
    assert status == "INVALID_ARGUMENT" and len(text) < 3000 and "nnn" in text, (status, text[:200])
