# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of vLLM's requests: a fault at token 37 of one of sixteen requests is in the archive, and an answer is flagged later."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from conftest import HERE, harness, requests, tiny_models
from polling import wait_for

RULES = [{"name": "bad-token", "token_nan": {}, "raise_to": "EVIDENCE_NONE"},
         {"name": "odd", "token_entropy": {"deviations": 6, "tokens": 4}, "raise_to": "EVIDENCE_NONE"}]


@pytest.fixture
def collector(tmp_path: pathlib.Path):
    (tmp_path / "collector").mkdir()
    running = harness.Collector(tmp_path / "collector").start()
    yield running
    running.stop()


def _set(collector, directory: pathlib.Path, run: str, triggers: dict, *flags: str) -> None:
    path = directory / "triggers.json"
    path.write_text(json.dumps(triggers))
    collector.cli("triggers", "set", "--create", "--run", run, path, *flags)


def _answers(environment: dict, directory: pathlib.Path, model: pathlib.Path, kind: str, *watched: str, eager: bool = True) -> tuple[dict, str]:
    done = subprocess.run([sys.executable, *watched, str(HERE / "token_faults.py"), str(model), json.dumps({"enforce_eager": eager}), kind, "37"],
                          cwd=directory, env={**environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), "\n".join(line for line in done.stderr.splitlines() if "rankprobe: " in line)


def _facts(collector, run: str, directory: pathlib.Path) -> dict[str, str]:
    collector.cli("export", "--run", run, "-o", directory, check=False)
    cards = [json.loads(path.read_text()) for path in directory.glob("step*/rank0/run_card.json")]
    return {name: value for card in cards for name, value in card.get("tokens", {}).items()}


@pytest.mark.parametrize("kind, rule, text", [("nan", "bad-token", "token 37: log probability NaN"), ("sharp", "odd", "tokens 37 to 40: entropy ")])
def test_a_fault_at_one_token_of_one_of_sixteen_requests(models, environment, collector, tmp_path, kind: str, rule: str, text: str) -> None:
    _set(collector, tmp_path, "live", {"flight": {"steps": 8, "level": "L0"}, "rules": RULES})
    plain, _ = _answers(environment, tmp_path, models["llama"], kind)
    run = ("-m", "rankprobe.run", "--collector", collector.address, "--run", "live", "--", sys.executable)
    watched, said = _answers(environment, tmp_path, models["llama"], kind, *run)
    assert watched["answers"] == plain["answers"], "the recorder changed what was sampled"
    assert "attached to LlamaForCausalLM, idle" in said and "ended" not in said, said
    fired = [event for event in collector.json("events", "--run", "live", "--limit", "1000")["events"] if event["kind"] == "KIND_TRIGGER_FIRED"]
    assert [(event["rule"], event["entry"]) for event in fired] == [(rule, watched["request"])], fired
    assert fired[0]["detail"].startswith(text) and "flight recorder of 1 rank" in fired[0]["outcome"], fired
    facts = _facts(collector, "live", tmp_path / "out")
    assert {name.rpartition(" ")[0] for name in facts} == {watched["request"]}
    tokens = [token for name, value in sorted(facts.items()) if not name.endswith("why") for token in json.loads(value)]
    victim = watched["answers"][5]
    assert [token[:2] for token in tokens] == [[index, token] for index, token in enumerate(victim[:len(tokens)])]
    assert len(tokens) == (38 if kind == "nan" else 41)
    # The statistics of the step are there, too, with all sixteen requests.
    step = tmp_path / "out" / f"step{fired[0]['step']}" / "rank0"
    assert json.loads((step / "dump.json").read_text())["data"]
    assert len(json.loads((step / "requests.json").read_text())[0]["requests"]) == 16
    found = collector.cli("diagnose", "run:live", "--request", watched["request"], check=False)
    assert text in found.stdout and found.returncode == (1 if kind == "nan" else 0), found.stdout + found.stderr


@pytest.mark.parametrize("eager", ["--enforce-eager", ""])
def test_an_answer_is_flagged_after_it_was_given(models, serve, collector, tmp_path, eager: str) -> None:
    _set(collector, tmp_path, "live", {"flight": {"steps": 256, "level": "tokens", "tokens": 64}})
    model = models["llama"]
    server = serve(f"{sys.executable} -m rankprobe.run --collector {collector.address} --run live -- vllm serve {model} --dtype float32 --host 127.0.0.1 "
                   f"--port {{port}} --max-model-len 128 --max-num-seqs 4 {eager}")
    answer = server.complete(model, "a question", max_tokens=30, extra_headers={"X-Request-Id": "wrong-1"})
    server.complete(model, "another", max_tokens=4, extra_headers={"X-Request-Id": "other"})
    assert "wrong-1" in collector.cli("flag", "--run", "live", "wrong-1").stdout
    unknown = collector.cli("flag", "--run", "live", "wrong-2", check=False)
    assert unknown.returncode == 4 and "no such request: 2 requests in memory" in unknown.stderr, unknown.stderr
    wait_for(lambda: _facts(collector, "live", tmp_path / "out"), 60, "the flight")
    facts = _facts(collector, "live", tmp_path / "out")
    tokens = [token for name, value in sorted(facts.items()) if not name.endswith("why") for token in json.loads(value)]
    assert [token[1] for token in tokens] == answer["token_ids"]
    assert [token[2] for token in tokens] == pytest.approx(answer["logprobs"]["token_logprobs"], abs=1e-3)
    assert {name for step in requests(tmp_path / "out") for name, *_ in step if "wrong-1" in name}


def test_a_server_with_a_wrong_weight_is_off_its_reference(serve, collector, tmp_path) -> None:
    flight = {"steps": 256, "level": "tokens", "tokens": 64}
    canary = {"name": "canary", "token_reference": {"answers": [{"request": "canary-1"}], "above": 0.05}, "raise_to": "EVIDENCE_NONE"}
    _set(collector, tmp_path, "llama", {"flight": flight})
    for name in ("llama", "llama_wrong"):
        model = tiny_models.make(tmp_path / "models", name)
        server = serve(f"{sys.executable} -m rankprobe.run --collector {collector.address} --run {name} -- vllm serve {model} --dtype float32 "
                       "--host 127.0.0.1 --port {port} --max-model-len 128 --max-num-seqs 4 --enforce-eager")

        def ask() -> None:
            server.complete(model, "a question", max_tokens=30, extra_headers={"X-Request-Id": "canary-1"})

        ask()
        if name == "llama":
            collector.cli("flag", "--run", name, "canary-1")
            wait_for(lambda: _facts(collector, name, tmp_path / "out"), 60, "the flight")
            for run in ("llama", "llama_wrong"):
                _set(collector, tmp_path, run, {"flight": flight, "rules": [canary]}, "--reference", "run:llama")
            ask()
            ask()
        server.stop()
    fired = [event for run in ("llama", "llama_wrong") for event in collector.json("events", "--run", run, "--limit", "1000")["events"]
             if event["rule"] == "canary" and event["kind"] == "KIND_TRIGGER_FIRED"]
    assert [event["run"] for event in fired] == ["llama_wrong"] and "canary-1" in fired[0]["entry"], fired
    assert "in the reference" in fired[0]["detail"]
