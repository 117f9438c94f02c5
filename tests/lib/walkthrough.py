# SPDX-License-Identifier: Apache-2.0
"""Runs the code blocks of a document that follow `<!-- run -->`, in order, and checks their output against the document.

A ```text block after one is its expected output: each of its lines must occur, except for process ids, times and run ids.
As a program, in an empty directory, with `python` and `rankprobe` on PATH:

    walkthrough.py DOCUMENT
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import time

_BLOCK = re.compile(r"^<!-- run -->\n```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
_MARK = "@@ block"


def blocks(document: pathlib.Path) -> list[tuple[str, str]]:
    """Returns the commands and the expected output of each block."""
    return _BLOCK.findall(document.read_text(encoding="utf-8"))


def script(found: list[tuple[str, str]]) -> str:
    """Returns a script for bash. It ends with `true`, because the last command may report by its exit code that dumps differ."""
    return "".join(f"echo '{_MARK} {i}'\n{block[0]}" for i, block in enumerate(found)) + "true\n"


def _plain(text: str) -> str:
    """Removes text that differs between runs."""
    text = re.sub(r"\S*/(?=(?:dump|train|long)[\w.*/-]*)", "", text)  # path of the directory
    text = re.sub(r"\d+(?:\.\d+)? (?:[KMG]iB|B)\b", "# B", text)
    text = re.sub(r" step \d+ connected$", " connected", text)  # Whether the step has begun depends on the machine.
    return re.sub(r"\s+", " ", re.sub(r"(?<![a-z_])\d[\d.]*|proc\d+|_\d{9,}|\(run \S+\)", "#", text)).strip()


def faults(found: list[tuple[str, str]], printed: str) -> list[str]:
    """Returns the faults in the output of the script."""
    if re.search("command not found|Traceback|no such file", printed, re.IGNORECASE):
        return [printed]
    parts = re.split(rf"^{_MARK} \d+\n", printed, flags=re.MULTILINE)[1:]
    if len(parts) != len(found):
        return [f"{len(parts)} of {len(found)} blocks were run:\n{printed}"]
    wrong = []
    for (commands, expected), got in zip(found, parts):
        plain = [_plain(line) for line in got.splitlines()]
        for line in expected.splitlines():
            if not any(_plain(line) in p for p in plain):
                wrong.append(f"{commands}\nprinted no line like\n{line}\nbut\n{got}")
    return wrong


def main() -> int:
    found = blocks(pathlib.Path(sys.argv[1]))
    began = time.monotonic()
    result = subprocess.run(["bash", "--norc", "-c", script(found)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, timeout=900)
    print(result.stdout)
    wrong = faults(found, result.stdout)
    print(*wrong, sep="\n", end="")
    print(f"{len(found)} blocks of {sys.argv[1]} in {time.monotonic() - began:.1f} s, {len(wrong)} not as it says")
    return 1 if wrong or result.returncode or not found else 0


if __name__ == "__main__":
    sys.exit(main())
