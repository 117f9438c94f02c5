# SPDX-License-Identifier: Apache-2.0
"""Statistics of a run as a table, read directly from a collector or a data directory, without an export.

    table = rankprobe.archive.read("train", match="*.parameters_grad.*")    # pyarrow.Table
    frame = rankprobe.archive.frame("train", steps=range(8000, 9000))       # pandas.DataFrame
    for batch in rankprobe.archive.batches("train"):                        # as they come, some thousand rows each
        ...

A row is a value (a tensor of a call) of one step of one process: run, step, rank (null if it is not known), pid,
module, call, phase (forward, backward, parameters_grad, debug), position (input.0, output.0, a parameter's name), and
Max, Min, Mean, Norm, NanCount, InfCount, ZeroCount, Std, null if not recorded. Rows are ordered by step, then by rank,
then as in dump.json. The numbers are not copied from the buffers in which they arrived.

Needs pyarrow (pip install 'rankprobe[tables]'). TLS and tokens are those of the environment, as for the command line.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any, Iterable, Iterator

from ._unix_socket import NAME, abstract_address, takes_sockets
from .embedded import find_binary

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from ._value_stream import Cut, ValueStream

__all__ = ["batches", "frame", "read"]

_START_SECONDS = 60.0
# Exception for each exit status of the command; OSError for others.
ERRORS: dict[int, type[Exception]] = {2: ValueError, 3: ConnectionError, 4: LookupError}


def read(run: str, *, collector: str | None = None, data_dir: str | os.PathLike[str] | None = None,
         steps: int | Iterable[int] | None = None, ranks: int | Iterable[int] | None = None, match: str = "",
         of: str = "all") -> pyarrow.Table:
    """Returns the table of `run`, read from the collector at `collector` (host:port or unix:PATH; default RANKPROBE_COLLECTOR,
    else 127.0.0.1:7411) or from the archive in `data_dir`, which no other collector may have open.

    `steps`, `ranks`: numbers from 0, one or several; None selects all. `match`: a part of names (call and position), or a
    pattern with * and ?; "" selects all. `of`: "outputs", "inputs" or "all".

    Raises ValueError for an invalid request, LookupError if there is no such run, ConnectionError if no collector answers, and
    OSError if it refuses. If steps are incomplete or were deleted, a warning says how many; table.schema.metadata has the counts."""
    import pyarrow

    from ._value_stream import SCHEMA

    with _stream(run, collector, data_dir, steps, ranks, match, of) as stream:
        table = pyarrow.Table.from_batches(stream, SCHEMA)
        return table.replace_schema_metadata({key: str(count) for key, count in stream.end.items()})


def frame(run: str, **selection: Any) -> pandas.DataFrame:
    """Returns read(run, ...) as a DataFrame, with texts as categories. Raises as read()."""
    return read(run, **selection).to_pandas()


def batches(run: str, *, collector: str | None = None, data_dir: str | os.PathLike[str] | None = None,
            steps: int | Iterable[int] | None = None, ranks: int | Iterable[int] | None = None, match: str = "",
            of: str = "all") -> Iterator[pyarrow.RecordBatch]:
    """Yields the rows of read() in batches as they arrive, for runs that are larger than the memory. Raises as read()."""
    with _stream(run, collector, data_dir, steps, ranks, match, of) as stream:
        yield from stream


def _numbers(name: str, wanted: int | Iterable[int] | None) -> list[str]:
    if wanted is None:
        return []
    numbers = sorted({int(number) for number in ([wanted] if isinstance(wanted, int) else wanted)})
    if not numbers or numbers[0] < 0:
        raise ValueError(f"{name}: numbers from 0 up, or None for all")
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [f"--{name}", ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)]


@contextlib.contextmanager
def _stream(run: str, collector: str | None, data_dir: str | os.PathLike[str] | None, steps: int | Iterable[int] | None,
            ranks: int | Iterable[int] | None, match: str, of: str) -> Iterator[ValueStream]:
    from ._value_stream import Cut, ValueStream

    if collector is not None and data_dir is not None:
        raise ValueError("a collector or a data_dir, not both")
    with contextlib.ExitStack() as stack:
        if data_dir is not None:
            collector = stack.enter_context(collector_of(pathlib.Path(data_dir)))
        command = [find_binary("rankprobe"), "export", "--run", run, "--format", "columns", "-o", "-", "--of", of,
                   *(["--match", match] if match else []), *_numbers("steps", steps), *_numbers("ranks", ranks),
                   *(["--collector", collector] if collector else [])]
        said = stack.enter_context(tempfile.TemporaryFile())
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said))
        # Ends the command if the caller stops early; has no effect on one that has ended.
        stack.callback(process.kill)
        cut: Cut | None = None
        assert process.stdout is not None
        try:
            stream = ValueStream(process.stdout)
            yield stream
        except Cut as error:
            cut = error
        if not cut and not stream.end:
            return  # The caller stopped before the end of the stream; the command is killed.
        code = process.wait()
        if cut or code not in (0, 1):
            said.seek(0)
            message = said.read().decode(errors="replace").strip().removeprefix("rankprobe: ") or str(cut)
            raise ERRORS.get(code, OSError)(message) from None
        if code == 1:
            warnings.warn(f"{run}: {stream.end['incomplete_rank_steps']} rank-steps are incomplete and "
                          f"{stream.end['deleted_rank_steps']} were deleted; rankprobe ledger says which", stacklevel=4)


@contextlib.contextmanager
def collector_of(data_dir: pathlib.Path) -> Iterator[str]:
    """Starts a collector on the archive for the block and yields its address. Raises ValueError if there is no such directory,
    OSError if the collector does not start."""
    if not data_dir.is_dir():
        raise ValueError(f"{data_dir}: no such directory")
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as log:
        listens, place = pathlib.Path(scratch, "listens"), pathlib.Path(scratch)
        address = f"unix:{place / NAME}" if takes_sockets(place) else abstract_address()
        process = subprocess.Popen([find_binary("rankprobed"), "--listen", address, "--data-dir", str(data_dir),
                                    "--port-file", str(listens)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not (listens.exists() and listens.read_text().endswith("\n")):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    lines = log.read().decode(errors="replace").strip().splitlines() or ["it did not start"]
                    raise OSError(f"{data_dir}: {lines[-1]}")
                time.sleep(0.005)
            yield address
        finally:
            process.terminate()
            process.wait()
