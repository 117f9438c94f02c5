# SPDX-License-Identifier: Apache-2.0
"""Attacks on a root's questions about what its leaves have not stored yet: by whom, and with a leaf that goes away in the midst of it."""

import grpc
import pytest

import harness
from harness import RawAgent, archive

LEAF = "1e" * 16
PIECE = b"\1\2\3\4" * (128 << 10)
# More than all buffers on its way hold.
LARGE = PIECE * 192


@pytest.fixture
def start_fleet(start_secured, start_daemon, tokens, tmp_path):
    """A root with tokens, and a leaf that stores nothing of itself."""
    def start():
        (tmp_path / "objects").mkdir()
        root = start_secured("--role", "root", "--object-store", tmp_path / "objects",
                             text=f"{tokens.text}leaf lea {LEAF}\n")
        (tmp_path / "leaf.token").write_text(LEAF)
        (tmp_path / "leaf.token").chmod(0o600)
        leaf = start_secured("--role", "leaf", "--object-store", tmp_path / "objects", "--root", root.address,
                             "--root-token-file", tmp_path / "leaf.token", "--seal-seconds", "3600",
                             "--min-free-bytes", "0", text=f"{tokens.text}leaf lea {LEAF}\n")
        harness.wait_for(lambda: "root_linked" in leaf.log(), what="the link")
        return root, leaf

    return start


def test_who_may_ask_for_what_is_not_stored_yet(start_fleet, tokens):
    root, leaf = start_fleet()
    rank = RawAgent(leaf, run="job", rank=0, token=tokens.alice)
    data = b"\5\6\7\x08" * 64
    rank.step(3, data)
    assert rank.committed()
    payload = payload_of(root.archive(tokens.viewer), "job", 3)
    assert payload["length_bytes"] == len(data)
    asked = {
        "ListRuns": (archive.ListRunsRequest(), lambda reply: reply.runs[0].run == "job"),
        "ListSteps": (archive.ListStepsRequest(run="job"), lambda reply: reply.steps[0].step == 3),
        "ListCalls": (archive.ListCallsRequest(run="job", step=3, rank=0), lambda reply: len(reply) == 1),
        "GetTensor": (archive.GetTensorRequest(**payload), lambda reply: b"".join(p.data for p in reply) == data),
        "Export": (archive.ExportRequest(run="job"), lambda reply: reply[-1].done.gaps == 0),
        "GetLedger": (archive.GetLedgerRequest(run="job", details=True),
                      lambda reply: [one.stored_payloads for one in reply] == [1]),
        "ListModules": (archive_request("ListModules", run="job"), lambda reply: True),
    }
    for name, (request, holds) in asked.items():
        for token, status in ((tokens.viewer, "OK"), (tokens.operator, "OK"), (tokens.alice, "PERMISSION_DENIED"),
                              (LEAF, "PERMISSION_DENIED"), ("", "UNAUTHENTICATED"), ("0" * 32, "UNAUTHENTICATED")):
            got = harness.outcome(getattr(root.archive(token), name), request)
            assert got[0] == status, (name, token, got)
            if status == "OK":
                assert holds(got[1]), (name, got)
    # Nothing was stored for it.
    assert not list((root.directory.parent / "objects").rglob("log/*/*"))
    # What changes something is of the store alone, which has nothing of it.
    assert harness.outcome(root.archive(tokens.operator).Delete, archive.DeleteRequest(run="job"))[0] == "NOT_FOUND"


def payload_of(viewer, run: str, step: int) -> dict:
    """As the archive names it, which is not only by its content."""
    status, calls = harness.outcome(viewer.ListCalls, archive.ListCallsRequest(run=run, step=step, rank=0))
    assert status == "OK", calls
    ref = calls[0].call.output.items[0].tensor.payload
    return dict(run=run, digest=ref.digest, length_bytes=ref.length_bytes)


def archive_request(method: str, **fields):
    descriptor = archive.DESCRIPTOR.services_by_name["ArchiveService"].methods_by_name[method].input_type
    from google.protobuf import message_factory
    return message_factory.MessageFactory().GetPrototype(descriptor)(**fields)


def test_a_leaf_that_dies_in_the_midst_of_an_answer_is_named(start_fleet, tokens):
    root, leaf = start_fleet()
    rank = RawAgent(leaf, run="job", rank=0, token=tokens.alice)
    rank.step(3, LARGE)
    assert rank.committed(seconds=180)
    viewer = root.archive(tokens.viewer)
    calls = {
        "GetTensor": archive.GetTensorRequest(**payload_of(viewer, "job", 3)),
        "Export": archive.ExportRequest(run="job"),
    }
    streams = {name: getattr(viewer, name)(request, timeout=harness.SOON) for name, request in calls.items()}
    for stream in streams.values():
        next(stream)
    address = leaf.address
    leaf.kill()
    for name, stream in streams.items():
        with pytest.raises(grpc.RpcError) as error:
            for _ in stream:
                pass
        assert error.value.code().name == "ABORTED" and address in error.value.details(), (name, error.value)
    # Lists that are asked for now say so behind the answer.
    status, steps = harness.outcome(viewer.ListSteps, archive.ListStepsRequest(run="job"))
    assert status == "NOT_FOUND", steps
    reply, call = viewer.ListRuns.with_call(archive.ListRunsRequest(), timeout=harness.SOON)
    assert not reply.runs
    away = dict(call.trailing_metadata())["rankprobe-away-bin"]
    assert f"leaf {address} disconnected".encode() in away
    assert root.alive
