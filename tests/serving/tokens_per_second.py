# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of vLLM off, idle, with a witness of its KV cache, and recorded: python tokens_per_second.py [ROUNDS] [--enforce-eager]

Three servers of a model of two layers of width 512, float32: one without rankprobe, one under `rankprobe run`, one with a
witness too. Each round asks all the same, eight requests at a time, and the second one once idle and once recorded
(statistics, level L0), so that other work on the machine falls on all four. Prints each round, and the medians.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import tomllib

import transformers
from conftest import ENVIRONMENT, Server, harness, tiny_models

_REQUESTS, _TOKENS = 16, 32


def _model(directory: pathlib.Path) -> pathlib.Path:
    path = directory / "model"
    tiny_models._tokenizer().save_pretrained(path)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**{
        **tiny_models._COMMON, "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 8, "intermediate_size": 1408})).save_pretrained(path)
    return path


def _entry_points(directory: pathlib.Path) -> pathlib.Path:
    declared = tomllib.loads((harness.ROOT / "agent" / "python" / "pyproject.toml").read_text())["project"]["entry-points"]
    metadata = directory / "site" / "rankprobe-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rankprobe\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("".join(f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in names.items())
                                                       for group, names in declared.items()))
    return metadata.parent


def _rate(server: Server, model: pathlib.Path) -> float:
    def ask(number: int) -> None:
        server.complete(model, f"request {number} of this round", max_tokens=_TOKENS)

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(_REQUESTS)))
    return _REQUESTS * _TOKENS / (time.monotonic() - began)


def main(words: list[str]) -> None:
    eager = [word for word in words if word.startswith("--")]
    rounds = int(next((word for word in words if not word.startswith("--")), "5"))
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        environment = {**ENVIRONMENT, "VLLM_CACHE_ROOT": str(directory / "cache")}
        model = _model(directory)
        serve = " ".join(["vllm", "serve", str(model), "--dtype", "float32", "--host", "127.0.0.1", "--port", "{port}",
                          "--max-model-len", "256", "--max-num-seqs", "8", "--max-num-batched-tokens", "128",
                          "--no-enable-prefix-caching", *eager])
        (directory / "collector").mkdir()
        collector = harness.Collector(directory / "collector").start()
        servers: list[Server] = []
        try:
            site = _entry_points(directory)
            run = f"{sys.executable} -m rankprobe.run --collector {collector.address} --run"
            for at, command in (("plain", serve), ("watched", f"{run} live -- {serve}"),
                                ("witnessed", f"{run} witnessed -- {serve} --additional-config '{{\"dump_kv_cache\": true}}'")):
                (directory / at).mkdir()
                paths = "" if at == "plain" else f"{harness.BUILD / 'python'}{os.pathsep}{site}"
                servers.append(Server(command, directory / at, {**environment, "PYTHONPATH": paths}))
            config = directory / "config.json"
            config.write_text(json.dumps({"task": "statistics", "dump_path": "dump", "rank": [], "step": [], "level": "L0"}))
            rates: dict[str, list[float]] = {"off": [], "idle": [], "witness": [], "L0": []}
            of = {"off": servers[0], "idle": servers[1], "witness": servers[2], "L0": servers[1]}
            for server in servers:
                _rate(server, model)
            for number in range(rounds):
                for what in rates:
                    if what == "L0":
                        collector.cli("enable", "--run", "live", "--config", config, "--no-wait")
                    rates[what].append(_rate(of[what], model))
                    if what == "L0":
                        collector.cli("disable", "--run", "live", "--no-wait")
                        _rate(servers[1], model)
                print(number, {what: round(found[-1], 1) for what, found in rates.items()}, "load", os.getloadavg()[0], flush=True)
            medians = {what: statistics.median(found) for what, found in rates.items()}
            for what, found in medians.items():
                print(f"{what}: {found:.1f} tokens/s, {found / medians['off'] - 1:+.1%}")
        finally:
            for server in servers:
                server.stop()
            collector.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
