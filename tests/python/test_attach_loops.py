# SPDX-License-Identifier: Apache-2.0
"""`rankprobe run` and the loops that programs have: which step is which, and whose modules are in it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import rankprobe


def _run(directory: pathlib.Path, script: str, *flags: str, file: str = "dump.json") -> tuple[list[dict], str]:
    """The entries of each step, and what was said."""
    (directory / "train.py").write_text("import gc, torch\nimport torch.nn as nn\ntorch.manual_seed(0)\n" + textwrap.dedent(script))
    package = str(pathlib.Path(rankprobe.__file__).parents[1])
    done = subprocess.run([sys.executable, "-m", "rankprobe.run", "--on", *flags, "--", sys.executable, "train.py"], cwd=directory,
                          env={**os.environ, "PYTHONPATH": package}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "not attached" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    steps = sorted((directory / "dump_path").glob("step*"), key=lambda path: int(path.name[4:]))
    assert [path.name for path in steps] == [f"step{i}" for i in range(len(steps))]
    return [json.loads(next(path.glob(f"*/{file}")).read_text())["data"] for path in steps], done.stderr


def _forwards(step: dict, kind: str = "Module.") -> list[str]:
    return [name for name in step if name.startswith(kind) and ".forward" in name]


def test_folds_one_after_the_other(tmp_path: pathlib.Path) -> None:
    """wandb#279: the model and the optimizer before are deleted, and are not held by us."""
    steps, said = _run(tmp_path, """
        import weakref
        for fold in range(3):
            m = nn.Sequential(nn.Linear(4, 4 + fold), nn.Linear(4 + fold, 1)); o = torch.optim.Adam(m.parameters())
            for i in range(2): l = m(torch.ones(2, 4)).mean(); o.zero_grad(); l.backward(); o.step()
            gone = weakref.ref(o)
            del m, o, l; gc.collect()
            assert gone() is None
        """)
    assert len(steps) == 6 and "a step ends with Adam.step()" in said
    assert said.count("the previous optimizer no longer exists") == 2
    for i, step in enumerate(steps):
        assert len(_forwards(step)) == 2 and step["Functional.linear.0.forward"]["output"][0]["shape"] == [2, 4 + i // 2]


def test_a_monitor_has_the_parameters_of_a_model_made_in_mid_step(tmp_path: pathlib.Path) -> None:
    """Those of the model before are freed, and their ids are soon those of other parameters."""
    steps, _ = _run(tmp_path, """
        def fold(size):
            m = nn.Sequential(nn.Linear(4, size), nn.Linear(size, 1)); o = torch.optim.Adam(m.parameters())
            for i in range(2): l = m(torch.ones(2, 4)).mean(); o.zero_grad(); l.backward(); o.step()
        for size in range(4, 12): fold(size)
        """, "--monitor", "--every", "1", file="debug.json")
    assert len(steps) == 16
    for i, step in enumerate(steps):
        found = {name: values["param"]["shape"] for name, values in step.items() if name.startswith("Parameter.")}
        size = 4 + i // 2
        assert found == {"Parameter.0.weight.0.debug": [size, 4], "Parameter.0.bias.0.debug": [size],
                         "Parameter.1.weight.0.debug": [1, size], "Parameter.1.bias.0.debug": [1]}, i


def test_an_optimizer_that_is_replaced(tmp_path: pathlib.Path) -> None:
    """Unfreezing: another optimizer of the same model, with the first one still there."""
    steps, said = _run(tmp_path, """
        m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)); first = torch.optim.SGD(m[1].parameters(), lr=.1)
        def train(o, n):
            for i in range(n): l = m(torch.ones(2, 4)).mean(); o.zero_grad(); l.backward(); o.step()
        train(first, 2); train(torch.optim.Adam(m.parameters()), 10)
        """)
    assert said.count("has not stepped for a while: a step now ends with Adam.step()") == 1
    assert len(steps) == 7 and len(_forwards(steps[2])) == 12 and all(len(_forwards(step)) == 2 for step in steps[3:])


def test_a_container_steps_its_optimizers(tmp_path: pathlib.Path) -> None:
    """torchtitan: an Optimizer that is made last, and whose step() calls those of the others."""
    steps, said = _run(tmp_path, """
        class Container(torch.optim.Optimizer):
            def __init__(self, inner):
                self.inner = inner
                super().__init__([p for one in inner for group in one.param_groups for p in group["params"]], {})
            def step(self, closure=None):
                for one in self.inner: one.step()
        m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        o = Container([torch.optim.AdamW(m[0].parameters()), torch.optim.SGD(m[1].parameters(), lr=.1)])
        for i in range(3): l = m(torch.ones(2, 4)).mean(); o.zero_grad(); l.backward(); o.step()
        """)
    assert "a step ends with AdamW.step()" in said and [len(_forwards(step)) for step in steps] == [2, 2, 2]


def test_two_models_with_an_optimizer_each(tmp_path: pathlib.Path) -> None:
    """A GAN: both models are recorded, and a step has both."""
    steps, said = _run(tmp_path, """
        g = nn.Sequential(nn.Linear(2, 4)); d = nn.Sequential(nn.Linear(4, 1))
        og = torch.optim.SGD(g.parameters(), lr=.1); od = torch.optim.SGD(d.parameters(), lr=.1)
        for i in range(3):
            for o in (od, og):
                g.zero_grad(); d.zero_grad(); d(g(torch.ones(2, 2))).sum().backward(); o.step()
        """)
    assert len(steps) == 3 and "names of modules begin with its number" in said
    for step in steps:
        assert sorted(_forwards(step)) == sorted(f"Module.{m}.0.Linear.forward.{i}" for m in (0, 1) for i in (0, 1))


def test_forward_that_is_called_directly(tmp_path: pathlib.Path) -> None:
    """sglang#26269: the whole model is recorded, and no embedding alone is taken for it."""
    steps, said = _run(tmp_path, """
        class LM(nn.Module):
            def __init__(s): super().__init__(); s.embed = nn.Embedding(16, 8); s.up = nn.Linear(8, 8); s.head = nn.Linear(8, 16)
            def forward(s, ids): return s.head(torch.relu(s.up(s.embed(ids))))
        m = LM().eval()
        with torch.no_grad():
            for i in range(6): m.forward(torch.tensor([[i, 1, 2]]))
        """)
    assert "attached to LM" in said and "its forward() is called directly" in said
    assert len(steps) == 4  # it takes three calls to know
    for step in steps[1:]:
        assert _forwards(step) == ["Module.embed.Embedding.forward.0", "Module.up.Linear.forward.0", "Module.head.Linear.forward.0"]


def test_threads_that_share_a_model(tmp_path: pathlib.Path) -> None:
    """pytorch#42478: attached once, and no call is missing."""
    steps, said = _run(tmp_path, """
        import threading
        m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
        def work():
            with torch.no_grad():
                for i in range(20): m(torch.ones(2, 4))
        m_ready = work()
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        """)
    assert said.count("attached to") == 1
    recorded = sum(len(_forwards(step, "Functional.linear")) for step in steps)
    # Where forwards overlapped for so long that a step had to end while some ran, the step says so.
    faults = "".join(path.read_text() for path in tmp_path.glob("dump_path/step*/*/dump_error_info.log"))
    assert recorded == 200 or (recorded > 190 and "have overlapped" in faults), recorded


def test_steps_that_a_scaler_skips_are_steps(tmp_path: pathlib.Path) -> None:
    steps, _ = _run(tmp_path, """
        scaler_type = getattr(torch.amp, "GradScaler", None) if hasattr(torch, "amp") else None
        m = nn.Sequential(nn.Linear(4, 1)); o = torch.optim.SGD(m.parameters(), lr=.1)
        if scaler_type is None:  # the one of PyTorch 1.13 needs a GPU
            scale, step, update = (lambda l: l), (lambda o, i: o.step()), (lambda: None)
        else:
            s = scaler_type("cpu", init_scale=2.**4)
            scale, step, update = s.scale, (lambda o, i: s.step(o)), s.update
        for i in range(4):
            l = m(torch.full((2, 4), float("inf") if i == 1 else 1.0)).sum(); o.zero_grad(); scale(l).backward(); step(o, i); update()
        """)
    assert [len(_forwards(step)) for step in steps[:4]] == [1] * 4  # update() behind the last one may be in one of its own


def test_a_worker_of_a_loader_is_no_process_of_the_training(tmp_path: pathlib.Path) -> None:
    steps, said = _run(tmp_path, """
        from torch.utils.data import DataLoader
        class Data:
            def __init__(self): self.augment = nn.Linear(4, 4)
            def __len__(self): return 4
            def __getitem__(self, i):
                with torch.no_grad(): return self.augment(torch.ones(4))
        m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=.1)  # in the worker too
        if __name__ == "__main__":
            for x in DataLoader(Data(), 2, num_workers=1, multiprocessing_context="spawn"): m(x).sum().backward(); o.step()
        """)
    assert said.count("attached to") == 1 and len(steps) == 2, said
    assert len(list((tmp_path / "dump_path").glob("step*/proc*"))) == 2


def test_a_spawned_process_trains_what_it_made_when_it_imported_the_program(tmp_path: pathlib.Path) -> None:
    steps, said = _run(tmp_path, """
        m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=.1)
        def train():
            for i in range(2): m(torch.ones(2, 4)).sum().backward(); o.step()
        if __name__ == "__main__":
            import multiprocessing
            child = multiprocessing.get_context("spawn").Process(target=train); child.start(); child.join(); assert child.exitcode == 0
        """)
    assert said.count("a step ends with SGD.step()") == 2 and len(steps) == 2, said
    assert all("Functional.linear.0.forward" in step for step in steps)
