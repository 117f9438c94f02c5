# SPDX-License-Identifier: Apache-2.0
"""The witness of vLLM's cache of keys and values: shared, evicted and reused blocks are sound; what goes wrong is named first."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from conftest import HERE, harness

BASE = {"task": "statistics", "rank": [], "step": [], "level": "L0"}


def _run(environment: dict, directory: pathlib.Path, model: pathlib.Path, kind: str, requests: int, eager: bool = True) -> tuple[str, str]:
    """(what the program prints, what rankprobe says)"""
    keywords = {"enforce_eager": eager, "additional_config": {
        "dump_config": {**BASE, "dump_path": str(directory / "dump")}, "dump_kv_cache": True}}
    done = subprocess.run([sys.executable, str(HERE / "cache_faults.py"), str(model), json.dumps(keywords), kind, str(requests)],
                          cwd=directory, env={**environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    said = "\n".join(line for line in done.stderr.splitlines() if "rankprobe: " in line)
    assert "rankprobe: witness of the KV cache: 2 layers" in said, said
    return done.stdout.splitlines()[-1], said


@pytest.mark.parametrize("eager", [True, False])
def test_shared_evicted_and_reused_blocks_are_sound(models, environment, tmp_path, eager: bool) -> None:
    _, said = _run(environment, tmp_path, models["llama"], "none", 60, eager)
    assert "kv cache, step" not in said and "ended" not in said, said
    cards = [json.loads(path.read_text())["kv cache"] for path in (tmp_path / "dump").glob("step*/rank0/run_card.json")]
    assert all(list(card) == ["blocks checked"] for card in cards) and sum(int(card["blocks checked"]) for card in cards) > 1000


@pytest.mark.parametrize("kind, text", [("value", "it changed between write and read: request "), ("table", "and it holds position "),
                                        ("slot", "by the slot mapping, and the block table says row ")])
def test_a_planted_fault_is_named_first(models, environment, tmp_path, kind: str, text: str) -> None:
    printed, said = _run(environment, tmp_path, models["llama"], kind, 12)
    request, step = printed.split()
    assert f"kv cache, step {step}: block " in said and text in said, said
    for words in ([str(tmp_path / "dump")], [str(tmp_path / "dump"), "--request", request]):
        diagnosed = subprocess.run([str(harness.BIN / "rankprobe"), "--json", "diagnose", *words], capture_output=True, text=True, timeout=120)
        assert diagnosed.returncode == 1, diagnosed.stdout + diagnosed.stderr
        first = json.loads(diagnosed.stdout)["findings"][0]
        assert (first["by"], int(first["step"])) == ("kv cache", int(step)) and text in first["what"] and f'"{request}"' in first["what"], first
