# SPDX-License-Identifier: Apache-2.0
"""Frames whose content no collector will ever take: each is answered by its number, what stands around it is kept
(P19-P24, D01 and M06 of tests/attack/README.md, "Attacks")."""

import json
import pathlib

import pytest

import harness
import wire
from harness import agent, types


def upload_of_bytes(rank: harness.RawAgent, daemon: harness.Daemon) -> None:
    """Its uploads send bytes as they are, messages as ever."""
    rank.stub.Upload = daemon.channel().stream_stream(
        "/rankprobe.v1.AgentService/Upload",
        request_serializer=lambda m: wire.sealed(m) if isinstance(m, bytes) else wire.seal(m),
        response_deserializer=agent.UploadAck.FromString)
    rank.open_upload()


def a_frame(sequence: int, entry: str = "Torch.relu.1.forward") -> bytes:
    record = harness.call_record(1, harness.call(entry, [harness.text("x" * 300)]))
    return agent.UploadFrame(sequence=sequence,
                             batch=agent.RecordBatch(step=0, records=[record])).SerializeToString()


def nested(lists: int) -> types.Value:
    value = types.Value(scalar=types.ScalarValue(type="int", i=1))
    for _ in range(lists):
        value = types.Value(list=types.ValueList(items=[value]))
    return value


def deep_frame(sequence: int, lists: int) -> bytes:
    # Written by hand: Python's protobuf does not nest as deeply either.
    def field(number: int, data: bytes) -> bytes:
        size, prefix = len(data), b""
        while size > 127:
            prefix, size = prefix + bytes([size & 127 | 128]), size >> 7
        return bytes([number << 3 | 2]) + prefix + bytes([size]) + data

    value = b""
    for _ in range(lists):
        value = field(4, field(1, value))
    call = field(1, b"deep") + b"\x10\x01" + field(5, field(1, value))
    return b"\x08" + bytes([sequence]) + field(3, b"\x08\x00" + field(2, b"\x08\x05" + field(call_number(), call)))


def call_number() -> int:
    return types.Record.DESCRIPTOR.fields_by_name["call"].number


def bad_bytes(kind: str, sequence: int) -> bytes:
    good = a_frame(sequence)
    if kind == "P19":  # invalid UTF-8 in a name
        return good.replace(b"Torch.relu.1", b"Torch.\xff\xfe\xfd\xfc.1")
    if kind == "P20":  # cut off
        return good[:-9]
    if kind == "P21":  # an inner length that lies
        at = good.index(b"Torch")
        return good[:at - 1] + b"\x7f\x7f" + good[at + 1:]
    return deep_frame(sequence, {"D01 47": 47, "D01 100": 100, "D01 400": 400, "D01 5000": 5000}[kind])


def export_with_gaps(daemon: harness.Daemon, tree: pathlib.Path, *flags: str) -> list[dict]:
    """An export that says so when frames were refused; the gaps of its manifest."""
    result = daemon.cli("export", "--run", "run", "-o", tree, *flags)
    assert result.returncode == 1, result
    return json.loads((tree / "manifest.json").read_text())["gaps"]


def refused(rank: harness.RawAgent) -> dict[int, str]:
    return {frame.sequence: frame.reason for ack in rank.acks for frame in ack.refused_frames}


@pytest.mark.parametrize("kind", ["P19", "P20", "P21", "D01 47", "D01 100", "D01 400", "D01 5000"])
def test_a_frame_that_cannot_be_read_is_answered_and_the_next_is_committed(daemon, tmp_path, kind):
    rank = harness.RawAgent(daemon, upload=False)
    upload_of_bytes(rank, daemon)
    rank.step(0)
    rank.sequence += 1
    bad = rank.sequence
    rank.upload.send(bad_bytes(kind, bad))
    rank.step(1)
    assert rank.committed()
    assert list(refused(rank)) == [bad] and "nested" in refused(rank)[bad]
    assert rank.upload.open and rank.session.open
    gaps = export_with_gaps(daemon, tmp_path / "tree")
    assert [(gap["step"], gap["reason"]) for gap in gaps] == [(-1, "COLLECTOR_REFUSED")]
    assert len(harness.exported_tensors(tmp_path / "tree")) == 2
    assert "frame_refused" in daemon.log() and daemon.alive


@pytest.mark.parametrize("kind,data", [("P22", b"\xee\xdd\xcc" * 99), ("P23", b"\x08" + b"\xff" * 11),
                                       ("P24", b"\x0b" * 500)])
def test_nonsense_without_a_number_ends_the_upload_by_name(daemon, kind, data):
    rank = harness.RawAgent(daemon, upload=False)
    upload_of_bytes(rank, daemon)
    rank.step(0)
    assert rank.committed()
    rank.upload.send(data)
    status, why = rank.upload.end()
    assert status == "INVALID_ARGUMENT" and "not an upload frame" in why, kind
    harness.wait_for(lambda: "upload_ended" in daemon.log(), what="a line in the log")
    rank.open_upload()
    rank.step(1)
    assert rank.committed()


def test_content_that_admission_refuses_is_answered(daemon, tmp_path):
    """One frame for each rule, between good ones; a wrong checksum too (M06: the store never sees it)."""
    rank = harness.RawAgent(daemon)
    data = b"\5\6\7\10" * 5000
    rank.chunk(harness.digest(data), len(data), 0, data[:9000])
    call = harness.call
    bad = {
        rank.batch(0, [harness.call_record(1, call("x" * 5000))]): "entry name",
        rank.batch(0, [harness.call_record(2, call("deep", [nested(46)]))]): "nested",
        rank.batch(0, [harness.call_record(3, call("wide", [harness.tensor(b"1234", shape=[1] * 65)]))]): "dimensions",
        rank.batch(-3, [harness.begin_record()]): "step",
        rank.batch(0, [types.Record()]): "empty",
        rank.chunk(harness.digest(data), len(data), 9000, data[9000:9100], crc=1): "checksum",
        rank.chunk(b"short", 10, 0, b"0123456789"): "digest",
        rank.chunk(harness.digest(b"x"), 2, 1, b"0123456789"): "beyond",
    }
    rank.chunk(harness.digest(data), len(data), 9000, data[9000:])
    rank.step(0, data, send_payload=False)
    assert rank.committed()
    assert list(refused(rank)) == list(bad)
    for sequence, word in bad.items():
        assert word in refused(rank)[sequence]
    assert len(export_with_gaps(daemon, tmp_path / "tree")) == len(bad)
    assert harness.exported_tensors(tmp_path / "tree") == {
        "step0/rank0/dump_tensor_data/Torch.relu.0.forward.output.0.pt": data}


def test_a_refused_frame_is_not_asked_for_again(daemon):
    rank = harness.RawAgent(daemon)
    rank.step(0)
    bad = rank.batch(0, [types.Record()])
    assert rank.committed() and list(refused(rank)) == [bad]
    rank.goodbye()
    again = harness.RawAgent(daemon, incarnation=rank.incarnation, secret=rank.secret)
    assert again.welcome.resume_after_sequence == bad


def test_what_was_refused_is_in_the_ledger_and_the_manifest(daemon, tmp_path):
    """A1: of an agent that tells nobody what it lost, in one life of the collector and the next."""
    rank = harness.RawAgent(daemon)
    rank.step(0)
    data = b"\1\3\5\7" * 64
    bad = rank.batch(1, [harness.begin_record(0), harness.call_record(1, harness.call("x" * 5000))])
    piece = rank.chunk(harness.digest(data), len(data), 0, data, crc=1)
    rank.step(2, data, send_payload=False)
    assert rank.committed() and list(refused(rank)) == [bad, piece]
    rank.goodbye()
    # The acks may have been lost: the next upload hears of both again.
    again = harness.RawAgent(daemon, incarnation=rank.incarnation, secret=rank.secret)
    assert [frame.sequence for frame in again.opened.refused_frames] == [bad, piece]
    again.goodbye()
    daemon.stop()
    daemon.start()
    result = daemon.cli("ledger", "--run", "run")
    assert result.returncode == 1, result
    assert f"rank 0: lost COLLECTOR_REFUSED: (frame {bad}, 2 records of step 1: an entry name has" in result.stdout
    assert "step 2 rank 0: lost COLLECTOR_REFUSED: 0 records, 1 payload of Torch.relu.0.forward" in result.stdout
    assert "does not match its checksum" in result.stdout and "NOT_STORED" not in result.stdout
    for chosen, steps in (((), {-1, 2}), (("--steps", "0"), {-1}), (("--steps", "2"), {-1, 2})):
        tree = tmp_path / "-".join(("tree", *chosen[1:]))
        gaps = export_with_gaps(daemon, tree, *chosen)
        assert {gap["step"] for gap in gaps} == steps and {gap["reason"] for gap in gaps} == {"COLLECTOR_REFUSED"}
    assert harness.exported_tensors(tmp_path / "tree").keys() == {
        "step0/rank0/dump_tensor_data/Torch.relu.0.forward.output.0.pt"}


def test_faults_of_the_place_still_end_the_stream(daemon):
    for make in (lambda r: r.raw_frame(agent.UploadFrame(sequence=9)),
                 lambda r: r.raw_frame(agent.UploadFrame(sequence=1, open=agent.UploadOpen())),
                 lambda r: r.raw_frame(agent.UploadFrame(batch=agent.RecordBatch()))):
        rank = harness.RawAgent(daemon, run="place", rank=None)
        make(rank)
        assert rank.upload.end()[0] == "INVALID_ARGUMENT"
