# SPDX-License-Identifier: Apache-2.0
"""RankprobeCallback in lightning.Trainer."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conftest import bits

lightning = pytest.importorskip("lightning")


class Net(lightning.LightningModule):
    def __init__(self, manual: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)
        self.automatic_optimization = not manual
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))

    def training_step(self, batch: Any, index: int) -> Any:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(loss.item())
        if self.automatic_optimization:
            return loss
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
            optimizer.step()
        return None

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        if self.automatic_optimization:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [torch.optim.SGD(part.parameters(), lr=1e-2) for part in (self.body, self.head)]


def data(count: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(
        torch.randn(count, 8, generator=generator), torch.randint(0, 2, (count,), generator=generator)), batch_size=2)


def fit(*callbacks: Any, net: Any = None, batches: int = 4, resume: Any = None, epochs: int = 2, save: str = "", **more: Any) -> Any:
    """Losses, and the bits of the trained model. Validation runs in the middle of each epoch as well."""
    net = net or Net()
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False, callbacks=list(callbacks), val_check_interval=0.5,
                                **{"accumulate_grad_batches": 2, **more})
    trainer.fit(net, data(2 * batches), data(4), ckpt_path=resume)
    if save:
        trainer.save_checkpoint(save)
    return net.losses, bits(net)


def test_a_step_is_an_optimizer_step_without_its_validation(config: str, calls: Any) -> None:
    from rankprobe.integrations.lightning import RankprobeCallback

    plain = fit()
    assert fit(RankprobeCallback()) == plain
    assert fit(RankprobeCallback(config)) == plain
    assert calls("head") == {step: [f"Module.head.Linear.forward.{i}" for i in (0, 1)] for step in range(4)}


def test_a_resumed_training_goes_on_with_its_numbers(config: str, calls: Any) -> None:
    from rankprobe.integrations.lightning import RankprobeCallback

    fit(epochs=1, save="half.ckpt")
    fit(RankprobeCallback(config), resume="half.ckpt")
    assert list(calls("head")) == [2, 3]


def test_two_optimizers_step_in_each_batch(config: str, calls: Any) -> None:
    from rankprobe.integrations.lightning import RankprobeCallback

    plain = fit(net=Net(manual=True), epochs=1, accumulate_grad_batches=1)
    assert fit(RankprobeCallback(config), net=Net(manual=True), epochs=1, accumulate_grad_batches=1) == plain
    assert calls("head") == {step: [f"Module.head.Linear.forward.{i}" for i in range(3)] for step in range(4)}


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from test_lightning import fit
print(fit())
"""


def test_rankprobe_run_says_which_trainer_it_found(tmp_path: pathlib.Path, config: str, calls: Any) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.format(tests=str(pathlib.Path(__file__).parent)))
    package = str(pathlib.Path(__import__("rankprobe").__file__).parents[1])

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, *words, "train.py"], env={**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"},
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    watched = run("-m", "rankprobe.run", "--on", "--config", config, "--", sys.executable)
    assert watched.stdout == run().stdout
    assert "attached to Net of lightning.Trainer, recording; a step ends with AdamW.step()" in watched.stderr, watched.stderr
    # A validation belongs to the step that comes next.
    assert set(range(4)) <= set(calls("head"))
