# SPDX-License-Identifier: Apache-2.0
"""RankprobeCallback in transformers.Trainer and in a trainer of TRL."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from conftest import bits, llama, rows

pytest.importorskip("transformers")
PACKAGE = str(pathlib.Path(__import__("rankprobe").__file__).parents[1])
HEAD = "lm_head"


def arguments(**more: Any) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(**{
        "output_dir": "out", "max_steps": 4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "logging_steps": 1,
        "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True,
        "learning_rate": 1e-2, **more})


def train(*callbacks: Any, resume: Any = None, **more: Any) -> tuple[list[Any], str]:
    """Its losses, and the bits of the trained model."""
    from transformers import Trainer

    trainer = Trainer(llama(), arguments(**more), train_dataset=rows(16), eval_dataset=rows(4), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return [(log["step"], log.get("loss"), log.get("eval_loss")) for log in trainer.state.log_history if "train_loss" not in log], bits(trainer.model)


def test_a_step_is_an_optimizer_step_without_its_evaluation(config: str, calls: Any) -> None:
    from rankprobe.integrations.transformers import RankprobeCallback

    plain = train()
    assert train(RankprobeCallback()) == plain
    assert train(RankprobeCallback(config)) == plain
    assert calls(HEAD) == {step: [f"Module.{HEAD}.Linear.forward.{i}" for i in (0, 1)] for step in range(4)}


def test_nothing_is_made_unless_asked(tmp_path: pathlib.Path) -> None:
    from rankprobe.integrations.transformers import RankprobeCallback
    from rankprobe.pytorch import PrecisionDebugger

    train(RankprobeCallback(), max_steps=1)
    assert PrecisionDebugger._instance is None and {p.name for p in tmp_path.iterdir()} <= {"out"}


def test_a_resumed_training_goes_on_with_its_numbers(config: str, calls: Any) -> None:
    from rankprobe.integrations.transformers import RankprobeCallback

    train(max_steps=2, save_strategy="steps", save_steps=2)
    train(RankprobeCallback(config), resume="out/checkpoint-2")
    assert list(calls(HEAD)) == [2, 3]


def test_a_second_training_has_later_numbers(config: str, calls: Any, capfd: Any) -> None:
    from rankprobe.integrations.transformers import RankprobeCallback

    for _ in range(2):
        train(RankprobeCallback(config), max_steps=2)
    assert list(calls(HEAD)) == [0, 1, 2, 3]
    assert "the numbers continue with 2" in capfd.readouterr().err


@pytest.mark.parametrize("method", ["_start", "_stop", "_step"])
def test_a_fault_of_ours_ends_no_training(config: str, monkeypatch: pytest.MonkeyPatch, capfd: Any, method: str) -> None:
    from rankprobe.integrations.transformers import RankprobeCallback
    from rankprobe.pytorch import PrecisionDebugger

    plain = train()

    def fail(*_: Any) -> None:
        raise OSError("planted")

    monkeypatch.setattr(PrecisionDebugger, method, fail)
    assert train(RankprobeCallback(config)) == plain
    assert capfd.readouterr().err.count("nothing more is recorded, and the training continues: OSError('planted')") == 1


def test_a_bad_config_is_named_before_the_training(tmp_path: pathlib.Path) -> None:
    from rankprobe.integrations.transformers import RankprobeCallback
    from rankprobe.pytorch import InvalidParameterError

    (tmp_path / "bad.json").write_text('{"task": "statistics", "level": "L7"}')
    with pytest.raises(InvalidParameterError, match="L7"):
        RankprobeCallback("bad.json")


PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    from transformers import Trainer
    from conftest import llama, rows
    from test_transformers import arguments
    from rankprobe.integrations.transformers import RankprobeCallback
    callbacks = [RankprobeCallback()] if "callback" in sys.argv else []
    Trainer(llama(), arguments(), train_dataset=rows(16), eval_dataset=rows(4), callbacks=callbacks).train()
"""


def run(tmp_path: pathlib.Path, *words: str, **variables: str) -> str:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM).format(tests=str(pathlib.Path(__file__).parent)))
    done = subprocess.run([sys.executable, *words], env={**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1", **variables},
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def test_under_rankprobe_run_the_callback_has_the_steps(tmp_path: pathlib.Path, config: str, calls: Any) -> None:
    said = run(tmp_path, "-m", "rankprobe.run", "--on", "--config", config, "--", sys.executable, "train.py", "callback")
    assert "attached to LlamaForCausalLM, recording; a step is one of transformers.Trainer" in said
    assert calls(HEAD) == {step: [f"Module.{HEAD}.Linear.forward.{i}" for i in (0, 1)] for step in range(4)}


def test_rankprobe_run_says_which_trainer_it_found(tmp_path: pathlib.Path, config: str, calls: Any) -> None:
    said = run(tmp_path, "-m", "rankprobe.run", "--on", "--config", config, "--", sys.executable, "train.py")
    assert "attached to LlamaForCausalLM of transformers.Trainer, recording; a step ends with AdamW.step()" in said
    assert set(range(4)) <= set(calls(HEAD))


def test_each_rank_has_its_own(tmp_path: pathlib.Path, config: str, calls: Any) -> None:
    """Two ranks under DistributedDataParallel."""
    run(tmp_path, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "train.py", "callback", RANKPROBE_CONFIG=config)
    for rank in ("rank0", "rank1"):
        assert calls(HEAD, rank=rank) == {step: [f"Module.{HEAD}.Linear.forward.{i}" for i in (0, 1)] for step in range(4)}


def test_a_trainer_of_trl(config: str, calls: Any) -> None:
    pytest.importorskip("trl")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from datasets import Dataset
    from rankprobe.integrations.transformers import RankprobeCallback

    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 64)}}, unk_token="<pad>"))

    def tuned(*callbacks: Any) -> str:
        settings = SFTConfig(output_dir="out", max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[],
                             use_cpu=True, disable_tqdm=True, save_strategy="no", bf16=False, max_length=8)
        data = Dataset.from_list([{"input_ids": row["input_ids"].tolist()} for row in rows(12)])
        trainer = SFTTrainer(llama(), settings, train_dataset=data, callbacks=list(callbacks),
                             processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"))
        trainer.train()
        return bits(trainer.model)

    assert tuned(RankprobeCallback(config)) == tuned()
    # Its loss computes the logits in chunks, and does not call the head.
    assert calls("model.norm") == {step: [f"Module.model.norm.LlamaRMSNorm.forward.{i}" for i in (0, 1)] for step in range(3)}
