# SPDX-License-Identifier: Apache-2.0
"""Notices to the user, given once, about filters that leave nothing to record."""

from __future__ import annotations

import os
import sys
from typing import Any, Optional

from rankprobe._frontend.framework import Framework
from rankprobe._frontend.process import environment_rank, warn


def _text(ranges: list[tuple[int, int]]) -> list[Any]:
    """Converts ranges of a plan to the form of config.json."""
    return [first if first == last else f"{first}-{last}" for first, last in ranges]


class Notices:
    """Gives each notice once for each plan."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._told: set[str] = set()
        self._plan: Optional[dict[str, Any]] = None

    def _once(self, plan: dict[str, Any], key: str, text: str) -> None:
        if plan != self._plan:
            self._plan = plan
            self._told.clear()
        if key not in self._told:
            self._told.add(key)
            warn(text)

    def started(self, plan: dict[str, Any], rank: Optional[int], request_missing: bool) -> None:
        """Checks a start() under `plan` with this rank; None if unknown. A flight recorder may record what the plan does not request."""
        if request_missing:
            self._once(plan, "request", f"request_id {plan['request_id']!r} is not among the requests of a step: "
                       "such steps are not recorded")
            return
        if not self._lacks(plan, rank):
            return
        asked, world = f"config.json asks for rank {_text(plan['ranks'])}", self._world()
        if world == 1:
            self._once(plan, "rank", f"{asked} and this is a single process {'without a rank' if rank is None else f'of rank {rank}'}: "
                       "nothing is recorded; set \"rank\": []")
        elif environment_rank(self._framework) == 0:
            self._once(plan, "rank", f"{asked} and this job has ranks 0 to {world - 1}: nothing is recorded")

    def nobody(self, plan: dict[str, Any]) -> bool:
        """Returns whether `plan` selects only ranks that this job does not have, as far as is known before the first step."""
        return self._lacks(plan, environment_rank(self._framework))

    def _lacks(self, plan: dict[str, Any], rank: Optional[int]) -> bool:
        """rank: that of this process, None: unknown. A job of one process has no other rank."""
        ranks = plan["ranks"]
        if not ranks:
            return False
        world = self._world()
        return not (rank is not None and any(first <= rank <= last for first, last in ranks) if world == 1 else any(
            first < world for first, _ in ranks))

    def ended(self, plan: dict[str, Any], steps: int, started: bool) -> None:
        """Checks at the end of the program whether any step was selected; only rank 0 reports. `steps` includes an unfinished step that
        has records. A flight recorder may have recorded steps that the plan did not select."""
        if os.environ.get("RANK", "0") != "0":
            return
        wanted = plan["steps"]
        # A program that only saves does not call start(), and one that failed has reported its error.
        if not started and not plan["records_saved"]:
            if not hasattr(sys, "last_type"):
                self._once(plan, "start", "PrecisionDebugger was made and its start() was never called: nothing is recorded")
        elif wanted and wanted[0][0] >= steps:
            self._once(plan, "step", f"config.json asks for step {_text(wanted)} and the training ended before it: "
                       "nothing is recorded")

    def _world(self) -> int:
        """Returns the number of ranks of the job, as far as is known."""
        known = self._framework.rank()
        if known is not None:
            return known[1]
        size = os.environ.get("WORLD_SIZE", "1")
        return int(size) if size.isdecimal() and 0 < len(size) < 19 else 1

    def no_requests(self, plan: dict[str, Any]) -> None:
        """Checks a start() that records and got no requests."""
        if plan["request_id"]:
            self._once(plan, "no requests", f"request_id {plan['request_id']!r} has no effect: this program does not say whose "
                       "rows its tensors hold (start(scheduled_tokens=)); everything is recorded")

    def bad_requests(self, plan: dict[str, Any], fault: str) -> None:
        """Reports a start() with requests that cannot be used."""
        self._once(plan, "requests", f"start(): {fault}; it is recorded as if that were not given")

    def stopped(self, plan: dict[str, Any], capture: Any, step: int) -> None:
        """Checks at stop() whether the filters matched any call."""
        for field in ("list", "scope"):
            names = plan[field]
            # Backward entries are not counted.
            if names and capture.seen and not capture.matched and not any("backward" in name for name in names):
                self._once(plan, field, f"{field} {names} matched none of the {capture.seen} forwards of step {step}: "
                           "nothing was recorded")
                return
