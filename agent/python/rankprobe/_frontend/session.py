# SPDX-License-Identifier: Apache-2.0
"""Session of a process with its collector, and the destination of its exported steps."""

from __future__ import annotations

import contextlib
import os
from os import fstat
from typing import Any, Iterator, Optional

from rankprobe import _native
from rankprobe._frontend.errors import CollectorMissingError
from rankprobe._frontend.exports import Exports, tell_place
from rankprobe._frontend.framework import Framework
from rankprobe._frontend.process import environment_rank, run_name, warn
from rankprobe._frontend.requests import Requests
from rankprobe._inputs import shell_word, show
from rankprobe._say import say
from rankprobe.embedded import EmbeddedCollector, OtherJobError


# Time that stop() waits for a collector on a full disk, in case space was freed just now.
_FULL_DISK_SECONDS = 0.25


class CannotRecordError(Exception):
    """This process cannot be recorded, for example because of an invalid run name or
    a dump_path that cannot be created. The training continues."""


def _checked_run(run: str) -> str:
    try:
        size = len(run.encode())
    except UnicodeEncodeError:
        raise CannotRecordError(f"the name of the run, {ascii(run)}, is not UTF-8") from None
    if not 0 < size <= 255:
        raise CannotRecordError(f"the name of the run has {size} bytes, and 255 at most are possible")
    return run


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[-500:]


def _why_no_collector(dump_path: str, error: Exception) -> str:
    """Returns a message with the fault and a command that finds its cause. A dump_path that cannot be written has its own message."""
    command = f"`rankprobe doctor --dump-path {shell_word(dump_path)}` says what helps"
    place = os.path.abspath(error.filename) if isinstance(error, OSError) and isinstance(error.filename, str) else ""
    ours = os.path.abspath(dump_path)
    if place and os.path.commonpath((place, ours)) in (place, ours):
        assert isinstance(error, OSError)
        return show(f"dump_path {dump_path} cannot be written: {error.strerror} ({place}); {command}")
    if isinstance(error, OtherJobError):
        return show(f"dump_path {dump_path}: {error}")
    return show(f"no private collector for {dump_path}: {_line(error)}; {command}")


@contextlib.contextmanager
def _telling_of_the_collector() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise CollectorMissingError(str(error)) from error
    except RuntimeError as error:  # With on_missing "fail" the caller converts it to CollectorMissingError.
        raise CannotRecordError(str(error)) from error


class _Descriptor:
    """A descriptor that no other code of the process uses. It is closed if the program closes all descriptors that it did not open."""

    def __init__(self) -> None:
        self._fd, other = os.pipe()  # A pipe has a unique inode; the descriptor number may be reused.
        os.close(other)
        self._inode = fstat(self._fd).st_ino

    def is_gone(self) -> bool:
        try:
            return fstat(self._fd).st_ino != self._inode
        except OSError:
            return True

    def close(self) -> None:
        if not self.is_gone():
            os.close(self._fd)


class RankSession:
    """Owns the native session, the private collector (if RANKPROBE_COLLECTOR is not
    set) and the exports of finished steps; determines the run and rank of the
    records. Called only by PrecisionDebugger, on its thread.

    plan: that of the config with which the process began; its dump_path is kept.
    config_path: "" if there is none. Raises CollectorMissingError if on_missing is "fail" and
    no collector answers, and CannotRecordError, also if a private collector is not
    possible. It owns nothing after an exception.
    """

    def __init__(self, framework: Framework, plan: dict[str, Any], config_json: str, config_path: str, on_missing: str) -> None:
        self._framework = framework
        self._dump_path = plan["dump_path"]
        self.embedded: Optional[EmbeddedCollector] = None
        self._given, self.run = os.environ.get("RANKPROBE_COLLECTOR", ""), _checked_run(run_name())
        if not self._given:
            try:
                self.embedded = EmbeddedCollector(self._dump_path, self.run)
            except (OSError, RuntimeError) as error:  # For example a full disk or a missing program; the training continues.
                raise CannotRecordError(_why_no_collector(self._dump_path, error)) from None
            self.run = self.embedded.run
        self._rank = environment_rank(framework)
        self._rank_sent: Optional[int] = None
        # The dump_path to report, "" if there is none yet, and whether it was reported. `rankprobe check` deletes the dump after
        # reading it, so its place is not reported.
        self._place, self._place_told = "", "RANKPROBE_TEMPORARY_DUMP" in os.environ
        self._kept = False
        try:
            with _telling_of_the_collector():
                self.native = _native.Session(self.address, run=self.run, rank=self._rank, config_json=config_json,
                                              framework=f"{framework.name} {framework.version}", config_path=config_path,
                                              on_collector_missing=on_missing,
                                              kept_directory="" if self.embedded is None else str(self.embedded.kept))
            if self.embedded is not None:
                self._connect()
        except BaseException:
            # The constructor raised, so no caller can close this object, and the collector would run as long as the process.
            if self.embedded is not None:
                self.embedded.leave()
            raise
        self.start_idle, self.step_idle = self.native.idle_calls()
        self._watched = _Descriptor()
        # Returns whether the program has closed descriptors that it did not open, and rankprobe's among them.
        self.is_cut_off = self._watched.is_gone
        self._exports: Optional[Exports] = None
        if self.embedded is not None or plan["auto_export"]:
            self._exports = Exports(self.native, self.run, self._dump_path, self.embedded, lambda: self._rank, warn)

    def _connect(self) -> None:
        assert self.embedded is not None
        try:
            self.embedded.connect(self.native)
        except (TimeoutError, RuntimeError) as error:
            raise CannotRecordError(f"the private collector for {self._dump_path} does not answer: {_line(error)}") from None

    @property
    def address(self) -> str:
        """Address of the collector, in the form of `rankprobe --collector`."""
        return self._given if self.embedded is None else self.embedded.address

    @property
    def recording(self) -> bool:
        """Whether this step of this rank is recorded."""
        return self.native.recording

    def start(self, rank_id: Optional[int], requests: Optional[Requests] = None) -> Optional[int]:
        """Reports step and rank to the collector, and gets the plan for them.

        rank_id: the rank; None means that of the framework. requests: the requests of
        the step's rows, or None. Returns the rank, None if it is not known.
        """
        rank = rank_id if rank_id is not None else self._known_rank()
        if self._rank is None:
            self._rank = rank
        self.native.start(rank, requests)
        return rank

    def _known_rank(self) -> Optional[int]:
        known = self._framework.rank()
        if known is None:
            return None
        if self._rank_sent != known[0]:
            self._rank_sent = known[0]
            self.native.set_rank(*known)
        return known[0]

    def stop(self) -> None:
        """Stops recording. The records are being sent afterwards; commit() waits for them."""
        self._kept = self.native.stop(None if self.embedded is None else self._patience)

    def _patience(self) -> Optional[float]:
        """Returns the limit in seconds for a wait in stop(), None for the default. It is called only if stop() has to wait, so that the
        disk is not checked in other steps."""
        embedded = self.embedded
        return None if embedded is None or embedded.free_bytes_if_full() is None else _FULL_DISK_SECONDS

    def commit(self) -> None:
        """Call after stop(): waits until a private collector has committed the records."""
        if self._exports is not None:
            self._exports.commit(self._kept)

    def fixed_path(self, plan: dict[str, Any]) -> Optional[str]:
        """Returns the dump_path that stays in use if `plan` has a different one, else None."""
        return self._dump_path if self._exports is not None and plan["dump_path"] != self._dump_path else None

    def export(self, step: int, dump_path: str) -> None:
        """Starts the export of `step`, which runs during the training of the next one.
        dump_path: that of the plan in force."""
        self._place = dump_path
        self._tell_place()
        if self._exports is not None:
            self._exports.begin(step)

    def _tell_place(self) -> None:
        """Reports the destination, once. With a named collector, which may refuse this rank or be unreachable, waits for its answer."""
        if self._place_told or not self._place:
            return
        if self._exports is None:
            try:
                self.native.wait_connected(0.0)
            except (TimeoutError, RuntimeError):  # Not connected yet, or the session has reported why it records nothing.
                return
        self._place_told = True
        tell_place(self.run, self._place, self._exports, self._rank)

    def wait_exported(self) -> None:
        """Waits until the last export that was started is done."""
        if self._exports is not None:
            self._exports.wait()

    def finish_exports(self) -> None:
        """Waits for all exports. Call before close()."""
        self._tell_place()
        if self._exports is not None:
            self._exports.close()

    def abandon(self) -> None:
        """Call instead of close() if is_cut_off(): calls of gRPC would abort, and descriptor numbers may belong to other files."""
        self.native.abandon()
        if self.embedded is not None:
            self.embedded.forget()
        say("rankprobe: the program has closed descriptors that it did not open (os.closerange, a daemon's start), "
            "and rankprobe's among them: nothing is recorded from now on, and the training continues")

    def close(self) -> None:
        self._watched.close()
        lost = self.native.close()
        if self.embedded is not None:
            self.embedded.leave(lost, "" if self._rank is None else f"rank{self._rank}")
