# SPDX-License-Identifier: Apache-2.0
"""Attacks on the readers of dumps: FIFOs, links, files of others, and steps with processes beside ranks."""

import json
import os
import pathlib
import shutil
import subprocess
import time

import pytest

import harness

GOLDEN = harness.ROOT / "tests" / "golden" / "dumps" / "cnn_stat_mix" / "step0"
VERBS = {"compare": ["compare", "-tp", "{dump}", "-gp", "{good}", "-o", "{out}"],
         "compare, golden": ["compare", "-tp", "{good}", "-gp", "{dump}", "-o", "{out}"],
         "graph": ["graph_visualize", "-tp", "{dump}", "-o", "{out}"],
         "overflow": ["overflow_check", "-i", "{dump}", "-o", "{out}"],
         "divergence": ["first-divergence", "{dump}", "{good}"],
         "replicas": ["replicas", "{dump}"]}


def make_dump(directory: pathlib.Path) -> pathlib.Path:
    (source,) = GOLDEN.iterdir()
    for rank in ("rank0", "rank1"):
        shutil.copytree(source, directory / "step0" / rank)
    for path in directory.rglob("*"):
        path.chmod(0o750 if path.is_dir() else 0o640)
    directory.chmod(0o750)
    return directory


@pytest.fixture
def dumps(tmp_path):
    return make_dump(tmp_path / "dump"), make_dump(tmp_path / "good")


def run(verb, dump, good, out, *more):
    words = [w.format(dump=dump, good=good, out=out) for w in VERBS[verb]]
    # At once: a reader that waits for a FIFO waits for ever.
    return subprocess.run([harness.BIN / "rankprobe", *words, *more], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["dump.json", "stack.json", "construct.json"])
def test_X02_X04_FIFOs_are_refused_at_once(dumps, tmp_path, name):
    dump, good = dumps
    path = dump / "step0" / "rank0" / name
    path.unlink()
    os.mkfifo(path, 0o600)
    for verb in VERBS:
        if name == "construct.json" and verb in ("compare", "compare, golden", "divergence", "replicas"):
            continue  # not read there
        began = time.monotonic()
        done = run(verb, dump, good, tmp_path / "out", "--force")
        assert done.returncode in (0, 2, 5) and (name == "construct.json" or done.returncode != 0), (verb, done)
        assert time.monotonic() - began < 30, verb


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "/etc"])
def test_X03_devices_and_directories_are_no_files(dumps, tmp_path, target):
    dump, good = dumps
    path = dump / "step0" / "rank0" / "dump.json"
    path.unlink()
    path.symlink_to(target)
    for verb in VERBS:
        for force in ([], ["--force"]):
            done = run(verb, dump, good, tmp_path / "out", *force)
            assert done.returncode in (2, 5), (verb, done)


def test_C9_files_of_others_are_refused_without_force(dumps, tmp_path):
    dump, good = dumps
    rank = dump / "step0" / "rank0"

    def check(reason):
        for verb in VERBS:
            done = run(verb, dump, good, tmp_path / "out")
            assert done.returncode == 5 and reason in done.stderr and "--force" in done.stderr, (verb, done)
            done = run(verb, dump, good, tmp_path / "out", "--force")
            assert done.returncode in (0, 1), (verb, done)
            assert "warning" in done.stderr and reason in done.stderr, (verb, done)

    for path, mode in ((rank / "dump.json", 0o660), (rank / "dump.json", 0o646), (rank, 0o777), (dump / "step0", 0o770),
                       (dump, 0o707)):
        before = path.stat().st_mode
        path.chmod(mode)
        check("can be changed by other users")
        path.chmod(before)
    os.rename(dump / "step0", tmp_path / "elsewhere")
    (dump / "step0").symlink_to(tmp_path / "elsewhere")
    check("is a symbolic link")
    (dump / "step0").unlink()
    os.rename(tmp_path / "elsewhere", dump / "step0")
    for verb in VERBS:
        done = run(verb, dump, good, tmp_path / "out")
        assert done.returncode in (0, 1) and "warning" not in done.stderr, (verb, done)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to give files away")
def test_C9_files_of_another_user(dumps, tmp_path):
    dump, good = dumps
    os.chown(dump / "step0" / "rank0" / "dump.json", 12345, 12345)
    assert run("overflow", dump, good, tmp_path / "out").returncode == 0, "root may read"
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.chown(path, 65534, 65534)
    os.chown(dump / "step0" / "rank0" / "dump.json", 12345, 12345)
    above = [p for p in tmp_path.parents if p != pathlib.Path("/")]
    if not all(p.stat().st_mode & 0o001 for p in above):
        pytest.skip("the scratch directory is root's alone")

    def as_nobody(*more):
        words = [w.format(dump=dump, good=good, out=tmp_path / "nobody") for w in VERBS["overflow"]]
        return subprocess.run([harness.BIN / "rankprobe", *words, *more], capture_output=True, text=True, timeout=60,
                              user=65534, group=65534)

    try:
        done = as_nobody()
    except PermissionError:
        pytest.skip("nobody cannot run the build")
    assert done.returncode == 5 and "belongs to user 12345" in done.stderr, done
    assert as_nobody("--force").returncode == 0


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_C9_what_is_written_is_0640_whatever_the_umask(dumps, tmp_path, umask):
    dump, good = dumps
    out = tmp_path / "results" / "below"
    old = os.umask(umask)
    try:
        for verb in ("compare", "graph", "overflow"):
            assert run(verb, dump, good, out).returncode == 0
        assert run("compare", dump, good, out, "--xlsx").returncode == 0
        assert run("compare", dump, good, out, "-da").returncode == 0
    finally:
        os.umask(old)
    written = list(out.iterdir())
    assert {p.suffix for p in written} >= {".csv", ".xlsx", ".db", ".json"}
    for path in written:
        assert path.stat().st_mode & 0o777 == 0o640, path
    assert out.stat().st_mode & 0o777 == out.parent.stat().st_mode & 0o777 == 0o750


def test_A4_processes_beside_ranks_are_read(dumps, tmp_path):
    dump, good = dumps
    for tree, pids in ((dump, (123, 77)), (good, (5,))):
        for pid in pids:
            shutil.copytree(tree / "step0" / "rank0", tree / "step0" / f"proc{pid}")
    # The process of the lowest pid differs from its partner; the ranks do not.
    path = dump / "step0" / "proc77" / "dump.json"
    data = json.loads(path.read_text())
    name = next(n for n, e in data["data"].items() if isinstance(e, dict) and e.get("output"))
    data["data"][name]["output"][0]["Max"] = 12345.0
    path.write_text(json.dumps(data, indent=1))
    out = tmp_path / "out"
    done = run("compare", dump, good, out, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    files = sorted(pathlib.Path(r["file"]).name.split("_20")[0] for r in report["results"])
    assert files == [f"compare_result_step0_{place}" for place in ("proc77", "rank0", "rank1")]
    assert [pathlib.Path(p).name for p in report["unpaired"]] == ["proc123"]
    done = run("graph", dump, good, out, "--json")
    one = run("graph", good / "step0" / "rank0", good, out, "--json")
    assert json.loads(done.stdout)["nodes"] == 4 * json.loads(one.stdout)["nodes"]
    done = run("divergence", dump, good, out, "--json")
    assert done.returncode == 1 and {o["rank"] for o in json.loads(done.stdout)["origins"]} == {77}
    for verb in ("overflow", "replicas"):
        assert run(verb, dump, good, out).returncode == 0, verb
