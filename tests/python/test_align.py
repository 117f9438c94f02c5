# SPDX-License-Identifier: Apache-2.0
"""A fused program that serves and an unfused one that is its reference, laid beside one another by rules."""

from __future__ import annotations

import csv
import json
import pathlib
import subprocess

import pytest
import torch

import harness

WIDTH, HEADS, LAYERS, WORDS = 16, 2, 3, 50
RULES = """\
version: 1
tokens:
  target: Module.embed.Embedding.forward.0.input.0
  reference: Module.embed.Embedding.forward.0.input.0
rules:
- target: Module.embed.Embedding.forward.0.input.0
  reference: Module.embed.Embedding.forward.0.input.0
- target: Module.embed.Embedding.forward.0.output.0
  reference: Module.embed.Embedding.forward.0.output.0
- target: Module.layers.{layer}.qkv.Linear.forward.0.input.0
  reference: Module.layers.{layer}.q.Linear.forward.0.input.0
- target: Module.layers.{layer}.qkv.Linear.forward.0.output.0
  reference:
  - Module.layers.{layer}.q.Linear.forward.0.output.0
  - Module.layers.{layer}.k.Linear.forward.0.output.0
  - Module.layers.{layer}.v.Linear.forward.0.output.0
  concat: -1
- target: Module.layers.{layer}.out.Linear.forward.0.input.0
  reference: Module.layers.{layer}.out.Linear.forward.0.input.0
- target: Module.layers.{layer}.out.Linear.forward.0.output.0
  reference: Module.layers.{layer}.out.Linear.forward.0.output.0
- target: Module.head.Linear.forward.0.output.0
  reference: Module.head.Linear.forward.0.output.0
  dim0: last
"""


class _Unfused(torch.nn.Module):
    """[batch, tokens] in; q, k and v of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({
            name: torch.nn.Linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            q, k, v = layer["q"](hidden), layer["k"](hidden), layer["v"](hidden)
            hidden = hidden + layer["out"](_attend(q, k, v))
        return self.head(hidden)


class _Fused(torch.nn.Module):
    """The rows of all requests behind one another in, as a server has them; one projection for three."""

    def __init__(self, model: _Unfused) -> None:
        super().__init__()
        self.embed, self.head = model.embed, model.head
        self.layers = torch.nn.ModuleList()
        for layer in model.layers:
            qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
            with torch.no_grad():
                qkv.weight.copy_(torch.cat([layer[name].weight for name in "qkv"]))
                qkv.bias.copy_(torch.cat([layer[name].bias for name in "qkv"]))
            self.layers.append(torch.nn.ModuleDict({"qkv": qkv, "out": layer["out"]}))

    def forward(self, tokens: torch.Tensor, caches: list) -> torch.Tensor:
        hidden = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            qkv, outputs, begin = layer["qkv"](hidden), [], 0
            for cache, count in caches:  # each request sees its own tokens
                q, k, v = qkv[begin:begin + count].split(WIDTH, dim=-1)
                begin += count
                if i in cache:
                    k, v = torch.cat([cache[i][0], k]), torch.cat([cache[i][1], v])
                cache[i] = (k, v)
                outputs.append(_attend(q, k, v))
            hidden = hidden + layer["out"](torch.cat(outputs))
        ends = torch.tensor([count for _, count in caches]).cumsum(0) - 1
        return self.head(hidden[ends])


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal; the queries are the last of the keys' positions."""
    n, m = q.shape[-2], k.shape[-2]
    scores = q @ k.transpose(-1, -2) / WIDTH ** 0.5
    seen = torch.arange(m)[None, :] <= torch.arange(m - n, m)[:, None]
    return torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1) @ v


def _serve(directory: pathlib.Path, model: _Unfused, task: str, prompts: dict[str, list[int]],
           batches: list[dict[str, int]], damage=None) -> None:
    """Records how a server computes `batches`, request to number of its tokens, with chunks and a cache."""
    from rankprobe.pytorch import PrecisionDebugger

    fused = _Fused(model)
    if damage is not None:
        with torch.no_grad():
            damage(fused)
    caches: dict[str, dict] = {request: {} for request in prompts}
    at = dict.fromkeys(prompts, 0)
    debugger = PrecisionDebugger(dump_path=str(directory), task=task, level="L0")
    with torch.no_grad():
        for batch in batches:
            tokens = [token for request, count in batch.items()
                      for token in prompts[request][at[request]:at[request] + count]]
            debugger.start(model=fused, scheduled_tokens=batch, first_positions={r: at[r] for r in batch})
            fused(torch.tensor(tokens), [(caches[request], count) for request, count in batch.items()])
            debugger.stop()
            debugger.step()
            for request, count in batch.items():
                at[request] += count
    debugger.close()


def _reference(directory: pathlib.Path, model: _Unfused, task: str, tokens: list[int]) -> None:
    from rankprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=str(directory), task=task, level="L0")
    with torch.no_grad():
        debugger.start(model=model)
        model(torch.tensor([tokens]))
        debugger.stop()
        debugger.step()
    debugger.close()


def _cli(*words, code: int = 0) -> str:
    done = subprocess.run([harness.BIN / "rankprobe", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


PROMPTS = {"cmpl-x-0": [3, 1, 4, 1, 5, 9, 2], "cmpl-y-0": [2, 7, 1, 8, 2]}
BATCHES = [{"cmpl-x-0": 4}, {"cmpl-y-0": 3, "cmpl-x-0": 2}, {"cmpl-x-0": 1, "cmpl-y-0": 2}]


@pytest.fixture
def rules(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    path.chmod(0o640)
    return path


def _swap(layer: int):
    def damage(model: _Fused) -> None:  # the values of one head dimension; no norm, maximum or mean sees it
        weight = model.layers[layer]["qkv"].weight
        weight[[2 * WIDTH, 2 * WIDTH + 5]] = weight[[2 * WIDTH + 5, 2 * WIDTH]]

    return damage


@pytest.mark.parametrize("request_id", ["x", "cmpl-y-0"])
def test_a_sound_server_is_its_reference(tmp_path, rules, request_id: str) -> None:
    torch.manual_seed(3)
    model = _Unfused()
    _serve(tmp_path / "served", model, "tensor", PROMPTS, BATCHES)
    (tokens,) = [tokens for request, tokens in PROMPTS.items() if request_id in request]
    _reference(tmp_path / "reference", model, "tensor", tokens)
    words = [tmp_path / "served", tmp_path / "reference", "--rules", rules, "--request", request_id]
    said = _cli("first-divergence", *words)
    assert "No difference in the " in said and "Left out" not in said
    # As two dumps, for every other tool; and what was laid beside what.
    _cli("align", *words, "-o", tmp_path / "out")
    steps = sorted(step.name for step in (tmp_path / "out" / "target").iterdir())
    assert steps == (["step0", "step1", "step2"] if request_id == "x" else ["step1", "step2"])
    last = next((tmp_path / "out" / "reference" / "step2").iterdir())
    data = json.loads((last / "dump.json").read_text())["data"]
    row = data["Module.layers.1.qkv.Linear.forward.0"]["output"]["0"]
    assert row["of"].count(" + ") == 2
    count = BATCHES[2][[request for request in PROMPTS if request_id in request][0]]
    saved = torch.load(last / "dump_tensor_data" / "Module.layers.1.qkv.Linear.forward.0.output.0.pt")
    assert saved.shape == (count, 3 * WIDTH)
    with torch.no_grad():
        hidden = model.embed(torch.tensor(tokens))
        layer = model.layers[0]
        hidden = hidden + layer["out"](_attend(layer["q"](hidden), layer["k"](hidden), layer["v"](hidden)))
        wanted = torch.cat([model.layers[1][name](hidden) for name in "qkv"], dim=-1)
    at = 4 + 2 if request_id == "x" else 3
    assert torch.allclose(saved, wanted[at:at + count], atol=1e-6)
    _cli("align", *words, "-o", tmp_path / "out", code=5)  # nothing is written over
    answer = json.loads(_cli("--json", "align", *words, "-o", tmp_path / "again"))
    assert list(answer) == json.loads(_cli("schema", "align"))["$defs"]["AlignReport"]["required"] and answer["rows"] > 0
    _cli("compare", "-tp", tmp_path / "served", "-gp", tmp_path / "reference", "--rules", rules, "--request", request_id,
         "-o", tmp_path / "tables")
    tables = list((tmp_path / "tables").glob("compare_result_step*.csv"))
    assert len(tables) == len(steps)
    for table in tables:
        with open(table, newline="") as file:
            assert {line["Result"] for line in csv.DictReader(file)} == {"pass"}


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_planted_error_is_found_at_its_layer_and_first_token(tmp_path, rules, layer: int) -> None:
    torch.manual_seed(3)
    model = _Unfused()
    _serve(tmp_path / "served", model, "tensor", PROMPTS, BATCHES, damage=_swap(layer))
    _reference(tmp_path / "reference", model, "tensor", PROMPTS["cmpl-x-0"])
    said = _cli("first-divergence", tmp_path / "served", tmp_path / "reference", "--rules", rules, "--request", "x",
                code=1)
    first = said.splitlines()[1]
    assert first == f"step 0 rank 0: Module.layers.{layer}.qkv.Linear.forward.0 in layers.{layer}.qkv (Linear)", said
    assert f"of Module.layers.{layer}.q.Linear.forward.0.output.0 + " in said


def test_an_error_of_a_later_token_is_found_there(tmp_path, rules) -> None:
    """A cache that loses a value: the first batch is sound."""
    torch.manual_seed(3)
    model = _Unfused()
    wrong = {**PROMPTS, "cmpl-x-0": [3, 1, 4, 1, 5, 8, 2]}  # the server fed token 5 another way
    _serve(tmp_path / "served", model, "tensor", wrong, BATCHES)
    _reference(tmp_path / "reference", model, "tensor", PROMPTS["cmpl-x-0"])
    said = _cli("first-divergence", tmp_path / "served", tmp_path / "reference", "--rules", rules, "--request", "x",
                code=1)
    assert said.splitlines()[1] == "step 1 rank 0: Module.embed.Embedding.forward.0 in embed (Embedding)", said
    assert "it came in from outside" in said


def test_statistics_of_a_whole_prompt(tmp_path, rules) -> None:
    """Nothing is cut, so the statistics of q, k and v make those of qkv."""
    torch.manual_seed(3)
    model = _Unfused()
    prompts, batches = {"a": PROMPTS["cmpl-x-0"]}, [{"a": 7}]

    def scaled(fused: _Fused) -> None:
        fused.layers[1]["qkv"].weight.mul_(1.001)

    for name, damage in (("sound", None), ("served", scaled)):
        _serve(tmp_path / name, model, "statistics", prompts, batches, damage=damage)
    _reference(tmp_path / "reference", model, "statistics", PROMPTS["cmpl-x-0"])
    # One row a request of the head cannot be cut out of the statistics of all tokens.
    said = _cli("first-divergence", tmp_path / "sound", tmp_path / "reference", "--rules", rules)
    assert "No difference" in said and "has statistics only, which cannot be cut: record task tensor" in said
    said = _cli("first-divergence", tmp_path / "served", tmp_path / "reference", "--rules", rules, code=1)
    assert "step 0 rank 0: Module.layers.1.qkv.Linear.forward.0" in said


def test_what_cannot_be_aligned_is_said_in_one_line(tmp_path, rules) -> None:
    torch.manual_seed(3)
    model = _Unfused()
    _serve(tmp_path / "served", model, "statistics", PROMPTS, BATCHES)
    _reference(tmp_path / "reference", model, "statistics", PROMPTS["cmpl-x-0"])
    words = ["first-divergence", tmp_path / "served", tmp_path / "reference"]
    for more, part in (([], "cmpl-x-0, cmpl-y-0"), (["--request", "z"], "no request is z; there are cmpl-x-0, cmpl-y-0")):
        said = _cli(*words, "--rules", rules, *more, code=2)
        assert part in said and len(said.splitlines()) == 1, said
    assert "vllm-llama, vllm-mixtral, vllm-qwen2" in _cli(*words, "--rules", "vllm", code=2)
    assert "VocabParallelEmbedding" in _cli(*words, "--rules", "vllm-llama", "--request", "x", code=2)
    rules.write_text(RULES.replace("concat: -1", "concatenate: -1"))
    assert f"{rules}: line 17: unknown key concatenate" in _cli(*words, "--rules", rules, code=2)
    _cli(*words, "--request", "x", code=2)  # goes with --rules only
    assert list(tmp_path.glob("out*")) == []
