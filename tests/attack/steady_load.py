# SPDX-License-Identifier: Apache-2.0
"""A rank that writes at a steady rate, and how large the segment files become meanwhile."""

from __future__ import annotations

import dataclasses
import os
import threading
import time

import harness

PIECE = 256 << 10
BITS = 16


class Pieces:
    """2^BITS payloads that differ in their first bytes. CRC32C is linear: each bit has its share of it."""

    def __init__(self):
        self._rest = os.urandom(PIECE - 8)
        zeros = bytes(PIECE)
        self._base = harness.crc32c(bytes(8) + self._rest)
        nothing = harness.crc32c(zeros)
        self._bits = []
        for bit in range(BITS):
            one = bytearray(zeros)
            one[bit // 8] = 1 << bit % 8
            self._bits.append(harness.crc32c(bytes(one)) ^ nothing)

    def make(self, number: int) -> tuple[bytes, int]:
        assert number < 1 << BITS
        crc = self._base
        for bit, share in enumerate(self._bits):
            if number >> bit & 1:
                crc ^= share
        return number.to_bytes(8, "little") + self._rest, crc


def segment_bytes(daemon: harness.Daemon) -> int:
    size = 0
    for path in (daemon.data_dir / "segments").glob("*.seg"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            pass
    return size


@dataclasses.dataclass
class Load:
    """What was written, and the size of the segment files, looked at every 50 ms."""
    rank: harness.RawAgent
    seconds: float = 0
    sent: int = 0
    steps: int = 0
    sizes: list[int] = dataclasses.field(default_factory=list)

    @property
    def rate(self) -> float:
        """Megabytes a second."""
        return self.sent / self.seconds / 1e6

    @property
    def median(self) -> int:
        return sorted(self.sizes)[len(self.sizes) // 2]


def write(daemon: harness.Daemon, pieces: Pieces, *, seconds: float, megabytes_per_second: float,
          pieces_per_step: int = 4, most_bytes: float = float("inf"), run: str = "load") -> Load:
    """Steps of new payloads until the time is over or so much is sent; all of it is committed when this returns."""
    load = Load(harness.RawAgent(daemon, run=run))
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            load.sizes.append(segment_bytes(daemon))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    try:
        while time.monotonic() - began < seconds and load.sent < most_bytes:
            tensors = []
            for i in range(pieces_per_step):
                data, crc = pieces.make(load.steps * pieces_per_step + i)
                digest = harness.digest(data)
                load.rank.chunk(digest, len(data), 0, data, crc)
                tensors.append(harness.tensor(payload_digest=digest, length=len(data), shape=[PIECE // 4]))
                load.sent += len(data)
            sequence = load.rank.batch(load.steps, [
                harness.begin_record(0), harness.call_record(1, harness.call("Torch.cat.0.forward", tensors)),
                harness.end_record(2, 1, pieces_per_step)])
            load.steps += 1
            # A rank's queue is as long as its credit.
            if load.steps % 8 == 0:
                assert load.rank.committed(sequence - 5 * pieces_per_step, seconds=60), daemon.log()[-2000:]
                load.rank.acks = load.rank.acks[-1:]
            time.sleep(max(0.0, began + load.sent / (megabytes_per_second * 1e6) - time.monotonic()))
        assert load.rank.committed(seconds=60), daemon.log()[-2000:]
    finally:
        done.set()
        watcher.join()
    load.seconds = time.monotonic() - began
    return load
