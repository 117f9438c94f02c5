# SPDX-License-Identifier: Apache-2.0
"""Attacks on who may do what, and on the record of it. Ids are those of the red team's report."""

import hashlib

import harness
import wire
from google.protobuf import message_factory
from harness import RawAgent, access, agent, archive, control, leaf

BEGUN = "BEGUN"
FILES = (agent, control, archive)


def methods(files=FILES):
    """Every method of every service: (path, Access, descriptor)."""
    for module in files:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield (f"/{service.full_name}/{method.name}", method.GetOptions().Extensions[access.access], method)


def message_class(descriptor):
    return message_factory.MessageFactory().GetPrototype(descriptor)


def invoke(channel, path, method):
    """The status of an empty request."""
    request = message_class(method.input_type)
    deserialize = message_class(method.output_type).FromString
    if path.split("/")[-1] in ("Session", "Upload", "Link"):
        call = channel.stream_stream(path, wire.seal, deserialize)
        return harness.outcome(call, iter([request()]))[0]
    if path.split("/")[-1] == "Answer":
        return harness.outcome(channel.stream_unary(path, wire.seal, deserialize), iter([request()]))[0]
    kind = channel.unary_stream if path.split("/")[-1] in STREAMS else channel.unary_unary
    return harness.outcome(kind(path, wire.seal, deserialize), request())[0]


STREAMS = {"GetReference", "ListCalls", "GetTensor", "Export", "GetLedger", "Verify"}
GRANTS = {"agent": {access.ACCESS_ROLE_AGENT}, "viewer": {access.ACCESS_ROLE_VIEWER},
          "operator": {access.ACCESS_ROLE_VIEWER, access.ACCESS_ROLE_OPERATOR}}


def test_A01_the_table_of_roles_is_the_descriptors(secured, tokens):
    """Each method, asked by each role and by nobody: only what access.proto says gets in."""
    channels = {"agent": secured.channel(tokens.alice), "viewer": secured.channel(tokens.viewer),
                "operator": secured.channel(tokens.operator)}
    nobody = secured.channel("")
    count = 0
    for path, rule, method in methods():
        assert rule.role != access.ACCESS_ROLE_UNSPECIFIED, path
        assert invoke(nobody, path, method) == "UNAUTHENTICATED", path
        for role, channel in channels.items():
            status = invoke(channel, path, method)
            allowed = rule.role in GRANTS[role]
            assert (status != "PERMISSION_DENIED") == allowed, (path, role, status)
            assert status not in ("UNAUTHENTICATED", "UNIMPLEMENTED"), (path, role)
            count += 1
    assert count >= 60
    for path in ("/rankprobe.v1.ArchiveService/Destroy", "/rankprobe.v1.Other/Get", "/x"):
        call = channels["viewer"].unary_unary(path, lambda m: b"", lambda b: b)
        assert harness.outcome(call, None)[0] == "PERMISSION_DENIED", path


def test_what_only_a_leaf_may(start_secured, tokens, tmp_path):
    """A root's methods, asked by each role and by nobody, and a collector's by a leaf."""
    secret = "1e" * 16
    (tmp_path / "objects").mkdir()
    root = start_secured("--role", "root", "--object-store", tmp_path / "objects", text=f"{tokens.text}leaf lea {secret}\n")
    channels = {"agent": root.channel(tokens.alice), "viewer": root.channel(tokens.viewer),
                "operator": root.channel(tokens.operator), "leaf": root.channel(secret)}
    nobody = root.channel("")
    grants = {**GRANTS, "leaf": set()}
    for path, rule, method in methods((*FILES, leaf)):
        only_leaf = method.GetOptions().Extensions[leaf.leaf_only]
        assert only_leaf != (rule.role != access.ACCESS_ROLE_UNSPECIFIED), path
        assert invoke(nobody, path, method) == "UNAUTHENTICATED", path
        for role, channel in channels.items():
            allowed = role == "leaf" if only_leaf else rule.role in grants[role]
            assert (invoke(channel, path, method) != "PERMISSION_DENIED") == allowed, (path, role)
    assert root.alive


def actions(daemon):
    return [(r["actor"], r["role"], r["action"], r["run"], r["outcome"].split(":")[0]) for r in daemon.audit()]


def test_A11_what_changes_something_is_audited(start_secured, tokens, tmp_path):
    root = tmp_path / "exports"
    root.mkdir()
    daemon = start_secured("--export-root", root)
    rank = RawAgent(daemon, run="job", token=tokens.alice, upload=False)
    harness.wait_for(lambda: rank.session.open, what="the session")
    ctl, arc = daemon.control(tokens.operator), daemon.archive(tokens.operator)
    rank.open_upload()
    rank.step(0)
    assert rank.committed()
    assert harness.outcome(arc.Export, archive.ExportRequest(run="job", server_directory=str(root / "tree")))[0] == "OK"
    assert harness.outcome(arc.Backup, archive.BackupRequest(server_directory=str(root / "backup")))[0] == "OK"
    rank.goodbye()
    assert harness.wait_for(
        lambda: harness.outcome(arc.Delete, archive.DeleteRequest(run="job"))[0] == "OK", what="the deletion")
    assert harness.outcome(arc.Delete, archive.DeleteRequest(run="none"))[0] == "NOT_FOUND"
    assert harness.outcome(ctl.SetTriggers, control.SetTriggersRequest(run="job"))[0] == "OK"
    assert harness.outcome(ctl.ShipFlight, control.ShipFlightRequest(run="job"))[0] == "FAILED_PRECONDITION"
    audited = {path.split("/")[-1] for path, rule, _ in methods() if rule.audited}
    assert audited == {"SetConfig", "SetDumpEnable", "SetTriggers", "ShipFlight", "Delete", "Backup"}
    for action in ("Export", "Backup", "Delete", "SetTriggers", "ShipFlight"):
        lines = [a for a in actions(daemon) if a[2] == action]
        assert all(a[:2] == ("olga", "operator") for a in lines), lines
        outcomes = [a[4] for a in lines]
        # Each attempt has its outcome.
        assert outcomes[0] == BEGUN and len(outcomes) == 2 * outcomes.count(BEGUN), (action, outcomes)
        assert all(o != BEGUN for o in outcomes[1::2])
    assert ("olga", "operator", "Delete", "none", "NOT_FOUND") in actions(daemon)
    assert any(r["action"] == "Export" and str(root / "tree") in r["detail"] for r in daemon.audit())


def test_A12_a_viewer_does_not_write_to_the_collectors_disk(start_secured, tokens, tmp_path):
    root = tmp_path / "exports"
    root.mkdir()
    daemon = start_secured("--export-root", root)
    rank = RawAgent(daemon, run="job", token=tokens.alice)
    rank.step(0)
    assert rank.committed()
    viewer = daemon.archive(tokens.viewer)
    for request in (archive.ExportRequest(run="job", server_directory=str(root / "v")),
                    archive.ExportRequest(run="job", server_directory=str(root / "v"),
                                          staging_directory=str(root / "s")),
                    archive.ExportRequest(run="job", staging_directory=str(root / "s"))):
        status, message = harness.outcome(viewer.Export, request)
        assert status == "PERMISSION_DENIED" and "needs operator" in message, message
    assert harness.outcome(viewer.Backup, archive.BackupRequest(server_directory=str(root / "b")))[0] \
        == "PERMISSION_DENIED"
    assert list(root.iterdir()) == []
    assert ("vera", "viewer", "Export", "job", "PERMISSION_DENIED") in actions(daemon)
    # Reading over the wire stays a viewer's.
    assert harness.outcome(viewer.Export, archive.ExportRequest(run="job"))[0] == "OK"


def test_A13_a_plan_that_an_agent_brings_is_audited(secured, tokens):
    config = '{"dump_path": "d", "task": "tensor", "dump_enable": true}'
    first = RawAgent(secured, run="job", rank=0, token=tokens.alice, config=config)
    assert first.welcome.plan.epoch == 1
    RawAgent(secured, run="job", rank=1, token=tokens.bob, config=config)
    harness.wait_for(lambda: len(secured.audit()) > 0, what="the audit")
    lines = [r for r in secured.audit() if r["run"] == "job"]
    assert [(r["actor"], r["role"], r["outcome"], r["epoch"]) for r in lines] == [("alice", "agent", "OK", 1)]
    assert config in lines[0]["detail"] and lines[0]["peer"].startswith("ipv4:127.0.0.1:")
    # A large one does not make the log large.
    big = '{"dump_path": "d", "task": "tensor", "comment": "' + "x" * 500_000 + '"}'
    RawAgent(secured, run="big", token=tokens.alice, config=big)
    harness.wait_for(lambda: any(r["run"] == "big" for r in secured.audit()), what="the audit")
    line = next(r for r in secured.audit() if r["run"] == "big")
    assert len(line["detail"]) < 8192 and hashlib.sha256(big.encode()).hexdigest() in line["detail"]


def test_A13_tokens_are_bound_to_a_run_and_ranks(start_secured, tokens):
    daemon = start_secured(text=f"agent alice {tokens.alice} run=job ranks=0-1,4\nagent bob {tokens.bob}\n"
                                f"viewer vera {tokens.viewer}\n")
    assert RawAgent(daemon, run="job", rank=1, token=tokens.alice).refused is None
    for claim in (dict(run="other", rank=0), dict(run="job", rank=2), dict(run="job", rank=3)):
        refused = RawAgent(daemon, **claim, token=tokens.alice).refused
        assert refused[0] == "PERMISSION_DENIED", claim
        assert tokens.alice not in refused[1]
    assert RawAgent(daemon, run="other", rank=2, token=tokens.bob).refused is None
    process = RawAgent(daemon, run="job", rank=None, token=tokens.alice)
    process.event(rank_known=agent.RankKnown(rank=3))
    assert "ranks 0-1,4" in process.session.receive().goodbye.reason
    bench = harness.agent_grpc.AgentServiceStub(daemon.channel(tokens.alice)).GetReference
    assert harness.outcome(bench, agent.ReferenceRequest(run="other", step=0, rank=2))[0] == "PERMISSION_DENIED"
    assert harness.outcome(bench, agent.ReferenceRequest(run="job", step=0, rank=3))[0] == "PERMISSION_DENIED"
    assert harness.outcome(bench, agent.ReferenceRequest(run="job", step=0, rank=1))[0] == "NOT_FOUND"


def test_A07_a_token_may_hold_the_sign_of_a_comment(start_secured):
    token = "a1b2c3d4e5f60718#293a4b5c6d7e8f90"
    daemon = start_secured(text=f"viewer vera {token} # the whole word\n")
    request = control.ListAgentsRequest()
    assert harness.outcome(daemon.control(token).ListAgents, request)[0] == "OK"
    assert harness.outcome(daemon.control(token.split("#")[0]).ListAgents, request)[0] == "UNAUTHENTICATED"


def test_C08_one_principal_does_not_take_all_sessions(start_secured, tokens):
    daemon = start_secured("--max-sessions", 8)
    held = [RawAgent(daemon, run="hog", rank=r, token=tokens.alice, upload=False) for r in range(10)]
    assert [r.refused is None for r in held] == [True] * 4 + [False] * 6
    assert held[-1].refused[0] == "RESOURCE_EXHAUSTED" and "alice holds 4 sessions" in held[-1].refused[1]
    for rank in range(4):
        assert RawAgent(daemon, run="real", rank=rank, token=tokens.bob, upload=False).refused is None
