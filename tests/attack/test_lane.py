# SPDX-License-Identifier: Apache-2.0
"""Ranks that mean no good on the same-host lane: what they hand over, what they say lies where, and what they do to it
meanwhile (L01-L09 of tests/attack/README.md, "Attacks")."""

import fcntl
import os
import socket
import threading

import pytest

import harness
from harness import agent

MEMORY = 8 << 20
PIECE = 1 << 20
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def shared_memory(size: int = MEMORY, seals: int = SEALS) -> int:
    fd = os.memfd_create("attack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def connect(name: str) -> socket.socket:
    lane = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lane.connect("\0" + name)
    lane.settimeout(harness.SOON)
    return lane


def hand_over(rank: harness.RawAgent, *fds: int, session: str | None = None) -> str:
    """What the collector says to it."""
    with connect(rank.welcome.lane_socket) as lane:
        name = (rank.session_id if session is None else session).encode()
        if fds:
            socket.send_fds(lane, [name], list(fds))
        else:
            lane.send(name)
        return lane.recv(1000).decode()


def refer(rank: harness.RawAgent, digest: bytes, length: int, place: int, size: int | None = None, offset: int = 0,
          **fields) -> int:
    return rank.frame(chunk=agent.PayloadChunk(
        digest=digest, length_bytes=length, offset_bytes=offset,
        lane=agent.LaneReference(offset_bytes=place, length_bytes=length if size is None else size), **fields))


def refusal(rank: harness.RawAgent, sequence: int) -> str:
    """Why the frame is refused; "" if it is not."""
    assert rank.committed(sequence), rank.upload.status
    return next((f.reason for ack in rank.acks for f in ack.refused_frames if f.sequence == sequence), "")


def a_step(rank: harness.RawAgent, data: bytes) -> int:
    return rank.step(0, data, send_payload=False)


def test_l01_a_reference_is_taken_once_its_memory_was_handed_over(daemon, tmp_path):
    """L01: the same frames, the same export; without memory each reference is refused by its number."""
    rank = harness.RawAgent(daemon)
    data = bytes(range(256)) * 1024
    digest = harness.digest(data)
    other = harness.RawAgent(daemon, run="other")
    assert "not shared any" in refusal(other, refer(other, digest, len(data), 4096))
    fd = shared_memory()
    os.pwrite(fd, data, 4096)
    assert hand_over(rank, fd) == "taken"
    assert refusal(rank, refer(rank, digest, len(data), 4096)) == ""
    a_step(rank, data)
    assert rank.committed()
    tree = harness.export(daemon, "run", tmp_path / "tree")
    assert list(harness.exported_tensors(tree).values()) == [data]
    os.close(fd)


def test_l02_places_and_lengths_that_lie_cost_their_frame(daemon):
    """L02: beyond the end, overflowing, empty, over a frame's size, beside bytes; each is refused, the next is taken."""
    rank = harness.RawAgent(daemon)
    fd = shared_memory()
    assert hand_over(rank, fd) == "taken"
    top = (1 << 64) - 1
    for place, size in [(MEMORY, 1), (MEMORY - 1, 2), (top, 1), (top, top), (top - 3, 8), (0, 0), (0, PIECE), (0, top),
                        (1 << 63, 1 << 20)]:
        sequence = refer(rank, b"d" * 16, 1 << 20, place, size)
        assert refusal(rank, sequence) != "", (place, size)
    assert refusal(rank, refer(rank, b"d" * 16, 8, 0, data=b"12345678")) != ""
    assert refusal(rank, refer(rank, b"d" * 16, 8, 0, crc32c=1)) != ""
    assert refusal(rank, refer(rank, b"d" * 16, 4, 0, 8)) != "", "more than the payload has"
    assert refusal(rank, refer(rank, b"d" * 16, 1 << 20, 0, 4096)) == ""
    assert daemon.alive
    os.close(fd)


def test_l03_memory_that_changes_while_it_is_read_is_whole_or_absent(daemon, tmp_path):
    """L03: whatever a rank does to its memory, what is served has the digest that it is served by."""
    rank = harness.RawAgent(daemon)
    fd = shared_memory()
    assert hand_over(rank, fd) == "taken"
    size = PIECE - 4096
    honest = b"\7" * size
    os.pwrite(fd, honest, 0)
    stop = threading.Event()

    def change() -> None:
        value = 0
        while not stop.is_set():
            value = (value + 1) % 251
            os.pwrite(fd, bytes([value]) * size, 0)

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(50):
            refer(rank, harness.digest(honest), size, 0)
        a_step(rank, honest)
        assert rank.committed()
    finally:
        stop.set()
        writer.join()
    result = daemon.cli("export", "--run", "run", "-o", tmp_path / "tree")
    assert result.returncode in (0, 1), result
    for found in harness.exported_tensors(tmp_path / "tree").values():
        assert found == honest
    # Of what was refused nothing stands in the way of bytes that are what they say.
    os.pwrite(fd, honest, 0)
    refer(rank, harness.digest(honest), size, 0)
    assert rank.committed()
    tree = harness.export(daemon, "run", tmp_path / "whole")
    assert list(harness.exported_tensors(tree).values()) == [honest]
    assert daemon.cli("verify", "--read-data").returncode == 0
    os.close(fd)


@pytest.mark.parametrize("what", ["L04 a pipe", "L04 a device", "L04 a file", "L04 no seals", "L04 may shrink", "L04 empty",
                                  "L04 two", "L04 none"])
def test_what_is_no_shared_memory_is_refused_and_closed(daemon, tmp_path, what):
    rank = harness.RawAgent(daemon)
    before = daemon.open_files()
    pipe = os.pipe()
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    fds = {"a pipe": [pipe[0]], "a device": [os.open("/dev/zero", os.O_RDONLY)], "a file": [os.open(path, os.O_RDONLY)],
           "no seals": [shared_memory(seals=0)], "may shrink": [shared_memory(seals=fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)],
           "empty": [shared_memory(0)], "two": [shared_memory(), shared_memory()], "none": []}[what[4:]]
    assert hand_over(rank, *fds) not in ("taken", "")
    assert refusal(rank, refer(rank, b"d" * 16, 8, 0)) != ""
    # A rank that was refused may do better.
    good = shared_memory()
    assert hand_over(rank, good) == "taken"
    harness.wait_for(lambda: daemon.open_files() <= before + 1, harness.SOON, "descriptors to be closed")
    for fd in {*fds, *pipe, good}:
        os.close(fd)


def test_l05_memory_is_one_sessions_and_given_once(daemon):
    """L05: no session, a session that has ended, another descriptor in place of the first."""
    rank = harness.RawAgent(daemon)
    fd, other = shared_memory(), shared_memory()
    assert "no session" in hand_over(rank, fd, session="0" * 32)
    assert "one descriptor" in hand_over(rank, fd, session="x" * 65)
    os.pwrite(fd, b"first---", 0)
    os.pwrite(other, b"second--", 0)
    assert hand_over(rank, fd) == "taken"
    assert "already shares" in hand_over(rank, other)
    assert refusal(rank, refer(rank, harness.digest(b"first---"), 8, 0)) == ""
    # What another session handed over is not read for this one.
    second = harness.RawAgent(daemon, rank=1)
    assert "not shared any" in refusal(second, refer(second, harness.digest(b"first---"), 8, 0))
    before = daemon.open_files()
    rank.goodbye()
    harness.wait_for(lambda: daemon.open_files() < before, harness.SOON, "the memory to be let go of")
    harness.wait_for(lambda: "no session" in hand_over(rank, fd), harness.SOON, "the session to end")
    os.close(fd)
    os.close(other)


def test_l06_silent_connections_keep_nobody_out(daemon):
    """L06: hundreds that say nothing are closed, and an honest rank's memory is taken beside them."""
    rank = harness.RawAgent(daemon)
    before = daemon.open_files()
    silent = [connect(rank.welcome.lane_socket) for _ in range(300)]
    fd = shared_memory()
    assert hand_over(rank, fd) == "taken"
    harness.wait_for(lambda: daemon.open_files() <= before + 1, harness.SOON, "silent connections to be closed")
    for lane in silent:
        lane.close()
    os.close(fd)


def test_l07_huge_sparse_memory_costs_the_collector_none(daemon):
    """L07: a terabyte of nothing is read as it is asked for, and takes memory of neither."""
    rank = harness.RawAgent(daemon)
    fd = shared_memory(1 << 40)
    assert hand_over(rank, fd) == "taken"
    zeros = bytes(512 << 10)
    digest = harness.digest(zeros)
    refer(rank, digest, len(zeros), 0)
    assert rank.committed()
    before = daemon.memory()
    for i in range(400):
        refer(rank, digest, len(zeros), i << 31)
    assert rank.committed(seconds=120)
    assert daemon.memory() - before < 64 << 20
    assert os.fstat(fd).st_blocks == 0
    os.close(fd)


def test_l08_a_collector_that_offers_no_lane_takes_no_reference(start_daemon):
    """L08: with --no-lane there is no socket, and a reference is refused by its number."""
    daemon = start_daemon("--no-lane")
    rank = harness.RawAgent(daemon)
    assert rank.welcome.lane_socket == ""
    assert "not shared any" in refusal(rank, refer(rank, b"d" * 16, 8, 0))


def test_l09_a_reference_outlives_its_session_and_is_not_refused(daemon, tmp_path):
    """L09: the session of a rank ends while its frames are on their way: they are not taken for bad ones, and count when it is back."""
    rank = harness.RawAgent(daemon)
    data = bytes(range(256)) * 1024
    fd = shared_memory()
    os.pwrite(fd, data, 0)
    assert hand_over(rank, fd) == "taken"
    rank.session.cancel()
    harness.wait_for(lambda: "no session" in hand_over(rank, fd), harness.SOON, "the session to end")
    refer(rank, harness.digest(data), len(data), 0)
    assert rank.upload.end()[0] == "FAILED_PRECONDITION"
    again = harness.RawAgent(daemon, incarnation=rank.incarnation, secret=rank.secret)
    assert again.opened.committed == 0 and not again.opened.refused_frames
    assert hand_over(again, fd) == "taken"
    assert refusal(again, refer(again, harness.digest(data), len(data), 0)) == ""
    a_step(again, data)
    assert again.committed()
    assert list(harness.exported_tensors(harness.export(daemon, "run", tmp_path / "tree")).values()) == [data]
    os.close(fd)
