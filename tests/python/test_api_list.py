# SPDX-License-Identifier: Apache-2.0
"""A list of functions that an operator gives a running job (FEATURES B14)."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

@pytest.mark.parametrize("odd", ["device", "fifo", "directory", "large"])
def test_what_is_no_list_is_refused_at_once(tmp_path: pathlib.Path, monkeypatch, odd: str) -> None:
    """Neither waited for nor read without end: RANKPROBE_API_LIST comes from somebody's shell."""
    from rankprobe.pytorch._api_list import load_list

    path = tmp_path / "list"
    if odd == "fifo":
        os.mkfifo(path)
    elif odd == "directory":
        path.mkdir()
    elif odd == "large":
        path.write_text("#" * (1 << 20) + "\n")
    else:
        path = pathlib.Path("/dev/zero")
    monkeypatch.setenv("RANKPROBE_API_LIST", str(path))
    with pytest.raises(ValueError, match=f"API list {path}: .*(not a regular file|directory|more than)"):
        load_list()


LIST = """\
functional:
  - relu
tensor:
  - add
"""


class Job:
    """This process as rank 0: the same three calls in every step."""

    def __init__(self, collector, debugger) -> None:
        self._collector = collector
        self._debugger = debugger
        # A call of each step beside the three.
        self.more = lambda: None
        debugger._session.native.wait_connected(60.0)

    def step(self) -> None:
        self._debugger.start()
        torch.abs(F.relu(torch.ones(2))).add(1)
        self.more()
        self._debugger.stop()
        self._debugger.step()

    def cli(self, *words: str, code: int = 0):
        """Runs it beside steps."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            done = pool.submit(self._collector.cli, *words, check=False)
            while not done.done():
                self.step()
        result = done.result()
        assert result.returncode == code, result.stdout + result.stderr
        return result

    def recorded(self) -> list[str]:
        """What one step more records, as the archive has it."""
        step = self._debugger._session.native.current_step
        self.step()
        tree = pathlib.Path(self._debugger.config.dump_path) / f"step{step}"
        self._debugger.wait_exported()
        (rank,) = tree.iterdir()
        return list(json.loads((rank / "dump.json").read_text())["data"])


@pytest.fixture
def job(dump, collector, monkeypatch) -> Job:
    monkeypatch.setenv("RANKPROBE_COLLECTOR", collector.address)
    monkeypatch.setenv("RANKPROBE_RUN", "listed")
    monkeypatch.setenv("RANK", "0")
    return Job(collector, dump.debugger(auto_export=True))


OWN = ["Functional.relu.0.forward", "Torch.abs.0.forward", "Tensor.add.0.forward"]
LISTED = ["Functional.relu.0.forward", "Tensor.add.0.forward"]


@pytest.mark.parametrize("text", [LIST, json.dumps({"Functional": ["relu"], "Tensor": ["add"]})], ids=["yaml", "json"])
def test_an_operators_list_is_recorded_until_it_is_taken_back(job, dump, tmp_path, text) -> None:
    listed = tmp_path / "support_wrap_ops.yaml"
    listed.write_text(text)
    job.step()
    assert job.recorded() == OWN
    config = str(dump.config_path)
    job.cli("config", "set", config, "--api-list", str(listed))
    assert job.recorded() == LISTED
    assert "functions: a list of" in job.cli("config", "get").stdout
    assert job._collector.json("config", "get")["api_list"] == text
    # It is the run's: other plans keep it.
    job.cli("disable")
    job.cli("enable")
    job.cli("config", "set", config)
    assert job.recorded() == LISTED
    job.cli("config", "set", config, "--own-api-list")
    assert job.recorded() == OWN
    assert job._collector.json("config", "get").get("api_list", "") == ""


def test_an_operators_config_says_whose_operators_are_recorded(job, dump, tmp_path) -> None:
    library = torch.library.Library("rpset", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    job.more = lambda: torch.ops.rpset.twice(torch.ones(2))

    def recorded() -> bool:
        return "rpset.twice.0.forward" in job.recorded()

    job.step()
    assert not recorded()
    named = tmp_path / "named.json"
    named.write_text(json.dumps({**json.loads(dump.config_path.read_text()), "custom_op_namespaces": ["rpset"]}))
    job.cli("config", "set", str(named))
    assert recorded()
    job.cli("config", "set", str(dump.config_path))
    assert not recorded()
    named.write_text(json.dumps({**json.loads(dump.config_path.read_text()), "custom_op_namespaces": [1]}))
    refused = job.cli("config", "set", str(named), code=2)
    assert "custom_op_namespaces: 1 is not legal" in refused.stderr
    assert not recorded()


@pytest.mark.parametrize("text,said", [
    ("functional: [relu]\n", "line 1"), ("", "empty"), ("{\"Torch\": 3}", "Torch"), ("#" * 300_000, "at most"),
    ("{}", "empty"), ("{\"nosuch\": [\"relu\"]}", "expected one of Functional, Tensor, Torch"),
], ids=["inline", "empty", "json", "long", "no functions", "prefix"])
def test_a_bad_list_changes_nothing(job, dump, tmp_path, text: str, said: str) -> None:
    listed = tmp_path / "list.yaml"
    listed.write_text(text)
    job.step()
    epoch = job._collector.json("config", "get")["epoch"]
    result = job.cli("config", "set", str(dump.config_path), "--api-list", str(listed), code=2)
    assert str(listed) in result.stderr and said in result.stderr
    assert job._collector.json("config", "get")["epoch"] == epoch
    assert job.recorded() == OWN


def test_a_rank_that_finds_no_function_of_the_list_says_so(job, dump, tmp_path, capfd) -> None:
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps({"functional": ["rleu"], "torch": ["no_such", "linalg.nrom", "a"]}))
    job.step()
    capfd.readouterr()
    job.cli("config", "set", str(dump.config_path), "--api-list", str(listed))
    assert job.recorded() == []
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "list of APIs" in line]
    assert line == ("rankprobe: no function of the list of APIs that an operator gave is here to be recorded "
                    "(Functional.rleu, Torch.no_such, Torch.linalg.nrom and 1 more): none of its functions is recorded")
    job.cli("config", "set", str(dump.config_path), "--own-api-list")
    assert job.recorded() == OWN
