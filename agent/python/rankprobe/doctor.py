# SPDX-License-Identifier: Apache-2.0
"""Checks this environment: python -m rankprobe.doctor [options]

Each line is one check: ok, a note, a warning, or a fault with the way out. It starts no training, no collector and no
thread, writes nothing, and asks a collector for its status only. Exit status: 0 no fault, 1 a fault, 2 bad usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import errno
import fcntl
import importlib
import importlib.util
import json
import os
import pathlib
import platform
import resource
import shutil
import socket
import stat
import subprocess
import sys
from typing import Callable, Iterator, Sequence

OK, NOTE, WARNING, FAULT = "ok", "note", "warning", "fault"
_MIB = 1 << 20
# Free space in bytes that a private collector keeps, and the limit below which only a small recording fits.
_MIN_FREE, _LITTLE_FREE = 64 * _MIB, 1024 * _MIB
_OLDEST_PYTORCH, _NATIVE_CAPABILITY = (1, 13), (7, 0)
# Variables that processes read (docs/operations.md, "Agents"), and below those that only tests and packages set.
VARIABLES = (
    "API_LIST", "COLLECTOR", "COMPILED", "CONFIG", "CUSTOM_WRAP_OPS", "JOB", "LANE", "ON_COLLECTOR_MISSING", "POLICY", "PROGRESS",
    "PYTHON", "QUEUE_MB", "REPLICA", "RUN", "RUN_CARD", "SINK_TOKEN", "SINK_URL", "SPOOL", "SPOOL_MB", "STOP", "TLS_CA", "TLS_CERT", "TLS_KEY",
    "TLS_SERVER_NAME", "TOKEN_FILE", "WAIT_MS")
_OTHER_VARIABLES = ("ATTACH", "AS_MSPROBE", "BIN_DIR", "ISOLATE", "MONITOR", "RESEND", "JOBS", "BUILD_DIR", "PRESET", "ROOT")


@dataclasses.dataclass
class Finding:
    """Result of one check. `remedy`: the command or change that helps; empty if nothing is wrong."""

    check: str
    state: str
    text: str
    remedy: str = ""


@dataclasses.dataclass
class Question:
    """Input of the checks. `environment` is that of the future job."""

    environment: dict[str, str]
    collector: str = ""
    config: str = ""
    dump_path: str = ""
    # Command-line flags that authenticate the collector and the caller.
    access: tuple[str, ...] = ()


def package(question: Question) -> Iterator[Finding]:
    """Checks the package and the programs that it starts."""
    import rankprobe
    from rankprobe.embedded import find_binary

    yield Finding("package", OK, f"rankprobe {rankprobe.__version__} in {pathlib.Path(rankprobe.__file__).parent}")
    for name in ("rankprobe", "rankprobed"):
        try:
            path = find_binary(name)
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout.split()
        except (OSError, subprocess.SubprocessError) as error:
            yield Finding("package", FAULT, f"{name}: {error}", "install the package again, or set RANKPROBE_BIN_DIR")
            continue
        if said[-1:] != [rankprobe.__version__]:
            yield Finding("package", FAULT, f"{path} is version {' '.join(said[-1:]) or 'unknown'}, the package {rankprobe.__version__}",
                          "remove the other installation, or set RANKPROBE_BIN_DIR")


def python(question: Question) -> Iterator[Finding]:
    machine = f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}".rstrip(", ")
    tested = platform.system() == "Linux" and platform.machine() == "x86_64"
    yield Finding("python", OK if tested else WARNING, f"Python {platform.python_version()} ({sys.executable}), {machine}",
                  "" if tested else "only Linux on x86-64 is tested")


def framework(question: Question) -> Iterator[Finding]:
    """Checks PyTorch, its devices, and other installed packages that record or are recorded."""
    mindspore = importlib.util.find_spec("mindspore") is not None
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # noqa: BLE001 - the import of a broken PyTorch may raise any type
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            yield Finding("framework", NOTE if mindspore else FAULT, "PyTorch is not installed in this Python" +
                          ("; MindSpore is" if mindspore else ""),
                          "" if mindspore else "install it here (pip install torch), or set RANKPROBE_PYTHON to the Python of your job")
        else:
            yield Finding("framework", FAULT, f"PyTorch does not load: {type(error).__name__}: {error}", "repair the installation of PyTorch")
        return
    version = str(torch.__version__)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    old = numbers < _OLDEST_PYTORCH
    yield Finding("framework", FAULT if old else OK, f"PyTorch {version}", "PyTorch 1.13 or later is needed" if old else "")
    if importlib.util.find_spec("msprobe") is not None:
        yield Finding("framework", NOTE, "msprobe is installed too; a program that imports it is recorded by rankprobe only under "
                      "`rankprobe run --as-msprobe`")
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = [f"{torch.cuda.get_device_name(i)} ({'.'.join(map(str, torch.cuda.get_device_capability(i)))})" for i in range(count)]
        native = all(torch.cuda.get_device_capability(i) >= _NATIVE_CAPABILITY for i in range(count))
    except Exception as error:  # noqa: BLE001 - for example a driver that does not match its library
        yield Finding("device", WARNING, f"PyTorch cannot use CUDA: {error}", "check the driver (nvidia-smi)")
        return
    if not count:
        yield Finding("device", OK, "no CUDA device; tensors on the CPU are read in place")
    elif native:
        yield Finding("device", OK, f"{', '.join(names)}: statistics by rankprobe's kernel")
    else:
        yield Finding("device", NOTE, f"{', '.join(names)}: below compute capability 7.0 "
                      "operators of PyTorch compute the statistics, which is slower")


def configuration(question: Question) -> Iterator[Finding]:
    """Checks config.json and reports what it would record. Sets question.dump_path from it unless it is set already."""
    if not question.config:
        yield Finding("config", NOTE, "no config.json (--config, RANKPROBE_CONFIG): `rankprobe run` would record statistics of level mix, "
                      "all ranks and steps, into ./dump_path")
        return
    from rankprobe import _native
    from rankprobe._frontend.files import MAX_CONFIG_BYTES, read_regular

    try:
        text = read_regular(question.config, MAX_CONFIG_BYTES).decode("utf-8")
        warnings = _native.check_config_file(question.config, text)
        plan = json.loads(text)
    except (OSError, ValueError) as error:
        said = f"{question.config}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
        for line in said.splitlines():
            yield Finding("config", FAULT, line, "see docs/config.md, or check the file with `rankprobe config schema`")
        return
    for line in warnings:
        yield Finding("config", WARNING, line, "see docs/config.md")
    off = "; recording is off until it is switched on (dump_enable)" if plan.get("dump_enable") is False else ""
    yield Finding("config", OK, f"{question.config}: task {plan.get('task', 'statistics')}, level {plan.get('level', 'L1')}, ranks "
                  f"{plan.get('rank') or 'all'}, steps {plan.get('step') or 'all'}{off}")
    question.dump_path = question.dump_path or str(plan.get("dump_path", ""))


def dump_path(question: Question) -> Iterator[Finding]:
    """Checks whether the dump can be written: permissions, owner, space."""
    path = pathlib.Path(question.dump_path or "dump_path").absolute()
    there = next(p for p in (path, *path.parents) if p.exists())
    if not there.is_dir():
        yield Finding("dump_path", FAULT, f"{path}: {there} is not a directory", "choose another dump_path")
        return
    if os.statvfs(there).f_flag & os.ST_RDONLY:  # Checked separately, because permissions do not help here, not even root's.
        yield Finding("dump_path", FAULT, f"{path}: {there} is on a read-only file system (EROFS)",
                      "choose a dump_path on another file system, or mount this one writable (mount -o remount,rw)")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding("dump_path", FAULT, f"{path}: no permission to write in {there}", f"chmod u+wx {there}, or choose another dump_path")
        return
    status = there.stat()
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        yield Finding("dump_path", WARNING, f"{there} can be written by other users: analyses refuse dumps in it", f"chmod go-w {there}")
    free = shutil.disk_usage(there).free
    state = FAULT if free < _MIN_FREE else WARNING if free < _LITTLE_FREE else OK
    yield Finding("dump_path", state, f"{path}: {free // _MIB:,} MiB free", "" if state == OK else "free some space, or choose another dump_path")


def network(question: Question) -> Iterator[Finding]:
    """Checks the port on which a shared collector on this machine would listen; a private one has a Unix socket and needs no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connect() of a datagram socket sends nothing.
        try:
            probe.connect(("127.0.0.1", 7411))
        except OSError as error:
            yield Finding("network", NOTE, f"127.0.0.1 cannot be reached: {error.strerror}; a private collector does not need it, "
                          "`rankprobe view` and rankprobed's default address do")
            return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", 7411))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                yield Finding("network", NOTE, "port 7411, the default of rankprobed, is in use on this machine")
                return
    yield Finding("network", OK, "port 7411, the default of rankprobed, is free; a private collector needs no port")


def collector(question: Question) -> Iterator[Finding]:
    """Checks whether the collector answers the native program, with the given TLS files and token."""
    address = question.collector or question.environment.get("RANKPROBE_COLLECTOR", "")
    if not address:
        yield Finding("collector", OK, "none is named (--collector, RANKPROBE_COLLECTOR): a job starts a private one")
        return
    from rankprobe.embedded import find_binary

    try:
        done = subprocess.run([find_binary("rankprobe"), "--collector", address, *question.access, "--timeout", "5", "--json", "status"],
                              capture_output=True, text=True, timeout=60, check=False, env=question.environment)
        ranks = json.loads(done.stdout).get("agents", []) if done.returncode in (0, 1) and done.stdout.strip() else []
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        yield Finding("collector", FAULT, f"{address}: {error}", "check the installation (`rankprobe status`)")
        return
    if done.returncode in (0, 1):
        yield Finding("collector", OK, f"{address} answers; {len(ranks)} rank{'s are' if len(ranks) != 1 else ' is'} known")
    else:
        line = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0].removeprefix("rankprobe: ")
        remedy = {3: "start it (rankprobed --data-dir DIR), or correct RANKPROBE_COLLECTOR",
                  5: "set RANKPROBE_TOKEN_FILE to a token of the collector, and RANKPROBE_TLS_CA where it has TLS"}
        yield Finding("collector", FAULT, line if address in line else f"{address}: {line}", remedy.get(done.returncode, "see docs/operations.md"))


def shared_memory(question: Question) -> Iterator[Finding]:
    """Checks sealed anonymous memory (memfd), by which payloads reach a collector on this host."""
    if question.environment.get("RANKPROBE_LANE") == "off":
        yield Finding("shared memory", NOTE, "RANKPROBE_LANE=off: payloads use the connection to the collector")
        return
    try:
        memory = os.memfd_create("rankprobe-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(memory, 0, _MIB)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        finally:
            os.close(memory)
    except OSError as error:
        yield Finding("shared memory", WARNING, f"memfd_create with seals fails: {error.strerror}; payloads use the "
                      "connection, which is slower",
                      "allow memfd_create in the container's seccomp profile")
        return
    yield Finding("shared memory", OK, "memfd with seals works")


def limits(question: Question) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    state = WARNING if soft < 256 else OK
    yield Finding("limits", state, f"{soft} open files (at most {hard})", "ulimit -n 4096" if state == WARNING else "")


def environment(question: Question) -> Iterator[Finding]:
    """Checks names and values of the variables that processes would read."""
    known = {f"RANKPROBE_{name}" for name in VARIABLES}
    given = sorted(name for name in question.environment if name.startswith("RANKPROBE_"))
    for name in given:
        if name not in known | {f"RANKPROBE_{other}" for other in _OTHER_VARIABLES}:
            near = difflib.get_close_matches(name, known, 1)
            yield Finding("environment", WARNING, f"{name} is not read by rankprobe", f"did you mean {near[0]}?" if near else f"unset {name}")
    words = {"RANKPROBE_POLICY": ("block", "stats_only", "drop_newest"), "RANKPROBE_ON_COLLECTOR_MISSING": ("ignore", "spool", "fail"),
             "RANKPROBE_STOP": ("kept", "committed"), "RANKPROBE_LANE": ("on", "off")}
    for name, legal in words.items():
        if question.environment.get(name, "") not in ("", *legal):
            yield Finding("environment", FAULT, f"{name}={question.environment[name]} is not legal", f"one of {', '.join(legal)}")
    for name in ("RANK", "WORLD_SIZE"):
        if not (question.environment.get(name) or "0").isdigit():
            yield Finding("environment", FAULT, f"{name}={question.environment[name]} is not a number", f"unset {name}, or let torchrun set it")
    spool = question.environment.get("RANKPROBE_SPOOL", "")
    if spool and not (os.path.isdir(spool) and os.access(spool, os.W_OK | os.X_OK)):
        yield Finding("environment", FAULT, f"RANKPROBE_SPOOL={spool} is not a directory that this user can write", f"mkdir -p -m 750 {spool}")
    for name in ("RANKPROBE_TOKEN_FILE", "RANKPROBE_TLS_CA", "RANKPROBE_TLS_CERT", "RANKPROBE_TLS_KEY", "RANKPROBE_API_LIST",
                 "RANKPROBE_CUSTOM_WRAP_OPS"):
        path = question.environment.get(name, "")
        if path and not os.access(path, os.R_OK):
            yield Finding("environment", FAULT, f"{name}={path} cannot be read", f"correct {name}, or unset it")
    if given:
        yield Finding("environment", OK, f"set: {', '.join(given)}")


CHECKS: tuple[Callable[[Question], Iterator[Finding]], ...] = (
    package, python, framework, configuration, dump_path, collector, network, shared_memory, limits, environment)


def findings(question: Question) -> list[Finding]:
    """Runs every check in order. An exception in a check is reported as a fault and does not end the others."""
    found: list[Finding] = []
    for check in CHECKS:
        try:
            found += check(question)
        except Exception as error:  # noqa: BLE001 - a check that breaks is a finding
            found.append(Finding(check.__name__, FAULT, f"the check failed: {type(error).__name__}: {error}", "report this as a bug"))
    return found


def report(found: Sequence[Finding]) -> str:
    lines = []
    for one in found:
        lines.append(f"{one.state:<8} {one.check:<14} {one.text}")
        if one.remedy:
            lines.append(f"{'':<24}-> {one.remedy}")
    faults, warned = (sum(one.state == state for one in found) for state in (FAULT, WARNING))
    counted = (f"{count} {word}{'' if count == 1 else 's'}" for count, word in ((faults, "fault"), (warned, "warning")))
    lines.append(", ".join(counted) if faults or warned else "no fault")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rankprobe doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collector", default="", help="host:port or unix:PATH; default RANKPROBE_COLLECTOR")
    parser.add_argument("--config", default=os.environ.get("RANKPROBE_CONFIG", ""), help="config.json; default RANKPROBE_CONFIG")
    parser.add_argument("--dump-path", default="", help="directory of the dump; default that of config.json, else ./dump_path")
    parser.add_argument("--json", action="store_true", help="one line of JSON on standard output")
    for flag in ("--tls-ca", "--tls-cert", "--tls-key", "--tls-server-name", "--token-file"):
        parser.add_argument(flag, default="", help="as for every command")
    arguments = parser.parse_args(argv)
    access = tuple(word for flag in ("tls_ca", "tls_cert", "tls_key", "tls_server_name", "token_file") if getattr(arguments, flag)
                   for word in ("--" + flag.replace("_", "-"), getattr(arguments, flag)))
    found = findings(Question(dict(os.environ), arguments.collector, arguments.config, arguments.dump_path, access))
    print(json.dumps({"findings": [dataclasses.asdict(one) for one in found]}) if arguments.json else report(found))
    return 1 if any(one.state == FAULT for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
