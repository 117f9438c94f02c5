# SPDX-License-Identifier: Apache-2.0
"""Programs of Hugging Face's packages, of Lightning and of PyTorch Geometric, with random weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from workload import STEPS, Block, Watch, causal, classify, images, program, tokens, train



def small(**more: Any) -> dict[str, Any]:
    return {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 64, **more}


def _llama(**more: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**small(num_key_value_heads=2, **more)))


@program(needs=("transformers",))
def hf_llama(watch: Watch) -> None:
    train(watch, _llama(), tokens(), causal)


@program(needs=("transformers",))
def hf_llama_eager_attention(watch: Watch) -> None:
    train(watch, _llama(attn_implementation="eager"), tokens(), causal)


@program(needs=("transformers",))
def hf_llama_bf16(watch: Watch) -> None:
    train(watch, _llama().to(torch.bfloat16), tokens(), causal)


@program(needs=("transformers",))
def hf_llama_gradient_checkpointing(watch: Watch) -> None:
    model = _llama()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    train(watch, model, tokens(), causal)


@program(needs=("transformers",))
def hf_bert(watch: Watch) -> None:
    from transformers import BertConfig, BertForMaskedLM

    train(watch, BertForMaskedLM(BertConfig(**small())), tokens(), causal)


@program(needs=("transformers",))
def hf_gpt2(watch: Watch) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    train(watch, GPT2LMHeadModel(config), tokens(), causal)


@program(needs=("transformers",))
def hf_t5(watch: Watch) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
    train(watch, T5ForConditionalGeneration(config), tokens(), causal)


@program(needs=("transformers",))
def hf_mixtral(watch: Watch) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    train(watch, MixtralForCausalLM(MixtralConfig(**small(num_key_value_heads=2, num_local_experts=4))), tokens(), causal)


@program(needs=("transformers",))
def hf_qwen2(watch: Watch) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    train(watch, Qwen2ForCausalLM(Qwen2Config(**small(num_key_value_heads=2))), tokens(), causal)


@program(needs=("transformers",))
def hf_qwen2_moe(watch: Watch) -> None:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    config = Qwen2MoeConfig(**small(num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
                                    shared_expert_intermediate_size=24))
    train(watch, Qwen2MoeForCausalLM(config), tokens(), causal)


@program(needs=("transformers",))
def hf_mamba(watch: Watch) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    train(watch, MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)), tokens(), causal)


@program(needs=("transformers",))
def hf_vit(watch: Watch) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=32,
                       patch_size=8, num_labels=5)
    train(watch, ViTForImageClassification(config), images(), classify)


@program(needs=("transformers",))
def hf_whisper(watch: Watch) -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                           decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
                           max_source_positions=20, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                           decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None)
    train(watch, WhisperForConditionalGeneration(config), lambda: (torch.randn(2, 8, 40), torch.randint(3, 64, (2, 6))),
          lambda model, batch: model(input_features=batch[0], labels=batch[1]).loss)


@program(needs=("transformers",))
def hf_generate(watch: Watch) -> None:
    """No optimizer: a step is one answer."""
    model = _llama().eval()
    for _ in range(STEPS):
        with watch.step(model), torch.no_grad():
            out = model.generate(torch.randint(1, 64, (1, 5)), max_new_tokens=3, do_sample=False, pad_token_id=0)
        watch.loss(out.sum())
    watch.finish(model)


@program(needs=("transformers", "accelerate"))
def hf_trainer(watch: Watch) -> None:
    _trainer(watch)


@program(needs=("transformers", "accelerate"))
def hf_trainer_accumulate(watch: Watch) -> None:
    _trainer(watch, gradient_accumulation_steps=2)


def _trainer(watch: Watch, **more: Any) -> None:
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Callback(TrainerCallback):
        def on_step_begin(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
            self.window = watch.step(model)
            self.window.__enter__()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.window.__exit__(None, None, None)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict, **kwargs: Any) -> None:
            if "loss" in logs:
                watch.losses.append(float(logs["loss"]).hex())

    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (16, 12))]
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(_llama(), TrainingArguments(directory, max_steps=STEPS, per_device_train_batch_size=2, logging_steps=1,
                                                      report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, **more),
                          train_dataset=data, callbacks=[Callback()])
        trainer.train()
        watch.finish(trainer.model, trainer.optimizer)


@program(needs=("transformers", "accelerate"))
def hf_accelerate(watch: Watch) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = _llama()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
    for _ in range(STEPS):
        ids = tokens()()
        with watch.step(model):
            loss = causal(model, ids)
            accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        watch.loss(loss)
    watch.finish(model, optimizer)


@program(needs=("transformers", "peft"))
def hf_peft_lora(watch: Watch) -> None:
    from peft import LoraConfig, get_peft_model

    train(watch, get_peft_model(_llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"])), tokens(), causal)


@program(needs=("transformers",))
def hf_resnet(watch: Watch) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type="basic", num_labels=5)
    train(watch, ResNetForImageClassification(config), images(), classify)


@program(needs=("transformers",))
def hf_convnext_drop_path(watch: Watch) -> None:
    """Stochastic depth: bernoulli_ into memory that nobody has written."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], drop_path_rate=0.3, num_labels=5)
    train(watch, ConvNextForImageClassification(config), images(), classify)


@program(needs=("transformers",))
def hf_swin(watch: Watch) -> None:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=5)
    train(watch, SwinForImageClassification(config), images(), classify)


@program(needs=("transformers",))
def hf_clip(watch: Watch) -> None:
    from transformers import CLIPConfig, CLIPModel

    text = small(projection_dim=16, bos_token_id=1, eos_token_id=2)
    config = CLIPConfig(text_config=text, projection_dim=16,
                        vision_config={"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                                       "num_attention_heads": 4, "image_size": 32, "patch_size": 8})
    train(watch, CLIPModel(config), lambda: (tokens()(), torch.randn(2, 3, 32, 32)),
          lambda model, batch: model(input_ids=batch[0], pixel_values=batch[1], return_loss=True).loss)


@program(needs=("lightning",))
def lightning_fit(watch: Watch) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(Block(), Block())

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = self.net(batch[0]).square().mean()
            watch.loss(loss)
            return loss

        def on_train_batch_start(self, batch: Any, index: int) -> None:
            self.window = watch.step(self)
            self.window.__enter__()

        def on_train_batch_end(self, *args: Any) -> None:
            self.window.__exit__(None, None, None)

        def configure_optimizers(self) -> Any:
            self.optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
            return self.optimizer

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(2 * STEPS, 4, 16)), 2)
    model = Module()
    lightning.Trainer(accelerator="cpu", max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False).fit(model, data)
    watch.finish(model, model.optimizer)


@program(needs=("torch_geometric",))
def pyg_gcn(watch: Watch) -> None:
    from torch_geometric.nn import GCNConv

    class Gcn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(8, 16), GCNConv(16, 5)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return self.second(F.relu(self.first(x, edges)), edges)

    train(watch, Gcn(), lambda: (torch.randn(10, 8), torch.randint(0, 10, (2, 30)), torch.randint(0, 5, (10,))),
          lambda model, batch: F.cross_entropy(model(batch[0], batch[1]), batch[2]))
