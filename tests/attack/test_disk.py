# SPDX-License-Identifier: Apache-2.0
"""Attacks on an archive by its disk, or by somebody with access to it; each daemon is a real one, started on what is left."""

import os
import pathlib
import random
import shutil
import subprocess

import pytest

import harness

RUN = "disk"
STEPS = 24
TENSOR = 32 << 10


def tensor_of(step: int) -> bytes:
    return random.Random(step).randbytes(TENSOR)


def path_of(step: int) -> str:
    return f"step{step}/rank0/dump_tensor_data/Torch.relu.0.forward.output.0.pt"


def flip(path: pathlib.Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


@pytest.fixture
def filled(start_daemon):
    """A daemon that has synced STEPS steps of one payload each and was stopped (or killed, by killed=True)."""
    def fill(*flags, killed: bool = False) -> harness.Daemon:
        daemon = start_daemon("--janitor-seconds", 1, *flags)
        rank = harness.RawAgent(daemon, run=RUN)
        for step in range(STEPS):
            rank.step(step, tensor_of(step))
        assert rank.synced()
        rank.goodbye()
        if killed:
            daemon.kill()
        else:
            assert daemon.stop() == 0
        return daemon

    return fill


def expect_refused(daemon: harness.Daemon, *words: str) -> None:
    """A start ends by itself with exit code 4 and these words."""
    already = len(daemon.log())
    daemon.spawn(daemon.directory / "port")
    assert daemon.process.wait(harness.SOON) == 4
    said = daemon.log()[already:]
    assert all(word in said for word in words), said
    daemon.process = None


def tensors(daemon: harness.Daemon, tree: pathlib.Path, run: str = RUN) -> dict[str, bytes]:
    daemon.cli("export", "--run", run, "-o", tree)
    return harness.exported_tensors(tree)


@pytest.mark.parametrize("attack, killed, offset", [
    ("K22", False, 8), ("K22", True, 8), ("K23", False, 4000), ("K23", True, 4000)])
def test_a_flipped_bit_of_the_newest_segment_spoils_one_payload(filled, tmp_path, attack, killed, offset):
    """K22 (header), K23 (data), after a clean stop and after a kill."""
    daemon = filled(killed=killed)
    segment = daemon.data_dir / "segments" / "0000000001.seg"
    size = segment.stat().st_size
    flip(segment, offset)
    daemon.start()
    assert segment.stat().st_size == size
    exported = tensors(daemon, tmp_path / "tree")
    for step in range(1, STEPS):
        assert exported[path_of(step)] == tensor_of(step)
    verify = daemon.cli("verify", "--read-data")
    assert verify.returncode == 1 and "0000000001.seg" in verify.stdout + verify.stderr
    if attack == "K23":
        assert path_of(0) not in exported
        ledger = daemon.cli("ledger", "--run", RUN)
        assert "CORRUPT" in ledger.stdout and "segments/0000000001.seg at byte 52" in ledger.stdout
        assert "CORRUPT" in (tmp_path / "tree" / "manifest.json").read_text()
    else:
        assert exported[path_of(0)] == tensor_of(0), "the bytes behind a damaged header are right"


def test_K02_a_flipped_header_of_a_closed_segment_is_named(filled):
    daemon = filled("--segment-bytes", 1 << 20)
    daemon.start()
    flip(daemon.data_dir / "segments" / "0000000001.seg", 4, 6)
    verify = daemon.cli("verify", "--read-data")
    assert verify.returncode == 1 and "header" in verify.stdout + verify.stderr


def test_K24_a_flipped_bit_in_an_unfinished_payload_harms_nobody_else(start_daemon):
    daemon = start_daemon()
    data = tensor_of(1)
    rank = harness.RawAgent(daemon, run=RUN, incarnation=77)
    digest = harness.digest(data)
    for offset in range(0, 3 * 4096, 4096):
        rank.chunk(digest, len(data), offset, data[offset:offset + 4096])
    assert rank.synced()
    rank.goodbye()
    assert daemon.stop() == 0
    flip(daemon.data_dir / "segments" / "0000000001.seg", 52)
    daemon.start()
    rank = harness.RawAgent(daemon, run=RUN, incarnation=77, secret=rank.secret)
    other = harness.RawAgent(daemon, run=RUN, rank=1)
    for offset in range(3 * 4096, len(data), 4096):
        rank.chunk(digest, len(data), offset, data[offset:offset + 4096])
    assert rank.committed()
    other.step(0, tensor_of(5))
    assert other.committed()
    assert "archive_failed" not in daemon.log()


@pytest.mark.parametrize("attack", ["K12", "K13"])
def test_a_lost_index_is_not_made_anew_and_can_be_rebuilt(filled, tmp_path, attack):
    """K12: index/CURRENT is gone; K13: the whole index is."""
    daemon = filled()
    index = daemon.data_dir / "index"
    if attack == "K12":
        (index / "CURRENT").unlink()
    else:
        shutil.rmtree(index)
        index.mkdir()
    segments = {p.name: p.read_bytes() for p in (daemon.data_dir / "segments").iterdir()}
    expect_refused(daemon, "--rebuild-index")
    assert {p.name: p.read_bytes() for p in (daemon.data_dir / "segments").iterdir()} == segments
    rebuilt = subprocess.run([harness.BIN / "rankprobed", "--rebuild-index", "--data-dir", daemon.data_dir],
                             capture_output=True, text=True, timeout=120)
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert f"{STEPS} payloads" in rebuilt.stdout
    daemon.start()
    assert daemon.cli("verify", "--read-data").returncode == 0
    if attack == "K12":
        assert len(tensors(daemon, tmp_path / "tree")) == STEPS
    else:
        assert "recovered-1" in daemon.cli("runs").stdout


def test_K17_a_fifo_as_newest_segment_is_refused_at_once(filled):
    daemon = filled()
    os.mkfifo(daemon.data_dir / "segments" / "0000000099.seg")
    expect_refused(daemon, "0000000099.seg", "not a regular file")


def test_K09_a_truncated_index_log_is_told(start_daemon):
    daemon = start_daemon()
    rank = harness.RawAgent(daemon, run=RUN)
    for step in range(10):
        rank.step(step, send_payload=step == 0)
        assert rank.synced()
    daemon.kill()
    log = max((daemon.data_dir / "index").glob("*.log"), key=lambda p: p.stat().st_size)
    os.truncate(log, log.stat().st_size // 2)
    daemon.start()
    assert "index_went_back" in daemon.log()
    verify = daemon.cli("verify")
    assert verify.returncode == 1 and "has lost synced writes" in verify.stdout + verify.stderr
    for verb in (("runs",), ("query", f"--run={RUN}"), ("scan", f"--run={RUN}"), ("ledger", f"--run={RUN}"),
                 ("export", f"--run={RUN}", "--format=columns", "-o", "-")):
        assert "has lost synced writes" in daemon.cli(*verb).stderr, verb


def test_I08_a_wrong_first_chunk_spoils_nobody_elses_payload(daemon, tmp_path):
    data = tensor_of(3)
    digest = harness.digest(data)
    liar = harness.RawAgent(daemon, run=RUN, rank=0)
    liar.chunk(digest, len(data), 0, bytes([data[0] ^ 1]))
    assert liar.committed()
    honest = harness.RawAgent(daemon, run=RUN, rank=1)
    honest.step(0, data)
    assert honest.committed()
    exported = tensors(daemon, tmp_path / "tree")
    assert exported[path_of(0).replace("rank0", "rank1")] == data


def test_M02_payloads_that_never_finish_cost_no_memory(daemon):
    rank = harness.RawAgent(daemon, run=RUN)
    one = b"\1"
    crc = harness.crc32c(one)
    before = daemon.memory()
    # Waits now and then: on a busy machine, chunks that wait for their commit take up to 80 MB by themselves.
    for i in range(100000):
        rank.chunk(i.to_bytes(16, "big"), 100, 0, one, crc)
        if i % 10000 == 9999:
            assert rank.committed(seconds=90)
    # 880 bytes each made 88 MB more; the states that are kept make 8.
    assert daemon.memory() - before < 60 << 20
