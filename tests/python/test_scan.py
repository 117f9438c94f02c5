# SPDX-License-Identifier: Apache-2.0
"""rankprobe scan on runs of two real ranks in a shared collector, with a planted fault and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

SCRIPT = textwrap.dedent("""
    import json, os, sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    fault, rank = sys.argv[2], int(os.environ["RANK"])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    generator = torch.Generator().manual_seed(3)  # both ranks have the same batches: nothing needs a reduction
    for step in range(20):
        debugger.start(model=net)
        batch = torch.randn(8, 6, generator=generator)
        if fault == "nan" and rank == 1 and step == 12:
            batch[0, 0] = float("nan")
        if fault == "zero":  # no fault: the bias of one element goes down, and through 0 in step 12
            net[2].bias.data.fill_(0.12003 - 0.01 * step)
        optimizer.zero_grad()
        loss = (net(batch) - 1).square().mean()
        (loss * 1000 if fault == "scale" and step >= 12 else loss).backward()
        if fault == "weight" and rank == 1 and step == 12:
            net[2].weight.data[0, 0] += 1e-3
        if not (fault == "stuck" and step >= 12):
            optimizer.step()
        debugger.stop()
        debugger.step()
    debugger.close()
""")


def _run(tmp_path, collector, fault: str) -> str:
    config = tmp_path / f"{fault}.json"
    config.write_text(json.dumps({"task": "monitor", "dump_path": str(tmp_path / "dump"), "monitor": {"every": 1}}))
    ranks = [subprocess.Popen([sys.executable, "-c", SCRIPT, str(config), fault], env={
        **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "RANKPROBE_RUN": fault, "RANKPROBE_COLLECTOR": collector.address})
        for rank in (0, 1)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    return fault


def test_a_sound_run_has_no_finding(tmp_path, collector) -> None:
    done = collector.cli("scan", "--run", _run(tmp_path, collector, "sound"))
    assert done.stdout.startswith("0 findings in ") and " over 20 recorded steps\n" in done.stdout, done.stdout


def test_a_single_element_that_passes_through_zero_is_no_move(tmp_path, collector) -> None:
    run = _run(tmp_path, collector, "zero")
    lines = collector.cli("query", "--run", run, "--of", "all", "--csv", "Parameter.2.bias.*param").stdout.splitlines()
    norms = [float(cell) for cell in lines[1].split(",")[-20:]]
    assert norms[12] < 1e-4 < 5e-3 < min(norms[11], norms[13]), norms
    done = collector.cli("scan", "--run", run, check=False)
    assert done.returncode == 0 and done.stdout.startswith("0 findings in "), done.stdout


@pytest.mark.parametrize("fault, kind, name, rank", [
    ("nan", "non-finite", "Module.0.Linear.forward.0.input.0", 1),
    ("scale", "move", "Training.0.debug.loss", None),
    ("weight", "ranks part", "Parameter.2.weight.0.debug.param", None),
], ids=["nan", "scale", "weight"])
def test_a_planted_fault_is_named_at_its_step(tmp_path, collector, fault, kind, name, rank) -> None:
    run = _run(tmp_path, collector, fault)
    done = collector.cli("scan", "--run", run, "--json", check=False)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert int(report["steps"]) == 20
    first = [f for f in report["findings"] if f["kind"] == kind][0]
    assert int(first["step"]) == 12 and ("rank" in first and int(first["rank"]) if rank is not None else None) == rank, first
    if fault != "scale":
        assert first["name"] == name, first
    text = collector.cli("scan", "--run", run, check=False).stdout
    name = report["findings"][0]["name"]
    assert f"Next: rankprobe query --run {run} --of all --rows rank --from-step 10 --to-step 14 '{name}'" in text, text
    only = json.loads(collector.cli("scan", "--run", run, "--json", "--to-step", "11").stdout)
    assert only["findings"] == []
    # A pattern with a slip is no sound run.
    for words in (["nosuchlayer"], ["nosuchlayer", "--json"], ["--from-step", "100000"]):
        nothing = collector.cli("scan", "--run", run, *words, check=False)
        assert nothing.returncode == 4 and "nothing to scan" in nothing.stderr and not nothing.stdout


def test_what_cannot_be_scanned(collector) -> None:
    for words, fault in ((["--run", "none"], "none"), (["--run", "x", "--window", "1"], "--window"), ([], "--run is required")):
        done = collector.cli("scan", *words, check=False)
        assert done.returncode in (2, 4) and fault in done.stderr, done.stderr
