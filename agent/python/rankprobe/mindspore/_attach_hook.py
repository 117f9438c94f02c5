# SPDX-License-Identifier: Apache-2.0
"""What `rankprobe run` puts into a process of MindSpore: networks and steps.

The first optimizer with parameters of a cell names the network: the outermost
cell that owns them. A step lasts from the end of one call of that optimizer to
the end of the next. The user's script knows nothing of this.
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
from rankprobe._frontend.attach import config_file, say
from rankprobe._frontend.errors import CollectorMissingError
from rankprobe._inputs import switch_hint
from rankprobe._say import is_read_by_program
from rankprobe.mindspore._optimizers import OPTIMIZERS, calls
from rankprobe.mindspore.debugger import PrecisionDebugger


def find_networks(parameters: Any) -> list[nn.Cell]:
    """The outermost cells of this process that own any of `parameters`; no optimizer, no loss around one."""
    wanted = {id(p) for p in parameters}
    cells = [c for c in gc.get_objects() if issubclass(type(c), nn.Cell) and "Optimizer" not in {k.__name__ for k in type(c).__mro__}]
    inner = {id(child) for c in cells for child in c._cells.values()}
    roots = [c for c in cells if id(c) not in inner and any(id(p) in wanted for p in c.get_parameters())]
    return sorted(roots, key=lambda c: -sum(1 for p in c.get_parameters() if id(p) in wanted))


class _Attachment:
    """The one attached optimizer of a process."""

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
        path = config_file(os.environ.get("RANKPROBE_ATTACH", "idle"))
        try:
            PrecisionDebugger(config_path=path)
        except CollectorMissingError as error:
            if os.environ.get("RANKPROBE_ON_COLLECTOR_MISSING") == "fail":
                raise SystemExit(f"rankprobe: not attached: {error}") from error
            raise
        finally:
            os.unlink(path)
        self._optimizer, self._networks = optimizer, networks
        # Before the debugger's own, which was registered before it.
        atexit.register(_guarded, self._end)
        self._tell()
        self._begin()

    def _end(self) -> None:
        """The calls behind the optimizer's last step are a step of their own, where the program has come to its end."""
        debugger = PrecisionDebugger.instance
        if debugger is None or os.getpid() != self._pid or hasattr(sys, "last_type") or debugger._over():
            return
        if not debugger._session.native.step_is_empty:
            PrecisionDebugger.stop()
            PrecisionDebugger.step()

    def _tell(self) -> None:
        """How to switch recording on; one rank says it."""
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
    """A fault of ours is one line on stderr; the training goes on."""
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001
        if not _native.raise_later_if_programs(error):
            say(f"not attached: {error!r}")


def install(module: Any) -> None:
    """module: mindspore. Watches every optimizer of it that is made from now on."""
    attachment = _Attachment()
    for kind in OPTIMIZERS:
        _watch_making(kind, attachment)
    # First of all watchers, so the last at the end of a call: what the monitor has to say of it belongs to its step.
    calls.watch(lambda *_: None, lambda optimizer: _guarded(attachment.stepped, optimizer))


def _watch_making(optimizer_class: Any, attachment: _Attachment) -> None:
    make = optimizer_class.__init__

    @functools.wraps(make)
    def rankprobe_init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _guarded(attachment.made, self)

    optimizer_class.__init__ = rankprobe_init
