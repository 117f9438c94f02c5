# SPDX-License-Identifier: Apache-2.0
"""PrecisionDebugger for MindSpore."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

from mindspore._c_expression import TensorPy

from rankprobe._frontend.debugger import PACKAGE, Debugger
from rankprobe._frontend.errors import InvalidParameterError
from rankprobe._frontend.switch import Switch
from rankprobe.mindspore._bindings import make_capture
from rankprobe.mindspore._instruments import Instruments, Model
from rankprobe.mindspore._monitor import Monitor
from rankprobe.mindspore._process import FRAMEWORK, check_mode


def _check_plan(plan: dict[str, Any]) -> None:
    """Raises InvalidParameterError for settings that are documented only for PyTorch."""
    monitor = plan.get("monitor", {})
    if monitor.get("communication") and not plan["records_modules"] and not any(
            monitor[word] for word in ("weight_gradients", "parameters", "optimizer", "updates", "training")):
        raise InvalidParameterError("monitor.values: communication alone records no call of MindSpore, whose collectives have no kernel "
                                    "on a CPU to try it with; task statistics at level L1 has them as Distributed")
    if plan["summary_mode"] == "xor":
        raise InvalidParameterError("summary_mode: xor is for PyTorch; md5 has a checksum of each tensor in MindSpore too")


class PrecisionDebugger(Debugger):
    """Records the tensors of a MindSpore training in PyNative mode.

    config_path: config.json; None (default): statistics of level L1.
    task, dump_path, level, step: override the file, also when it changes later.
    auto_export, on_collector_missing: as with rankprobe.pytorch.

    A process has one instance; a later construction returns the first one
    unchanged. Methods can be called on the class. Records go to the collector of
    RANKPROBE_COLLECTOR (host:port), else to a private collector, which writes each
    step's directory to dump_path at the end of the step.

    Raises InvalidParameterError (a ValueError), which names every fault of the
    config, and InterfaceUsageError in graph mode.
    """

    _framework = FRAMEWORK
    _tensor_type = TensorPy

    @classmethod
    def start(cls, model: Optional[Model] = None, token_range: Optional[Sequence[int]] = None,
              rank_id: Optional[int] = None) -> None:
        """Starts recording the current step.

        model: a Cell, or a list or tuple of them; required for L0, mix and
        token_range. The cells below them are recorded, not they themselves. At L1
        the primitives of its cells are recorded.
        token_range: [a, b], both inclusive; records only these forwards of the
        (first) model since start(). rank_id: the rank of the records, >= 0; default
        that of MindSpore or the launcher.

        Raises InterfaceUsageError before construction and in graph mode,
        InvalidParameterError for a bad argument.
        """
        cls._do("start", model, token_range, rank_id)

    def _check_process(self, starts: bool) -> None:
        check_mode()

    def _make_switch(self, config_path: Optional[str], arguments: dict[str, Any]) -> Switch:
        # risk_level classifies functions of PyTorch, so it is documented to have no effect here.
        switch = super()._make_switch(config_path, {**arguments, "risk_level": "ALL"})
        _check_plan(switch.plan)
        return switch

    def _make_parts(self) -> None:
        self._capture = make_capture(self._session.native, PACKAGE)
        self._instruments = Instruments(self._capture, self._on_root_begin, self._on_root_end)
        self._monitor = Monitor(self._capture)

    def _reader_of(self, loss: Any) -> Optional[Callable[[], float]]:
        if isinstance(loss, (int, float)) or getattr(loss, "size", 0) == 1:
            return lambda: float(loss.asnumpy() if hasattr(loss, "asnumpy") else loss)
        return None

    def _gets_gradient(self, tensor: Any) -> bool:
        return bool(getattr(tensor, "_requires_grad", False))
