# SPDX-License-Identifier: Apache-2.0
"""Attacks on who a rank is: sessions, uploads, incarnations, dedup between tenants. Ids are those of the red team's report."""

import os
import pathlib
import re
import time

import pytest

import harness
from harness import RawAgent, agent, archive, control

# How long who offers and sends nothing is waited for.
PATIENCE = 2.0
STEP1 = "step1/rank0/dump_tensor_data/Torch.relu.0.forward.output.0.pt"


def steps_of(daemon, run, token=None):
    return daemon.archive(token).ListSteps(archive.ListStepsRequest(run=run), timeout=harness.SOON).steps


def agents_of(daemon, run, token=None):
    return daemon.control(token).ListAgents(control.ListAgentsRequest(run=run), timeout=harness.SOON).agents


def test_I01_session_ids_cannot_be_guessed(daemon):
    ranks = [RawAgent(daemon, rank=r, upload=False) for r in range(8)]
    ids = {r.session_id for r in ranks}
    assert len(ids) == 8
    for text in ids:
        assert re.fullmatch("[0-9a-f]{32}", text), "128 random bits"
    # No two share more than chance gives: not a counter in disguise.
    assert len({text[:8] for text in ids}) == 8 and len({text[-8:] for text in ids}) == 8
    for guess in ["s1", "s2", "", "1", "0" * 32, "\0" * 16, ranks[0].session_id[:-1], ranks[0].session_id + "0",
                  ranks[0].session_id.upper() + " "]:
        refused = RawAgent(daemon, session_id=guess).refused
        assert refused and refused[0] == "FAILED_PRECONDITION", guess


def test_I01_an_upload_belongs_to_the_principal_of_its_session(secured, tokens, tmp_path):
    """Even a stolen session id is of no use to the holder of another token."""
    victim = RawAgent(secured, run="job", rank=0, token=tokens.alice)
    victim.step(0)
    assert victim.committed()
    thief = RawAgent(secured, token=tokens.bob, session_id=victim.session_id)
    assert thief.refused[0] == "FAILED_PRECONDITION"
    victim.step(1, b"GOOD" * 64)
    assert victim.committed()
    operator = tmp_path / "operator"
    operator.write_text(tokens.operator)
    operator.chmod(0o600)
    tree = tmp_path / "tree"
    secured.cli("--token-file", operator, "export", "--run", "job", "-o", tree, check=True)
    assert harness.exported_tensors(tree)[STEP1] == b"GOOD" * 64


def test_I02_first_sequence_is_bounded(daemon, tmp_path):
    rank = RawAgent(daemon, run="job", rank=0)
    rank.step(0)
    assert rank.committed()
    committed = rank.sequence
    for first in (2**64 - 1, 2**63, committed + 2 + (1 << 28)):
        assert not rank.open_upload(first)
        assert rank.refused[0] == "INVALID_ARGUMENT", first
    # What a crash of the machine may have taken is counted, and the rank goes on.
    assert rank.open_upload(committed + 6)
    assert rank.sequence == committed + 5
    rank.step(1)
    assert rank.committed()
    assert STEP1 in harness.exported_tensors(harness.export(daemon, "job", tmp_path / "tree", gaps=True))
    assert "5 frames were committed, not synced" in daemon.cli("ledger", "--run", "job").stdout


def test_I03_a_refused_rank_is_not_told_the_live_incarnation(daemon):
    live = RawAgent(daemon, run="job", rank=3, host="node3", pid=333)
    refused = RawAgent(daemon, run="job", rank=3, host="evil").refused
    assert refused[0] == "ALREADY_EXISTS"
    assert "process 333 on node3" in refused[1] and "on evil" in refused[1], "an operator has to find them"
    assert f"{live.incarnation:x}" not in refused[1] and "incarnation" not in refused[1]


def test_I04_a_live_rank_is_not_evicted_without_its_secret(daemon):
    live = RawAgent(daemon, run="job", rank=3, host="node3", pid=333)
    live.step(0)
    assert live.committed()
    for secret in (b"", os.urandom(32), live.secret[:-1] + bytes([live.secret[-1] ^ 1])):
        refused = RawAgent(daemon, run="job", rank=3, host="node3", pid=333, incarnation=live.incarnation,
                           secret=secret).refused
        assert refused[0] == "PERMISSION_DENIED", secret
    live.event(progress=agent.StepProgress(step=5))
    harness.wait_for(lambda: [(a.identity.host, a.step) for a in agents_of(daemon, "job")] == [("node3", 5)],
                     what="the live rank's step")
    live.step(1)
    assert live.committed()
    short = RawAgent(daemon, run="job", rank=4, secret=b"short").refused
    assert short[0] == "INVALID_ARGUMENT"


def test_I04_a_reconnect_with_the_secret_takes_over_and_ends_the_old_streams(daemon):
    old = RawAgent(daemon, run="job", rank=3, pid=333)
    old.step(0)
    assert old.committed()
    new = RawAgent(daemon, run="job", rank=3, pid=333, incarnation=old.incarnation, secret=old.secret)
    assert new.refused is None and new.sequence == old.sequence
    assert old.session.end()[0] == "ABORTED"
    assert old.upload.end()[0] == "ABORTED"
    new.step(1)
    assert new.committed()
    assert len(agents_of(daemon, "job")) == 1


def test_I04_an_incarnation_without_a_secret_goes_on_only_when_it_is_alone(daemon):
    """An agent of before has no secret: nobody can prove to be it, so nobody evicts it."""
    old = RawAgent(daemon, run="job", rank=0, secret=b"")
    old.step(0)
    assert old.committed()
    claim = dict(run="job", rank=0, incarnation=old.incarnation)
    for secret in (b"", os.urandom(32)):
        assert RawAgent(daemon, **claim, secret=secret).refused[0] == "ALREADY_EXISTS"
    old.goodbye()
    harness.wait_for(lambda: not any(a.connected for a in agents_of(daemon, "job")), what="the collector to notice")
    again = RawAgent(daemon, **claim, secret=b"")
    assert again.refused is None and again.sequence == old.sequence


@pytest.mark.parametrize("change", [dict(rank=99), dict(host="forged"), dict(pid=4242)])
@pytest.mark.parametrize("knows", ["secret", "no secret"])
def test_I05_history_is_not_rewritten(daemon, change, knows):
    """Neither by a stranger nor by the process itself."""
    rank = RawAgent(daemon, run="job", rank=0, host="node0", pid=1)
    rank.step(0)
    assert rank.committed()
    before = [(s.step, s.rank, s.host, s.pid) for s in steps_of(daemon, "job")]
    rank.goodbye()
    identity = {**dict(rank=0, host="node0", pid=1), **change}
    secret = rank.secret if knows == "secret" else os.urandom(32)
    forged = RawAgent(daemon, run="job", incarnation=rank.incarnation, secret=secret, upload=False, **identity)
    assert forged.refused[0] == "PERMISSION_DENIED"
    assert [(s.step, s.rank, s.host, s.pid) for s in steps_of(daemon, "job")] == before


def test_secrets_are_compared_in_constant_time():
    """No test can measure it on a shared machine: what compares a secret, a token or a digest of one names same_bytes.h."""
    compared = re.compile(r"(?:secret|token)\w*(?:\(\))?\s*[!=]=|[!=]=\s*[\w.>-]*(?:secret|token)\w*(?:\(\))?\b(?!\.(?:size|empty))")
    room = pathlib.Path(__file__).resolve().parents[2] / "collector"
    found = [f"{path.relative_to(room)}: {line.strip()}" for path in sorted(room.rglob("*.cc"))
             if not path.name.endswith("_test.cc") for line in path.read_text().splitlines() if compared.search(line)]
    assert not found


def test_I05_a_rank_becomes_known_once(daemon):
    process = RawAgent(daemon, run="job", rank=None, pid=7)
    process.step(0)
    assert process.committed()
    process.event(rank_known=agent.RankKnown(rank=5, world_size=8))
    harness.wait_for(lambda: [s.rank for s in steps_of(daemon, "job")] == [5], what="the rank in the archive")
    process.event(rank_known=agent.RankKnown(rank=6, world_size=8))
    assert "do not change" in process.session.receive().goodbye.reason
    assert [s.rank for s in steps_of(daemon, "job")] == [5]


def test_C11_one_upload_a_session(daemon):
    rank = RawAgent(daemon, run="job", rank=0)
    first_upload = rank.upload
    for _ in range(50):
        previous = rank.upload
        assert rank.open_upload()
        assert previous.end()[0] == "ABORTED"
    assert not first_upload.open and rank.upload.open
    rank.step(0)
    assert rank.committed()
    assert daemon.memory() < 200 << 20


# --- payloads of several principals ----------------------------------------------

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")


def second_preimage(data: bytes, wanted: bytes) -> bytes:
    """Other bytes with the XXH3-128 of `data`: `wanted` but for 5 of the 16 stripes of the first KiB.

    Each of XXH3's eight lanes adds, over a block of 16 stripes, the words and
    the products of the halves of (word xor secret). Two free words per lane set the
    sum of products, two more the sum of words with products of zero.
    """
    mask, low = (1 << 64) - 1, (1 << 32) - 1
    assert len(data) > 1024 + 64
    forged = bytearray(wanted[:1024] + data[1024:])

    def key(stripe, lane):
        return int.from_bytes(_SECRET[8 * (stripe + lane):][:8], "little")

    def word(buffer, stripe, lane):
        return int.from_bytes(buffer[64 * stripe + 8 * lane:][:8], "little")

    def product(value):
        return (value & low) * (value >> 32)

    free = range(9, 14)
    kept = [n for n in range(16) if n not in free]
    for lane in range(8):
        words = sum(word(data, n, lane) for n in range(16))
        products = sum(product(word(data, n, lane) ^ key(n, lane)) for n in range(16))
        missing = (products - sum(product(word(forged, n, lane) ^ key(n, lane)) for n in kept)) & mask
        high, rest = missing >> 31, missing & ((1 << 31) - 1)
        chosen = {n: (x | y << 32) ^ key(n, lane) for n, x, y in (
            (9, 1, rest), (10, 1 << 31, min(high, low)), (11, 1 << 31, high - min(high, low)))}
        base = words - sum(word(forged, n, lane) for n in kept) - sum(chosen.values())
        need = (base - (key(13, lane) & low) - (key(12, lane) >> 32 << 32)) & mask
        chosen[12] = (need & low) | key(12, lane) >> 32 << 32
        chosen[13] = key(13, lane) & low | need >> 32 << 32
        for n, value in chosen.items():
            forged[64 * n + 8 * lane:64 * n + 8 * lane + 8] = value.to_bytes(8, "little")
    return bytes(forged)


def forgery() -> tuple[bytes, bytes]:
    real = os.urandom(4096)
    fake = second_preimage(real, b"\0\0\x80\x3f" * 1024)
    assert real != fake and harness.digest(real) == harness.digest(fake), "the collision itself"
    return real, fake


def export_as(daemon, token, run, tmp_path):
    path = tmp_path / "reader"
    path.write_text(token)
    path.chmod(0o600)
    daemon.cli("--token-file", path, "export", "--run", run, "-o", tmp_path / "tree", check=True)
    return harness.exported_tensors(tmp_path / "tree")


def test_I11_a_forged_tensor_does_not_take_anothers_place(secured, tokens, tmp_path):
    """XXH3-128 has second preimages in closed form; another principal's are of no use."""
    real, fake = forgery()
    attacker = RawAgent(secured, run="job", rank=0, token=tokens.alice)
    attacker.step(0, fake)
    assert attacker.committed()
    victim = RawAgent(secured, run="job", rank=1, token=tokens.bob)
    name = harness.digest(real)
    victim.offer((name, len(real)))
    assert victim.answers(name) == "wanted", "the forged one must not stand in for it"
    victim.step(0, real)
    assert victim.committed()
    tensors = export_as(secured, tokens.operator, "job", tmp_path)
    data = "dump_tensor_data/Torch.relu.0.forward.output.0.pt"
    assert tensors[f"step0/rank1/{data}"] == real
    assert tensors[f"step0/rank0/{data}"] == fake, "each has what it sent"
    report = harness.outcome(secured.archive(tokens.viewer).Verify, archive.VerifyRequest(read_data=True))[1][-1]
    assert report.fault_count == 0 and report.payloads == 2


def test_I11_payloads_are_shared_within_a_principal(secured, tokens, tmp_path):
    """The bytes of equal tensors are stored once for the ranks of one token, and answered so."""
    data = os.urandom(100_000)
    name = harness.digest(data)
    first = RawAgent(secured, run="job", rank=0, token=tokens.alice)
    first.step(0, data)
    assert first.committed()
    second = RawAgent(secured, run="job", rank=1, token=tokens.alice)
    second.offer((name, len(data)))
    assert second.answers(name) == "have"
    second.step(0, data, send_payload=False)
    assert second.committed()
    # Bits that are not the digest's are not taken for them, here either.
    second.payload(b"x" * 1000, harness.digest(b"y" * 1000))
    second.offer((harness.digest(b"y" * 1000), 1000))
    assert second.answers(harness.digest(b"y" * 1000)) == "wanted"
    tensors = export_as(secured, tokens.operator, "job", tmp_path)
    assert list(tensors.values()) == [data, data]
    run = secured.archive(tokens.viewer).ListRuns(archive.ListRunsRequest(), timeout=harness.SOON).runs[0]
    assert run.stored_payload_bytes == len(data) and run.offered_payload_bytes == 2 * len(data)


def test_I08_wrong_bytes_of_one_principal_do_not_spoil_anothers_payload(secured, tokens, tmp_path):
    data = os.urandom(1 << 18)
    name = harness.digest(data)
    attacker = RawAgent(secured, run="job", rank=0, token=tokens.alice)
    attacker.chunk(name, len(data), 0, b"\0")
    assert attacker.committed()
    victim = RawAgent(secured, run="job", rank=1, token=tokens.bob)
    victim.step(0, data)
    assert victim.committed()
    assert list(export_as(secured, tokens.operator, "job", tmp_path).values()) == [data]


def test_I07_the_identity_of_an_upload_is_its_sessions(daemon):
    rank = RawAgent(daemon, run="mine", rank=1, upload=False)
    rank.identity.run, rank.identity.rank = "theirs", 0
    rank.open_upload()
    rank.step(0)
    assert rank.committed()
    runs = daemon.archive().ListRuns(archive.ListRunsRequest(), timeout=harness.SOON).runs
    assert [r.run for r in runs] == ["mine"]
    assert [s.rank for s in steps_of(daemon, "mine")] == [1]


def test_I10_a_stored_digest_of_another_length_is_not_had(daemon):
    rank = RawAgent(daemon)
    data = b"z" * 4096
    rank.step(0, data)
    assert rank.committed()
    for length in (5, 4095, 4097, 2**40):
        rank.offer((harness.digest(data), length))
        assert rank.answers(harness.digest(data)) == "wanted", length
    rank.offer((harness.digest(data), len(data)))
    assert rank.answers(harness.digest(data)) == "have"


def test_I09_who_offers_and_never_sends_holds_nobody_up(daemon):
    """The promise runs out, and who broke many makes none any more."""
    liar, honest = RawAgent(daemon, rank=0), RawAgent(daemon, rank=1)
    names = [os.urandom(16) for _ in range(40)]
    for name in names:
        liar.offer((name, 1 << 20))
        assert liar.answers(name) == "wanted"
    for _ in range(5):  # on a busy machine the promise may be old when the honest one comes
        promised, name = time.monotonic(), os.urandom(16)
        liar.offer((name, 1 << 20))
        assert liar.answers(name) == "wanted"
        honest.offer((name, 1 << 20))
        if (said := honest.answers(name)) == "coming":
            break
        assert time.monotonic() - promised >= PATIENCE, said
    assert said == "coming"
    assert honest.answers(name) == "wanted", "handed on without being asked again"
    for name in names:
        honest.offer((name, 1 << 20))
        assert honest.answers(name) == "wanted", "the promise is old"
    fresh = os.urandom(16)
    liar.offer((fresh, 1 << 20))
    assert liar.answers(fresh) == "wanted"
    honest.offer((fresh, 1 << 20))
    assert honest.answers(fresh) == "wanted", "nobody waits for it any more"
