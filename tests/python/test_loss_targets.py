# SPDX-License-Identifier: Apache-2.0
"""Task monitor's reading of a loss's graph, and the buffers that it records: without a collector."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rankprobe.pytorch._loss_targets import LossTargets, _checksum
from rankprobe.pytorch._monitor import Monitor

pytestmark = pytest.mark.skipif(not hasattr(getattr(torch.autograd.graph, "Node", None), "register_prehook"), reason="PyTorch below 2 has no hooks of nodes")
IGNORED = -100


def _taken(loss: torch.Tensor, targets: LossTargets) -> dict:
    targets.note(loss)
    loss.backward()
    return targets.take()


def _logits_and_target() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    target = torch.randint(0, 8, (4, 6))
    target[:, :2] = IGNORED
    return torch.randn(24, 8, requires_grad=True), target.reshape(-1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weight_of_a_target(reduction):
    logits, target = _logits_and_target()
    loss = F.cross_entropy(logits, target, reduction=reduction)
    if reduction == "none":
        loss = (loss * (torch.arange(24) >= 12)).sum() / 8
    else:
        loss = loss * 0.5
    taken = _taken(loss, LossTargets())
    counted = 8 if reduction == "none" else 16
    assert taken["loss_tokens"].item() == counted
    assert taken["token_weight"].item() == pytest.approx({"mean": 0.5 / 16, "sum": 0.5, "none": 1 / 8}[reduction])
    assert taken["guessing_loss"].item() == pytest.approx(2.0794415)


def _ctc(x):
    return F.ctc_loss(x.transpose(0, 1), torch.ones(4, 2).long(), torch.full((4,), 6), torch.full((4,), 2))


@pytest.mark.parametrize("made, told", [
    (lambda x, y: F.cross_entropy(x.softmax(-1).reshape(-1, 8), y), 2), (lambda x, y: F.nll_loss(x.softmax(-1).reshape(-1, 8), y), 1),
    (lambda x, y: F.binary_cross_entropy_with_logits(x.sigmoid()[..., 0].reshape(-1), y.clamp(0, 1).float()), 2),
    (lambda x, y: F.cross_entropy(x.reshape(-1, 8), y), None), (lambda x, y: F.cross_entropy(x.log_softmax(-1).reshape(-1, 8), y), None),
    (lambda x, y: F.nll_loss(x.softmax(-1).log().reshape(-1, 8), y), None),
    # Of an attention that is the last layer: over another number of elements.
    (lambda x, y: F.cross_entropy((x.transpose(1, 2).softmax(-1).transpose(1, 2)).reshape(-1, 8), y), None),
    (lambda x, y: F.binary_cross_entropy_with_logits(x[..., 0].reshape(-1), y.clamp(0, 1).float()), None),
    # Over the batch or the places.
    (lambda x, y: F.nll_loss(x.reshape(-1, 8).log_softmax(0), y), 3), (lambda x, y: F.nll_loss(x.log_softmax(1).reshape(-1, 8), y), 3),
    (lambda x, y: F.cross_entropy(x.reshape(-1, 8).softmax(0), y), 3), (lambda x, y: F.cross_entropy(x.log_softmax(-2).reshape(-1, 8), y), 3),
    (lambda x, y: F.nll_loss(x.transpose(1, 2).log_softmax(1).transpose(1, 2).reshape(-1, 8), y), None),
    (lambda x, y: F.nll_loss(x.reshape(-1, 8).T.log_softmax(0).T, y), None),
    (lambda x, y: F.nll_loss(x.reshape(-1, 8)[:8].log_softmax(0), torch.arange(8)), None),  # likenesses
    (lambda x, y: F.cross_entropy(x.reshape(-1, 8).relu(), y), 4),
    (lambda x, y: F.binary_cross_entropy_with_logits(x[..., 0].relu().reshape(-1), y.clamp(0, 1).float()), 4),
    # What a dropout leaves, and a layer behind one; a mask of classes.
    (lambda x, y: F.cross_entropy(F.dropout(x, 0.3).reshape(-1, 8), y), 9),
    (lambda x, y: F.binary_cross_entropy_with_logits(F.dropout(x, 0.3), torch.rand(4, 6, 8)), 9),
    (lambda x, y: F.cross_entropy(F.dropout(x, 0.3).reshape(-1, 8) @ torch.ones(8, 8), y), None),
    (lambda x, y: F.cross_entropy(x.reshape(-1, 8) * (torch.rand(24, 8) < 0.7), y), None),
    # What a layer makes; a softmax of one number; a divergence, and a sum that looks like one.
    (lambda x, y: F.nll_loss(x.reshape(-1, 8) @ torch.ones(8, 8), y), 5), (lambda x, y: F.nll_loss(-x.reshape(-1, 8), y), None),
    (lambda x, y: _ctc(x.log_softmax(-1)), None), (lambda x, y: _ctc(x.softmax(-1)), 1), (lambda x, y: _ctc(x @ torch.ones(8, 8)), 5),
    (lambda x, y: F.cross_entropy(x.reshape(-1, 1), torch.zeros(192).long()), 6),
    (lambda x, y: F.binary_cross_entropy(x[..., :1].reshape(-1, 1).softmax(1), torch.ones(24, 1)), 6),
    (lambda x, y: F.binary_cross_entropy(x[..., :2].softmax(-1).reshape(-1, 2), torch.ones(24, 2)), None),
    (lambda x, y: F.kl_div(x.softmax(-1), torch.ones(4, 6, 8) / 8, reduction="sum"), 1), (lambda x, y: F.kl_div(x.log_softmax(-1), torch.ones(4, 6, 8) / 8, reduction="sum"), None),
    (lambda x, y: (torch.ones(4, 6, 8) - torch.rand(4, 6, 8) * x.softmax(-1)).sum(), 0),
    (lambda x, y: F.cross_entropy(x.relu().mean(1), y[:4]), None), (lambda x, y: F.cross_entropy(F.gelu(x).reshape(-1, 8), y), None)])
def test_a_loss_of_probabilities(made, told):
    logits, target = _logits_and_target()
    taken = _taken(made(logits.reshape(4, 6, 8), target), LossTargets())
    assert (taken["loss_of_probabilities"].item() if "loss_of_probabilities" in taken else None) == told


def test_micro_batches_are_a_list_and_a_loss_without_a_cross_entropy_says_nothing():
    logits, target = _logits_and_target()
    targets = LossTargets()
    for _ in range(2):
        loss = F.cross_entropy(logits, target) / 2
        targets.note(loss)
        loss.backward()
    assert [one.item() for one in targets.take()["loss_tokens"]] == [16, 16]
    assert _taken(logits.square().mean(), targets) == {}
    targets.note(logits.detach().sum())
    assert targets.take() == {}


def test_hooks_of_the_program_that_pack_tensors_are_not_called():
    unpacked = []
    logits, target = _logits_and_target()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: (unpacked.append(1), tensor)[1]):
        loss = F.cross_entropy(logits, target)
    targets = LossTargets()
    targets.note(loss)
    assert not unpacked
    loss.backward()
    assert targets.take() == {}


def test_the_input_checksum_is_of_what_the_first_layers_take():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 8))
    embed = torch.nn.Embedding(9, 8)

    def checksum(made):
        return _taken(F.cross_entropy(made, torch.arange(2)), LossTargets()).get("input_checksum")

    images = torch.rand(2, 3, 4, 4)
    first = checksum(net(images))
    with torch.no_grad():
        net[0].weight.add_(1)
    assert checksum(net(images)) == first != checksum(net(images.flip(0)))
    tokens = torch.tensor([[1, 2], [3, 4]])
    assert checksum(embed(tokens).sum(1)) == checksum(embed(tokens).sum(1)) != checksum(embed(tokens.flip(0)).sum(1))
    assert checksum(torch.rand(2, 8, requires_grad=True)) is None  # no layer


def test_the_checksum_is_of_targets_and_their_order():
    def checksum(target: torch.Tensor) -> float:
        return _taken(F.cross_entropy(torch.randn(24, 8, requires_grad=True), target), LossTargets())["target_checksum"].item()

    target = torch.arange(24) % 8
    swapped = target.clone()
    swapped[[2, 3]] = target[[3, 2]]
    assert checksum(target) == checksum(target.clone())
    assert len({checksum(target), checksum(swapped), checksum(target.flip(0)), checksum((target + 1).clamp(0, 7))}) == 4
    assert 0 <= checksum(target) < 1 << 24


def test_targets_of_one_class():
    def is_one(target: list[int]) -> float:
        loss = F.cross_entropy(torch.randn(len(target), 8, requires_grad=True), torch.tensor(target), ignore_index=IGNORED)
        return _taken(loss, LossTargets())["one_class"].item()

    assert is_one([3, 3, 3]) == is_one([3, IGNORED, 3]) == 1
    assert is_one([3, 3, 4]) == is_one([3, IGNORED, 4]) == is_one([IGNORED, IGNORED]) == 0


def test_batches_of_few_classes_and_of_numbers_in_a_row_have_their_own_checksums():
    generator = torch.Generator().manual_seed(0)
    for made in (lambda: torch.randint(0, 10, (20,), generator=generator),
                 lambda: torch.randint(0, 60, (4, 1), generator=generator) + torch.arange(16)):
        batches = [made() for _ in range(400)]
        assert len({_checksum(batch).item() for batch in batches}) == len(batches)


def test_the_checksum_of_many_numbers_is_not_of_the_first_alone():
    masks = torch.zeros(3, 2, 512, 512)
    masks[1, 1, 200:300, 200:300], masks[2, 1, 400:, 400:] = 1, 1
    assert len({_checksum(mask).item() for mask in masks}) == 3


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_targets_that_are_tokens_of_the_input(shift):
    torch.manual_seed(0)
    sequence = torch.randint(0, 50, (4, 12))
    embedding = torch.nn.Embedding(50, 50)
    logits = embedding(sequence[:, :10])
    target = sequence[:, shift:shift + 10] if shift < 2 else sequence[:, 2:11]
    logits = logits[:, :target.shape[1]]
    taken = _taken(F.cross_entropy(logits.reshape(-1, 50), target.reshape(-1)), LossTargets())
    shares = [share.item() for share in taken["target_is_input"]]
    assert shares[shift] == 1 and max(shares[:shift] + shares[shift + 1:]) < 0.3


@pytest.mark.parametrize("target_of, width, number", [(lambda row: row.roll(-1, 1), 10, 4), (lambda row: row.roll(1, 1), 10, 0),
                                                      (lambda row: row.roll(-1, 1).index_fill(1, torch.tensor(9), -100), 10, 0),
                                                      (lambda row: row.roll(-1, 1), 5, 0)])
def test_the_rows_that_end_with_their_first_token(target_of, width, number):
    """width: of what a row repeats."""
    row = torch.stack([torch.randperm(50)[:width] for _ in range(4)]).repeat(1, 10 // width)
    logits = torch.nn.Embedding(50, 50)(row)
    taken = _taken(F.cross_entropy(logits.reshape(-1, 50), target_of(row).reshape(-1)), LossTargets())
    assert taken["target_is_input"][-1].item() == number


def test_the_gradients_are_those_of_nobody_watching():
    gradients = []
    for watched in (False, True):
        logits, target = _logits_and_target()
        loss = F.cross_entropy(logits, target) / 3
        targets = LossTargets()
        if watched:
            targets.note(loss)
        loss.backward()
        targets.take()
        gradients.append(logits.grad)
    assert torch.equal(*gradients)


class _Capture:
    def __init__(self) -> None:
        self.saved: dict[str, dict] = {}

    def save_monitored(self, name: str, values: dict) -> None:
        self.saved[name] = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in values.items()}

    def enter_quiet(self) -> None:
        pass

    leave_quiet = enter_quiet


def test_buffers_of_the_state_are_recorded_as_they_are_then():
    class Router(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
            self.register_buffer("bias", torch.zeros(4))
            self.register_buffer("load", torch.zeros(4), persistent=False)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.bias = self.bias + 1  # another tensor in its place
            return self.norm(self.fc(x))

    model, capture = Router(), _Capture()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(capture)
    words = ("weight_gradients", "parameters", "optimizer", "updates", "training")
    monitor.begin_step({"monitor": dict.fromkeys(words, True), "list": []}, model)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    monitor.end_step()
    assert [name for name in capture.saved if name.startswith("Buffer.")] == ["Buffer.bias"]
    assert torch.equal(capture.saved["Buffer.bias"]["buffer"], torch.ones(4))


@pytest.mark.parametrize("dtype, training, told", [(torch.bfloat16, True, [2, 3]), (torch.bfloat16, False, None), (torch.float32, True, None)])
def test_updates_that_rounding_drops(dtype, training, told):
    model, capture = torch.nn.Linear(4, 1, bias=False).to(dtype), _Capture()
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    monitor = Monitor(capture)
    for _ in range(2):
        monitor.begin_step({"monitor": {**dict.fromkeys(("parameters", "optimizer", "weight_gradients"), False), "updates": True,
                                        "training": training}, "list": []}, model)
        model.weight.grad = torch.tensor([[0.5, 1e-4, 1e-4, 0]], dtype=dtype)
        optimizer.step()
        monitor.end_recording()
        monitor.end_step()
        rounded = capture.saved.pop("Training", {}).get("rounded_updates")
        assert told == (rounded if rounded is None else [one.item() for one in rounded])
        assert not monitor._rounded, "nothing is kept from step to step"
