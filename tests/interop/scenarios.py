# SPDX-License-Identifier: Apache-2.0
"""Training scripts that run the same under msprobe and under rankprobe.

A scenario is a function (probe, config_path): `probe` is msprobe.pytorch or
rankprobe.pytorch. Its config.json comes from @scenario. Everything is seeded
and single-threaded, so both tools see the same numbers. Those of one process
are here, those of several in scenarios_distributed.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

import scenarios_distributed  # noqa: F401  (registers its scenarios)
import scenarios_edits  # noqa: F401  (the same)
import scenarios_serving  # noqa: F401
from scenario_models import Cnn, Transformer
from scenario_registry import SCENARIOS, Scenario, scenario  # noqa: F401


def cnn_steps(probe: Any, config: str, steps: int = 2, **start: Any) -> None:
    torch.manual_seed(0)
    model, debugger = Cnn(), probe.PrecisionDebugger(config_path=config)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        x, y = torch.randn(2, 3, 8, 8), torch.tensor([1, 2])
        debugger.start(model=model, **start)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()


def transformer_steps(probe: Any, config: str, steps: int = 1) -> None:
    torch.manual_seed(0)
    model, debugger = Transformer(), probe.PrecisionDebugger(config_path=config)
    for _ in range(steps):
        tokens = torch.randint(0, 17, (2, 6))
        debugger.start(model=model)
        out = model(tokens)
        F.cross_entropy(out.view(-1, 17), tokens.view(-1)).backward()
        debugger.stop()
        debugger.step()


# The documents' examples: every level of the CNN, then of the transformer.
for _level in ("L0", "L1", "mix"):
    scenario(level=_level, name=f"cnn_{_level}")(cnn_steps)
    scenario(level=_level, name=f"transformer_{_level}")(transformer_steps)
scenario(level="mix", task="tensor", name="cnn_tensor")(cnn_steps)
scenario(level="L1", task="tensor", name="transformer_tensor", summary_mode="md5")(transformer_steps)
scenario(summary_mode="md5", name="cnn_md5")(cnn_steps)
scenario(summary_mode="xor", name="cnn_xor")(cnn_steps)
scenario(task="structure", name="cnn_structure")(cnn_steps)
scenario(top={"extra_info": False}, name="cnn_extra_info_false")(cnn_steps)
scenario(top={"risk_level": "FOCUS"}, name="transformer_risk_focus")(transformer_steps)
scenario(top={"risk_level": "CORE"}, name="transformer_risk_core")(transformer_steps)
scenario(data_mode=["forward"], name="cnn_data_forward")(cnn_steps)
scenario(data_mode=["backward"], name="cnn_data_backward")(cnn_steps)
scenario(data_mode=["input"], name="cnn_data_input")(cnn_steps)
scenario(data_mode=["output"], name="cnn_data_output")(cnn_steps)
scenario(data_mode=["forward", "input"], name="cnn_data_forward_input")(cnn_steps)
scenario(level="L1", scope=["Functional.batch_norm.0.forward", "Functional.linear.0.forward"],
         name="cnn_scope_api")(cnn_steps)
scenario(level="L0", scope=["Module.bn1.BatchNorm2d.forward.0", "Module.pool.MaxPool2d.forward.0"],
         name="cnn_scope_module")(cnn_steps)
scenario(level="L1", scope=["Functional.cross_entropy.0.backward", "Functional.max_pool2d.0.backward"],
         name="cnn_scope_backward")(cnn_steps)
scenario(level="L1", list=["relu"], name="cnn_list_substring")(cnn_steps)
scenario(level="mix", list=["fc"], name="cnn_list_module")(cnn_steps)
scenario(level="L0", list=["conv1"], name="cnn_list_L0")(cnn_steps)
scenario(level="L1", list=["Functional.linear.0.forward"], name="cnn_list_exact")(cnn_steps)
scenario(tensor_list=["Functional.relu"], name="cnn_tensor_list")(cnn_steps)
scenario(top={"step": [1, "2-3"]}, name="cnn_step_filter")(lambda p, c: cnn_steps(p, c, steps=5))


class Kwargs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0, flag: bool = False, name: str = "", extra: Any = None) -> Any:
        return {"y": self.lin(x) * scale, "aux": None, "n": 3, "nested": {"l": [x, (x + 1,)]}}


class Weird(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kw = Kwargs()
        self.two = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Identity()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        o = self.kw(x, scale=2.5, flag=True, name="hello 中文 \"q\"", extra=[1, None, {"z": torch.ones(2)}])
        return self.two["a"](o["y"]) + self.two["b"](o["nested"]["l"][0])


@scenario()
def values(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    model, debugger = Weird(), probe.PrecisionDebugger(config_path=config)
    debugger.start(model=model)
    x = torch.randn(3, 4, requires_grad=True)
    y = model(x)
    y.sum().backward()
    torch.cat([x, y], dim=0)
    torch.stack((x, y))
    x[1:3:2, ..., None]
    x[0]
    torch.zeros(2, 3, dtype=torch.float64)
    torch.full((2,), 7, device="cpu")
    x.to(torch.float16)
    torch.sum(x, dim=[0, 1], dtype=torch.float64)
    F.interpolate(torch.randn(1, 1, 4, 4), scale_factor=2.0, mode="nearest")
    torch.where(x > 0, x, torch.tensor(0.0))
    torch.split(x, [1, 2])
    torch.einsum("ij,kj->ik", x, y)
    x.reshape(torch.Size([4, 3]))
    torch.add(input=x, other=1, alpha=2)
    torch.max(x, 1)
    torch.clamp(x, min=None, max=1.0)
    debugger.stop()
    debugger.step()


@scenario(level="L1", summary_mode="md5")
def dtypes(probe: Any, config: str) -> None:
    debugger = probe.PrecisionDebugger(config_path=config)
    debugger.start()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16,
                  torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128):
        t = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
        torch.cat([t, t.t().contiguous().t()])
        torch.reshape(t, (6,))[0] + t
        torch.stack([t[:, :0]])
    nan, inf = float("nan"), float("inf")
    for numbers in ([1.0, nan], [inf, 1.0], [-inf, inf], [nan, inf], [0.0], []):
        torch.cat([torch.tensor(numbers)])
    torch.abs(torch.tensor(-3.5))
    torch.transpose(torch.arange(6.0).view(2, 3), 0, 1)
    torch.neg(torch.ones(2, 3).expand(4, 2, 3))
    debugger.stop()
    debugger.step()


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.block(self.b(self.a(x))))


def _one_step(probe: Any, config: str, model: nn.Module, x: torch.Tensor, **start: Any) -> None:
    debugger = probe.PrecisionDebugger(config_path=config)
    debugger.start(model=model, **start)
    model(x).sum().backward()
    debugger.stop()
    debugger.step()


@scenario()
def shared_modules(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    _one_step(probe, config, Shared(), torch.randn(2, 4))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.a(x))
        y = self.b(x)
        y += 1
        y[0] = 0
        return y.mul_(2)


@scenario()
def in_place(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    _one_step(probe, config, InPlace(), torch.randn(2, 4))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        return self.b(checkpoint(lambda v: torch.relu(self.a(v)), x, use_reentrant=self.reentrant))


@scenario()
def checkpoint_reentrant(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    _one_step(probe, config, Checkpointed(True), torch.randn(2, 4, requires_grad=True))


@scenario()
def checkpoint_non_reentrant(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    _one_step(probe, config, Checkpointed(False), torch.randn(2, 4, requires_grad=True))


@scenario()
def model_list(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    models = [Cnn(), Shared()]
    debugger = probe.PrecisionDebugger(config_path=config)
    debugger.start(model=models)
    models[0](torch.randn(2, 3, 8, 8)).sum().backward()
    models[1](torch.randn(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()


@scenario()
def gradient_accumulation(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    model, debugger = Cnn(), probe.PrecisionDebugger(config_path=config)
    for _ in range(2):
        debugger.start(model=model)
        for _ in range(2):
            model(torch.randn(2, 3, 8, 8)).sum().backward()
        debugger.stop()
        debugger.step()
        model.zero_grad()


@scenario(level="L1")
def several_starts(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    model, debugger = Cnn(), probe.PrecisionDebugger(config_path=config)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(2):
        debugger.start()
        debugger.start()
        y = model(x)
        debugger.stop()
        torch.relu(y)
        debugger.start()
        torch.relu(y).sum().backward()
        debugger.stop()
        debugger.step()


@scenario()
def optimizer_and_clip(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    model, debugger = Shared(), probe.PrecisionDebugger(config_path=config)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
    for _ in range(2):
        debugger.start(model=model)
        model(torch.randn(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


@scenario()
def autocast(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    model, debugger = Cnn(), probe.PrecisionDebugger(config_path=config)
    debugger.start(model=model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([0, 3]))
    loss.backward()
    debugger.stop()
    debugger.step()


@scenario()
def token_range(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    model, debugger = Shared(), probe.PrecisionDebugger(config_path=config)
    debugger.start(model=model, token_range=[1, 2])
    with torch.no_grad():
        for _ in range(5):
            model(torch.randn(2, 4))
    debugger.stop()
    debugger.step()


@scenario(level="L1")
def rank_and_init_step(probe: Any, config: str) -> None:
    debugger = probe.PrecisionDebugger(config_path=config)
    debugger.set_init_step(5)
    for _ in range(2):
        debugger.start(rank_id=3)
        torch.relu(torch.arange(-2.0, 2.0))
        debugger.stop()
        debugger.step()


def _saves(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    debugger = probe.PrecisionDebugger(config_path=config)
    for _ in range(2):
        a = torch.randn(3, requires_grad=True)
        b = a * 2
        debugger.save(a, "bare")
        debugger.save({"a": a, "b": [1, 2.5, b], "s": "text"}, "nested")
        debugger.save((a, b), "pair", save_backward=False)
        debugger.save(7, "number")
        debugger.save(a, "bare")
        (b.sum() + a.sum()).backward()
        debugger.step()


scenario(level="debug", name="save_statistics")(_saves)
scenario(level="debug", task="tensor", name="save_tensor")(_saves)


@scenario(level="L0")
def module_dump(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    model, debugger = Shared(), probe.PrecisionDebugger(config_path=config, level="L1")
    debugger.start()
    x = torch.randn(2, 4)
    h = model.a(x)
    probe.module_dump(model.block, "blk")
    h = model.block(h)
    probe.module_dump_end()
    torch.relu(h).sum().backward()
    debugger.stop()
    debugger.step()


class Ops:
    """A namespace with an operator of the user's own."""

    @staticmethod
    def fused(x: torch.Tensor, *, gain: float = 2.0) -> torch.Tensor:
        return torch.relu(x) * gain


@scenario(level="L1")
def custom_api(probe: Any, config: str) -> None:
    torch.manual_seed(0)
    debugger = probe.PrecisionDebugger(config_path=config)
    debugger.register_custom_api(Ops, "fused", "myops")
    x = torch.randn(3, requires_grad=True)
    debugger.start()
    Ops.fused(x, gain=3.0).sum().backward()
    debugger.restore_custom_api(Ops, "fused")
    Ops.fused(x)
    debugger.stop()
    debugger.step()
