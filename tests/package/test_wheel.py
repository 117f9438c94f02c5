# SPDX-License-Identifier: Apache-2.0
"""Contents of a wheel, and its behaviour beside other copies of the same libraries.

Run by tests/stages/package.sh, with RANKPROBE_WHEEL (a file) and
RANKPROBE_WHEEL_PYTHON (an interpreter that has the wheel, grpcio, protobuf,
onnx and numpy installed).
"""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import subprocess
import zipfile

import pytest

WHEEL = pathlib.Path(os.environ.get("RANKPROBE_WHEEL", "/nonexistent"))
PYTHON = os.environ.get("RANKPROBE_WHEEL_PYTHON", "")
OLDEST = os.environ.get("RANKPROBE_GLIBC", "2.28")
HERE = pathlib.Path(__file__).parent
pytestmark = pytest.mark.skipif(not WHEEL.is_file(), reason="no wheel: run by tests/run.sh --stage package")

# The C library, and what the compiler's run time has to share with the process.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2",
          "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
BINARIES = {"rankprobe/_native", "rankprobe/_analysis", "rankprobe/bin/rankprobed", "rankprobe/bin/rankprobe"}
LINKED_IN = ["grpc", "abseil", "protobuf", "openssl", "leveldb", "libzstd", "re2", "c-ares", "sqlite3", "yaml-cpp",
             "libxlsxwriter", "libarchive", "boost", "expat", "snappy", "xxhash", "libdeflate", "zlib"]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(WHEEL) as file:
        file.extractall(directory)
    return directory


def binaries(unpacked: pathlib.Path) -> list[pathlib.Path]:
    found = sorted(p for p in unpacked.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF")
    assert {str(p.relative_to(unpacked)).split(".")[0] for p in found} == BINARIES
    return found


def tool(*command: object) -> str:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_type_stubs_lie_beside_the_extensions(unpacked: pathlib.Path):
    assert {p.name for p in (unpacked / "rankprobe").glob("*.pyi")} == {"_native.pyi", "_analysis.pyi"}
    assert (unpacked / "rankprobe" / "py.typed").is_file()


def test_the_guide_for_agents_is_in_it_and_no_package_of_theirs_is_needed(unpacked: pathlib.Path):
    assert (unpacked / "rankprobe" / "skills" / "rankprobe" / "SKILL.md").read_text().startswith("---\nname: rankprobe\n")
    (metadata,) = unpacked.glob("rankprobe-*.dist-info/METADATA")
    assert all("extra ==" in line for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist:"))


def test_vllm_finds_the_plugin(unpacked: pathlib.Path):
    (entry_points,) = unpacked.glob("rankprobe-*.dist-info/entry_points.txt")
    assert "[vllm.general_plugins]\nrankprobe = rankprobe.vllm:register\n" in entry_points.read_text()
    assert "[pytest11]\nrankprobe = rankprobe.pytest_plugin\n" in entry_points.read_text()
    assert (unpacked / "rankprobe" / "vllm" / "__init__.py").is_file()


def test_name_and_size():
    match = re.fullmatch(r"rankprobe-[0-9.]+-cp3(\d+)-cp3\1-(manylinux[\w.]+)\.whl", WHEEL.name)
    assert match, WHEEL.name
    assert OLDEST.replace(".", "_") in match[2]
    assert WHEEL.stat().st_size < 40e6


def test_needs_only_the_c_library(unpacked):
    for path in binaries(unpacked):
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-d", path)))
        assert needed and needed <= SYSTEM, (path.name, needed - SYSTEM)


def test_no_symbol_newer_than_the_tag(unpacked):
    for path in binaries(unpacked):
        symbols = tool("objdump", "-T", path)
        versions = {numbers(v) for v in re.findall(r"GLIBC_([0-9.]+)", symbols)}
        assert versions and max(versions) <= numbers(OLDEST), path.name
        # The C++ run time is inside, for it may be older outside.
        assert "GLIBCXX" not in symbols, path.name


def test_extensions_export_their_entry_only(unpacked):
    for path in binaries(unpacked):
        if path.suffix == ".so":
            exported = [line.split()[-1] for line in tool("nm", "-D", "--defined-only", path).splitlines()]
            assert exported == ["PyInit_" + path.name.split(".")[0]]


def test_licences_of_what_is_linked_in(unpacked):
    notices = next(unpacked.rglob("THIRD_PARTY_NOTICES")).read_text()
    for source in LINKED_IN:
        assert f"\n==== {source} " in notices, source
    assert notices.count("Permission is hereby granted") + notices.count("Redistribution and use") >= 6


@pytest.mark.parametrize("order", itertools.permutations(["grpc", "protobuf", "onnx", "rankprobe"]), ids="-".join)
def test_beside_other_copies(order):
    """Each library is used once all are loaded, in whatever order that was."""
    result = subprocess.run([PYTHON, HERE / "together.py", *order], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip() == "grpc onnx protobuf rankprobe"
