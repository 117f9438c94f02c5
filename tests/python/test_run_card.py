# SPDX-License-Identifier: Apache-2.0
"""The run card: what tells whether two runs are the same experiment, and `rankprobe config_check`."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import warnings

import pytest
import torch

import harness
from rankprobe import _harmless
from rankprobe.pytorch import _run_card

CLI = harness.BIN / "rankprobe"
SCRIPT = """
import json, os, random, sys
import numpy, torch
from rankprobe.pytorch import PrecisionDebugger

told = json.loads(os.environ["TOLD"])
torch.manual_seed(told.get("seed", 1)); random.seed(2); numpy.random.seed(3)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=told.get("lr", 0.01))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
if "weight" in told:
    with torch.no_grad():
        model[2].weight[1, 3] += 1e-3
generator = torch.Generator().manual_seed(7)
debugger = PrecisionDebugger(config_path=sys.argv[1])
for step in range(4):
    batch = torch.randn(6, 4, generator=generator)
    if told.get("swap") == step:
        batch = batch[torch.tensor([1, 0, 2, 3, 4, 5])]
    if told.get("draw") == step:
        torch.rand(1)
    debugger.start(model=model)
    optimizer.zero_grad()
    model(batch).square().sum().backward()
    optimizer.step(); scheduler.step()
    debugger.stop()
    debugger.step()
debugger.close()
"""


def _run(directory: pathlib.Path, name: str, *arguments: str, environment=None, **told) -> pathlib.Path:
    dump = directory / name
    config = directory / f"{name}.json"
    config.write_text(json.dumps({"task": "statistics", "dump_path": f"./{name}", "rank": [], "step": [], "level": "L0"}))
    subprocess.run([sys.executable, "-c", SCRIPT, config.name, *arguments], check=True, timeout=120, cwd=directory,
                   env={**os.environ, **(environment or {}), "TOLD": json.dumps(told)})
    return dump


def _card(dump: pathlib.Path, step: int = 0) -> dict:
    (place,) = (dump / f"step{step}").iterdir()
    return json.loads((place / "run_card.json").read_text())


def _check(*words: object, code: int) -> str:
    done = subprocess.run([CLI, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> pathlib.Path:
    return _run(tmp_path_factory.mktemp("plain"), "plain")


def test_the_first_recorded_step_says_what_the_process_is(plain) -> None:
    card = _card(plain)
    assert card["versions"]["torch"] == torch.__version__
    assert card["packages"]["numpy"] == __import__("numpy").__version__
    assert card["determinism"]["torch seed"] == "1" and card["determinism"]["threads"] == "1"
    assert card["model"]["class"] == "Sequential"
    assert card["model"]["parameters"] == "4, 58 elements, 58 trainable"
    assert sorted(card["weights"]) == ["(all, and buffers)", "0.bias", "0.weight", "2.bias", "2.weight"]
    assert card["weights"]["0.weight"].startswith("float32[8, 4] ")
    assert card["optimizer"]["0 Adam.group 0.lr"] == "0.005" or card["optimizer"]["0 Adam.group 0.lr"] == "0.01"
    assert card["optimizer"]["0 Adam.group 0.betas"] == "(0.9, 0.999)"
    assert card["scheduler"]["0 StepLR.gamma"] == "0.5"
    assert card["world"]["ranks"] == "1"
    assert card["host"]["hostname"]
    assert set(card["random state"]) == {"python", "torch", "numpy"}


def test_later_steps_say_what_changes_from_step_to_step(plain) -> None:
    cards = [_card(plain, step) for step in range(4)]
    for card in cards[1:]:
        assert set(card) == {"random state", "batch", "learning rate"}
    assert [card["learning rate"]["0 Adam"] for card in cards] == ["0.01", "0.005", "0.005", "0.0025"]
    assert len({card["batch"]["forward"] for card in cards}) == 4
    assert len({card["random state"]["torch"] for card in cards}) == 1, "we draw no random number"


def test_two_runs_of_the_same_experiment_do_not_differ(plain, tmp_path) -> None:
    text = _check("config_check", plain, _run(tmp_path, "plain"), code=0)
    assert text.startswith("0 differences in ") and text.endswith(" facts of 1 rank, 4 steps\n"), text


@pytest.mark.parametrize("told, first", [
    ({"seed": 5}, "weights (all, and buffers), rank 0: "),
    ({"weight": 1}, "weights (all, and buffers), rank 0: "),
    ({"swap": 2}, "batch forward, step 2, rank 0: float32[6, 4] "),
    ({"draw": 3}, "random state torch, step 3, rank 0: uint8[5056] "),
    ({"lr": 0.02}, "learning rate 0 Adam, step 0, rank 0: 0.02 | 0.01"),
], ids=str)
def test_what_was_not_the_same_is_named_first(plain, tmp_path, told, first) -> None:
    other = _run(tmp_path, "plain", **told)
    lines = _check("config_check", other, plain, code=1).splitlines()
    assert lines[0].startswith(first), lines
    # The statistics of a batch in another order are the same: only the card tells. What differs stands behind the
    # result, if it can explain it.
    same = "draw" in told or "swap" in told
    result = _check("first-divergence", other, plain, code=0 if same else 1)
    assert "Not the same experiment" not in result and result.startswith("No difference" if same else "step "), result


def test_json_has_the_same_differences(plain, tmp_path) -> None:
    other = _run(tmp_path, "plain", weight=1)
    report = json.loads(_check("config_check", other, plain, "--json", code=1))
    names = [(d["section"], d["name"]) for d in report["differences"]]
    assert names[:2] == [("weights", "(all, and buffers)"), ("weights", "2.weight")]
    assert report["ranks_compared"] == "1" or report["ranks_compared"] == 1


def test_secrets_are_in_no_file(tmp_path) -> None:
    secret = "hunter2hunter2"
    dump = _run(tmp_path, "plain", "--lr", "0.5", "--api-key", secret, f"--data=s3://u:{secret}@host/x",
                f"--wandb_token={secret}", secret, "model.name=tiny", f"+trainer.password={secret}",
                environment={"HF_TOKEN": secret, "NCCL_SECRET_KEY": secret, "AWS_SESSION": secret,
                             "NCCL_DEBUG_SUBSYS": "INIT"})
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file
    card = _card(dump)
    assert card["environment"]["NCCL_DEBUG_SUBSYS"] == "INIT"
    line = card["command line"]
    assert line["--lr"] == "0.5"
    assert line["--api-key"] == line["--wandb_token"] == line["+trainer.password"] == "(not recorded)"
    assert line["--data"].startswith("(not recorded, checksum ")


def test_a_pack_of_msprobe_is_read_by_the_same_lists() -> None:
    source = (harness.ROOT / "analysis" / "run_card" / "config_pack.cc").read_text()

    def words(name: str) -> list[str]:
        return re.findall(r'"(.*?)"', re.search(rf"> {name} = {{(.*?)}};", source, re.DOTALL).group(1))

    prefixes, names = re.fullmatch(r"\(([A-Z|]+)\)_\[A-Z0-9_\]\+\|([A-Z_|]+)", _harmless.ENVIRONMENT.pattern).groups()
    assert words("kHarmless") == [f"{prefix}_" for prefix in prefixes.split("|")]
    assert words("kHarmlessNames") == names.split("|")
    assert words("kSecret") == list(_harmless.WITHIN)
    assert words("kSecretWords") == list(_harmless.WORDS)


def test_off_by_the_environment(tmp_path) -> None:
    dump = _run(tmp_path, "plain", environment={"RANKPROBE_RUN_CARD": "0"})
    assert not list(dump.rglob("run_card.json"))
    text = subprocess.run([CLI, "config_check", dump, dump], capture_output=True, text=True, timeout=60)
    assert text.returncode == 4 and "no rank has a run_card.json" in text.stderr


def test_what_is_no_dump_of_ours_is_an_error(plain, tmp_path) -> None:
    pack = tmp_path / "pack.zip"
    pack.write_bytes(b"PK")
    done = subprocess.run([CLI, "config_check", pack, plain], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "is compared with another pack, not with a dump" in done.stderr
    done = subprocess.run([CLI, "config_check", pack, pack], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "pack.zip: " in done.stderr


class _Strange(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)

    def named_parameters(self, *_, **__):
        raise RuntimeError("mine")


def test_a_strange_model_trains_on(dump) -> None:
    model = _Strange()
    debugger = dump.debugger(level="L0")
    debugger.start(model=model)
    model(torch.ones(1, 2)).sum().backward()
    twin = copy.deepcopy(model)
    debugger.stop()
    debugger.step()
    card = json.loads((dump.rank_directory() / "run_card.json").read_text())
    assert card["model"]["class"] == "_Strange" and "inner.weight" in card["weights"]  # its method is not called
    assert "Module.inner.Linear.forward.0" in dump.data()
    twin(torch.ones(1, 2))


def test_the_model_has_no_hook_of_ours(dump) -> None:
    """It would show in every stack below it."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    debugger = dump.debugger(level="mix")
    debugger.start(model=model)
    hooks = [*model._forward_pre_hooks.values(), *model._forward_hooks.values()]
    assert not [hook for hook in hooks if hook.__module__.endswith("_run_card")]
    model(torch.ones(1, 2))
    debugger.stop()
    debugger.step()
    card = json.loads((dump.rank_directory() / "run_card.json").read_text())
    assert card["batch"] == {"forward": _run_card.digest(torch.ones(1, 2), 100)}


def test_a_batch_of_keywords_of_the_second_of_two_models(dump) -> None:
    class Keywords(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, *, x, scale):
            return self.inner(x) * scale

    models = [torch.nn.Linear(2, 2), Keywords()]
    debugger = dump.debugger(level="L0")
    debugger.start(model=models)
    models[1](x=torch.ones(1, 2), scale=2)
    debugger.stop()
    debugger.step()
    card = json.loads((dump.rank_directory() / "run_card.json").read_text())
    assert card["batch"] == {"1.forward": _run_card.digest(torch.ones(1, 2), 100)}
    assert "0.weight" in card["weights"] and "1.inner.weight" in card["weights"]


def test_what_cannot_be_read_has_a_shape(recwarn) -> None:
    warnings.simplefilter("ignore")
    assert _run_card.digest(torch.ones(2, 3, device="meta"), 100) == "float32[2, 3]"
    assert _run_card.digest(torch.ones(0), 100) == "float32[0]"
    assert _run_card.digest(torch.eye(3).to_sparse(), 100) == "float32[3, 3]"
    ordered = torch.arange(6.0).reshape(2, 3)
    assert _run_card.digest(ordered.t(), 100) == _run_card.digest(ordered.t().contiguous(), 100)
    assert _run_card.digest(ordered, 4) != _run_card.digest(ordered, 24)
    assert _run_card.batch_digest((1, "x"), None) == ""


def test_a_batch_is_many_tensors() -> None:
    ids, mask = torch.arange(6).reshape(2, 3), torch.ones(2, 3)
    one = _run_card.batch_digest((), {"ids": ids, "mask": [mask]})
    assert one.startswith("2 tensors ")
    assert one != _run_card.batch_digest((), {"ids": ids.flip(0), "mask": [mask]})
    assert one == _run_card.batch_digest((), {"ids": ids.clone(), "mask": [mask.clone()]})


def test_addresses_are_no_settings() -> None:
    """Of transformers' schedules: functools.partial shows the function with its address."""
    import functools

    import torch

    from rankprobe.pytorch._run_card import optimizer_facts

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    def facts() -> list:
        def schedule(step: int, *, warmup: int) -> float:
            return 1.0

        return list(optimizer_facts([optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(schedule, warmup=3))]))

    one, other = facts(), facts()
    assert one == other and any("warmup=3" in value and "schedule>" in value for _, _, value in one), one


def test_optimizers_have_the_same_numbers_in_each_run() -> None:
    """gc.get_objects() has young objects first, and which are young is chance."""
    import gc

    card = _run_card.RunCard(None, lambda function: None)
    gc.collect()
    kept = [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)]
    gc.collect()
    kept.append(torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=0.1))
    kept.append(torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.2))
    schedulers = [torch.optim.lr_scheduler.ConstantLR(optimizer) for optimizer in kept]
    young = card._find_optimizers()
    gc.collect()
    assert young == card._find_optimizers() and len(schedulers) == 3


def test_what_is_plain_is_read_without_an_operator_and_has_the_same_digest(dump) -> None:
    read = dump.debugger(level="L0")._capture.digest
    table = torch.arange(24).reshape(4, 6)
    plain = [table, table[1:3], torch.ones(()), torch.ones(2, 1, 3).transpose(0, 1), torch.nn.Parameter(torch.ones(3)),
             *(torch.ones(2, 3).to(kind) for kind in (torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.bool,
                                                      torch.complex64))]
    for tensor in plain:
        for limit in (1, 7, 48, 1 << 20):
            assert read(tensor, limit) == _run_card.digest(tensor, limit), (tensor, limit)
    other = [table.t(), table[:, 1:], torch.ones(0), torch.ones(2, device="meta"), torch.eye(2).to_sparse(),
             torch.ones(2, dtype=torch.complex64).conj(), torch.ones(1).expand(3)]
    assert [read(tensor, 100) for tensor in other] == [""] * len(other)
    assert read("text", 100) == ""
    freed = torch.ones(3)
    freed.storage().resize_(0)  # as FSDP does
    assert read(freed, 100) == "" and _run_card.digest(freed, 100) == "float32[3]"


@pytest.mark.parametrize("module", ["random", "numpy"])
def test_a_generator_that_nobody_drew_from_is_known(module: str) -> None:
    import random

    import numpy

    seed, draw = {"random": (random.seed, random.random), "numpy": (numpy.random.seed, numpy.random.random_sample)}[module]
    python, before = random.getstate(), numpy.random.get_state()
    name = {"random": "python"}.get(module, module)

    def said() -> str:
        return dict(_run_card.random_state(lambda tensor, limit: ""))[name]

    try:
        for number in (0, 3, 1 << 31):
            seed(number)
            assert said().endswith(", never drawn from")
            for _ in range(312):  # two words each: as many as there are
                draw()
                assert "never" not in said()
    finally:
        random.setstate(python)
        numpy.random.set_state(before)


def test_the_state_of_a_generator_is_told_anew_whatever_of_it_has_changed() -> None:
    """What was said is kept as long as the memory of the generator is the same."""
    import random

    import numpy

    from rankprobe.pytorch import _generators

    before = random.getstate(), numpy.random.get_state()
    changes = [lambda: random.seed(1), random.random, lambda: random.gauss(0, 1), lambda: random.gauss(0, 1),
               lambda: random.setstate(before[0]), lambda: numpy.random.seed(1), numpy.random.random_sample,
               numpy.random.randn, numpy.random.randn, lambda: numpy.random.shuffle([1, 2, 3]),
               lambda: numpy.random.set_state(before[1])]
    try:
        told = None
        for change in changes:
            change()
            states = [(_generators.python_state(), _generators.numpy_state(numpy.random)) for _ in range(2)]
            _generators._said_of.clear()
            states.append((_generators.python_state(), _generators.numpy_state(numpy.random)))
            assert states[0] == states[1] == states[2] != told
            told = states[0]
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])


def test_another_generator_in_the_place_of_numpys_is_asked_itself(monkeypatch) -> None:
    import numpy

    from rankprobe.pytorch import _generators

    def states(generator: numpy.random.RandomState) -> list[str]:
        monkeypatch.setattr(numpy.random, "get_state", generator.get_state)
        return [_generators.numpy_state(numpy.random), generator.random_sample() and _generators.numpy_state(numpy.random)]

    first, second = states(numpy.random.RandomState(3))
    assert first != second and states(numpy.random.RandomState(3)) == [first, second]
