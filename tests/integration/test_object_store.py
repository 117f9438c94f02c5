# SPDX-License-Identifier: Apache-2.0
"""Leaves that store what has ended, and readers of what they stored: over a directory always, over the bucket of
the environment where there is one (tests/stages/scale.sh: a Ceph)."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import uuid

import pytest

import harness
from polling import wait_for

STORES = ["directory"] + (["s3"] if "RANKPROBE_SCALE_BUCKET" in os.environ else [])


@pytest.fixture(params=STORES)
def store_url(request, tmp_path: pathlib.Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "objects")
    return f"s3://conformance/{uuid.uuid4().hex}"


@pytest.fixture
def start(tmp_path: pathlib.Path):
    running = []

    def begin(name: str, *flags: str) -> harness.Collector:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        running.append(harness.Collector(directory, *flags).start())
        return running[-1]

    yield begin
    for collector in running:
        if collector.process.poll() is None:
            assert collector.stop() == 0, collector.log_text()[-2000:]


def leaf_flags(url: str, *more: str) -> list[str]:
    return ["--role", "leaf", "--object-store", url, "--seal-seconds", "1", *more]


def stored(url: str, *args: str, check: bool = True) -> subprocess.CompletedProcess:
    result = subprocess.run([harness.BIN / "rankprobe", "--object-store", url, *map(str, args)], capture_output=True,
                            text=True, timeout=120)
    assert not check or result.returncode == 0, result.stderr
    return result


def tree(root: pathlib.Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def train(start_job, leaf: harness.Collector, name: str, steps: int, task: str) -> None:
    cfg = harness.config(task, "mix", section={"scope": [], "list": []}, dump_enable=True)
    job = start_job(name, leaf.address, cfg, steps=steps)
    for rank in job.ranks:
        assert rank.process.wait(timeout=120) == 0, rank.log.read_text(errors="replace")[-2000:]


def assert_same_exports(leaf: harness.Collector, url: str, run: str, tmp_path: pathlib.Path) -> None:
    leaf.cli("export", "--run", run, "-o", tmp_path / "own")
    stored(url, "export", "--run", run, "-o", tmp_path / "sealed")
    own = tree(tmp_path / "own")
    assert len(own) > 10
    assert own == tree(tmp_path / "sealed")


def test_a_stored_run_is_exported_without_a_collector(start, start_job, store_url, tmp_path):
    leaf = start("leaf", *leaf_flags(store_url))
    train(start_job, leaf, "training", 2, "tensor")
    assert leaf.stop() == 0
    # What came last was stored at the end.
    leaf.start()
    assert_same_exports(leaf, store_url, "training", tmp_path)
    assert any((tmp_path / "sealed").rglob("*.pt"))
    ledger = stored(store_url, "ledger", "--run", "training", "--json").stdout
    assert ledger == leaf.cli("ledger", "--run", "training", "--json").stdout and ledger
    assert stored(store_url, "runs", "--json").stdout.count('"training"') == 1
    # The same through a collector that only reads, which takes nothing.
    reader = start("reader", "--role", "reader", "--object-store", store_url)
    reader.cli("export", "--run", "training", "-o", tmp_path / "read")
    assert tree(tmp_path / "read") == tree(tmp_path / "own")
    refused = reader.cli("delete", "--run", "training", check=False)
    assert refused.returncode != 0 and "is read-only" in refused.stderr, refused.stderr


def test_what_is_deleted_in_the_store_is_not_seen_and_stays_deleted(start, start_job, store_url, tmp_path):
    leaf = start("leaf", *leaf_flags(store_url))
    train(start_job, leaf, "training", 3, "statistics")
    assert leaf.stop() == 0
    said = stored(store_url, "delete", "--run", "training", "--steps", "1").stdout
    assert said.startswith("deleted ") and "a janitor of the store" in said
    # The leaf has the step still, and is started again.
    leaf.start()
    # A gap that the manifest names, and so exit code 1.
    left = stored(store_url, "export", "--run", "training", "-o", tmp_path / "left", check=False)
    assert left.returncode == 1 and "gaps" in left.stdout, left
    assert sorted(p.name for p in (tmp_path / "left").glob("step*")) == ["step0", "step2"]
    assert "deleted" in stored(store_url, "ledger", "--run", "training", check=False).stdout
    stored(store_url, "delete", "--run", "training")
    assert '"training"' not in stored(store_url, "runs", "--json").stdout
    for args in (("export", "--run", "training", "-o", tmp_path / "none"), ("delete", "--run", "training")):
        gone = stored(store_url, *args, check=False)
        assert gone.returncode != 0 and "training" in gone.stderr, gone.stderr
    # What changes nothing in a store is refused in a line.
    refused = stored(store_url, "backup", str(tmp_path / "backup"), check=False)
    assert refused.returncode > 0 and "read-only archive" in refused.stderr, refused
    assert leaf.stop() == 0


def test_what_went_from_a_store_is_found_without_reading_it(start, start_job, tmp_path):
    url = str(tmp_path / "objects")
    leaf = start("leaf", *leaf_flags(url))
    train(start_job, leaf, "training", 2, "tensor")
    assert leaf.stop() == 0
    sound = stored(url, "verify").stdout
    assert re.fullmatch(r"\d+ objects of the store \(0 B read\), \d+ records: 0 faults\n", sound), sound
    pack = next(path for path in objects(url) if "/packs/" in path)
    whole = pathlib.Path(pack).read_bytes()
    pathlib.Path(pack).write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    assert stored(url, "verify").stdout == sound
    reader = start("reader", "--role", "reader", "--object-store", url)
    for ask in (lambda *a: stored(url, *a, check=False), lambda *a: reader.cli(*a, check=False)):
        read = ask("verify", "--read-data")
        assert read.returncode == 1 and "is damaged" in read.stdout and "run training, steps 0 to 1: tensors" in read.stdout, read
    pathlib.Path(pack).unlink()
    for ask in (lambda *a: stored(url, *a, check=False), lambda *a: reader.cli(*a, check=False)):
        gone = ask("verify")
        assert gone.returncode == 1 and "is not there" in gone.stdout and pathlib.Path(pack).name in gone.stdout, gone


def objects(url: str) -> list[str]:
    """Records and packs in a directory store."""
    return sorted(str(p) for kind in ("records", "packs") for p in pathlib.Path(url).glob(f"v1/runs/*/{kind}/*"))


def test_a_janitor_gives_the_space_back(start, start_job, tmp_path):
    url = str(tmp_path / "objects")
    leaf = start("leaf", *leaf_flags(url))
    train(start_job, leaf, "kept", 2, "tensor")
    train(start_job, leaf, "deleted", 2, "tensor")
    assert leaf.stop() == 0
    stored(url, "export", "--run", "kept", "-o", tmp_path / "before")
    both = objects(url)
    stored(url, "delete", "--run", "deleted")
    assert objects(url) == both
    # What a leaf died over.
    orphan = pathlib.Path(both[0]).parent / ("e" * 32)
    orphan.write_bytes(b"half")
    # The leaf is there while two of them clean.
    leaf.start()
    janitors = [start(f"janitor{n}", "--role", "janitor", "--object-store", url, "--grace-seconds", "0",
                      "--janitor-seconds", "1") for n in range(2)]
    wait_for(lambda: not orphan.exists() and len(objects(url)) < len(both), 60,
             lambda: "\n".join(j.log_text()[-2000:] for j in janitors))
    wait_for(lambda: len({p.split("/")[-3] for p in objects(url)}) == 1, 60,
             lambda: "\n".join(j.log_text()[-2000:] for j in janitors))
    # It serves as a reader, which deletes for nobody.
    janitors[0].cli("export", "--run", "kept", "-o", tmp_path / "after")
    assert tree(tmp_path / "after") == tree(tmp_path / "before")
    refused = janitors[0].cli("delete", "--run", "kept", check=False)
    assert refused.returncode != 0 and "is read-only" in refused.stderr
    # The leaf goes on, also where its logs were swept; without a grace period that may be three times in a pass.
    train(start_job, leaf, "again", 2, "statistics")
    for janitor in janitors:
        assert janitor.stop() == 0
    assert leaf.stop() == 0
    assert "storing_ended" not in leaf.log_text()
    stored(url, "export", "--run", "again", "-o", tmp_path / "more")


def test_a_janitor_removes_nothing_of_others(start, start_job, tmp_path):
    url = str(tmp_path / "objects")
    leaf = start("leaf", *leaf_flags(url))
    train(start_job, leaf, "training", 2, "tensor")
    assert leaf.stop() == 0
    packs = next(pathlib.Path(url).glob("v1/runs/*/packs"))
    others = tmp_path / "others"
    (others / "deep").mkdir(parents=True)
    (others / "note.txt").write_text("theirs")
    (others / "deep" / ("a" * 32)).write_text("theirs")
    for link in ("packs/link", "records/" + "b" * 32, "shards/link", "extra"):
        (packs.parent / link).symlink_to(others)
    (packs / ("c" * 32)).symlink_to(others / "note.txt")
    (packs / "mine").mkdir()
    (packs / "mine" / "thesis.tex").write_text("theirs")
    (packs / "README").write_text("theirs")
    orphan = packs / ("d" * 32)
    orphan.write_bytes(b"half")
    janitor = start("janitor", "--role", "janitor", "--object-store", url, "--grace-seconds", "0", "--janitor-seconds", "1")
    wait_for(lambda: not orphan.exists(), 60, lambda: janitor.log_text()[-2000:])
    assert tree(others) == {"note.txt": b"theirs", "deep/" + "a" * 32: b"theirs"}
    assert (packs / "mine" / "thesis.tex").exists() and (packs / "README").exists()
    assert (packs / "link").is_symlink() and (packs.parent / "extra").is_symlink()
    stored(url, "export", "--run", "training", "-o", tmp_path / "after")


def test_a_damaged_run_hides_no_other(start, start_job, tmp_path):
    url = str(tmp_path / "objects")
    leaf = start("leaf", *leaf_flags(url))
    train(start_job, leaf, "good", 2, "statistics")
    train(start_job, leaf, "bad", 2, "statistics")
    assert leaf.stop() == 0
    entries = {path.read_bytes().count(b"good") > 0: path for path in pathlib.Path(url).glob("v1/runs/*/log/*/*1")}
    damaged = entries[False].with_name("0" * 19 + "9")
    damaged.write_text("x")
    stray = pathlib.Path(url) / "v1" / "names" / "README"
    stray.write_text("hi")
    for args in (("runs",), ("runs", "--json")):
        listed = stored(url, *args, check=False)
        assert listed.returncode == 1 and "good" in listed.stdout and "bad" in listed.stdout, listed
        assert 'run "bad" of the store is damaged' in listed.stderr and f"{damaged.name} of the log" in listed.stderr, listed.stderr
        assert "v1/names/README" in listed.stderr and 'run "good"' not in listed.stderr, listed.stderr
    stored(url, "export", "--run", "good", "-o", tmp_path / "good")
    # What the damaged entry does not concern is there, and the manifest says that something is missing.
    assert stored(url, "export", "--run", "bad", "-o", tmp_path / "bad", check=False).returncode == 1
    assert len(list(tmp_path.glob("bad/step*/rank*/dump.json"))) == len(list(tmp_path.glob("good/step*/rank*/dump.json")))
    assert json.loads((tmp_path / "bad" / "manifest.json").read_text())["gaps"]
    damaged.unlink()
    stray.unlink()
    assert "bad" in stored(url, "runs").stdout


def test_a_store_that_is_not_there_is_no_empty_one(tmp_path):
    url = str(tmp_path / "typo")
    missing = stored(url, "runs", check=False)
    assert missing.returncode > 0 and "no such directory" in missing.stderr and url in missing.stderr, missing
    for role in ("reader", "janitor"):
        (tmp_path / role).mkdir()
        result = subprocess.run([harness.BIN / "rankprobed", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / role, "--role", role,
                                 "--object-store", url], capture_output=True, text=True, timeout=60)
        assert result.returncode == 6 and "no such directory" in result.stderr, (role, result)
    assert not pathlib.Path(url).exists()


def test_a_killed_leaf_goes_on_where_it_was(start, start_job, store_url, tmp_path):
    leaf = start("leaf", *leaf_flags(store_url))
    cfg = harness.config("statistics", "mix", section={"scope": [], "list": []}, dump_enable=True)
    job = start_job("killed", leaf.address, cfg)
    for _ in range(3):
        job.wait_steps(4)
        leaf.kill()
        leaf.start()
    job.wait_steps(4)
    assert job.finish(seconds=120) == [0, 0]
    assert leaf.stop() == 0
    leaf.start()
    assert_same_exports(leaf, store_url, "killed", tmp_path)


def test_a_leaf_frees_what_is_stored(start, start_job, store_url, tmp_path):
    leaf = start("leaf", *leaf_flags(store_url, "--free-stored"))
    train(start_job, leaf, "freed", 80, "statistics")
    wait_for(lambda: "freed_steps=" in leaf.log_text() and any(
        "freed_steps=0" not in line for line in leaf.log_text().splitlines() if "freed_steps=" in line), 60,
        lambda: f"steps to be freed: {leaf.log_text()[-2000:]}")
    assert leaf.stop() == 0
    stored(store_url, "export", "--run", "freed", "-o", tmp_path / "sealed")
    assert {p.name for p in (tmp_path / "sealed").glob("step*")} == {f"step{n}" for n in range(80)}


@pytest.mark.parametrize("flags,says", [
    (["--role", "leaf"], "object-store"),
    (["--object-store", "/x"], "with role leaf, reader, root or janitor"),
    (["--role", "other"], "one of all, leaf, reader, root"),
    (["--role", "leaf", "--object-store", "relative"], "absolute path"),
    (["--role", "leaf", "--object-store", "s3://B"], "bucket's name"),
    (["--role", "leaf", "--object-store", "s3://bucket?endpoint=http://elsewhere"], "plain http"),
    (["--role", "leaf", "--object-store", "/x", "--retention-hours", "1"], "free-stored"),
    (["--role", "reader", "--object-store", "/x", "--free-stored"], "with role leaf"),
    (["--role", "reader", "--object-store", "/x", "--retention-hours", "1"], "a janitor deletes"),
    (["--role", "janitor", "--retention-hours", "1"], "object-store"),
])
def test_flags_that_do_not_go_together(tmp_path, flags, says):
    ended = subprocess.run([harness.BIN / "rankprobed", "--data-dir", tmp_path, *flags], capture_output=True,
                           text=True, timeout=30)
    assert ended.returncode == 2 and says in ended.stderr, ended.stderr


def test_a_store_that_cannot_be_used_is_told_in_one_line(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | {"HOME": str(tmp_path)}
    for program in ([harness.BIN / "rankprobed", "--data-dir", tmp_path, "--role", "leaf"],
                    [harness.BIN / "rankprobe", "runs"]):
        ended = subprocess.run([*program, "--object-store", "s3://bucket"], capture_output=True, text=True, timeout=30,
                               env=environment)
        assert ended.returncode in (2, 6) and "no credentials" in ended.stderr, ended.stderr
        assert ended.stderr.count("\n") == 1
    ended = stored(str(tmp_path / "nothing"), "export", "--run", "x", "-o", tmp_path / "o", check=False)
    assert ended.returncode != 0 and "there is no such directory" in ended.stderr, ended.stderr
    (tmp_path / "nothing").mkdir()
    ended = stored(str(tmp_path / "nothing"), "export", "--run", "x", "-o", tmp_path / "o", check=False)
    assert ended.returncode != 0 and 'no run "x"' in ended.stderr, ended.stderr
    ended = stored(str(tmp_path / "nothing"), "status", check=False)
    assert ended.returncode != 0 and "needs a collector" in ended.stderr, ended.stderr
