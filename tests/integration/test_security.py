# SPDX-License-Identifier: Apache-2.0
"""TLS, client certificates, bearer tokens and roles; what is refused is logged."""

import json
import os
import pathlib
import subprocess

import pytest

import harness


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("certs")
    subprocess.run([harness.ROOT / "deploy" / "certs.sh", directory], check=True, capture_output=True)
    sign_expired(directory)
    return directory


def sign_expired(directory: pathlib.Path) -> None:
    """Makes expired.pem and expired.key, of a server and an operator. Its end is before its beginning, as openssl signs nothing that begins earlier."""
    (directory / "expired.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1,URI:rankprobe:operator\nextendedKeyUsage=serverAuth,clientAuth\n")
    for line in ("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout expired.key -subj /CN=expired -out expired.csr",
                 "x509 -req -in expired.csr -CA ca.pem -CAkey ca.key -CAcreateserial -sha256 -days -1 -extfile expired.ext -out expired.pem"):
        subprocess.run(["openssl", *line.split()], check=True, capture_output=True, cwd=directory)


@pytest.fixture
def start(tmp_path: pathlib.Path, certs: pathlib.Path):
    started = []

    def make(*flags: str) -> harness.Collector:
        directory = tmp_path / f"collector{len(started)}"
        directory.mkdir()
        started.append(harness.Collector(directory, *map(str, flags)).start())
        return started[-1]

    yield make
    for instance in started:
        if instance.process.poll() is None:
            assert instance.stop() == 0


def tls_flags(certs: pathlib.Path, name: str = "server") -> list:
    return ["--tls-cert", certs / f"{name}.pem", "--tls-key", certs / f"{name}.key"]


def call(collector: harness.Collector, *args, ca=None, token=None, cert=None, seconds=60) -> subprocess.CompletedProcess:
    """Who gets no connection is not to wait for long: `seconds`."""
    flags = ["--timeout", seconds]
    if ca:
        flags += ["--tls-ca", ca]
    if token:
        flags += ["--token-file", token]
    if cert:
        flags += ["--tls-cert", f"{cert}.pem", "--tls-key", f"{cert}.key"]
    return collector.cli(*flags, *args, check=False)


def audit(collector: harness.Collector) -> list[dict]:
    return [json.loads(line) for line in (collector.data_dir / "audit.jsonl").read_text().splitlines()]


def test_tokens_and_roles_over_tls(start, certs, tmp_path):
    collector = start(*tls_flags(certs), "--token-file", certs / "tokens")
    ca = certs / "ca.pem"
    assert call(collector, "status", ca=ca, token=certs / "viewer.token").returncode == 0
    enabled = call(collector, "enable", "--create", "--run", "r", "--for-steps", "2", ca=ca, token=certs / "operator.token")
    assert enabled.returncode == 0

    wrong = tmp_path / "wrong"
    wrong.write_text("f" * 48)
    for arguments, token, words in [
        (["status"], None, "a token is needed"),
        (["status"], wrong, "token is not known"),
        (["status"], certs / "agent.token", "agent-1 has the role agent; ListAgents needs viewer"),
        (["enable", "--create", "--run", "r"], certs / "viewer.token", "viewer-1 has the role viewer; SetDumpEnable needs operator"),
    ]:
        result = call(collector, *arguments, ca=ca, token=token)
        assert result.returncode == 5, result
        assert words in result.stderr
        assert words in collector.log_text()
    # One action took place, and the record says whose it was.
    records = audit(collector)
    assert [(r["actor"], r["role"], r["action"], r["run"]) for r in records] == [
        ("operator-1", "operator", "Enable", "r")] * 2
    assert records[0]["outcome"] == "BEGUN" and records[1]["outcome"].startswith("OK")
    assert records[1]["peer"].startswith("ipv4:127.0.0.1:") and records[1]["epoch"] == 1
    assert "for 2 steps" in records[1]["detail"]


def test_plain_text_to_a_tls_port_and_tls_to_a_plain_one(start, certs):
    secure = start(*tls_flags(certs), "--token-file", certs / "tokens")
    result = call(secure, "status", token=certs / "viewer.token", seconds=5)
    assert result.returncode == 3, result
    harness.wait_for(lambda: "handshake_failed" in secure.log_text(), 30, "the refusal in the log")
    plain = start()
    result = call(plain, "status", ca=certs / "ca.pem", seconds=5)
    assert result.returncode == 3, result


def test_mutual_tls_takes_the_role_from_the_certificate(start, certs):
    collector = start(*tls_flags(certs), "--tls-client-ca", certs / "ca.pem")
    ca = certs / "ca.pem"
    assert call(collector, "status", ca=ca, cert=certs / "viewer").returncode == 0
    assert call(collector, "enable", "--create", "--run", "r", ca=ca, cert=certs / "operator").returncode == 0
    assert audit(collector)[-1]["actor"] == "operator"
    refused = call(collector, "enable", "--create", "--run", "r", ca=ca, cert=certs / "viewer")
    assert refused.returncode == 5 and "needs operator" in refused.stderr
    assert call(collector, "status", ca=ca, seconds=5).returncode == 3, "no certificate, no connection"
    before = collector.log_text().count("handshake_failed")
    assert call(collector, "status", ca=ca, cert=certs / "expired", seconds=5).returncode == 3
    harness.wait_for(lambda: collector.log_text().count("handshake_failed") > before, 30, "the refusal in the log")
    assert "certificate verify failed" in collector.log_text()


def test_an_expired_server_certificate_is_refused_by_the_client(start, certs):
    collector = start(*tls_flags(certs, "expired"), "--token-file", certs / "tokens")
    result = call(collector, "status", ca=certs / "ca.pem", token=certs / "viewer.token", seconds=5)
    assert result.returncode == 3
    harness.wait_for(lambda: "handshake_failed" in collector.log_text(), 30, "the refusal in the log")


def test_tokens_work_on_plain_loopback(start, certs):
    collector = start("--token-file", certs / "tokens")
    assert call(collector, "status", token=certs / "viewer.token").returncode == 0
    assert call(collector, "status").returncode == 5
    assert call(collector, "enable", "--create", "--run", "r", token=certs / "viewer.token").returncode == 5


def test_a_job_records_over_tls_with_its_token(start, certs, start_job, tmp_path, monkeypatch):
    collector = start(*tls_flags(certs), "--token-file", certs / "tokens")
    monkeypatch.setenv("RANKPROBE_TLS_CA", str(certs / "ca.pem"))
    monkeypatch.setenv("RANKPROBE_TOKEN_FILE", str(certs / "agent.token"))
    job = start_job("tls", collector.address, harness.config(), world_size=2)
    job.wait_steps(3)
    monkeypatch.setenv("RANKPROBE_TOKEN_FILE", str(certs / "operator.token"))
    job.wait_known(collector)
    answer = collector.json("enable", "--run", "tls", "--for-steps", "2")
    assert answer["summary"].startswith("2/2 ranks at step")
    job.wait_steps(4)
    assert job.finish() == [0, 0]
    out = tmp_path / "dump"
    collector.cli("export", "--run", "tls", "-o", out)
    first = answer["effective_at_step"]
    assert harness.tree_ranks(out) == {s: {"rank0", "rank1"} for s in (first, first + 1)}


def test_a_job_with_a_viewers_token_trains_on_and_says_why(start, certs, start_job, monkeypatch):
    collector = start("--token-file", certs / "tokens")
    monkeypatch.setenv("RANKPROBE_TOKEN_FILE", str(certs / "viewer.token"))
    job = start_job("viewer", collector.address, harness.config(), world_size=1)
    job.wait_steps(3)
    harness.wait_for(lambda: "Session needs agent" in collector.log_text(), 30, "the refusal in the log")
    assert job.finish() == [0]
    said = job.ranks[0].log.read_text()
    assert said.count("rankprobe: nothing of rank 0 is recorded, training continues") == 1, said
    assert "Session needs agent" in said


@pytest.mark.parametrize("flags, words", [
    (["--listen", "0.0.0.0:0"], "--insecure"),
    (["--listen", "0.0.0.0:0", "--tls-cert", "{certs}/server.pem", "--tls-key", "{certs}/server.key"], "anybody"),
    (["--listen", "0.0.0.0:0", "--insecure", "--token-file", "{certs}/tokens"], "plain text"),
    (["--listen", "127.0.0.1:0", "--tls-cert", "{certs}/server.pem"], "tls-key"),
    (["--listen", "127.0.0.1:0", "--tls-client-ca", "{certs}/ca.pem"], "tls-cert"),
])
def test_unsafe_listening_is_refused(certs, tmp_path, flags, words):
    result = subprocess.run(
        [harness.BIN / "rankprobed", "--data-dir", tmp_path / "d", *[f.format(certs=certs) for f in flags]],
        capture_output=True, text=True, timeout=60, env={**os.environ})
    assert result.returncode == 2, result
    assert words in result.stderr


def test_files_that_cannot_be_used_are_named(certs, tmp_path):
    for flags, words in [
        (["--tls-cert", certs / "tokens", "--tls-key", certs / "server.key"], "not PEM"),
        (["--token-file", tmp_path / "none"], "none: cannot be read"),
    ]:
        result = subprocess.run(
            [harness.BIN / "rankprobed", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "d", *map(str, flags)],
            capture_output=True, text=True, timeout=60)
        assert result.returncode == 2 and words in result.stderr, result
