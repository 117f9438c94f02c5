# SPDX-License-Identifier: Apache-2.0
"""Every case of a collector that an agent can meet: the training ends as it would alone, and what can be recorded is.

A private collector (nothing is named) listens on a Unix socket:

    no loopback interface; a proxy that is dead; blanks and the
    like in dump_path                                              recorded      test_one_machine_needs_no_network
    a name too long for a socket; no directory for one             recorded      test_where_the_socket_is
    dump_path is a file, read-only, or has no temporary directory  one line      test_what_cannot_be_started
    rankprobed is missing, no program, ends at its start           one line      test_what_cannot_be_started
    it is killed at any moment                                     recorded      test_private_endings.py, tests/crash/private_rounds.py
    it hangs                                                       recorded      test_collector_missing.py

A collector that is named:

    nobody listens; it hangs; it refuses                           one line      test_one_that_is_named
    it comes late, hangs later, is killed, comes back              recorded      test_collector_missing.py
    its address is none                                            an error at the start, as every setting that is none
"""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from typing import Iterator

import harness
import pytest
import rankprobe

pytest.importorskip("torch")

SCRIPT = textwrap.dedent("""
    import pathlib, sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1")
    if hasattr(debugger, "_session"):  # it records
        address = debugger._session.address
        print(address, oct(pathlib.Path(address[5:]).parent.stat().st_mode) if address.startswith("unix:/") else "")
    for _ in range(2):
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.stop()
        debugger.step()
    debugger.close()
    print("trained")
""")


def train(dump_path: pathlib.Path | str, *before: str, cwd: pathlib.Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    """SCRIPT, started by the words `before`."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("RANKPROBE_COLLECTOR", "RANKPROBE_RUN"))}
    return subprocess.run([*before, sys.executable, "-c", SCRIPT, str(dump_path)], text=True, capture_output=True, timeout=300, cwd=cwd,
                          env={**clean, "RANK": "0", **environment})


def assert_recorded(done: subprocess.CompletedProcess, dump_path: pathlib.Path) -> str:
    """Where the collector listened."""
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "trained", done.stderr
    assert "nothing is recorded" not in done.stderr
    assert len(list(dump_path.glob("step*/rank0/dump.json"))) == 2, done.stderr
    harness.wait_for(lambda: not (dump_path / ".rankprobe").exists(), 90, "the end of the collector")
    address, _, mode = done.stdout.splitlines()[0].rpartition(" ")
    assert mode in ("", "0o40700"), "whoever may enter the directory may ask the collector"
    return address


def assert_one_line(done: subprocess.CompletedProcess, words: str) -> None:
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "trained", done.stderr
    said = [line for line in done.stderr.splitlines() if "training continues" in line]
    assert len(said) == 1 and words in said[0] and "Traceback" not in done.stderr, done.stderr


def network_of_its_own() -> list[str]:
    """Starts a command where no interface is up. Skips where that is not permitted."""
    for flag in ("-n", "-rn"):
        if subprocess.run(["unshare", flag, "true"], capture_output=True).returncode == 0:
            return ["unshare", flag]
    pytest.skip("no network namespace can be made here")


def mounts_of_its_own(commands: str) -> list[str]:
    """Starts a command after these, with mounts that nobody else sees. Skips where that is not permitted."""
    words = ["unshare", "-m", "sh", "-ec", f'{commands}\nexec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mounts can be made here")
    return words


@pytest.fixture
def short() -> Iterator[pathlib.Path]:
    """A directory in which a socket's name is short enough."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield pathlib.Path(directory)


@pytest.mark.parametrize("case", ["no loopback", "dead proxies", "odd names"])
def test_one_machine_needs_no_network(short: pathlib.Path, case: str) -> None:
    dump = short / ("a run 50 % #1 é?" if case == "odd names" else "dump")
    before = network_of_its_own() if case == "no loopback" else []
    dead = "http://127.0.0.1:1"
    proxies = {name: dead for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy")}
    done = train(dump, *before, **({"no_proxy": "", **proxies} if case == "dead proxies" else {}))
    assert assert_recorded(done, dump) == f"unix:{dump}/.rankprobe/collector-{socket.gethostname()}/socket"


@pytest.mark.parametrize("case", ["too long", "no address", "too long everywhere"])
def test_where_the_socket_is(tmp_path: pathlib.Path, case: str) -> None:
    """In a directory of its own, which goes with the collector; else it has a name without a file, and no network is needed either."""
    dump, temporary = tmp_path / ("a, b" if case == "no address" else "x" * 100), pathlib.Path("/tmp")
    if case == "too long everywhere":
        temporary = tmp_path / ("y" * 100)
        temporary.mkdir()
    done = train(dump, *network_of_its_own(), TMPDIR=str(temporary), http_proxy="http://127.0.0.1:1")
    address = assert_recorded(done, dump)
    if case != "too long everywhere":
        assert address.startswith(f"unix:/tmp/rankprobe-{os.getuid()}-"), address
        assert not pathlib.Path(address[5:]).parent.exists()
    else:
        assert address.startswith("unix-abstract:rankprobe-"), address
        assert not list(temporary.iterdir())


def package_alone(directory: pathlib.Path) -> dict[str, str]:
    """The package where none of its programs are beside it, and the environment that imports it; they would be in directory/bin."""
    site = directory / "lib" / "site"
    shutil.copytree(pathlib.Path(rankprobe.__file__).parent, site / "rankprobe", ignore=shutil.ignore_patterns("__pycache__", "bin"))
    return {"PYTHONPATH": str(site), "PATH": str(directory / "bin"), "RANKPROBE_BIN_DIR": ""}


def test_what_cannot_be_started(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_one_line(train(tmp_path / "file" / "dump"), "file")
    environment = package_alone(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    assert_one_line(train(tmp_path / "dump", **environment), "no program rankprobed")
    for name in ("rankprobed", "rankprobe"):
        shutil.copy(harness.BIN / name, programs / name)
        (programs / name).chmod(0o644)
    if not os.access(programs / "rankprobed", os.X_OK):
        assert_one_line(train(tmp_path / "dump", **environment), "no program rankprobed")
    for name in ("rankprobed", "rankprobe"):
        (programs / name).chmod(0o755)
    ends_at_once = shutil.which("false")
    assert ends_at_once
    shutil.copy(ends_at_once, programs / "rankprobed")
    assert stat.S_IMODE((programs / "rankprobed").stat().st_mode) & stat.S_IXUSR
    assert_one_line(train(tmp_path / "dump", **environment), "the collector did not start")
    shutil.copy(harness.BIN / "rankprobed", programs / "rankprobed")
    assert_recorded(train(tmp_path / "dump", **environment), tmp_path / "dump")


@pytest.mark.parametrize("case", ["dump_path", "temporary"])
def test_what_cannot_be_written(tmp_path: pathlib.Path, case: str) -> None:
    """By root neither: a file system that is read-only."""
    (tmp_path / "out").mkdir()
    read_only = 'mount --bind "{0}" "{0}"; mount -o remount,bind,ro "{0}"'
    places = ("/mnt",) if case == "dump_path" else ("/tmp", "/var/tmp")
    commands = "\n".join([f'mount --bind "{tmp_path}/out" /mnt', *(read_only.format(place) for place in places), "cd /proc"])
    done = train("/mnt/dump", *mounts_of_its_own(commands), TMPDIR="/tmp")
    assert_one_line(done, "Read-only file system" if case == "dump_path" else "temporary directory")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("case", ["nobody at a port", "no socket", "nobody at a name", "hangs", "refuses"])
def test_one_that_is_named(tmp_path: pathlib.Path, short: pathlib.Path, start_collector, case: str) -> None:
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(short / "hung"))
        hung.listen()
        address = {"nobody at a port": "127.0.0.1:1", "no socket": f"unix:{short}/none", "nobody at a name": f"unix-abstract:{short}",
                   "hangs": f"unix:{short}/hung"}.get(case)
        if case == "refuses":
            (tmp_path / "tokens").write_text("viewer reader aaaaaaaaaaaaaaaaaaaaaaaa\n")
            (tmp_path / "tokens").chmod(0o600)
            address = start_collector("--token-file", tmp_path / "tokens").address
        done = train(tmp_path / "dump", RANKPROBE_COLLECTOR=str(address), RANKPROBE_RUN="cases", RANKPROBE_WAIT_MS="500")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "trained", done.stderr
    # A collector that refuses gives its reason, in place of the address.
    assert "Traceback" not in done.stderr and ("a token is needed" if case == "refuses" else str(address)) in done.stderr, done.stderr


@pytest.mark.parametrize("address", ["unix:", "unix:/a,b", "unix-abstract:", "unix:/" + "x" * 107, "unix:/a\nb"])
def test_an_address_that_is_none(tmp_path: pathlib.Path, address: str) -> None:
    with pytest.raises(ValueError, match="is not unix:PATH"):
        rankprobe.Session(address, run="cases")
    command = subprocess.run([harness.BIN / "rankprobe", "--collector", address, "status"], capture_output=True, text=True, timeout=60)
    assert command.returncode == 2 and "is not unix:PATH" in command.stderr
    served = subprocess.run([harness.BIN / "rankprobed", "--listen", address, "--data-dir", tmp_path / "data"], capture_output=True,
                            text=True, timeout=60)
    assert served.returncode == 2 and "listen" in served.stderr and "is not unix:PATH" in served.stderr


def test_a_shared_collector_on_a_unix_socket(tmp_path: pathlib.Path, short: pathlib.Path) -> None:
    """Agents and commands reach it; a second one is refused, and one that was killed is followed; others' files stay."""
    address, listens = f"unix:{short}/of all jobs", tmp_path / "listens"

    def start(data: str) -> subprocess.Popen:
        listens.unlink(missing_ok=True)
        process = subprocess.Popen([harness.BIN / "rankprobed", "--listen", address, "--data-dir", tmp_path / data, "--port-file", listens],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        harness.wait_for(lambda: process.poll() is not None or listens.exists() and listens.read_text().endswith("\n"), 60, "rankprobed")
        return process

    first = start("data")
    assert listens.read_text() == f"{address}\n"
    second = start("other")
    assert second.wait() == 5 and f"cannot listen on {address}: taken by another process" in second.communicate()[1]
    first.kill()
    first.communicate()
    assert (short / "of all jobs").is_socket()
    third = start("data")
    try:
        done = train(tmp_path / "dump", RANKPROBE_COLLECTOR=address, RANKPROBE_RUN="shared")
        assert done.returncode == 0, done.stderr
        ledger = subprocess.run([harness.BIN / "rankprobe", "--collector", address, "ledger", "--run", "shared"], capture_output=True,
                                text=True, timeout=60)
        assert "of 2 rank-steps stored, nothing lost" in ledger.stdout, ledger
    finally:
        third.terminate()
        third.communicate()
    assert not (short / "of all jobs").exists()
    gone = subprocess.run([harness.BIN / "rankprobe", "--collector", address, "status"], capture_output=True, text=True, timeout=60)
    assert gone.returncode == 3 and "there is no such socket" in gone.stderr
