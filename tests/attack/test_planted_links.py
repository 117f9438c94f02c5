# SPDX-License-Identifier: Apache-2.0
"""Attacks on --export-root, below which the collector writes for an operator: links planted there, or swapped in meanwhile, lead it nowhere."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import threading
import time

import pytest

import harness
from harness import archive, outcome

RENAME_EXCHANGE, AT_FDCWD = 2, -100
PRECIOUS = ("precious", "rank0/precious", "rank0/dump.json", ".rankprobe-own", "manifest.json", "lock", "published",
            "new/step0/rank0/precious", "old/precious", "kept/step0/rank0/dump_tensor_data/x.pt", "segments/precious",
            "index/precious")


@pytest.fixture
def place(start_daemon, tmp_path):
    """(daemon with one step of run "run", its export root, a directory outside of it with much to spoil)."""
    root, outside = tmp_path / "exports", tmp_path / "outside"
    for name in PRECIOUS:
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text("precious")
    daemon = start_daemon("--export-root", root)
    rank = harness.RawAgent(daemon)
    rank.step(0)
    assert rank.committed()
    root.mkdir()
    return daemon, root, outside


def state(directory: pathlib.Path) -> dict:
    """Of each entry its inode, mode, size and times: a file that came and went leaves a trace in its directory's."""
    return {str(p): (s.st_ino, s.st_mode, s.st_nlink, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
            for p in [directory, *directory.rglob("*")] for s in [p.lstat()]}


def server_export(daemon, directory, **fields):
    return outcome(daemon.archive().Export, archive.ExportRequest(run="run", server_directory=str(directory), **fields))


def backup(daemon, directory):
    return outcome(daemon.archive().Backup, archive.BackupRequest(server_directory=str(directory)))


def assert_good(daemon, root):
    """The same export works where nothing is planted."""
    assert server_export(daemon, root / "good")[0] == "OK"
    assert len(harness.exported_tensors(root / "good")) == 1


def test_E06_a_path_that_leads_out_is_refused(place):
    daemon, root, outside = place
    (root / "ln").symlink_to(outside)
    (root / "dang").symlink_to(outside / "notyet")
    (root.parent / "exports-sibling").mkdir()
    before = state(outside)
    for path in (f"{root}/../outside/x", f"{root}/ln/x", f"{root}/ln", f"{root}/dang/x", f"{root}/dang",
                 f"{root}-sibling/x", "/etc/x", "rel", f"{root}/a\0/../../outside", f"/{root}/../outside",
                 "/proc/self/cwd/x", f"{root}/{'x' * 300}", f"{root}/{'d/' * 2000}"):
        for status, _ in (server_export(daemon, path), server_export(daemon, root / "out", staging_directory=path),
                          backup(daemon, path)):
            assert status in ("PERMISSION_DENIED", "INVALID_ARGUMENT", "ALREADY_EXISTS"), (path, status)
    assert state(outside) == before
    assert_good(daemon, root)


def test_E07_E08_a_step_that_is_a_link_is_refused(place):
    daemon, root, outside = place
    target = root / "out"
    assert server_export(daemon, target)[0] == "OK"  # its manifest names step0/rank0, which may be replaced from now on
    shutil.rmtree(target / "step0")
    (target / "step0").symlink_to(outside)
    before = state(outside)
    for _ in range(2):
        status, text = server_export(daemon, target)
        assert status == "PERMISSION_DENIED" and "step0 is a symbolic link" in text
        assert state(outside) == before
    # One that leads nowhere yet.
    (target / "step0").unlink()
    (target / "step0").symlink_to(outside / "notyet")
    assert server_export(daemon, target)[0] == "PERMISSION_DENIED"
    assert state(outside) == before
    # A link as a rank's directory.
    (target / "step0").unlink()
    (target / "step0").mkdir()
    (target / "step0" / "rank0").symlink_to(outside)
    status, text = server_export(daemon, target)
    assert status == "PERMISSION_DENIED" and "rank0 is a symbolic link" in text
    assert state(outside) == before
    shutil.rmtree(target / "step0")
    # And as files that are written.
    for name in ("manifest.json", ".rankprobe-published", ".rankprobe-published.new"):
        (target / name).unlink(missing_ok=True)
        (target / name).symlink_to(outside / "precious")
        status, _ = server_export(daemon, target)
        assert status in ("PERMISSION_DENIED", "ALREADY_EXISTS", "OK"), name
        assert state(outside) == before, name
        (target / name).unlink(missing_ok=True)
        shutil.rmtree(target / "step0", ignore_errors=True)
    assert_good(daemon, root)


def test_a_step_that_is_a_link_is_refused_by_the_client(place, tmp_path):
    daemon, _, outside = place
    target = tmp_path / "out"
    assert daemon.cli("export", "--run", "run", "-o", target).returncode == 0
    shutil.rmtree(target / "step0")
    for link in (outside, outside / "notyet"):
        (target / "step0").symlink_to(link)
        before = state(outside)
        done = daemon.cli("export", "--run", "run", "-o", target)
        assert done.returncode != 0 and "step0 is a symbolic link" in done.stderr
        assert state(outside) == before
        (target / "step0").unlink()
    assert daemon.cli("export", "--run", "run", "-o", target).returncode == 0


def test_E09_a_staging_directory_that_is_a_link_is_refused(place):
    daemon, root, outside = place
    before = state(outside)
    for target in (root / "a", root / "b"):
        target.mkdir()
    (root / "a" / ".rankprobe-export").symlink_to(outside)
    status, text = server_export(daemon, root / "a")
    assert status == "PERMISSION_DENIED" and ".rankprobe-export is a symbolic link" in text
    # A claimed one whose inside leads away.
    for name in ("new", "old", "kept", "lock", "published"):
        staging = root / f"staging-{name}"
        staging.mkdir()
        (staging / ".rankprobe-own").write_text("ours?")
        (staging / name).symlink_to(outside / name)
        for resume in (True, False):
            server_export(daemon, root / "b", staging_directory=str(staging), resume=resume)
            assert state(outside) == before, name
    # A hard link takes the place of the file that is written first.
    staging = root / "hard"
    staging.mkdir()
    (staging / ".rankprobe-own").write_text("ours?")
    os.link(outside / "precious", staging / "lock")
    status, text = server_export(daemon, root / "b", staging_directory=str(staging))
    assert status == "PERMISSION_DENIED" and "hard link" in text
    assert (outside / "precious").read_text() == "precious"
    assert_good(daemon, root)


def test_E12_a_backup_through_links_or_over_others_files_is_refused(place):
    daemon, root, outside = place
    (root / "ln").symlink_to(outside)
    (root / "b2.tmp").symlink_to(outside)
    (root / "b3.tmp").mkdir()
    (root / "b3.tmp" / "mine").write_text("mine")
    before = state(outside)
    for path in (root, f"{root}/", f"{root}/b/../../outside/b", root / "ln" / "b", root / "ln"):
        assert backup(daemon, path)[0] in ("ALREADY_EXISTS", "PERMISSION_DENIED"), path
    assert backup(daemon, root / "b2")[0] == "PERMISSION_DENIED"
    status, text = backup(daemon, root / "b3")
    assert status == "FAILED_PRECONDITION" and "that no export made" in text
    assert (root / "b3.tmp" / "mine").read_text() == "mine"
    assert state(outside) == before and not (root.parent / "exports.tmp").exists()
    # Slashes at the end do not move DIR.tmp into DIR.
    status, report = backup(daemon, f"{root}/b4//")
    assert status == "OK" and report.segments > 0
    assert {p.name for p in (root / "b4").iterdir()} == {"segments", "index"} and not (root / "b4.tmp").exists()


def test_E14_a_backup_onto_the_root_deletes_nothing_beside_it(start_daemon, tmp_path):
    root = tmp_path / "newroot"
    precious = tmp_path / "newroot.tmp" / "precious"
    precious.parent.mkdir()
    precious.write_text("precious")
    daemon = start_daemon("--export-root", root)
    for path in (root, f"{root}/"):
        assert backup(daemon, path)[0] == "ALREADY_EXISTS"
        assert precious.read_text() == "precious"
    assert backup(daemon, root / "below")[0] == "OK"
    assert {p.name for p in root.iterdir()} == {"below"}


@contextlib.contextmanager
def swapping(*pairs):
    """Meanwhile each (path, link) change places without end. No path leads through another's: the attacker would follow it."""
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    names = [(os.fsencode(a), os.fsencode(b)) for a, b in pairs]
    done = threading.Event()
    swaps = 0

    def swap():
        nonlocal swaps
        while not done.is_set():
            for a, b in names:
                swaps += exchange(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for a, b in names:
            if os.path.islink(a):
                exchange(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE)
    assert swaps > 0


def rounds(seconds: float = 4.0, at_least: int = 20):
    deadline, count = time.monotonic() + seconds, 0
    while count < at_least or time.monotonic() < deadline:
        count += 1
        yield count


def test_E07_E08_E09_a_directory_swapped_for_a_link_during_an_export(place):
    """The race that a check before the use cannot win."""
    daemon, root, outside = place
    target, staging = root / "out", root / "staging"
    before = state(outside)
    assert server_export(daemon, target, staging_directory=str(staging))[0] == "OK"
    links = [root / f"link{i}" for i in range(4)]
    for link, to in zip(links, (outside, outside / "new", outside, outside)):
        link.symlink_to(to)
    pairs = [(target / "step0", links[0]), (staging / "new", links[1]), (staging, links[2]), (target, links[3])]
    statuses = set()
    for some in (pairs[:1], pairs[1:2], pairs[2:3], pairs[3:], pairs[1::2]):
        with swapping(*some):
            for _ in rounds(2.0):
                statuses.add(server_export(daemon, target, staging_directory=str(staging))[0])
                assert state(outside) == before, some
    assert len(statuses) > 1, f"the links were never met: {statuses}"
    assert_good(daemon, root)


def test_E12_a_directory_swapped_for_a_link_during_a_backup(place):
    daemon, root, outside = place
    place_of_backups = root / "backups"
    place_of_backups.mkdir()
    (root / "link").symlink_to(outside)
    before = state(outside)
    statuses = set()
    with swapping((place_of_backups, root / "link")):
        for i in rounds():
            statuses.add(backup(daemon, place_of_backups / f"b{i}")[0])
            assert state(outside) == before
    assert len(statuses) > 1, f"the link was never met: {statuses}"
    assert backup(daemon, root / "good")[0] == "OK"
