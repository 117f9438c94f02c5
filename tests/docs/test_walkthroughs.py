"""The blocks of README and getting-started that stand behind `<!-- run -->` are run, in order, in a directory that nobody
prepared. A ```text block behind one is what it prints: each of its lines must come, numbers of processes, times and ids aside."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT

pytest.importorskip("torch")

_BLOCK = re.compile(r"^<!-- run -->\n```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
_MARK = "@@ block"


def _plain(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"\S*/(?=(?:dump|train|long)[\w.*/-]*)", "", text)  # where the directory is
    text = re.sub(r"\d+(?:\.\d+)? (?:[KMG]iB|B)\b", "# B", text)
    return re.sub(r"\s+", " ", re.sub(r"(?<![a-z_])\d[\d.]*|proc\d+|_\d{9,}|\(run \S+\)", "#", text)).strip()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _until(command: str) -> str:
    return f"for i in $(seq 300); do {command} > /dev/null 2>&1 && break; sleep 0.2; done\n"


@pytest.mark.parametrize("document", ["README.md", "docs/getting-started.md"])
def test_walkthrough(document: str, tmp_path: pathlib.Path) -> None:
    blocks = _BLOCK.findall((ROOT / document).read_text())
    assert len(blocks) >= 3
    work = tmp_path / "work"
    work.mkdir()
    tools = tmp_path / "tools"  # `python` and the programs, as in an environment that has the package
    tools.mkdir()
    (tools / "python").symlink_to(sys.executable)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RANKPROBE_")}
    environment |= {"PATH": f"{tools}:{BUILD}/bin:{environment['PATH']}", "PYTHONPATH": str(BUILD / "python"),
                    "RANKPROBE_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    script = "".join(f"echo '{_MARK} {i}'\n{block[0]}" for i, block in enumerate(blocks))
    script += "true\n"  # "dumps differ" is an exit code too
    script = script.replace("127.0.0.1:7411", f"127.0.0.1:{_free_port()}")
    # A reader waits a little; a busy machine, as long as it takes.
    script = script.replace("sleep 2\n", _until("rankprobe runs"))
    with subprocess.Popen(["bash", "--norc", "-c", script], cwd=work, env=environment, text=True, start_new_session=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            out, _ = process.communicate(timeout=900)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # a collector of a walkthrough that failed
            except ProcessLookupError:
                pass
    assert process.returncode == 0 and not re.search("command not found|Traceback|no such file", out, re.IGNORECASE), out
    printed = re.split(rf"^{_MARK} \d+\n", out, flags=re.MULTILINE)[1:]
    assert len(printed) == len(blocks), out
    for (commands, expected), got in zip(blocks, printed):
        plain = [_plain(line) for line in got.splitlines()]
        for line in expected.splitlines():
            assert any(_plain(line) in p for p in plain), f"{commands}\nprinted no line like\n{line}\nbut\n{got}"
