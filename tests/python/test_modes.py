# SPDX-License-Identifier: Apache-2.0
"""Modules in evaluation while a model is trained, found by task monitor without a collector."""

from __future__ import annotations

import pytest
import torch

from rankprobe.pytorch._modes import Modes


def _model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.1)),
                               torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Dropout(0)))


def _step(modes: Modes, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    modes.begin(model)
    modes.note()
    modes.hold(optimizer)


@pytest.mark.parametrize("root_only", [False, True])
def test_a_model_in_evaluation(root_only):
    model, modes = _model(), Modes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _step(modes, model, optimizer)
    assert modes.take() == [0, 3, 0]
    if root_only:
        model.training = False
    else:
        model.eval()
    _step(modes, model, optimizer)
    assert modes.take() == ([0, 3, 1] if root_only else [3, 3, 1])


def test_a_part_in_evaluation_is_told_from_the_whole():
    model, modes = _model(), Modes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[0].eval()
    _step(modes, model, optimizer)
    assert modes.take() == [2, 3, 0]
    # A frozen part does not count, whatever its mode.
    model[0].requires_grad_(False)
    modes = Modes()
    _step(modes, model, optimizer)
    assert modes.take() == [0, 1, 0]


def test_settings_of_what_is_trained():
    model, modes = _model(), Modes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[1][1].p, model[0][1].momentum = 0.9, 0.99
    _step(modes, model, optimizer)
    assert modes.take() and modes.settings == {"drop_probability": 0.9, "norm_momentum": 0.99}
    model[0][1].momentum = None  # the mean of all batches
    model[1].requires_grad_(False)
    modes = Modes()
    _step(modes, model, optimizer)
    assert modes.take() and modes.settings == {"drop_probability": 0.1}


def test_what_wraps_a_model_does_not_hide_its_mode():
    wrapper = torch.nn.Module()
    wrapper.module = _model()
    modes = Modes()
    wrapper.module.eval()
    _step(modes, wrapper, torch.optim.SGD(wrapper.parameters(), 0.1))
    assert wrapper.training and modes.take() == [3, 3, 1]


def test_one_loss_in_training_is_enough_and_other_models_do_not_count():
    model, other, modes = _model(), _model().eval(), Modes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.eval()
    modes.begin([model, other])
    modes.note()
    model.train()
    modes.note()
    modes.hold(optimizer)
    assert modes.take() == [0, 3, 0]


def test_without_a_loss_a_step_or_a_switch_nothing_is_said():
    model, modes = _model(), Modes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    modes.begin(model)
    modes.hold(optimizer)
    assert modes.take() is None
    modes.begin(model)
    modes.note()
    assert modes.take() is None
    linear = torch.nn.Linear(4, 4)
    _step(modes, linear, torch.optim.SGD(linear.parameters(), 0.1))
    assert modes.take() is None


def test_modules_that_are_replaced_are_found_and_nothing_is_kept_alive():
    model, modes = _model(), Modes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _step(modes, model, optimizer)
    model[1][1] = torch.nn.Identity()
    _step(modes, model, optimizer)
    assert modes.take() == [0, 2, 0]
    modes.begin(None)
    modes.note()
    assert modes.take() is None
