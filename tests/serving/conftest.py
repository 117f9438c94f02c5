# SPDX-License-Identifier: Apache-2.0
"""Fixtures: tiny models, and vLLM servers on loopback that end with the test."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from typing import Any, Iterator

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "tests" / "integration"), str(_ROOT / "examples" / "vllm")]

import harness  # noqa: E402
import tiny_models  # noqa: E402

from polling import wait_for  # noqa: E402
from ports import free_port  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
_BIN = pathlib.Path(sys.executable).parent
_START_SECONDS = 400
# Bytes of memory for the keys and values; one thread a worker; nothing asked of the network.
ENVIRONMENT = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
               "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
               "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}"}
# What one server is started with beside the words of the test.
SMALL = ["--max-model-len", "128", "--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--block-size", "32"]


class Server:
    """`vllm serve`, by a shell command in which {port} stands for a free port."""

    def __init__(self, command: str, directory: pathlib.Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.port = free_port()
        self._log = directory.with_suffix(".log")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(["bash", "-c", "exec " + command.replace("{port}", str(self.port))],
                                             cwd=directory, env=environment, stdout=log, stderr=log,
                                             start_new_session=True)
        wait_for(self._answers, _START_SECONDS, f"vLLM; see {self._log}")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def processor_seconds(self) -> float:
        """What the server and the processes that it started have used."""
        ticks = 0
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid:  # its session
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"vLLM ended: {self.log[-4000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def complete(self, model: pathlib.Path, prompt: str, **more: Any) -> dict:
        """One choice of the completions API, by OpenAI's client."""
        import openai

        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", timeout=120, max_retries=0)
        answer = client.completions.create(model=str(model), prompt=prompt, temperature=0, logprobs=3,
                                           extra_body={"return_token_ids": True, "ignore_eos": True}, **more)
        return answer.choices[0].model_dump()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a process in which vLLM finds the entry points that pyproject.toml declares,
    as it does where the wheel is installed."""
    declared = tomllib.loads((harness.ROOT / "agent" / "python" / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site")
    metadata = site / "rankprobe-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rankprobe\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
        for group, names in declared["entry-points"].items()))
    return {**ENVIRONMENT, "PYTHONPATH": f"{harness.BUILD / 'python'}{os.pathsep}{site}"}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    directory = tmp_path_factory.mktemp("models")
    return {name: tiny_models.make(directory, name) for name in ("llama", "qwen_moe")}


@pytest.fixture
def serve(tmp_path: pathlib.Path, environment: dict[str, str]) -> Iterator[Any]:
    running: list[Server] = []

    def start(command: str, **more: str) -> Server:
        directory = tmp_path / f"server{len(running)}"
        directory.mkdir()
        running.append(Server(command, directory, {**environment, **more}))
        return running[-1]

    yield start
    for server in running:
        server.stop()


def read(path: pathlib.Path) -> dict:
    return json.loads(path.read_text())


def requests(dump: pathlib.Path, rank: int = 0) -> list[list[tuple[str, int, int, int]]]:
    """Of each step: whose rows from where to where, and the position of the first of them."""
    steps = sorted(dump.glob("step*"), key=lambda path: int(path.name[4:]))
    told = [read(step / f"rank{rank}" / "requests.json") for step in steps]
    return [[(r["id"], r["begin"], r["end"], r["position"]) for start in step for r in start["requests"]] for step in told]


def rows(dump: pathlib.Path, rank: int = 0) -> list[int]:
    """Tokens in the batch of each step, by what went into the embedding."""
    steps = sorted(dump.glob("step*"), key=lambda path: int(path.name[4:]))
    entries = [read(step / f"rank{rank}" / "dump.json")["data"] for step in steps]
    return [entry["Module.model.embed_tokens.VocabParallelEmbedding.forward.0"]["input_args"][0]["shape"][0]
            for entry in entries]
