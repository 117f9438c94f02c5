# SPDX-License-Identifier: Apache-2.0
"""vLLM beside transformers, for the same tokens with the same weights."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import harness
import pytest
import tiny_models
import transformers
from conftest import read, requests
from test_serving import BASE, _offline, _tokens

from polling import wait_for

PROMPTS = ["Explain gravity in one sentence, and then in two.", "Hello"]
# The calls of layer 1 that the planted weight is in.
WRONG = {"llama": "Module.model.layers.1.mlp.down_proj.RowParallelLinear.forward.0",
         "qwen2": "Module.model.layers.1.self_attn.qkv_proj.QKVParallelLinear.forward.0",
         "mixtral": "Module.model.layers.1.block_sparse_moe.gate.GateLinear.forward.0"}


def _served(environment: dict, directory: pathlib.Path, model: pathlib.Path, dump: pathlib.Path, **more: object) -> list[list[int]]:
    """Two requests at once, the first in chunks; its answer."""
    content = {**BASE, "task": "tensor", "level": "L0", "dump_path": str(dump)}
    keywords = {"enforce_eager": True, "max_num_seqs": 4, "max_num_batched_tokens": 32, "enable_prefix_caching": False,
                "additional_config": {"dump_config": content}, **more}
    answers = _tokens(_offline(environment, directory, model, keywords, *PROMPTS))
    # The collector that vLLM's process left writes on; on a busy machine it is later than the process.
    wait_for((dump / "manifest.json").exists, 60, f"{dump}/manifest.json")
    return answers


def _reference(environment: dict, model: pathlib.Path, dump: pathlib.Path, prompt: str, answer: list[int]) -> None:
    """By the example's program, in a process of its own as its user has it."""
    # The tokenizer's own numbers, which are not those of the bytes: vLLM asks the same one.
    tokens = [*transformers.AutoTokenizer.from_pretrained(model)(prompt)["input_ids"], *answer]
    done = subprocess.run([sys.executable, harness.ROOT / "examples" / "vllm" / "reference.py", model, dump,
                           *map(str, tokens)], env={**environment, "RANKPROBE_COLLECTOR": "127.0.0.1:1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def _cli(*words, code: int = 0) -> str:
    done = subprocess.run([harness.BIN / "rankprobe", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("name, how", [*((name, {}) for name in WRONG), ("llama", {"dtype": "bfloat16"}), ("qwen2", {"dtype": "bfloat16"}),
                                       ("llama", {"enforce_eager": False})])
def test_vllm_beside_transformers(environment, tmp_path, name: str, how: dict) -> None:
    """By the default tolerance: a sound server has no finding, and of one with a wrong weight that is the first."""
    model, wrong = (tiny_models.make(tmp_path / "models", which) for which in (name, f"{name}_wrong"))
    answers = _served(environment, tmp_path, model, tmp_path / "served", **how)
    bad = _served(environment, tmp_path, wrong, tmp_path / "bad", **how)
    # A wrong bias of keys need not move a token; it is found all the same.
    assert bad != answers or name == "qwen2"
    ids = sorted({request for step in requests(tmp_path / "served") for request, *_ in step})
    for number, prompt in enumerate(PROMPTS):
        (request,) = [request for request in ids if request.startswith(f"{number}-")]
        reference = tmp_path / f"reference{number}"
        _reference(environment, model, reference, prompt, answers[number])
        aligned = tmp_path / f"aligned{number}"
        said = _cli("align", tmp_path / "served", reference, "--rules", f"vllm-{name}", "--request", request, "-o", aligned)
        assert "Left out" not in said, said
        positions = [(begin, end) for step in requests(tmp_path / "served") for who, begin, end, _ in step if who == request]
        assert len(list((aligned / "target").iterdir())) == len(positions)
        data = read(next(aligned.glob("reference/step*/rank0")) / "dump.json")["data"]
        qkv = data["Module.model.layers.0.self_attn.qkv_proj.QKVParallelLinear.forward.0"]["output"]["0"]
        assert qkv["of"].count("_proj.Linear.forward.0.output.0") == 3
        # All batches of a sound server are the reference; two programs that sum in their own orders.
        said = _cli("first-divergence", tmp_path / "served", reference, "--rules", f"vllm-{name}", "--request", request)
        assert "No difference in the " in said, said
        said = _cli("diagnose", tmp_path / "served", reference, "--rules", f"vllm-{name}", "--request", request)
        assert "no difference from the reference in the " in said, said
    # The wrong weight, in the first batch already, whatever the answer was.
    (request,) = {who for step in requests(tmp_path / "bad") for who, *_ in step if who.startswith("0-")}
    said = _cli("first-divergence", tmp_path / "bad", tmp_path / "reference0", "--rules", f"vllm-{name}", "--request",
                request, "--json", code=1)
    report = json.loads(said)
    assert report["origins"][0]["call"] == WRONG[name], report["origins"][0]
    assert report["origins"][0].get("step", 0) in (0, "0")
    # From the request to the same finding, once for all batches that have it.
    said = _cli("diagnose", tmp_path / "bad", tmp_path / "reference0", "--rules", f"vllm-{name}", "--request", request, "--json", code=1)
    findings = json.loads(said)["findings"]
    assert findings[0]["name"] == WRONG[name] and "tokens 0 to 31 of the request" in findings[0]["what"], findings[0]
    assert [finding["name"] for finding in findings].count(WRONG[name]) == 1
