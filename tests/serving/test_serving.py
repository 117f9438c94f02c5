# SPDX-License-Identifier: Apache-2.0
"""vLLM with rankprobe in it: real servers, real requests, random weights."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

import harness
import pytest
from conftest import HERE, SMALL, read, requests, rows

from polling import wait_for

LONG = "A prompt of one hundred tokens, each of them a byte, " + "x" * 47
REQUESTS = [("Explain gravity in one sentence.", 6), (LONG, 4), (LONG, 4)]
BASE = {"task": "statistics", "rank": [], "step": [], "async_dump": False}
FILTERS = {"scope": [], "list": [], "tensor_list": [], "data_mode": ["all"], "summary_mode": "statistics"}


def _config(path: pathlib.Path, dump: pathlib.Path, level: str) -> pathlib.Path:
    """The config.json of document 000."""
    path.write_text(json.dumps({**BASE, "dump_path": str(dump), "level": level, "statistics": FILTERS}))
    return path


def _answers(server, model: pathlib.Path) -> list[dict]:
    return [server.complete(model, prompt, max_tokens=tokens) for prompt, tokens in REQUESTS]


def _serve_words(model: pathlib.Path, *more: str) -> str:
    words = ["vllm", "serve", str(model), "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port",
             "{port}", *SMALL, *more]
    return shlex.join(words).replace("'{port}'", "{port}")


def _offline(environment: dict, directory: pathlib.Path, model: pathlib.Path, keywords: dict,
             *prompts: str) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, str(HERE / "offline.py"), str(model), json.dumps(keywords), *prompts],
                          cwd=directory, env={**environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
                          capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def _tokens(done: subprocess.CompletedProcess) -> list:
    return json.loads(done.stdout.splitlines()[-1])


def _steps(dump: pathlib.Path) -> list[pathlib.Path]:
    return sorted(dump.glob("step*"), key=lambda path: int(path.name[4:]))


@pytest.fixture(scope="module")
def plain(models, environment, tmp_path_factory) -> list[dict]:
    """What a server that nothing was asked of answers; it writes nothing and says nothing."""
    from conftest import Server

    directory = tmp_path_factory.mktemp("plain") / "server"
    directory.mkdir()
    server = Server(_serve_words(models["llama"]), directory, environment)
    try:
        answers = _answers(server, models["llama"])
        # The checkout itself may be named rankprobe, and warnings have paths.
        assert "rankprobe: " not in server.log
    finally:
        server.stop()
    assert list(directory.iterdir()) == []
    return answers


def test_the_command_line_of_document_000(models, serve, plain, tmp_path) -> None:
    config = _config(tmp_path / "msprobe_config.json", tmp_path / "home" / "data_dump", "mix")
    model = models["llama"]
    server = serve(f"""vllm serve {model} \\
        --dtype float32 \\
        --enforce-eager \\
        --host 127.0.0.1 \\
        --port {{port}} {' '.join(SMALL)} \\
        --additional-config '{{"dump_config_path": "{config}"}}'""")
    assert _answers(server, model) == plain
    server.stop()
    assert "rankprobe: attached to LlamaForCausalLM" in server.log
    dump = tmp_path / "home" / "data_dump"
    # 32 tokens and five more; a prompt of 100 in chunks of 32; the same again, 96 of it known.
    assert rows(dump) == [32, 1, 1, 1, 1, 1] + [32, 32, 32, 4, 1, 1, 1] + [4, 1, 1, 1]
    served = [step[0] for step in requests(dump) if len(step) == 1]
    assert [position for _, _, _, position in served] == [0, 32, 33, 34, 35, 36] + [0, 32, 64, 96, 100, 101, 102] + [
        96, 100, 101, 102]
    assert len({request for request, *_ in served}) == 3 and all(request.startswith("cmpl-") for request, *_ in served)
    for step in _steps(dump):
        tree = step / "rank0"
        head, data = read(tree / "dump.json"), read(tree / "dump.json")["data"]
        assert (head["task"], head["level"], head["framework"]) == ("statistics", "mix", "pytorch")
        assert "Module.model.layers.1.self_attn.qkv_proj.QKVParallelLinear.forward.0" in data
        assert "Module.logits_processor.LogitsProcessor.forward.0" in data
        # What chooses the token belongs to the step.
        assert list(data).index("Tensor.log_softmax.0.forward") > list(data).index("Module.model.norm.RMSNorm.forward.0")
        parents = read(tree / "construct.json")
        # Operators of vLLM's own libraries, without a word in the config; what they write comes back.
        assert {name.split(".")[0] for name in data} & {"_C", "vllm"} == {"_C", "vllm"}
        assert data["_C.onednn_mm.0.forward"]["input_args"][3] == {"type": "str", "value": "not recorded: an address"}
        assert data["_C.onednn_mm.0.forward"]["output"][0]["shape"] == data["_C.onednn_mm.0.forward"]["input_args"][0]["shape"]
        assert parents["Functional.silu.1.forward"] == "Module.model.layers.1.mlp.act_fn.SiluAndMul.forward.0"
    manifest = read(dump / "manifest.json")
    assert manifest["gaps"] == [] and manifest["incomplete"] == []


def test_two_equal_runs_part_nowhere(models, environment, tmp_path) -> None:
    """With buffers that nothing has written, addresses and caches among the arguments of vLLM's operators."""
    dumps = [tmp_path / name for name in ("one", "other")]
    for dump in dumps:
        _offline(environment, tmp_path, models["llama"], {"enforce_eager": True, "max_num_seqs": 4, "additional_config": {"dump_config": {
            **BASE, "task": "statistics", "level": "mix", "dump_path": str(dump), "step": ["0-2"]}}}, "Hello there", "A")
    said = subprocess.run([str(harness.BIN / "rankprobe"), "first-divergence", *(str(dump) for dump in dumps)], capture_output=True, text=True,
                          timeout=120)
    assert said.returncode == 0, said.stdout + said.stderr
    step = dumps[0] / "step0"
    assert any(note == {"written": True} for note in read(step / "rank0" / "tensor_notes.json").values())
    found = subprocess.run([str(harness.BIN / "rankprobe"), "overflow_check", "-i", str(step), "-o", str(tmp_path / "report")],
                           capture_output=True, text=True, timeout=120)
    assert "rank 0:" not in found.stdout, found.stdout


def test_inline_in_one_process_a_mixture_of_experts(models, environment, tmp_path) -> None:
    keywords = {"enforce_eager": True, "max_num_seqs": 4}
    plain = _offline(environment, tmp_path, models["qwen_moe"], keywords, "Hello there", "A")
    assert "rankprobe: " not in plain.stderr and "MODULES []" in plain.stderr
    dump = tmp_path / "dump"
    content = {**BASE, "task": "tensor", "level": "L0", "dump_path": str(dump), "step": ["0-2"]}
    done = _offline(environment, tmp_path, models["qwen_moe"],
                    {**keywords, "additional_config": {"dump_config": content}}, "Hello there", "A")
    assert _tokens(done) == _tokens(plain)
    assert rows(dump) == [12, 2, 2]
    # Engine and scheduler number requests; rows are in the order of the runner's batch.
    batches = [{request.split("-")[0]: where for request, *where in step} for step in requests(dump)]
    assert batches == [{"0": [0, 11, 0], "1": [11, 12, 0]}, {"0": [0, 1, 11], "1": [1, 2, 1]},
                       {"0": [0, 1, 12], "1": [1, 2, 2]}]
    data = read(dump / "step0" / "rank0" / "dump.json")["data"]
    assert "Module.model.layers.1.mlp.Qwen2MoeSparseMoeBlock.forward.0" in data
    names = {name for name in os.listdir(dump / "step0" / "rank0" / "dump_tensor_data")}
    assert "Module.model.norm.RMSNorm.forward.0.output.0.pt" in names


def test_one_request_of_a_batch(models, environment, tmp_path) -> None:
    content = {**BASE, "level": "L0", "dump_path": str(tmp_path / "dump"), "statistics": {"request_id": "1"}}
    done = _offline(environment, tmp_path, models["llama"],
                    {"enforce_eager": True, "max_num_seqs": 4, "additional_config": {"dump_config": content}}, "Hello", "AB")
    assert [len(tokens) for tokens in _tokens(done)] == [4, 5]
    assert rows(tmp_path / "dump") == [2, 1, 1, 1, 1]


def test_a_pooling_model(models, environment, tmp_path) -> None:
    keywords = {"enforce_eager": True, "runner": "pooling", "max_num_seqs": 4}
    dump = tmp_path / "dump"
    config = _config(tmp_path / "config.json", dump, "L0")
    done = _offline(environment, tmp_path, models["llama"],
                    {**keywords, "additional_config": {"dump_config_path": str(config)}}, "Hello there", "A")
    plain = _offline(environment, tmp_path, models["llama"], keywords, "Hello there", "A")
    assert _tokens(done) == _tokens(plain)
    assert sum(rows(dump)) == 12, rows(dump)


def _artifacts(cache: pathlib.Path) -> dict[str, bytes]:
    """What vLLM has compiled and loads at the next start, by name."""
    return {str(file.relative_to(cache)): file.read_bytes() for file in cache.rglob("rank_*/model")}


def test_a_compiled_server_is_recorded_from_within(models, environment, tmp_path) -> None:
    """As people serve, without --enforce-eager. What vLLM has compiled before is used, and is as it was."""
    environment = {**environment, "VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    prompts = ("Hello there", "A")
    plain = _offline(environment, tmp_path, models["llama"], {"max_num_seqs": 4}, *prompts)
    kept = _artifacts(tmp_path / "cache")
    assert len(kept) == 1, sorted(kept)
    content = {**BASE, "task": "tensor", "level": "L0", "dump_path": str(tmp_path / "dump"), "step": ["1-2"]}
    done = _offline(environment, tmp_path, models["llama"],
                    {"max_num_seqs": 4, "additional_config": {"dump_config": content}}, *prompts)
    assert "attached to LlamaForCausalLM, compiled: its modules are recorded (level L0)" in done.stderr
    assert "cannot be recorded" not in done.stderr
    assert _tokens(done) == _tokens(plain)
    # Its cache has a name of its own for each additional_config, and nothing of ours is in the old one.
    assert {name: bytes for name, bytes in _artifacts(tmp_path / "cache").items() if name in kept} == kept
    assert _tokens(_offline(environment, tmp_path, models["llama"], {"max_num_seqs": 4}, *prompts)) == _tokens(plain)
    assert rows(tmp_path / "dump") == [2, 2] and [step.name for step in _steps(tmp_path / "dump")] == ["step1", "step2"]
    # The calls are those of a server in eager mode.
    eager = _offline(environment, tmp_path, models["llama"], {"enforce_eager": True, "max_num_seqs": 4, "additional_config": {
        "dump_config": {**content, "dump_path": str(tmp_path / "eager")}}}, *prompts)
    assert _tokens(eager) == _tokens(plain)
    for step in _steps(tmp_path / "dump"):
        ours, theirs = (read(where / step.name / "rank0" / "dump.json")["data"] for where in (tmp_path / "dump", tmp_path / "eager"))
        assert list(ours) == list(theirs)
    same = subprocess.run([str(harness.BIN / "rankprobe"), "first-divergence", str(tmp_path / "dump"), str(tmp_path / "eager"), "--tolerance", "1e-5"],
                          capture_output=True, text=True, timeout=120)
    assert "No difference in the " in same.stdout, same.stdout


def test_a_compiled_server_that_is_asked_for_operators_says_what_to_do(models, environment, tmp_path) -> None:
    config = _config(tmp_path / "config.json", tmp_path / "dump", "mix")
    done = _offline(environment, tmp_path, models["llama"], {"additional_config": {"dump_config_path": str(config)}}, "A")
    assert len(_tokens(done)[0]) == 4
    assert 'rankprobe: not attached: this server runs compiled graphs, in which only modules are recorded: give "level": "L0"' in done.stderr
    assert not (tmp_path / "dump").exists()


def test_a_live_compiled_server_is_switched_on_and_off(models, serve, tmp_path) -> None:
    (tmp_path / "collector").mkdir()
    collector = harness.Collector(tmp_path / "collector").start()
    try:
        words = _serve_words(models["llama"], "--no-enable-prefix-caching").replace(" --enforce-eager", "")
        server = serve(f"{sys.executable} -m rankprobe.run --collector {collector.address} --run compiled -- {words}")
        before = _answers(server, models["llama"])
        mix = tmp_path / "mix.json"
        mix.write_text(json.dumps({**BASE, "dump_path": "mix", "level": "mix"}))
        refused = collector.cli("enable", "--run", "compiled", "--for-steps", 1, "--config", mix, check=False)
        assert refused.returncode == 1 and "add the --enforce-eager flag" in refused.stdout + refused.stderr, (refused.stdout, refused.stderr)
        compilations = server.log.count("torch.compile: recorded steps run graphs of their own")
        for _ in range(2):  # nothing is compiled, the second time either
            rested = time.monotonic() + 3
            wait_for(lambda: time.monotonic() >= rested, what="a pause")
            said = collector.cli("enable", "--run", "compiled", "--for-steps", 3).stdout
            assert "waits for the next step (ranks are idle)" in said, said
            assert _answers(server, models["llama"]) == before
        collector.cli("export", "--run", "compiled", "-o", tmp_path / "dump")
        steps = 6 + 7 + 7
        assert [step.name for step in _steps(tmp_path / "dump")] == [f"step{first + i}" for first in (steps, 2 * steps) for i in range(3)]
        assert rows(tmp_path / "dump") == [32, 1, 1] * 2
        first, again = (read(tmp_path / "dump" / f"step{number}" / "rank0" / "dump.json")["data"] for number in (steps, 2 * steps))
        assert first == again and "Module.model.layers.1.mlp.down_proj.RowParallelLinear.forward.0" in first
        assert compilations == 1 and server.log.count("recorded steps run graphs of their own") == 1
    finally:
        server_stopped = collector.stop()
    assert server_stopped == 0


def test_a_fault_in_what_is_asked_is_one_line_and_serving_goes_on(models, environment, tmp_path) -> None:
    done = _offline(environment, tmp_path, models["llama"],
                    {"enforce_eager": True, "additional_config": {"dump_config_path": str(tmp_path / "none.json")}}, "A")
    assert len(_tokens(done)[0]) == 4
    (line,) = [line for line in done.stderr.splitlines() if "rankprobe: " in line]
    assert "not attached" in line and "none.json" in line


def test_a_live_server_with_two_ranks_is_switched_on_and_off(models, serve, tmp_path) -> None:
    """`rankprobe run`, also where vLLM is told to load no plugin."""
    (tmp_path / "collector").mkdir()
    collector = harness.Collector(tmp_path / "collector").start()
    try:
        words = _serve_words(models["llama"], "--tensor-parallel-size", "2", "--no-enable-prefix-caching")
        server = serve(f"{sys.executable} -m rankprobe.run --collector {collector.address} --run live -- {words}",
                       VLLM_PLUGINS="")
        before = _answers(server, models["llama"])
        assert server.log.count("rankprobe: attached to LlamaForCausalLM, idle") == 1
        # Nobody asks meanwhile: the next batch is the one to record, and it does not come by itself.
        steps = 6 + 7 + 7
        rested = time.monotonic() + 3  # What is under test is that no batch comes for so long.
        wait_for(lambda: time.monotonic() >= rested, what="a pause")
        said = collector.cli("enable", "--run", "live", "--for-steps", 3).stdout
        assert said.splitlines()[0] == f"recording on: 2/2 ranks will switch at step {steps}: waits for the next step (ranks are idle)"
        assert _answers(server, models["llama"]) == before
        collector.cli("export", "--run", "live", "-o", tmp_path / "dump")
        assert [step.name for step in _steps(tmp_path / "dump")] == [f"step{steps + i}" for i in range(3)]
        first = _steps(tmp_path / "dump")[0]
        assert rows(tmp_path / "dump", 0) == rows(tmp_path / "dump", 1) == [32, 1, 1]
        for rank in (0, 1):
            data = read(first / f"rank{rank}" / "dump.json")["data"]
            qkv = data["Module.model.layers.0.self_attn.qkv_proj.QKVParallelLinear.forward.0"]["output"][0]
            assert qkv["shape"][1] == 3 * 64 // 2
        status = collector.cli("status", "--run", "live").stdout
        assert status.count(" off ") == 2, status
        # One request, by the name that its client gave it.
        steps += 6 + 7 + 7
        only = tmp_path / "only.json"
        only.write_text(json.dumps({**BASE, "dump_path": "one", "level": "L0",
                                    "statistics": {"request_id": "slow-1"}}))
        collector.cli("enable", "--run", "live", "--at-step", steps, "--for-steps", 9, "--no-wait", "--config", only)
        server.complete(models["llama"], "another", max_tokens=2)
        server.complete(models["llama"], "mine", max_tokens=2, extra_headers={"X-Request-Id": "slow-1"})
        collector.cli("export", "--run", "live", "--steps", f"{steps}-{steps + 9}", "-o", tmp_path / "one")
        assert rows(tmp_path / "one") == [4, 1]
        assert [step[0][0].startswith("cmpl-slow-1-") for step in requests(tmp_path / "one")] == [True, True]
    finally:
        server_stopped = collector.stop()
    assert server_stopped == 0
