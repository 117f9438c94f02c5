# SPDX-License-Identifier: Apache-2.0
"""Texts that ranks and collectors send: into dump.json, onto terminals, into logs."""

import concurrent.futures
import contextlib
import json
import re

import grpc
import pytest

import harness
import wire
from harness import archive, archive_grpc, types

ESC = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202e\nforged  line\r"
# Line breaks are ours; the rest of C0, DEL, C1, line marks and direction overrides is nobody's.
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(*done) -> str:
    text = "".join(d.stdout + d.stderr for d in done)
    assert not STEERS.search(text), repr(STEERS.search(text)) + repr(text[:500])
    assert not [line for line in text.splitlines() if line.startswith("forged")], text
    return text


def test_E01_a_device_mesh_is_json_or_refused(daemon, tmp_path):
    bad = ['[0]}]},\n "Forged.entry.0.forward": {"output": [{"type":"torch.Tensor"', "{{{ \x1b[31m", "[" * 5000,
           '"' + "x" * (64 << 10) + '"', "[NaN]", "[0]\0"]
    for i, mesh in enumerate(bad):
        # A rank of its own: the collector may not have seen yet that the last one left.
        rank = harness.RawAgent(daemon, run="inj", rank=i)
        leaf = harness.tensor(shape=[1])
        leaf.tensor.device_mesh_json = mesh
        rank.batch(i, [harness.begin_record(), harness.call_record(1, harness.call("Torch.relu.0.forward", [leaf])),
                       harness.end_record(2, 1)])
        rank.committed(seconds=10)  # refused: ended, or dropped with a word
        rank.goodbye()
    rank = harness.RawAgent(daemon, run="inj", rank=len(bad))
    leaf = harness.tensor(shape=[1])
    leaf.tensor.device_mesh_json = "[[0, 1], [2, 3]]"
    rank.batch(99, [harness.begin_record(), harness.call_record(1, harness.call("Torch.relu.0.forward", [leaf])),
                    harness.end_record(2, 1)])
    assert rank.committed()
    daemon.cli("export", "--run", "inj", "-o", tmp_path / "tree")
    dumps = {p.parent.parent.name: json.loads(p.read_text()) for p in (tmp_path / "tree").glob("step*/rank*/dump.json")}
    entry = dumps["step99"]["data"]["Torch.relu.0.forward"]
    assert entry["output"][0]["device_mesh"] == [[0, 1], [2, 3]]
    for dump in dumps.values():
        assert set(dump["data"]) <= {"Torch.relu.0.forward"}, "nothing was forged"


def test_D02_records_that_nest_into_each_other(daemon, tmp_path):
    rank = harness.RawAgent(daemon)
    levels, path = 20, ""
    for i in range(1200):
        value = types.Value(scalar=types.ScalarValue(type="int", i=i))
        for _ in range(levels):
            value = types.Value(list=types.ValueList(items=[value]))
        rank.batch(0, [harness.call_record(1 + i, types.CallPhase(entry="x.0.debug", kind=types.CALL_KIND_DEBUG,
                                                                  debug=value, debug_path=path[:4000].rstrip(".")))])
        path += ("." if path else "") + ".".join(["0"] * levels)
    assert rank.committed(seconds=60)
    done = daemon.cli("export", "--run", "run", "-o", tmp_path / "tree")
    assert daemon.alive and done.returncode in (0, 1), done.stderr
    text = (tmp_path / "tree/step0/rank0/dump.json").read_text()
    assert "rankprobe_cut" in text and text.count("[") <= 400
    json.loads(text)
    status, _ = harness.outcome(daemon.archive().ListCalls, archive.ListCallsRequest(run="run", step=0, rank=0))
    assert daemon.alive and status in ("OK", "INTERNAL")


def test_W02_many_gradients_of_one_entry(daemon):
    rank = harness.RawAgent(daemon)
    number = 0
    for order in range(60):
        phase = types.CallPhase(entry="Module.m.M.parameters_grad.0", kind=types.CALL_KIND_PARAMETERS_GRAD)
        for _ in range(5000):
            item = phase.gradients.items.add(name=str(number))
            item.value.SetInParent()
            number += 1
        rank.batch(0, [harness.call_record(order, phase)])
    assert rank.committed(seconds=90)
    before = daemon.cpu_seconds()
    stub = daemon.archive()
    status, calls = harness.outcome(stub.ListCalls, archive.ListCallsRequest(run="run", step=0, rank=0), timeout=90)
    assert status == "OK" and len(calls[0].call.gradients.items) == number
    # It took minutes of CPU.
    assert daemon.cpu_seconds() - before < 20
    assert harness.outcome(stub.ListRuns, archive.ListRunsRequest())[0] == "OK"


def test_E05_two_payloads_of_one_name(daemon, tmp_path):
    rank = harness.RawAgent(daemon)
    for data in (b"one!" * 64, b"two!" * 64):
        rank.payload(data)
    rank.batch(0, [harness.begin_record(), harness.call_record(1, harness.call("A", [harness.tensor(b"one!" * 64)])),
                   harness.call_record(2, types.CallPhase(entry="A.output.0", kind=types.CALL_KIND_DEBUG,
                                                          debug=harness.tensor(b"two!" * 64))),
                   harness.end_record(3, 2, 2)])
    assert rank.committed()
    tree = harness.export(daemon, "run", tmp_path / "tree")
    found = harness.exported_tensors(tree)
    assert sorted(found.values()) == [b"one!" * 64, b"two!" * 64]
    data = json.loads((tree / "step0/rank0/dump.json").read_text())["data"]
    names = [data["A"]["output"][0]["data_name"], data["A.output.0"]["data_name"]]
    assert found[f"step0/rank0/dump_tensor_data/{names[1]}"] == b"two!" * 64


def test_E15_C07_what_ranks_say_does_not_steer_the_terminal(daemon, tmp_path):
    run = "run" + ESC
    rank = harness.RawAgent(daemon, run=run, rank=0, host="host" + ESC)
    rank.batch(0, [harness.begin_record(),
                   harness.call_record(1, harness.call("Torch.relu.0.forward" + ESC)),
                   types.Record(order=2, error=types.ErrorEvent(message="error" + ESC, time_unix_ns=1)),
                   types.Record(order=3, loss=types.LossEvent(reason=types.LOSS_REASON_AGENT_BUDGET, records=1,
                                                              detail="detail" + ESC)),
                   harness.end_record(4, 1)])
    assert rank.committed()
    text = shown(daemon.cli("runs"), daemon.cli("status"), daemon.cli("events"), daemon.cli("runs", "--json"),
                 daemon.cli("status", "--run", run), daemon.cli("status", "--run", run, "--steps"),
                 daemon.cli("ledger", "--run", run), daemon.cli("explain", "--run", run), daemon.cli("top", "--rounds", 1),
                 daemon.cli("watch", "--rounds", 1), daemon.cli("export", "--run", run, "-o", tmp_path / "tree"),
                 daemon.cli("export", "--run", "no" + ESC, "-o", tmp_path / "none"))
    assert "\\x1b]0;owned" in text and "\\u202e" in text
    assert json.loads(daemon.cli("runs", "--json").stdout)["runs"][0]["run"] == run
    log = (tmp_path / "tree/step0/rank0/dump_error_info.log").read_text()
    assert "error\\x1b" in log and not STEERS.search(log) and "\nforged" not in log
    assert not STEERS.search(daemon.log()), "the daemon's own log"


def test_C06_counters_at_their_limits(daemon, tmp_path):
    rank = harness.RawAgent(daemon)
    most = 2**64 - 1
    leaf = harness.tensor(shape=[2**62, 2**62])
    rank.batch(0, [harness.begin_record(),
                   harness.call_record(1, harness.call("Torch.relu.0.forward", [leaf], kind=999)),
                   types.Record(order=2, loss=types.LossEvent(reason=12345, records=most, payloads=most)),
                   types.Record(order=3, error=types.ErrorEvent(message="x", time_unix_ns=-2**63)),
                   types.Record(order=4, step_end=types.StepEnd(call_phases=most, payloads=most))])
    rank.committed()
    for words in (["ledger", "--run", "run"], ["status"], ["verify"], ["export", "--run", "run", "-o", tmp_path / "tree"]):
        done = daemon.cli(*words)
        assert done.returncode in (0, 1), done.stderr
    json.loads((tmp_path / "tree/manifest.json").read_text())
    json.loads((tmp_path / "tree/step0/rank0/dump.json").read_text())
    assert daemon.alive


def test_totals_of_losses_do_not_wrap(daemon, tmp_path):
    """One rank's claim must not make what another one lost disappear."""
    for number, (records, payloads) in enumerate([(5, 7), (2**64 - 5, 2**64 - 7)]):
        rank = harness.RawAgent(daemon, rank=number)
        rank.batch(0, [harness.begin_record(),
                       types.Record(order=1, loss=types.LossEvent(reason=types.LOSS_REASON_AGENT_BUDGET, records=records,
                                                                  payloads=payloads)),
                       types.Record(order=2, step_end=types.StepEnd(lost_records=records))])
        rank.committed()
    # Within one step of one process as well.
    rank = harness.RawAgent(daemon, run="one")
    rank.batch(0, [harness.begin_record(),
                   *[types.Record(order=order, loss=types.LossEvent(reason=types.LOSS_REASON_AGENT_BUDGET, records=records))
                     for order, records in ((1, 5), (2, 2**64 - 5))]])
    rank.committed()
    one = daemon.cli("ledger", "--counts", "--run", "one")
    assert one.returncode == 1 and f"lost AGENT_BUDGET: {2**64 - 1} records" in one.stdout, one
    for words in (["ledger"], ["ledger", "--counts"], ["status"]):
        done = daemon.cli(*words, "--run", "run")
        assert f"lost AGENT_BUDGET: {2**64 - 1} records, {2**64 - 1} payloads" in done.stdout, done
        assert "nothing lost" not in done.stdout, done
    exported = daemon.cli("export", "--run", "run", "-o", tmp_path / "tree")
    assert exported.returncode == 1, exported
    gaps = json.loads((tmp_path / "tree/manifest.json").read_text())["gaps"]
    assert {(gap["rank"], gap["records"]) for gap in gaps if gap["reason"] == "AGENT_BUDGET"} == {
        ("rank0", 5), ("rank1", 2**64 - 5)}


class _HostileArchive(archive_grpc.ArchiveServiceServicer):
    """A collector that means harm to those who ask it."""

    def ListRuns(self, request, context):
        return archive.ListRunsResponse(runs=[archive.RunInfo(
            run="evil" + ESC, ranks=2**63, steps=2**64 - 1, records=2**64 - 1, stored_payload_bytes=2**64 - 1,
            updated_unix_ns=-2**63)])

    def GetLedger(self, request, context):
        context.abort(grpc.StatusCode.NOT_FOUND, "no" + ESC)

    def Export(self, request, context):
        yield archive.ExportEvent(directory="step0/rank0")
        yield archive.ExportEvent(progress=archive.ExportProgress(files_done=1, files_total=1, current="x" + ESC))
        yield archive.ExportEvent(files=archive.ExportFiles(files=[archive.ExportFile(path="../evil", data=b"x")]))


@pytest.fixture
def hostile(tmp_path):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    archive_grpc.add_ArchiveServiceServicer_to_server(_HostileArchive(), server)
    daemon = harness.Daemon(tmp_path / "hostile")
    daemon.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield daemon
    server.stop(None)


def test_T06_T07_a_hostile_collector(hostile, tmp_path):
    text = shown(hostile.cli("runs"), hostile.cli("runs", "--json"), hostile.cli("ledger", "--run", "x"))
    assert "evil\\x1b" in text
    done = hostile.cli("export", "--run", "x", "-o", tmp_path / "out")
    shown(done)
    assert done.returncode == 5 and not (tmp_path / "evil").exists() and not (tmp_path / "out").exists()


def test_the_command_line_writes_through_one_place():
    for source in (harness.ROOT / "cli").rglob("*.cc"):
        if source.name in ("output.cc", "cli_test.cc"):
            continue
        found = re.findall(r"std::printf|std::fprintf|std::fputs|std::cout|std::cerr|std::puts", source.read_text())
        assert not found, f"{source}: {found}: use Print or PrintJson of cli/output/output.h"


def test_no_raw_lines_in_the_log(daemon):
    """Texts that are not UTF-8: libprotobuf's word about them is a line of the daemon's log like any other."""
    bad = wire.sealed(b"\x0a\x02\xff\xfe")  # field 1, a text of two bytes
    for method in ("ListSteps", "GetLedger"):
        call = daemon.channel().unary_stream(f"/rankprobe.v1.ArchiveService/{method}")
        with pytest.raises(grpc.RpcError):
            list(call(bad, timeout=harness.SOON))
    for method in ("AgentService/Session", "AgentService/Upload"):
        call = daemon.channel().stream_stream(f"/rankprobe.v1.{method}")
        with contextlib.suppress(grpc.RpcError):
            list(call(iter([b"\x0a\x06\x0a\x04\xff\xfe\x1b["]), timeout=harness.SOON))
    lines = harness.wait_for(lambda: "event=protobuf" in daemon.log() and daemon.log().splitlines(), what="the line")
    assert all(re.match(r"time=\S+ level=\w+ event=\w+|rankprobed listening on ", line) for line in lines), lines
    shown_line = next(line for line in lines if "event=protobuf" in line)
    assert "GetLedgerRequest" in shown_line or "ListStepsRequest" in shown_line
