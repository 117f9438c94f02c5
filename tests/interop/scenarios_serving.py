# SPDX-License-Identifier: Apache-2.0
"""A server's steps: the rows of one request (`request_id`, `start(scheduled_tokens=)`), as vllm-ascend calls it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn

from scenario_registry import scenario

# What a step computes for which request; None: not said.
_STEPS: list[Any] = [{"a": 5, "wanted": 3, "b": 4}, {"a": 1, "b": 1}, {"wanted": 2}, None, {"a": 1, "wanted": 1},
                     {"a": 0, "wanted": 2}, {"a": 2, "wanted": 2.0}, {}, {"b": 3, "wanted": 1}]


class _Layer(nn.Module):
    """Rows are tokens; the cache and the table have other sizes, one of them by chance the same."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.gate = nn.Linear(8, 8)

    def forward(self, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.gate(self.embed(tokens)))
        return torch.cat([hidden * weights, torch.nn.functional.softmax(hidden.t(), dim=-1).t()], dim=1)


def _serve(probe: Any, config: str, steps: list[Any], backward: bool = True) -> None:
    torch.manual_seed(0)
    model, debugger = _Layer(), probe.PrecisionDebugger(config_path=config)
    for scheduled in steps:
        rows = int(sum(scheduled.values())) if scheduled else 6
        debugger.start(model=model, scheduled_tokens=scheduled)
        out = model(torch.arange(rows) % 12, torch.full((rows, 1), 0.5))
        if backward:
            out.sum().backward()
        debugger.stop()
        debugger.step()


@scenario(request_id="wanted")
def request_rows(probe: Any, config: str) -> None:
    """Each of the steps; those without the request are not recorded."""
    _serve(probe, config, _STEPS)


@scenario(task="tensor", request_id="wanted")
def request_tensors(probe: Any, config: str) -> None:
    _serve(probe, config, _STEPS[:3])


@scenario(level="L1", summary_mode="md5", request_id="wanted")
def request_md5(probe: Any, config: str) -> None:
    _serve(probe, config, _STEPS[:4])


@scenario(level="L1", request_id="wanted", slice=[{"dim": 0, "begin": 0, "end": 2}, {"dim": 1, "size": 8, "begin": 1, "end": 3}])
def request_and_slices(probe: Any, config: str) -> None:
    """Of two slices of one dimension the last counts, and the request is the last."""
    _serve(probe, config, _STEPS[:5])


@scenario(level="L1")
def requests_without_request_id(probe: Any, config: str) -> None:
    """All rows, whatever is said of them."""
    _serve(probe, config, _STEPS)


@scenario(level="L1", request_id="wanted")
def request_starts_twice(probe: Any, config: str) -> None:
    """Two batches in one step: each with rows of its own."""
    torch.manual_seed(0)
    debugger = probe.PrecisionDebugger(config_path=config)
    for scheduled in ({"a": 2, "wanted": 2}, {"wanted": 1, "a": 3}, {"a": 4}):
        debugger.start(scheduled_tokens=scheduled)
        torch.relu(torch.randn(4, 3))
        debugger.stop()
    debugger.step()


def _twice_into(out: torch.Tensor, x: torch.Tensor, by: float = 2.0) -> None:
    out.copy_(x * by)


def _operators() -> None:
    """Operators of an extension, as vLLM's are: one writes into what it is given."""
    library = torch.library.Library("rpinterop", "DEF")
    _operators.library = library  # type: ignore[attr-defined]  # as long as the process
    library.define("twice(Tensor x) -> Tensor")
    library.define("twice_into(Tensor(a!) out, Tensor x, float by=2.0) -> ()")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice_into", _twice_into, "CPU")


def _call_operators(probe: Any, config: str, before: bool) -> None:
    torch.manual_seed(0)
    if before:
        _operators()
    debugger = probe.PrecisionDebugger(config_path=config)
    if not before:
        _operators()
    for _ in range(2):
        debugger.start(model=nn.Linear(2, 2))
        x, out = torch.randn(3, 2), torch.zeros(3, 2)
        y = torch.ops.rpinterop.twice(x)
        torch.ops.rpinterop.twice_into(out, x=y, by=0.5)
        torch.relu(out + y)
        debugger.stop()
        debugger.step()


@scenario(level="L1", top={"custom_op_namespaces": ["rpinterop"]})
def namespace(probe: Any, config: str) -> None:
    _call_operators(probe, config, before=True)


@scenario(summary_mode="md5", top={"custom_op_namespaces": ["rpinterop"]})
def namespace_md5(probe: Any, config: str) -> None:
    _call_operators(probe, config, before=True)


@scenario(level="L1", top={"custom_op_namespaces": ["rpinterop", "nobodys"]})
def namespace_loaded_late(probe: Any, config: str) -> None:
    """Registered after the debugger was made."""
    _call_operators(probe, config, before=False)


@scenario(level="L1")
def namespace_not_asked_for(probe: Any, config: str) -> None:
    _call_operators(probe, config, before=True)


_WRAPPED = """\
# functions of the program, a method, and one that is recorded anyway
rpwrapped:
  - add
  - add_and_mul
  - nothing
rpwrapped.Kind: half
operator:
  - neg
torch.nn.functional:
  - relu
"""


def _wrap(probe: Any, config: str, late: bool) -> None:
    """custom_wrap_ops.yaml: that of msprobe lies in its package, and is another one here for its own reader."""
    import operator
    import os
    import pathlib
    import sys
    import types

    path = pathlib.Path(config).parent / "custom_wrap_ops.yaml"
    path.write_text(_WRAPPED)
    os.environ["RANKPROBE_CUSTOM_WRAP_OPS"] = str(path)
    if probe.__name__.startswith("msprobe"):
        from msprobe.pytorch.dump.debugger import precision_debugger

        read = precision_debugger.load_yaml
        precision_debugger.load_yaml = lambda file: read(str(path) if file.endswith("custom_wrap_ops.yaml") else file)
    module = types.ModuleType("rpwrapped")
    exec("def add(x, y):\n    return x + y\ndef add_and_mul(x, y):\n    return add(x, y) * y\n"
         "class Kind:\n    half = staticmethod(lambda x: x / 2)\n", module.__dict__)
    if not late:
        sys.modules["rpwrapped"] = module
    torch.manual_seed(0)
    debugger = probe.PrecisionDebugger(config_path=config)
    for _ in range(2):
        debugger.start(model=nn.Linear(2, 2))
        sys.modules["rpwrapped"] = module
        x = torch.randn(3, 2, requires_grad=True)
        y = module.add_and_mul(x, operator.neg(x))
        torch.nn.functional.relu(module.Kind.half(module.add(x, y))).sum().backward()
        debugger.stop()
        debugger.step()


@scenario(level="L1")
def wrap_ops(probe: Any, config: str) -> None:
    _wrap(probe, config, late=False)


@scenario(level="L1", summary_mode="md5")
def wrap_ops_of_a_late_module(probe: Any, config: str) -> None:
    _wrap(probe, config, late=True)
