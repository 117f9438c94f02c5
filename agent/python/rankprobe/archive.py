# SPDX-License-Identifier: Apache-2.0
"""The statistics of a run as a table, straight from the collector or from a data directory, without an export.

    table = rankprobe.archive.read("train", match="*.parameters_grad.*")    # pyarrow.Table
    frame = rankprobe.archive.frame("train", steps=range(8000, 9000))       # pandas.DataFrame
    for batch in rankprobe.archive.batches("train"):                        # as they come, some thousand rows each
        ...

A row is a value (a tensor of a call) of one step of one process: run, step, rank (null where it is not known), pid,
module, call, phase (forward, backward, parameters_grad, debug), position (input.0, output.0, a parameter's name), and
Max, Min, Mean, Norm, NanCount, InfCount, ZeroCount, Std, null where it was not recorded. Rows come by step, then by rank,
then in the order of dump.json. Numbers lie in the memory they arrived in.

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
# By exit status of the command.
ERRORS: dict[int, type[Exception]] = {2: ValueError, 3: ConnectionError, 4: LookupError}


def read(run: str, *, collector: str | None = None, data_dir: str | os.PathLike[str] | None = None,
         steps: int | Iterable[int] | None = None, ranks: int | Iterable[int] | None = None, match: str = "",
         of: str = "all") -> pyarrow.Table:
    """The table of `run`. Of the collector at `collector` (host:port or unix:PATH; else RANKPROBE_COLLECTOR, else
    127.0.0.1:7411), or of the archive in `data_dir`, which no other collector may have open.

    `match` is a part of names (call and position), or a pattern with * and ?; `of` is "outputs", "inputs" or "all".
    ValueError: what cannot be asked. LookupError: no such run. ConnectionError: no collector. OSError: it refuses. Where
    steps are not whole or were deleted a warning says how many; table.schema.metadata has the counts."""
    import pyarrow

    from ._value_stream import SCHEMA

    with _stream(run, collector, data_dir, steps, ranks, match, of) as stream:
        table = pyarrow.Table.from_batches(stream, SCHEMA)
        return table.replace_schema_metadata({key: str(count) for key, count in stream.end.items()})


def frame(run: str, **selection: Any) -> pandas.DataFrame:
    """read(run, ...) as a DataFrame: texts as categories."""
    return read(run, **selection).to_pandas()


def batches(run: str, *, collector: str | None = None, data_dir: str | os.PathLike[str] | None = None,
            steps: int | Iterable[int] | None = None, ranks: int | Iterable[int] | None = None, match: str = "",
            of: str = "all") -> Iterator[pyarrow.RecordBatch]:
    """The rows of read() as they come, for runs that are larger than the memory."""
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
        stack.callback(process.kill)
        cut: Cut | None = None
        assert process.stdout is not None
        try:
            stream = ValueStream(process.stdout)
            yield stream
        except Cut as error:
            cut = error
        if not cut and not stream.end:
            return  # the caller has seen enough
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
    """Address of a collector that has the archive open as long as this lasts."""
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
