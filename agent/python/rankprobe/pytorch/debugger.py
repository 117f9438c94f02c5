# SPDX-License-Identifier: Apache-2.0
"""PrecisionDebugger for PyTorch."""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import torch

from rankprobe._frontend.debugger import PACKAGE, Debugger
from rankprobe._frontend.msprobe_names import Service
from rankprobe._frontend.switch import Switch
from rankprobe._say import say
from rankprobe.pytorch import _walk
from rankprobe.pytorch._bindings import make_capture
from rankprobe.pytorch._compiled import compiles
from rankprobe.pytorch._errors import InvalidParameterError
from rankprobe.pytorch._instruments import Instruments, Model
from rankprobe.pytorch._monitor import Monitor
from rankprobe.pytorch._namespaces import Namespaces, namespaces_of
from rankprobe.pytorch._process import FRAMEWORK, check_torch_compile
from rankprobe.pytorch._run_card import RunCard
from rankprobe.pytorch._wrap_ops import WrapOps, wanted


class PrecisionDebugger(Debugger):
    """Records the tensors of a training process.

    config_path: config.json; None (default): statistics of level L1.
    task, dump_path, level, step: override the file, also when it changes later.
    auto_export: with a named collector, fetches each step to dump_path when it has
    ended; otherwise `rankprobe export` does it on demand.
    on_collector_missing: if no collector answers, "fail" raises
    CollectorMissingError here, "spool" keeps the records in RANKPROBE_SPOOL, and
    "ignore" records nothing; None: RANKPROBE_ON_COLLECTOR_MISSING, else "ignore".

    A process has one instance: a later construction returns the first one
    unchanged. Under `rankprobe run` that is the instance of the command, and
    start(), stop() and step() of the program have no effect. Methods can be called
    on the class. Records go to the collector of RANKPROBE_COLLECTOR (host:port),
    else to a private collector, which writes each step to dump_path at its end.

    Raises InvalidParameterError (a ValueError), which names every fault of the config.
    """

    _framework = FRAMEWORK
    _tensor_type = torch.Tensor
    _told_of_attached = False

    @property
    def service(self) -> Service:
        """Object for drivers that access internals of msprobe's debugger."""
        return Service(self)

    @classmethod
    def start(cls, model: Optional[Model] = None, token_range: Optional[Sequence[int]] = None,
              rank_id: Optional[int] = None, scheduled_tokens: Optional[Mapping[str, int]] = None,
              first_positions: Optional[Mapping[str, int]] = None) -> None:
        """Starts recording the current step.

        model: a Module, or a list or tuple of them; required for L0, mix and
        token_range. The modules below them are recorded, not they themselves.
        token_range: [a, b], both inclusive; records only these forwards of the
        (first) model since start(). rank_id: the rank of the records, >= 0;
        default that of torch.distributed or the launcher.
        scheduled_tokens: for a server's step, the number of tokens of each request
        in it, in the order of their rows in dim 0; it is recorded. With a
        request_id in the plan, only steps with that request are recorded, and only
        its rows of tensors with one row for each token. An invalid value causes a
        warning and is ignored. first_positions: the position of the first of these
        tokens in its request; it is recorded.

        Raises InterfaceUsageError before construction, InvalidParameterError
        for a bad argument.
        """
        cls._do("start", model, token_range, rank_id, scheduled_tokens, first_positions)

    @classmethod
    def report_replica(cls, replica: Union[Model, Sequence[torch.Tensor]]) -> None:
        """Reports tensors that should be equal on every rank in this step, for trigger rules `replica`.

        replica: a module or several (their parameters), or tensors, in the same
        order on every rank. They are read only while such a rule is set.
        Raises InterfaceUsageError before construction.
        """
        self = cls._get("report_replica")
        if self._inert:
            return
        capture = self._capture
        if capture.wants_replica:
            parts = [replica] if isinstance(replica, (torch.nn.Module, torch.Tensor)) else list(replica)
            capture.report_replica([t for part in parts for t in (
                _walk.parameters(part) if isinstance(part, torch.nn.Module) else [part])])

    # --- of the framework

    def _make_switch(self, config_path: Optional[str], arguments: dict[str, Any]) -> Switch:
        try:
            switch = super()._make_switch(config_path, arguments)
            self._functions = wanted()
        except InvalidParameterError:
            raise
        except ValueError as error:
            raise InvalidParameterError(str(error)) from None
        return switch

    def _make_parts(self) -> None:
        self._capture = make_capture(self._session.native, PACKAGE)
        self._instruments = Instruments(self._capture, self._on_root_begin, self._on_root_end)
        self._namespaces = Namespaces(self._instruments.apis)
        self._wrap_ops = WrapOps(self._instruments.apis, self._functions)
        self._run_card = RunCard(self._capture, self._instruments.on_first_module)
        self._monitor = Monitor(self._capture)

    def _apply_at_once(self) -> None:
        if not compiles():
            super()._apply_at_once()

    def _constructed_again(self) -> None:
        """Reports once that the program's own debugger has no effect under `rankprobe run`."""
        if self._attached and not self._told_of_attached and os.environ.get("RANK", "0") == "0":
            self._told_of_attached = True
            say("rankprobe: `rankprobe run` records this process, and the program's own PrecisionDebugger has no effect; for that "
                "one start the program with `rankprobe run --as-msprobe`, or without `rankprobe run`")

    def _check_process(self, starts: bool) -> None:
        if starts:
            check_torch_compile()

    def _begin_of_step(self, plan: dict[str, Any], model: Any) -> None:
        if plan["records_apis"]:
            self._namespaces.use(namespaces_of(plan))
            self._namespaces.refresh()
            self._wrap_ops.refresh()
        self._run_card.begin_step(self._steps.current, model)

    def _end_of_recording(self) -> None:
        self._run_card.end_recording()

    def _end_of_step(self) -> None:
        self._run_card.end_step()

    def _remove_parts(self) -> None:
        self._namespaces.remove()
        self._wrap_ops.remove()

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Call when a step ends with an optimizer's step(). It is called within step(), before the hooks and wrappers that the
        monitor installed run."""
        if not self._over():
            self._monitor.after_optimizer(optimizer)

    def _reader_of(self, loss: Any) -> Optional[Callable[[], float]]:
        if isinstance(loss, torch.Tensor):
            return (lambda: float(loss.detach())) if loss.numel() == 1 else None
        return (lambda: float(loss)) if isinstance(loss, (int, float)) else None

    def _gets_gradient(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)
