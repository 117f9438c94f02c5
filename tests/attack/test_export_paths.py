# SPDX-License-Identifier: Apache-2.0
"""Paths on the collector's machine, and the tar on the caller's: what was planted there, and what is somebody else's."""

import os
import pathlib
import tarfile

import pytest

import harness
from harness import archive, outcome


@pytest.fixture
def place(start_daemon, tmp_path):
    """(daemon with one step of run "run", its export root, a directory outside of it)."""
    root, outside = tmp_path / "exports", tmp_path / "outside"
    (outside / "rank0").mkdir(parents=True)
    (outside / "rank0" / "precious").write_text("precious")
    daemon = start_daemon("--export-root", root)
    rank = harness.RawAgent(daemon)
    rank.step(0)
    assert rank.committed()
    root.mkdir(exist_ok=True)
    return daemon, root, outside


def files_below(directory: pathlib.Path) -> set[str]:
    return {str(p.relative_to(directory)) for p in directory.rglob("*")}


def server_export(daemon, directory, **fields):
    return outcome(daemon.archive().Export, archive.ExportRequest(run="run", server_directory=str(directory), **fields))


def test_E10_a_staging_directory_of_somebody_is_left_alone(place):
    daemon, root, _ = place
    for name in ("new", "kept", "old"):
        (root / "alice" / name).mkdir(parents=True)
        (root / "alice" / name / "thesis").write_text("thesis")
    before = files_below(root / "alice")
    status, text = server_export(daemon, root / "out", staging_directory=str(root / "alice"))
    assert status == "FAILED_PRECONDITION" and "that no export made" in text
    assert files_below(root / "alice") == before
    # Our own serves one export after another.
    for _ in range(2):
        assert server_export(daemon, root / "out", staging_directory=str(root / "staging"))[0] == "OK"


def test_E11_a_rank_that_no_export_made_is_not_replaced(place, tmp_path):
    daemon, root, _ = place
    for tree in (root / "out", tmp_path / "local"):
        (tree / "step0" / "rank0").mkdir(parents=True)
        (tree / "step0" / "rank0" / "bob").write_text("bob")
    status, text = server_export(daemon, root / "out")
    assert status == "ALREADY_EXISTS" and "not made by an export" in text
    done = daemon.cli("export", "--run", "run", "-o", tmp_path / "local")
    assert done.returncode == 5 and "not made by an export" in done.stderr
    for tree in (root / "out", tmp_path / "local"):
        assert files_below(tree) == {"step0", "step0/rank0", "step0/rank0/bob"}
        (tree / "step0" / "rank0" / "bob").unlink()
        (tree / "step0" / "rank0").rmdir()
    # What an export made is.
    for _ in range(2):
        assert server_export(daemon, root / "out")[0] == "OK"
        harness.export(daemon, "run", tmp_path / "local")
    # Somebody's manifest.json is none of ours.
    (root / "other").mkdir()
    (root / "other" / "manifest.json").write_text('{"name": "app"}')
    assert server_export(daemon, root / "other")[0] == "ALREADY_EXISTS"
    assert (root / "other" / "manifest.json").read_text() == '{"name": "app"}'


def test_E03_a_tar_has_names_of_any_script(daemon, tmp_path):
    names = ["größe.模型", "con%00", "\u202ertl", "\x1b]0;owned", "a/../../b", "x" * 4096]
    rank = harness.RawAgent(daemon)
    records = [harness.begin_record()]
    for i, name in enumerate(names):
        data = f"{i:04d}".encode() * 64
        rank.payload(data)
        records.append(harness.call_record(1 + i, harness.call(name, [harness.tensor(data)])))
    rank.batch(0, [*records, harness.end_record(1 + len(names), len(names), len(names))])
    assert rank.committed()
    for locale in ("C", "C.UTF-8", "POSIX"):
        path = tmp_path / f"{locale}.tar"
        daemon.cli("export", "--run", "run", "--tar", path, environment={"LC_ALL": locale}, check=True)
        with tarfile.open(path) as tar:
            members = [m.name for m in tar.getmembers() if m.name.endswith(".pt")]
        assert len(set(members)) == len(names) and any("größe.模型" in m for m in members)
        assert not [m for m in members if m.startswith("/") or ".." in m.split("/") or "\n" in m]
        assert path.stat().st_mode & 0o777 == 0o640


def test_T04_T05_a_tar_that_fails_deletes_nothing(daemon, tmp_path):
    rank = harness.RawAgent(daemon)
    rank.step(0)
    assert rank.committed()
    good = tmp_path / "good.tar"
    daemon.cli("export", "--run", "run", "--tar", good, check=True)
    before = good.read_bytes()
    assert daemon.cli("export", "--run", "no-such-run", "--tar", good).returncode == 4
    assert good.read_bytes() == before and not (tmp_path / "good.tar.tmp").exists()
    fifo = tmp_path / "device"
    fifo.symlink_to("/dev/null")  # a node of a device takes root to make
    assert daemon.cli("export", "--run", "no-such-run", "--tar", fifo).returncode == 4
    assert fifo.is_symlink() and pathlib.Path("/dev/null").exists()


def test_C9_what_the_collector_exports_is_0750_and_0640(place, tmp_path):
    daemon, root, _ = place
    old = os.umask(0)
    try:
        daemon.cli("export", "--run", "run", "-o", tmp_path / "local", check=True)
    finally:
        os.umask(old)
    assert server_export(daemon, root / "out")[0] == "OK"
    for tree in (root / "out", tmp_path / "local"):
        for path in tree.rglob("*"):
            assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path
