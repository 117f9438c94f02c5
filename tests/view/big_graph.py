# SPDX-License-Identifier: Apache-2.0
"""A dump of some 100,000 calls in a tree of modules, and databases of it by `rankprobe graph_visualize`."""

from __future__ import annotations

import json
import pathlib
import subprocess

import harness

LAYERS, BLOCKS, CALLS = 84, 24, 32


def write_dump(directory: pathlib.Path, layers: int = LAYERS, blocks: int = BLOCKS, calls: int = CALLS, wrong: frozenset[int] = frozenset()) -> int:
    """Returns the number of nodes below the root. Calls whose number is in `wrong` have other values and a NaN each."""
    directory.mkdir(parents=True)
    data: dict[str, dict] = {}
    parents: dict[str, str | None] = {}
    numbers: dict[str, int] = {}

    def tensor(bad: bool) -> dict:
        high = float("nan") if bad else 1.5
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 64], "Max": high, "Min": -1.5, "Mean": 0.25, "Norm": high, "requires_grad": True}

    count = 0

    def add(name: str, parent: str | None) -> None:
        nonlocal count
        bad = count in wrong
        data[name] = {"input_args": [tensor(False)], "input_kwargs": {}, "output": [tensor(bad)]}
        parents[name] = parent
        count += 1

    top = "Module.model.Model.forward.0"
    for layer in range(layers):
        outer = f"Module.model.layers.{layer}.Layer.forward.0"
        for block in range(blocks):
            inner = f"Module.model.layers.{layer}.block{block}.Block.forward.0"
            for call in range(calls):
                op = ("matmul", "softmax", "add", "mul", "gelu", "dropout", "layer_norm", "transpose")[call % 8]
                number = numbers[op] = numbers.get(op, -1) + 1
                add(f"Torch.{op}.{number}.forward", inner)
                if call % 2 == 0:
                    add(f"Torch.{op}.{number}.backward", inner.replace("forward", "backward"))
            add(inner, outer)
            add(inner.replace("forward", "backward"), outer.replace("forward", "backward"))
        add(outer, top)
        add(outer.replace("forward", "backward"), top.replace("forward", "backward"))
    add(top, None)
    add(top.replace("forward", "backward"), None)
    (directory / "dump.json").write_text(json.dumps({"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": data}))
    (directory / "construct.json").write_text(json.dumps(parents))
    (directory / "stack.json").write_text(json.dumps({"0": [list(data), ["File train.py, line 1, in step, \n loss = model(x)"]]}))
    return count


def visualize(output: pathlib.Path, target: pathlib.Path, reference: pathlib.Path | None = None) -> pathlib.Path:
    words = ["graph_visualize", "-tp", target, "-o", output, "-oc", *([] if reference is None else ["-gp", reference])]
    subprocess.run([harness.BIN / "rankprobe", *map(str, words)], check=True, timeout=600, capture_output=True)
    (database,) = output.glob("*.vis.db")
    return database
