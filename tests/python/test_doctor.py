# SPDX-License-Identifier: Apache-2.0
"""rankprobe doctor: a sound environment has no fault, and each fault is named with the way out."""

from __future__ import annotations

import builtins
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from typing import Any

import pytest

import harness
from rankprobe import doctor
from rankprobe.doctor import FAULT, NOTE, OK, WARNING, Question


def clean(**given: str) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if not k.startswith("RANKPROBE_") and k not in ("RANK", "WORLD_SIZE")}, **given}


def found(check: Any, **given: Any) -> list[doctor.Finding]:
    return list(check(Question(**{"environment": clean(), **given})))


def only(check: Any, state: str, **given: Any) -> doctor.Finding:
    (one,) = [one for one in found(check, **given) if one.state == state]
    assert state in (OK, NOTE) or one.remedy, one
    return one


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """By the command line, which becomes Python."""
    return subprocess.run([harness.BIN / "rankprobe", "doctor", *arguments], capture_output=True, text=True, timeout=120,
                          env=clean(RANKPROBE_PYTHON=sys.executable, PYTHONPATH=os.environ["PYTHONPATH"], **environment))


def test_a_sound_environment(tmp_path, collector) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dump_path": str(tmp_path / "dump"), "level": "mix", "step": [3, "5-7"], "rank": [0]}))
    done = run("--config", str(config), "--collector", collector.address)
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    assert f"{config}: task statistics, level mix, ranks [0], steps [3, '5-7']" in done.stdout
    assert f"{collector.address} answers; 0 ranks are known" in done.stdout
    assert done.stdout.splitlines()[-1] in ("no fault", "0 faults, 1 warning", "0 faults, 2 warnings"), done.stdout
    assert not (tmp_path / "dump").exists(), "it writes nothing"


def test_the_faults_come_with_their_way_out(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    done = run("--json", "--dump-path", str(tmp_path / "dump"), RANKPROBE_COLLECTOR=address, RANKPROBE_POLICY="blok")
    assert done.returncode == 1, done.stdout
    faults = {one["check"]: one for one in json.loads(done.stdout)["findings"] if one["state"] == FAULT}
    assert faults.keys() == {"collector", "environment"} and address in faults["collector"]["text"], faults
    assert "rankprobed --data-dir" in faults["collector"]["remedy"] and faults["environment"]["remedy"] == "one of block, stats_only, drop_newest"


def test_a_flag_that_is_none_is_bad_usage() -> None:
    done = run("--confg", "x")
    assert done.returncode == 2 and "--confg" in done.stderr


def test_a_token_that_is_missing(tmp_path, start_collector) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("viewer team 0123456789abcdef0123\n")
    tokens.chmod(0o600)
    collector = start_collector("--token-file", str(tokens))
    one = only(doctor.collector, FAULT, collector=collector.address)
    assert "RANKPROBE_TOKEN_FILE" in one.remedy, one
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123")
    token.chmod(0o600)
    only(doctor.collector, OK, collector=collector.address, access=("--token-file", str(token)))


@pytest.mark.parametrize("text, said", [
    ('{"dump_path": "x", "level": "L9"}', "L9"), ('{"dump_path": ', "config.json:1:"), ('{"dump_path": "x", "lvel": "L0"}', "lvel"), (None, "No such file"),
])
def test_a_config_with_a_fault(tmp_path, text: str | None, said: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    assert said in only(doctor.configuration, FAULT, config=str(path)).text


def test_without_a_config_it_says_what_is_recorded() -> None:
    assert "statistics of level mix" in only(doctor.configuration, NOTE).text


def test_a_dump_path_that_cannot_be_made(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a directory" in only(doctor.dump_path, FAULT, dump_path=str(tmp_path / "file" / "dump")).text
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "other users" in only(doctor.dump_path, WARNING, dump_path=str(tmp_path / "open" / "dump")).text
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert "no permission" in only(doctor.dump_path, FAULT, dump_path=str(tmp_path / "dump")).text


@pytest.mark.parametrize("free, state", [(1 << 20, FAULT), (200 << 20, WARNING), (5 << 30, OK)])
def test_a_disk_that_is_full(tmp_path, monkeypatch, free: int, state: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, (1 << 40) - free, free))
    only(doctor.dump_path, state, dump_path=str(tmp_path / "dump"))


def test_shared_memory_that_is_refused(monkeypatch) -> None:
    only(doctor.shared_memory, OK)
    only(doctor.shared_memory, NOTE, environment=clean(RANKPROBE_LANE="off"))

    def refuse(*_: object) -> int:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert "Operation not permitted" in only(doctor.shared_memory, WARNING).text


def test_no_loopback_and_a_port_in_use(monkeypatch) -> None:
    class Deaf(socket.socket):
        def connect(self, address: Any) -> None:
            raise OSError(101, "Network is unreachable")

    class Taken(socket.socket):
        def bind(self, address: Any) -> None:
            if address[1]:
                raise OSError(98, "Address already in use")

    monkeypatch.setattr(socket, "socket", Deaf)
    assert "a private collector does not need it" in only(doctor.network, NOTE).text
    monkeypatch.setattr(socket, "socket", Taken)
    assert "7411" in only(doctor.network, NOTE).text


def test_few_open_files(monkeypatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))
    assert only(doctor.limits, WARNING).remedy == "ulimit -n 4096"


@pytest.mark.parametrize("given, state, said", [
    ({"RANKPROBE_POLCY": "block"}, WARNING, "did you mean RANKPROBE_POLICY?"),
    ({"RANKPROBE_STOP": "never"}, FAULT, "one of kept, committed"),
    ({"RANK": "first"}, FAULT, "unset RANK, or let torchrun set it"),
    ({"RANKPROBE_SPOOL": "/nowhere/spool"}, FAULT, "mkdir -p -m 750 /nowhere/spool"),
    ({"RANKPROBE_TOKEN_FILE": "/nowhere/token"}, FAULT, "correct RANKPROBE_TOKEN_FILE, or unset it"),
])
def test_variables(given: dict[str, str], state: str, said: str) -> None:
    assert only(doctor.environment, state, environment=clean(**given)).remedy == said


def test_every_variable_of_the_documentation_is_known() -> None:
    table = (harness.ROOT / "docs/operations.md").read_text().partition("## Agents")[2].partition("## Metrics")[0]
    named = {word.split("`")[0] for line in table.splitlines() if line.startswith("| `") for word in line.split("|")[1].split("RANKPROBE_")[1:]}
    assert len(named) > 15 and named - set(doctor.VARIABLES) == set()


def without(monkeypatch, error: Exception) -> None:
    real = doctor.importlib.import_module

    def fail(name: str, package: str | None = None) -> Any:
        if name == "torch":
            raise error
        return real(name, package)

    monkeypatch.setattr(doctor.importlib, "import_module", fail)


def test_pytorch_that_is_missing_or_broken(monkeypatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    without(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert "pip install torch" in only(doctor.framework, FAULT).remedy
    without(monkeypatch, OSError("libcudart.so.12: cannot open shared object file"))
    assert "libcudart.so.12" in only(doctor.framework, FAULT).text


def test_pytorch_that_is_too_old(monkeypatch) -> None:
    import torch

    monkeypatch.setattr(torch, "__version__", "1.9.1+cpu")
    assert "1.9.1" in only(doctor.framework, FAULT).text


@pytest.mark.parametrize("capability, state", [((9, 0), OK), ((6, 1), NOTE)])
def test_a_device(monkeypatch, capability: tuple[int, int], state: str) -> None:
    import torch

    for name, value in {"is_available": True, "device_count": 1, "get_device_name": "GPU", "get_device_capability": capability}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    (one,) = [one for one in found(doctor.framework) if one.check == "device"]
    assert one.state == state and "GPU" in one.text

    def broken(*_: object) -> bool:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(torch.cuda, "is_available", broken)
    assert "no kernel image" in only(doctor.framework, WARNING).text


def test_programs_that_are_missing_or_of_another_version(monkeypatch, tmp_path) -> None:
    from rankprobe import embedded

    def missing(name: str) -> str:
        raise FileNotFoundError(f"no program {name}")

    monkeypatch.setattr(embedded, "find_binary", missing)
    assert [one.state for one in found(doctor.package)] == [OK, FAULT, FAULT]
    other = tmp_path / "rankprobed"
    other.write_text("#!/bin/sh\necho rankprobed 9.9.9\n")
    other.chmod(0o755)
    monkeypatch.setattr(embedded, "find_binary", lambda name: str(other))
    assert "is version 9.9.9" in found(doctor.package)[1].text


def test_a_check_that_breaks_is_a_fault_and_the_others_are_done(monkeypatch) -> None:
    def broken(question: Question) -> Any:
        raise builtins.ZeroDivisionError("x")

    monkeypatch.setattr(doctor, "CHECKS", (broken, doctor.limits))
    one, other = doctor.findings(Question(clean()))
    assert one.state == FAULT and "ZeroDivisionError: x" in one.text and other.check == "limits"
    assert doctor.report([one]).endswith("1 fault, 0 warnings")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting wants root")
def test_a_read_only_file_system_is_named_to_root_as_well(tmp_path) -> None:
    words = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none "$1" && shift && exec "$@"', "sh", str(tmp_path)]
    if subprocess.run([*words, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    done = subprocess.run([*words, str(harness.BIN / "rankprobe"), "doctor", "--dump-path", str(tmp_path / "dump")], capture_output=True, text=True,
                          timeout=120, env=clean(RANKPROBE_PYTHON=sys.executable, PYTHONPATH=os.environ["PYTHONPATH"]))
    assert f"{tmp_path} is on a read-only file system" in done.stdout and "chmod" not in done.stdout, done.stdout
