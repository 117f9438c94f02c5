# SPDX-License-Identifier: Apache-2.0
"""Public programs, small and seeded: what tests/workloads/runner.py runs without rankprobe, attached, dumped by rankprobe
and dumped by msprobe.

    python programs.py NAME OUT.json      one of them, with nobody watching

A program is a function of a Watch; it trains STEPS steps and tells its model, optimizer and losses. Random weights of small
configurations: nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from typing import Any, Callable, Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 4


@dataclasses.dataclass
class Program:
    name: str
    run: Callable[["Watch"], None]
    ranks: int = 1
    # Importable packages that it needs beside torch.
    needs: tuple[str, ...] = ()


PROGRAMS: dict[str, Program] = {}


def program(ranks: int = 1, needs: tuple[str, ...] = ()) -> Callable:
    def register(function: Callable) -> Callable:
        PROGRAMS[function.__name__] = Program(function.__name__, function, ranks, needs)
        return function

    return register


class Watch:
    """The calls around a step. `debugger`: a PrecisionDebugger, or None where nobody watches from inside."""

    def __init__(self, debugger: Any = None) -> None:
        self.debugger = debugger
        self.losses: list[str] = []
        self.digest = ""

    @contextlib.contextmanager
    def step(self, model: nn.Module) -> Iterator[None]:
        if self.debugger is not None:
            self.debugger.start(model=model)
        yield
        if self.debugger is not None:
            self.debugger.stop()
            self.debugger.step()

    def loss(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss.detach()).hex())

    def finish(self, model: nn.Module, optimizer: Any = None) -> None:
        """Every bit of what was trained, into one digest."""
        sha = hashlib.sha256()

        def add(value: Any) -> None:
            if isinstance(value, torch.Tensor):
                local = value.to_local() if hasattr(value, "to_local") else value
                sha.update(local.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            elif isinstance(value, dict):
                for item in value.values():
                    add(item)
            elif isinstance(value, (list, tuple)):
                for item in value:
                    add(item)
            elif isinstance(value, (int, float, str)):
                sha.update(repr(value).encode())

        add(model.state_dict())
        if optimizer is not None:
            add(optimizer.state_dict()["state"])
        add(torch.get_rng_state())
        self.digest = sha.hexdigest()


def train(watch: Watch, model: nn.Module, batch: Callable[[], Any], loss_of: Callable[[nn.Module, Any], torch.Tensor],
          optimizer: Any = None, steps: int = STEPS) -> None:
    model.train()
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        data = batch()
        with watch.step(model):
            loss = loss_of(model, data)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        watch.loss(loss)
    watch.finish(model, optimizer)


def tokens(vocabulary: int = 64, length: int = 12) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, vocabulary, (2, length))


def causal(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).loss


def images(size: int = 32) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randn(2, 3, size, size), torch.randint(0, 5, (2,)))


def classify(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    out = model(batch[0])
    return F.cross_entropy(getattr(out, "logits", out), batch[1])


# PyTorch alone.


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                                  nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                  nn.Dropout(0.1), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@program()
def torch_cnn(watch: Watch) -> None:
    train(watch, Cnn(), images(), classify)


@program()
def torch_cnn_sgd_bf16_autocast(watch: Watch) -> None:
    model = Cnn()

    def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return classify(model, batch)

    train(watch, model, images(), loss_of, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


@program()
def torch_lstm(watch: Watch) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(64, 16), nn.LSTM(16, 16, 2, batch_first=True), nn.Linear(16, 64)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(self.embed(ids))[0])

    train(watch, Tagger(), tokens(), lambda model, ids: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


@program()
def torch_encoder(watch: Watch) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    train(watch, model, lambda: torch.randn(2, 6, 16), lambda model, x: model(x).square().mean())


class Block(nn.Module):
    """RMSNorm and residual: the input of a module is used twice."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.blocks, self.use_reentrant = nn.Linear(16, 16), nn.ModuleList(Block() for _ in range(3)), use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


@program()
def torch_checkpoint_reentrant(watch: Watch) -> None:
    train(watch, Checkpointed(True), lambda: torch.randn(2, 4, 16), lambda model, x: model(x).square().mean())


@program()
def torch_checkpoint(watch: Watch) -> None:
    train(watch, Checkpointed(False), lambda: torch.randn(2, 4, 16), lambda model, x: model(x).square().mean())


@program()
def torch_accumulate(watch: Watch) -> None:
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        with watch.step(model):
            for _ in range(2):
                loss = model(torch.randn(2, 4, 16)).square().mean() / 2
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.loss(loss)
    watch.finish(model, optimizer)


@program()
def torch_gan(watch: Watch) -> None:
    """Two optimizers, one step."""
    make, judge = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)), nn.Sequential(Block(), nn.Linear(16, 1))
    both = nn.ModuleDict({"make": make, "judge": judge})
    first, second = torch.optim.Adam(make.parameters(), 1e-3), torch.optim.Adam(judge.parameters(), 1e-3)
    for _ in range(STEPS):
        real, noise = torch.randn(4, 16), torch.randn(4, 8)
        with watch.step(both):
            loss = F.softplus(judge(make(noise).detach())).mean() + F.softplus(-judge(real)).mean()
            loss.backward()
            second.step()
            wrong = F.softplus(-judge(make(noise))).mean()
            wrong.backward()
        first.step()
        first.zero_grad()
        second.zero_grad()
        watch.loss(loss + wrong)
    watch.finish(both, first)


# Hugging Face.


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


@program()
def torch_stochastic_depth(watch: Watch) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = x.new_empty((x.shape[0], 1, 1)).bernoulli_(0.5)
            return x + (self.block(x) - x) * mask

    train(watch, nn.Sequential(Dropped(), Dropped()), lambda: torch.randn(4, 3, 16), lambda model, x: model(x).square().mean())


# Lightning, PyTorch Geometric.


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


# Two ranks over gloo.


@contextlib.contextmanager
def group() -> Iterator[int]:
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method="file://" + os.environ["WORKLOAD_STORE"], rank=rank, world_size=2)
    try:
        yield rank
    finally:
        dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def rows() -> torch.Tensor:
    return torch.randn(2, 4, 16)


@program(ranks=2)
def ddp(watch: Watch) -> None:
    with group():
        train(watch, nn.parallel.DistributedDataParallel(Net()), rows, square)


@program(ranks=2)
def ddp_accumulate(watch: Watch) -> None:
    with group():
        model = nn.parallel.DistributedDataParallel(Net())
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(STEPS):
            with watch.step(model):
                with model.no_sync():
                    square(model, rows()).backward()
                loss = square(model, rows())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.loss(loss)
        watch.finish(model, optimizer)


@program(ranks=2)
def fsdp2(watch: Watch) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with group():
        mesh, model = init_device_mesh("cpu", (2,)), Net()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(watch, model, rows, square)


@program(ranks=2)
def tensor_parallel(watch: Watch) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with group():
        model = Net()
        for block in model.blocks:
            parallelize_module(block, init_device_mesh("cpu", (2,)), {"up": ColwiseParallel(), "down": RowwiseParallel()})
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(STEPS):
            x = rows()
            with watch.step(model):
                loss = square(model, x)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.loss(loss)
        watch.finish(model, optimizer)


@program(ranks=2)
def pipelining(watch: Watch) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    with group() as rank:
        model = nn.Sequential(Block(), Block()) if rank == 0 else nn.Sequential(Block(), nn.Linear(16, 4))
        # Shapes are given: to find them, PyTorch runs the stages on memory that nobody has written, NaN and all.
        shapes = {"input_args": (torch.zeros(2, 16, requires_grad=rank == 1),),
                  "output_args": (torch.zeros(2, 16 if rank == 0 else 4, requires_grad=True),)}
        schedule = ScheduleGPipe(PipelineStage(model, rank, 2, torch.device("cpu"), **shapes), 2, loss_fn=F.mse_loss)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(STEPS):
            x, target = torch.randn(4, 16), torch.randn(4, 4)
            losses: list[torch.Tensor] = []
            with watch.step(model):
                if rank == 0:
                    schedule.step(x)
                else:
                    schedule.step(target=target, losses=losses)
            optimizer.step()
            optimizer.zero_grad()
            for loss in losses:
                watch.loss(loss)
        watch.finish(model, optimizer)


def seed() -> None:
    torch.manual_seed(1234)
    torch.set_num_threads(1)


def main(name: str, out: str) -> None:
    seed()
    watch = Watch()
    PROGRAMS[name].run(watch)
    with open(out, "w") as file:
        json.dump({"losses": watch.losses, "digest": watch.digest}, file)


if __name__ == "__main__":
    main(*sys.argv[1:3])
