# SPDX-License-Identifier: Apache-2.0
"""Attacks on a collector's page, its jobs, and the directory that it shows (--web-root): who may, what a job reaches,
and that it ends with whoever asked."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import sqlite3
import subprocess

import harness
import pytest
from harness import RawAgent, begin_record, call, call_record, end_record, tensor
from page_client import PageClient
from test_page import WEB, ask_slowly, large_step, page_of, recorded

ENDED = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")
SECRET = "the-secret-of-another-file"
BAD = "Torch.div.0.forward"


def numbers(value: float):
    one = tensor(shape=[2])
    one.tensor.stats.max_f = one.tensor.stats.min_f = one.tensor.stats.mean_f = one.tensor.stats.norm_f = value
    return one


def bad_step(rank: RawAgent, step: int = 0) -> None:
    """Its second call makes a NaN of what is finite."""
    rank.batch(step, [begin_record(0, task="statistics", has_payloads=False), call_record(1, call("Torch.relu.0.forward", [numbers(1)])),
                      call_record(2, call(BAD, [numbers(float("nan"))], [numbers(1)])), end_record(3, 2)])


def done(page: PageClient, job: dict, state: str = "JOB_STATE_DONE") -> dict:
    def over() -> dict | None:
        info = page.call("JobGet", id=job["id"])
        return info if info["state"] in ENDED else None

    info = harness.wait_for(over, harness.SOON, "the end of a job")
    assert info["state"] == state, (info["messages"], info)
    return info


def dump(directory: pathlib.Path, value: float = 1.0) -> pathlib.Path:
    rank = directory / "step0" / "rank0"
    rank.mkdir(parents=True)
    one = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": value, "Min": value, "Mean": value, "Norm": value, "requires_grad": False}
    (rank / "dump.json").write_text(json.dumps({"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": {
        "Torch.relu.0.forward": {"input_args": [one], "input_kwargs": {}, "output": [one]}}}))
    (rank / "stack.json").write_text("{}")
    (rank / "construct.json").write_text(json.dumps({"Torch.relu.0.forward": None}))
    for path in (directory, directory / "step0", rank, *rank.iterdir()):
        path.chmod(0o750 if path.is_dir() else 0o640)
    return directory


@pytest.fixture
def root(tmp_path) -> pathlib.Path:
    """Two dumps, a database, and a secret beside it that no request may reach."""
    root = tmp_path / "root"
    dump(root / "a")
    dump(root / "b", 2.0)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(SECRET)
    dump(tmp_path / "outside" / "dump")
    with sqlite3.connect(root / "x.vis.db") as database:
        database.execute("CREATE TABLE tb_nodes (id)")
    return root


def test_a_viewer_is_told_the_first_bad_call_and_starts_no_job(start_secured, tokens):
    daemon = start_secured(*WEB)
    rank = RawAgent(daemon, run="a@1", token=tokens.alice)
    bad_step(rank)
    assert rank.committed()
    viewer, operator, agent, nobody = (page_of(daemon, token) for token in (tokens.viewer, tokens.operator, tokens.alice, None))
    assert viewer.about()["jobs"] is True and viewer.about()["builds"] is False
    (found,) = viewer.call("FirstBad", run="a@1", step="0", ranks=["0"])["found"]
    assert found["call"] == BAD and int(found["rank"]) == 0
    assert viewer.call("JobList")["jobs"] == [], "it is in nobody's list"
    assert agent.error("FirstBad", {"run": "a@1"})[0] == 403 and nobody.error("FirstBad", {"run": "a@1"})[0] == 401
    for wrong in ({"run": "none", "step": "0"}, {"run": "a@1", "step": "77"}, {"run": ""}, {"run": "a@1", "ranks": [str(i) for i in range(65)]},
                  {"run": "a@1", "step": "-1"}, {"run": "../..", "step": "0"}, {"run": "a\nb", "step": "0"}):
        status, code, said = viewer.error("FirstBad", wrong)
        assert code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION") and "page_jobs" not in said, (wrong, status, code, said)
    spec = {"command": "overflow_check", "options": {"input_path": "run:a@1@0"}}
    for page, status in ((viewer, 403), (agent, 403), (nobody, 401)):
        assert page.error("JobStart", spec)[0] == status
    assert daemon.audit() == []
    job = operator.call("JobStart", **spec)
    assert BAD in done(operator, job)["reportJson"]
    begun, ended = daemon.audit()
    assert (begun["actor"], begun["role"], begun["action"], begun["outcome"]) == ("olga", "operator", "JobStart", "BEGUN")
    assert begun["peer"].startswith("page:127.0.0.1:") and "run:a@1@0" in begun["detail"] and ended["outcome"].startswith("OK")
    # What came of it a viewer may read: it is made of what he may read.
    assert viewer.call("JobGet", id=job["id"])["state"] == "JOB_STATE_DONE"
    for method in ("JobCancel", "JobDelete"):
        assert viewer.error(method, {"id": job["id"]})[0] == 403
    operator.call("JobDelete", id=job["id"])
    assert [line["action"] for line in daemon.audit()] == ["JobStart"] * 2 + ["JobDelete"] * 2
    assert list((daemon.data_dir / "page_jobs").glob("*/out")) == [] or operator.call("JobList")["jobs"] == []


def test_a_job_of_a_collector_asks_nobody_and_names_no_path(start_secured, tokens, root):
    daemon = start_secured(*WEB, "--web-root", root)
    recorded(daemon, tokens.alice)
    operator = page_of(daemon, tokens.operator)
    for command, options in (("export", {"run": "job"}), ("scan", {"run": "job"}),
                             ("first-divergence", {"target": "run:job", "reference": "run:job", "live": "true"})):
        status, code, said = operator.error("JobStart", {"command": command, "options": options})
        assert code == "FAILED_PRECONDITION" and "needs a collector" in said, said
    for path in ("/etc", "root:..", "root:../outside/dump", "root:/etc", "root:a/../../outside/dump", "root:none", "root:a/step0/rank0/dump.json", "run:",
                 "root:a\0b", "job:1/x", "--help"):
        code = operator.error("JobStart", {"command": "overflow_check", "options": {"input_path": path}})[1]
        assert code in ("INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED"), (path, code)
    # Sixteen wait on a page of a user's own, four here: the rest is refused, and looks are not in the way.
    codes = [operator.post("JobStart", {"command": "graph_visualize", "options": {"target_path": "run:job"}}) for _ in range(12)]
    answers = [answer.status for answer in codes if answer.read() is not None]
    assert set(answers) <= {200, 429}
    assert page_of(daemon, tokens.viewer).call("FirstBad", run="job", step="0")["found"] == []


def test_what_lies_below_the_root_is_shown_and_compared_and_nothing_is_written(start_secured, tokens, root):
    before = sorted(str(path) for path in root.rglob("*"))
    daemon = start_secured(*WEB, "--web-root", root)
    viewer, operator = page_of(daemon, tokens.viewer), page_of(daemon, tokens.operator)
    listed = viewer.call("Graph/List")
    assert [one["path"] for one in listed["dumps"]] == ["a", "b"] and [one["path"] for one in listed["databases"]] == ["x.vis.db"]
    job = operator.call("JobStart", command="compare", options={"target_path": "root:a", "golden_path": "root:b"})
    info = done(operator, job)
    (table,) = [one["name"] for one in info["files"] if one["name"].endswith(".csv")]
    rows = viewer.call("JobRows", id=job["id"], file=table, count=10)
    assert rows["rows"] and "page_jobs" not in json.dumps(info)
    # A database that a job made opens in the page.
    info = done(operator, operator.call("JobStart", command="graph_visualize", options={"target_path": "root:a", "golden_path": "root:b"}))
    (name,) = [one["name"] for one in info["files"] if one["name"].endswith(".vis.db")]
    assert viewer.call("Graph/Open", db=f"job:{info['id']}/{name}")["compare"] is True
    for db in (f"job:{info['id']}/../../x", "job:1/x", "job:", f"job:{info['id']}/", "job:/etc/passwd"):
        assert viewer.error("Graph/Open", {"db": db})[1] in ("NOT_FOUND", "INVALID_ARGUMENT"), db
    for method, request in (("Graph/Build", {"target": "a"}), ("Graph/SaveMapping", {"db": "x.vis.db", "pairs": [["a", "b"]]})):
        assert operator.error(method, request)[1] == "FAILED_PRECONDITION", method
        assert viewer.error(method, request)[0] == 403
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_links_fifos_and_what_is_no_dump_lead_nowhere(start_secured, tokens, root, tmp_path):
    daemon = start_secured(*WEB, "--web-root", root)
    operator = page_of(daemon, tokens.operator)
    (root / "up").symlink_to(tmp_path / "outside" / "dump")
    (root / "link.vis.db").symlink_to(tmp_path / "outside" / "secret")
    os.mkfifo(root / "fifo.vis.db")
    with open(root / "huge.vis.db", "wb") as huge:
        huge.truncate(1 << 40)
    inner = dump(root / "c") / "step0" / "rank0"
    (inner / "dump.json").unlink()
    (inner / "dump.json").symlink_to(tmp_path / "outside" / "secret")
    outside = dump(root / "d")
    (outside / "step0" / "rank1").symlink_to(tmp_path / "outside" / "dump" / "step0" / "rank0")
    fifo = dump(root / "e") / "step0" / "rank0" / "dump.json"
    fifo.unlink()
    os.mkfifo(fifo)
    large = dump(root / "f") / "step0" / "rank0" / "dump.json"
    with open(large, "wb") as file:
        file.truncate(1 << 40)
    listed = operator.call("Graph/List")
    assert not {"up", "c", "e"} & {one["path"] for one in listed["dumps"]}
    for db in ("link.vis.db", "fifo.vis.db", "huge.vis.db", "../outside/secret", "up/x.vis.db"):
        assert operator.error("Graph/Open", {"db": db})[0] in (400, 403, 404, 429), db
    assert operator.error("JobStart", {"command": "compare", "options": {"target_path": "root:up", "golden_path": "root:a"}})[0] in (403, 404)
    said = []
    for name in ("c", "e", "f"):
        job = operator.call("JobStart", command="compare", options={"target_path": f"root:{name}", "golden_path": "root:a"})
        said.append(json.dumps(done(operator, job, "JOB_STATE_FAILED")))
        operator.call("JobDelete", id=job["id"])
    job = operator.call("JobStart", command="compare", options={"target_path": "root:d", "golden_path": "root:d"})
    harness.wait_for(lambda: operator.call("JobGet", id=job["id"])["state"] in ENDED, harness.SOON, "its end")
    said.append(json.dumps(operator.call("JobGet", id=job["id"])))
    assert SECRET not in "".join(said)
    # The link's rank is none of the dump's: a link is refused, or not seen, and never followed.
    assert '"rank": 1' not in said[-1] and "rank1.csv" not in said[-1]
    recorded(daemon, tokens.alice)
    assert daemon.alive and daemon.memory() < 512 << 20


def huge_graph(path: pathlib.Path, nodes: int) -> pathlib.Path:
    """A database of the real msprobe whose one step has so many nodes more."""
    packed = sorted((harness.ROOT / "tests" / "golden" / "graphs").glob("*build_cnn_L0*.vis.db.gz"))[0]
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(tb_nodes)")]
        row = dict(zip(columns, database.execute("SELECT * FROM tb_nodes WHERE up_node != '' LIMIT 1").fetchone()))
        insert = f"INSERT INTO tb_nodes ({', '.join(columns)}) VALUES ({', '.join('?' for _ in columns)})"
        taken = database.execute(f"SELECT max({columns[0]}) FROM tb_nodes").fetchone()[0]
        fresh = taken + 1 if isinstance(taken, int) else None
        database.executemany(insert, ([row[name] if name not in ("node_name", "node_order", columns[0]) else f"Torch.{'n' * 200}.{i}.forward" if name == "node_name"
                                       else 10_000 + i if name == "node_order" else (fresh + i if fresh is not None else f"id{i}") for name in columns]
                                      for i in range(nodes)))
    return path


def test_huge_graphs_and_browsers_that_do_not_take_them_cost_bounded_memory(start_secured, tokens, root):
    huge_graph(root / "many.vis.db", 251_000)
    huge_graph(root / "large.vis.db", 90_000)
    daemon = start_secured(*WEB, "--web-root", root)
    viewer = page_of(daemon, tokens.viewer)
    about = viewer.call("Graph/Open", db="large.vis.db")
    place = {"step": about["steps"][0], "rank": about["ranks"][0]}
    assert viewer.error("Graph/Graph", {"db": "many.vis.db", **place})[1] == "RESOURCE_EXHAUSTED"
    whole = viewer.post("Graph/Graph", {"db": "large.vis.db", **place})
    size = len(whole.read())
    assert whole.status == 200 and size > 16 << 20
    before = daemon.memory()
    held = []
    try:
        for _ in range(30):
            held.append(ask_slowly(viewer, tokens.viewer, "Graph/Graph", {"db": "large.vis.db", **place}))
        # Each has begun to be answered, or is told that others have not taken theirs.
        said = [one.recv(64) for one in held]
        assert any(b" 429 " in text for text in said) and any(b" 200 " in text for text in said)
        recorded(daemon, tokens.alice)
        assert daemon.memory() - before < 512 << 20
    finally:
        for one in held:
            one.close()
    harness.wait_for(lambda: viewer.post("Graph/Graph", {"db": "large.vis.db", **place}).status == 200, harness.SOON, "a graph again")


def test_the_end_of_a_collector_waits_for_no_job(start_secured, tokens):
    """Nor for one whose query waits behind a browser that reads nothing."""
    daemon = start_secured(*WEB, "--worker-threads", 1)
    rank = RawAgent(daemon, run="job", token=tokens.alice)
    large_step(rank, 0, 6000)
    assert rank.committed()
    operator = page_of(daemon, tokens.operator)
    with ask_slowly(operator, tokens.viewer, "ArchiveService/ListCalls", {"run": "job", "step": "0", "rank": "0"}) as held:
        assert held.recv(100).startswith(b"HTTP/1.1 200")
        job = operator.call("JobStart", command="overflow_check", options={"input_path": "run:job@0"})
        harness.wait_for(lambda: operator.call("JobGet", id=job["id"])["state"] == "JOB_STATE_RUNNING", harness.SOON, "a job at work")
        assert daemon.stop(seconds=30) == 0
    assert list((daemon.data_dir / "page_jobs").iterdir()) == []


def test_the_command_of_a_job_opens_nothing_outside_whatever_it_is_told(root, tmp_path):
    """Not by --force, and not by a link that is planted after the page has looked."""
    (root / "swapped").symlink_to(tmp_path / "outside" / "dump")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "out").mkdir()
    environment = {**os.environ, "RANKPROBE_READ_BELOW": f"{tmp_path / 'job'}\n{root}"}

    def compare(target: object, golden: object, out: object = tmp_path / "job" / "out") -> subprocess.CompletedProcess:
        return subprocess.run([harness.BIN / "rankprobe", "compare", "--force", "-tp", target, "-gp", golden, "-o", out], env=environment, capture_output=True, text=True,
                              timeout=harness.SOON)

    good = compare(root / "a", root / "b")
    assert good.returncode == 0, good.stderr
    for done in (compare(root / "swapped", root / "b"), compare(tmp_path / "outside" / "dump", root / "b"), compare(root / ".." / "outside" / "dump", root / "b"),
                 compare(root / "a", root / "b", tmp_path / "elsewhere")):
        assert done.returncode not in (0, 1) and done.stderr.startswith("rankprobe: "), done
    assert not (tmp_path / "elsewhere").exists()
    # Places that are not there are none, rather than all.
    assert subprocess.run([harness.BIN / "rankprobe", "compare", "-tp", root / "a", "-gp", root / "b", "-o", tmp_path / "job" / "out"],
                          env={**os.environ, "RANKPROBE_READ_BELOW": str(tmp_path / "none")}, capture_output=True, timeout=harness.SOON).returncode == 5


def test_a_mapping_that_swells_is_the_jobs_own_affair(start_secured, tokens, root):
    daemon = start_secured(*WEB, "--web-root", root)
    operator = page_of(daemon, tokens.operator)
    swelling = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    deep = "[" * 200_000
    for mapping in (swelling, deep, "\0\xff", "{" * 1000):
        job = operator.call("JobStart", command="compare", options={"target_path": "root:a", "golden_path": "root:b"}, files={"data_mapping": mapping})
        harness.wait_for(lambda: operator.call("JobGet", id=job["id"])["state"] in ENDED, 2 * harness.SOON, "its end")
        assert operator.call("JobGet", id=job["id"])["state"] == "JOB_STATE_FAILED", mapping[:20]
    recorded(daemon, tokens.alice)
    assert daemon.alive and daemon.memory() < 512 << 20


def test_a_closed_tab_ends_what_it_waited_for(start_secured, tokens):
    """Its query, and the look that a process was begun for. The only thread of queries is held by a browser that reads nothing."""
    daemon = start_secured(*WEB, "--worker-threads", 1)
    rank = RawAgent(daemon, run="job", token=tokens.alice)
    large_step(rank, 0, 6000)
    bad_step(rank, 1)
    bad_step(rank, 2)
    assert rank.committed()
    page = page_of(daemon, tokens.viewer)

    def begun() -> set[str]:
        return {path.parts[-3] for path in (daemon.data_dir / "page_jobs").glob("*/tmp/rankprobe_run0")}

    holds = ask_slowly(page, tokens.viewer, "ArchiveService/ListCalls", {"run": "job", "step": "0", "rank": "0"})
    assert holds.recv(100).startswith(b"HTTP/1.1 200")
    first = ask_slowly(page, tokens.viewer, "FirstBad", {"run": "job", "step": "1"})
    harness.wait_for(lambda: len(begun()) == 1, harness.SOON, "a look that has begun")
    (job,) = begun()
    second = ask_slowly(page, tokens.viewer, "FirstBad", {"run": "job", "step": "2"})
    # One look at a time: that of the tab that closes ends, though its query never began.
    first.close()
    harness.wait_for(lambda: begun() and begun() != {job}, harness.SOON, "the next look")
    # Closed in the middle of its answer: the query's thread is free again, and the second look has its answer.
    holds.close()
    assert second.recv(4096).startswith(b"HTTP/1.1 200")
    second.close()


def test_jobs_of_a_killed_collector_leave_nothing(start_daemon, tmp_path):
    daemon = start_daemon(*WEB)
    recorded(daemon, None)
    page = page_of(daemon)
    done(page, page.call("JobStart", command="overflow_check", options={"input_path": "run:job@0"}))
    jobs = daemon.data_dir / "page_jobs"
    assert list(jobs.iterdir()) != []
    daemon.kill()
    again = start_daemon(*WEB, data_dir=daemon.data_dir)
    assert list(jobs.iterdir()) == [] and page_of(again).call("JobList")["jobs"] == []
    assert again.stop() == 0
    assert list(jobs.iterdir()) == []


@pytest.mark.parametrize(("flags", "code", "said"), [
    (["--web-root", "/"], 2, "given with web-listen"),
    ([*WEB, "--web-root", "{tmp}/none"], 2, "--web-root: {tmp}/none: No such file or directory"),
    ([*WEB, "--web-root", "{tmp}/file"], 2, "--web-root: {tmp}/file: no directory"),
])
def test_a_root_that_cannot_be_shown_ends_the_start(flags, code, said, tmp_path):
    (tmp_path / "file").write_text("")
    daemon = harness.Daemon(tmp_path / "daemon", *(flag.format(tmp=tmp_path) for flag in flags))
    daemon.spawn(tmp_path / "port")
    assert daemon.process.wait(harness.SOON) == code, daemon.log()
    assert said.format(tmp=tmp_path) in daemon.log()
