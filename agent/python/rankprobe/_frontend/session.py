# SPDX-License-Identifier: Apache-2.0
"""One process' session with its collector, and where the trees of its steps go."""

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


# As long as stop() waits for a collector that has no room to write: it may have been given some just now.
_FULL_DISK_SECONDS = 0.25


class CannotRecordError(Exception):
    """Nothing of this process can be recorded, and the training goes on: a name of
    the run that is none, a dump_path that cannot be made."""


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
    """The fault, with the command that looks for its cause; of a dump_path that takes no files it is told from all others."""
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
    except RuntimeError as error:  # on_missing "fail" makes a CollectorMissingError of it
        raise CannotRecordError(str(error)) from error


class _Descriptor:
    """One of this process that nobody else knows: it goes where a program closes all that it does not know."""

    def __init__(self) -> None:
        self._fd, other = os.pipe()  # an inode of its own: the number may be another's later
        os.close(other)
        self._inode = fstat(self._fd).st_ino

    @property
    def is_gone(self) -> bool:
        try:
            return fstat(self._fd).st_ino != self._inode
        except OSError:
            return True

    def close(self) -> None:
        if not self.is_gone:
            os.close(self._fd)


class RankSession:
    """Owns the native session, the private collector (RANKPROBE_COLLECTOR names
    none) and the exports of finished steps; knows what the records are filed
    under, run and rank. Called by PrecisionDebugger alone, on its thread.

    plan: of the config that the process began with; its dump_path stays.
    config_path: "" for none. Raises CollectorMissingError when on_missing is "fail" and
    no collector answers, and CannotRecordError, also where there can be no private
    collector; nothing is held then.
    """

    def __init__(self, framework: Framework, plan: dict[str, Any], config_json: str, config_path: str, on_missing: str) -> None:
        self._framework = framework
        self._dump_path = plan["dump_path"]
        self.embedded: Optional[EmbeddedCollector] = None
        self._given, self.run = os.environ.get("RANKPROBE_COLLECTOR", ""), _checked_run(run_name())
        if not self._given:
            try:
                self.embedded = EmbeddedCollector(self._dump_path, self.run)
            except (OSError, RuntimeError) as error:  # no disk, no program: in no case the training's end
                raise CannotRecordError(_why_no_collector(self._dump_path, error)) from None
            self.run = self.embedded.run
        self._rank = environment_rank(framework)
        self._rank_sent: Optional[int] = None
        # The dump_path to speak of, "" while there is none; whether it was spoken of.
        self._place, self._place_told = "", False
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
            # Nobody has this object, who could close it: the collector would stay as long as the process.
            if self.embedded is not None:
                self.embedded.leave()
            raise
        self._watched = _Descriptor()
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
        """Of the collector, as `rankprobe --collector` takes it."""
        return self._given if self.embedded is None else self.embedded.address

    @property
    def recording(self) -> bool:
        """Whether this step of this rank is recorded."""
        return self.native.recording

    def start(self, rank_id: Optional[int], requests: Optional[Requests] = None) -> Optional[int]:
        """Tells the collector step and rank, and takes the plan it has for them.

        rank_id: None: that of the framework. requests: whose rows the step has,
        None: not said. Returns the rank, None: not known.
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
        """Recording off; what was recorded is on its way."""
        self._kept = self.native.stop(None if self.embedded is None else self._patience)

    def _patience(self) -> Optional[float]:
        """Asked where stop() has to wait: a step whose records are kept asks no disk anything."""
        embedded = self.embedded
        return None if embedded is None or embedded.free_bytes_if_full() is None else _FULL_DISK_SECONDS

    def commit(self) -> None:
        """After stop(): what was recorded is safe with a private collector."""
        if self._exports is not None:
            self._exports.commit(self._kept)

    def fixed_path(self, plan: dict[str, Any]) -> Optional[str]:
        """Where trees go on to, where `plan` has another dump_path; None: it has no other."""
        return self._dump_path if self._exports is not None and plan["dump_path"] != self._dump_path else None

    def export(self, step: int, dump_path: str) -> None:
        """Has the tree of `step` written, beside the training of the next one.
        dump_path: of the plan in force."""
        self._place = dump_path
        self._tell_place()
        if self._exports is not None:
            self._exports.begin(step)

    def _tell_place(self) -> None:
        """Once. A collector elsewhere may refuse this rank, or not be there: with one it is said when it has answered."""
        if self._place_told or not self._place:
            return
        if self._exports is None:
            try:
                self.native.wait_connected(0.0)
            except (TimeoutError, RuntimeError):  # or the session has said why it records nothing
                return
        self._place_told = True
        tell_place(self.run, self._place, self._exports, self._rank)

    def wait_exported(self) -> None:
        """Until the last tree that was begun is written."""
        if self._exports is not None:
            self._exports.wait()

    def finish_exports(self) -> None:
        """Waits for the trees; before close()."""
        self._tell_place()
        if self._exports is not None:
            self._exports.close()

    @property
    def cut_off(self) -> bool:
        """Whether the program has closed the descriptors of this process that it did not open, ours with them."""
        return self._watched.is_gone

    def abandon(self) -> None:
        """In place of close(), where it is cut off: calls of gRPC would abort, and numbers of descriptors are others'."""
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
