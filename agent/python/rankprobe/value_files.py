# SPDX-License-Identifier: Apache-2.0
"""The worker of `rankprobe export --format parquet|tensorboard|trend`: a stream of values on standard input becomes a file.

What is made appears under its name only when it is whole. Exit status 2: it cannot be made here; 5: writing failed.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import secrets
import signal
import sys
from typing import Any, Callable

_PACKAGES = {"parquet": "pyarrow", "tensorboard": "pyarrow and tensorboard", "trend": "pyarrow"}


def write_parquet(stream: Any, path: pathlib.Path) -> None:
    """One row a value, the columns of rankprobe.archive."""
    import pyarrow.parquet

    from ._value_stream import SCHEMA, STATISTICS

    # Smallest and largest of a block do not tell of its NaN: DuckDB would leave the block out when asked for isnan().
    bounded = [name for name in SCHEMA.names if name not in STATISTICS]
    with pyarrow.parquet.ParquetWriter(path, SCHEMA, compression="zstd", write_statistics=bounded) as writer:
        for batch in stream:
            writer.write_batch(batch)
        writer.add_key_value_metadata({f"rankprobe.{key}": str(count) for key, count in stream.end.items()})


def write_tensorboard(stream: Any, directory: pathlib.Path, dump: str = "") -> None:
    """Event files, a run of TensorBoard for each process: scalars "Norm/Module.fc.Linear.forward.0.output.0", also Max,
    Min and Mean. dump: an exported dump, whose tensors become histograms of the same names, of the steps that are in the stream."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    payloads = None
    if dump:
        from ._histograms import Payloads

        payloads = Payloads(pathlib.Path(dump))
    directory.mkdir()
    writers: dict[str, EventFileWriter] = {}
    places: dict[tuple[int, str], set[str]] = {}
    for batch in stream:
        columns = batch.to_pydict()
        for row, (step, call, position) in enumerate(zip(columns["step"], columns["call"], columns["position"])):
            rank = columns["rank"][row]
            process = f"proc{columns['pid'][row]}" if rank is None else f"rank{rank}"
            if process not in writers:
                writers[process] = EventFileWriter(str(directory / process))
            name = f"{call}.{position}" if position else call
            if payloads is not None:
                places.setdefault((step, process), set()).add(name)
            values = [Summary.Value(tag=f"{key}/{name}", simple_value=columns[key][row])
                      for key in ("Norm", "Max", "Min", "Mean") if columns[key][row] is not None]
            if values:
                writers[process].add_event(Event(step=step, summary=Summary(value=values)))
    for (step, process), names in places.items():
        for name, fields in payloads.of(step, process) if payloads is not None else ():
            if name in names:
                value = Summary.Value(tag=f"Values/{name}", histo=HistogramProto(**fields))
                writers[process].add_event(Event(step=step, summary=Summary(value=[value])))
    for writer in writers.values():
        writer.close()
    if payloads is not None and payloads.unread:
        _say(f"{dump}: {payloads.unread} tensors could not be read: they have no histogram")


def write_trend(stream: Any, path: pathlib.Path) -> None:
    from ._trend_db import TrendDb

    with TrendDb(path) as database:
        for batch in stream:
            database.add(batch.to_pydict())


_WRITERS: dict[str, Callable[..., None]] = {
    "parquet": write_parquet, "tensorboard": write_tensorboard, "trend": write_trend}


def _say(message: object) -> None:
    print(f"rankprobe: {message}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """`arguments`: the format, the path of what is made; of tensorboard also a dump."""
    kind, output = arguments[0], pathlib.Path(arguments[1])
    # A file takes the place of an older one; a directory of event files that of none, for they would be mixed.
    if kind == "tensorboard" and output.exists() and (not output.is_dir() or any(output.iterdir())):
        _say(f"{output}: already exists")
        return 2
    if kind != "tensorboard" and output.is_dir():
        _say(f"{output}: is a directory")
        return 2
    scratch: pathlib.Path | None = None

    def stop(number: int, _: Any) -> None:
        # Not by an exception: code of a library that is being loaded may swallow it.
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(128 + number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        from ._value_stream import Cut, ValueStream

        output.parent.mkdir(parents=True, exist_ok=True)
        # Named before it is made, not by mkdtemp: stop() may come in between.
        scratch = output.with_name(f".{output.name}.{secrets.token_hex(8)}")
        scratch.mkdir(mode=0o700)
        made = scratch / output.name
        _WRITERS[kind](ValueStream(sys.stdin.buffer), made, *arguments[2:])
        if made.is_dir() and output.is_dir():
            output.rmdir()
        os.replace(made, output)
        return 0
    except ImportError as error:
        _say(f"--format {kind} needs {_PACKAGES[kind]} in {sys.executable}: {error}")
        return 2
    except OSError as error:
        _say(f"{error.filename or output}: {error.strerror or error}")
        return 5
    except Cut as error:
        _say(error)
        return 5
    except Exception as error:  # noqa: BLE001 - of a library, as sqlite3's; status 1 is Python's own
        _say(f"{output}: {type(error).__name__}: {error}")
        return 5
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
