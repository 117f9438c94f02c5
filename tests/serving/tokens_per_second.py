# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of vLLM off, idle, with a flight recorder, a witness of its KV cache, and recorded:

    python tokens_per_second.py [ROUNDS] [--only=off,idle,tokens] [--enforce-eager]

A model of two layers of width 512, float32, in a server without rankprobe, in those under `rankprobe run`: one that is idle and
recorded (statistics, level L0) in turns, one with a flight recorder of tokens and all rules about them (tokens), one that keeps
statistics at level L0 as well (flight), and one with a witness. Each round asks all the same, eight requests at a time, so that
other work on the machine falls on all. Prints each round, the medians, and of each the processor time of a token (server and
all its processes), which other work does not change.
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
# None of them fires on a sound server.
RULES = [{"name": "nan", "token_nan": {}}, {"name": "entropy", "token_entropy": {"below": 1e-9, "deviations": 50}},
          {"name": "logprob", "token_logprob": {"below": -1000, "deviations": 50}}, {"name": "repeat", "token_repeat": {"times": 1000}}]


def make_model(directory: pathlib.Path) -> pathlib.Path:
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
    eager = [word for word in words if word.startswith("--") and not word.startswith("--only=")]
    only = next((word[7:].split(",") for word in words if word.startswith("--only=")), ["off", "idle", "tokens", "flight", "witness", "L0"])
    rounds = int(next((word for word in words if not word.startswith("--")), "5"))
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        environment = {**ENVIRONMENT, "VLLM_CACHE_ROOT": str(directory / "cache")}
        model = make_model(directory)
        serve = " ".join(["vllm", "serve", str(model), "--dtype", "float32", "--host", "127.0.0.1", "--port", "{port}",
                          "--max-model-len", "256", "--max-num-seqs", "8", "--max-num-batched-tokens", "128",
                          "--no-enable-prefix-caching", *eager])
        (directory / "collector").mkdir()
        collector = harness.Collector(directory / "collector").start()
        servers: list[Server] = []
        try:
            site = _entry_points(directory)
            run = f"{sys.executable} -m rankprobe.run --collector {collector.address} --run"
            of: dict[str, Server] = {}
            for what, command in (("off", serve), ("idle", f"{run} live -- {serve}"), ("tokens", f"{run} tokens -- {serve}"),
                                  ("flight", f"{run} flight -- {serve}"),
                                  ("witness", f"{run} witnessed -- {serve} --additional-config '{{\"dump_kv_cache\": true}}'")):
                if what not in only:
                    continue
                (directory / what).mkdir()
                if what in ("tokens", "flight"):
                    triggers = directory / f"{what}.json"
                    triggers.write_text(json.dumps({"flight": {"steps": 64, "level": "tokens" if what == "tokens" else "L0"}, "rules": RULES}))
                    collector.cli("triggers", "set", "--create", "--run", what, triggers)
                paths = "" if what == "off" else f"{harness.BUILD / 'python'}{os.pathsep}{site}"
                of[what] = Server(command, directory / what, {**environment, "PYTHONPATH": paths})
                servers.append(of[what])
            config = directory / "config.json"
            config.write_text(json.dumps({"task": "statistics", "dump_path": "dump", "rank": [], "step": [], "level": "L0"}))
            rates: dict[str, list[float]] = {what: [] for what in only}
            costs: dict[str, list[float]] = {what: [] for what in only}
            if "L0" in only:
                of["L0"] = of["idle"]
            for server in servers:
                _rate(server, model)
            for number in range(rounds):
                for what in rates:
                    if what == "L0":
                        collector.cli("enable", "--run", "live", "--config", config, "--no-wait")
                    before = of[what].processor_seconds()
                    rates[what].append(_rate(of[what], model))
                    costs[what].append((of[what].processor_seconds() - before) / (_REQUESTS * _TOKENS))
                    if what == "L0":
                        collector.cli("disable", "--run", "live", "--no-wait")
                        _rate(of["idle"], model)
                print(number, {what: round(found[-1], 1) for what, found in rates.items()}, "load", os.getloadavg()[0], flush=True)
            medians = {what: statistics.median(found) for what, found in rates.items()}
            for what, found in medians.items():
                cost, off = statistics.median(costs[what]), statistics.median(costs["off"])
                print(f"{what}: {found:.1f} tokens/s, {found / medians['off'] - 1:+.1%}; {cost * 1e3:.3f} ms of processor time a token, {cost / off - 1:+.1%}")
        finally:
            for server in servers:
                server.stop()
            collector.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
