"""What `rankprobe run` puts into a process: models and steps from optimizers.

The first optimizer with parameters of a module names the model: the outermost
module that owns them. A step lasts from the end of one optimizer.step() of it
to the end of the next. The user's script knows nothing of this.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import tempfile
from typing import Any, Callable, Iterable, Optional

import torch

from rankprobe.pytorch._errors import CollectorMissingError
from rankprobe.pytorch.debugger import PrecisionDebugger

_DEFAULT = {"task": "statistics", "dump_path": "./dump_path", "rank": [], "step": [], "level": "mix"}


def _say(text: str) -> None:
    print(f"rankprobe: {text}", file=sys.stderr, flush=True)


def find_models(parameters: Iterable[torch.Tensor]) -> list[torch.nn.Module]:
    """The outermost modules of this process that own any of `parameters`."""
    wanted = {id(p) for p in parameters}
    # By type: isinstance() would wake what only pretends to be something.
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    inner = {id(child) for m in modules for child in m.children()}
    roots = [m for m in modules if id(m) not in inner and any(id(p) in wanted for p in m.parameters())]
    return sorted(roots, key=lambda m: -sum(1 for p in m.parameters() if id(p) in wanted))


def config_file(mode: str) -> str:
    """A config.json for this process: RANKPROBE_CONFIG or the default, idle
    (dump_enable false) unless `mode` is "on"."""
    data: dict[str, Any] = dict(_DEFAULT)
    if os.environ.get("RANKPROBE_CONFIG"):
        with open(os.environ["RANKPROBE_CONFIG"], encoding="utf-8") as file:
            data = json.load(file)
    data["dump_enable"] = mode == "on"
    handle, path = tempfile.mkstemp(prefix="rankprobe-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(data, file)
    return path


class _Attachment:
    """The one attached optimizer of a process."""

    def __init__(self) -> None:
        self._optimizer: Optional[torch.optim.Optimizer] = None
        self._models: list[torch.nn.Module] = []
        self._pid = os.getpid()
        self.depth = 0

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        if self._optimizer is not None or os.getpid() != self._pid or PrecisionDebugger._instance is not None:
            return
        models = find_models(p for group in optimizer.param_groups for p in group["params"])
        if not models:
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
        self._optimizer, self._models = optimizer, models
        self._tell()
        self._begin()

    def _tell(self) -> None:
        """How to switch recording on; one rank says it."""
        if os.environ.get("RANK", "0") != "0" or not PrecisionDebugger._instance:
            return
        session, switch = PrecisionDebugger._instance._session, PrecisionDebugger._instance._switch
        state = "recording" if switch.enabled else "idle"
        _say(f"attached to {', '.join(type(m).__name__ for m in self._models[:3])}, {state}; switch with: "
             f"rankprobe enable|disable --collector {session.address} --run {session.run}")

    def _begin(self) -> None:
        PrecisionDebugger.start(model=self._models[0] if len(self._models) == 1 else self._models)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer is not self._optimizer or os.getpid() != self._pid or PrecisionDebugger._instance is None:
            return
        PrecisionDebugger.report_replica(self._models)
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
        self._begin()


def _guarded(function: Callable[[Any], None], argument: Any) -> None:
    """A fault of ours is one line on stderr; the training goes on."""
    try:
        function(argument)
    except Exception as error:  # noqa: BLE001
        _say(f"not attached: {error!r}")


def install(optimizer_class: Any) -> None:
    """Watches every optimizer that is made from now on."""
    attachment = _Attachment()
    make = optimizer_class.__init__

    @functools.wraps(make)
    def rankprobe_init(self: Any, *args: Any, **kwargs: Any) -> None:
        _wrap_step(type(self), attachment)
        make(self, *args, **kwargs)
        _guarded(attachment.made, self)

    optimizer_class.__init__ = rankprobe_init


def _wrap_step(cls: type, attachment: _Attachment) -> None:
    step = cls.step  # type: ignore[attr-defined]
    if getattr(step, "rankprobe_watched", False):
        return

    @functools.wraps(step)
    def rankprobe_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        attachment.depth += 1  # a class may call its base's step
        try:
            result = step(self, *args, **kwargs)
        finally:
            attachment.depth -= 1
        if attachment.depth == 0:
            _guarded(attachment.stepped, self)
        return result

    rankprobe_step.rankprobe_watched = True  # type: ignore[attr-defined]
    cls.step = rankprobe_step  # type: ignore[attr-defined]
