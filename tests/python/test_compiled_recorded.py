# SPDX-License-Identifier: Apache-2.0
"""torch.compile at level L0: the compiled run itself is recorded, by graphs of its own; the others stay as they were."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import pathlib
from typing import Any, Callable, Iterator, Optional

import pytest
import torch
import torch.nn as nn

if not hasattr(getattr(torch._C, "_dynamo", None), "eval_frame") or not hasattr(
        torch._C._dynamo.eval_frame, "set_eval_frame_isolate_recompiles_id"):
    pytest.skip("this PyTorch keeps no regions of recompilation apart", allow_module_level=True)

import rankprobe.analysis as analysis
import torch._dynamo
from rankprobe.pytorch import _run_card
from test_compiled import Job, _fresh, _switch  # noqa: F401
from torch._dynamo.utils import counters

_SAID = "recorded steps run graphs of their own"
_FELL_BACK = "from now on recorded steps run as plain Python"


def _lines(capfd: Any, text: str) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if text in line]


def _apart(dump: Any, name: str) -> None:
    """The trees of the next debugger are apart from those of the last."""
    dump.path = dump.path.parent / name


def _differences(one: Any, other: Any, tolerance: float, place: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        return [found for key in {**one, **other} for found in _differences(
            one.get(key, "absent"), other.get(key, "absent"), tolerance, f"{place}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [found for i, (a, b) in enumerate(zip(one, other)) for found in _differences(a, b, tolerance, f"{place}/{i}")]
    if isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance):
        return []
    return [] if one == other else [f"{place}: {one} {other}"]


def _construct(dump: Any, step: int) -> dict:
    return json.loads((dump.rank_directory(step) / "construct.json").read_text())


def _names(data: dict) -> list[str]:
    """In order. Compiled code hands gradients of parameters over when its backward has ended."""
    return [name for name in data if "parameters_grad" not in name]


@pytest.mark.parametrize("how,backend", [
    ("model", "eager"), ("model", "aot_eager"), ("in place", "aot_eager"), ("blocks", "aot_eager"),
    ("modules of blocks", "eager"), ("modules of blocks", "aot_eager"), ("model", "inductor"), ("blocks", "inductor")])
def test_the_tree_of_a_compiled_step_is_that_of_an_eager_one(dump, capfd, how: str, backend: str) -> None:
    eager = dump.debugger(level="L0", step=[1, 2])
    job = Job(how, backend)
    for _ in range(4):
        job.step(eager)
    trees = [(dump.data(step), _construct(dump, step)) for step in (1, 2)]
    eager.close()
    assert not _lines(capfd, "torch.compile")
    _apart(dump, "compiled")
    debugger = dump.debugger(level="L0", step=[1, 2])
    job = Job(how, backend).compile()
    for _ in range(4):
        job.step(debugger)
    assert len(_lines(capfd, _SAID)) == 1
    # What reorders sums reorders them in all that follows, step by step.
    tolerance = 1e-4 if backend == "inductor" else 0.0
    for step, (expected, construct) in enumerate(trees, 1):
        data = dump.data(step)
        assert _names(data) == _names(expected) and set(data) == set(expected) and len(data) == 75
        assert not _differences(data, expected, tolerance)
        assert _construct(dump, step) == construct
    # One graph of the program's, one that records, though each of the blocks has another name.
    assert job.counter.frame_count == 2 and not counters["graph_break"]
    assert debugger._capture.faults == 0


@pytest.mark.parametrize("how", ["model", "blocks"])
def test_switched_on_and_off_ten_times_two_graphs_are_compiled(dump, how: str) -> None:
    job = Job(how, "aot_eager").compile()
    debugger = dump.debugger(level="L0", dump_enable=False)
    job.step(debugger)
    assert job.counter.frame_count == 1
    # The program's own setting: graphs that record are no recompilation of its graphs.
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(10):
            for on in (True, False):
                _switch(dump, on)
                job.step(debugger)
                assert job.counter.frame_count == 2
    debugger.wait_exported()
    assert len(list(dump.path.glob("step*"))) == 10
    assert debugger._capture.faults == 0


def test_a_frame_of_the_stack_is_where_the_program_calls_the_module(dump) -> None:
    debugger = dump.debugger(level="L0")
    Job("model", "aot_eager").compile().step(debugger)
    stacks = json.loads((dump.rank_directory() / "stack.json").read_text())
    (frames,) = (frames for names, frames in stacks.values() if "Module.blocks.1.mlp.down.Linear.forward.0" in names)
    assert "in forward" in frames[0] and "self.down(F.silu" in frames[0], frames
    assert any(pathlib.Path(__file__).name in frame for frame in frames)
    own = str(pathlib.Path(_run_card.__file__).parents[1])
    assert not any(own in frame.split(",")[0] or "_dynamo" in frame for frame in frames)


class Planted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2


class Layer(nn.Module):
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.act: nn.Module = Planted() if planted else nn.GELU()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(planted=i == 1) for i in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _one_step(dump: Any, wrap: Optional[Callable], name: str) -> pathlib.Path:
    _apart(dump, name)
    torch.manual_seed(3)
    model, x = Layers(), torch.randn(4, 8)
    call = model if wrap is None else wrap(model)
    debugger = dump.debugger(level="L0")
    debugger.start(model=call)
    call(x).pow(2).mean().backward()
    debugger.stop()
    debugger.step()
    found = dump.rank_directory()
    debugger.close()
    return found


@contextlib.contextmanager
def _wrong_tanh(factor: float) -> Iterator[None]:
    """Inductor's lowering of tanh, which one module calls, is off by a factor."""
    from torch._inductor import config, lowering

    torch._dynamo.reset()
    tanh = torch.ops.aten.tanh.default
    right = lowering.lowerings[tanh]
    lowering.lowerings[tanh] = lambda x: lowering.lowerings[torch.ops.aten.mul.Tensor](right(x), factor)
    try:
        with config.patch(fx_graph_cache=False):
            yield
    finally:
        lowering.lowerings[tanh] = right


def test_what_inductor_alone_does_wrong_is_named_at_its_module(dump) -> None:
    def compiled(model: nn.Module) -> Callable:
        return torch.compile(model, fullgraph=True)

    eager = _one_step(dump, None, "eager")
    healthy = analysis.first_divergence(_one_step(dump, compiled, "healthy"), eager, tolerance=1e-4)
    assert healthy["calls_compared"] > 20 and not healthy["origins"]
    planted = "Module.layers.1.act.Planted.forward.0"
    with _wrong_tanh(1.001):
        slightly = analysis.first_divergence(_one_step(dump, compiled, "slightly"), eager, tolerance=1e-4)
    assert slightly["origins"][0]["call"] == planted
    with _wrong_tanh(1.1):
        table = analysis.compare(_one_step(dump, compiled, "plainly"), eager)
    bad = [name for name, result in zip(table["NPU Name"], table["Result"]) if result != "pass" and ".forward." in name]
    assert bad and bad[0].startswith(f"{planted}.output"), bad


def test_a_compiled_model_is_no_other_experiment() -> None:
    """Its run card, which first-divergence looks at first."""
    model = Layers()
    facts = list(_run_card.model_facts(model))
    assert list(_run_card.model_facts(torch.compile(model))) == facts
    model.layers[1] = torch.compile(model.layers[1])
    assert list(_run_card.model_facts(model)) == facts


@pytest.mark.parametrize("how,backend", [("model", "aot_eager"), ("blocks", "aot_eager"), ("model", "eager")])
def test_recorded_steps_leave_the_compiled_training_bit_for_bit(dump, how: str, backend: str) -> None:
    """Of a compiler that does not fuse. Switched on and off in mid-run."""
    def run(debugger: Any) -> list[torch.Tensor]:
        torch._dynamo.reset()
        job = Job(how, backend).compile()
        return [job.step(debugger) for _ in range(8)] + job.state()

    plain = run(None)
    recorded = run(dump.debugger(level="L0", step=[1, 2, 5]))
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))


def test_recorded_steps_of_inductor_are_near_those_without_us(dump) -> None:
    """It fuses otherwise around what is recorded."""
    def run(debugger: Any) -> list[torch.Tensor]:
        torch._dynamo.reset()
        job = Job("model", "inductor").compile()
        return [job.step(debugger) for _ in range(5)]

    plain = run(None)
    recorded = run(dump.debugger(level="L0", step=[1, 3]))
    assert torch.equal(plain[0], recorded[0])
    assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(plain, recorded, strict=True))


class Whole(nn.Module):
    """A module around one that is called, in a way of its own."""

    def __init__(self, around: Callable) -> None:
        super().__init__()
        self.inner, self.last, self.around = nn.Linear(4, 4), nn.Linear(4, 4), around

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.around(self.inner, x))


def _train(dump: Any, model: nn.Module, call: Callable, passes: Callable, steps: int = 2, **config: Any) -> Any:
    debugger = dump.debugger(level="L0", **config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(step)
        debugger.start(model=model)
        passes(call)
        debugger.stop()
        debugger.step()
        optimizer.step()
        optimizer.zero_grad()
    debugger.wait_exported()
    return debugger


def _both(dump: Any, build: Callable[[], nn.Module], passes: Callable, **options: Any) -> tuple[Any, list[torch.Tensor], Any]:
    """Trains eagerly and compiled; the trees are equal. The debugger, the parameters, the model."""
    torch.manual_seed(0)
    model = build()
    eager = _train(dump, model, model, passes)
    trees = [dump.data(0), dump.data(1)]
    constructs = [_construct(dump, 0), _construct(dump, 1)]
    eager.close()
    _apart(dump, "compiled")
    torch.manual_seed(0)
    other = build()
    debugger = _train(dump, other, torch.compile(other, **options), passes)
    for step in range(2):
        assert _names(dump.data(step)) == _names(trees[step])
        assert not _differences(dump.data(step), trees[step], 1e-5)
        assert _construct(dump, step) == constructs[step]
    assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert debugger._capture.faults == 0
    return debugger, list(other.parameters()), other


def _backward(call: Callable) -> None:
    call(torch.randn(3, 4)).sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_backwards_that_come_in_another_order_than_forwards(dump, capfd, backend: str) -> None:
    def passes(call: Callable) -> None:
        losses = [call(torch.randn(3, 4)).pow(2).sum() for _ in range(3)]
        for loss in (losses[1], losses[2], losses[0]):
            loss.backward()

    _both(dump, lambda: Whole(lambda inner, x: inner(inner(x))), passes, backend=backend, fullgraph=True)
    assert _lines(capfd, _SAID)


Pair = collections.namedtuple("Pair", "one other")


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    rest: Any = None


class Gives(nn.Module):
    """As models of transformers do."""

    def forward(self, pair: Pair) -> Output:
        return Output(hidden=pair.one + pair.other, rest=Pair(pair.one, 2))


class Shapes(nn.Module):
    """Takes and gives what is not a plain tensor."""

    def forward(self, x: torch.Tensor, pair: tuple, *, scale: Any = None, names: Any = ()) -> dict:
        return {"sum": x * (scale["by"] if scale else 1) + pair[0], "list": [x, None, 3], "size": x.shape[0]}


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shapes, self.gives, self.linear = Shapes(), Gives(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        out = self.shapes(y, (x, "text", 1.5, True), scale={"by": 2, "dtype": torch.float32}, names=["a", None])
        return self.gives(Pair(out["sum"], out["list"][0] * out["size"])).hidden


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_values_that_are_no_tensors(dump, backend: str) -> None:
    _both(dump, Caller, _backward, backend=backend, fullgraph=True)


def test_a_size_that_is_not_fixed(dump) -> None:
    def passes(call: Callable) -> None:
        for rows in (3, 5, 7):
            call(torch.randn(rows, 4)).sum().backward()

    before = counters["stats"]["unique_graphs"]
    _both(dump, Caller, passes, backend="aot_eager", fullgraph=True)
    # Three sizes and two steps: of three rows, and of any.
    assert counters["stats"]["unique_graphs"] - before == 2


def test_a_graph_that_breaks_inside_a_module_is_recorded_on_both_sides(dump) -> None:
    """Its gradients are in no one graph: those of the modules around the break are not recorded."""
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            torch._dynamo.graph_break()
            return self.b(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.breaks = Breaks()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.breaks(x) * 2

    torch.manual_seed(0)
    model = Outer()
    eager = _train(dump, model, model, _backward)
    expected = dump.data()
    eager.close()
    _apart(dump, "compiled")
    torch.manual_seed(0)
    model = Outer()
    debugger = _train(dump, model, torch.compile(model, backend="aot_eager"), _backward)
    data = dump.data()
    assert set(expected) - set(data) <= {"Module.breaks.Breaks.backward.0"} and set(data) <= set(expected)
    assert not _differences(data, {name: expected[name] for name in data}, 1e-5)
    assert debugger._capture.faults == 0


def test_inference_and_no_grad(dump) -> None:
    def passes(call: Callable) -> None:
        with torch.no_grad():
            call(torch.randn(3, 4))
        with torch.inference_mode():
            call(torch.randn(3, 4))

    _both(dump, lambda: Whole(lambda inner, x: inner(x).relu()), passes, backend="inductor", fullgraph=True)


def test_memory_that_a_graph_uses_again_is_read_again(dump) -> None:
    """Inductor writes into buffers without telling PyTorch's version counter."""
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() + 0.5

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ModuleList(Scale() for _ in range(6))
            self.last = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for scale in self.scales:
                x = scale(x)
            return self.last(x)

    def passes(call: Callable) -> None:
        with torch.no_grad():
            call(torch.randn(3, 4))

    _both(dump, Chain, passes, backend="inductor", fullgraph=True)


def test_the_operators_say_that_cuda_graphs_end_at_them() -> None:
    """PyTorch splits its CUDA graphs where an operator has this tag."""
    from rankprobe.pytorch import _graph_ops

    _graph_ops.define()
    for name in ("begin", "end", "begin_backward", "backward"):
        tags = getattr(torch.ops.rankprobe, name).default.tags
        assert torch.Tag.cudagraph_unsafe in tags and torch.Tag.flexible_layout in tags


def test_distributed_data_parallel_is_recorded_uncut(dump, capfd, tmp_path: pathlib.Path) -> None:
    """Dynamo would cut its graph by buckets, inside of modules; buckets as small as these it refuses."""
    def build() -> nn.Module:
        return nn.Sequential(*(Whole(lambda inner, x: inner(x).relu()) for _ in range(2)))

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        def run(name: str, compiled: bool) -> tuple[dict, Any]:
            _apart(dump, name)
            torch.manual_seed(0)
            model = nn.parallel.DistributedDataParallel(build(), bucket_cap_mb=1e-5)
            debugger = _train(dump, model.module, torch.compile(model, backend="aot_eager") if compiled else model, _backward)
            assert debugger._capture.faults == 0
            data = dump.data(1)
            debugger.close()
            return data, model

        expected, eager = run("eager", compiled=False)
        data, model = run("compiled", compiled=True)
    finally:
        torch.distributed.destroy_process_group()
    assert _names(data) == _names(expected) and not _differences(data, expected, 1e-5)
    said = capfd.readouterr().err
    assert _SAID in said and _FELL_BACK not in said
    assert all(torch.allclose(a, b) for a, b in zip(eager.parameters(), model.parameters(), strict=True))


def test_mode_reduce_overhead_is_recorded(dump) -> None:
    """It moves operators with that tag together, where their tensors allow it."""
    _both(dump, lambda: Whole(lambda inner, x: inner(x).relu()), _backward, mode="reduce-overhead", fullgraph=True)


