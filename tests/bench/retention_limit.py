#!/usr/bin/python3
"""How well --retention-bytes holds while a rank writes.

    tests/bench/retention_limit.py [--seconds 60] [--megabytes-per-second 36] [--limit-mib 200]

One rank sends steps of 1 MiB (four payloads, all new) at a steady rate to a daemon with that limit. Prints one JSON
object: the rate that was reached, the largest size of the segment files, as a share of the limit, and CPU seconds.
Part of no test; docs/performance.md has the figure.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "attack"))
import harness  # noqa: E402

PIECE = 256 << 10


class Pieces:
    """Payloads that differ in their first 8 bytes. CRC32C is linear: each bit has its share of it."""

    def __init__(self):
        self._rest = os.urandom(PIECE - 8)
        zeros = bytes(PIECE)
        self._base = harness.crc32c(bytes(8) + self._rest)
        nothing = harness.crc32c(zeros)
        self._bits = []
        for bit in range(32):
            one = bytearray(zeros)
            one[bit // 8] = 1 << bit % 8
            self._bits.append(harness.crc32c(bytes(one)) ^ nothing)

    def make(self, number: int) -> tuple[bytes, int]:
        crc = self._base
        for bit, share in enumerate(self._bits):
            if number >> bit & 1:
                crc ^= share
        return number.to_bytes(8, "little") + self._rest, crc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--megabytes-per-second", type=float, default=36)
    parser.add_argument("--limit-mib", type=int, default=200)
    flags = parser.parse_args()
    limit = flags.limit_mib << 20
    with tempfile.TemporaryDirectory() as directory:
        daemon = harness.Daemon(pathlib.Path(directory), "--retention-bytes", limit).start()
        try:
            print(json.dumps(measure(daemon, flags, limit)))
        finally:
            daemon.kill()


def measure(daemon: harness.Daemon, flags: argparse.Namespace, limit: int) -> dict:
    pieces = Pieces()
    sizes: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            size = 0
            for path in (daemon.data_dir / "segments").glob("*.seg"):
                try:
                    size += path.stat().st_size
                except FileNotFoundError:
                    pass
            sizes.append(size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    rank = harness.RawAgent(daemon, run="load")
    began = time.monotonic()
    step = sent = 0
    while time.monotonic() - began < flags.seconds:
        tensors = []
        for _ in range(4):
            data, crc = pieces.make(step * 4 + len(tensors))
            digest = harness.digest(data)
            rank.chunk(digest, len(data), 0, data, crc)
            tensors.append(harness.tensor(payload_digest=digest, length=len(data), shape=[PIECE // 4]))
            sent += len(data)
        sequence = rank.batch(step, [harness.begin_record(0),
                                     harness.call_record(1, harness.call("Torch.cat.0.forward", tensors)),
                                     harness.end_record(2, 1, 4)])
        step += 1
        # A rank's queue is as long as its credit.
        if step % 8 == 0:
            assert rank.committed(sequence - 20, seconds=60), daemon.log()[-2000:]
            rank.acks = rank.acks[-1:]
        time.sleep(max(0.0, began + sent / (flags.megabytes_per_second * 1e6) - time.monotonic()))
    seconds = time.monotonic() - began
    done.set()
    watcher.join()
    largest = max(sizes)
    return {"seconds": round(seconds, 1), "megabytes_per_second": round(sent / seconds / 1e6, 1),
            "limit_bytes": limit, "largest_bytes": largest, "largest_share": round(largest / limit, 3),
            "median_share": round(sorted(sizes)[len(sizes) // 2] / limit, 3),
            "collector_cpu_seconds": round(daemon.cpu_seconds(), 1), "steps": step}


if __name__ == "__main__":
    main()
