# SPDX-License-Identifier: Apache-2.0
"""The real trainers, each with a tiny model of random weights, in this process: a PrecisionDebugger of its own for each test."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
torch.set_num_threads(1)

VOCABULARY, LENGTH = 64, 8


@pytest.fixture(autouse=True)
def _closed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    from rankprobe.pytorch import PrecisionDebugger

    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()


@pytest.fixture
def config(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "statistics", "dump_path": str(tmp_path / "dump"), "rank": [], "step": [], "level": "L0"}))
    return str(path)


@pytest.fixture
def calls(tmp_path: pathlib.Path) -> Any:
    """The forwards of one module in each recorded step, {step: [names]}, when all is written."""

    def read(module: str, tree: str = "dump", rank: str = "*") -> dict[int, list[str]]:
        from rankprobe.pytorch import PrecisionDebugger

        if PrecisionDebugger._instance is not None:
            PrecisionDebugger._instance.close()
        found = {}
        for path in (tmp_path / tree).glob(f"step*/{rank}/dump.json"):
            data = json.loads(path.read_text())["data"]
            found[int(path.parent.parent.name[4:])] = sorted(n for n in data if n.startswith(f"Module.{module}.") and ".forward." in n)
        return dict(sorted(found.items()))

    return read


def llama(**more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, **more}))


def rows(count: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


def bits(model: Any) -> str:
    """All parameters, as one text that is equal only for equal bits."""
    import hashlib

    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def launch(directory: pathlib.Path, program: str, *arguments: str, attach: bool = False, **environment: str) -> tuple[list[str], str]:
    """Runs the program on two ranks, under `rankprobe run --on` if `attach`. Returns its lines that begin with "bits",
    of which it writes each at once, and stderr."""
    (directory / "program.py").write_text(program.format(tests=str(pathlib.Path(__file__).parent)))
    package = str(pathlib.Path(__import__("rankprobe").__file__).parents[1])
    before = [sys.executable, "-m", "rankprobe.run", "--on", "--"] if attach else []
    done = subprocess.run([*before, sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "program.py",
                           *arguments], cwd=directory, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", **environment})
    assert done.returncode == 0, done.stderr[-3000:]
    return sorted(line for line in done.stdout.splitlines() if line.startswith("bits")), done.stderr


def forwards(tree: pathlib.Path, module: str) -> dict[tuple[int, str], list[str]]:
    """The forwards of the module by step and rank. A step without one, such as the calls after the last optimizer.step(), is omitted."""
    found: dict[tuple[int, str], list[str]] = {}
    for path in tree.glob("step*/rank*/dump.json"):
        data: dict[str, Any] = json.loads(path.read_text())["data"]
        names = [name for name in data if name.startswith(f"Module.{module}.") and ".forward." in name]
        if names:
            found[int(path.parts[-3][4:]), path.parts[-2]] = names
    return found
