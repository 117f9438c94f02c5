# SPDX-License-Identifier: Apache-2.0
"""Commands, flags and metrics that the documents name are those of the programs, and none is left out."""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess

import pytest

from conftest import BUILD, ROOT, documents


@functools.lru_cache(maxsize=None)
def _help(*words: str) -> str:
    program, *rest = words
    return subprocess.run([BUILD / "bin" / program, *rest, "--help"], capture_output=True, text=True, timeout=60,
                          check=True).stdout


def _commands(words: tuple[str, ...] = ("rankprobe",)) -> dict[str, list[str]]:
    """Names by purpose, as --help prints them."""
    out: dict[str, list[str]] = {}
    title = ""
    for line in _help(*words).splitlines():
        if re.fullmatch(r"\S.*:", line):
            title = line[:-1]
        elif (m := re.match(r"  ([a-z_-]+) ", line + " ")) and not title.startswith("Options"):
            out.setdefault(title, []).append(m.group(1))
    return out


def _flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))


def _code(path: pathlib.Path) -> list[str]:
    """Lines of code blocks, and code within a line."""
    text = path.read_text()
    lines: list[str] = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in ("", "sh"):
            lines += block.replace("\\\n", " ").splitlines()
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return lines + [c.replace("\n", " ") for c in re.findall(r"`([^`]+)`", text)]


def _words(line: str, program: str) -> list[str]:
    """What follows `program` in a command line; empty if it is none of it."""
    if re.match(r"\s*(?:cmake|ninja|build) ", line):
        return []  # names of targets
    m = re.search(rf"(?:^|[\s|&/$]){program} +(.+)$", line)
    return re.split(r"\s+", re.split(r" [|&>;]| #|  +#|\$\(", m.group(1))[0].strip()) if m else []


def test_the_page_of_the_command_line_has_every_command_in_the_order_of_help() -> None:
    section = (ROOT / "docs/cli.md").read_text().partition("## Conventions")[0]
    shown: dict[str, list[str]] = {}
    title = ""
    for line in section.splitlines():
        if m := re.fullmatch(r"\| ([a-z ]+) \| \|", line):
            title = m.group(1)
        elif line.startswith("| `"):
            for name in re.findall(r"`rankprobe ([a-z_-]+)", line.split(" | ")[0]):
                shown.setdefault(title, []).append(name)
    programs = {title.lower(): set(names) for title, names in _commands().items()}
    assert list(shown) == [t for t in programs]
    assert {title: set(names) for title, names in shown.items()} == programs


@pytest.mark.parametrize("path", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_flags_exist(path: pathlib.Path) -> None:
    known = {name for names in _commands().values() for name in names}
    common = _flags(_help("rankprobe"))
    wrong = []
    for line in _code(path):
        words = _words(line, "rankprobe")
        if not words or not re.fullmatch(r"[a-z][a-z_-]+(?:\|[a-z_-]+)*", words[0]):
            continue
        if words[0].startswith(("listening", "collector", "run")) and words[0] != "run":
            continue  # a line that a program printed
        for name in words[0].split("|"):
            if name not in known:
                wrong.append(f"no command {name}: {line}")
            elif name not in ("run", "isolate", "check", "merge_result", "doctor", "sink", "mcp", "acc_check"):
                sub = [w for w in words[1:2] if re.fullmatch(r"get|set|schema", w)]
                flags = _flags(_help("rankprobe", name, *sub)) | common
                wrong += [f"no flag {w}: {line}" for w in (w.split("=")[0].rstrip(",.)") for w in words[1:])
                          if re.fullmatch(r"--?[a-z][\w-]*", w) and w not in flags]
    for line in _code(path):
        flags = _flags(_help("rankprobed"))
        wrong += [f"no flag {w} of rankprobed: {line}" for w in _words(line, "rankprobed")
                  if re.fullmatch(r"--[a-z][\w-]*", w) and w not in flags | {"--dump-help"}]
    assert not wrong


def test_every_metric_is_described() -> None:
    source = (next(ROOT.glob("collector/**/metrics.cc"))).read_text()
    names = set(re.findall(r'(?:Counter|Gauge|Histogram|Head)\(\s*"([a-z_]+)"', source))
    text = (ROOT / "docs/operations.md").read_text()
    described = set(re.findall(r"`rankprobe_([a-z_]+)(?:\{\w+\})?`", text))
    assert len(names) > 20
    assert names == described
