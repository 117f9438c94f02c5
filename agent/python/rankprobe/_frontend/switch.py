# SPDX-License-Identifier: Apache-2.0
"""Plan in force, and the config file as a switch."""

from __future__ import annotations

import os
from typing import Any, Optional

from rankprobe import _native
from rankprobe._frontend import config as _config
from rankprobe._frontend.process import warn
from rankprobe._frontend.session import RankSession
from rankprobe._say import say


class Switch:
    """Decides what the process records: first by config.json, then by the collector's
    answer in each start(). Called only by PrecisionDebugger.

    Raises InvalidParameterError, which names every fault of the config.
    notes: warnings of the parser.
    """

    def __init__(self, file: _config.ConfigFile, framework: str) -> None:
        self._framework = framework
        self._file = file
        self.plan, self.notes = _config.parse(file.text, file.path)
        self.enabled: bool = self.plan.get("dump_enable", True)
        # The requested plan, even while the flight recorder's plan is in force; while recording is off, the last requested one.
        self.asked, self.asks = self.plan, self.enabled
        # Whether the plan is still that of the constructor.
        self._own = True
        # Whether the file is a switch, checked in each step.
        self.followed = file.path is not None and "dump_enable" in self.plan

    @property
    def config_json(self) -> str:
        return self._file.text

    @property
    def config_path(self) -> str:
        """Absolute path of the config file; "" if there is none."""
        return os.path.abspath(self._file.path) if self._file.path else ""

    @property
    def view(self) -> _config.ConfigView:
        return _config.ConfigView(self.plan, self.enabled, self._framework)

    @property
    def checked_plan(self) -> Optional[dict[str, Any]]:
        """The plan that start()'s arguments must match. None while recording is off, and
        for a later config, which must not raise in a training loop."""
        return self.plan if self.enabled and self._own else None

    def take(self, session: RankSession) -> bool:
        """Takes over the plan of session.start(), which must precede it. Returns whether the plan changed."""
        self.enabled = session.native.enabled
        asked = session.native.asked_plan()
        self.asks, self.asked = asked is not None, asked or self.asked
        if not self.enabled:
            return False
        plan = session.native.plan()
        changed = plan is not self.plan and plan != self.plan
        if changed:
            self._own = False
        self.plan = plan
        return changed

    def forget_file(self) -> None:
        """Call if the config file is removed after the construction: a later file of its name is not an edit of it."""
        self.followed = False

    def follow_file(self, session: RankSession) -> None:
        """Applies an edit of the config file. With a private collector it is in force
        from the next session.start(); another collector makes it a plan of the run."""
        if not self.followed:
            return
        try:
            edit = self._file.edited()
            if edit is not None:
                self._submit(edit, session)
        except Exception as error:  # noqa: BLE001 - the training continues
            if not _native.raise_later_if_programs(error):
                warn(f"the edit of {self._file.path} was not applied: {error!r}")

    def _submit(self, edit: _config.Edit, session: RankSession) -> None:
        fault = edit.fault
        if not fault:
            try:
                for note in _config.parse(edit.text)[1]:
                    warn(note)
            except ValueError as error:
                fault = str(error)
        fault, _ = session.native.edit_config(self.config_path, edit.text, fault, session.embedded is not None)
        if fault:
            say(_native.fault_line(self.config_path, fault), end="")
