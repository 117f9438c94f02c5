# SPDX-License-Identifier: Apache-2.0
"""The blocks of the README and the tutorials that stand behind `<!-- run -->` are run, in order, in a directory that nobody
prepared. What they print is compared (tests/lib/walkthrough.py)."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tests" / "lib"))

import walkthrough

from ports import free_port

pytest.importorskip("torch")


def _until(command: str) -> str:
    return f"for i in $(seq 300); do {command} > /dev/null 2>&1 && break; sleep 0.2; done\n"


@pytest.mark.parametrize("document", ["README.md", "docs/getting-started.md", "docs/two-runs-differ.md", "docs/agents.md", "docs/sinks.md", "docs/numerics-in-ci.md"])
def test_walkthrough(document: str, tmp_path: pathlib.Path) -> None:
    blocks = walkthrough.blocks(ROOT / document)
    assert blocks
    work = tmp_path / "work"
    work.mkdir()
    tools = tmp_path / "tools"  # `python` and the programs, as in an environment that has the package
    tools.mkdir()
    (tools / "python").symlink_to(sys.executable)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RANKPROBE_")}
    environment |= {"PATH": f"{tools}:{BUILD}/bin:{environment['PATH']}", "PYTHONPATH": str(BUILD / "python"),
                    "PYTEST_PLUGINS": "rankprobe.pytest_plugin", "RANKPROBE_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    script = walkthrough.script(blocks)
    script = script.replace("127.0.0.1:7411", f"127.0.0.1:{free_port()}")
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
    assert process.returncode == 0, out
    assert not (wrong := walkthrough.faults(blocks, out)), "\n".join(wrong)
