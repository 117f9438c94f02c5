"""vLLM with rankprobe in it: real servers, real requests, random weights."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest
from conftest import HERE, SMALL, read, rows

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
        assert "rankprobe" not in server.log
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
    for step in _steps(dump):
        tree = step / "rank0"
        head, data = read(tree / "dump.json"), read(tree / "dump.json")["data"]
        assert (head["task"], head["level"], head["framework"]) == ("statistics", "mix", "pytorch")
        assert "Module.model.layers.1.self_attn.qkv_proj.QKVParallelLinear.forward.0" in data
        assert "Module.logits_processor.LogitsProcessor.forward.0" in data
        # What chooses the token belongs to the step.
        assert list(data).index("Tensor.log_softmax.0.forward") > list(data).index("Module.model.norm.RMSNorm.forward.0")
        parents = read(tree / "construct.json")
        assert parents["Functional.silu.1.forward"] == "Module.model.layers.1.mlp.act_fn.SiluAndMul.forward.0"
    manifest = read(dump / "manifest.json")
    assert manifest["gaps"] == [] and manifest["incomplete"] == []


def test_inline_in_one_process_a_mixture_of_experts(models, environment, tmp_path) -> None:
    keywords = {"enforce_eager": True, "max_num_seqs": 4}
    plain = _offline(environment, tmp_path, models["qwen_moe"], keywords, "Hello there", "A")
    assert "rankprobe" not in plain.stderr and "MODULES []" in plain.stderr
    dump = tmp_path / "dump"
    content = {**BASE, "task": "tensor", "level": "L0", "dump_path": str(dump), "step": ["0-2"]}
    done = _offline(environment, tmp_path, models["qwen_moe"],
                    {**keywords, "additional_config": {"dump_config": content}}, "Hello there", "A")
    assert _tokens(done) == _tokens(plain)
    assert rows(dump) == [12, 2, 2]
    data = read(dump / "step0" / "rank0" / "dump.json")["data"]
    assert "Module.model.layers.1.mlp.Qwen2MoeSparseMoeBlock.forward.0" in data
    names = {name for name in os.listdir(dump / "step0" / "rank0" / "dump_tensor_data")}
    assert "Module.model.norm.RMSNorm.forward.0.output.0.pt" in names


def test_a_pooling_model(models, environment, tmp_path) -> None:
    keywords = {"enforce_eager": True, "runner": "pooling", "max_num_seqs": 4}
    dump = tmp_path / "dump"
    config = _config(tmp_path / "config.json", dump, "L0")
    done = _offline(environment, tmp_path, models["llama"],
                    {**keywords, "additional_config": {"dump_config_path": str(config)}}, "Hello there", "A")
    plain = _offline(environment, tmp_path, models["llama"], keywords, "Hello there", "A")
    assert _tokens(done) == _tokens(plain)
    assert sum(rows(dump)) == 12, rows(dump)


def test_graph_mode_is_refused_and_serving_goes_on(models, environment, tmp_path) -> None:
    config = _config(tmp_path / "config.json", tmp_path / "dump", "mix")
    done = _offline(environment, tmp_path, models["llama"], {"additional_config": {"dump_config_path": str(config)}}, "A")
    assert len(_tokens(done)[0]) == 4
    assert "rankprobe: not attached: Please enforce eager mode" in done.stderr
    assert not (tmp_path / "dump").exists()


def test_a_fault_in_what_is_asked_is_one_line_and_serving_goes_on(models, environment, tmp_path) -> None:
    done = _offline(environment, tmp_path, models["llama"],
                    {"enforce_eager": True, "additional_config": {"dump_config_path": str(tmp_path / "none.json")}}, "A")
    assert len(_tokens(done)[0]) == 4
    (line,) = [line for line in done.stderr.splitlines() if "rankprobe: " in line]
    assert "not attached" in line and "none.json" in line
