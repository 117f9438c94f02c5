# SPDX-License-Identifier: Apache-2.0
"""One request of a live server: recorded alone, or cut out of what was recorded of all."""

from __future__ import annotations

import json
import pathlib
import sys
import time

import harness
import torch
from conftest import read, requests
from test_serving import BASE, LONG, _serve_words, _steps

from polling import wait_for

# What a client may put into a header and a person into a shell.
ODD = "odd id, 100% \"real\" it's $HOME"
EMBEDDED = "Module.model.embed_tokens.VocabParallelEmbedding.forward.0.output.0.pt"


def _rest() -> None:
    """Long enough without a batch to be idle."""
    rested = time.monotonic() + 3
    wait_for(lambda: time.monotonic() >= rested, what="a pause")


def _tensors(step: pathlib.Path) -> dict[str, torch.Tensor]:
    return {file.name: torch.load(file) for file in (step / "rank0" / "dump_tensor_data").glob("*.pt")}


def test_one_of_two_requests_that_are_served_at_once(models, serve, tmp_path) -> None:
    (tmp_path / "collector").mkdir()
    collector = harness.Collector(tmp_path / "collector").start()
    model = models["llama"]
    try:
        words = _serve_words(model, "--async-scheduling", "--enable-prefix-caching")
        server = serve(f"{sys.executable} -m rankprobe.run --collector {collector.address} --run live -- {words}")
        tensors = tmp_path / "tensors.json"
        tensors.write_text(json.dumps({**BASE, "task": "tensor", "dump_path": "all", "level": "L0"}))
        # Before the first request: from the first batch on.
        _rest()
        said = collector.cli("enable", "--run", "live", "--config", tensors).stdout
        assert said == "recording on: 1/1 ranks will switch at step 0: waits for the next step (ranks are idle)\n"

        def ask(name: str) -> None:
            """Two prompts are two requests, made at once, whose names hold the client's."""
            server.complete(model, [LONG, "Hello"], max_tokens=21, extra_headers={"X-Request-Id": name})

        ask("slow-1")
        _rest()
        said = collector.cli("disable", "--run", "live").stdout
        assert said.endswith("waits for the next step (ranks are idle)\n"), said
        ask("unseen")
        everything = tmp_path / "all"
        collector.cli("export", "--run", "live", "-o", everything)
        assert _steps(everything)[0].name == "step0"
        served = {name for step in requests(everything) for name, *_ in step}
        long, short = (next(name for name in served if name.startswith(f"cmpl-slow-1-{i}-")) for i in range(2))
        assert served == {long, short}
        # A prompt in chunks and 20 tokens more; with a scheduler that is a batch ahead positions go on as without.
        rows = [(begin, end, at) for step in requests(everything) for name, begin, end, at in step if name == long]
        assert len(rows) >= 4 + 20 and sum(end - begin for begin, end, _ in rows) == 100 + 20
        assert [at for *_, at in rows] == [sum(end - begin for begin, end, _ in rows[:i]) for i in range(len(rows))]

        several = collector.cli("export", "--run", "live", "--request", "slow-1", "-o", tmp_path / "no", check=False)
        assert several.returncode == 2 and long in several.stderr and short in several.stderr
        none = collector.cli("export", "--run", "live", "--request", "fast", "-o", tmp_path / "no", check=False)
        assert none.returncode == 4 and f"no request is \"fast\"; there are {long}, {short}" in none.stderr
        one = tmp_path / "one"
        done = collector.cli("export", "--run", "live", "--request", "slow-1-1", "-o", one)
        assert "complete batch" not in done.stderr
        assert read(one / "manifest.json")["request"] == short
        together = 0
        for step in _steps(one):
            (told,) = json.loads((step / "rank0" / "requests.json").read_text())
            assert told["recorded"] == short
            where = next(r for r in told["requests"] if r["id"] == short)
            whole, cut = _tensors(everything / step.name), _tensors(step)
            assert set(cut) == set(whole)
            for name, tensor in cut.items():
                has_rows = whole[name].dim() > 0 and len(whole[name]) == told["rows"] and ".parameters." not in name
                assert torch.equal(tensor, whole[name][where["begin"]:where["end"]] if has_rows else whole[name]), name
            assert len(cut[EMBEDDED]) == where["end"] - where["begin"]
            together += len(told["requests"]) - 1
        assert together > 0, "they never shared a batch"

        # Said a moment after an answer, of the request that comes next: with its prompt.
        statistics = tmp_path / "statistics.json"
        statistics.write_text(json.dumps({**BASE, "dump_path": "odd", "level": "L0"}))
        ask("before")
        said = collector.cli("enable", "--run", "live", "--config", statistics, "--request", "soon-1", "--for-steps", 10).stdout
        assert "waits for the next step (ranks are idle)" in said, said
        before = int(said.partition(" at step ")[2].partition(":")[0])
        ask("soon")
        soon = tmp_path / "soon"
        collector.cli("export", "--run", "live", "--request", "soon-1", "--steps", f"{before}-{before + 20}", "-o", soon)
        first = [(begin, end, at) for name, begin, end, at in requests(soon)[0] if name.startswith("cmpl-soon-1-")]
        assert [at for *_, at in first] == [0], first
        _rest()
        collector.cli("disable", "--run", "live")

        # The same prompt again, recorded alone: 96 of its 100 tokens are known.
        _rest()
        said = collector.cli("enable", "--run", "live", "--config", statistics, "--request", f"{ODD}-0",
                             "--for-steps", 40).stdout
        assert "of request \"odd id, 100% " in said and said.endswith("(a job that names no requests is recorded completely)\n")
        before = int(_steps(soon)[-1].name[4:])
        ask(ODD)
        odd = tmp_path / "odd"
        collector.cli("export", "--run", "live", "--request", f"{ODD}-0", "--steps", f"{before + 1}-{before + 200}", "-o", odd)
        alone = [[(end - begin, at) for name, begin, end, at in step if name.startswith(f"cmpl-{ODD}-0-")]
                 for step in requests(odd)]
        assert alone == [[(4, 96)]] + [[(1, at)] for at in range(100, 120)]
        shapes = [read(step / "rank0" / "dump.json")["data"]["Module.model.norm.RMSNorm.forward.0"]["input_args"][0]["shape"]
                  for step in _steps(odd)]
        assert shapes == [[4, 64]] + [[1, 64]] * 20
        explained = collector.cli("explain", "--run", "live").stdout
        assert f"{ODD}-0" in explained and "no other steps" in explained
    finally:
        stopped = collector.stop()
    assert stopped == 0
