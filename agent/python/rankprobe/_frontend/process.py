# SPDX-License-Identifier: Apache-2.0
"""Run name and rank of this process, and its warnings."""

from __future__ import annotations

import os
import socket
import sys
import time
import types
import warnings
from typing import Any, Optional

from rankprobe import _native
from rankprobe._frontend.framework import Framework
from rankprobe._say import say


# Limit in characters, because a name or path in a warning may be of any length.
_MAX_WARNING = 4000
_shown: set[str] = set()


def report_fault(capture: Any, where: str, error: BaseException) -> None:
    """Reports a fault of rankprobe to the dump. Never raises, whatever the error or a name in `where` contains. An exception that a
    signal handler of the program raised while this code ran is passed to the program later instead."""
    if _native.raise_later_if_programs(error):
        return
    try:
        said = repr(error)
    except Exception as unshown:  # noqa: BLE001 - repr() of an exception of the program may fail
        _native.raise_later_if_programs(unshown)
        said = type(error).__name__
    try:
        capture.report_fault(f"{where}: {said}".encode("utf-8", "backslashreplace").decode())
    except Exception as fault:  # noqa: BLE001
        if _native.raise_later_if_programs(fault):
            return
        say(f"rankprobe: an error could not be reported: {type(fault).__name__}")


def _action(text: str, module: str) -> str:
    """Returns the action of the program's filters for a RuntimeWarning of a module, as warnings.warn() determines it."""
    for action, message, category, where, line in warnings.filters:
        if (line == 0 and issubclass(RuntimeWarning, category) and (message is None or message.match(text))
                and (where is None or where.match(module))):
            return action
    return "default"


def _is_shown_by_python() -> bool:
    """Returns whether Python itself prints warnings, so that no other code (pytest.warns, logging.captureWarnings) captures them."""
    show = getattr(warnings, "_showwarnmsg_impl", None)
    return (warnings.showwarning is getattr(warnings, "_showwarning_orig", None)
            and warnings.formatwarning is getattr(warnings, "_formatwarning_orig", None) and isinstance(show, types.FunctionType))


def warn(text: str) -> None:
    """Emits a RuntimeWarning, subject to the program's filters. If Python itself would print it, together with a useless line of
    rankprobe's source, prints one line on stderr instead; also if the program turns warnings into errors."""
    text = f"rankprobe: {text}" if len(text) <= _MAX_WARNING else f"rankprobe: {text[:_MAX_WARNING]} .."
    if _is_shown_by_python():
        action = _action(text, sys._getframe(2).f_globals.get("__name__", ""))
        # Shows a text once by default, like Python, which does so for each place that it comes from.
        if action in ("always", "all", "error") or (action != "ignore" and text not in _shown):
            _shown.add(text)
            say(text)
        return
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        say(text)


class InstanceOfProcess:
    """Descriptor for a class attribute that is the single instance of the class, or None while there is none."""

    def __get__(self, _: Any, owner: Any) -> Any:
        return owner._instance


def run_name() -> str:
    """Returns RANKPROBE_RUN, else torchrun's id, else a name that all ranks of a launcher on this host share."""
    run = os.environ.get("RANKPROBE_RUN") or os.environ.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        return run
    launcher = os.getppid() if "LOCAL_RANK" in os.environ else os.getpid()
    local = os.environ.get("LOCAL_WORLD_SIZE")  # Lightning's launcher does not set it.
    if local is not None and local != os.environ.get("WORLD_SIZE", "1") and "LOCAL_RANK" in os.environ:
        warn("the job runs on several machines and the run has no name: set the same RANKPROBE_RUN on all of them, or torchrun's --rdzv-id")
    try:
        with open(f"/proc/{launcher}/stat", encoding="utf-8", errors="replace") as file:
            started = file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = str(int(time.time()))
    return f"{socket.gethostname()}-{launcher}-{started}"


def environment_rank(framework: Framework) -> Optional[int]:
    """Returns the rank in the framework, else that of the launcher; None if it is not known yet."""
    known = framework.rank()
    if known is not None:
        return known[0]
    rank = os.environ.get("RANK", "")
    # Excludes only numbers beyond 64 bits; the native code checks the limit of common/base/limits.h.
    return int(rank) if rank.isdecimal() and len(rank) < 19 else None
