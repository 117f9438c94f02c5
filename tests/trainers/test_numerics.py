# SPDX-License-Identifier: Apache-2.0
"""Golden files of public models of transformers: sound changes pass, changes of numbers are named."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any, Callable

import pytest
import torch

from conftest import llama

transformers = pytest.importorskip("transformers")
PACKAGE = str(pathlib.Path(__import__("rankprobe").__file__).parents[1])


def bert(**more: Any) -> Any:
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**{
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **more}))


def gpt2(**more: Any) -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{
        "vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **more}))


def qwen2(**more: Any) -> Any:
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, **more}))


def t5(**more: Any) -> Any:
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**{
        "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0,
        "dropout_rate": 0.0, **more}))


# The model, and changes of it: settings, the call that is named, a piece of its line.
MODELS: dict[str, tuple[Callable[..., Any], list[tuple[dict[str, Any], str, str]]]] = {
    "llama": (llama, [({"hidden_act": "gelu"}, "Module.model.layers.0.mlp.act_fn.GELUActivation.forward.0", "modeling_llama.py"),
                      ({"rms_norm_eps": 1e-5}, "", "modeling_llama.py")]),
    "bert": (bert, [({"hidden_act": "relu"}, "Module.bert.encoder.layer.0.intermediate.intermediate_act_fn.", ""),
                    ({"layer_norm_eps": 1e-5}, "Functional.layer_norm.0.forward", "modeling_bert.py")]),
    "gpt2": (gpt2, [({"activation_function": "gelu"}, "Module.transformer.h.0.mlp.act.GELUActivation.forward.0", "modeling_gpt2.py")]),
    "qwen2": (qwen2, [({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "", "modeling_qwen2.py")]),
    "t5": (t5, [({"layer_norm_epsilon": 1e-4}, "", "modeling_t5.py")]),
}


def step(model: Any) -> None:
    ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(1))
    model(input_ids=ids, labels=ids).loss.backward()


def made(path: pathlib.Path, model: Any, update: bool = False) -> None:
    from rankprobe.golden import golden

    with golden(path, model, update):
        step(model)


def difference(path: pathlib.Path, model: Any) -> str:
    from rankprobe.golden import NumbersDiffer

    with pytest.raises(NumbersDiffer) as error:
        made(path, model)
    print(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", MODELS)
def test_numbers_of_a_public_model(tmp_path: pathlib.Path, name: str) -> None:
    model, changes = MODELS[name]
    path = tmp_path / f"{name}.json"
    made(path, model(), update=True)
    assert path.stat().st_size < 300_000
    made(path, model())
    for settings, call, code in changes:
        lines = difference(path, model(**settings)).splitlines()
        assert lines[1].startswith(f"first: {call}"), lines
        assert code in lines[3], lines


def test_the_norm_of_another_eps_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "llama.json"
    made(path, llama(), update=True)
    text = difference(path, llama(rms_norm_eps=1e-5))
    assert "layer model.layers.0.input_layernorm" in text and "its inputs have the stored norms" in text, text


def test_other_calls_with_the_same_numbers_pass(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade that computes the same in other words."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    path = tmp_path / "llama.json"
    made(path, llama(), update=True)

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        up = self.up_proj(x.clone())
        return self.down_proj(torch.mul(up, self.act_fn(self.gate_proj(x))))

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    made(path, llama())


def test_another_dtype_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "llama.json"
    made(path, llama(), update=True)
    assert "dtype was float32, is bfloat16" in difference(path, llama().to(torch.bfloat16))


PROGRAM = """
import sys, pathlib, torch
sys.path.insert(0, {tests!r})
from test_numerics import MODELS, made
torch.set_num_threads(int(sys.argv[4]))
made(pathlib.Path(sys.argv[1]), MODELS[sys.argv[2]][0]().to(getattr(torch, sys.argv[3])))
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_other_kernels_of_a_cpu_pass(tmp_path: pathlib.Path, name: str, dtype: str) -> None:
    """Sums in another order: no vectors, no oneDNN, two threads."""
    path = tmp_path / f"{name}.json"
    made(path, MODELS[name][0]().to(getattr(torch, dtype)), update=True)
    (tmp_path / "other.py").write_text(PROGRAM.format(tests=str(pathlib.Path(__file__).parent)))
    for threads, variables in (("1", {"ATEN_CPU_CAPABILITY": "default"}), ("1", {"ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}),
                               ("2", {})):
        done = subprocess.run([sys.executable, "other.py", str(path), name, dtype, threads], capture_output=True, text=True, timeout=200,
                              env={**os.environ, "PYTHONPATH": PACKAGE, **variables})
        assert done.returncode == 0, (variables, done.stderr[-3000:])


OLD = pathlib.Path(__file__).parents[2] / "build/transformers-4.48.3"
UPGRADE = """
import pathlib, sys
sys.path[:0] = [sys.argv[3], {tests!r}] if sys.argv[3:] else [{tests!r}]
import torch
from test_numerics import MODELS, made
torch.set_num_threads(1)
made(pathlib.Path(sys.argv[1]), MODELS[sys.argv[2]][0](), update=len(sys.argv) > 3)
"""


@pytest.mark.parametrize("name, layer", [("llama", ""), ("gpt2", ""), ("qwen2", ""), ("bert", "cls.predictions.transform.dense"), ("t5", "encoder")])
def test_an_upgrade_of_transformers(tmp_path: pathlib.Path, name: str, layer: str) -> None:
    """From 4.48.3 to the version of this environment. Three models have the same numbers, though they are written in other calls
    and return more; BERT and T5 draw their first weights in another order."""
    if not OLD.is_dir():
        pytest.skip(f"{OLD} is made by tests/run.sh --stage trainers")
    (tmp_path / "upgrade.py").write_text(UPGRADE.format(tests=str(pathlib.Path(__file__).parent)))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "upgrade.py", f"{name}.json", name, *words], capture_output=True, text=True, timeout=200,
                              env={**os.environ, "PYTHONPATH": PACKAGE})

    before = run(str(OLD))
    assert before.returncode == 0, before.stderr[-3000:]
    assert '"transformers": "4.48.3"' in (tmp_path / f"{name}.json").read_text()
    upgraded = run()
    assert (upgraded.returncode == 0) == (not layer), upgraded.stderr[-3000:]
    if layer:
        assert f"\n  layer {layer}" in upgraded.stderr and "its inputs have other norms too: other weights" in upgraded.stderr, upgraded.stderr[-3000:]
        assert "transformers 4.48.3, " in upgraded.stderr and f"transformers {transformers.__version__}, " in upgraded.stderr
