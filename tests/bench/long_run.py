# SPDX-License-Identifier: Apache-2.0
"""Questions about a run of many ranks and steps that bench_archive makes: in the collector's code, to a collector that has
its files in memory and to one that has not, as whole commands, and what a scrape of /metrics takes beside them."""

from __future__ import annotations

import os
import pathlib
import shutil
import statistics
import subprocess
import time
import urllib.request

from budgets import Table
from harness import BIN, Collector

# Of each question.
WARM_ROUNDS, COLD_ROUNDS = 21, 21
# Milliseconds.
LIMITS = {"overview": 100, "overview_200_steps": 100, "one_rank": 50, "one_call": 50, "one_call_series": 50}


def answers(running: Collector, rounds: int, *questions: str) -> dict[str, list[float]]:
    """Milliseconds that a client waited for the answers to `questions`; none: all."""
    asked = subprocess.run([BIN / "bench_query", running.address, str(rounds), *questions], stdout=subprocess.PIPE, text=True,
                           stderr=subprocess.DEVNULL, check=True)
    return {name: [float(time) for time in times] for name, *times in map(str.split, asked.stdout.splitlines())}


def forget(directory: pathlib.Path) -> None:
    """Takes the files out of the page cache, but for what is not on the disk yet."""
    for path in directory.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold_answer(directory: pathlib.Path, question: str) -> float:
    """The first answer of a collector that was just started, its files read from the disk."""
    forget(directory)
    running = Collector(directory, data_dir=directory / "data").start()
    try:
        forget(directory)  # what it read when it opened them
        return answers(running, 1, question)[question][0]
    finally:
        running.stop()


def scrape(table: Table, directory: pathlib.Path) -> None:
    """GET /metrics beside a connected rank whose run has 10,000 steps, without values and with the most that are shown."""
    for name, flags in (("plain", ()), ("1000_values", ("--metrics-values", "*"))):
        log = (directory / "collector.log").stat().st_size
        running = Collector(directory, "--metrics-port", "0", *flags, data_dir=directory / "data").start()
        rank = subprocess.Popen([BIN / "bench_ranks", running.address, "calls", "1", "100"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        try:
            rank.stdout.readline()
            port = running.log_text()[log:].split('event=metrics port="')[1].split('"')[0]
            times = []
            for _ in range(WARM_ROUNDS):
                began = time.monotonic()
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                    text = answer.read()
                times.append(1e3 * (time.monotonic() - began))
        finally:
            rank.stdin.close()
            rank.wait(timeout=60)
            running.stop()
        table.info(f"archive.scrape_{name}", statistics.median(times), "ms")
        table.info(f"archive.scrape_{name}_kb", len(text) / 1e3)
        table.info(f"archive.scrape_{name}_lines", text.count(b"\nrankprobe_value{"))


def measure(table: Table, directory: pathlib.Path) -> None:
    """Of the archive directory/data that bench_archive has made."""
    running = Collector(directory, data_dir=directory / "data").start()
    try:
        answers(running, 1)
        for name, times in answers(running, WARM_ROUNDS).items():
            table.at_most(f"archive.{name}_rpc", statistics.median(times), LIMITS[name], "ms")
        ask = [BIN / "rankprobe", "query", "--collector", running.address, "--json", "--run"]
        call = "Module.layers.7.block.3.Linear.forward.0.output.0"
        for name, question in (("overview", ["ranks", "--rows", "rank"]), ("one_call", ["calls", call])):
            times = []
            for _ in range(5):
                began = time.monotonic()
                subprocess.run([*ask, *question], check=True, stdout=subprocess.DEVNULL, timeout=180)
                times.append(time.monotonic() - began)
            table.info(f"archive.{name}_command", statistics.median(times), "s")
    finally:
        running.stop()
    scrape(table, directory)
    for name in ("overview", "one_call", "one_call_series"):
        limit = LIMITS[name]
        times = [cold_answer(directory, name) for _ in range(COLD_ROUNDS)]
        table.at_most(f"archive.{name}_rpc_cold", statistics.median(times), limit, "ms")


def archive(table: Table, scratch: pathlib.Path, size: tuple[int, int, int]) -> None:
    """Makes one of so many ranks, steps and calls, and takes it away again."""
    directory = scratch / "archive"
    directory.mkdir()
    try:
        made = subprocess.run([BIN / "bench_archive", directory / "data", *map(str, size)], stdout=subprocess.PIPE, text=True,
                              check=True)
        for line in made.stdout.splitlines():
            name, value, limit, _ = line.split()
            if limit == "-":
                table.info(name, float(value))
            else:
                table.at_most(name, float(value), float(limit.removeprefix("<=")))
        measure(table, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
