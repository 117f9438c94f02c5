# SPDX-License-Identifier: Apache-2.0
"""A step whose records are damaged where the run is stored: each verb that reads names it and answers the rest."""

import pathlib
import subprocess

import harness
from harness import agent

STEPS = 6


def sealed_run(start_daemon, url: pathlib.Path) -> None:
    leaf = start_daemon("--role", "leaf", "--object-store", url, "--seal-seconds", "1", "--seal-quiet-seconds", "1")
    rank = harness.RawAgent(leaf)
    for step in range(STEPS):
        call = harness.call("Torch.relu.0.forward", [harness.tensor(b"\1\2\3\4" * 64)])
        rank.upload.send(agent.UploadFrame(sequence=step + 1, batch=agent.RecordBatch(step=step, records=[
            harness.begin_record(task="statistics", has_payloads=False), harness.call_record(1, call), harness.end_record(2, 1)])))
    assert rank.committed(STEPS)
    rank.goodbye()
    harness.wait_for(lambda: list(url.glob("v1/runs/*/records/*")), 30, "the steps in the store")
    assert leaf.stop() == 0


def test_each_verb_names_it_and_answers_the_rest(start_daemon, tmp_path):
    url = tmp_path / "objects"
    url.mkdir()
    sealed_run(start_daemon, url)

    def stored(*words) -> subprocess.CompletedProcess:
        return subprocess.run([harness.BIN / "rankprobe", "--object-store", url, *map(str, words)], capture_output=True, text=True, errors="replace",
                              timeout=120)

    whole = stored("query", "--run=run")
    assert whole.returncode == 0 and "Torch.relu.0.forward" in whole.stdout, whole
    records = sorted(url.glob("v1/runs/*/records/*"))[-1]
    data = bytearray(records.read_bytes())
    data[20] ^= 1
    records.write_bytes(data)
    for words in (["query"], ["query", "--rows", "rank"], ["query", "--over-ranks"], ["query", "--json"], ["scan"], ["ledger"],
                  ["export", "-o", tmp_path / "out"], ["export", "--format", "columns", "-o", "-"]):
        done = stored(*words[:1], "--run=run", *words[1:])
        said = done.stdout + done.stderr
        assert done.returncode == 1, (words, done)
        if words[0] == "export" and "--format" not in words:
            said += (tmp_path / "out" / "manifest.json").read_text()
            assert list((tmp_path / "out").glob("step*/rank0/dump.json")), words
        assert "cannot be read" in said, (words, done)
    for words in (["runs"], ["status", "--run=run", "--steps"]):
        assert stored(*words).returncode == 0, words
