# SPDX-License-Identifier: Apache-2.0
"""Speed and size of a run that is read as a table: docs/performance.md, "Questions about a long run".

python tests/bench/tables.py [STEPS]     with pyarrow, RANKPROBE_BIN_DIR or a build tree, and PYTHONPATH
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness

import rankprobe
from rankprobe import archive

CALLS, ROUNDS = 1000, 5


def main() -> None:
    import numpy

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        collector = harness.Collector(directory).start()
        session = rankprobe.Session(collector.address, run="bench", rank=0)
        value = numpy.arange(8, dtype=numpy.float32)
        for step in range(steps):
            session.start()
            for call in range(CALLS):
                session.call("Torch", f"op{call}", [value], [value * step])
            session.stop()
            session.step()
        session.close()
        harness.wait_for(lambda: rolled_up(collector) == steps, 300, "rollups")
        rows = 2 * CALLS * steps
        table = [timed(lambda: archive.read("bench", collector=collector.address).num_rows) for _ in range(ROUNDS)]
        out = directory / "bench.parquet"
        environment = {**os.environ, "RANKPROBE_PYTHON": sys.executable}
        parquet = [timed(lambda: subprocess.run(
            [harness.BIN / "rankprobe", "--collector", collector.address, "export", "--run", "bench", "--format", "parquet", "-o", out],
            check=True, env=environment, stdout=subprocess.DEVNULL)) for _ in range(ROUNDS)]
        print(f"{rows} rows; read {statistics.median(table):.2f} s, {rows / statistics.median(table) / 1e6:.2f} million rows a second; "
              f"parquet {statistics.median(parquet):.2f} s, {out.stat().st_size / rows:.1f} bytes a row; load {os.getloadavg()[0]:.1f}")
        collector.stop()


def rolled_up(collector: harness.Collector) -> int:
    head = collector.cli("query", "--run", "bench", "op0.", "--json").stdout.splitlines()[0]
    return int(json.loads(head).get("rolled_up_rank_steps", 0))


def timed(call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
