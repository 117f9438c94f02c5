# SPDX-License-Identifier: Apache-2.0
"""Random-weight models with a tiny tokenizer: python tiny_models.py DIRECTORY [NAME..]

llama, qwen2, mixtral, qwen_moe: 2 layers, width 64, of transformers' own configuration classes, so that vLLM
loads them as it loads the real ones. NAME_wrong: the model with one weight of layer 1 that is wrong. The tokenizer
knows the 256 bytes, `<s>` and `</s>`.
"""

from __future__ import annotations

import pathlib
import sys

import tokenizers
import torch
import transformers

_COMMON = dict(vocab_size=258, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
               max_position_embeddings=256, bos_token_id=256, eos_token_id=257, tie_word_embeddings=False,
               # So wide that greedy tokens differ from one prompt to another.
               initializer_range=0.2, torch_dtype="float32")


# NAME_wrong: what layer 1 has in another order than NAME.
_WRONG = {"llama": "mlp.down_proj.weight", "qwen2": "self_attn.k_proj.bias", "mixtral": "mlp.gate.weight"}


def _model(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(7)
    if name.endswith("_wrong"):
        right = name.removesuffix("_wrong")
        model = _model(right)
        with torch.no_grad():  # two rows that changed places
            weight = model.model.layers[1].get_parameter(_WRONG[right])
            weight[[1, -1]] = weight[[-1, 1]]
        return model
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(intermediate_size=128, **_COMMON))
    if name == "qwen2":
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
            intermediate_size=128, **{**_COMMON, "num_key_value_heads": 1}))
        for parameter in model.parameters():  # biases begin as zeros
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1 if parameter.shape[0] == 64 else 0, 0.2)
        return model
    if name == "mixtral":
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(
            intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, **_COMMON))
    if name == "qwen_moe":
        return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
            intermediate_size=128, moe_intermediate_size=64, shared_expert_intermediate_size=64, num_experts=4,
            num_experts_per_tok=2, **_COMMON))
    raise ValueError(f"no model {name!r}")


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<s>", eos_token="</s>",
                                                model_max_length=256)


def make(directory: pathlib.Path, name: str) -> pathlib.Path:
    """directory/name, ready for `vllm serve`; made once."""
    path = directory / name
    if not (path / "config.json").exists():
        _tokenizer().save_pretrained(path)
        _model(name).save_pretrained(path)
    return path


if __name__ == "__main__":
    for wanted in sys.argv[2:] or ["llama", "qwen_moe"]:
        print(make(pathlib.Path(sys.argv[1]), wanted))
