# SPDX-License-Identifier: Apache-2.0
"""Dumps of a made-up model trained in a tensor, pipeline and data parallel layout.

write(directory, tp, pp, dp=1, vpp=1): rank0, rank1, .. in the order tp-dp-pp. Layers are named from 0 in
every stage, as Megatron names them; the parts of a tensor differ between tensor parallel ranks.
"""

from __future__ import annotations

import json
import pathlib
import random

LAYERS = 4


class Rank:
    def __init__(self, tp: int, pp: int, dp: int, vpp: int, rank: int, loose: bool) -> None:
        self.loose, self.tp, self.pp, self.vpp, self.rank = loose, tp, pp, vpp, rank
        self.tp_rank, self.dp_rank, self.pp_rank = rank % tp, rank // tp % dp, rank // (tp * dp)
        self.tp_group = [rank - self.tp_rank + i for i in range(tp)]
        self.stride = tp * dp
        self.data: dict = {}
        self.construct: dict = {}
        self.counts: dict[str, int] = {}

    def tensor(self, *key: object, whole: bool = False, dtype: str = "torch.float32") -> dict:
        """The same key gives the same tensor; a part of one differs between the ranks of a tensor group."""
        rng = random.Random(repr((self.dp_rank, key, 0 if whole else self.tp_rank)))
        high = rng.uniform(1, 3)
        return {"type": "torch.Tensor", "dtype": dtype, "shape": [4, 8], "Max": high, "Min": -rng.uniform(1, 3),
                "Mean": rng.uniform(-0.5, 0.5), "Norm": high * rng.uniform(3, 9), "requires_grad": True}

    def number(self, op: str) -> int:
        self.counts[op] = self.counts.get(op, -1) + 1
        return self.counts[op]

    def call(self, op: str, parent: str | None, inputs: list, outputs: list, **kwargs: object) -> str:
        name = f"{op}.{self.number(op)}.forward"
        self.data[name] = {"input_args": inputs, "input_kwargs": kwargs, "output": outputs}
        self.construct[name] = parent
        return name

    def reduce(self, parent: str | None, part: dict, whole: dict) -> None:
        group = {"type": "torch.ProcessGroup", "group_ranks": self.tp_group, "group_id": "tp"}
        self.call("Distributed.all_reduce", parent, [part], [whole], group=group)

    def module(self, name: str, parent: str | None, inputs: list, outputs: list, params: dict | None = None,
               direction: str = "forward") -> str:
        entry = f"{name}.{direction}.0"
        if direction == "forward":
            record = {"input_args": inputs, "input_kwargs": {}, "output": outputs}
            if params:
                record["parameters"] = params
        else:
            record = {"input": inputs, "output": outputs}
        self.data[entry] = record
        self.construct[entry] = parent
        return entry

    def layer(self, chunk: int, local: int, depth: int, parent: str, direction: str) -> None:
        base = f"Module.{chunk}.module.decoder.layers.{local}"
        step = 1 if direction == "forward" else -1
        into, out = (self.tensor("x", depth + (step < 0), direction, whole=True),
                     self.tensor("x", depth + (step > 0), direction, whole=True))
        layer = f"{base}.TransformerLayer.{direction}.0"
        column, row = f"{base}.mlp.fc1.ColumnParallelLinear", f"{base}.mlp.fc2.RowParallelLinear"
        hidden, part = self.tensor("h", depth, direction), self.tensor("p", depth, direction)
        weights = {"weight": self.tensor("w1", depth)}, {"weight": self.tensor("w2", depth),
                                                         "bias": self.tensor("b2", depth, whole=True)}
        parts = [(column, into, hidden, hidden, weights[0]), (row, hidden, out, part, weights[1])]
        if direction == "backward":
            parts = [(row, into, hidden, hidden, None), (column, hidden, out, part, None)]
        for name, before, after, product, params in parts:
            entry = f"{name}.{direction}.0"
            self.call("Torch.matmul", entry, [before, self.tensor("w", name, depth)], [product])
            if after is not product:
                self.reduce(entry, product, after)
            self.module(name, layer, [before], [after], params, direction)
            if name == column and direction == "forward":
                self.call("Functional.gelu", layer, [hidden], [self.tensor("g", depth)])
        self.module(f"{base}.TransformerLayer", parent, [into], [out], None, direction)

    def send(self, to: int, what: dict, come: bool) -> None:
        op, key = ("irecv", "src") if come else ("isend", "dst")
        self.call(f"Distributed.{op}", None, [what], [what], **{key: {"type": "int", "value": to}})

    def chunk(self, chunk: int, direction: str) -> None:
        local = LAYERS // (self.pp * self.vpp)
        first = (chunk * self.pp + self.pp_rank) * local
        model = f"Module.{chunk}.module.GPTModel"
        decoder = f"Module.{chunk}.module.decoder.TransformerBlock"
        tokens, loss = self.tensor("tokens", whole=True), self.tensor("out", self.pp_rank, chunk, whole=True)
        forward = direction == "forward"
        last = self.pp_rank == self.pp - 1 and chunk == self.vpp - 1
        if forward and self.pp_rank == 0 and chunk == 0:
            self.call("Functional.embedding", f"{model}.forward.0", [tokens], [self.tensor("x", 0, "forward", whole=True)])
        order = range(local) if forward else reversed(range(local))
        for i in order:
            self.layer(chunk, i, first + i, f"{decoder}.{direction}.0", direction)
        block = self.tensor("block", self.pp_rank, chunk, direction, whole=True)
        same = self.tensor("same", direction, whole=True)
        self.module(decoder, f"{model}.{direction}.0", *(([same], [block]) if forward else ([block], [same])),
                    direction=direction)
        if forward and last:
            head = f"Module.{chunk}.module.output_layer.OutputLayer"
            self.call("Torch.cat", f"{head}.forward.0", [block], [loss])
            self.module(head, f"{model}.forward.0", [block], [loss])
        self.module(model, None, *(([tokens], [loss]) if forward else ([loss], [tokens])), direction=direction)

    def write(self, directory: pathlib.Path) -> None:
        before, after = self.rank - self.stride, self.rank + self.stride
        what = self.tensor("wire", self.pp_rank, whole=True)
        if self.loose:
            self.call("Torch.ones", None, [], [what])
            self.call("Torch.zeros", None, [], [what])
        for chunk in range(self.vpp):
            if self.pp_rank > 0:
                self.send(before, what, True)
            self.chunk(chunk, "forward")
            if self.pp_rank < self.pp - 1:
                self.send(after, what, False)
                if self.loose:
                    self.call("Torch.neg", None, [what], [what])
        for chunk in reversed(range(self.vpp)):
            self.chunk(chunk, "backward")
            if self.pp_rank > 0:
                self.send(before, what, False)
        directory.mkdir(parents=True)
        dump = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": self.data}
        stack = {"0": [list(self.data), [f"File /rank/model.py, line 1, in forward, \n x = {self.pp_rank}"]]}
        for name, value in (("dump", dump), ("construct", self.construct), ("stack", stack)):
            (directory / f"{name}.json").write_text(json.dumps(value, indent=1))


def write(directory: pathlib.Path, tp: int, pp: int, dp: int = 1, vpp: int = 1, loose: bool = True) -> pathlib.Path:
    """`loose`: with several calls between the modules, which make collections."""
    for rank in range(tp * pp * dp):
        Rank(tp, pp, dp, vpp, rank, loose).write(directory / f"rank{rank}")
    return directory


if __name__ == "__main__":
    import sys

    write(pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:]))
