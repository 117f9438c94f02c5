# SPDX-License-Identifier: Apache-2.0
"""Attachment of `rankprobe run` to a process of MindSpore: finds networks and steps.

The first optimizer with parameters of a cell determines the network, which is the
outermost cell that owns them. A step lasts from the end of one call of that optimizer
to the end of the next. The user's script is not changed.
"""

from __future__ import annotations

import atexit
import functools
import gc
import multiprocessing
import os
import sys
from typing import Any, Callable, Optional

from mindspore import nn

from rankprobe import _native
from rankprobe._frontend.attach import make_debugger, say
from rankprobe._frontend.errors import CollectorMissingError
from rankprobe._inputs import switch_hint
from rankprobe._say import is_read_by_program
from rankprobe.mindspore._optimizers import OPTIMIZERS, calls
from rankprobe.mindspore.debugger import PrecisionDebugger


def find_networks(parameters: Any) -> list[nn.Cell]:
    """Returns the outermost cells of this process that own any of `parameters`, those with most of them first; optimizers are
    excluded."""
    wanted = {id(p) for p in parameters}
    cells = [c for c in gc.get_objects() if issubclass(type(c), nn.Cell) and "Optimizer" not in {k.__name__ for k in type(c).__mro__}]
    inner = {id(child) for c in cells for child in c._cells.values()}
    roots = [c for c in cells if id(c) not in inner and any(id(p) in wanted for p in c.get_parameters())]
    return sorted(roots, key=lambda c: -sum(1 for p in c.get_parameters() if id(p) in wanted))


class _Attachment:
    """The attached optimizer of a process; only the first suitable one is attached."""

    def __init__(self) -> None:
        self._optimizer: Optional[nn.Optimizer] = None
        self._networks: list[nn.Cell] = []
        self._pid = os.getpid()
        atexit.register(self._say_why_not)

    def made(self, optimizer: nn.Optimizer) -> None:
        if self._optimizer is not None or os.getpid() != self._pid or PrecisionDebugger.instance is not None:
            return
        networks = find_networks(optimizer.parameters)
        if not networks:
            return
        try:
            make_debugger(PrecisionDebugger, os.environ.get("RANKPROBE_ATTACH", "idle"))
        except CollectorMissingError as error:
            if os.environ.get("RANKPROBE_ON_COLLECTOR_MISSING") == "fail":
                raise SystemExit(f"rankprobe: not attached: {error}") from error
            raise
        self._optimizer, self._networks = optimizer, networks
        # Runs before the debugger's handler, because handlers run in reverse order of registration.
        atexit.register(_guarded, self._end)
        self._tell()
        self._begin()

    def _end(self) -> None:
        """Ends a last step with the calls after the optimizer's last step, unless the program ended with an exception."""
        debugger = PrecisionDebugger.instance
        if debugger is None or os.getpid() != self._pid or hasattr(sys, "last_type") or debugger._over():
            return
        if not debugger._session.native.step_is_empty:
            PrecisionDebugger.stop()
            PrecisionDebugger.step()

    def _tell(self) -> None:
        """Prints the state and how to switch recording; only rank 0 does."""
        debugger = PrecisionDebugger.instance
        if os.environ.get("RANK_ID", os.environ.get("RANK", "0")) != "0" or debugger is None or debugger._inert:
            return
        session, switch = debugger._session, debugger._switch
        state = "idle" if not switch.enabled else "recording nothing" if debugger._notices.nobody(switch.asked) else "recording"
        say(f"attached to {', '.join(type(n).__name__ for n in self._networks[:3])}, {state}; "
            f"{switch_hint(switch.enabled, session.address, session.run)}")

    def _say_why_not(self) -> None:
        if (self._optimizer is None and os.getpid() == self._pid and PrecisionDebugger.instance is None
                and multiprocessing.parent_process() is None and not is_read_by_program()):
            say("not attached: no optimizer was made of a cell's parameters; use PrecisionDebugger in the program "
                "(docs/mindspore.md)")

    def _begin(self) -> None:
        PrecisionDebugger.start(self._networks[0] if len(self._networks) == 1 else self._networks)

    def stepped(self, optimizer: nn.Optimizer) -> None:
        if optimizer is self._optimizer and os.getpid() == self._pid and PrecisionDebugger.instance is not None:
            PrecisionDebugger.stop()
            PrecisionDebugger.step()
            self._begin()


def _guarded(function: Callable[..., None], *arguments: Any) -> None:
    """Calls the function. A fault of rankprobe is one line on stderr; the training continues."""
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001
        if not _native.raise_later_if_programs(error):
            say(f"not attached: {error!r}")


def install(module: Any) -> None:
    """Watches every optimizer that is created from now on. module: mindspore."""
    attachment = _Attachment()
    for kind in OPTIMIZERS:
        _watch_making(kind, attachment)
    # The first watcher is the last at the end of a call, so that the monitor's records of the call belong to its step.
    calls.watch(lambda *_: None, lambda optimizer: _guarded(attachment.stepped, optimizer))


def _watch_making(optimizer_class: Any, attachment: _Attachment) -> None:
    make = optimizer_class.__init__

    @functools.wraps(make)
    def rankprobe_init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _guarded(attachment.made, self)

    optimizer_class.__init__ = rankprobe_init
