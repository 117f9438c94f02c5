# SPDX-License-Identifier: Apache-2.0
"""The worker of `rankprobe export --format parquet|tensorboard|trend`: converts a stream of values on standard input to a file.

The file gets its name only when it is complete. Exit status 2: it cannot be made here; 5: writing failed.
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
    """Writes a Parquet file with one row for each value and the columns of rankprobe.archive."""
    import pyarrow.parquet

    from ._value_stream import SCHEMA, STATISTICS

    # Minimum and maximum of a block do not cover its NaNs: DuckDB would skip the block in a query with isnan().
    bounded = [name for name in SCHEMA.names if name not in STATISTICS]
    with pyarrow.parquet.ParquetWriter(path, SCHEMA, compression="zstd", write_statistics=bounded) as writer:
        for batch in stream:
            writer.write_batch(batch)
        writer.add_key_value_metadata({f"rankprobe.{key}": str(count) for key, count in stream.end.items()})


def write_tensorboard(stream: Any, directory: pathlib.Path, dump: str = "") -> None:
    """Writes event files, one TensorBoard run for each process, with scalars such as "Norm/Module.fc.Linear.forward.0.output.0", and
    Max, Min and Mean alike. dump: an exported dump; its tensors become histograms of the same names for the steps in the stream."""
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
    # Writes a trend.db (_trend_db.py).
    from ._trend_db import TrendDb

    with TrendDb(path) as database:
        for batch in stream:
            database.add(batch.to_pydict())


_WRITERS: dict[str, Callable[..., None]] = {
    "parquet": write_parquet, "tensorboard": write_tensorboard, "trend": write_trend}


def _say(message: object) -> None:
    print(f"rankprobe: {message}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Runs the worker. `arguments`: the format, the path of the output and, for tensorboard, optionally a dump."""
    kind, output = arguments[0], pathlib.Path(arguments[1])
    # A file replaces an older one; a directory of event files does not, because the old and new files would be mixed.
    if kind == "tensorboard" and output.exists() and (not output.is_dir() or any(output.iterdir())):
        _say(f"{output}: already exists")
        return 2
    if kind != "tensorboard" and output.is_dir():
        _say(f"{output}: is a directory")
        return 2
    scratch: pathlib.Path | None = None

    def stop(number: int, _: Any) -> None:
        # Does not raise an exception, because a library that is being loaded may swallow it.
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(128 + number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        from ._value_stream import Cut, ValueStream

        output.parent.mkdir(parents=True, exist_ok=True)
        # Does not use mkdtemp(), so that stop() knows the name even if it runs right after the directory is created.
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
    except Exception as error:  # noqa: BLE001 - errors of libraries such as sqlite3; Python's exit status 1 has another meaning
        _say(f"{output}: {type(error).__name__}: {error}")
        return 5
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
