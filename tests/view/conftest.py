# SPDX-License-Identifier: Apache-2.0
"""Debian's Chromium by Playwright, `rankprobe view` before a real collector, and a training on four ranks whose third one fails."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any, Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

import harness

from ports import free_port

sync_api = pytest.importorskip("playwright.sync_api")

RANKS, BAD_RANK, BAD_STEP = 4, 2, 6
PICTURES = harness.ROOT / "build" / "view"
# Its ranks meet in each step. One divides by what became zero.
TRAINING = textwrap.dedent("""
    import os, pathlib, sys, time
    import torch
    import torch.distributed as dist
    from rankprobe.pytorch import PrecisionDebugger

    class Scale(torch.nn.Module):
        def forward(self, x, by):
            return x / by

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.scale, self.second = torch.nn.Linear(8, 16), Scale(), torch.nn.Linear(16, 2)
        def forward(self, x, by):
            return self.second(torch.relu(self.scale(self.first(x), by)))

    config, stop, bad_rank, bad_step, pause = sys.argv[1], pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:6])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    net = Net()
    debugger = PrecisionDebugger(config_path=config)
    flag = torch.zeros(1)
    step = 0
    while not flag.item():
        debugger.start(model=net)
        by = torch.zeros(1) if rank == bad_rank and step >= bad_step else torch.ones(1)
        net(torch.full((4, 8), 1.0 + 0.01 * step), by).sum().backward()
        debugger.stop()
        debugger.step()
        net.zero_grad()
        step += 1
        if stop.exists() or os.getppid() == 1:
            flag.fill_(1)
        dist.all_reduce(flag)
        time.sleep(pause / 1000)
    debugger.close()
""")


class Training:
    """Ranks that train until stop(); `environment` is theirs alone."""

    def __init__(self, directory: pathlib.Path, collector: harness.Collector, run: str, config: dict, bad_step: int, ranks: int = RANKS,
                 environment: dict[str, str] | None = None) -> None:
        self._stop = directory / f"{run}.stop"
        (directory / f"{run}.json").write_text(json.dumps(config))
        (directory / f"{run}.py").write_text(TRAINING)
        self._log = open(directory / f"{run}.log", "w+")
        self._ranks: list[subprocess.Popen] = []
        port = str(free_port())
        for rank in range(ranks):
            self._ranks.append(subprocess.Popen(
                [sys.executable, directory / f"{run}.py", directory / f"{run}.json", self._stop, str(BAD_RANK), str(bad_step), "50"],
                stdout=self._log, stderr=self._log,
                env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANKPROBE_RUN": run, "RANK": str(rank),
                     "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                     **(environment or {})}))

    def stop(self) -> None:
        self._stop.touch()
        for rank in self._ranks:
            rank.wait(timeout=120)
        self._log.seek(0)
        assert all(rank.returncode == 0 for rank in self._ranks), self._log.read()[-4000:]


class CollectorsPage:
    """The page that a collector with --web-listen serves, opened with `token`; None: as who has none."""

    def __init__(self, collector: harness.Collector, token: str | None = None) -> None:
        self.origin = re.findall(r"^rankprobed serves its page on (\S+)/$", collector.log_text(), re.M)[-1]
        self.token = token
        self.address = self.origin + ("/" if token is None else f"/#token={token}")


class View:
    """A `rankprobe view` process."""

    def __init__(self, *flags: object, collector: str = "") -> None:
        """`collector`: the address in RANKPROBE_COLLECTOR."""
        environment = {**os.environ, "RANKPROBE_COLLECTOR": collector}
        self.process = subprocess.Popen([harness.BIN / "rankprobe", "view", "--no-open", *map(str, flags)], stdout=subprocess.PIPE, text=True,
                                        env=environment)
        self.address = re.search(r"http://127\.0\.0\.1:\d+/#token=\S+", self.process.stdout.readline())[0]

    @property
    def origin(self) -> str:
        return self.address.split("/#")[0]

    @property
    def token(self) -> str:
        return self.address.split("#token=")[1]

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0


def holds(page: Any, expression: str) -> None:
    """Waits until it is true. page.wait_for_function evaluates a text again and again within the page, which the page's policy forbids:
    it works only where the first look finds it true."""
    harness.wait_for(lambda: page.evaluate(expression), 30, expression)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def collector(tmp_path_factory) -> Iterator[harness.Collector]:
    collector = harness.Collector(tmp_path_factory.mktemp("collector"), "--web-listen", "127.0.0.1:0").start()
    yield collector
    assert collector.stop() == 0, collector.log_text()[-2000:]


@pytest.fixture(scope="session")
def view(collector) -> Iterator[View]:
    view = View("--collector", collector.address)
    yield view
    view.stop()


def training_config(**fields: Any) -> dict:
    return {"task": "statistics", "dump_path": "./dump", "rank": [], "step": [], "level": "mix", "dump_enable": True, "statistics": {}, **fields}


@pytest.fixture(scope="session")
def training(collector, tmp_path_factory) -> Iterator[str]:
    """The run "train": recorded from its first step, NaN on one rank from BAD_STEP on, alive."""
    job = Training(tmp_path_factory.mktemp("train"), collector, "train", training_config(), BAD_STEP)
    harness.wait_for(lambda: _steps(collector, "train") > BAD_STEP + 2, 120, "the training's steps")
    yield "train"
    job.stop()


@pytest.fixture
def idle(collector, tmp_path) -> Iterator[str]:
    """The run "idle": alive, healthy, dumping off."""
    job = Training(tmp_path, collector, "idle", training_config(dump_enable=False), 10**9)
    harness.wait_for(lambda: len(collector.json("status", "--run", "idle").get("agents", [])) == RANKS, 120, "four ranks")
    yield "idle"
    job.stop()


def _steps(collector, run: str) -> int:
    return max((int(one["steps"]) for one in collector.json("runs").get("runs", []) if one["run"] == run), default=0)


@contextlib.contextmanager
def open_page(browser, view: View | CollectorsPage, name: str) -> Iterator[Any]:
    """A page of its own; what the browser complained of fails the test, and a picture of its end is kept."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-US", accept_downloads=True)
    context.set_default_timeout(60_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" and "Failed to load resource" not in message.text else None)
    page.goto(view.address)
    yield page
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
    context.close()
    assert complaints == []


@pytest.fixture
def page(browser, view, request) -> Iterator[Any]:
    with open_page(browser, view, request.node.name) as page:
        yield page
