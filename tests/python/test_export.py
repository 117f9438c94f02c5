# SPDX-License-Identifier: Apache-2.0
"""rankprobe export beyond a directory: tar, shared files, taking up an interrupted one; compressed archives."""

import filecmp
import io
import json
import os
import pathlib
import signal
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest

import harness
import rankprobe

torch = pytest.importorskip("torch")

TENSORS = "step0/rank0/dump_tensor_data"


def record(collector, tensors, run="r"):
    """One step of one rank: each tensor is the output of one call and the input of the next."""
    cfg = json.dumps({"task": "tensor", "dump_path": "./dump", "rank": [], "step": [], "level": "L1", "tensor": {}})
    session = rankprobe.Session(collector.address, run=run, rank=0, config_json=cfg)
    session.wait_connected(20)
    session.start()
    for before, after in zip(tensors, tensors[1:]):
        session.call("Torch", "relu", [before], [after])
    session.stop()
    session.step()
    session.close()


def files_below(root: pathlib.Path):
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def assert_same_tensors(one: pathlib.Path, other: pathlib.Path):
    assert files_below(one) == files_below(other)
    for path in one.rglob("*.pt"):
        a, b = (torch.load(p, weights_only=True) for p in (path, other / path.relative_to(one)))
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b), path


def noise(count, kib, seed=3):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(kib * 256).astype(np.float32) for _ in range(count)]


def test_tar_and_links(collector, tmp_path):
    record(collector, noise(4, 64))
    plain, linked, untarred = tmp_path / "plain", tmp_path / "linked", tmp_path / "untarred"
    collector.cli("export", "--run", "r", "-o", plain)
    collector.cli("export", "--run", "r", "-o", linked, "--link")
    # Three calls, six files, four tensors: the two in the middle have two names.
    assert len(list((plain / TENSORS).iterdir())) == 6
    assert len({p.stat().st_ino for p in (plain / TENSORS).iterdir()}) == 6
    assert len({p.stat().st_ino for p in (linked / TENSORS).iterdir()}) == 4
    assert_same_tensors(plain, linked)

    tar = subprocess.run([harness.BIN / "rankprobe", "--collector", collector.address, "export", "--run", "r",
                          "--tar", "-", "--link"], capture_output=True, check=True)
    assert b"dump.json is at" in tar.stderr
    with tarfile.open(fileobj=io.BytesIO(tar.stdout)) as archive:
        assert sum(m.islnk() for m in archive.getmembers()) == 2
        archive.extractall(untarred)
    assert_same_tensors(plain, untarred)
    assert (untarred / "step0/rank0/dump.json").read_text() == (plain / "step0/rank0/dump.json").read_text()

    file = tmp_path / "dump.tar"
    collector.cli("export", "--run", "r", "--tar", file)
    with tarfile.open(file) as archive:
        assert sorted(m.name for m in archive.getmembers() if m.isfile()) == files_below(plain)


@pytest.mark.parametrize("flags", [("-o", "x", "--tar", "y"), (), ("--tar", "y", "--resume"),
                                   ("--tar", "-", "--json")])
def test_flags_that_do_not_go_together(collector, tmp_path, flags):
    result = collector.cli("export", "--run", "r", *flags, check=False)
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr


def test_tar_that_cannot_be_written(collector, tmp_path):
    record(collector, noise(2, 4))
    result = collector.cli("export", "--run", "r", "--tar", tmp_path / "no/such/dir.tar", check=False)
    assert result.returncode == 2 and "dir.tar" in result.stderr, result.stderr
    root = collector.cli("view", "--root", tmp_path / "nosuch", check=False)
    assert root.returncode == 2 and "nosuch: No such file" in root.stderr, root.stderr


def test_an_interrupted_export_is_continued(collector, tmp_path):
    record(collector, noise(40, 4096))
    out, whole = tmp_path / "out", tmp_path / "whole"
    staged = out / ".rankprobe-export/new" / TENSORS
    process = subprocess.Popen([harness.BIN / "rankprobe", "--collector", collector.address, "export", "--run", "r",
                                "-o", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    harness.wait_for(lambda: staged.exists() and len(list(staged.iterdir())) > 5, 30, "some files")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "step0").exists()
    # The last one may be cut off.
    there = {p.name: p.stat().st_ino for p in staged.iterdir() if zipfile.is_zipfile(p)}
    assert len(there) >= 5
    spoilt = sorted(there)[0]
    with open(staged / spoilt, "r+b") as file:
        file.seek(100_000)
        file.write(b"spoilt")

    done = collector.json("export", "--run", "r", "-o", out, "--resume")
    collector.cli("export", "--run", "r", "-o", whole)
    assert files_below(out) == files_below(whole) and len(files_below(out)) == int(done["files"])
    for name in files_below(whole):
        assert filecmp.cmp(out / name, whole / name, shallow=False), name
    for name, inode in there.items():
        assert ((out / TENSORS / name).stat().st_ino == inode) == (name != spoilt), name
    assert not (out / ".rankprobe-export").exists()


def test_a_second_export_to_the_same_directory_is_refused(collector, tmp_path):
    record(collector, noise(2, 4))
    out = tmp_path / "out"
    (out / ".rankprobe-export").mkdir(parents=True)
    (out / ".rankprobe-export" / ".rankprobe-own").touch()  # as an export leaves it
    import fcntl
    with open(out / ".rankprobe-export/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        result = collector.cli("export", "--run", "r", "-o", out, check=False)
    assert result.returncode == 5 and "another export is writing" in result.stderr, result.stderr
    collector.cli("export", "--run", "r", "-o", out)


def test_compressed_archive(tmp_path):
    tensors = [np.zeros(1 << 20, np.float32), np.arange(1 << 20, dtype=np.int64), *noise(2, 2048)]
    trees = []
    sizes = []
    for flags in ((), ("--compress-payloads",)):
        directory = tmp_path / f"collector{len(flags)}"
        directory.mkdir()
        collector = harness.Collector(directory, *flags).start()
        record(collector, tensors)
        trees.append(tmp_path / f"tree{len(flags)}")
        collector.cli("export", "--run", "r", "-o", trees[-1])
        assert " 0 faults" in collector.cli("verify", "--read-data").stdout
        assert collector.stop() == 0
        sizes.append(sum(p.stat().st_size for p in (collector.data_dir / "segments").iterdir()))
    assert_same_tensors(*trees)
    # The noise stays as it is, the rest nearly goes.
    assert sizes[1] < sizes[0] - (6 << 20), sizes
