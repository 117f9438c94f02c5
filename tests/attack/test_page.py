# SPDX-License-Identifier: Apache-2.0
"""The page that a collector serves itself (--web-listen): who may ask it, what a hostile browser can do, and that ranks never wait for one."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import socket
import threading

import harness
import pytest
from harness import RawAgent, begin_record, call, call_record, end_record, text
from page_client import PageClient

SWITCHES = (("ControlService/SetDumpEnable", {"run": "job", "enable": True}), ("ControlService/SetConfig", {"run": "job", "configJson": "{}"}),
            ("ControlService/SetTriggers", {"run": "job"}), ("ControlService/ShipFlight", {"run": "job"}))
LOOKS = ("ArchiveService/ListRuns", "ControlService/ListAgents", "ControlService/ListEvents")
WEB = ("--web-listen", "127.0.0.1:0")


def page_of(daemon: harness.Daemon, token: str | None = None, ca=None) -> PageClient:
    origin = re.findall(r"^rankprobed serves its page on (\S+)/$", daemon.log(), re.M)[-1]
    return PageClient(origin, token, ca)


def recorded(daemon: harness.Daemon, token: str | None, steps: int = 3, run: str = "job") -> RawAgent:
    rank = RawAgent(daemon, run=run, token=token)
    for step in range(steps):
        rank.step(step)
    assert rank.committed()
    return rank


def test_roles_are_those_of_the_main_port(start_secured, tokens):
    daemon = start_secured(*WEB)
    recorded(daemon, tokens.alice)
    viewer, operator, agent, stranger, nobody = (page_of(daemon, t) for t in (tokens.viewer, tokens.operator, tokens.alice, "00" * 16, None))
    assert viewer.about()["caller"] == {"name": "vera", "role": "viewer"}
    assert operator.about()["caller"] == {"name": "olga", "role": "operator"}
    for method in LOOKS:
        for page in (viewer, operator):
            page.call(method)
        assert stranger.error(method, {})[:2] == (401, "UNAUTHENTICATED")
        assert nobody.error(method, {})[:2] == (401, "UNAUTHENTICATED")
        # Nor does a rank's token open the page: what others recorded is not a rank's.
        status, code, said = agent.error(method, {})
        assert (status, code) == (403, "PERMISSION_DENIED") and "alice has the role agent" in said
    for method, request in SWITCHES:
        status, code, said = viewer.error(method, request)
        assert (status, code) == (403, "PERMISSION_DENIED") and "vera has the role viewer" in said and "operator" in said, method
        for page in (agent, stranger, nobody):
            assert page.error(method, request)[0] in (401, 403)
    assert daemon.audit() == [], "nothing was begun"
    for method in ("JobStart", "JobCancel", "JobDelete", "Graph/SaveMapping", "Graph/Build"):
        assert viewer.error(method, {})[:2] == (403, "PERMISSION_DENIED"), method
    operator.call("ControlService/SetTriggers", run="job")
    (begun, ended) = daemon.audit()
    assert (begun["actor"], begun["role"], begun["action"], begun["outcome"]) == ("olga", "operator", "SetTriggers", "BEGUN")
    assert begun["peer"].startswith("page:127.0.0.1:") and ended["outcome"].startswith("OK")
    log = daemon.log()
    assert "page_refused" in log and not any(secret in log for secret in (tokens.viewer, tokens.alice, "00" * 16))


def test_no_method_is_forgotten_by_the_check(start_secured, tokens):
    """The way within the process asks nobody: the page does, for each of its methods, also for bytes of tensors."""
    daemon = start_secured(*WEB)
    recorded(daemon, tokens.alice)
    grants = {tokens.viewer: {harness.access.ACCESS_ROLE_VIEWER},
              tokens.operator: {harness.access.ACCESS_ROLE_VIEWER, harness.access.ACCESS_ROLE_OPERATOR}}
    reached = set()
    for module in (harness.agent, harness.control, harness.archive):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                role = method.GetOptions().Extensions[harness.access.access].role
                for token, granted in grants.items():
                    answer = page_of(daemon, token).post(f"{service.name}/{method.name}", {})
                    text = answer.read()
                    if answer.status == 404 and b"no such method" in text:
                        continue
                    reached.add(method.name)
                    assert (answer.status == 403) == (role not in granted), (method.name, answer.status, text[:200])
    assert {"ListRuns", "SetConfig", "ListCalls"} <= reached
    assert not reached & {"Session", "Upload", "Delete", "Backup", "Export", "GetTensor"}
    assert page_of(daemon, tokens.viewer).error("TensorLook", {})[0] not in (401, 403)
    assert page_of(daemon, tokens.alice).error("TensorLook", {})[0] == 403


def test_other_sites_and_other_names_are_refused(start_secured, tokens):
    daemon = start_secured(*WEB, "--web-name", "node0")
    page = page_of(daemon, tokens.viewer)
    assert page.post(LOOKS[0], {}, Origin=page.origin, **{"Sec-Fetch-Site": "same-origin"}).status == 200
    assert page.post(LOOKS[0], {}, Host=f"NODE0:{page.port}", Origin=f"http://node0:{page.port}").status == 200
    for headers, status in (({"Host": "evil.example"}, 403), ({"Host": f"evil.example:{page.port}"}, 403), ({"Host": "node0"}, 403),
                            ({"Host": f"127.0.0.1:{daemon.port}"}, 403), ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403),
                            ({"Origin": f"https://127.0.0.1:{page.port}"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
                            ({"Sec-Fetch-Site": "same-site"}, 403), ({"Content-Type": "text/plain"}, 415), ({"Authorization": "Basic eA=="}, 401)):
        assert page.error(LOOKS[0], {}, **headers)[0] == status, headers
    answer = page.ask("GET", "/")
    answer.read()
    policy = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.getheader("Access-Control-Allow-Origin") is None and answer.getheader("Set-Cookie") is None
    assert answer.getheader("X-Content-Type-Options") == "nosniff"


def test_an_open_collector_on_loopback_asks_for_no_token_but_still_for_its_own_page(daemon, start_daemon):
    daemon = start_daemon(*WEB)
    page = page_of(daemon)
    assert page.about()["caller"] == {"name": "anybody", "role": "operator"}
    for token in (None, "x", "\x80\xff", "x" * 8000):
        PageClient(page.origin, token).call(LOOKS[0])
    for headers, status in (({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
                            ({"Content-Type": "text/plain"}, 415), ({"Authorization": "Basic eA=="}, 401)):
        assert page.error("ControlService/SetTriggers", {"run": "job"}, **headers)[0] == status, headers
    assert daemon.audit() == []
    page.call("ControlService/SetTriggers", run="job")
    assert [line["actor"] for line in daemon.audit()] == ["anybody", "anybody"]


def test_limits_on_every_request(start_secured, tokens):
    daemon = start_secured(*WEB)
    page = page_of(daemon, tokens.viewer)
    before = daemon.memory()
    assert page.error(LOOKS[0], {"afterRun": "x" * (1 << 20)})[0] == 413
    assert page.error(LOOKS[0], b"[" * 100_000)[:2] == (400, "INVALID_ARGUMENT")
    assert page.error(LOOKS[0], {}, Junk="x" * (20 << 10))[0] == 431
    assert page.error("TensorLook", {"tensor": {"run": "job", "lengthBytes": str(65 << 20), "digest": ""}})[:2] == (429, "RESOURCE_EXHAUSTED")
    for said in (b"\0" * 1000, b"GET / HTTP/1.0\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00" + b"\xff" * 500):
        with socket.create_connection((page.host, page.port), timeout=harness.SOON) as client:
            client.sendall(said)
            assert b" 200 " not in client.recv(4096)
    # A header that never ends is cut, not kept.
    with socket.create_connection((page.host, page.port), timeout=harness.SOON) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        taken = 0
        with contextlib.suppress(OSError):
            while taken < 64:
                client.sendall(b"X-Flood: " + b"x" * (1 << 20) + b"\r\n")
                taken += 1
        assert taken < 64
    page.call(LOOKS[0])
    assert daemon.memory() - before < 64 << 20
    assert daemon.alive


def test_strangers_that_hold_connections_keep_nobody_out(start_secured, tokens):
    daemon = start_secured(*WEB)
    page = page_of(daemon, tokens.viewer)
    files = daemon.open_files()
    held = []
    try:
        for _ in range(200):
            held.append(socket.create_connection((page.host, page.port), timeout=harness.SOON))
            with contextlib.suppress(OSError):  # it may have had to make way already
                held[-1].sendall(b"POST /api/v1/x HTTP/1.1\r\nHost: ")
        for _ in range(5):
            harness.wait_for(lambda: _looks(page), harness.SOON, "an answer beside them")
        assert daemon.open_files() - files < 150
        # And ranks do not notice.
        recorded(daemon, tokens.alice)
    finally:
        for one in held:
            one.close()


def _looks(page: PageClient) -> bool:
    try:
        return page.post(LOOKS[0], {}).status == 200
    except OSError:
        return False


def large_step(rank: RawAgent, step: int, calls: int) -> None:
    """Its calls are some 4 MB as a page gets them, which no buffers on the way take."""
    records = [begin_record(0, task="statistics", has_payloads=False)]
    records += [call_record(i + 1, call(f"Torch.relu.{i}.forward", [text("x" * 1000)])) for i in range(calls)]
    records.append(end_record(calls + 1, calls))
    for first in range(0, len(records), 400):
        rank.batch(step, records[first:first + 400])


def ask_slowly(page: PageClient, token: str, method: str, request: dict) -> socket.socket:
    """A browser that has asked and takes little of the answer at once: whoever holds it reads, or does not."""
    body = json.dumps(request).encode()
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(harness.SOON)
    one.connect((page.host, page.port))
    one.sendall(f"POST /api/v1/{method} HTTP/1.1\r\nHost: {page.host}:{page.port}\r\nAuthorization: Bearer {token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return one


def test_browsers_that_read_nothing_hold_up_no_rank(start_secured, tokens):
    """More of them than the page, and the collector's queries, have threads: each asks for much and takes none of it."""
    calls = 4000
    daemon = start_secured(*WEB, "--worker-threads", 2)
    rank = RawAgent(daemon, run="job", token=tokens.alice)
    large_step(rank, 0, calls)
    assert rank.committed()
    page = page_of(daemon, tokens.viewer)
    request = {"run": "job", "step": "0", "rank": "0"}
    assert len(page.call("ArchiveService/ListCalls", **request)) == calls
    before = daemon.memory()
    held = []
    try:
        for _ in range(60):
            held.append(ask_slowly(page, tokens.viewer, "ArchiveService/ListCalls", request))
        # Some are being answered, and go no further; the rest waits for the threads of queries.
        assert select.select(held, [], [], harness.SOON)[0]
        for step in range(1, 41):
            rank.step(step)
        assert rank.committed()
        other = recorded(daemon, tokens.bob, steps=5, run="other")
        # A switch, which ranks follow, comes through beside them.
        stop = threading.Event()
        follower = harness.follow(rank, stop, 41)
        try:
            status, _ = harness.outcome(daemon.control(tokens.operator).SetDumpEnable, harness.control.SetDumpEnableRequest(
                run="job", enable=True, config_json='{"dump_path": "d", "task": "statistics"}'))
            assert status == "OK"
        finally:
            stop.set()
            follower.join()
        other.goodbye()
        assert daemon.memory() - before < 256 << 20
    finally:
        for one in held:
            one.close()
    # They are gone, and so is what was theirs.
    harness.wait_for(lambda: _looks(page), harness.SOON, "an answer")
    lines = page.call("ArchiveService/GetLedger", run="job")
    assert len(lines) == 41 and all(line["state"] != "STATE_GAPS" for line in lines)


def test_the_end_of_a_collector_waits_for_no_browser(start_secured, tokens):
    daemon = start_secured(*WEB)
    recorded(daemon, tokens.alice)
    page = page_of(daemon, tokens.viewer)
    idle = page.connect()
    idle.request("GET", "/")
    idle.getresponse().read()
    half = socket.create_connection((page.host, page.port))
    half.sendall(b"POST /api/v1/ArchiveService/ListRuns HTTP/1.1\r\n")
    assert daemon.stop(seconds=30) == 0
    assert "queries_left" not in daemon.log()
    idle.close()
    half.close()
    with pytest.raises(OSError):
        page.ask("GET", "/")


def test_an_address_in_use_ends_the_start_before_any_rank(start_daemon, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = harness.Daemon(tmp_path / "second", "--web-listen", address)
        daemon.spawn(tmp_path / "port")
        assert daemon.process.wait(harness.SOON) == 5
        (line,) = [one for one in daemon.log().splitlines() if one.startswith("rankprobed: ")]
        assert line == f"rankprobed: --web-listen: cannot listen on {address}: Address already in use"
        assert not (tmp_path / "port").exists() and "listening on" not in daemon.log()
    assert daemon.start().stop() == 0, "free again"


@pytest.mark.parametrize(("flags", "said"), [
    (["--web-listen", "0.0.0.0:0"], "beyond loopback the page requires TLS and tokens"),
    (["--web-listen", "0.0.0.0:0", "--insecure"], "beyond loopback the page requires TLS and tokens"),
    (["--web-listen", "[::]:0", "--token-file", "{certs}/tokens"], "beyond loopback the page requires TLS and tokens"),
    (["--web-listen", "192.0.2.1:0", "--tls-cert", "{certs}/server.pem", "--tls-key", "{certs}/server.key"],
     "beyond loopback the page requires TLS and tokens"),
    (["--web-listen", "127.0.0.1:0", "--tls-cert", "{certs}/server.pem", "--tls-key", "{certs}/server.key", "--tls-client-ca", "{certs}/ca.pem"],
     "a browser proves itself to the page by a token"),
    (["--web-listen", "node0:80"], "ADDRESS:PORT"),
    (["--web-listen", "127.0.0.1"], "ADDRESS:PORT"),
    (["--web-name", "node0"], "given with web-listen"),
    (["--web-listen", "127.0.0.1:0", "--web-name", "https://node0"], "a name without scheme and port"),
])
def test_a_page_that_would_be_open_to_others_is_not_started(flags, said, certificates, tmp_path):
    daemon = harness.Daemon(tmp_path / "daemon", *(flag.format(certs=certificates) for flag in flags))
    daemon.spawn(tmp_path / "port")
    assert daemon.process.wait(harness.SOON) == 2
    (line,) = daemon.log().splitlines()
    assert said in line


def test_by_tls_where_the_collector_speaks_it(start_daemon, certificates):
    daemon = start_daemon(*WEB, "--tls-cert", certificates / "server.pem", "--tls-key", certificates / "server.key",
                          "--token-file", certificates / "tokens")
    token = (certificates / "viewer.token").read_text().strip()
    page = page_of(daemon, token, certificates / "ca.pem")
    assert page.origin.startswith("https://localhost:")
    assert page.about()["caller"]["role"] == "viewer"
    page.call(LOOKS[0])
    assert page.error(LOOKS[0], {}, Origin=page.origin.replace("https", "http"))[0] == 403
    assert page.error(LOOKS[0], {}, Host=f"evil.example:{page.port}")[0] == 403
    # Plain text gets nothing but an end.
    with pytest.raises((http.client.HTTPException, OSError)):
        PageClient(page.origin.replace("https", "http"), token).about()
    assert daemon.alive
